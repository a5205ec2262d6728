"""The learning rate of what is trained here: it rises for some steps, then falls as a cosine."""

from __future__ import annotations

import math

__all__ = ["share_of_peak"]

WARM_UP = 20
"""Steps in which the learning rate rises."""


def share_of_peak(step: int, done: float) -> float:
    """Return the learning rate of a step as a share of its peak.

    Args:
        step: The step, from 0.
        done: The share of the training that is behind it, from 0 to 1.

    >>> share_of_peak(9, 0.0), share_of_peak(100, 0.5)
    (0.5, 0.5)
    """
    warm = min(1.0, (step + 1) / WARM_UP)
    return warm * (0.5 + 0.5 * math.cos(math.pi * min(done, 1.0)))
