"""Segment images: ``python segment_nuclei.py dsb2018-nuclei/``, or without a folder on blobs drawn here."""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import ien
from ien.data.mask_folders import mask_folders

SIZE, COUNT = 32, 40


def draw(folder: Path) -> None:
    """Bright, elongated blobs in noise, and masks of where they are."""
    from PIL import Image

    rng = np.random.default_rng(0)
    y, x = np.mgrid[:SIZE, :SIZE]
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
    for i in range(COUNT):
        mask = np.zeros((SIZE, SIZE), bool)
        for _ in range(3):
            column, row = rng.uniform(4, SIZE - 4, 2)
            angle = rng.uniform(0, np.pi)
            u = np.cos(angle) * (x - column) + np.sin(angle) * (y - row)
            v = np.cos(angle) * (y - row) - np.sin(angle) * (x - column)
            mask |= np.hypot(u / 5, v / 3) < 1
        pixels = 60 + 80 * mask + rng.normal(0, 25, (SIZE, SIZE))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / "images" / f"{i}.png")
        Image.fromarray(mask.astype(np.uint8) * 255).save(folder / "masks" / f"{i}.png")


with tempfile.TemporaryDirectory() as place:
    options = ["--out", f"{place}/runs", "--name", "mine", "--batch-size", "8"]
    size = 96
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1])
    else:
        folder, size = Path(place, "blobs"), SIZE
        draw(folder)
        options += ["--epochs", "30"]
    command = [sys.executable, "-m", "ien", "train", str(folder), "--size", str(size), *options]
    subprocess.run(command, check=True)

    model = ien.load(Path(place, "runs", "mine"))  # a plain U-Net in eval mode
    x = mask_folders(folder, image_size=size).test_x[:4] / 255
    with torch.no_grad():
        masks = model(x).argmax(1)  # (B, H, W)
        rotated = model(x.rot90(1, (-2, -1))).argmax(1)
    same = (rotated == masks.rot90(1, (-2, -1))).float().mean()
    print(
        f"{masks.float().mean():.1%} of the pixels are foreground; rotated by 90°, {same:.2%} stay the same"
    )
