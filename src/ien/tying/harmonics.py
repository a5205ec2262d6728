"""Circular harmonics on rings: patterns on a grid of pixels that rotate by any angle.

A pattern is a function of the polar coordinates (ρ, α) around the middle of a kernel: a ring of
radius r and width σ, with q waves around it,

    ψ(ρ, α) = exp(-(ρ - r)² / 2σ²) · cos qα    and    exp(-(ρ - r)² / 2σ²) · sin qα.

It is known between pixels too, so rotating it means reading it at other coordinates,
ψ(ρ, α - θ), and nothing is interpolated. Steerable CNNs are built from the same patterns
(Weiler & Cesa, 2019), and the widths and frequencies here are those of e2cnn.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from ..groups.similarity import Similarity, source_pixels

__all__ = ["MIN_STRENGTH", "harmonics", "orthonormal", "polar", "ring_limits", "smoothing"]

RING_WIDTH = 0.6
"""The width σ of a ring, in pixels."""
OUTER_RING_WIDTH = 0.4
"""The same for the outermost ring, which the sides of the kernel cut off."""
MIDDLE_WIDTH = 0.005
"""The same for the ring of radius 0, which is a single pixel."""
MAX_OUTER_FREQUENCY = 2
"""The highest frequency q on the outermost ring."""
MIN_STRENGTH = 1e-6
"""Patterns below this share of the strongest are combinations of the others, up to rounding."""


def harmonics(size: int, step: Similarity = Similarity()) -> Tensor:  # noqa: B008 - frozen
    """Return the patterns that smooth kernels are made of: (patterns, size, size).

    Args:
        size: The height and width of the kernel.
        step: The rotation or flip to apply to the patterns.

    >>> [len(harmonics(size)) for size in (1, 3, 5, 7)]
    [1, 6, 11, 18]
    """
    distance, angle = polar(size, step)  # (size, size) each, as all that follows
    centre = (size - 1) / 2
    patterns = []
    for i in range((size + 1) // 2):
        radius = centre - i
        width, max_frequency = ring_limits(radius, outermost=radius == centre)
        off_ring = distance - radius
        ring = torch.exp(-(off_ring**2) / (2 * width**2))
        patterns.append(ring)
        waves = ring * (distance > 0)  # the middle pixel has no direction
        for q in range(1, max_frequency + 1):
            patterns.append(waves * torch.cos(q * angle))
            patterns.append(waves * torch.sin(q * angle))
    return torch.stack(patterns)  # (patterns, size, size)


def polar(size: int, step: Similarity = Similarity()) -> tuple[Tensor, Tensor]:  # noqa: B008 - frozen
    """Return the coordinates ρ and α of a kernel's pixels, each (size, size), under ``step``."""
    centre = (size - 1) / 2
    row, column = source_pixels(step, size, size)
    y = centre - row
    x = column - centre
    return torch.hypot(x, y), torch.atan2(y, x)


def ring_limits(radius: float, outermost: bool) -> tuple[float, int]:
    """Return the width of a ring and the highest frequency that its pixels can show."""
    if radius == 0:
        return MIDDLE_WIDTH, 0
    if outermost:
        return OUTER_RING_WIDTH, MAX_OUTER_FREQUENCY
    max_frequency = int(2 * radius)
    if radius % 2 == 0:  # e2cnn's own limit
        max_frequency -= 1
    return RING_WIDTH, max_frequency


@lru_cache(maxsize=32)
def smoothing(size: int) -> Tensor:
    """Return the matrix S that takes a kernel's pixels w to the nearest smooth kernel, S w.

    With orthonormal patterns as the rows of Ψ, S = Ψᵀ Ψ; it is symmetric, (size², size²).

    >>> int(smoothing(5).trace().round())  # the patterns
    11
    """
    patterns = orthonormal(harmonics(size).flatten(1))  # (patterns, size * size)
    return patterns.T @ patterns


def orthonormal(rows: Tensor) -> Tensor:
    """Return orthonormal rows that span the same space as ``rows``, whose numbers are about 1.

    They are the right singular vectors of the rows, strongest first. Which vectors span directions
    of equal strength would be left to rounding, and so to the machine and its threads; numbers that
    are saved must mean the same everywhere, so these are chosen once more.
    """
    _, strengths, directions = torch.linalg.svd(rows, full_matrices=False)
    least = MIN_STRENGTH * strengths[:1].clamp(min=1)  # all may be rounding
    directions = directions[strengths > least]
    strengths = strengths[strengths > least]
    # a new run of equal strengths begins where one is clearly below the one before
    falls = strengths.diff() < -MIN_STRENGTH * strengths[:1]
    runs = torch.cat([falls.new_zeros(min(len(strengths), 1)), falls]).cumsum(0)  # (rows,)
    chosen = [directions[:0]]
    for run in runs.unique():
        chosen.append(_chosen_alike(directions[runs == run]))
    return torch.cat(chosen)


def _chosen_alike(rows: Tensor) -> Tensor:
    """Return orthonormal rows that depend only on the space that orthonormal ``rows`` span.

    The projection P = rowsᵀ rows onto it leaves no choice. Its first longest row is the first one
    chosen; what remains of P without it gives the next.
    """
    left = rows  # P = leftᵀ left, (n, n), is never computed
    chosen = []
    for _ in range(len(rows)):
        lengths = left.square().sum(0)  # the diagonal of P, which is the squared length of its rows
        first_longest = int((lengths > lengths.max() - MIN_STRENGTH).int().argmax())
        row = left[:, first_longest] @ left / lengths[first_longest].sqrt()  # (n,)
        chosen.append(row)
        left = left - torch.outer(left @ row, row)
    return torch.stack(chosen)
