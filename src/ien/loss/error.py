"""Comparison: from maps of images and of their transformed copies to how far these are from each other."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from ..groups.group import Group
from ..groups.members import FeatureAction, permute
from .feature_groups import FeatureGroups, pool_layer

__all__ = [
    "OnEmpty",
    "check_on_empty",
    "check_pixels",
    "compared_maps",
    "full_precision",
    "image_errors",
    "mean_error",
]

OnEmpty = Literal["error", "skip"]


def compared_maps(name: str, h: Tensor, feature_groups: FeatureGroups, action: FeatureAction) -> Tensor:
    """What is compared of a layer: its pooled maps, or all of them. Errors name the layer."""
    if action == "pooled":
        return pool_layer(name, h, feature_groups)
    try:
        feature_groups.blocks(h.shape[1])
    except ValueError as error:
        raise ValueError(f"layer {name!r}: {error}") from None
    return h


def mean_error(
    h: Tensor,
    h_g: Tensor,
    group: Group,
    g: Tensor,
    normalize: bool,
    on_empty: OnEmpty,
    layer: str,
    permuted: FeatureGroups | None,
) -> tuple[Tensor, int]:
    """The mean of :func:`image_errors`, over the variance of ``h`` if asked for, and of how many images."""
    if len(h) == 0:
        raise ValueError(f"h holds no images: its shape is {tuple(h.shape)}")
    if h.shape != h_g.shape or h.ndim != 4:
        raise ValueError(
            f"h and h_g must be (B, N, H, W) maps of one shape; got {tuple(h.shape)} and {tuple(h_g.shape)}"
        )
    g = group._indices(h, g)
    variance = full_precision(h).var(unbiased=False).clamp(min=1e-12) if normalize else 1
    coverage, drawn = group.coverage((h.shape[2], h.shape[3])), sorted(set(g.tolist()))
    if all(coverage[i] == 1 for i in drawn):
        return nn.functional.mse_loss(full_precision(h_g), _aligned(h, group, g, permuted)) / variance, len(h)
    if on_empty == "error":
        check_pixels(h, group, drawn, layer)
    elif empty := [i for i in drawn if coverage[i] == 0]:
        where = _where(h, group, empty, layer)
        warnings.warn(
            f"no valid pixel is left for {where}: these images are left out of the loss", stacklevel=3
        )
        kept = torch.tensor(
            [k for k, i in enumerate(g.tolist()) if i not in empty], dtype=torch.int64, device="cpu"
        )
        if len(kept) == 0:
            return h_g.sum() * 0, 0
        h, h_g, g = h[kept.to(h.device)], h_g[kept.to(h.device)], g[kept]
    return image_errors(h, h_g, group, g, permuted).mean() / variance, len(h)


def image_errors(
    h: Tensor, h_g: Tensor, group: Group, g: Tensor, permuted: FeatureGroups | None = None
) -> Tensor:
    """Each image's mean of ``(h_g - g·h)²`` over its valid pixels and channels, (B,); NaN without any.

    The members of the feature groups ``permuted`` are permuted by ``g``.
    """
    valid = group.valid(h, g)
    squares = (full_precision(h_g) - _aligned(h, group, g, permuted)).square()
    if valid is None:
        return squares.mean((1, 2, 3))
    return squares.masked_fill(~valid, 0).sum((1, 2, 3)) / (valid.sum((1, 2, 3)) * h.shape[1])


def check_pixels(h: Tensor, group: Group, elements: Iterable[int], layer: str) -> None:
    """An error if one of the elements leaves no valid pixel on the maps ``h`` of a layer."""
    coverage = group.coverage((h.shape[2], h.shape[3]))
    if empty := [i for i in elements if coverage[i] == 0]:
        raise ValueError(
            f"no valid pixel is left to compare for {_where(h, group, empty, layer)}: use larger maps or a "
            f'milder group, leave the layer out, or pass on_empty="skip" to leave these images out'
        )


def check_on_empty(on_empty: str) -> None:
    """An error if there is no such way to treat images without a valid pixel."""
    if on_empty not in get_args(OnEmpty):
        raise ValueError(f'on_empty is "error" or "skip"; got {on_empty!r}')


def full_precision(h: Tensor) -> Tensor:
    return h.float() if h.dtype in (torch.float16, torch.bfloat16) else h


def _aligned(h: Tensor, group: Group, g: Tensor, permuted: FeatureGroups | None) -> Tensor:
    """``g·h``, in full precision."""
    h = h if permuted is None else permute(h, g, group, permuted)
    return group.act_on_features(full_precision(h), g)


def _where(h: Tensor, group: Group, elements: Iterable[int], layer: str) -> str:
    labels = ", ".join(group.labels[i] for i in elements)
    return f"{group} {labels} on the {h.shape[2]}×{h.shape[3]} map of {layer}"
