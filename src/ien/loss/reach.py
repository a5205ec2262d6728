"""Reach: the error that resampling alone causes, and targets so far below it that none gets there.

An element g that resamples, such as 45°, cannot be undone on a pixel grid. The *floor* of a layer
is what this costs on its own maps h, as a share of their variance:

    floor of g  =  mean of ( g⁻¹·(g·h) - h )²  /  var(h)

Training lowers it, by making maps smooth, but only so far.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import torch
from torch import Tensor

from ..groups.group import Group
from ..groups.similarity import Similarity, resample, valid_pixels
from .error import MIN_VARIANCE, full_precision

__all__ = ["check_reachable", "out_of_reach", "resampling_errors"]

MAX_FLOOR_SCALE = Fraction(6, 5)
"""Larger factors are replaced by this one. The way back from them would hit the original pixels
again, as if resampling cost nothing; one way, it costs about the same at every factor above 1."""
LARGEST_FALL = 40
"""How far training lowered a floor at most in our trials: cnn6 under rot8."""
MAX_FALL = 100
"""How far we take it that training can lower one: targets below that share of it are refused."""
MAX_IMAGES = 32
"""Of a batch, to compute floors from: a hundredth of a floor need not be known more closely."""


def check_reachable(name: str, h: Tensor, group: Group, target: float) -> None:
    """Raise a ValueError if resampling alone puts a target out of reach.

    It reads a number for each layer and group, so on a GPU the first call with a target waits.
    Quarter turns and flips count as 0 here, though odd strides may give them a floor too, which
    only :func:`ien.measure` finds. So do custom transformations, whose floor nobody knows.

    Args:
        name: The layer.
        h: What is compared of it, for images as they are, (B, N, H, W).
        group: The transformations.
        target: The relative error wanted.
    """
    if type(h) is not Tensor:
        return  # it has a shape and no numbers, as under FakeTensorMode
    h = full_precision(h.detach()[:MAX_IMAGES])
    variance = h.var(unbiased=False).clamp(min=MIN_VARIANCE)
    total = 0.0
    for steps, exact in zip(group.elements, group.exact, strict=True):
        if exact or len(steps) != 1 or not isinstance(steps[0], Similarity):
            continue
        error = float(resampling_errors(h, steps[0]).mean() / variance)
        if math.isfinite(error):  # NaN if no pixel is left, or a layer returned NaN
            total += error
    floor = total / max(len(group) - 1, 1)  # the mean over all elements but the identity
    problem = out_of_reach(target, floor, name, (h.shape[2], h.shape[3]), group)
    if problem:
        raise ValueError(problem)


def out_of_reach(target: float, floor: float, name: str, size: tuple[int, int], group: Group) -> str:
    """Say why no training brings an error down to its target; empty if it may.

    Args:
        target: The relative error wanted.
        floor: The floor of the layer.
        name: The layer.
        size: Height and width of its maps.
        group: The transformations.
    """
    if not target < floor / MAX_FALL:  # a floor of NaN is not known
        return ""
    height, width = size
    return (
        f"target {target:g} is out of reach: the grid of the {height}×{width} map of layer {name!r} alone "
        f"causes an error of {floor:.2g} under {group}, its floor, which training lowered "
        f"{LARGEST_FALL}-fold at most in our trials; choose a target nearer to {floor:.2g}"
    )


@torch.no_grad()
def resampling_errors(h: Tensor, similarity: Similarity) -> Tensor:
    """Return what it costs each image to transform its map and transform it back.

    The mean of (g⁻¹·(g·h) - h)² over channels and over the pixels that are valid after both steps.

    Args:
        h: Maps (B, C, H, W).
        similarity: The element g, one that resamples.

    Returns:
        Errors (B,); NaN if the map is too small to have a valid pixel besides its centre.
    """
    h = full_precision(h)
    batch, _, height, width = h.shape
    step = replace(similarity, scale=min(similarity.scale, MAX_FLOOR_SCALE))
    there = resample(h, [step], [batch])
    back = resample(there, [step.inverse], [batch])
    squares = (back - h).square()

    valid = valid_pixels((step, step.inverse), height, width, h.device)
    if valid is not None:
        mask = valid[0]
        if mask.sum() == 1:
            # the centre does not move, so alone it says nothing about the cost of resampling
            mask = torch.zeros_like(mask)
        squares = squares[:, :, mask]  # (B, C, valid pixels)
    return squares.flatten(1).mean(1)  # (B,): NaN without pixels
