"""Rot-MNIST: from the original files, from MNIST or from the embedded digits to rotated digits."""

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
from .cache import cached
from .dataset import Dataset
from .digits import embedded_digits
from .download import md5
from .mnist import FILES, find, mnist

__all__ = ["cache_name", "embedded", "find_original", "generate", "rot_mnist"]

NAME = "rot-mnist"
TRAIN, TEST = 12_000, 50_000
ORIGINAL = tuple(f"mnist_all_rotation_normalized_float_{part}.amat" for part in ("train_valid", "test"))
RECIPE = 1
"""Part of the name of a cached file: to be raised when the same sources give other tensors."""


def rot_mnist(folder: str | os.PathLike[str], seed: int = 0) -> Dataset:
    """12,000 digits to train on and 50,000 to test: the original files if they are in ``folder``, else made.

    Made from MNIST (source ``generated``): ``seed`` draws the digits, none in both parts, and their angles,
    uniform over the circle. The result is kept in the cache folder and memory-mapped.
    """
    folder = Path(folder)
    original = find_original(folder)
    dtype = torch.float32 if original else torch.uint8
    layout = {
        "train_x": (dtype, (TRAIN, 1, 28, 28)),
        "train_y": (torch.int64, (TRAIN,)),
        "test_x": (dtype, (TEST, 1, 28, 28)),
        "test_y": (torch.int64, (TEST,)),
    }

    def make() -> Mapping[str, Tensor]:
        return _read_original(original) if original else generate(*mnist(folder), seed, TRAIN, TEST)

    tensors = cached(cache_name(folder, seed), layout, make)
    return Dataset(NAME, "original" if original else "generated", **tensors, classes=10)


def embedded(seed: int = 0) -> Dataset:
    """The embedded digits, rotated: 4,000 to train on and 1,000 to test, chosen and turned by ``seed``."""
    x, y = embedded_digits(seed)
    tensors = generate((255 * x).round().to(torch.uint8), y, seed, 4000, 1000)
    return Dataset(NAME, "embedded-5k", **tensors, classes=10)


def generate(images: Tensor, labels: Tensor, seed: int, train: int, test: int) -> dict[str, Tensor]:
    """Rotated digits from upright ones (N, 1, H, W) uint8, each used at most once, all from ``seed``."""
    if train + test > len(images):
        raise ValueError(f"{train} + {test} different digits cannot be drawn from {len(images)}")
    chosen = torch.randperm(len(images), generator=_generator(seed, "digits"))[: train + test]
    degrees = 360 * torch.rand(train + test, generator=_generator(seed, "angles"), dtype=torch.float64)
    # float64: a rounding that differs between machines is then next to impossible
    parts = [
        rotate(images[some].double(), turn).round_().clamp_(0, 255).to(torch.uint8)
        for some, turn in zip(chosen.split(1000), degrees.split(1000), strict=True)
    ]
    x, y = torch.cat(parts), labels[chosen]
    return {"train_x": x[:train], "train_y": y[:train], "test_x": x[train:], "test_y": y[train:]}


def find_original(folder: Path) -> tuple[Path, ...]:
    """The two original files, or nothing."""
    for place in (folder / NAME, folder / "mnist_rotation_new", folder):
        paths = tuple(place / name for name in ORIGINAL)
        missing = [path for path in paths if not path.is_file()]
        if not missing:
            return paths
        if len(missing) < len(paths):
            raise FileNotFoundError(
                f"of the two files of Rot-MNIST {missing[0]} is missing: put it there, "
                f"or take the other one away to have Rot-MNIST made from MNIST"
            )
    return ()


def cache_name(folder: Path, seed: int | Literal["*"]) -> str:
    """Kind, seed (``*`` to match any) and a digest of the sources: other files never meet an old cache."""
    digest = hashlib.md5(f"{RECIPE} {TRAIN} {TEST}".encode(), usedforsecurity=False)
    original = find_original(folder)
    for path in original:  # too large to be read at every start
        state = path.stat()
        digest.update(f"{path.resolve()} {state.st_size} {state.st_mtime_ns}".encode())
    if original:
        return f"{NAME}-original-{digest.hexdigest()}"
    place = find(folder)
    for file in FILES:
        digest.update(md5(place / file.name).encode())
    return f"{NAME}-generated-seed{seed}-{digest.hexdigest()}"


def _read_original(paths: tuple[Path, ...]) -> dict[str, Tensor]:
    (train_x, train_y), (test_x, test_y) = map(_read_amat, paths, (TRAIN, TEST))
    return {"train_x": train_x, "train_y": train_y, "test_x": test_x, "test_y": test_y}


def _read_amat(path: Path, rows: int) -> tuple[Tensor, Tensor]:
    def bad(trouble: str) -> ValueError:
        return ValueError(f"{path} is damaged or not of Rot-MNIST ({trouble}): replace it or take both away")

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of an empty file, which the shape tells
            table = np.loadtxt(path, dtype=np.float32, ndmin=2)
    except ValueError as error:
        raise bad(f"{error}") from None
    if table.shape != (rows, 785):
        raise bad(f"it holds {table.shape[0]} rows of {table.shape[1]} numbers, and should {rows} of 785")
    x, y = torch.from_numpy(table[:, :-1]), torch.from_numpy(table[:, -1])
    if not bool(((x > -1e-4) & (x < 1 + 1e-4)).all()):
        raise bad("pixels should lie between 0 and 1")
    if not bool(((y >= 0) & (y <= 9) & (y == y.round())).all()):
        raise bad("labels should be whole numbers from 0 to 9")
    return x.clamp(0, 1).reshape(-1, 1, 28, 28), y.long()


def _generator(seed: int, purpose: str) -> torch.Generator:
    # each purpose its own stream: drawing more for one leaves the other as it is
    return generator(NAME, purpose, seed, bits=64)
