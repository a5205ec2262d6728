"""Feature groups: a layer's channels in small groups, each pooled to one map.

    ĥ_n  =  max over the members k of feature group n of h_k        (𝒢 of the paper, Sec. 4)

Members are consecutive channels, ``channel = feature_group * size + member``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from .._text import type_name
from ..groups.acting import is_traced

__all__ = ["FeatureGroups", "GroupPool", "Spec", "group_pool", "pool_layer"]

CACHED_NUMBERS = 2**19
"""How many numbers a processor works on at once in the backward pass: they stay in its cache."""
MAX_SHARE_DENOMINATOR = 1000
"""Shares are rounded to fractions with denominators up to this: 0.1 is meant as a tenth."""


@dataclass(frozen=True)
class FeatureGroups:
    """How a layer's channels are partitioned: feature groups of one size, or a mix of sizes.

    A mix has one contiguous block of channels for each size, larger sizes first. Make one with
    :meth:`of`; everything in ``ien`` that takes feature groups takes what ``of`` takes.

    >>> het = FeatureGroups.of("4-2-1")  # half have 4 members, a quarter 2, a quarter 1
    >>> het.channels(32), het.num_groups(88), f"{het.channel_share:.0%}"
    (88, 32, '69%')
    """

    sizes: tuple[int, ...]
    """Members of a feature group, descending."""
    counts: tuple[int, ...]
    """How many feature groups of each size make up one unit: the smallest whole numbers."""

    @classmethod
    def of(cls, spec: Spec) -> FeatureGroups:
        """Read feature groups from a size, a text, or shares.

        Args:
            spec: A size (``4``), a text (``"4-2-1"``: half of the feature groups have size 4, a
                quarter 2, and so on, the last share repeated), or size → share (``{4: 0.5, 2:
                0.25, 1: 0.25}``).

        Raises:
            ValueError: Sizes are not whole numbers of at least 1, or shares are not positive.
            TypeError: It is something else altogether.

        >>> FeatureGroups.of({4: 0.5, 2: 0.25, 1: 0.25}) == FeatureGroups.of("4-2-1")
        True
        """
        if isinstance(spec, FeatureGroups):
            return spec
        if isinstance(spec, str):
            return cls._from_shares(_shares_of_text(spec))
        if isinstance(spec, Integral) and not isinstance(spec, bool):
            return cls._from_shares({int(spec): 1})
        if isinstance(spec, Mapping):
            return cls._from_shares(spec)
        raise TypeError(f'feature groups are a size (4), a text ("4-2-1") or {{size: share}}; got {spec!r}')

    @classmethod
    def _from_shares(cls, shares: Mapping[int, float]) -> FeatureGroups:
        if not shares or not all(map(_is_size, shares)) or not all(map(_is_share, shares.values())):
            raise ValueError(
                f"feature groups need whole sizes of at least 1 with positive shares, "
                f"such as {{4: 0.5, 2: 0.25, 1: 0.25}}; got {dict(shares)!r}"
            )
        sizes = tuple(sorted(shares, reverse=True))
        total = sum(map(Fraction, shares.values()))
        whole_numbers = all(isinstance(share, int) for share in shares.values())
        exact = []
        for size in sizes:
            share = Fraction(shares[size]) / total
            if not whole_numbers:
                share = share.limit_denominator(MAX_SHARE_DENOMINATOR)
            exact.append(share)
        if 0 in exact:
            raise ValueError(
                f"shares of feature groups must be at least 1/{MAX_SHARE_DENOMINATOR}; got {dict(shares)!r}"
            )
        # the smallest whole numbers in these proportions
        denominator = math.lcm(*(share.denominator for share in exact))
        counts = [int(share * denominator) for share in exact]
        divisor = math.gcd(*counts)
        return cls(sizes, tuple(count // divisor for count in counts))

    @property
    def unit(self) -> int:
        """The number of feature groups must be a multiple of this: 4 for 4-2-1, 8 for 8-4-2-1."""
        return sum(self.counts)

    @property
    def channel_share(self) -> float:
        """Channels needed, relative to as many feature groups all of the largest size."""
        return self._unit_channels / (self.unit * self.sizes[0])

    @property
    def shares(self) -> dict[int, float]:
        """Size → share of the feature groups that have it."""
        return {size: count / self.unit for size, count in zip(self.sizes, self.counts, strict=True)}

    def channels(self, num_groups: int) -> int:
        """Channels of a layer with this many feature groups."""
        self._check(num_groups, self.unit, "feature groups")
        return num_groups // self.unit * self._unit_channels

    def num_groups(self, channels: int) -> int:
        """Feature groups of a layer with this many channels."""
        self._check(channels, self._unit_channels, "channels")
        return channels // self._unit_channels * self.unit

    def nearest(self, channels: int) -> int:
        """The number of channels nearest to this one that can be split; of two, the smaller."""
        step = self._unit_channels
        rounded = math.ceil(Fraction(channels, step) - Fraction(1, 2))  # halves go down
        return max(1, rounded) * step

    def blocks(self, channels: int) -> list[tuple[int, int]]:
        """(size, channels) of each contiguous block of a layer with this many channels."""
        units = self.num_groups(channels) // self.unit
        blocks = []
        for size, count in zip(self.sizes, self.counts, strict=True):
            blocks.append((size, units * count * size))
        return blocks

    @property
    def _unit_channels(self) -> int:
        return sum(size * count for size, count in zip(self.sizes, self.counts, strict=True))

    def _check(self, given: int, step: int, what: str) -> None:
        if given >= 1 and given % step == 0:
            return
        below = given // step * step
        near = f"{below} or {below + step}" if below > 0 else f"{step}"
        raise ValueError(
            f"{given} {what} cannot be split into feature groups {self}: "
            f"the count must be a multiple of {step} (nearest: {near})"
        )

    def __str__(self) -> str:
        text = "-".join(map(str, self.sizes))
        if FeatureGroups.of(text) == self:
            return text
        return self._short_shares()  # a mix that has no short form

    def __repr__(self) -> str:
        if len(self.sizes) == 1:
            return f"FeatureGroups.of({self.sizes[0]})"
        return f"FeatureGroups.of({self._short_shares()})"

    def _short_shares(self) -> str:
        """Write the mix as a dict that :meth:`of` reads: shares, or counts if shares are long."""
        if all(share == round(share, 4) for share in self.shares.values()):
            return str(self.shares)
        return str(dict(zip(self.sizes, self.counts, strict=True)))


Spec = int | str | Mapping[int, float] | FeatureGroups


def group_pool(h: Tensor, feature_groups: Spec) -> Tensor:
    r"""Take the maximum over the members of each feature group, pixel by pixel (Sec. 4).

    .. math:: ĥ_n = \max_{k \in \text{feature group } n} h_k

    Members that tie for the maximum share the gradient equally. Do not pool maps whose orientation
    you need later: the maximum forgets which member won.

    Args:
        h: Maps (B, C, …), with any trailing dimensions.
        feature_groups: How the C channels are partitioned; see :meth:`FeatureGroups.of`.

    Returns:
        Pooled maps (B, N, …), one channel for each feature group.

    >>> group_pool(torch.tensor([[1.0, 5.0, 2.0, 3.0]]), 2)
    tensor([[5., 3.]])
    """
    spec = FeatureGroups.of(feature_groups)
    if not isinstance(h, Tensor):
        raise TypeError(f"group_pool needs a tensor (B, C, …); got {type_name(h)}")
    if h.ndim < 2:
        raise ValueError(f"group_pool needs maps of shape (B, C, …); got {tuple(h.shape)}")
    blocks = spec.blocks(h.shape[1])
    if h.requires_grad and torch.is_grad_enabled() and not is_traced():
        return _MaxOverMembers.apply(h, blocks)
    return _max_over_members(h, blocks)


class GroupPool(nn.Module):
    """Module form of :func:`group_pool`, to put before the classifier of a network.

    Do not put it between layers that should keep orientation.

    Args:
        feature_groups: How the channels are partitioned; see :meth:`FeatureGroups.of`.

    >>> GroupPool(4)(torch.rand(2, 8, 5, 5)).shape
    torch.Size([2, 2, 5, 5])
    """

    def __init__(self, feature_groups: Spec) -> None:
        super().__init__()
        self.feature_groups = FeatureGroups.of(feature_groups)

    def forward(self, h: Tensor) -> Tensor:
        return group_pool(h, self.feature_groups)

    def extra_repr(self) -> str:
        return str(self.feature_groups)


def pool_layer(name: str, h: Tensor, feature_groups: FeatureGroups) -> Tensor:
    """Do :func:`group_pool`, with errors that name the layer."""
    try:
        return group_pool(h, feature_groups)
    except ValueError as error:
        raise ValueError(f"layer {name!r}: {error}") from None


def _shares_of_text(text: str) -> dict[int, float]:
    """``4-2-1`` → {4: 1/2, 2: 1/4, 1: 1/4}: each share is half the last, the final one repeated."""
    parts = text.strip().split("-")
    if not all(part.isdecimal() for part in parts) or len(set(map(int, parts))) < len(parts):
        raise ValueError(f'feature groups are written as "4" or "4-2-1" (different sizes); got {text!r}')
    shares = {}
    for k, part in enumerate(parts, start=1):
        halvings = min(k, len(parts) - 1)
        shares[int(part)] = 2.0**-halvings
    return shares


def _is_size(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size >= 1


def _is_share(share: object) -> bool:
    return isinstance(share, int | float) and math.isfinite(share) and share > 0


def _max_over_members(h: Tensor, blocks: list[tuple[int, int]]) -> Tensor:
    parts = h.split([channels for _, channels in blocks], dim=1)
    pooled = []
    for part, (size, _) in zip(parts, blocks, strict=True):
        if size > 1:
            members = part.unflatten(1, (-1, size))  # (B, N, size, …)
            if torch.is_grad_enabled():
                part = members.amax(2)  # (B, N, …): members that tie share the gradient
            else:
                part = reduce(torch.maximum, members.unbind(2))  # the same in half the time
        pooled.append(part)
    if len(pooled) == 1 and blocks[0][0] > 1:
        result = pooled[0]
    else:
        result = torch.cat(pooled, dim=1)  # of a single block of size 1, a copy
    channels_last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(h.ndim)
    if torch._C._are_functorch_transforms_active():  # vmap cannot tell memory formats
        return result
    if channels_last and h.is_contiguous(memory_format=channels_last) and not h.is_contiguous():
        return result.contiguous(memory_format=channels_last)
    return result


class _MaxOverMembers(torch.autograd.Function):
    """``_max_over_members`` with a backward in place, several times faster than ``amax``'s."""

    # with the context as an argument: a setup_context of its own costs a tenth of a millisecond
    @staticmethod
    def forward(ctx: Any, h: Tensor, blocks: list[tuple[int, int]]) -> Tensor:
        pooled = _max_over_members(h, blocks)
        ctx.blocks = blocks
        # detached: under saved-tensor hooks the output itself would keep the graph alive
        ctx.save_for_backward(h, pooled.detach())
        return pooled

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        h, pooled = ctx.saved_tensors
        if torch.is_grad_enabled():  # double backward: autograd differentiates the plain form
            alias = h.view_as(h)  # hooks on h itself run once, for the gradient returned from here
            plain = _max_over_members(alias, ctx.blocks)
            (result,) = torch.autograd.grad(plain, alias, grad, create_graph=True)
            return result, None

        result = torch.empty_like(h)
        if h.device.type != "cpu" or h.numel() <= CACHED_NUMBERS:
            _share_gradient(h, pooled, grad, result, ctx.blocks)
            return result, None
        images = max(1, CACHED_NUMBERS // h[0].numel())
        for start in range(0, len(h), images):
            some = slice(start, start + images)
            _share_gradient(h[some], pooled[some], grad[some], result[some], ctx.blocks)
        return result, None


def _share_gradient(
    h: Tensor, pooled: Tensor, grad: Tensor, result: Tensor, blocks: list[tuple[int, int]]
) -> None:
    """Write the gradient of maps (B, C, …) to ``result``: equal shares for all that are maximal."""
    channel, feature_group = 0, 0
    for size, channels in blocks:
        count = channels // size
        part = h.narrow(1, channel, channels)
        out = result.narrow(1, channel, channels)
        best = pooled.narrow(1, feature_group, count)
        slope = grad.narrow(1, feature_group, count)
        channel += channels
        feature_group += count
        if size == 1:
            out.copy_(slope)
            continue
        members = out.unflatten(1, (-1, size))  # (B, N, size, …), the memory of out
        # 1 where a member is the maximum, else 0
        if part.stride(1) == 1:  # channels last: rows of a few members are compared slowly
            members.copy_(best.unsqueeze(2).expand_as(members))
            torch.eq(part, out, out=out)
        else:
            torch.eq(part.unflatten(1, (-1, size)), best.unsqueeze(2), out=members)
        winners = reduce(torch.add, members.unbind(2))  # (B, N, …)
        members.mul_((slope / winners).unsqueeze(2))
