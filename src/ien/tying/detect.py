"""Detection: the feature groups that maps rotate in, as a pure function of maps.

A model runs on a batch of *views*: all images under element 0 (the identity), then all of them
under element 1, and so on (:func:`views_of`). Let h be a layer's maps of these views. They rotate
in given feature groups if, for every element g,

    h(g·x) = ρ(g) h(x),

where ρ(g) permutes the members of the feature groups, turns vectors, and rotates pixels. Quarter
turns and flips are checked to rounding; elements between them resample, and are only measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..groups.group import Group
from ..groups.members import Blocks, channel_table, num_channels
from ..groups.similarity import permute_pixels
from ..loss.error import full_precision, image_errors
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

    blocks: Blocks
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
    changes = False
    for i in range(len(group)):
        view = group.act(x, _element(i, len(x)))  # (B, C, H, W)
        views.append(view)
        change = (view - x).square().mean()
        if change > MIN_CHANGE * x.var(unbiased=False):
            changes = True
    if not changes:
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


def feature_groups_of(
    h: Tensor, group: Group, candidates: Sequence[Blocks], sizes: Sequence[int] = ()
) -> Found | None:
    """Return the first feature groups that maps of views rotate in, or None.

    Args:
        h: The maps (elements * B, C, H, W).
        group: Rotations and flips.
        candidates: Feature groups that they may rotate in.
        sizes: If no candidate fits, feature groups of these sizes, largest first, are read off.

    >>> x = views_of(torch.rand(2, 3, 5, 5), rotation(4))
    >>> feature_groups_of(x, rotation(4), [((4, 4),), ((1, 3),)]).blocks
    ((1, 3),)
    """
    height, width = h.shape[2:]
    if len(h) % len(group) or (height != width and swaps_sides(group)):
        return None
    for blocks in candidates:
        if num_channels(blocks) == h.shape[1]:
            found = errors_in(h, group, blocks)
            if found.fits:
                return found
    blocks = tuple(_read_off(h, group, sizes))
    if num_channels(blocks) < h.shape[1]:
        return None
    return errors_in(h, group, blocks)


def errors_in(h: Tensor, group: Group, blocks: Blocks, variances: Tensor | None = None) -> Found:
    """Return how well maps of views rotate in these feature groups.

    They fit if the errors of each channel are rounding beside its own variance. The errors that are
    returned are relative to the variance of all channels together, as everywhere else.

    Args:
        h: The maps (elements * B, C, H, W).
        group: Rotations and flips.
        blocks: Their feature groups.
        variances: Of each channel, (C,), if they are known.
    """
    if variances is None:
        variances = _channel_variances(h)  # (C,)
    h = full_precision(h)
    variance = variances.mean() + h.mean((0, 2, 3)).var(unbiased=False)
    original, *others = h.chunk(len(group))  # (B, C, H, W) each
    fits = True
    errors: dict[str, float] = {}
    exact, between = [0.0], []
    for i in range(1, len(group)):
        acted = _act_on_channels(original, group, blocks, i)  # (B, C, H, W)
        if group.exact[i]:
            expected = permute_pixels(acted, group._similarity(i))  # ρ(g) h(x): (B, C, H, W)
            squares = _mean_square(others[i - 1] - expected)  # (C,)
            error = float(squares.mean() / variance)
            fits = fits and bool((squares / variances).max() < TOLERANCE)
            exact.append(error)
        else:
            element = _element(i, len(original))
            error = float(image_errors(acted, others[i - 1], group, element).mean() / variance)
            between.append(error)
        errors[group.labels[i]] = error
    largest = float(torch.tensor(exact, device="cpu").max())  # NaN if one of them is
    if not between:
        return Found(blocks, fits, errors, largest, None)
    return Found(blocks, fits, errors, largest, float(torch.tensor(between, device="cpu").nanmean()))


def swaps_sides(group: Group) -> bool:
    """Return whether some element turns rows into columns, as quarter turns do and flips do not."""
    return bool(group.matrices[:, 0, 1].any())


def _read_off(h: Tensor, group: Group, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return feature groups from the first channel on, up to the first that does not rotate."""
    variances = _channel_variances(h)  # (C,)
    blocks: list[tuple[int, int]] = []
    first = 0
    while first < h.shape[1]:
        for size in sizes:
            part = slice(first, first + size)
            if part.stop <= h.shape[1] and errors_in(h[:, part], group, [(size, size)], variances[part]).fits:
                break
        else:
            return blocks
        first += size
        channels = size
        if blocks and blocks[-1][0] == size:  # one more feature group of the same block
            channels += blocks.pop()[1]
        blocks.append((size, channels))
    return blocks


def _act_on_channels(h: Tensor, group: Group, blocks: Blocks, i: int) -> Tensor:
    """Return maps (B, C, H, W) with members permuted and vectors turned by element ``i``."""
    parts = []
    for part, (size, channels) in zip(h.split([count for _, count in blocks], 1), blocks, strict=True):
        if size == VECTOR:
            # dy points down, and the y of matrices up
            matrix = group.matrices[i] * torch.tensor([[1, -1], [-1, 1]], device="cpu")
            vectors = part.unflatten(1, (-1, 2))  # (B, vectors, 2, H, W)
            matrix = matrix.to(h.dtype).to(h.device)  # in this order: MPS has no float64
            turned = torch.einsum("ij,bvjhw->bvihw", matrix, vectors)  # (B, vectors, 2, H, W)
            part = turned.flatten(1, 2)  # (B, C, H, W)
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
