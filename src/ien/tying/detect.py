"""Detection: the feature groups that maps rotate in, as a pure function of maps.

A model runs on a batch of *views*: all images under element 0 (the identity), then all of them
under element 1, and so on (:func:`views_of`). Let h be a layer's maps of these views. They rotate
in given feature groups if, for every element g,

    h(g·x) = ρ(g) h(x),

where ρ(g) permutes the members of the feature groups, turns vectors, and rotates pixels. Quarter
turns and flips are checked to rounding; elements between them resample, and are only measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from ..groups.group import Group
from ..groups.members import Blocks, channel_table
from ..loss.error import full_precision
from .projection import VECTOR

__all__ = ["Found", "errors_in", "feature_groups_of", "layouts", "swaps_sides", "views_of"]

TOLERANCE = 1e-4
"""Relative errors below this are rounding, also with TF32: an inexact grid costs far more."""
MIN_CHANGE = 1e-3
"""Images that change by less than this share of their variance under all elements look the same."""
MIN_ROUNDING = 1e-6
"""The variance that rounding may cause in a channel, as a share of the mean square of all."""
TF32_EPS = 2**-11
"""The rounding of convolutions on a GPU that uses TF32."""


class Found(NamedTuple):
    """How well maps rotate in feature groups."""

    fits: bool
    """Whether all channels rotate in them, up to rounding."""
    errors: dict[str, float]
    """The relative error under each element but the identity, by its label."""
    exact: float
    """The largest of them under quarter turns and flips."""
    between: float | None
    """Their mean under all other elements, which resample."""


def views_of(x: Tensor, group: Group) -> Tensor:
    """Return images (B, C, H, W) under all elements, identity first: (elements * B, C, H, W)."""
    views = []
    for i in range(len(group)):
        views.append(group.act(x, _element(i, len(x))))  # (B, C, H, W)
    changes = [float((view - x).square().mean()) for view in views]
    if max(changes) <= MIN_CHANGE * float(x.var(unbiased=False)):
        raise ValueError(
            f"images are almost invariant to {group}, so nothing can be detected from them: "
            f"pass real images, or torch.rand{tuple(x.shape)}"
        )
    return torch.cat(views)  # (elements * B, C, H, W)


def layouts(x: Tensor) -> list[Tensor]:
    """Return ``x`` as maps (B, C, H, W), read with channels first and then with channels last.

    A vector (B, C) is a map of one pixel, and numbers (B,) are vectors with one channel.
    """
    if x.ndim in (1, 2):
        return [x.reshape(len(x), -1, 1, 1)]  # (B, C, 1, 1)
    if x.ndim == 4:
        return [x, x.movedim(3, 1)]  # (B, C, H, W) both
    return []


def swaps_sides(group: Group) -> bool:
    """Return whether some element turns rows into columns, as quarter turns do and flips do not."""
    return bool(group.matrices[:, 0, 1].any())


def feature_groups_of(h: Tensor, group: Group, sizes: Iterable[int]) -> Blocks | None:
    """Return feature groups of the first of these sizes in which maps of views rotate, or None.

    >>> x = views_of(torch.rand(2, 4, 5, 5), rotation(4))
    >>> feature_groups_of(x, rotation(4), [4, 1])
    ((1, 4),)
    """
    for size in sizes:
        blocks = ((size, h.shape[1]),)
        if h.shape[1] % size == 0 and errors_in(h, group, blocks).fits:
            return blocks
    return None


def errors_in(h: Tensor, group: Group, blocks: Blocks) -> Found:
    """Return how well maps of views rotate in these feature groups.

    They fit if the errors of each channel are rounding beside its own variance. The errors that are
    returned are relative to the variance of all channels together, as everywhere else.

    Args:
        h: The maps (elements * B, C, H, W).
        group: Rotations and flips.
        blocks: Their feature groups.
    """
    if len(h) % len(group) or (h.shape[2] != h.shape[3] and swaps_sides(group)):
        return Found(False, {}, math.nan, None)  # no maps of views, or none that can rotate
    variances = _channel_variances(h)  # (C,)
    means = full_precision(h).mean((0, 2, 3))  # (C,)
    # of all values: within channels, and between them
    variance = variances.mean() + means.var(unbiased=False)
    squares = _squares(h, group, blocks)  # (elements, C)
    errors = (squares.mean(1) / variance).cpu()  # (elements,)
    exact = torch.tensor(group.exact, device="cpu")  # (elements,)
    fits = bool((squares[exact] / variances < TOLERANCE).all())
    between = None
    if not exact.all():
        between = float(errors[~exact].nanmean())
    by_label = dict(zip(group.labels[1:], errors[1:].tolist(), strict=True))
    return Found(fits, by_label, float(errors[exact].max()), between)


def _squares(h: Tensor, group: Group, blocks: Blocks) -> Tensor:
    """Return the mean of ( h(g·x) - ρ(g) h(x) )² over valid pixels, (elements, C)."""
    original, *others = full_precision(h).chunk(len(group))  # (B, C, H, W) each
    squares = original.new_zeros(len(group), h.shape[1])
    for i, other in enumerate(others, 1):
        acted = _act_on_channels(original, group, blocks, i)
        element = _element(i, len(acted))
        difference = other - group.act_on_features(acted, element)  # (B, C, H, W)
        valid = group.valid(difference, element)  # (B, 1, H, W)
        if valid is None:
            squares[i] = _mean_square(difference)
        else:
            squares[i] = _mean_square(difference * valid) / valid.to(h.dtype).mean()
    return squares


def _act_on_channels(h: Tensor, group: Group, blocks: Blocks, i: int) -> Tensor:
    """Return maps (B, C, H, W) with members permuted and vectors turned by element ``i``."""
    parts = []
    for part, (size, channels) in zip(h.split([count for _, count in blocks], 1), blocks, strict=True):
        if size == VECTOR:
            # dy points down, and the y of matrices up
            matrix = group.matrices[i] * torch.tensor([[1, -1], [-1, 1]], device="cpu")
            matrix = matrix.to(h.dtype).to(h.device)  # in this order: MPS has no float64
            vectors = part.unflatten(1, (-1, 2))  # (B, vectors, 2, H, W)
            part = torch.einsum("ij,bvjhw->bvihw", matrix, vectors).flatten(1, 2)  # (B, C, H, W)
        elif size > 1:
            part = part[:, channel_table(group, [(size, channels)])[i].to(h.device)]  # (B, C, H, W)
        parts.append(part)
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts, 1)  # (B, C, H, W)


def _element(i: int, count: int) -> Tensor:
    return torch.full((count,), i, device="cpu")


def _channel_variances(h: Tensor) -> Tensor:
    """Return the variance of each channel, (C,), plus enough to make rounding small beside it."""
    eps = torch.finfo(h.dtype).eps
    if h.is_cuda:
        eps = max(eps, TF32_EPS)
    h = full_precision(h)
    squares = _mean_square(h)  # (C,)
    variance = (squares - h.mean((0, 2, 3)).square()).clamp(min=0)  # (C,)
    rounding = max(MIN_ROUNDING, eps**2 / TOLERANCE) * squares.mean()
    tiny = torch.finfo(h.dtype).tiny  # for maps of zeros
    return variance + rounding + tiny


def _mean_square(h: Tensor) -> Tensor:
    """Return the mean square of each channel, (C,), by a norm, which is much faster."""
    count = h.numel() // h.shape[1]
    return torch.linalg.vector_norm(h, dim=(0, 2, 3)).square() / count
