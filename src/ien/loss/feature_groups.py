"""Feature groups: from a layer's channels to one map for each feature group, the maximum over its members."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["FeatureGroups", "GroupPool", "Spec", "group_pool"]


@dataclass(frozen=True)
class FeatureGroups:
    """How a layer's channels are partitioned: one size, or a mix of sizes with whole-number proportions.

    Members are consecutive channels, ``channel = feature_group * size + member``; a mix has one contiguous
    block for each size, larger sizes first.

    >>> het = FeatureGroups.of("4-2-1")  # half of the feature groups have 4 members, a quarter 2, a quarter 1
    >>> het.channels(32), het.num_groups(88), f"{het.channel_share:.0%}"
    (88, 32, '69%')
    """

    sizes: tuple[int, ...]
    """Members of a feature group, descending."""
    counts: tuple[int, ...]
    """How many of each size make up one unit; the smallest whole numbers in these proportions."""

    @classmethod
    def of(cls, spec: Spec) -> FeatureGroups:
        """Read ``4``, ``"4-2-1"`` (½, ¼, …, the last share repeated) or ``{4: 0.5, 2: 0.25, 1: 0.25}``."""
        if isinstance(spec, FeatureGroups):
            return spec
        if isinstance(spec, str):
            parts = spec.strip().split("-")
            if not all(part.isdecimal() for part in parts) or len(set(map(int, parts))) < len(parts):
                raise ValueError(
                    f'feature groups are written as "4" or "4-2-1" (different sizes); got {spec!r}'
                )
            halvings = range(1, len(parts) + 1)
            spec = {int(p): 2.0 ** -min(k, len(parts) - 1) for p, k in zip(parts, halvings, strict=True)}
        elif isinstance(spec, Integral) and not isinstance(spec, bool):
            spec = {int(spec): 1}
        elif not isinstance(spec, Mapping):
            raise TypeError(
                f'feature groups are a size (4), a text ("4-2-1") or {{size: share}}; got {spec!r}'
            )
        return cls._from_shares(spec)

    @classmethod
    def _from_shares(cls, shares: Mapping[int, float]) -> FeatureGroups:
        bad_size = [s for s in shares if not isinstance(s, int) or isinstance(s, bool) or s < 1]
        bad_share = [
            s for s in shares.values() if not (isinstance(s, int | float) and math.isfinite(s) and s > 0)
        ]
        if bad_size or bad_share or not shares:
            raise ValueError(
                f"feature groups need whole sizes of at least 1 with positive shares, "
                f"such as {{4: 0.5, 2: 0.25, 1: 0.25}}; got {dict(shares)!r}"
            )
        sizes = tuple(sorted(shares, reverse=True))
        exact = [Fraction(shares[size]) / sum(map(Fraction, shares.values())) for size in sizes]
        if not all(isinstance(share, int) for share in shares.values()):
            exact = [share.limit_denominator(1000) for share in exact]  # 0.1 is meant as a tenth
        if 0 in exact:
            raise ValueError(f"shares of feature groups below 1/1000 are not supported; got {dict(shares)!r}")
        whole = [int(f * math.lcm(*(f.denominator for f in exact))) for f in exact]
        return cls(sizes, tuple(n // math.gcd(*whole) for n in whole))

    @property
    def unit(self) -> int:
        """The number of feature groups must be a multiple of this: 4 for 4-2-1, 8 for 8-4-2-1."""
        return sum(self.counts)

    @property
    def channel_share(self) -> float:
        """Channels needed, relative to the same number of feature groups all of the largest size."""
        return self._unit_channels / (self.unit * self.sizes[0])

    @property
    def shares(self) -> dict[int, float]:
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
        """The number of channels nearest to this one that can be split, the smaller of two equally near."""
        step = self._unit_channels
        return max(step, -((step - 2 * channels) // (2 * step)) * step)

    def blocks(self, channels: int) -> list[tuple[int, int]]:
        """(size, channels) of each contiguous block."""
        units = self.num_groups(channels) // self.unit
        return [(size, units * count * size) for size, count in zip(self.sizes, self.counts, strict=True)]

    @property
    def _unit_channels(self) -> int:
        return sum(size * count for size, count in zip(self.sizes, self.counts, strict=True))

    def _check(self, given: int, step: int, what: str) -> None:
        if given < 1 or given % step:
            below, above = given // step * step, (given // step + 1) * step
            near = f"{below} or {above}" if below > 0 else f"{step}"
            raise ValueError(
                f"{given} {what} cannot be split into feature groups {self}: "
                f"the count must be a multiple of {step} (nearest: {near})"
            )

    def __str__(self) -> str:
        text = "-".join(map(str, self.sizes))
        return text if FeatureGroups.of(text) == self else str(self.shares)

    def __repr__(self) -> str:
        return f"FeatureGroups.of({self.sizes[0] if len(self.sizes) == 1 else self.shares})"


Spec = int | str | Mapping[int, float] | FeatureGroups


def group_pool(h: Tensor, feature_groups: Spec) -> Tensor:
    r"""The maximum over the members of each feature group, pixel by pixel: ĥ = 𝒢(h) of the paper (Sec. 4).

    ``h`` is (B, C, …) with any trailing dims, the result (B, N, …). Members that tie share the gradient.

    >>> group_pool(torch.tensor([[1.0, 5.0, 2.0, 3.0]]), 2)
    tensor([[5., 3.]])
    """
    spec = FeatureGroups.of(feature_groups)
    if h.ndim < 2:
        raise ValueError(f"group_pool needs maps of shape (B, C, …); got {tuple(h.shape)}")
    blocks = spec.blocks(h.shape[1])
    transformed = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    if h.requires_grad and torch.is_grad_enabled() and not transformed:
        return _CheapMax.apply(h, blocks)
    return _max_over_members(h, blocks)


class GroupPool(nn.Module):
    """Module form of :func:`group_pool`."""

    def __init__(self, feature_groups: Spec) -> None:
        super().__init__()
        self.feature_groups = FeatureGroups.of(feature_groups)

    def forward(self, h: Tensor) -> Tensor:
        return group_pool(h, self.feature_groups)

    def extra_repr(self) -> str:
        return str(self.feature_groups)


def by_name(feature_groups: Spec | Mapping[str, Spec]) -> dict[str, FeatureGroups]:
    """Feature groups by the name of a layer or module; one for all is that of ``""``, the model.

    >>> by_name(4), by_name({"conv1": 4, "": "4-2-1"})["conv1"]
    ({'': FeatureGroups.of(4)}, FeatureGroups.of(4))
    """
    if not isinstance(feature_groups, Mapping) or all(isinstance(key, int) for key in feature_groups):
        return {"": FeatureGroups.of(feature_groups)}  # type: ignore[arg-type]
    if not all(isinstance(key, str) for key in feature_groups):
        raise TypeError(
            f"feature_groups maps sizes to shares or layer names to feature groups, not both; "
            f"got the keys {list(feature_groups)}"
        )
    return {str(name): FeatureGroups.of(spec) for name, spec in feature_groups.items()}  # type: ignore[arg-type]


def per_layer(feature_groups: Spec | Mapping[str, Spec], layers: Iterable[str]) -> dict[str, FeatureGroups]:
    """One partition for each layer, from one for all or a mapping by layer name, ``""`` for the rest."""
    layers, named = list(layers), by_name(feature_groups)
    if missing := [name for name in layers if name not in named and "" not in named]:
        raise KeyError(f"feature_groups says nothing about layer {missing[0]!r}; it names {', '.join(named)}")
    if layers and (unknown := [name for name in named if name not in ["", *layers]]):
        close = difflib.get_close_matches(unknown[0], layers, n=1)
        raise KeyError(
            f"feature_groups names {unknown[0]!r}, which is not among the layers {', '.join(layers)}"
            + (f" (did you mean {close[0]!r}?)" if close else "")
        )
    return {name: named[name if name in named else ""] for name in layers}


def holder(name: str, named: Collection[str]) -> str:
    """Of the ``named`` modules the layer itself, or else the nearest around it; ``""`` is the model.

    >>> holder("layer1.0.conv", ["", "layer1"]), holder("stem", ["", "layer1"])
    ('layer1', '')
    """
    key = name
    while key and key not in named:
        key = key.rpartition(".")[0]
    if key not in named:
        raise KeyError(f'feature_groups says nothing about layer {name!r}: name it, or "" for all others')
    return key


def pool_layer(name: str, h: Tensor, feature_groups: FeatureGroups) -> Tensor:
    """:func:`group_pool` with errors that name the layer."""
    try:
        return group_pool(h, feature_groups)
    except ValueError as error:
        raise ValueError(f"layer {name!r}: {error}") from None


def _max_over_members(h: Tensor, blocks: list[tuple[int, int]]) -> Tensor:
    parts = h.split([channels for _, channels in blocks], dim=1)
    pooled = [
        part if size == 1 else part.unflatten(1, (-1, size)).amax(2)
        for part, (size, _) in zip(parts, blocks, strict=True)
    ]
    result = pooled[0] if len(pooled) == 1 and blocks[0][0] > 1 else torch.cat(pooled, dim=1)
    channels_last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(h.ndim)
    if channels_last and h.is_contiguous(memory_format=channels_last) and not h.is_contiguous():
        return result.contiguous(memory_format=channels_last)
    return result


class _CheapMax(torch.autograd.Function):
    """``_max_over_members`` with a backward in place, several times faster than that of ``amax``."""

    @staticmethod
    def forward(h: Tensor, blocks: list[tuple[int, int]]) -> Tensor:
        return _max_over_members(h, blocks)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, list[tuple[int, int]]], output: Tensor) -> None:
        h, ctx.blocks = inputs
        # detached: under saved-tensor hooks the output itself would keep the graph alive
        ctx.save_for_backward(h, output.detach())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        h, pooled = ctx.saved_tensors
        if torch.is_grad_enabled():  # double backward: autograd differentiates the plain form
            alias = h.view_as(h)  # hooks on h itself run once, for the gradient returned from here
            (result,) = torch.autograd.grad(
                _max_over_members(alias, ctx.blocks), alias, grad, create_graph=True
            )
            return result, None
        result = torch.empty_like(h)
        sections = [channels for _, channels in ctx.blocks]
        counts = [channels // size for size, channels in ctx.blocks]
        for (size, _), part, out, best, slope in zip(
            ctx.blocks,
            h.split(sections, 1),
            result.split(sections, 1),
            pooled.split(counts, 1),
            grad.split(counts, 1),
            strict=True,
        ):
            if size == 1:
                out.copy_(slope)
                continue
            members = out.unflatten(1, (-1, size))  # (B, N, size, …)
            members.copy_(best.unsqueeze(2).expand_as(members))
            torch.eq(part, out, out=out)  # 1 where a member is the maximum
            members.mul_((slope / members.sum(2)).unsqueeze(2))
        return result, None
