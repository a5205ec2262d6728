"""A folder like that of Tiny ImageNet, with few and simple images."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def make_tiny_imagenet(folder: Path, classes: int = 4, train: int = 6, val: int = 3) -> Path:
    """``tiny-imagenet-200`` in ``folder``, as published: 64 px, one grey image, some classes without images.

    Every image has a dark frame, the tint of its class, a colour of its own in the middle and a bright bar in
    the upper right, so that one can tell which it is and how it was turned.
    """
    from PIL import Image

    place = folder / "tiny-imagenet-200"
    names = [f"n{1000 + 37 * k:08d}" for k in range(classes)]
    (place / "val" / "images").mkdir(parents=True)
    (place / "wnids.txt").write_text("\n".join(["n99999999", *reversed(names), "n00000001"]) + "\n")
    lines = []
    for k, name in enumerate(names):
        images = place / "train" / name / "images"
        images.mkdir(parents=True)
        (images.parent / f"{name}_boxes.txt").write_text("")
        for i in range(train + val):
            picture = Image.fromarray(_pixels(k, i))
            if (k, i) == (0, 0):
                picture = picture.convert("L")
            file = f"{name}_{i}.JPEG" if i < train else f"val_{(i - train) * classes + k}.JPEG"
            picture.save(
                (images if i < train else place / "val" / "images") / file, quality=95, subsampling=0
            )
            if i >= train:
                lines.append(f"{file}\t{name}\t0\t0\t62\t62")
    (place / "val" / "val_annotations.txt").write_text("\n".join(sorted(lines)) + "\n")
    return place


def _pixels(k: int, i: int) -> np.ndarray:
    y, x = np.mgrid[:64, :64] - 31.5
    pixels = np.zeros((64, 64, 3))
    pixels[4:60, 4:60] = 60 + 60 * np.cos(k + np.arange(3) * 2.1) ** 2
    pixels[np.hypot(x, y) < 10] = (20 + 30 * k % 230, 20 + 20 * i % 230, 120)
    pixels[(np.abs(x - 13) < 8) & (np.abs(y + 18) < 4)] = 250
    return pixels.astype(np.uint8)
