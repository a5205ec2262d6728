"""Augmentation: images and numbers drawn for each → changed images. Nothing here is random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from ..groups.devices import sent
from ..groups.similarity import Mode

__all__ = ["cutout", "mirror", "rescale", "resized", "rotate", "rotate_and_scale", "shift"]


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate each image counter-clockwise by its own angle, bilinearly, with zeros from outside.

    For the elements of a group, exact where that is possible, use :func:`ien.rotation` instead.

    Args:
        images: (N, C, H, W), floating point.
        degrees: Any real angles (N,).

    >>> rotate(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), torch.tensor([90.0])).round(decimals=4)
    tensor([[[[2., 4.],
              [1., 3.]]]])
    """
    _check_numbers("rotate", images, degrees, "an angle")
    factors = torch.ones(len(images))
    return rotate_and_scale(images, degrees, factors, "bilinear")


def rescale(images: Tensor, factors: Tensor, mode: Mode = "bicubic") -> Tensor:
    """Scale each image about its centre by its own factor, with zeros from outside.

    The size of the image stays: below 1 a border is filled, above 1 one is lost. Nothing is
    smoothed before an image shrinks. What bicubic interpolation overshoots is cut off at 0 and 1,
    as in a picture of bytes. For the elements of a group use :func:`ien.scale` instead.

    Args:
        images: (N, C, H, W) in [0, 1].
        factors: (N,), 0.5 to halve.
        mode: How pixels are interpolated.

    >>> rescale(torch.ones(1, 1, 1, 4), torch.tensor([0.5]), "bilinear")
    tensor([[[[0., 1., 1., 0.]]]])
    """
    _check_numbers("rescale", images, factors, "a factor")
    degrees = torch.zeros(len(images))
    scaled = rotate_and_scale(images, degrees, factors, mode)
    if mode == "bicubic":
        scaled.clamp_(0, 1)
    return scaled


def resized(images: Tensor, size: int) -> Tensor:
    """Scale square images of bytes to another size: each pixel is the mean over its area.

    With overlaps A of the new pixels with the n old ones along a side, the image X becomes

        A X Aᵀ / n²

    Args:
        images: (N, C, n, n) uint8.
        size: The new height and width, smaller or larger.

    >>> resized(torch.tensor([[[[0, 4, 8], [0, 4, 8], [0, 4, 8]]]], dtype=torch.uint8), 1)
    tensor([[[[4]]]], dtype=torch.uint8)
    """
    before = images.shape[-1]
    if size == before:
        return images
    overlaps = _overlaps(before, size)
    # whole numbers up to the division: a half is a half on every machine
    sums = overlaps @ images.double() @ overlaps.T
    return sums.div_(before * before).round_().to(torch.uint8)


def rotate_and_scale(images: Tensor, degrees: Tensor, factors: Tensor, mode: Mode = "bicubic") -> Tensor:
    """Rotate each image by its own angle and scale it by its own factor, in one resampling.

    About the centre, with zeros from outside. A pixel at (x, y) of the result is read from

        x' = (x cos α - y sin α) / s
        y' = (x sin α + y cos α) / s

    with rows that count downwards. Bicubic is that of torch and of ``ien.scale``, Keys' kernel with
    a = -0.75; it may leave the range of the image.

    Args:
        images: (N, C, H, W), floating point.
        degrees: The angles α (N,), counter-clockwise.
        factors: The factors s (N,).
        mode: How pixels are interpolated.
    """
    _check_numbers("rotate_and_scale", images, degrees, "an angle")
    _check_numbers("rotate_and_scale", images, factors, "a factor")
    if mode not in get_args(Mode):
        *modes, last = get_args(Mode)
        raise ValueError(f"mode is {', '.join(modes)} or {last}; got {mode!r}")
    # on the CPU, since not every device has float64; numbers from a GPU would wait for it
    angle = degrees.cpu().double()
    factor = factors.cpu().double()
    usable = factor.isfinite() & (factor > 0)  # false for NaN too
    if not bool(usable.all()):
        wrong = float(factor[~usable][0])
        raise ValueError(f"factors must be positive and finite, 0.5 to halve; got {wrong:g}")
    if images.numel() == 0:
        return images.clone()

    radians = angle.deg2rad()
    cos = radians.cos() / factor
    sin = radians.sin() / factor
    zero = torch.zeros_like(angle)
    height, width = images.shape[-2:]
    # affine_grid counts in half sides, so x and y have different units unless the image is square
    x_row = torch.stack([cos, -sin * height / width, zero], dim=1)  # (N, 3)
    y_row = torch.stack([sin * width / height, cos, zero], dim=1)  # (N, 3)
    dtype = torch.float32  # also for halves, which not every device resamples
    if images.dtype == torch.float64:
        dtype = torch.float64
    matrix = torch.stack([x_row, y_row], dim=1).to(dtype)  # (N, 2, 3)
    matrix = sent(matrix, images.device)
    grid = F.affine_grid(matrix, list(images.shape), align_corners=False)  # (N, H, W, 2)
    resampled = F.grid_sample(images.to(dtype), grid, mode=mode, align_corners=False)
    return resampled.to(images.dtype)


def shift(images: Tensor, offsets: Tensor) -> Tensor:
    """Move each image by its own whole number of pixels, with zeros from outside.

    With offsets drawn from -12 to 12 this is a random crop of the image with 12 pixels of zeros
    around it.

    Args:
        images: (N, C, H, W).
        offsets: Pixels down and to the right (N, 2).

    >>> shift(torch.tensor([[[[1, 2], [3, 4]]]]), torch.tensor([[1, -1]]))
    tensor([[[[0, 0],
              [2, 0]]]])
    """
    _check_pixels("shift", images, offsets, "an offset")
    if images.numel() == 0:
        return images.clone()
    height, width = images.shape[-2:]
    # further than by its own size an image is gone
    limit = torch.tensor([height, width], device=offsets.device)
    offsets = torch.minimum(torch.maximum(offsets, -limit), limit)
    # before they are sent: reading from a GPU waits for it
    rows, columns = offsets.abs().amax(0).tolist()
    down, right = sent(offsets, images.device).unbind(1)  # (N,) each
    padded = F.pad(images, (columns, columns, rows, rows))
    # every window of the size of an image, of which each image takes one
    windows = padded.unfold(2, height, 1)  # (N, C, 2 * rows + 1, W + 2 * columns, H)
    windows = windows.unfold(3, width, 1)  # (N, C, 2 * rows + 1, 2 * columns + 1, H, W)
    which = torch.arange(len(images), device=images.device)
    return windows[which, :, rows - down, columns - right]  # (N, C, H, W)


def mirror(images: Tensor, flags: Tensor) -> Tensor:
    """Mirror the images whose flag is true left to right, and leave the others as they are.

    Args:
        images: (N, C, H, W).
        flags: (N,) of bool.

    >>> mirror(torch.tensor([[[[1, 2]]], [[[3, 4]]]]), torch.tensor([True, False])).flatten()
    tensor([2, 1, 3, 4])
    """
    if images.ndim != 4 or flags.dtype != torch.bool or flags.shape != images.shape[:1]:
        raise ValueError(
            f"mirror needs images (N, C, H, W) and true or false for each (N,); "
            f"got {tuple(images.shape)} and {flags.dtype} {tuple(flags.shape)}"
        )
    chosen = sent(flags, images.device).view(-1, 1, 1, 1)
    return torch.where(chosen, images.flip(3), images)


def cutout(images: Tensor, centres: Tensor, size: int, fill: float | Sequence[float] | Tensor) -> Tensor:
    """Fill a square in each image, around its own pixel.

    The square reaches ``size // 2`` pixels up and left of the pixel, and ends at the border of the
    image.

    Args:
        images: (N, C, H, W).
        centres: Row and column of the pixel (N, 2).
        size: Pixels along each side of the square.
        fill: One value, or one for each channel. Where the published order is to normalise first
            and then to fill with zeros, this is the mean of the data.

    >>> cutout(torch.ones(1, 1, 3, 4), torch.tensor([[0, 2]]), 2, 0.5)
    tensor([[[[1.0000, 0.5000, 0.5000, 1.0000],
              [1.0000, 1.0000, 1.0000, 1.0000],
              [1.0000, 1.0000, 1.0000, 1.0000]]]])
    """
    _check_pixels("cutout", images, centres, "a pixel")
    colour = torch.as_tensor(fill, dtype=images.dtype, device=images.device).flatten()
    channels = images.shape[1]
    if len(colour) not in (1, channels):
        raise ValueError(f"fill is one value or one for each of {channels} channels; got {len(colour)}")
    if size < 1:
        raise ValueError(f"the square needs a size of at least 1 pixel; got {size}")
    top, left = (sent(centres, images.device) - size // 2).unbind(1)  # (N,) each
    in_rows = _between(top, size, images.shape[2])  # (N, H)
    in_columns = _between(left, size, images.shape[3])  # (N, W)
    inside = in_rows[:, None, :, None] & in_columns[:, None, None, :]  # (N, 1, H, W)
    colour = colour.view(1, -1, 1, 1)  # (1, C or 1, 1, 1)
    return torch.where(inside, colour, images)


def _between(start: Tensor, size: int, side: int) -> Tensor:
    """Which of the places 0 … side - 1 lie in the interval of each image: (N, side)."""
    place = torch.arange(side, device=start.device)
    start = start[:, None]
    return (place >= start) & (place < start + size)


def _check_numbers(name: str, images: Tensor, values: Tensor, what: str) -> None:
    usable = images.ndim == 4 and images.is_floating_point()
    if not usable or values.shape != images.shape[:1]:
        noun = what.split()[-1]
        raise ValueError(
            f"{name} needs floating-point images (N, C, H, W) and {what} for each (N,); "
            f"got {images.dtype} {tuple(images.shape)} and {noun}s {tuple(values.shape)}"
        )


def _check_pixels(name: str, images: Tensor, values: Tensor, what: str) -> None:
    whole = not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)
    if images.ndim != 4 or not whole or values.shape != (*images.shape[:1], 2):
        raise ValueError(
            f"{name} needs images (N, C, H, W) and {what} for each in whole rows and columns (N, 2); "
            f"got {tuple(images.shape)} and {values.dtype} {tuple(values.shape)}"
        )


def _overlaps(before: int, size: int) -> Tensor:
    """How much of each of ``before`` pixels lies in each of ``size`` equal parts: (size, before).

    In units in which a pixel is ``size`` long and a part ``before``, so all are whole numbers.
    """
    part = before * torch.arange(size).view(-1, 1)  # where each part starts
    pixel = size * torch.arange(before)  # where each pixel starts
    end = torch.minimum(part + before, pixel + size)
    start = torch.maximum(part, pixel)
    return (end - start).clamp_(min=0).double()
