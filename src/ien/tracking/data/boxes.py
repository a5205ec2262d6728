"""Boxes: rows x, y, w, h; the first column and row, and the numbers of columns and rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["COUNT_FROM_1", "Array", "as_boxes", "boxes_at", "centres", "has_area", "in_frame"]

Array = NDArray[np.float64]
COUNT_FROM_1 = np.array([1.0, 1.0, 0.0, 0.0])
"""Files of OTB and GOT-10k count x and y from 1, and we from 0: theirs = ours + this."""


def as_boxes(values: ArrayLike, name: str) -> Array:
    """Return boxes (..., 4) as float64; NaN, for a box that is not known, is allowed.

    Args:
        values: Rows x, y, w, h.
        name: What they are called in an error.

    Raises:
        ValueError: They are not rows of four numbers, are infinite, or have a negative side.
    """
    try:
        boxes = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be boxes, rows of the numbers x, y, w, h") from None
    if boxes.shape[-1:] != (4,):
        raise ValueError(f"{name} has shape {boxes.shape}: boxes are rows of x, y, w, h, shape (T, 4)")
    infinite = np.isinf(boxes).any(-1)  # (...): NaN passes, as it marks boxes that are not known
    if infinite.any():
        raise ValueError(f"{name} has infinite numbers{in_frame(infinite)}: boxes are finite")
    negative = (boxes[..., 2:] < 0).any(-1)
    if negative.any():
        raise ValueError(
            f"{name} has a negative width or height{in_frame(negative)}: "
            f"boxes are x, y, w, h (from corners, w = x2 - x1)"
        )
    return boxes


def centres(boxes: Array) -> Array:
    """Return the middle (..., 2) of each box, x + (w - 1) / 2 and y + (h - 1) / 2, in pixels."""
    # -1, since x is the middle of the first column: one of width 1 has its centre at x
    return boxes[..., :2] + (boxes[..., 2:] - 1) / 2


def boxes_at(middles: Array, sides: Array) -> Array:
    """Return the boxes (..., 4) with these centres and these sides, both (..., 2).

    >>> boxes_at(np.array([4.5, 2.0]), np.array([10.0, 5.0])).tolist()
    [0.0, 0.0, 10.0, 5.0]
    """
    return np.concatenate([middles - (sides - 1) / 2, sides], -1)


def has_area(boxes: Array) -> NDArray[np.bool_]:
    """Return which of the boxes (..., 4) are known, and have an area: (...)."""
    finite = np.isfinite(boxes).all(-1)
    positive = (boxes[..., 2:] > 0).all(-1)
    return np.asarray(finite & positive)


def in_frame(bad: ArrayLike) -> str:
    """Return " in frame N", the first bad one, for an error; nothing for a single box."""
    if np.ndim(bad) != 1:
        return ""
    # people count frames from 1, as the names of their files do
    return f" in frame {int(np.argmax(bad)) + 1}"
