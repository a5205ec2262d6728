"""Boxes: rows x, y, w, h; the first column and row, and the numbers of columns and rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "COUNT_FROM_1",
    "Array",
    "as_boxes",
    "boxes_at",
    "centres",
    "cos_sin",
    "has_area",
    "hulls",
    "in_frame",
    "rotated_corners",
    "upright_sides",
]

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


def hulls(boxes: Array, degrees: Array) -> Array:
    """Return the upright boxes (T, 4) around boxes that are rotated about their centres.

    Args:
        boxes: As they are at 0°, (T, 4).
        degrees: Angles (T,).

    >>> hulls(np.array([[0.0, 0.0, 20.0, 10.0]]), np.array([90.0])).tolist()
    [[5.0, -5.0, 10.0, 20.0]]
    """
    return boxes_at(centres(boxes), upright_sides(boxes[:, 2:], degrees))


def rotated_corners(box: Array, degrees: float) -> Array:
    """Return the corners (4, 2) of one box that is rotated about its centre, counter-clockwise.

    They are x and y of what is the upper left, upper right, lower right and lower left corner at
    0°, on the outer border of the box: half a pixel outside of the centres of its first and last
    pixels.

    >>> rotated_corners(np.array([0.0, 0.0, 20.0, 10.0]), 90).tolist()
    [[4.5, 14.5], [4.5, -5.5], [14.5, -5.5], [14.5, 14.5]]
    """
    cos, sin = map(float, cos_sin(degrees))
    signs = np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
    offsets = signs * box[2:] / 2  # (4, 2) from the centre
    # R = [[cos, sin], [-sin, cos]], as y points down
    matrix = np.array([[cos, sin], [-sin, cos]])
    return centres(box) + offsets @ matrix.T


def upright_sides(sides: Array, degrees: Array, ellipse: bool = False) -> Array:
    """Return the sides (T, 2) of the upright box around a rotated box, or the ellipse in it.

        box:      W = w |cos| + h |sin|,        H = w |sin| + h |cos|
        ellipse:  W = √(w² cos² + h² sin²),     H = √(w² sin² + h² cos²)

    Args:
        sides: Width and height before, (T, 2).
        degrees: Angles (T,).
        ellipse: Whether to take the ellipse that fills the box.

    >>> upright_sides(np.array([[30.0, 40.0], [30.0, 40.0]]), np.array([90.0, 0.0]))
    array([[40., 30.],
           [30., 40.]])
    """
    cos, sin = cos_sin(degrees)
    cos, sin = np.abs(cos), np.abs(sin)
    width, height = sides[:, :1], sides[:, 1:]  # (T, 1)
    from_width = width * np.stack([cos, sin], 1)  # (T, 2)
    from_height = height * np.stack([sin, cos], 1)  # (T, 2)
    if ellipse:
        return np.hypot(from_width, from_height)
    return from_width + from_height


def cos_sin(degrees: Array | float) -> tuple[Array, Array]:
    """Return cosine and sine, exact for quarter turns.

    >>> cos_sin(np.array([90.0, -180.0]))
    (array([ 0., -1.]), array([1., 0.]))
    """
    degrees = np.asarray(degrees, np.float64)
    cos = np.cos(np.deg2rad(degrees))
    sin = np.sin(np.deg2rad(degrees))
    quarters = np.round(degrees / 90)
    is_quarter = degrees == 90 * quarters
    index = quarters.astype(np.int64) % 4
    exact_cos = np.array([1.0, 0, -1, 0])
    exact_sin = np.array([0.0, 1, 0, -1])
    cos = np.where(is_quarter, exact_cos[index], cos)
    sin = np.where(is_quarter, exact_sin[index], sin)
    return cos, sin


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
