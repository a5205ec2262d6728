"""Classify a folder of pictures: ``python classify_folder.py photos/``, or without one shapes drawn here."""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import ien

SIZE, EACH = 32, 60


def draw(folder: Path) -> None:
    """Rings, bars and crosses in noise, lying or standing: a picture rotated by 90° keeps its class."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:SIZE, :SIZE] - (SIZE - 1) / 2
    for name in ("ring", "bar", "cross"):
        (folder / name).mkdir(parents=True)
        for i in range(EACH):
            right, down = rng.uniform(-4, 4, 2)
            u, v = x - right, y - down
            if rng.random() < 0.5:
                u, v = v, u
            radius = np.hypot(u, v)
            shapes = {"ring": abs(radius - 8) < 1.5, "bar": (abs(u) < 1.5) & (radius < 10)}
            shapes["cross"] = (np.minimum(abs(u), abs(v)) < 1.5) & (radius < 10)
            pixels = 60 + 100 * shapes[name] + rng.normal(0, 20, (SIZE, SIZE))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / name / f"{i}.png")


with tempfile.TemporaryDirectory() as place:
    options = ["--out", f"{place}/runs", "--name", "mine"]
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1])
    else:
        folder = Path(place, "shapes")
        draw(folder)
        options += ["--model", "vgg", "--epochs", "12", "--batch-size", "16"]
    subprocess.run([sys.executable, "-m", "ien", "train", str(folder), *options], check=True)

    model = ien.load(Path(place, "runs", "mine"))  # a plain network in eval mode
    picture = next(path for path in sorted(folder.rglob("*")) if path.suffix in (".png", ".jpg"))
    channels = next(model.parameters()).shape[1]
    with Image.open(picture) as file:
        pixels = np.array(file.convert("L" if channels == 1 else "RGB").resize((SIZE, SIZE)))
    x = torch.from_numpy(pixels).float().div(255).view(1, SIZE, SIZE, channels).permute(0, 3, 1, 2)
    with torch.no_grad():
        for turns in range(4):
            scores = model(x.rot90(turns, (-2, -1))).softmax(1)[0]
            print(f"{picture.name} rotated by {90 * turns:3d}°:", [f"{score:.4f}" for score in scores])
