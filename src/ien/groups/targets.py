"""What a similarity does to targets: masks, boxes, points, vectors and angles.

An image under an element needs its targets under the same element. With the matrix A of the element
in pixels (x to the right, y *down*) and the centre c of the image,

    point    p  ->  c + A (p - c)          c = ((W - 1) / 2, (H - 1) / 2): pixel [y, x] is (x, y)
    box         ->  the hull of its corners, which lie between pixels: c = (W / 2, H / 2)
    vector   v  ->  A v                    a difference of two points
    angle    a  ->  turn ± a               in degrees, counter-clockwise from the x axis

and a mask takes each pixel from the nearest one of its source, as in ``similarity.py``. A list of
one step is for all images of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .devices import sent
from .similarity import Similarity, permute_pixels, source_pixels

__all__ = ["fits", "move_angles", "move_boxes", "move_mask", "move_points", "move_vectors"]

ROUNDING = 1e-6
"""How far beyond the border of the image a source may lie by rounding alone, in pixels."""


def fits(value: float, dtype: torch.dtype) -> bool:
    """Return whether a mask of this type can hold ``value``.

    >>> fits(255, torch.uint8), fits(-100, torch.uint8), fits(255, torch.bool)
    (True, False, False)
    """
    if dtype == torch.bool:
        return value in (0, 1)
    if dtype.is_floating_point:
        return True
    limits = torch.iinfo(dtype)
    return limits.min <= value <= limits.max and value == int(value)  # nan lies in no range


def move_mask(mask: Tensor, step: Similarity, ignore: float) -> Tensor:
    """Move masks: each pixel takes the nearest one; quarter turns and flips permute them.

    Args:
        mask: Masks (B, C, H, W), all moved in the same way.
        step: What moves them.
        ignore: The value of pixels whose source lies outside of the mask.
    """
    if step.exact:
        return permute_pixels(mask, step)
    height, width = mask.shape[-2:]
    rows, columns = source_pixels(step, height, width)  # (H, W) each
    # pixel i covers i - 1/2 to i + 1/2
    known = _inside(rows, height) & _inside(columns, width)  # (H, W)
    rows = sent(_nearest(rows, height), mask.device)
    columns = sent(_nearest(columns, width), mask.device)
    moved = mask[:, :, rows, columns]  # (B, C, H, W)
    return moved.masked_fill(sent(~known, mask.device), ignore)


def move_points(points: Tensor, steps: Sequence[Similarity], centre: tuple[float, float]) -> Tensor:
    """Move the points (B, …, 2) of image i by ``steps[i]`` about the centre (x, y)."""
    # c + A (p - c)  =  A p + (c - A c); the second is exact under the identity and quarter turns
    middle = torch.tensor(centre, dtype=torch.float64, device="cpu")  # (2,)
    shifts = middle - _matrices(steps) @ middle  # (B, 2)
    each = (-1, *[1] * (points.ndim - 2), 2)  # (B, 1, …, 2)
    return move_vectors(points, steps) + _like(shifts, points).view(each)


def move_vectors(vectors: Tensor, steps: Sequence[Similarity]) -> Tensor:
    """Move the vectors (B, …, 2) of image i, with dy down, by ``steps[i]``."""
    matrices = _like(_matrices(steps), vectors)  # (B, 2, 2)
    # shape[0] and not len(): an export must not see the number of images
    flat = vectors.reshape(vectors.shape[0], vectors[:1].numel() // 2, 2)  # (B, N, 2)
    return (flat @ matrices.transpose(1, 2)).view(vectors.shape)


def move_boxes(boxes: Tensor, steps: Sequence[Similarity], centre: tuple[float, float]) -> Tensor:
    """Move the boxes (B, …, 4) of image i by ``steps[i]``: the hull of their moved corners."""
    x1, y1, x2, y2 = boxes.unbind(-1)
    corners = [torch.stack(corner, -1) for corner in ((x1, y1), (x2, y1), (x2, y2), (x1, y2))]
    moved = move_points(torch.stack(corners, -2), steps, centre)  # (B, …, 4, 2)
    return torch.cat([moved.amin(-2), moved.amax(-2)], -1)  # (B, …, 4)


def move_angles(angles: Tensor, steps: Sequence[Similarity]) -> Tensor:
    """Move the angles (B, …) of image i, in degrees, by ``steps[i]``, into 0 to 360."""
    signs, offsets = [], []
    for step in steps:
        # a mirror takes a to 180° - a, and then the rotation adds its own angle
        signs.append(-1.0 if step.flip else 1.0)
        offsets.append(float(360 * step.turn) + (180.0 if step.flip else 0.0))
    each = (-1, *[1] * (angles.ndim - 1))  # (B, 1, …)
    sign = _like(torch.tensor(signs, dtype=torch.float64, device="cpu"), angles).view(each)
    offset = _like(torch.tensor(offsets, dtype=torch.float64, device="cpu"), angles).view(each)
    return (sign * angles + offset).remainder(360)


def _matrices(steps: Sequence[Similarity]) -> Tensor:
    """The matrices of the steps with y down, float64 (B, 2, 2)."""
    rows = []
    for step in steps:
        (a, b), (c, d) = step.matrix
        rows.append([[a, -b], [-c, d]])  # that has y up: its mixed entries change their sign
    return torch.tensor(rows, dtype=torch.float64, device="cpu").view(-1, 2, 2)


def _like(numbers: Tensor, other: Tensor) -> Tensor:
    """Numbers with the type of ``other``, and then on its device: MPS has no float64."""
    return sent(numbers.to(other.dtype), other.device)


def _inside(place: Tensor, size: int) -> Tensor:
    """Where a place, counted in pixels, lies on one of the ``size`` pixels of a side."""
    return (place - (size - 1) / 2).abs() <= size / 2 + ROUNDING


def _nearest(place: Tensor, size: int) -> Tensor:
    """The nearest of ``size`` pixels; between two, always the one before, despite rounding."""
    return (place - 0.5 - ROUNDING).ceil().clamp(0, size - 1).long()
