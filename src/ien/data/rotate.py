"""Rotate: from images and an angle for each to rotated images, in one batched resampling."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["rotate"]


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Each image (N, C, H, W) turned counter-clockwise by its own angle (N,), bilinear, filled with zeros.

    Any real angle; for the elements of a group, exact where that can be, use :func:`ien.rotation`.

    >>> rotate(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), torch.tensor([90.0])).round(decimals=4)
    tensor([[[[2., 4.],
              [1., 3.]]]])
    """
    if images.ndim != 4 or not images.is_floating_point() or degrees.shape != images.shape[:1]:
        raise ValueError(
            f"rotate needs floating-point images (N, C, H, W) and an angle for each (N,); "
            f"got {images.dtype} {tuple(images.shape)} and angles {tuple(degrees.shape)}"
        )
    if len(images) == 0:
        return images.clone()
    dtype = images.dtype if images.dtype == torch.float64 else torch.float32
    angle = degrees.to("cpu", torch.float64).deg2rad()  # some devices have no float64
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    height, width = images.shape[-2:]
    # from a pixel of the result to where it is read, in sides of length 2 and rows that count downwards
    first = torch.stack([cos, -sin * height / width, zero], dim=1)
    second = torch.stack([sin * width / height, cos, zero], dim=1)
    matrix = torch.stack([first, second], dim=1).to(images.device, dtype)  # (N, 2, 3)
    grid = F.affine_grid(matrix, list(images.shape), align_corners=False)
    return F.grid_sample(images.to(dtype), grid, align_corners=False).to(images.dtype)
