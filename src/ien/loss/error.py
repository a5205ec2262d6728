"""How far the maps of a transformed image are from the transformed maps of the image.

    error of an image  =  mean over valid pixels and channels of ( ĥ(φ_g x) - φ_g ĥ(x) )²   (Eq. 6)

Pixels that an element brings in from outside the map are not valid, and do not count; with
``corners=True`` they do, as zeros. ĥ are pooled maps; with ``action="regular"`` they are all maps,
and φ_g permutes the members as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, distributed

from .._text import type_name
from ..groups.acting import is_traced
from ..groups.group import Group
from ..groups.members import FeatureAction, permute_members
from .feature_groups import FeatureGroups, pool_layer

__all__ = [
    "MIN_VARIANCE",
    "Interpolation",
    "check_finite_images",
    "check_interpolation",
    "check_pixels",
    "compared_maps",
    "full_precision",
    "image_errors",
    "mean_error",
]

MIN_VARIANCE = 1e-12
"""Constant maps have no variance to divide by."""
MAX_LISTED_IMAGES = 5
"""How many images that are not finite an error names."""
Interpolation = Literal["bilinear", "nearest"]
"""The modes of ``Group.act`` whose valid pixels are known; bicubic reads further than they say."""


def check_interpolation(interpolation: str) -> None:
    """Raise a ValueError if maps cannot be compared with this interpolation."""
    if interpolation not in get_args(Interpolation):
        raise ValueError(
            f"interpolation must be {' or '.join(get_args(Interpolation))}; got {interpolation!r}"
        )


def compared_maps(name: str, h: Tensor, feature_groups: FeatureGroups, action: FeatureAction) -> Tensor:
    """Return what is compared of a layer, pooled or all maps, with errors that name it."""
    if action == "pooled":
        return pool_layer(name, h, feature_groups)
    try:
        feature_groups.blocks(h.shape[1])  # raises if the channels cannot be split
    except ValueError as error:
        raise ValueError(f"layer {name!r}: {error}") from None
    return h


def mean_error(
    h: Tensor,
    h_g: Tensor,
    group: Group,
    g: Tensor,
    permuted: FeatureGroups | None = None,
    normalize: bool = False,
    layer: str = "this layer",
    interpolation: Interpolation = "bilinear",
    corners: bool = False,
) -> Tensor:
    """Average :func:`image_errors` over a batch, and divide by var(h) if ``normalize``.

    Args:
        h: Maps of the images, (B, N, H, W).
        h_g: Maps of ``group.act(images, g)``, of the same shape.
        group: The transformations.
        g: Element indices (B,).
        permuted: Feature groups whose members each element permutes as well; None for pooled maps.
        normalize: Divide by the variance of ``h``: the relative error.
        layer: How error messages name the layer.
        interpolation: How elements that resample transform ``h``.
        corners: Count every pixel, also those brought in from outside the map, which are 0.

    Returns:
        A scalar, with gradient.
    """
    for maps in (h, h_g):
        if not isinstance(maps, Tensor):
            raise TypeError(f"h and h_g must be tensors (B, N, H, W); got {type_name(maps)}")
    if len(h) == 0:
        raise ValueError(f"h holds no images: its shape is {tuple(h.shape)}")
    if h.shape != h_g.shape or h.ndim != 4:
        raise ValueError(
            f"h and h_g must be (B, N, H, W) maps of one shape; got {tuple(h.shape)} and {tuple(h_g.shape)}"
        )
    if not is_traced():
        g = group._indices(h, g)
    variance = None
    if normalize:
        # before the error: the order in the graph decides how gradients add up, to the last bit
        variance = full_precision(h).var(unbiased=False).clamp(min=MIN_VARIANCE)

    drawn: list[int] = []
    if corners:
        every_pixel = True
    elif is_traced():  # which elements are drawn is not known
        every_pixel = not group._resamples
    else:
        drawn = sorted(set(g.tolist()))
        coverage = group.coverage((h.shape[2], h.shape[3]))
        every_pixel = all(coverage[i] == 1 for i in drawn)
    if every_pixel:
        # one mean over the whole batch
        error = F.mse_loss(full_precision(h_g), _transformed(h, group, g, permuted, interpolation))
    else:
        if not is_traced():
            check_pixels(h, group, drawn, layer)
        error = image_errors(h, h_g, group, g, permuted, interpolation).mean()
    if variance is None:
        return error
    return error / variance


def image_errors(
    h: Tensor,
    h_g: Tensor,
    group: Group,
    g: Tensor,
    permuted: FeatureGroups | None = None,
    interpolation: Interpolation = "bilinear",
) -> Tensor:
    """Compute each image's mean of ( h_g - φ_g h )² over its valid pixels and channels.

    Args:
        h: Maps of the images, (B, N, H, W).
        h_g: Maps of the transformed images, of the same shape.
        group: The transformations.
        g: Element indices (B,).
        permuted: Feature groups whose members each element permutes as well; None for pooled maps.
        interpolation: How elements that resample transform ``h``. The valid pixels are the same:
            the nearest neighbour of a pixel is one of its bilinear neighbours.

    Returns:
        One error for each image, (B,); NaN for an image without a valid pixel.
    """
    moved = _transformed(h, group, g, permuted, interpolation)
    squares = (full_precision(h_g) - moved).square()  # (B, N, H, W)
    valid = group.valid(h, g)  # (B, 1, H, W)
    if valid is None:
        return squares.mean((1, 2, 3))
    total = squares.masked_fill(~valid, 0).sum((1, 2, 3))  # (B,)
    count = valid.sum((1, 2, 3)) * h.shape[1]  # (B,)
    return total / count


def check_pixels(h: Tensor, group: Group, elements: Iterable[int], layer: str) -> None:
    """Raise a ValueError if an element leaves no valid pixel on the maps ``h`` of a layer."""
    height, width = h.shape[2:]
    coverage = group.coverage((height, width))
    empty = [group.labels[i] for i in elements if coverage[i] == 0]
    if empty:
        raise ValueError(
            f"no valid pixel is left to compare for {group} {', '.join(empty)} on the {height}×{width} map "
            f"of {layer}: use larger maps or a milder group, or leave the layer out"
        )


def check_finite_images(x: Tensor, terms: list[Tensor]) -> None:
    """Raise a ValueError if terms are not finite because the images are not.

    It looks at the terms, a few numbers, and at the images only if one of these is NaN or infinite.
    On a GPU it does nothing: reading a number there would wait for every kernel before it, in each
    step. Weights that have diverged are left to the training loop, and half precision that
    overflows to a GradScaler.
    """
    if not terms or torch.compiler.is_compiling() or any(term.device.type != "cpu" for term in terms):
        return
    if distributed.is_available() and distributed.is_initialized():
        return  # the other processes would wait for this one
    if math.isfinite(sum(term.item() for term in terms)):
        return
    finite = torch.isfinite(x.detach()).flatten(1).all(1)  # (B,)
    if not finite.all():
        places = [str(i) for i in (~finite).nonzero().flatten().tolist()]
        listed = ", ".join(places[:MAX_LISTED_IMAGES])
        if len(places) > MAX_LISTED_IMAGES:
            listed += ", …"
        raise ValueError(
            f"{len(places)} of {len(x)} images hold NaN or infinity, so the loss would be NaN: mend or drop "
            f"x[{listed}]"
        )


def full_precision(h: Tensor) -> Tensor:
    """Return half-precision maps in float32, others as they are."""
    return h.float() if h.dtype in (torch.float16, torch.bfloat16) else h


def _transformed(
    h: Tensor, group: Group, g: Tensor, permuted: FeatureGroups | None, interpolation: Interpolation
) -> Tensor:
    """φ_g h: the maps rotated, flipped or scaled, and their members permuted; in full precision."""
    if permuted is not None:
        h = permute_members(h, g, group, permuted.blocks(h.shape[1]))
    return group.act_on_features(full_precision(h), g, mode=interpolation)
