"""Rot-MNIST: rotated digits, from the original files, from MNIST or from the embedded digits.

The same digits, rotated less or not at all, are steps between full symmetry and none.
"""

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
FULL_TURN = 180
"""The largest ``max_angle``: every angle is as likely."""


def rot_mnist(folder: str | os.PathLike[str], seed: int = 0, max_angle: float = FULL_TURN) -> Dataset:
    """Load 12,000 digits to train on and 50,000 to test: the original ones, or made from MNIST.

    Made from MNIST (source ``generated``): ``seed`` draws the digits, none in both parts, and their
    angles. The result is kept in the cache folder and memory-mapped.

    Args:
        folder: Where the original files are, or MNIST.
        seed: Draws digits and angles; the same digits whatever ``max_angle`` is.
        max_angle: Digits are rotated by at most this many degrees either way: 180 for all, 0 to
            leave them upright. Below 180 they are always made from MNIST.
    """
    _check_angle(max_angle)
    folder = Path(folder)
    original = _original_for(folder, max_angle)
    if original:
        source, dtype = "original", torch.float32
    else:
        source, dtype = "generated", torch.uint8

    def make() -> Mapping[str, Tensor]:
        if original:
            return _read_original(original)
        images, labels = mnist(folder)
        return generate(images, labels, seed, TRAIN, TEST, max_angle)

    layout = layout_of(TRAIN, TEST, (1, 28, 28), dtype)
    tensors = cached(cache_name(folder, seed, max_angle), layout, make)
    return Dataset(_title(max_angle), source, **tensors, classes=10)


def embedded(seed: int = 0, max_angle: float = FULL_TURN) -> Dataset:
    """Rotate the embedded digits: 4,000 to train on and 1,000 to test, all drawn by ``seed``."""
    _check_angle(max_angle)
    x, y = embedded_digits(seed)
    images = (255 * x).round().to(torch.uint8)
    tensors = generate(images, y, seed, 4000, 1000, max_angle)
    return Dataset(_title(max_angle), "embedded-5k", **tensors, classes=10)


def generate(
    images: Tensor, labels: Tensor, seed: int, train: int, test: int, max_angle: float = FULL_TURN
) -> dict[str, Tensor]:
    """Make rotated digits from upright ones (N, 1, H, W) uint8; no digit is used twice.

    Args:
        images: The upright digits.
        labels: Their labels (N,).
        seed: Draws the digits and their angles, each from a stream of its own.
        train: How many to train on.
        test: How many to test on.
        max_angle: Angles are uniform within ± this many degrees.
    """
    total = train + test
    if total > len(images):
        raise ValueError(f"{train} + {test} different digits cannot be drawn from {len(images)}")
    # a stream for each purpose: drawing more for one leaves the other as it is
    digits = generator(NAME, "digits", seed, bits=64)
    chosen = torch.randperm(len(images), generator=digits)[:total]
    angles = generator(NAME, "angles", seed, bits=64)
    drawn = torch.rand(total, generator=angles, dtype=torch.float64)
    degrees = 360 * drawn
    if max_angle < FULL_TURN:
        degrees = max_angle * (2 * drawn - 1)
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


def cache_name(folder: Path, seed: int | Literal["*"], max_angle: float = FULL_TURN) -> str:
    """Return the name of the cached file, by the seed (``*`` matches any), angle and sources."""
    digest = hashlib.md5(f"{RECIPE} {TRAIN} {TEST}".encode(), usedforsecurity=False)
    original = _original_for(folder, max_angle)
    if original:
        for path in original:  # by size and date: too large to be read at every start
            state = path.stat()
            digest.update(f"{path.resolve()} {state.st_size} {state.st_mtime_ns}".encode())
        return f"{NAME}-original-{digest.hexdigest()}"
    digest.update(digests(folder).encode())
    within = ""
    if max_angle < FULL_TURN:
        within = f"-within{max_angle:g}"
    return f"{NAME}-generated-seed{seed}{within}-{digest.hexdigest()}"


def _original_for(folder: Path, max_angle: float) -> tuple[Path, ...]:
    """Return the original files, if they are there and hold what is asked for."""
    if max_angle < FULL_TURN:
        return ()  # they have all angles
    return find_original(folder)


def _title(max_angle: float) -> str:
    """Name the data set in records.

    >>> _title(180), _title(30), _title(0)
    ('rot-mnist', 'rot-mnist ±30°', 'rot-mnist upright')
    """
    if max_angle == 0:
        return f"{NAME} upright"
    if max_angle < FULL_TURN:
        return f"{NAME} ±{max_angle:g}°"
    return NAME


def _check_angle(max_angle: float) -> None:
    if not 0 <= max_angle <= FULL_TURN:  # NaN is neither
        raise ValueError(f"max_angle must be 0 (upright) to 180 (all angles) degrees; got {max_angle:g}")


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
