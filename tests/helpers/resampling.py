"""Rotated and scaled images, pixel by pixel, with any interpolation kernel: slow and independent."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np


def nearest(distance: float) -> float:
    """The kernel that takes the nearest pixel."""
    return float(distance < 0.5)


def linear(distance: float) -> float:
    """The kernel of bilinear interpolation."""
    return max(0.0, 1 - distance)


def keys(distance: float, a: float = -0.75) -> float:
    """The kernel of cubic convolution."""
    if distance <= 1:
        return ((a + 2) * distance - (a + 3)) * distance**2 + 1
    if distance < 2:
        return a * (((distance - 5) * distance + 8) * distance - 4)
    return 0.0


def resampled(
    image: np.ndarray, degrees: float, factor: float = 1, kernel: Callable[[float], float] = linear
) -> np.ndarray:
    """Rotate counter-clockwise and scale about the centre, with zeros from outside."""
    height, width = image.shape
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    result = np.zeros((height, width))
    for i, j in np.ndindex(height, width):
        right, up = (j - (width - 1) / 2) / factor, ((height - 1) / 2 - i) / factor
        column = (width - 1) / 2 + cos * right + sin * up
        row = (height - 1) / 2 - (-sin * right + cos * up)
        for r in range(max(math.floor(row) - 1, 0), min(math.floor(row) + 3, height)):
            if not (weight := kernel(abs(row - r))):
                continue
            for c in range(max(math.floor(column) - 1, 0), min(math.floor(column) + 3, width)):
                result[i, j] += image[r, c] * weight * kernel(abs(column - c))
    return result
