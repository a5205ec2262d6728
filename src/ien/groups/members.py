"""How an element permutes the members of a feature group: the regular representation.

A feature group of size |G| holds one channel for each element of the group. Rotating the image by g
rotates the maps, and moves the map of member m to the place of member g∘m:

    (g · h)[m]  =  φ_g( h[g⁻¹∘m] )

so under rotations the members shift cyclically. A feature group of fewer members, say 2 under rot4,
holds a channel for 0° and 180° and one for 90° and 270°; a single channel is not permuted at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from .acting import constant_in_a_trace, is_traced
from .devices import sent
from .group import Group
from .similarity import Similarity

__all__ = [
    "Blocks",
    "FeatureAction",
    "channel_table",
    "check_action",
    "check_regular",
    "member_table",
    "num_channels",
    "permute_members",
    "permutes_members",
    "regular_sizes",
    "similarities",
]

FeatureAction = Literal["pooled", "regular"]
"""What is compared of a feature group: the maximum over its members, or each member, permuted."""
Blocks = Sequence[tuple[int, int]]
"""(size, channels) of contiguous blocks of feature groups, each block of one size."""


def member_table(group: Group, size: int) -> Tensor:
    """Return which member each element moves to each place.

    Element ``g`` makes ``act(h[table[g]])`` of the maps ``h`` of a feature group.

    Returns:
        int64 (elements, size); every row is a permutation.

    >>> member_table(rotation(4), 4)[1].tolist(), member_table(rotation(4), 2)[1].tolist()
    ([3, 0, 1, 2], [1, 0])
    """
    check_regular(group, [size])
    return torch.tensor(_table(group, size), dtype=torch.int64, device="cpu")


@lru_cache(maxsize=256)
def regular_sizes(group: Group) -> tuple[int, ...]:
    """Return the sizes of feature groups whose members ``group`` can permute, largest first.

    For rotations those are the divisors of their number; with flips, the number of elements, or 1.

    >>> regular_sizes(rotation(8)), regular_sizes(rotation(4) * ien.reflection())
    ((8, 4, 2, 1), (8, 1))
    """
    elements = similarities(group)
    n = len(elements)
    if any(element.flip for element in elements):
        return n, 1
    return tuple(size for size in range(n, 0, -1) if n % size == 0)


def permute_members(h: Tensor, g: Tensor, group: Group, blocks: Blocks) -> Tensor:
    """Permute the members of image ``i``'s feature groups by element ``g[i]``; pixels stay.

    Args:
        h: Maps (B, C, H, W).
        g: Element indices (B,).
        group: The transformations.
        blocks: The feature groups of the C channels.

    >>> h = torch.arange(4.0).view(1, 4, 1, 1).expand(2, -1, -1, -1)
    >>> permute_members(h, torch.tensor([1, 2]), rotation(4), [(4, 4)])[..., 0, 0].tolist()
    [[3.0, 0.0, 1.0, 2.0], [2.0, 3.0, 0.0, 1.0]]
    """
    if is_traced():  # the values of g are not known
        table = _constant_table(group, tuple(blocks)).to(h.device)  # (elements, C)
        chosen = table[g.to(h.device)]  # (B, C)
        return h.gather(1, chosen[:, :, None, None].expand_as(h))
    elements = group._indices(h, g).long()
    source = channel_table(group, blocks)[elements]  # (B, C)
    if all(size == 1 for size, _ in blocks):
        return h
    return _PermuteChannels.apply(h, sent(source, h.device))


@constant_in_a_trace
def _constant_table(group: Group, blocks: tuple[tuple[int, int], ...]) -> Tensor:
    """:func:`channel_table`, for a trace that sees only the result."""
    return channel_table(group, blocks)


def channel_table(group: Group, blocks: Blocks) -> Tensor:
    """Return which channel each element moves to each place, (elements, C).

    >>> channel_table(rotation(4), [(4, 4), (1, 2)])[1].tolist()
    [3, 0, 1, 2, 4, 5]
    """
    tables = []
    first = 0
    for size, channels in blocks:
        starts = torch.arange(first, first + channels, size, device="cpu").view(1, -1, 1)  # (1, N, 1)
        moved = starts + member_table(group, size).unsqueeze(1)  # (elements, N, size)
        tables.append(moved.flatten(1))  # (elements, N * size)
        first += channels
    return torch.cat(tables, dim=1)


def num_channels(blocks: Blocks) -> int:
    """The channels of all blocks together."""
    return sum(channels for _, channels in blocks)


def permutes_members(group: Group) -> bool:
    """Whether all elements are rotations and flips; scalings and black boxes permute no members."""
    return _first_other(group) is None


def check_action(action: str) -> None:
    """Raise a ValueError if there is no such action on feature groups."""
    if action not in get_args(FeatureAction):
        raise ValueError(f'action is "pooled" (the maximum over members) or "regular"; got {action!r}')


def check_regular(group: Group, sizes: Sequence[int], layer: str = "") -> None:
    """Raise a ValueError if ``group`` cannot permute the members of these sizes."""
    known = regular_sizes(group)
    where = f"layer {layer!r}: " if layer else ""
    *larger, smallest = map(str, known)
    works = smallest
    if larger:
        works = f"{', '.join(larger)} or {smallest}"
    for size in sizes:
        if size in known:
            continue
        if len(group) % size == 0:  # several permutations are possible, and none is canonical
            raise ValueError(f"{where}feature groups of size {size} are ambiguous under {group}; use {works}")
        raise ValueError(
            f"{where}{group} cannot permute the members of feature groups of size {size}; use {works}"
        )


def similarities(group: Group) -> list[Similarity]:
    """The elements as rotations and flips, if the group is closed under composition.

    Raises:
        ValueError: An element is something else, or a product of two elements is missing.
    """
    label = _first_other(group)
    if label is not None:
        raise ValueError(
            f"only rotations and flips permute the members of feature groups, and {group} has {label!r}: "
            f'use action="pooled"'
        )
    elements = [group._similarity(i) for i in range(len(group))]
    known = set(elements)
    for a in elements:
        for b in elements:
            if a.after(b) not in known:
                raise ValueError(
                    f"{group} ({', '.join(group.labels)}) is not closed under composition, so it cannot "
                    f'permute the members of feature groups: complete it, or use action="pooled"'
                )
    return elements


class _PermuteChannels(torch.autograd.Function):
    """Channels of each image in the order ``source`` (B, C).

    Its backward is the inverse permutation, which is cheaper than the scatter-add of ``gather``.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(h: Tensor, source: Tensor) -> Tensor:
        batch, channels = h.shape[:2]
        if h.is_contiguous(memory_format=torch.channels_last) and not h.is_contiguous():
            pixels = h.movedim(1, 3)  # (B, H, W, C), contiguous in memory
            order = source[:, None, None].expand_as(pixels)  # (B, H, W, C)
            return pixels.gather(3, order).movedim(3, 1)
        first = channels * torch.arange(batch, device=h.device).unsqueeze(1)  # (B, 1)
        rows = (source + first).flatten()  # (B * C,)
        return h.flatten(0, 1).index_select(0, rows).view(h.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (source,) = ctx.saved_tensors
        return _PermuteChannels.apply(grad, source.argsort(1)), None


@lru_cache(maxsize=256)
def _table(group: Group, size: int) -> tuple[tuple[int, ...], ...]:
    """:func:`member_table` as a value that can be cached."""
    elements = similarities(group)
    rows = []
    if size == len(elements):
        # a member for each element: place m is filled by member g⁻¹∘m
        place = {element: m for m, element in enumerate(elements)}
        for g in elements:
            rows.append(tuple(place[g.inverse.after(m)] for m in elements))
    else:
        # fewer members: rotations shift them cyclically
        for g in elements:
            shift = int(g.turn * len(elements))
            rows.append(tuple((m - shift) % size for m in range(size)))
    return tuple(rows)


def _first_other(group: Group) -> str | None:
    """The label of the first element that is neither a rotation nor a flip."""
    for label, steps in zip(group.labels, group.elements, strict=True):
        match steps:
            case () | (Similarity(scale=1),):
                continue
        return label
    return None
