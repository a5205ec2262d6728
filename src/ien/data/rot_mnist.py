"""Rot-MNIST: rotated digits, from the original files, from MNIST or from the embedded digits."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from .._files import generator
from .augment import rotate
from .cache import cached, layout_of
from .dataset import Dataset
from .digits import embedded_digits
from .mnist import digests, mnist

__all__ = ["cache_name", "embedded", "find_original", "generate", "rot_mnist"]

NAME = "rot-mnist"
TRAIN, TEST = 12_000, 50_000
ORIGINAL = (
    "mnist_all_rotation_normalized_float_train_valid.amat",
    "mnist_all_rotation_normalized_float_test.amat",
)
RECIPE = 1
"""Part of the name of a cached file: raise it when the same sources give other tensors."""
CHUNK = 1000
"""Images that are rotated at once."""


def rot_mnist(folder: str | os.PathLike[str], seed: int = 0) -> Dataset:
    """Load 12,000 digits to train on and 50,000 to test: the original ones, or made from MNIST.

    Made from MNIST (source ``generated``): ``seed`` draws the digits, none in both parts, and their
    angles, uniform over the circle. The result is kept in the cache folder and memory-mapped.
    """
    folder = Path(folder)
    original = find_original(folder)
    if original:
        source, dtype = "original", torch.float32
    else:
        source, dtype = "generated", torch.uint8

    def make() -> Mapping[str, Tensor]:
        if original:
            return _read_original(original)
        images, labels = mnist(folder)
        return generate(images, labels, seed, TRAIN, TEST)

    layout = layout_of(TRAIN, TEST, (1, 28, 28), dtype)
    tensors = cached(cache_name(folder, seed), layout, make)
    return Dataset(NAME, source, **tensors, classes=10)


def embedded(seed: int = 0) -> Dataset:
    """Rotate the embedded digits: 4,000 to train on and 1,000 to test, all drawn by ``seed``."""
    x, y = embedded_digits(seed)
    images = (255 * x).round().to(torch.uint8)
    tensors = generate(images, y, seed, 4000, 1000)
    return Dataset(NAME, "embedded-5k", **tensors, classes=10)


def generate(images: Tensor, labels: Tensor, seed: int, train: int, test: int) -> dict[str, Tensor]:
    """Make rotated digits from upright ones (N, 1, H, W) uint8; no digit is used twice.

    Args:
        images: The upright digits.
        labels: Their labels (N,).
        seed: Draws the digits and their angles, each from a stream of its own.
        train: How many to train on.
        test: How many to test on.
    """
    total = train + test
    if total > len(images):
        raise ValueError(f"{train} + {test} different digits cannot be drawn from {len(images)}")
    # a stream for each purpose: drawing more for one leaves the other as it is
    digits = generator(NAME, "digits", seed, bits=64)
    chosen = torch.randperm(len(images), generator=digits)[:total]
    angles = generator(NAME, "angles", seed, bits=64)
    degrees = 360 * torch.rand(total, generator=angles, dtype=torch.float64)
    parts = []
    for some, turns in zip(chosen.split(CHUNK), degrees.split(CHUNK), strict=True):
        # float64: a rounding that differs between machines is then next to impossible
        rotated = rotate(images[some].double(), turns)
        parts.append(rotated.round_().clamp_(0, 255).to(torch.uint8))
    x = torch.cat(parts)
    y = labels[chosen]
    return {
        "train_x": x[:train],
        "train_y": y[:train],
        "test_x": x[train:],
        "test_y": y[train:],
    }


def find_original(folder: Path) -> tuple[Path, ...]:
    """Return the two original files, or nothing if there is neither.

    Raises:
        FileNotFoundError: There is only one of them.
    """
    for place in (folder / NAME, folder / "mnist_rotation_new", folder):
        paths = tuple(place / name for name in ORIGINAL)
        missing = [path for path in paths if not path.is_file()]
        if not missing:
            return paths
        if len(missing) < len(paths):
            raise FileNotFoundError(
                f"{missing[0]}, one of the two files of Rot-MNIST, is missing: put it there, "
                f"or remove the other one to have Rot-MNIST made from MNIST"
            )
    return ()


def cache_name(folder: Path, seed: int | Literal["*"]) -> str:
    """Return the name of the cached file, by the seed (``*`` matches any) and the sources."""
    digest = hashlib.md5(f"{RECIPE} {TRAIN} {TEST}".encode(), usedforsecurity=False)
    original = find_original(folder)
    if original:
        for path in original:  # by size and date: too large to be read at every start
            state = path.stat()
            digest.update(f"{path.resolve()} {state.st_size} {state.st_mtime_ns}".encode())
        return f"{NAME}-original-{digest.hexdigest()}"
    digest.update(digests(folder).encode())
    return f"{NAME}-generated-seed{seed}-{digest.hexdigest()}"


def _read_original(paths: tuple[Path, ...]) -> dict[str, Tensor]:
    train_x, train_y = _read_amat(paths[0], TRAIN)
    test_x, test_y = _read_amat(paths[1], TEST)
    return {
        "train_x": train_x,
        "train_y": train_y,
        "test_x": test_x,
        "test_y": test_y,
    }


def _read_amat(path: Path, rows: int) -> tuple[Tensor, Tensor]:
    """Read a table of text: on each line 784 pixels and a label."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about an empty file: the shape shows that too
            table = np.loadtxt(path, dtype=np.float32, ndmin=2)
    except ValueError as error:
        raise _damaged(path, f"{error}") from None
    if table.shape != (rows, 785):
        found = f"{table.shape[0]} rows of {table.shape[1]} numbers"
        raise _damaged(path, f"it holds {found} instead of {rows} of 785")
    x = torch.from_numpy(table[:, :-1])  # (rows, 784)
    y = torch.from_numpy(table[:, -1])  # (rows,)
    # a little beyond 0 and 1 is rounding
    in_range = (x > -1e-4) & (x < 1 + 1e-4)
    if not bool(in_range.all()):  # also if a pixel is NaN
        raise _damaged(path, "pixels should lie between 0 and 1")
    is_digit = (y >= 0) & (y <= 9) & (y == y.round())
    if not bool(is_digit.all()):
        raise _damaged(path, "labels should be whole numbers from 0 to 9")
    return x.clamp(0, 1).reshape(-1, 1, 28, 28), y.long()


def _damaged(path: Path, trouble: str) -> ValueError:
    return ValueError(f"{path} is damaged or not from Rot-MNIST ({trouble}): replace it, or remove both")
