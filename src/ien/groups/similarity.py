"""Rotation, flip and scale about the centre of an image, as exact values and as actions on pixels.

A :class:`Similarity` is the map of the plane

    p  ->  scale · R(turn) · M · p        M mirrors left-right if ``flip``, R(t) rotates by t · 360°

Two similarities compose to a third. Quarter turns and flips permute the pixels of a square map;
every other similarity resamples them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "ROUNDING",
    "Matrix",
    "Mode",
    "Similarity",
    "check_sides",
    "permute_pixels",
    "permute_quarters",
    "resample",
    "resample_by_matrix",
    "source_pixels",
    "valid_pixels",
]

Mode = Literal["bilinear", "bicubic", "nearest"]
Matrix = tuple[tuple[float, float], tuple[float, float]]

ROUNDING = 1e-6
"""How far a mean of ones may be from 1."""
REVERSED_AXES = {0: (-1,), 1: (), 2: (-2,), 3: (-2, -1)}
"""Quarter turns after a flip → the axes to reverse, after a transposition if they are odd."""


@dataclass(frozen=True)
class Similarity:
    """Mirror left-right if ``flip``, rotate counter-clockwise by ``turn`` (1 is 360°), scale.

    Both numbers are exact fractions, so equal transformations are equal values however they were
    composed.
    """

    turn: Fraction = Fraction(0)
    flip: bool = False
    scale: Fraction = Fraction(1)

    def after(self, first: Similarity) -> Similarity:
        """Compose: do ``first``, then this one."""
        # M · R(t) = R(-t) · M: a rotation that passes a mirror changes its direction
        passed = -first.turn if self.flip else first.turn
        turn = (self.turn + passed) % 1
        flip = self.flip != first.flip
        return Similarity(turn, flip, self.scale * first.scale)

    @property
    def inverse(self) -> Similarity:
        """The similarity that undoes this one."""
        # a flip with a rotation is a mirror about another axis, and a mirror undoes itself
        turn = self.turn if self.flip else -self.turn % 1
        return Similarity(turn, self.flip, 1 / self.scale)

    # fractions are slow to hash and to multiply, and every step of training asks for these again
    @cached_property
    def exact(self) -> bool:
        """Whether it only permutes the pixels of a square map."""
        return self.scale == 1 and (4 * self.turn).denominator == 1

    @cached_property
    def quarters(self) -> int:
        """The quarter turns of an exact one."""
        return int(4 * self.turn)

    @cached_property
    def _hash(self) -> int:
        return hash((self.turn, self.flip, self.scale))

    def __hash__(self) -> int:
        return self._hash

    @property
    def matrix(self) -> Matrix:
        """The 2×2 matrix that moves a point, with x to the right and y upwards."""
        angle = 2 * math.pi * float(self.turn)
        # rounded, so that a quarter turn has zeros; + 0.0 makes a zero of -0.0
        cos = float(self.scale) * round(math.cos(angle), 15) + 0.0
        sin = float(self.scale) * round(math.sin(angle), 15) + 0.0
        if self.flip:
            return (-cos, -sin), (-sin, cos)
        return (cos, -sin), (sin, cos)

    @property
    def label(self) -> str:
        """A short name, such as ``90° flip``."""
        words = []
        if self.flip and self.turn == Fraction(1, 2):
            words.append("vflip")
        else:
            if self.turn:
                words.append(f"{float(360 * self.turn):.10g}°")
            if self.flip:
                words.append("flip")
        if self.scale != 1:
            words.append(f"×{float(self.scale):.10g}")
        return " ".join(words)


def check_sides(step: Similarity, height: int, width: int) -> None:
    """Check that an exact step keeps the size of a map: quarter turns need square ones."""
    if step.exact and step.quarters % 2 and height != width:
        hint = ""
        if width in (1, 3, 4):  # colours come last, as in arrays of pictures
            hint = ", or x.permute(0, 3, 1, 2) if these are images (B, H, W, C)"
        raise ValueError(
            f"{step.label!r} swaps the sides of a map, and this one is {height}×{width}: quarter turns "
            f"need square maps (crop or pad, or --size in the shell), or use a group without them, such as "
            f"rot2xflip{hint}"
        )


def permute_pixels(x: Tensor, step: Similarity) -> Tensor:
    """Apply an exact step to ``x`` (B, C, H, W), bit for bit like ``rot90`` and ``flip``."""
    check_sides(step, *x.shape[-2:])
    return permute_quarters(x, step.quarters, step.flip)


def permute_quarters(x: Tensor, quarters: int, flip: bool) -> Tensor:
    """Mirror ``x`` (B, C, H, W) left-right if ``flip``, then rotate it by quarter turns."""
    if quarters % 2 and x.shape[-2] != x.shape[-1]:
        raise ValueError(
            f"quarter turns need square maps (crop or pad); got {x.shape[-2]}×{x.shape[-1]}: or use a group "
            f"without them, such as rot2xflip"
        )
    if not flip:
        return torch.rot90(x, quarters, (-2, -1))
    # a flip and a rotation together are a transposition, or not, and one reversal of axes
    if quarters % 2:
        x = x.transpose(-2, -1)  # (B, C, W, H), the same size
    return x.flip(REVERSED_AXES[quarters])


def resample(
    x: Tensor, steps: Sequence[Similarity], lengths: Sequence[int], mode: Mode = "bilinear"
) -> Tensor:
    """Apply ``steps[k]`` to the k-th run of ``lengths[k]`` images, all in one ``grid_sample``.

    Args:
        x: Images or maps (B, C, H, W) in floating point, B the sum of the lengths.
        steps: One similarity for each run.
        lengths: How many images are in each run.
        mode: How ``grid_sample`` interpolates. Pixels from outside of the map are 0.
    """
    _check_floating(x, steps)
    dtype = _coordinate_type(x)
    grids = []
    for step, length in zip(steps, lengths, strict=True):
        grid = _grid(step, x.shape[-2], x.shape[-1], dtype, x.device)
        grids.append(grid.expand(length, -1, -1, -1))  # (length, H, W, 2)
    resampled = F.grid_sample(x.to(dtype), torch.cat(grids), mode=mode, align_corners=False)
    return resampled.to(x.dtype)


def resample_by_matrix(x: Tensor, matrices: Sequence[Matrix], g: Tensor, mode: Mode = "bilinear") -> Tensor:
    """Read the pixels of image b of ``x`` (B, C, H, W) where ``matrices[g[b]]`` puts them.

    The same as :func:`resample`, for indices (B,) whose values a trace does not know.
    """
    if not x.is_floating_point():
        raise ValueError(
            f"this group interpolates and needs floating point, not {x.dtype}: use {_as_floating(x)}"
        )
    dtype = _coordinate_type(x)
    height, width = x.shape[-2:]
    # in float64 on the device, as _grid is on the CPU: pixel centres must not move by rounding
    table = torch.tensor(matrices, dtype=torch.float64, device=x.device)  # (n, 2, 2)
    chosen = table[g][..., None, None]  # (B, 2, 2, 1, 1)
    (a, b), (c, d) = (row.unbind(1) for row in chosen.unbind(1))  # (B, 1, 1) each
    row, column = _read_at(a, b, c, d, height, width)  # (B, H, W) each
    grid = _as_grid(row, column, height, width).to(dtype)  # (B, H, W, 2)
    resampled = F.grid_sample(x.to(dtype), grid, mode=mode, align_corners=False)
    return resampled.to(x.dtype)


def _check_floating(x: Tensor, steps: Sequence[Similarity]) -> None:
    if not x.is_floating_point():
        raise ValueError(
            f"{steps[0].label!r} interpolates and needs floating point, not {x.dtype}: use {_as_floating(x)}"
        )


def _as_floating(x: Tensor) -> str:
    """Return the code that makes ``x`` floating point, for an error message."""
    if x.dtype == torch.uint8:  # pixels from 0 to 255
        return "x.float() / 255"
    return "x.float()"


def _coordinate_type(x: Tensor) -> torch.dtype:
    """Half precision is too coarse for coordinates."""
    if x.dtype == torch.float64:
        return torch.float64
    return torch.float32


@lru_cache(maxsize=2048)
def valid_pixels(
    steps: tuple[Similarity, ...], height: int, width: int, device: torch.device
) -> Tensor | None:
    """Return where the steps give pixels that are made of pixels of the map alone.

    Returns:
        A bool mask (1, H, W), or None if that is everywhere.
    """
    with torch.inference_mode(False):  # a cached inference tensor could not be used in training later
        mask = torch.ones(1, 1, height, width, dtype=torch.float64, device="cpu")
        for step in steps:
            # a mean over neighbours is 1 only if all of them lie in the map
            mask = (resample(mask, [step], [1]) > 1 - ROUNDING).double()
        if mask.all():
            return None
        return mask[0].bool().to(device)  # (1, H, W)


def source_pixels(step: Similarity, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Return where each pixel of a transformed map is read from.

    The pixel at the point p of the result is that at step⁻¹ · p of the map, both measured from the
    centre.

    Returns:
        Rows and columns, (H, W) each in float64.
    """
    (a, b), (c, d) = torch.tensor(step.inverse.matrix, dtype=torch.float64, device="cpu")
    return _read_at(a, b, c, d, height, width)


def _read_at(a: Tensor, b: Tensor, c: Tensor, d: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """The rows and columns (…, H, W) that the matrix (a b; c d) gives, measured from the centre."""
    middle_row, middle_column = (height - 1) / 2, (width - 1) / 2
    y = middle_row - torch.arange(height, dtype=torch.float64, device=a.device).view(-1, 1)  # (H, 1)
    x = torch.arange(width, dtype=torch.float64, device=a.device).view(1, -1) - middle_column  # (1, W)
    rows = middle_row - (c * x + d * y)
    columns = middle_column + (a * x + b * y)
    return rows, columns


def _as_grid(row: Tensor, column: Tensor, height: int, width: int) -> Tensor:
    """Pixel centres from -1 to 1, as align_corners=False counts them: (2 i + 1) / n - 1."""
    x = (2 * column + 1) / width - 1
    y = (2 * row + 1) / height - 1
    return torch.stack([x, y], dim=-1)  # (…, H, W, 2)


@lru_cache(maxsize=64)
def _grid(step: Similarity, height: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The sampling grid (1, H, W, 2) that ``grid_sample`` wants: x and y from -1 to 1."""
    with torch.inference_mode(False):
        row, column = source_pixels(step, height, width)
        grid = _as_grid(row, column, height, width)  # (H, W, 2)
        # float64 stays on the CPU; the copy waits, once for each size and element
        return grid.to(device, dtype)[None]  # (1, H, W, 2)
