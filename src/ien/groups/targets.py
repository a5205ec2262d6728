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

__all__ = [
    "check_floating",
    "check_numbers",
    "fits",
    "move_angles",
    "move_boxes",
    "move_mask",
    "move_points",
    "move_vectors",
]

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
    nearest_rows = sent(_nearest(rows, height), mask.device)
    nearest_columns = sent(_nearest(columns, width), mask.device)
    moved = mask[:, :, nearest_rows, nearest_columns]  # (B, C, H, W)
    return moved.masked_fill(sent(~known, mask.device), ignore)


def move_points(points: Tensor, steps: Sequence[Similarity], centre: tuple[float, float]) -> Tensor:
    """Move the points (B, …, 2) of image i by ``steps[i]`` about the centre (x, y)."""
    # c + A (p - c)  =  A p + (c - A c); the second is exact under the identity and quarter turns
    c = torch.tensor(centre, dtype=torch.float64, device="cpu")  # (2,)
    shifts = c - _matrices(steps) @ c  # (B, 2)
    return move_vectors(points, steps) + _beside(points, shifts)


def move_vectors(vectors: Tensor, steps: Sequence[Similarity]) -> Tensor:
    """Move the vectors (B, …, 2) of image i, with dy down, by ``steps[i]``."""
    matrices = _like(_matrices(steps), vectors)  # (B, 2, 2)
    # shape[0] and not len(): an export must not see the number of images
    count = vectors[:1].numel() // 2  # vectors of an image
    flat = vectors.reshape(vectors.shape[0], count, 2)  # (B, …, 2) -> (B, N, 2)
    moved = flat @ matrices.transpose(1, 2)  # vectors are rows here: v Aᵀ
    return moved.view(vectors.shape)


def move_boxes(boxes: Tensor, steps: Sequence[Similarity], centre: tuple[float, float]) -> Tensor:
    """Move the boxes (B, …, 4) of image i by ``steps[i]``: the hull of their moved corners."""
    x1, y1, x2, y2 = boxes.unbind(-1)  # (B, …) each
    top_left = torch.stack((x1, y1), -1)  # (B, …, 2)
    top_right = torch.stack((x2, y1), -1)
    bottom_right = torch.stack((x2, y2), -1)
    bottom_left = torch.stack((x1, y2), -1)
    corners = torch.stack([top_left, top_right, bottom_right, bottom_left], -2)  # (B, …, 4, 2)
    moved = move_points(corners, steps, centre)
    lowest = moved.amin(-2)  # (B, …, 2), over the corners
    highest = moved.amax(-2)
    return torch.cat([lowest, highest], -1)  # (B, …, 4)


def move_angles(angles: Tensor, steps: Sequence[Similarity]) -> Tensor:
    """Move the angles (B, …) of image i, in degrees, by ``steps[i]``, into 0 to 360."""
    signs = []
    offsets = []
    for step in steps:
        sign = 1.0
        offset = float(360 * step.turn)
        if step.flip:  # a mirror takes a to 180° - a, and then the rotation adds its own angle
            sign = -1.0
            offset += 180.0
        signs.append(sign)
        offsets.append(offset)
    sign_of_each = torch.tensor(signs, dtype=torch.float64, device="cpu")  # (B,)
    offset_of_each = torch.tensor(offsets, dtype=torch.float64, device="cpu")  # (B,)
    moved = _beside(angles, sign_of_each) * angles + _beside(angles, offset_of_each)
    return moved.remainder(360)


def check_numbers(targets: Tensor, kind: str, names: tuple[str, ...]) -> None:
    """Raise a ValueError unless targets are (B, …, n) in floating point, with n numbers each.

    Args:
        targets: The targets.
        kind: What they are called, such as ``boxes``.
        names: What their numbers are called.
    """
    if targets.ndim < 2 or targets.shape[-1] != len(names):
        raise ValueError(
            f"{kind} must have shape (B, …, {len(names)}), the last for {', '.join(names)}; "
            f"got {tuple(targets.shape)}"
        )
    check_floating(targets, kind)


def check_floating(targets: Tensor, kind: str) -> None:
    """Raise a ValueError unless targets are in floating point."""
    if not targets.is_floating_point():
        raise ValueError(f"{kind} must be in floating point, not {targets.dtype}: use {kind}.float()")


def _matrices(steps: Sequence[Similarity]) -> Tensor:
    """The matrices of the steps with y down, float64 (B, 2, 2)."""
    matrices = []
    for step in steps:
        # those of similarities have y up: the entries that mix x and y change their sign
        (xx, xy), (yx, yy) = step.matrix
        matrices.append([[xx, -xy], [-yx, yy]])
    return torch.tensor(matrices, dtype=torch.float64, device="cpu").view(-1, 2, 2)


def _beside(targets: Tensor, numbers: Tensor) -> Tensor:
    """Numbers of each image, (B,) or (B, 2), with the dims and type of its targets (B, …)."""
    between = [1] * (targets.ndim - numbers.ndim)
    return _like(numbers, targets).view(-1, *between, *numbers.shape[1:])  # (B, 1, …)


def _like(numbers: Tensor, other: Tensor) -> Tensor:
    """Numbers with the type of ``other``, and then on its device: MPS has no float64."""
    return sent(numbers.to(other.dtype), other.device)


def _inside(place: Tensor, size: int) -> Tensor:
    """Where a place, counted in pixels, lies on one of the ``size`` pixels of a side."""
    # pixel 0 begins at -1/2, and the last one ends size/2 from the middle
    middle = (size - 1) / 2
    return (place - middle).abs() <= size / 2 + ROUNDING


def _nearest(place: Tensor, size: int) -> Tensor:
    """The nearest of ``size`` pixels; between two, always the one before, despite rounding."""
    nearest = (place - 0.5 - ROUNDING).ceil()  # 2.4 -> 2, 2.5 -> 2, 2.6 -> 3
    return nearest.clamp(0, size - 1).long()
