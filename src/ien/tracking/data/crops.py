"""Crops: from an image and squares in it to pictures of one size, as trackers and their training see them."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from .boxes import Array, as_boxes

__all__ = ["check_image", "crop", "exemplar_side", "mean_colour"]

Image = NDArray[np.uint8]


def crop(
    image: Image, centres: ArrayLike, sides: ArrayLike, size: int, fill: ArrayLike | None = None
) -> Tensor:
    """Squares of an image (H, W, 3), resized: float32 (B, 3, size, size) in [0, 1].

    ``centres`` (B, 2), or (2,) for all, are x, y and ``sides`` (B,) are in pixels; neither is rounded. What
    is outside of the image has the colour ``fill``, three numbers up to 255, or else the image's mean. Where
    a square is smaller than ``size`` this is bilinear interpolation; where it is larger, the filter is as
    much wider (a triangle over ``side / size`` pixels to either side), so that nothing aliases.

    The published code rounds corners and sides to whole pixels and has no such filter (``cv2.resize``).

    >>> ramp = np.repeat(np.arange(8, dtype=np.uint8)[None, :, None], 8, 0).repeat(3, 2)
    >>> (crop(ramp, (3.5, 3.5), [4], 4)[0, 0, 0] * 255).tolist()
    [2.0, 3.0, 4.0, 5.0]
    """
    check_image(image)
    middles, lengths = _squares(centres, sides)
    if size < 1:
        raise ValueError(f"a crop has 1 pixel or more to a side; got size {size}")
    colour = torch.as_tensor(
        mean_colour(image) if fill is None else np.asarray(fill, np.float64), dtype=torch.float32
    )
    if colour.shape != (3,) or not bool(((colour >= 0) & (colour <= 255)).all()):
        raise ValueError(f"fill is three numbers of 0 to 255; got {fill!r}")
    steps = (lengths / size)[:, None]  # (B, 1) pixels from one sample to the next
    offsets = steps * (np.arange(size) - (size - 1) / 2)
    rows, down = _taps(middles[:, 1:] + offsets, steps, image.shape[0])  # (B * size, taps)
    columns, across = _taps(middles[:, :1] + offsets, steps, image.shape[1])
    (top, bottom), (left, right) = ((int(at.min()), int(at.max()) + 1) for at in (rows, columns))
    width, count = right - left, len(lengths)
    # less the fill, so that what is outside is 0
    part = torch.from_numpy(image[top:bottom, left:right].astype(np.float32)).sub_(colour)
    # a weighted sum of few rows, twice: as fast as grid_sample, which has no filter, and more exact
    once = _sums(part.flatten(1), rows - top, down).view(count, size, width, 3)
    turned = once.permute(0, 2, 3, 1).reshape(count * width, 3 * size)
    columns = columns - left + np.arange(count).repeat(size)[:, None] * width
    both = _sums(turned, columns, across).view(count, size, 3, size)  # (B, x, channel, y)
    result = both.permute(0, 2, 3, 1).contiguous()
    return result.add_(colour[:, None, None]).div_(255).clamp_(0, 1)


def exemplar_side(boxes: ArrayLike, context: float = 0.5) -> Array:
    """Side of the square around each box (..., 4) that is its exemplar: √((w + p)(h + p)), p = context (w+h).

    >>> float(exemplar_side([0, 0, 30, 30]))
    60.0
    """
    sides = as_boxes(boxes, "boxes")[..., 2:]
    return np.asarray(np.sqrt((sides + context * sides.sum(-1, keepdims=True)).prod(-1)))


def mean_colour(image: Image) -> Array:
    """The mean (3,) over all pixels, 0 to 255."""
    return np.asarray(image.sum(0, dtype=np.uint32).sum(0, dtype=np.float64) / (len(image) * len(image[0])))


def check_image(image: object) -> None:
    """An error unless it is an array (H, W, 3) uint8, with what to do about it."""
    needed = "an image is a numpy array (H, W, 3) uint8 RGB"
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


def _squares(centres: ArrayLike, sides: ArrayLike) -> tuple[Array, Array]:
    lengths = np.asarray(sides, np.float64)
    middles = np.asarray(centres, np.float64)
    if lengths.ndim != 1 or not len(lengths) or middles.shape not in ((2,), (len(lengths), 2)):
        raise ValueError(
            f"crops need sides (B,) and centres (B, 2), or (2,) for all; "
            f"got {lengths.shape} and {middles.shape}"
        )
    if not (np.isfinite(lengths).all() and (lengths > 0).all() and np.isfinite(middles).all()):
        raise ValueError("crops need finite centres, and sides above 0")
    return np.broadcast_to(middles, (len(lengths), 2)), lengths


def _taps(places: Array, steps: Array, length: int) -> tuple[NDArray[np.int64], Array]:
    """Of which pixels each place (B, size) along an axis is made, and their weights: (B * size, taps).

    Weights of pixels outside of the image are left out: these are 0.
    """
    reach = np.maximum(steps, 1)  # (B, 1)
    count = min(int(np.ceil(2 * reach.max())), length)
    first = np.clip(np.floor(places - reach) + 1, 0, length - count)
    pixels = first[..., None] + np.arange(count)  # (B, size, taps)
    weights = np.maximum(1 - np.abs(places[..., None] - pixels) / reach[..., None], 0)
    weights /= _total(places - np.floor(places), reach)[..., None]
    return pixels.reshape(-1, count).astype(np.int64), weights.reshape(-1, count)


def _total(fraction: Array, reach: Array) -> Array:
    """The sum of 1 - |d| / reach over all pixels, those outside of the image too, as it goes from 1 to 0."""
    total = np.zeros(np.broadcast_shapes(fraction.shape, reach.shape))
    for nearest in (fraction, 1 - fraction):  # on the one side and on the other
        pixels = np.maximum(np.ceil(reach - nearest), 0)
        total += pixels - (pixels * nearest + pixels * (pixels - 1) / 2) / reach
    return total


def _sums(rows: Tensor, indices: NDArray[np.int64], weights: Array) -> Tensor:
    """Weighted sums of rows (n, C): (m, C), with ``indices`` and ``weights`` (m, taps)."""
    return F.embedding_bag(
        torch.from_numpy(indices),
        rows.contiguous(),
        mode="sum",
        per_sample_weights=torch.from_numpy(weights).float(),
    )
