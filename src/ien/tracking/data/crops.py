"""Crops: squares of an image, resampled to the pictures that trackers see."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from .boxes import Array, as_boxes

__all__ = ["Image", "check_image", "crop", "exemplar_side", "mean_colour"]

Image = NDArray[np.uint8]


def crop(
    image: Image, centres: ArrayLike, sides: ArrayLike, size: int, fill: ArrayLike | None = None
) -> Tensor:
    """Cut squares out of an image and resize them, without rounding their places to whole pixels.

    A square smaller than ``size`` is interpolated bilinearly. For a larger one the filter widens,
    to a triangle over ``side / size`` pixels to either side, so that nothing aliases. The published
    code rounds corners and sides to whole pixels and does not filter (``cv2.resize``); use that to
    compare to the bit.

    Args:
        image: (H, W, 3) uint8 RGB.
        centres: x and y of each square, (B, 2), or (2,) for all.
        sides: Side of each square in pixels, (B,).
        size: Pixels to a side of the result.
        fill: Colour of what lies outside of the image, three numbers up to 255; by default its
            mean.

    Returns:
        float32 (B, 3, size, size) in [0, 1].

    >>> ramp = np.repeat(np.arange(8, dtype=np.uint8)[None, :, None], 8, 0).repeat(3, 2)
    >>> (crop(ramp, (3.5, 3.5), [4], 4)[0, 0, 0] * 255).tolist()
    [2.0, 3.0, 4.0, 5.0]
    """
    check_image(image)
    middles, lengths = _squares(centres, sides)
    if size < 1:
        raise ValueError(f"the size of a crop must be 1 pixel or more; got {size}")
    colour = _fill_colour(image, fill)

    count = len(lengths)
    steps = (lengths / size)[:, None]  # (B, 1): pixels from one sample to the next
    offsets = steps * (np.arange(size) - (size - 1) / 2)  # (B, size)
    x = middles[:, :1] + offsets  # (B, size)
    y = middles[:, 1:] + offsets  # (B, size)
    height, width = image.shape[:2]
    rows, row_weights = _taps(y, steps, height)  # (B * size, taps)
    columns, column_weights = _taps(x, steps, width)

    # the part of the image that is read at all
    top, bottom = int(rows.min()), int(rows.max()) + 1
    left, right = int(columns.min()), int(columns.max()) + 1
    width = right - left
    pixels = image[top:bottom, left:right].astype(np.float32)
    part = torch.from_numpy(pixels)
    part.sub_(colour)  # what lies outside of the image is then 0

    # the filter is separable: weighted sums of rows, then of columns.
    # This is as fast as grid_sample, which cannot filter, and more exact.
    part = part.flatten(1)  # (rows of the part, width * 3)
    sampled = _weighted_sums(part, rows - top, row_weights)  # (B * size, width * 3)
    sampled = sampled.view(count, size, width, 3)  # (B, y, x, channel)
    sampled = sampled.permute(0, 2, 3, 1)  # (B, x, channel, y)
    sampled = sampled.reshape(count * width, 3 * size)  # (B * x, channel * y)
    # the columns of the b-th square are rows b * width … of `sampled`
    square = np.arange(count).repeat(size)[:, None]  # (B * size, 1)
    columns = columns - left + square * width
    sampled = _weighted_sums(sampled, columns, column_weights)  # (B * size, channel * y)
    sampled = sampled.view(count, size, 3, size)  # (B, x, channel, y)
    pictures = sampled.permute(0, 2, 3, 1).contiguous()  # (B, channel, y, x)
    pictures.add_(colour[:, None, None])
    return pictures.div_(255).clamp_(0, 1)


def exemplar_side(boxes: ArrayLike, context: float = 0.5) -> Array:
    """Return the side of the square around each box (..., 4) that its exemplar shows.

        side = √((w + p)(h + p)), where p = context · (w + h)

    >>> float(exemplar_side([0, 0, 30, 30]))
    60.0
    """
    sides = as_boxes(boxes, "boxes")[..., 2:]
    padding = context * sides.sum(-1, keepdims=True)
    return np.asarray(np.sqrt((sides + padding).prod(-1)))


def mean_colour(image: Image) -> Array:
    """Return the mean (3,) over all pixels, 0 to 255."""
    rows, columns = image.shape[:2]
    total = image.sum(0, dtype=np.uint32).sum(0, dtype=np.float64)  # integers first: exact and fast
    return np.asarray(total / (rows * columns))


def check_image(image: object) -> None:
    """Raise an error that says what to do unless this is an array (H, W, 3) uint8."""
    needed = "an image must be a numpy array (H, W, 3) uint8 RGB"
    if not isinstance(image, np.ndarray):
        raise ValueError(f"{needed}; got {type(image).__name__} (np.array(picture) may do)")
    if image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 1):
        raise ValueError(
            f"{needed}; got a grey one {image.shape}: np.repeat(image.reshape(*image.shape[:2], 1), 3, 2)"
        )
    if image.ndim == 3 and image.shape[2] == 4:
        raise ValueError(f"{needed}; got four channels {image.shape}: take image[..., :3]")
    if image.ndim != 3 or image.shape[2] != 3 or not image.size:
        raise ValueError(f"{needed}; got shape {image.shape}")
    if image.dtype != np.uint8:
        raise ValueError(f"{needed}; got {image.dtype}: bring it to 0 … 255, round it, and .astype(np.uint8)")


def _fill_colour(image: Image, fill: ArrayLike | None) -> Tensor:
    values = mean_colour(image) if fill is None else np.asarray(fill, np.float64)
    colour = torch.as_tensor(values, dtype=torch.float32)
    if colour.shape != (3,) or colour.min() < 0 or colour.max() > 255:
        raise ValueError(f"fill must be three numbers from 0 to 255; got {fill!r}")
    return colour


def _squares(centres: ArrayLike, sides: ArrayLike) -> tuple[Array, Array]:
    """Return the centres (B, 2) and the sides (B,), checked."""
    lengths = np.asarray(sides, np.float64)
    middles = np.asarray(centres, np.float64)
    some_sides = lengths.ndim == 1 and len(lengths) > 0
    if not some_sides or middles.shape not in ((2,), (len(lengths), 2)):
        raise ValueError(
            f"crops need sides (B,) and centres (B, 2), or (2,) for all; "
            f"got {lengths.shape} and {middles.shape}"
        )
    finite = np.isfinite(lengths).all() and np.isfinite(middles).all()
    if not finite or not (lengths > 0).all():
        raise ValueError(
            f"crops need finite centres and sides above 0; got {middles.tolist()} and {lengths.tolist()}"
        )
    return np.broadcast_to(middles, (len(lengths), 2)), lengths


def _taps(positions: Array, steps: Array, length: int) -> tuple[NDArray[np.int64], Array]:
    """Return the pixels along one axis that each position (B, size) reads, and their weights.

    Both are (B * size, taps). The weight of a pixel at distance d is proportional to 1 - d / reach.
    The weights of all pixels sum to 1; those of pixels outside of the image are left out, as these
    are 0.
    """
    reach = np.maximum(steps, 1)  # (B, 1)
    count = min(int(np.ceil(2 * reach.max())), length)
    first = np.clip(np.floor(positions - reach) + 1, 0, length - count)
    pixels = first[..., None] + np.arange(count)  # (B, size, taps)
    distances = np.abs(positions[..., None] - pixels)
    weights = np.maximum(1 - distances / reach[..., None], 0)
    weights /= _sum_of_weights(positions - np.floor(positions), reach)[..., None]
    pixels = pixels.reshape(-1, count).astype(np.int64)  # (B * size, taps)
    return pixels, weights.reshape(-1, count)  # (B * size, taps)


def _sum_of_weights(fraction: Array, reach: Array) -> Array:
    """Return the sum of 1 - d / reach over all pixels within ``reach``, inside the image or not.

    On one side of a position the pixels lie at d = f, f + 1, …, f + n - 1, so that side adds up to
    n - (n f + n (n - 1) / 2) / reach.
    """
    total = np.zeros(np.broadcast_shapes(fraction.shape, reach.shape))
    for first_distance in (fraction, 1 - fraction):  # to the left, and to the right
        pixels = np.maximum(np.ceil(reach - first_distance), 0)
        sum_of_distances = pixels * first_distance + pixels * (pixels - 1) / 2
        total += pixels - sum_of_distances / reach
    return total


def _weighted_sums(rows: Tensor, indices: NDArray[np.int64], weights: Array) -> Tensor:
    """Return weighted sums (m, C) of rows (n, C), by indices and weights (m, taps)."""
    return F.embedding_bag(
        torch.from_numpy(indices),
        rows.contiguous(),
        mode="sum",
        per_sample_weights=torch.from_numpy(weights).float(),
    )
