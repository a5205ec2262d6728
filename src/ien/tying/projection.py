"""Projection: from any weight to the nearest one that commutes with a group.

A layer with weight W commutes with a group if rotating its input rotates its output. Element g
acts on maps by a representation ρ(g) that permutes the members of feature groups and rotates
pixels, so

    ρ_out(g) W ρ_in(g)⁻¹ = W    for every element g,

and the nearest such weight is the mean over the group, an orthogonal projection:

    P W = mean over g of ρ_out(g) W ρ_in(g)⁻¹.

``commuting.py`` says how between two feature groups: independent numbers c = W R determine
commuting kernels W = c M, so P W = W R M. Here the same is done for all feature groups of a weight
at once. A bias or a norm has one number for each output channel: a 1×1 kernel of one input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..groups.group import Group
from ..groups.members import Blocks, channel_table, num_channels
from ..groups.similarity import permute_pixels
from .commuting import VECTOR, Kernels, commuting

__all__ = ["MIN_SHARE", "VECTOR", "Part", "Tie", "cuts", "grouped"]

MIN_SHARE = 1e-6
"""A weight that keeps no more than this share of its norm under projection counts as 0."""
MAX_COPIED = 2**22
"""Places of a gradient that are copied at a time: the system is slow to provide a large block."""
KEPT_MEAN_SHARE = 0.5
"""The share of their mean over pixels that random kernels keep where an element resamples.

Smooth random kernels have too large a mean over pixels: two of the six patterns of a 3×3 kernel
have one. Such kernels pass on brightness rather than structure, features become correlated from
layer to layer, and deep networks learn slowly (ResNet18 under rot8, on validation images; the
six-layer CNN under rot4 does not).
"""


class Part(NamedTuple):
    """The part of a weight between feature groups of one size and those of another."""

    rows: slice
    """Its output channels."""
    columns: slice
    """Its input channels."""
    out: int
    """Members of a feature group in the output."""
    groups_out: int
    """Feature groups in the output."""
    kernels: Kernels
    """How those from all of its input to one feature group follow from numbers."""

    @property
    def num_numbers(self) -> int:
        """How many independent numbers there are."""
        return self.groups_out * self.kernels.num_numbers


@dataclass(frozen=True)
class Tie:
    """How feature groups tie the numbers of a tensor.

    >>> tie = Tie(rotation(4), after=((4, 4),), before=((1, 1),))
    >>> kernels = tie.project(torch.rand(4, 1, 3, 3))
    >>> torch.equal(kernels[1], kernels[0].rot90(1, (-2, -1)))
    True
    """

    group: Group
    after: Blocks
    """The feature groups of the output channels; of size ``VECTOR`` for vectors."""
    before: Blocks = ((1, 1),)
    """The feature groups of the input channels; a bias, norm or depthwise kernel has one input."""
    smooth: bool = False
    """Whether kernels are made of patterns that rotate by any angle, whatever the group."""
    shuffle: int = 1
    """The factor of a pixel shuffle that follows; ``after`` is then what the shuffle returns."""
    exact: bool = False
    """Whether only elements that permute pixels count: quarter turns and flips."""

    def exactly(self) -> Tie:
        """Return the tie to all kernels, smooth or not, that quarter turns and flips preserve."""
        return replace(self, smooth=False, exact=True)

    def moved(self, values: Tensor, i: int) -> Tensor:
        """Return ρ_out(g) W ρ_in(g)⁻¹ for element ``i``, which permutes pixels.

        >>> kernels = torch.rand(4, 1, 3, 3)
        >>> tie = Tie(rotation(4), after=((4, 4),), before=((1, 1),))
        >>> mean = sum(tie.moved(kernels, i) for i in range(4)) / 4
        >>> torch.allclose(mean, tie.project(kernels))
        True
        """
        weight = self._as_weight(values)
        rows = _moved_channels(self.group, tuple(self.after), i, values.device)  # (O,)
        columns = _moved_channels(self.group, tuple(self.before), i, values.device)  # (I,)
        permuted = weight.index_select(0, rows).index_select(1, columns)  # (O, I, h, w)
        rotated = permute_pixels(permuted, self.group._similarity(i))  # (O, I, h, w)
        return self._from_weight(rotated, values.shape)

    def project(self, values: Tensor, parts: Sequence[Part] | None = None) -> Tensor:
        """Return P ``values``: the nearest tied values, on the same device, of the same dtype."""
        if parts is None:
            parts = self.parts(values, values.shape)
        return _Project.apply(values, self, parts)

    def numbers(self, values: Tensor, parts: Sequence[Part] | None = None) -> Tensor:
        """Return the independent numbers c = W R of the nearest tied values."""
        if parts is None:
            parts = self.parts(values, values.shape)
        numbers = self._reduced(values, parts)
        return numbers.reshape(self._shape(numbers, values))

    def _reduced(self, values: Tensor, parts: Sequence[Part]) -> Tensor:
        """Return c = W R as (groups out, numbers), or as (1, all numbers) of several parts."""
        weight = self._as_weight(values)
        if len(parts) == 1:
            return _reduced(weight, parts[0])
        found = []
        for part in parts:
            found.append(_reduced(weight[part.rows, part.columns], part).flatten())
        return torch.cat(found)[None]

    def values(self, numbers: Tensor, shape: torch.Size, parts: Sequence[Part] | None = None) -> Tensor:
        """Return the tied values W = c M that have these independent numbers.

        Args:
            numbers: c, as :meth:`numbers` returns them.
            shape: Of the values.
            parts: What :meth:`parts` returns for these numbers, if it is known already.
        """
        if parts is None:
            parts = self.parts(numbers, shape)
        return _Expand.apply(numbers, self, shape, parts)

    def parts(self, like: Tensor, shape: torch.Size) -> list[Part]:
        """Return the parts of a weight between every two sizes, in the order of their numbers.

        Args:
            like: A tensor with the device and precision to compute in; float32 if it has less.
            shape: Of the values.
        """
        height, width = self._as_weight(torch.empty(shape, device="meta")).shape[2:]
        smooth = self.smooth and self.shuffle == 1
        dtype = torch.promote_types(like.dtype, torch.float32)
        found = []
        first_row = 0
        for out, rows in self.after:
            first_column = 0
            for inner, columns in self.before:
                kernels = commuting(self.group, out, inner, height, width, smooth, self.exact)
                members = abs(out)
                kernels = _side_by_side(kernels, members, columns // inner)
                part = Part(
                    rows=slice(first_row, first_row + rows),
                    columns=slice(first_column, first_column + columns),
                    out=members,
                    groups_out=rows // members,
                    kernels=_moved(kernels, like.device, dtype),
                )
                found.append(part)
                first_column += columns
            first_row += rows
        return found

    def leaves_free(self, values: Tensor) -> bool:
        """Return whether all numbers are independent, as in a linear layer on single numbers."""
        parts = self.parts(values, values.shape)
        return sum(part.num_numbers for part in parts) == values.numel()

    def start(self, values: Tensor, random: bool = False) -> tuple[Tensor, float]:
        """Return tied values to start with, and the distance ‖W - P W‖ of the nearest.

        Args:
            values: The weight W, or numbers per channel.
            random: Take ``values`` as a random draw: any other equivariant one will do. Then the
                part between every two sizes is scaled back to the norm it had, and kernels that
                resample lose half of their mean.
        """
        given = values.detach().to(torch.promote_types(values.dtype, torch.float32))
        tied = self.project(given)
        distance = float((given - tied).norm())
        if random:
            weight = self._as_weight(given)
            start = self._as_weight(tied)
            if weight[0, 0].numel() > 1 and not all(self.group.exact):
                mean = start.mean((-2, -1), keepdim=True)  # (O, I, 1, 1)
                start = start - (1 - KEPT_MEAN_SHARE) * mean
                start = self._as_weight(self.project(self._from_weight(start, given.shape)))
            for part in self.parts(given, given.shape):
                norm = float(start[part.rows, part.columns].norm())
                norm_before = float(weight[part.rows, part.columns].norm())
                if norm > MIN_SHARE * norm_before:
                    start[part.rows, part.columns] *= norm_before / norm
            tied = self._from_weight(start, given.shape)
        return tied.to(values.dtype), distance

    def _as_weight(self, values: Tensor) -> Tensor:
        """Return ``values`` of any shape as the weight of a convolution, (O, I, h, w)."""
        channels = num_channels(self.after)
        kernel: tuple[int, ...] = (1, 1)  # of a linear layer, or numbers per channel of any shape
        if values.ndim == 4 and values.numel() > channels:
            kernel = tuple(values.shape[2:])
        if self.shuffle == 1:
            return values.reshape(channels, -1, *kernel)  # (O, I, h, w)
        r = self.shuffle
        kernels = values.reshape(channels, r, r, -1, *kernel)  # (O, r, r, I, h, w)
        kernels = kernels.permute(0, 3, 4, 1, 5, 2)  # (O, I, h, r, w, r): both grids rotate together
        return kernels.flatten(4, 5).flatten(2, 3)  # (O, I, h * r, w * r)

    def _from_weight(self, weight: Tensor, shape: torch.Size) -> Tensor:
        """Do the inverse of :meth:`_as_weight`, also for (O, I * h * w)."""
        if self.shuffle > 1:
            r = self.shuffle
            height, width = shape[2:] or (1, 1)
            kernels = weight.reshape(len(weight), -1, height, r, width, r)  # (O, I, h, r, w, r)
            weight = kernels.permute(0, 3, 5, 1, 2, 4)  # (O, r, r, I, h, w)
        return weight.reshape(shape)

    def _shape(self, numbers: Tensor, values: Tensor) -> tuple[int, ...]:
        """Return a shape for numbers (groups out, groups in * K) that optimizers understand.

        Numbers per channel have one dim and all others more, as many rules for weight decay ask.
        """
        if values.numel() == num_channels(self.after) * self.shuffle**2:  # numbers per channel
            return (numbers.numel(),)
        one_part = len(self.after) == len(self.before) == 1
        if one_part and values.ndim == 4 and self.shuffle == 1 and all(self.group.exact):
            height, width = values.shape[2:]
            if numbers.shape[1] % (height * width) == 0:  # pixels of one kernel of each orbit
                return len(numbers), -1, height, width
        return tuple(numbers.shape)


@lru_cache(maxsize=1024)
def _moved_channels(group: Group, blocks: Blocks, i: int, device: torch.device) -> Tensor:
    """Return which channel element ``i`` moves to each place, (C,)."""
    with torch.inference_mode(False):
        return channel_table(group, blocks)[i].to(device)


class _Project(torch.autograd.Function):
    """P W. An orthogonal projection is symmetric: the gradient is projected in the same way."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, tie: Tie, parts: Sequence[Part]) -> Tensor:
        return tie.values(tie.numbers(values, parts), values.shape, parts)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tie, Sequence[Part]], output: Tensor) -> None:
        _, ctx.tie, ctx.parts = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.tie.project(grad, ctx.parts), None, None


class _Expand(torch.autograd.Function):
    """The values W = c M that have numbers c; backward multiplies by R."""

    generate_vmap_rule = True

    @staticmethod
    def forward(numbers: Tensor, tie: Tie, shape: torch.Size, parts: Sequence[Part]) -> Tensor:
        if len(parts) == 1:
            return tie._from_weight(_expanded(numbers, parts[0]), shape)
        each = numbers.flatten().split([part.num_numbers for part in parts])
        kernels = [_expanded(c, part) for c, part in zip(each, parts, strict=True)]
        rows = []
        for i in range(0, len(parts), len(tie.before)):
            rows.append(torch.cat(kernels[i : i + len(tie.before)], 1))
        return tie._from_weight(torch.cat(rows), shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        numbers, ctx.tie, _, ctx.parts = inputs
        ctx.shape = numbers.shape

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.tie._reduced(grad, ctx.parts).view(ctx.shape), None, None, None


def _expanded(numbers: Tensor, part: Part) -> Tensor:
    """Return the kernels W = c M of a part, (O, I * h * w)."""
    kernels = part.kernels
    if not part.num_numbers:  # no bias of a vector commutes
        return numbers.new_zeros(part.groups_out * part.out, len(kernels.copies) // part.out)
    rows = _combined(numbers, kernels.expand).reshape(part.groups_out, -1)  # (groups out, combined)
    copies = rows.index_select(1, kernels.copies)  # (groups out, out * I * h * w)
    return copies.view(part.groups_out * part.out, -1)  # (O, I * h * w)


def _reduced(weight: Tensor, part: Part) -> Tensor:
    """Return the numbers c = W R of kernels (O, I, h, w), (groups out, numbers)."""
    rows = weight.reshape(part.groups_out, -1)  # (groups out, out * I * h * w)
    means = _means(rows, part.kernels.orbits)  # (groups out, combined)
    return _combined(means, part.kernels.reduce).view(part.groups_out, -1)


def _means(rows: Tensor, orbits: Tensor) -> Tensor:
    """Return the mean over g of ρ_out(g) W ρ_in(g)⁻¹ at the first place of each orbit."""
    if rows.numel() > MAX_COPIED and len(rows) > 1:
        halves = [_means(half, orbits) for half in rows.tensor_split(2)]
        return torch.cat(halves)  # (groups out, combined)
    moved = rows.index_select(1, orbits.flatten())  # (groups out, elements * combined)
    if len(orbits) == 1:
        return moved
    return moved.view(len(rows), *orbits.shape).mean(1)  # (groups out, combined)


def _combined(numbers: Tensor, matrices: Sequence[Tensor]) -> Tensor:
    """Return numbers times matrices (n, m), n numbers at a time, in the matrices' precision."""
    if not matrices:
        return numbers
    device = numbers.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        with torch.autocast(device, enabled=False):  # it would round them
            return _combined(numbers, matrices)
    result = numbers.to(matrices[0].dtype)
    for matrix in matrices:
        result = result.reshape(-1, len(matrix)) @ matrix  # (all / n, m)
    return result.to(numbers.dtype)


def _side_by_side(kernels: Kernels, out: int, count: int) -> Kernels:
    """Return the kernels from ``count`` feature groups in a row to one with ``out`` members."""
    group_in = torch.arange(count, device="cpu").view(1, -1, 1)
    copies = kernels.copies.view(out, 1, -1)  # (out, 1, inner * h * w)
    copies = copies + kernels.orbits.shape[1] * group_in  # (out, groups in, inner * h * w)
    places = len(kernels.copies) // out  # of a member
    member, place = kernels.orbits // places, kernels.orbits % places  # (elements, combined) both
    orbits = (member * count * places + place)[:, None] + places * group_in  # (elements, groups in, combined)
    return kernels._replace(copies=copies.flatten(), orbits=orbits.flatten(1))


def _moved(kernels: Kernels, device: torch.device, dtype: torch.dtype) -> Kernels:
    """Return the same kernels on a device, with matrices of this dtype."""
    return Kernels(
        kernels.copies.to(device),
        kernels.orbits.to(device),
        tuple(matrix.to(device, dtype) for matrix in kernels.expand),
        tuple(matrix.to(device, dtype) for matrix in kernels.reduce),
    )


def cuts(parts: int, after: Blocks, before: Blocks, group: Group) -> bool:
    """Return whether ``group`` mixes channels of different parts of a layer with equal ``parts``.

    >>> cuts(2, ((4, 8),), ((4, 8),), rotation(4)), cuts(4, ((4, 8),), ((4, 8),), rotation(4))
    (False, True)
    """
    rows = torch.arange(num_channels(after), device="cpu") * parts // num_channels(after)  # (O,)
    columns = torch.arange(num_channels(before), device="cpu") * parts // num_channels(before)  # (I,)
    same = rows[:, None] == columns  # (O, I): True where both are in the same part
    for out, inner in zip(channel_table(group, after), channel_table(group, before), strict=True):
        if not torch.equal(same[out][:, inner], same):
            return True
    return False


def grouped(conv_groups: int, after: Blocks, before: Blocks, group: Group) -> tuple[Blocks, Blocks] | None:
    """Return the feature groups that tie a grouped convolution's weight as it is stored.

    It is (O, I / conv_groups, h, w). Every conv group must hold whole feature groups of one size,
    or a single channel (depthwise); None if there is no way to tie it.

    >>> grouped(8, ((4, 8),), ((4, 8),), rotation(4))
    (((4, 8),), ((1, 1),))
    >>> grouped(2, ((4, 8),), ((4, 16),), rotation(4))
    (((4, 8),), ((4, 8),))
    """
    if conv_groups == 1:
        return after, before
    if cuts(conv_groups, after, before, group):
        return None
    channels = num_channels(before) // conv_groups
    if channels == 1 and tuple(after) == tuple(before):
        return after, ((1, 1),)
    size = before[0][0]
    one_size = all(other == size for other, _ in before)
    if one_size and channels % size == 0:
        return after, ((size, channels),)
    return None
