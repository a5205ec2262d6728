"""The regular action: from a group and a size to how its elements permute the members of feature groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..loss.feature_groups import FeatureGroups
from .group import Group
from .similarity import Similarity

__all__ = [
    "Blocks",
    "FeatureAction",
    "channels_moved",
    "check_action",
    "check_members",
    "check_sizes",
    "members",
    "num_channels",
    "permute",
    "permutes",
    "similarities",
    "sizes",
]

FeatureAction = Literal["pooled", "regular"]
Blocks = Sequence[tuple[int, int]]
"""(size, channels) of contiguous feature groups."""


def members(group: Group, size: int) -> Tensor:
    """Which member each element moves to each place: int64 (elements, size), every row a permutation.

    Element ``g`` makes ``act(h[table[g]])`` of the maps ``h`` of a feature group. With a member for each
    element, member ``m`` is what element ``m`` makes of member 0. Fewer members of rotations stand for turns
    that repeat: of two members of ``rot4``, the first is for 0° and 180° and the second for 90° and 270°.

    >>> members(rotation(4), 4)[1].tolist(), members(rotation(4), 2)[1].tolist()
    ([3, 0, 1, 2], [1, 0])
    """
    check_members(group, [size])
    return torch.tensor(_table(group, size), dtype=torch.int64, device="cpu")


@lru_cache(maxsize=256)
def sizes(group: Group) -> tuple[int, ...]:
    """Those of feature groups for which it is defined how ``group`` permutes members, largest first.

    For rotations every divisor of their number; with flips, a member for each element, or one.

    >>> sizes(rotation(8)), sizes(rotation(4) * ien.reflection())
    ((8, 4, 2, 1), (8, 1))
    """
    elements = similarities(group)
    n = len(elements)
    if any(element.flip for element in elements):
        return n, 1
    return tuple(size for size in range(n, 0, -1) if n % size == 0)


def permute(h: Tensor, g: Tensor, group: Group, feature_groups: FeatureGroups) -> Tensor:
    """``h`` (B, C, H, W) with the members of image ``i``'s feature groups permuted by element ``g[i]``.

    >>> h = torch.arange(4.0).view(1, 4, 1, 1).expand(2, -1, -1, -1)
    >>> permute(h, torch.tensor([1, 2]), rotation(4), FeatureGroups.of(4))[..., 0, 0].tolist()
    [[3.0, 0.0, 1.0, 2.0], [2.0, 3.0, 0.0, 1.0]]
    """
    source = channels_moved(group, feature_groups.blocks(h.shape[1]))[group._indices(h, g).long()]  # (B, C)
    return h if feature_groups.sizes == (1,) else _Permute.apply(h, source.to(h.device))


def channels_moved(group: Group, blocks: Blocks) -> Tensor:
    """Which channel each element moves to each place, (elements, C).

    >>> channels_moved(rotation(4), [(4, 4), (1, 2)])[1].tolist()
    [3, 0, 1, 2, 4, 5]
    """
    parts, first = [], 0
    for size, channels in blocks:
        starts = torch.arange(first, first + channels, size, device="cpu").view(1, -1, 1)
        parts.append((starts + members(group, size).unsqueeze(1)).flatten(1))
        first += channels
    return torch.cat(parts, dim=1)


def num_channels(blocks: Blocks) -> int:
    """The channels of all blocks."""
    return sum(channels for _, channels in blocks)


def permutes(group: Group) -> bool:
    """Whether all elements are rotations and flips; scalings and black boxes permute no members."""
    return _other(group) is None


def check_action(action: str) -> None:
    """An error if there is no such action on feature groups."""
    if action not in get_args(FeatureAction):
        raise ValueError(f'action is "pooled" (the maximum over members) or "regular"; got {action!r}')


def check_members(group: Group, wanted: Sequence[int], layer: str = "") -> None:
    """An error if it is not defined how ``group`` permutes feature groups of the ``wanted`` sizes."""
    known = sizes(group)
    if bad := [size for size in wanted if size not in known]:
        *larger, smallest = map(str, known)
        works = f"{', '.join(larger)} or {smallest}" if larger else smallest
        what = f"permute the members of feature groups of size {bad[0]}"
        where = f"layer {layer!r}: " if layer else ""
        if len(group) % bad[0] == 0:  # it has quotients of that size, and none is the one to take
            raise ValueError(f"{where}no one way is defined for {group} to {what}; it is for {works}")
        raise ValueError(f"{where}{group} cannot {what}; it can for {works}")


def check_sizes(group: Group, feature_groups: Mapping[str, FeatureGroups]) -> None:
    """The same for the feature groups of layers, by name."""
    for name, spec in feature_groups.items():
        check_members(group, spec.sizes, name)


class _Permute(torch.autograd.Function):
    """Channels of each image in the order ``source`` (B, C); its backward is the inverse, without sums."""

    generate_vmap_rule = True

    @staticmethod
    def forward(h: Tensor, source: Tensor) -> Tensor:
        if h.is_contiguous(memory_format=torch.channels_last) and not h.is_contiguous():
            pixels = h.movedim(1, 3)
            return pixels.gather(3, source[:, None, None].expand_as(pixels)).movedim(3, 1)
        rows = source + h.shape[1] * torch.arange(len(h), device=h.device).unsqueeze(1)
        return h.flatten(0, 1).index_select(0, rows.flatten()).view(h.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (source,) = ctx.saved_tensors
        return _Permute.apply(grad, source.argsort(1)), None


@lru_cache(maxsize=256)
def _table(group: Group, size: int) -> tuple[tuple[int, ...], ...]:
    elements = similarities(group)
    if size == len(elements):
        place = {element: m for m, element in enumerate(elements)}
        return tuple(tuple(place[g.inverse.after(m)] for m in elements) for g in elements)
    turns = [int(element.turn * len(elements)) for element in elements]
    return tuple(tuple((m - turn) % size for m in range(size)) for turn in turns)


def similarities(group: Group) -> list[Similarity]:
    """The elements as rotations and flips; an error if they are others, or not closed."""
    if (label := _other(group)) is not None:
        raise ValueError(
            f"only rotations and flips permute the members of feature groups, and {group} has {label!r}: "
            f'it needs action="pooled"'
        )
    steps = [step for steps in group.elements for step in steps or (Similarity(),)]
    elements = [step for step in steps if isinstance(step, Similarity)]
    if not {a.after(b) for a in elements for b in elements} <= set(elements):
        raise ValueError(
            f"{group} ({', '.join(group.labels)}) lacks what some of its elements give together, so that it "
            f'cannot permute the members of feature groups: complete it, or use action="pooled"'
        )
    return elements


def _other(group: Group) -> str | None:
    """The first element that is neither a rotation nor a flip."""
    for label, steps in zip(group.labels, group.elements, strict=True):
        match steps or (Similarity(),):
            case (Similarity(scale=1),):
                continue
        return label
    return None
