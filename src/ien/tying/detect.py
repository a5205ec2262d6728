"""Detection: the feature groups that maps rotate in, as a pure function of maps.

A model runs on a batch of *views*: all images under element 0 (the identity), then all of them
under element 1, and so on (:func:`views_of`). Let h be a layer's maps of these views. They rotate
in given feature groups if, for every element g,

    h(g·x) = ρ(g) h(x),

where ρ(g) permutes the members of the feature groups and rotates pixels. Quarter turns and flips
are checked to rounding; elements between them resample, and only help to choose among sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..groups.group import Group
from ..groups.members import Blocks, channel_table, regular_sizes
from ..loss.error import full_precision, image_errors

__all__ = [
    "Found",
    "comparable",
    "feature_groups_of",
    "relative_error",
    "rotates_in",
    "swaps_sides",
    "views_of",
]

TOLERANCE = 1e-4
"""Relative errors below this are rounding, also with TF32: an inexact grid costs far more."""
MIN_CHANGE = 1e-3
"""Images that change by less than this share of their variance under all elements look the same."""
MIN_ROUNDING = 1e-6
"""The variance that rounding may cause in a channel, as a share of the mean square of all."""
TF32_EPS = 2**-11
"""The rounding of convolutions on a GPU that uses TF32."""


class Found(NamedTuple):
    """Feature groups that maps rotate in, and how well."""

    blocks: Blocks
    exact: float
    """The largest relative error under quarter turns and flips."""
    between: float | None
    """The mean relative error under all other elements, which resample."""


def views_of(x: Tensor, group: Group) -> Tensor:
    """Return images (B, C, H, W) under all elements, identity first: (elements * B, C, H, W)."""
    views = []
    changes = False
    for i in range(len(group)):
        view = group.act(x, _element(i, len(x)))  # (B, C, H, W)
        views.append(view)
        change = (view - x).square().mean()
        if change > MIN_CHANGE * x.var(unbiased=False):
            changes = True
    if not changes:
        raise ValueError(
            f"input is almost invariant to {group}, so nothing can be detected from it: "
            f"pass real images, or torch.rand{tuple(x.shape)}"
        )
    return torch.cat(views)  # (elements * B, C, H, W)


def feature_groups_of(h: Tensor, group: Group, candidates: Sequence[Blocks]) -> Found | None:
    """Return the feature groups that maps of views (elements * B, C, H, W) rotate in, or None.

    1. If all elements are exact, the first of the candidates that fits.
    2. Otherwise the candidate with the smallest error under elements that resample: quarter turns
       alone cannot tell some sizes apart, such as 2 and 1 under rot8.
    3. If no candidate fits, a mix of sizes read off channel by channel, as in concatenated maps.

    >>> x = views_of(torch.rand(2, 3, 5, 5), rotation(4))
    >>> feature_groups_of(x, rotation(4), [[(1, 3)]])
    Found(blocks=[(1, 3)], exact=0.0, between=None)
    """
    if not comparable(h, group):
        return None
    variances = _channel_variances(h)
    best = None
    for blocks in candidates:
        found = _judge(h, group, blocks, variances)
        if found is None:
            continue
        if all(group.exact):
            return found
        if best is None or _rank(found) < _rank(best):
            best = found
    return best or _read_off(h, group, variances)


def rotates_in(h: Tensor, group: Group, blocks: Blocks) -> Found | None:
    """Return how well maps of views rotate in these feature groups; None if they do not."""
    if not comparable(h, group):
        return None
    return _judge(h, group, blocks, _channel_variances(h))


def relative_error(h: Tensor, group: Group, candidates: Sequence[Blocks]) -> float:
    """Return how far maps are from rotating in any of the candidates; NaN if nothing compares."""
    if not comparable(h, group):
        return float("nan")
    variances = _channel_variances(h)
    errors = []
    for blocks in candidates:
        relative = _exact_errors(h, group, blocks) / variances  # (exact elements, C)
        errors.append(float(relative.max()))
    return min(errors)  # NaN if the maps have NaN: a running minimum from infinity would hide it


def comparable(h: Tensor, group: Group) -> bool:
    """Return whether maps have a part for every element, and sides that it may swap."""
    if len(h) % len(group):
        return False
    height, width = h.shape[2:]
    return height == width or not swaps_sides(group)


def swaps_sides(group: Group) -> bool:
    """Return whether some element turns rows into columns, as quarter turns do and flips do not."""
    return bool(group.matrices[:, 0, 1].any())


def _read_off(h: Tensor, group: Group, variances: Tensor) -> Found | None:
    """Read sizes from the first channel on: each time the one that fits best."""
    blocks: list[tuple[int, int]] = []
    first = 0
    while first < h.shape[1]:
        size = _size_at(h, group, first, variances)
        if size is None:
            return None
        first += size
        if blocks and blocks[-1][0] == size:  # one more feature group of the same block
            blocks[-1] = (size, blocks[-1][1] + size)
        else:
            blocks.append((size, size))
    return _judge(h, group, tuple(blocks), variances)


def _size_at(h: Tensor, group: Group, first: int, variances: Tensor) -> int | None:
    """Return the size that fits best for a feature group that begins with channel ``first``."""
    best = None
    for size in regular_sizes(group):  # the larger of equals wins
        part = slice(first, first + size)
        if part.stop > h.shape[1]:
            continue
        found = _judge(h[:, part], group, ((size, size),), variances[part])
        if found is not None and (best is None or _rank(found) < _rank(best)):
            best = found
    if best is None:
        return None
    return best.blocks[0][0]


def _judge(h: Tensor, group: Group, blocks: Blocks, variances: Tensor) -> Found | None:
    """Return the errors of maps in these feature groups, or None if a channel does not fit.

    A channel fits if its errors are rounding beside its own entry of ``variances`` (C,).
    """
    errors = _exact_errors(h, group, blocks)  # (exact elements, C)
    if not (errors / variances).max() < TOLERANCE:
        return None
    # what is reported is relative to the variance of all channels together, as everywhere else
    channel_means = full_precision(h).mean((0, 2, 3))  # (C,)
    variance = variances.mean() + channel_means.var(unbiased=False)
    exact = float((errors.mean(1) / variance).max())
    between = []
    for permuted, h_g, g in _compared(h, group, blocks, exact=False):
        between.append(image_errors(permuted, h_g, group, g).mean() / variance)
    if not between:
        return Found(blocks, exact, None)
    return Found(blocks, exact, float(torch.stack(between).nanmean()))


def _exact_errors(h: Tensor, group: Group, blocks: Blocks) -> Tensor:
    """Return the mean of (h(g·x) - ρ(g) h(x))² in each channel.

    The result is (exact elements, C), without the identity.
    """
    errors = []
    for permuted, h_g, g in _compared(h, group, blocks, exact=True):
        expected = group.act_on_features(permuted, g)  # ρ(g) h(x): (B, C, H, W)
        errors.append((h_g - expected).square().mean((0, 2, 3)))  # (C,)
    return torch.stack(errors)  # (exact elements, C)


def _compared(
    h: Tensor, group: Group, blocks: Blocks, exact: bool
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield, for exact elements or all others, h(x) with members permuted, h(g·x), and g (B,)."""
    table = channel_table(group, blocks).to(h.device)  # (elements, C)
    original, *others = full_precision(h).chunk(len(group))  # (B, C, H, W) each
    for i, h_g in enumerate(others, start=1):
        if group.exact[i] == exact:
            permuted = original[:, table[i]]  # (B, C, H, W)
            yield permuted, h_g, _element(i, len(original))


def _element(i: int, count: int) -> Tensor:
    return torch.full((count,), i, device="cpu")


def _channel_variances(h: Tensor) -> Tensor:
    """Return the variance of each channel, (C,), plus enough to make rounding small beside it."""
    eps = torch.finfo(h.dtype).eps
    if h.is_cuda:
        eps = max(eps, TF32_EPS)
    h = full_precision(h)
    rounding = max(MIN_ROUNDING, eps**2 / TOLERANCE) * h.square().mean()
    tiny = torch.finfo(h.dtype).tiny  # for maps of zeros
    variance = h.var((0, 2, 3), unbiased=False)  # (C,)
    return variance + rounding + tiny


def _rank(found: Found) -> float:
    """Return what decides between sizes that fit: the error under elements that resample."""
    return max(found.between or 0.0, TOLERANCE)
