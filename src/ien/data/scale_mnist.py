"""Scale-MNIST: from MNIST or from the embedded digits to digits that are scaled, and scaled and rotated."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .._files import generator
from .augment import turn_and_scale
from .cache import cached
from .dataset import Dataset
from .digits import embedded_digits
from .download import md5
from .mnist import FILES, find, mnist

__all__ = [
    "Sizes",
    "cache_name",
    "embedded",
    "embedded_rotated",
    "generate",
    "rot_scale_mnist",
    "scale_mnist",
    "stratified",
]

NAME, ROTATED = "scale-mnist", "rot-scale-mnist"
SMALLEST = 0.3
"""Factors are uniform between this and 1."""
RECIPE = 1
"""Part of the name of a cached file: to be raised when the same sources give other tensors."""


class Sizes(NamedTuple):
    """How many digits each part has."""

    train: int
    validation: int
    test: int


SIZES = Sizes(10_000, 2_000, 50_000)


def scale_mnist(folder: str | os.PathLike[str], seed: int = 0) -> Dataset:
    """Digits of MNIST, each scaled about the centre of its 28×28 pixels by a factor uniform in [0.3, 1].

    ``seed`` draws the digits, their order and their factors: no digit is in two parts, and every part has the
    ten digits in the shares that they have in MNIST. The published protocol averages over six such
    realisations, here the seeds 0 to 5. There are 12,000 images to train on, 10,000 and after them the 2,000
    for validation, which ``test_on=validation`` holds out, and 50,000 to test.

    Bicubic, with zeros from outside, not smoothed before, in bytes. The published images were made with
    Pillow, whose affine transformation takes Keys' kernel with a = -1; here it is torch's, a = -0.75, as in
    ``ien.scale`` and in training. Made once and kept in the cache folder, memory-mapped.
    """
    return _made(folder, seed, rotated=False)


def rot_scale_mnist(folder: str | os.PathLike[str], seed: int = 0) -> Dataset:
    """The digits of :func:`scale_mnist`, the same order and factors, each also turned by any angle.

    Turned and scaled in one resampling; the angles are uniform over the circle.
    """
    return _made(folder, seed, rotated=True)


def embedded(seed: int = 0) -> Dataset:
    """The embedded digits, scaled: 4,000 to train on and 1,000 to test, as many of each digit."""
    return _embedded(seed, rotated=False)


def embedded_rotated(seed: int = 0) -> Dataset:
    """The embedded digits, scaled and turned: those of :func:`embedded`, in the same order."""
    return _embedded(seed, rotated=True)


def generate(images: Tensor, labels: Tensor, seed: int, sizes: Sizes, rotated: bool) -> dict[str, Tensor]:
    """Scaled digits from upright ones (N, 1, H, W) uint8, each used at most once, all from ``seed``."""
    chosen = torch.cat(stratified(labels, sizes, seed))
    factors, turns = (
        torch.rand(len(chosen), generator=_generator(seed, purpose), dtype=torch.float64)
        for purpose in ("factors", "angles")
    )
    factors, degrees = SMALLEST + (1 - SMALLEST) * factors, 360 * turns * rotated
    # float64: a rounding that differs between machines is then next to impossible
    parts = [
        turn_and_scale(images[some].double(), turn, factor).round_().clamp_(0, 255).to(torch.uint8)
        for some, turn, factor in zip(
            chosen.split(1000), degrees.split(1000), factors.split(1000), strict=True
        )
    ]
    x, y, train = torch.cat(parts), labels[chosen], sizes.train + sizes.validation
    return {"train_x": x[:train], "train_y": y[:train], "test_x": x[train:], "test_y": y[train:]}


def stratified(labels: Tensor, sizes: Sizes, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Which images train, validation and test have, drawn by ``seed``, in random order; none is in two.

    Every part has each label in its share of those that are left, rounded so that the sum is right: rounded
    down, and one more for the largest remainders. The test images are dealt out first.
    """
    if sum(sizes) > len(labels):
        needed = " + ".join(map(str, sizes))
        raise ValueError(f"{needed} different digits cannot be drawn from {len(labels)}")
    left = torch.bincount(labels)
    test = _shares(left, sizes.test)
    train = _shares(left - test, sizes.train)
    validation = _shares(left - test - train, sizes.validation)
    ends = torch.stack([test, train, validation]).cumsum(0)  # (3, labels)
    drawn = torch.randperm(len(labels), generator=_generator(seed, "digits"))
    drawn = drawn[labels[drawn].argsort(stable=True)]  # label by label
    rank = torch.arange(len(labels)) - (left.cumsum(0) - left)[labels[drawn]]  # among those of its label
    part = torch.empty_like(drawn)
    part[drawn] = (rank >= ends[:, labels[drawn]]).sum(0)  # 0 test, 1 train, 2 validation, 3 none
    # mixed anew: in the order of the draw, train would begin with the few labels of which test is full first
    order = torch.randperm(len(labels), generator=_generator(seed, "order"))
    order_part = part[order]
    return order[order_part == 1], order[order_part == 2], order[order_part == 0]


def cache_name(folder: Path, seed: int | Literal["*"], rotated: bool = False) -> str:
    """Kind, seed (``*`` to match any) and a digest of the sources: other files never meet an old cache."""
    digest = hashlib.md5(f"{RECIPE} {SMALLEST} {tuple(SIZES)}".encode(), usedforsecurity=False)
    place = find(folder)
    for file in FILES:
        digest.update(md5(place / file.name).encode())
    return f"{ROTATED if rotated else NAME}-generated-seed{seed}-{digest.hexdigest()}"


def _made(folder: str | os.PathLike[str], seed: int, rotated: bool) -> Dataset:
    folder = Path(folder)
    train, test = SIZES.train + SIZES.validation, SIZES.test
    layout = {
        "train_x": (torch.uint8, (train, 1, 28, 28)),
        "train_y": (torch.int64, (train,)),
        "test_x": (torch.uint8, (test, 1, 28, 28)),
        "test_y": (torch.int64, (test,)),
    }

    def make() -> Mapping[str, Tensor]:
        return generate(*mnist(folder), seed, SIZES, rotated)

    tensors = cached(cache_name(folder, seed, rotated), layout, make)
    return Dataset(ROTATED if rotated else NAME, "generated", **tensors, classes=10)


def _embedded(seed: int, rotated: bool) -> Dataset:
    x, y = embedded_digits(seed)
    tensors = generate((255 * x).round().to(torch.uint8), y, seed, Sizes(4000, 0, 1000), rotated)
    return Dataset(ROTATED if rotated else NAME, "embedded-5k", **tensors, classes=10)


def _shares(counts: Tensor, size: int) -> Tensor:
    """``size`` divided among the labels as ``counts`` are, in whole numbers, by largest remainders."""
    total = max(int(counts.sum()), 1)
    share, rest = size * counts // total, size * counts % total
    share[rest.argsort(descending=True, stable=True)[: size - int(share.sum())]] += 1
    return share


def _generator(seed: int, purpose: str) -> torch.Generator:
    # each purpose its own stream; both data sets share them, so that they differ in the angles alone
    return generator(NAME, purpose, seed, bits=64)
