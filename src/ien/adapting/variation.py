"""Small random changes to images, after which an upright image is still upright."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..groups.group import Group
from ..groups.similarity import Similarity

__all__ = ["has_flips", "mixed", "varied"]

SMALLEST_CROP = 0.6
"""Random crops keep at least this share of each side."""


def varied(x: Tensor, may_mirror: bool, draws: torch.Generator) -> Tensor:
    """Crop images (B, C, H, W), mirror them left to right, change contrast, brightness and colour.

    Args:
        x: The images; the result has their size.
        may_mirror: Whether some are mirrored.
        draws: Source of randomness, on the CPU.
    """
    count = len(x)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, generator=draws).to(x)  # (B,)

    width = uniform(SMALLEST_CROP, 1.0)
    height = (width * uniform(0.8, 1.25)).clamp(max=1.0)
    corner = x.new_zeros(count, 2, 3)  # of each image: where its crop lies, in units of half a side
    corner[:, 0, 0] = width
    corner[:, 1, 1] = height
    corner[:, 0, 2] = uniform(-1, 1) * (1 - width)
    corner[:, 1, 2] = uniform(-1, 1) * (1 - height)
    if may_mirror:
        corner[:, 0, 0] *= uniform(-1, 1).sign()
    grid = F.affine_grid(corner, list(x.shape), align_corners=False)  # (B, H, W, 2)
    x = F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)  # (B, C, H, W)
    mean = x.mean((1, 2, 3), keepdim=True)  # (B, 1, 1, 1)
    contrast = uniform(0.6, 1.4).view(-1, 1, 1, 1)
    brightness = uniform(0.7, 1.3).view(-1, 1, 1, 1)
    x = contrast * (x - mean) + brightness * mean
    grey = (uniform(0, 1) < 0.2).view(-1, 1, 1, 1)
    return torch.where(grey, x.mean(1, keepdim=True), x)


def mixed(x: Tensor, share: float, draws: torch.Generator) -> Tensor:
    """Lay other images of the batch (B, C, H, W) over a share of its images.

    x′_i  =  w_i x_i + (1 - w_i) x_j,   w_i uniform in [0, 1], and 1 for all others

    Args:
        x: The images.
        share: How many of them are mixed, from 0 to 1.
        draws: Source of randomness, on the CPU.
    """
    if share == 0:
        return x
    count = len(x)
    partner = torch.randperm(count, generator=draws)
    weight = torch.rand(count, generator=draws)  # (B,)
    chosen = torch.rand(count, generator=draws) < share
    weight = torch.where(chosen, weight, 1.0).view(-1, 1, 1, 1).to(x)
    return weight * x + (1 - weight) * x[partner]


def has_flips(group: Group) -> bool:
    """Whether the group tells an image from its mirror image."""
    for element in group.elements:
        for step in element:
            if isinstance(step, Similarity) and step.flip:
                return True
    return False
