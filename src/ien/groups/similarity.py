"""Similarities: rotation, flip and scale about the centre, as exact values and on grids of pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Mode", "Similarity", "permute", "resample", "source", "valid_pixels"]

Mode = Literal["bilinear", "bicubic", "nearest"]


@dataclass(frozen=True)
class Similarity:
    """Mirror left-right if ``flip``, then rotate counter-clockwise by ``turn`` (1 is 360°), then scale.

    Both numbers are exact fractions: however they were composed, equal transformations are equal values.
    """

    turn: Fraction = Fraction(0)
    flip: bool = False
    scale: Fraction = Fraction(1)

    def after(self, first: Similarity) -> Similarity:
        turn = self.turn - first.turn if self.flip else self.turn + first.turn
        return Similarity(turn % 1, self.flip != first.flip, self.scale * first.scale)

    @property
    def inverse(self) -> Similarity:
        return Similarity(self.turn if self.flip else -self.turn % 1, self.flip, 1 / self.scale)

    @property
    def exact(self) -> bool:
        """Whether it only permutes the pixels of a square map."""
        return self.scale == 1 and (4 * self.turn).denominator == 1

    @property
    def matrix(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """What it does to a point, x to the right and y upwards."""
        angle = 2 * math.pi * float(self.turn)
        cos, sin = (float(self.scale) * round(f(angle), 15) + 0.0 for f in (math.cos, math.sin))
        return ((-cos, -sin), (-sin, cos)) if self.flip else ((cos, -sin), (sin, cos))

    @property
    def label(self) -> str:
        turn = f"{float(360 * self.turn):.10g}° " if self.turn else ""
        turned = "vflip " if self.flip and turn == "180° " else turn + "flip " * self.flip
        return (turned + f"×{float(self.scale):.10g}" * (self.scale != 1)).strip()


def permute(x: Tensor, step: Similarity) -> Tensor:
    """``x`` (B, C, H, W) under an exact step, bit for bit ``rot90`` and ``flip``."""
    quarters = int(4 * step.turn)
    if quarters % 2 and x.shape[-2] != x.shape[-1]:
        raise ValueError(
            f"{step.label!r} swaps the sides of a map, and this one is {x.shape[-2]}×{x.shape[-1]}: "
            f"quarter turns need square maps (crop or pad), or use a group without them, such as rot2xflip"
        )
    if not step.flip:
        return torch.rot90(x, quarters, (-2, -1))
    reverse = ((-1,), (), (-2,), (-2, -1))[quarters]
    return (x.transpose(-2, -1) if quarters % 2 else x).flip(reverse)


def resample(
    x: Tensor, steps: Sequence[Similarity], lengths: Sequence[int], mode: Mode = "bilinear"
) -> Tensor:
    """Consecutive runs of ``x``, ``lengths[k]`` images under ``steps[k]``, in one ``grid_sample``."""
    if not x.is_floating_point():
        raise ValueError(
            f"{steps[0].label!r} interpolates: that needs floating point, not {x.dtype} (x.float())"
        )
    dtype = x.dtype if x.dtype == torch.float64 else torch.float32
    grids = [_grid(step, *x.shape[-2:], dtype, x.device) for step in steps]
    grid = torch.cat([grid.expand(n, -1, -1, -1) for grid, n in zip(grids, lengths, strict=True)])
    return F.grid_sample(x.to(dtype), grid, mode=mode, align_corners=False).to(x.dtype)


@lru_cache(maxsize=2048)
def valid_pixels(
    steps: tuple[Similarity, ...], height: int, width: int, device: torch.device
) -> Tensor | None:
    """Where the steps give pixels made of pixels of the map alone: bool (1, H, W), None for everywhere."""
    with torch.inference_mode(False):
        mask = torch.ones(1, 1, height, width, dtype=torch.float64, device="cpu")
        for step in steps:
            mask = (resample(mask, [step], [1]) > 1 - 1e-6).double()
        return None if bool(mask.all()) else mask[0].bool().to(device)


@lru_cache(maxsize=64)
def _grid(step: Similarity, height: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # a cached inference tensor could not be used in training later
        row, column = source(step, height, width)
        grid = torch.stack([(2 * column + 1) / width - 1, (2 * row + 1) / height - 1], dim=-1)
        return grid.to(device, dtype)[None]  # (1, H, W, 2)


def source(step: Similarity, height: int, width: int) -> tuple[Tensor, Tensor]:
    """The row and column from which each pixel of a transformed map is read, (H, W) each in float64."""
    y = (height - 1) / 2 - torch.arange(height, dtype=torch.float64, device="cpu").view(-1, 1)
    x = torch.arange(width, dtype=torch.float64, device="cpu").view(1, -1) - (width - 1) / 2
    (a, b), (c, d) = step.inverse.matrix
    return (height - 1) / 2 - (c * x + d * y), (width - 1) / 2 + (a * x + b * y)
