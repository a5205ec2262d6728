"""Folders like those of Tiny ImageNet, MNIST, STL-10 and others, with few and simple images."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ien.data import Dataset
from ien.data.cache import cache_folder

COUNTS = {"train": (12, 8, 10, 10, 10, 10, 10, 10, 10, 10), "t10k": (2, 3, 1, 2, 2, 2, 2, 2, 2, 2)}
"""Images of each digit in a small MNIST."""


def cache_files() -> list[Path]:
    """The files in the cache folder."""
    if not cache_folder().exists():
        return []
    return sorted(cache_folder().iterdir())


def differing(a: Dataset, b: Dataset) -> list[str]:
    """Which of the four tensors of two data sets are not the same."""
    names = ("train_x", "train_y", "test_x", "test_y")
    return [name for name in names if not torch.equal(getattr(a, name), getattr(b, name))]


def source_numbers(data: Dataset) -> Tensor:
    """Which tagged digit each image is: the middle of its disc stays, rotated or scaled."""
    return torch.cat([data.train_x, data.test_x])[:, 0, 13, 13].long() - 1


def tree(folder: Path) -> dict[str, bytes | None]:
    """Path → content of all files below a folder, None for folders."""
    found = {}
    for path in folder.rglob("*"):
        found[str(path.relative_to(folder))] = path.read_bytes() if path.is_file() else None
    return found


def make_tiny_imagenet(folder: Path, classes: int = 4, train: int = 6, val: int = 3) -> Path:
    """``tiny-imagenet-200`` in ``folder``, as published: 64 px, one grey image, some classes without images.

    Every image has a dark frame, the tint of its class, a colour of its own in the middle and a bright bar in
    the upper right, so that one can tell which it is and how it was rotated.
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
        files = [images / f"{name}_{i}.JPEG" for i in range(train)]
        for i in range(val):
            files.append(place / "val" / "images" / f"val_{i * classes + k}.JPEG")
            lines.append(f"{files[-1].name}\t{name}\t0\t0\t62\t62")
        for i, file in enumerate(files):
            picture = Image.fromarray(_pixels(k, i))
            if (k, i) == (0, 0):
                picture = picture.convert("L")
            picture.save(file, quality=95, subsampling=0)
    (place / "val" / "val_annotations.txt").write_text("\n".join(sorted(lines)) + "\n")
    return place


def make_mnist(folder: Path, counts: Mapping[str, Sequence[int]]) -> Path:
    """``mnist`` in ``folder``: tagged images, ``counts[part][label]`` of each label, in order."""
    place = folder / "mnist"
    place.mkdir(parents=True)
    start = 0
    for part, some in counts.items():
        labels = np.repeat(np.arange(len(some)), some)
        write_gz(place / f"{part}-labels-idx1-ubyte.gz", idx(labels))
        write_gz(place / f"{part}-images-idx3-ubyte.gz", idx(tagged_digits(len(labels), start)))
        start += len(labels)
    return place


def idx(values: np.ndarray) -> bytes:
    """An idx file written from its description: big-endian magic and sizes, then the bytes."""
    header = struct.pack(f">{1 + values.ndim}I", 0x0800 + values.ndim, *values.shape)
    return header + values.astype(np.uint8).tobytes()


def write_gz(path: Path, content: bytes) -> None:
    path.write_bytes(gzip.compress(content, compresslevel=1, mtime=0))


def tagged_digits(count: int, start: int) -> np.ndarray:
    """Discs whose grey value is the number of the image, with a bright dot right of the centre."""
    y, x = np.mgrid[:28, :28] - 13.5
    disc, dot = np.hypot(x, y) < 5, np.hypot(x - 9, y) < 2
    return np.stack([disc * (start + i) + dot * 255 for i in range(1, count + 1)]).astype(np.uint8)


def make_stl10(folder: Path, train: int = 7, test: int = 5) -> dict[str, tuple[list[np.ndarray], list[int]]]:
    """``stl10_binary`` in ``folder``; returns the images (3, 96, 96) and the labels 1–10 of each part."""
    place, rng = folder / "stl10_binary", np.random.default_rng(0)
    place.mkdir(parents=True)
    made = {}
    for part, count in (("train", train), ("test", test)):
        images = [rng.integers(0, 256, (3, 96, 96), dtype=np.uint8) for _ in range(count)]
        labels = [1 + (3 * k) % 10 for k in range(count)]
        with (place / f"{part}_X.bin").open("wb") as file:
            for image in images:
                for channel in image:
                    for column in channel.T:  # one after another, from the left
                        file.write(column.tobytes())
        (place / f"{part}_y.bin").write_bytes(bytes(labels))
        made[part] = (images, labels)
    (place / "class_names.txt").write_text("airplane\nbird\n")
    return made


def make_class_folders(
    place: Path,
    classes: int = 4,
    counts: Mapping[str, int] | None = None,
    shape: tuple[int, ...] = (12, 12, 3),
) -> dict[Path, np.ndarray]:
    """Noise in ``train/<class>`` and ``test/<class>``; returns the pixels of each file.

    ``counts`` are the pictures of each class by part; an empty name puts classes into ``place`` itself.
    """
    from PIL import Image

    rng = np.random.default_rng(classes)
    made = {}
    for part, count in (counts or {"train": 5, "test": 3}).items():
        for k in range(classes):
            folder = place / part / f"class {k}"
            folder.mkdir(parents=True)
            for i in range(count):
                path = folder / f"{i}.png"
                made[path] = rng.integers(0, 256, shape, dtype=np.uint8)
                Image.fromarray(made[path]).save(path)
    return made


def _pixels(k: int, i: int) -> np.ndarray:
    y, x = np.mgrid[:64, :64] - 31.5
    pixels = np.zeros((64, 64, 3))
    pixels[4:60, 4:60] = 60 + 60 * np.cos(k + np.arange(3) * 2.1) ** 2
    pixels[np.hypot(x, y) < 10] = (20 + 30 * k % 230, 20 + 20 * i % 230, 120)
    pixels[(np.abs(x - 13) < 8) & (np.abs(y + 18) < 4)] = 250
    return pixels.astype(np.uint8)


def make_mask_folders(
    place: Path, counts: Mapping[str, int] | None = None, size: int = 16, values: Sequence[int] = (0, 255)
) -> dict[Path, tuple[np.ndarray, np.ndarray]]:
    """Bright discs in ``images`` and their masks in ``masks``; returns pixels and mask of each image.

    ``counts`` are the images by part; an empty name puts both folders into ``place`` itself.
    """
    from PIL import Image

    rng = np.random.default_rng(size)
    y, x = np.mgrid[:size, :size]
    made = {}
    for part, count in (counts or {"train": 8, "test": 4}).items():
        for kind in ("images", "masks"):
            (place / part / kind).mkdir(parents=True)
        for i in range(count):
            row, column = rng.uniform(size / 4, 3 * size / 4, 2)
            inside = np.hypot(y - row, x - column) < size / 5
            mask = np.where(inside, values[1], values[0]).astype(np.uint8)
            pixels = (50 + 120 * inside + rng.integers(0, 40, (size, size))).astype(np.uint8)
            path = place / part / "images" / f"{i}.png"
            Image.fromarray(pixels).save(path)
            Image.fromarray(mask).save(place / part / "masks" / f"{i}.png")
            made[path] = pixels, mask
    return made
