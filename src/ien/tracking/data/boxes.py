"""Boxes: rows of x, y, w, h, checked."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Array", "as_boxes", "in_frame"]

Array = NDArray[np.float64]


def as_boxes(values: ArrayLike, name: str) -> Array:
    """Boxes (..., 4) as float64; an error where they are none. NaN passes."""
    try:
        boxes = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} are no boxes: rows of the numbers x, y, w, h are needed") from None
    if boxes.shape[-1:] != (4,):
        raise ValueError(f"{name} has shape {boxes.shape}: boxes are rows of x, y, w, h, shape (T, 4)")
    if np.isinf(boxes).any():
        raise ValueError(f"{name} has infinite numbers{in_frame(np.isinf(boxes).any(-1))}: boxes are finite")
    if (boxes[..., 2:] < 0).any():
        bad = in_frame((boxes[..., 2:] < 0).any(-1))
        raise ValueError(
            f"{name} has a negative width or height{bad}: boxes are x, y, w, h (corners need w = x2 - x1)"
        )
    return boxes


def in_frame(bad: ArrayLike) -> str:
    """Which frame is the first bad one, for an error; of a single box there is nothing to tell."""
    return f" in frame {int(np.argmax(bad)) + 1}" if np.ndim(bad) == 1 else ""
