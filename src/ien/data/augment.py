"""Augment: images and what was drawn for each of them in, changed images out; nothing here is random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from ..groups.similarity import Mode

__all__ = ["cutout", "mirror", "rescale", "rotate", "shift", "turn_and_scale"]


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Each image (N, C, H, W) turned counter-clockwise by its own angle (N,), bilinear, filled with zeros.

    Any real angle; for the elements of a group, exact where that can be, use :func:`ien.rotation`.

    >>> rotate(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), torch.tensor([90.0])).round(decimals=4)
    tensor([[[[2., 4.],
              [1., 3.]]]])
    """
    _check("rotate", images, degrees, "an angle")
    return turn_and_scale(images, degrees, torch.ones(len(images)), "bilinear")


def rescale(images: Tensor, factors: Tensor, mode: Mode = "bicubic") -> Tensor:
    """Each image (N, C, H, W) in [0, 1] scaled about its centre by its own factor (N,), filled with zeros.

    The size of the image stays: below 1 a border is filled, above 1 one is lost. Nothing is smoothed before
    an image shrinks. What bicubic interpolation overshoots is cut off at 0 and 1, as in a picture of bytes.

    >>> rescale(torch.ones(1, 1, 1, 4), torch.tensor([0.5]), "bilinear")
    tensor([[[[0., 1., 1., 0.]]]])
    """
    _check("rescale", images, factors, "a factor")
    scaled = turn_and_scale(images, torch.zeros(len(images)), factors, mode)
    return scaled.clamp_(0, 1) if mode == "bicubic" else scaled


def turn_and_scale(images: Tensor, degrees: Tensor, factors: Tensor, mode: Mode = "bicubic") -> Tensor:
    """Each image (N, C, H, W) turned by its own angle (N,) and scaled by its own factor (N,), in one step.

    About the centre, with zeros from outside. Bicubic is that of torch and of ``ien.scale``: Keys' kernel
    with a = -0.75. It may leave the range of the image.
    """
    _check("turn_and_scale", images, degrees, "an angle")
    _check("turn_and_scale", images, factors, "a factor")
    if mode not in get_args(Mode):
        raise ValueError(f"mode is {', '.join(get_args(Mode)[:-1])} or {get_args(Mode)[-1]}; got {mode!r}")
    angle, factor = (values.to("cpu", torch.float64) for values in (degrees, factors))  # not on every device
    if not bool((factor.isfinite() & (factor > 0)).all()):
        wrong = factor[~(factor.isfinite() & (factor > 0))][0]
        raise ValueError(f"factors must be positive and finite, 0.5 to halve; got {float(wrong):g}")
    if images.numel() == 0:
        return images.clone()
    dtype = images.dtype if images.dtype == torch.float64 else torch.float32
    cos, sin = angle.deg2rad().cos() / factor, angle.deg2rad().sin() / factor
    zero = torch.zeros_like(angle)
    height, width = images.shape[-2:]
    # from a pixel of the result to where it is read, in sides of length 2 and rows that count downwards
    first = torch.stack([cos, -sin * height / width, zero], dim=1)
    second = torch.stack([sin * width / height, cos, zero], dim=1)
    matrix = torch.stack([first, second], dim=1).to(images.device, dtype)  # (N, 2, 3)
    grid = F.affine_grid(matrix, list(images.shape), align_corners=False)
    return F.grid_sample(images.to(dtype), grid, mode=mode, align_corners=False).to(images.dtype)


def shift(images: Tensor, offsets: Tensor) -> Tensor:
    """Each image (N, C, H, W) moved by whole pixels (N, 2), down and to the right, filled with zeros.

    With offsets drawn from -12 to 12 this is a random crop of the image with 12 pixels of zeros around it.

    >>> shift(torch.tensor([[[[1, 2], [3, 4]]]]), torch.tensor([[1, -1]]))
    tensor([[[[0, 0],
              [2, 0]]]])
    """
    _check_pixels("shift", images, offsets, "an offset")
    if images.numel() == 0:
        return images.clone()
    limit = torch.tensor(images.shape[-2:], device=offsets.device)
    # further than its own size an image is gone
    down, right = torch.minimum(torch.maximum(offsets, -limit), limit).to(images.device).unbind(1)
    most, furthest = int(down.abs().max()), int(right.abs().max())
    padded = F.pad(images, (furthest, furthest, most, most))
    crops = padded.unfold(2, images.shape[2], 1).unfold(3, images.shape[3], 1)  # (N, C, rows, columns, H, W)
    return crops[torch.arange(len(images), device=images.device), :, most - down, furthest - right]


def mirror(images: Tensor, flags: Tensor) -> Tensor:
    """The images (N, C, H, W) whose flag (N,) is true mirrored left to right, the others as they are.

    >>> mirror(torch.tensor([[[[1, 2]]], [[[3, 4]]]]), torch.tensor([True, False])).flatten()
    tensor([2, 1, 3, 4])
    """
    if images.ndim != 4 or flags.dtype != torch.bool or flags.shape != images.shape[:1]:
        raise ValueError(
            f"mirror needs images (N, C, H, W) and true or false for each (N,); "
            f"got {tuple(images.shape)} and {flags.dtype} {tuple(flags.shape)}"
        )
    return torch.where(flags.to(images.device).view(-1, 1, 1, 1), images.flip(3), images)


def cutout(images: Tensor, centres: Tensor, size: int, fill: float | Sequence[float] | Tensor) -> Tensor:
    """Each image (N, C, H, W) with a square of ``size`` pixels around its own pixel (N, 2) filled.

    A centre is a row and a column. The square reaches ``size // 2`` pixels up and left of it, and ends at the
    border of the image. ``fill`` is one value, or one for each channel: the mean of the data, where the
    published order is to normalise first and then to fill with zeros.

    >>> cutout(torch.ones(1, 1, 3, 4), torch.tensor([[0, 2]]), 2, 0.5)
    tensor([[[[1.0000, 0.5000, 0.5000, 1.0000],
              [1.0000, 1.0000, 1.0000, 1.0000],
              [1.0000, 1.0000, 1.0000, 1.0000]]]])
    """
    _check_pixels("cutout", images, centres, "a pixel")
    colour = torch.as_tensor(fill, dtype=images.dtype, device=images.device).flatten()
    if len(colour) not in (1, images.shape[1]):
        raise ValueError(
            f"fill is one value or one for each of {images.shape[1]} channels; got {len(colour)}"
        )
    if size < 1:
        raise ValueError(f"the square needs a size of at least 1 pixel; got {size}")
    first = centres.to(images.device) - size // 2
    row, column = (
        (place >= start[:, None]) & (place < start[:, None] + size)  # (N, side)
        for start, place in zip(
            first.unbind(1), (torch.arange(n, device=images.device) for n in images.shape[-2:]), strict=True
        )
    )
    inside = row[:, None, :, None] & column[:, None, None, :]  # (N, 1, H, W)
    return torch.where(inside, colour.view(1, -1, 1, 1), images)


def _check(name: str, images: Tensor, values: Tensor, what: str) -> None:
    if images.ndim != 4 or not images.is_floating_point() or values.shape != images.shape[:1]:
        raise ValueError(
            f"{name} needs floating-point images (N, C, H, W) and {what} for each (N,); "
            f"got {images.dtype} {tuple(images.shape)} and {what.split()[-1]}s {tuple(values.shape)}"
        )


def _check_pixels(name: str, images: Tensor, values: Tensor, what: str) -> None:
    whole = not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)
    if images.ndim != 4 or not whole or values.shape != (*images.shape[:1], 2):
        raise ValueError(
            f"{name} needs images (N, C, H, W) and {what} for each in whole rows and columns (N, 2); "
            f"got {tuple(images.shape)} and {values.dtype} {tuple(values.shape)}"
        )
