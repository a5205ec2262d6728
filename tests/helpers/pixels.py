"""Transformed maps pixel by pixel, from a 2×2 matrix: slow, and independent of the library."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor


def turn(degrees: float) -> np.ndarray:
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return np.array([[cos, -sin], [sin, cos]])


def neighbours(matrix: np.ndarray, height: int, width: int) -> Iterator[tuple[tuple, list[tuple]]]:
    """Each pixel of a transformed map, with the pixels it is made of and their bilinear weights."""
    centre_x, centre_y = (width - 1) / 2, (height - 1) / 2
    for i, j in np.ndindex(height, width):
        x, y = np.linalg.inv(matrix) @ (j - centre_x, centre_y - i)
        row, column = round(centre_y - y, 9), round(centre_x + x, 9)
        top, left = math.floor(row), math.floor(column)
        corners = [(r, c) for r in (top, top + 1) for c in (left, left + 1)]
        weighted = [(r, c, (1 - abs(row - r)) * (1 - abs(column - c))) for r, c in corners]
        yield (i, j), [(r, c, weight) for r, c, weight in weighted if weight > 0]


def bilinear(maps: Tensor, matrix: np.ndarray) -> Tensor:
    source, result = maps.numpy(), np.zeros(maps.shape)
    height, width = maps.shape[-2:]
    for (i, j), found in neighbours(matrix, height, width):
        for r, c, weight in found:
            if 0 <= r < height and 0 <= c < width:
                result[..., i, j] += weight * source[..., r, c]
    return torch.from_numpy(result)


def valid_mask(matrix: np.ndarray, height: int, width: int, before: Tensor | None = None) -> Tensor:
    before = torch.ones(height, width) if before is None else before
    mask = torch.zeros(height, width, dtype=torch.bool)
    for pixel, found in neighbours(matrix, height, width):
        mask[pixel] = all(0 <= r < height and 0 <= c < width and before[r, c] for r, c, _ in found)
    return mask
