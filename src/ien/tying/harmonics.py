"""Patterns: kernels that turn by any angle on a grid of pixels, from circular harmonics on rings."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from ..groups.similarity import Similarity, source_pixels

__all__ = ["harmonics", "orthonormal", "smoothing"]

INNER, OUTER, MIDDLE = 0.6, 0.4, 0.005
"""The widths of rings, in pixels: the outermost is cut off by the kernel's sides, the middle is one pixel."""
OUTER_FREQUENCY = 2
"""The highest on the outermost ring. This and the one less on rings of even radius are e2cnn's own limits."""
DEPENDENT = 1e-6
"""Patterns below this share of the strongest are combinations of the others, but for rounding."""


def harmonics(size: int, step: Similarity = Similarity()) -> Tensor:  # noqa: B008 - frozen
    """The functions that smooth kernels of ``size`` × ``size`` are made of, under ``step``: (n, size, size).

    Rings a pixel apart, each with its harmonics cos qα and sin qα up to the frequency that its pixels can
    show, as steerable networks have them (Weiler & Cesa, 2019). A function is known between pixels, so that
    it is turned by being read elsewhere, and nothing is interpolated.

    >>> [len(harmonics(size)) for size in (1, 3, 5, 7)]
    [1, 6, 11, 18]
    """
    centre = (size - 1) / 2
    row, column = source_pixels(step, size, size)
    y, x = centre - row, column - centre
    distance, angle = torch.hypot(x, y), torch.atan2(y, x)
    functions = []
    for radius in (centre - i for i in range((size + 1) // 2)):
        if radius == 0:  # the middle pixel alone
            width, highest = MIDDLE, 0
        elif radius == centre:
            width, highest = OUTER, OUTER_FREQUENCY
        else:
            width, highest = INNER, int(2 * radius) - (radius % 2 == 0)
        ring = torch.exp(-((distance - radius) ** 2) / (2 * width**2))
        functions.append(ring)
        around = ring * (distance > 0)  # the middle has no direction
        for q in range(1, highest + 1):
            functions += [around * torch.cos(q * angle), around * torch.sin(q * angle)]
    return torch.stack(functions)


@lru_cache(maxsize=32)
def smoothing(size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """What makes of a kernel's pixels those of the nearest smooth one: a symmetric matrix.

    >>> int(smoothing(5, torch.device("cpu"), torch.float64).trace().round())  # patterns
    11
    """
    with torch.inference_mode(False), torch.no_grad():  # a cached inference tensor would be of no use later
        patterns = orthonormal(harmonics(size).flatten(1))
        return (patterns.T @ patterns).to(device, dtype)


def orthonormal(rows: Tensor) -> Tensor:
    """Orthonormal rows that span what ``rows`` do."""
    _, strengths, directions = torch.linalg.svd(rows, full_matrices=False)
    return directions[strengths > DEPENDENT * strengths[0]].contiguous()
