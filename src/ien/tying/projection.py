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
from .commuting import VECTOR, Combined, Copied, commuting

__all__ = ["MIN_SHARE", "VECTOR", "Part", "Tie", "cuts", "grouped"]

MIN_SHARE = 1e-6
"""A weight that keeps no more than this share of its norm under projection counts as 0."""
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
    groups_in: int
    """Feature groups in the input."""
    kernels: Copied | Combined
    """How those between two feature groups follow from numbers; if copied, all of a row at once."""

    @property
    def num_numbers(self) -> int:
        """How many independent numbers there are."""
        numbers = self.groups_out * self.kernels.num_numbers
        if isinstance(self.kernels, Copied):
            return numbers
        return numbers * self.groups_in


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
        weight = self._as_weight(values)
        found = []
        for part in parts:
            kernels = weight[part.rows, part.columns].flatten(1)  # (O, I * h * w)
            found.append(_reduced(kernels, part))  # (groups out, groups in * numbers)
        numbers = found[0]
        if len(found) > 1:
            numbers = torch.cat([each.flatten() for each in found])[None]  # (1, all numbers)
        return numbers.reshape(self._shape(numbers, values))

    def values(self, numbers: Tensor, shape: torch.Size, parts: Sequence[Part] | None = None) -> Tensor:
        """Return the tied values W = c M that have these independent numbers.

        Args:
            numbers: c, as :meth:`numbers` returns them.
            shape: Of the values.
            parts: What :meth:`parts` returns for these numbers, if it is known already.
        """
        if parts is None:
            parts = self.parts(numbers, shape)
        kernels = []
        first = 0
        for part in parts:
            c = numbers
            if len(parts) > 1:
                c = numbers.flatten()[first : first + part.num_numbers]
                first += part.num_numbers
            kernels.append(_Expand.apply(c, part))  # (O, I * h * w) of the part
        if len(parts) > 1:
            rows = []
            for i in range(0, len(parts), len(self.before)):
                rows.append(torch.cat(kernels[i : i + len(self.before)], 1))
            kernels = [torch.cat(rows)]  # (O, I * h * w)
        return self._from_weight(kernels[0], shape)

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
                groups_in = columns // inner
                if isinstance(kernels, Copied):
                    kernels = _side_by_side(kernels, members, groups_in)
                part = Part(
                    rows=slice(first_row, first_row + rows),
                    columns=slice(first_column, first_column + columns),
                    out=members,
                    groups_out=rows // members,
                    groups_in=groups_in,
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
    """The kernels W = c M of a part, (O, I * h * w), from numbers c; backward multiplies by R."""

    generate_vmap_rule = True

    @staticmethod
    def forward(numbers: Tensor, part: Part) -> Tensor:
        kernels = part.kernels
        if isinstance(kernels, Copied):
            rows = _smoothed(numbers, kernels).reshape(part.groups_out, -1)  # (groups out, numbers)
            copies = rows.index_select(1, kernels.copies)  # (groups out, out * I * h * w)
            return copies.view(part.groups_out * part.out, -1)  # (O, I * h * w)
        rows = numbers.reshape(part.groups_out * part.groups_in, len(kernels.expand))
        places = _product(rows, kernels.expand)  # (groups out * groups in, places)
        places = places.view(part.groups_out, part.groups_in, part.out, -1)
        places = places.transpose(1, 2)  # (groups out, out, groups in, inner * h * w)
        return places.reshape(part.groups_out * part.out, -1)  # (O, I * h * w)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Part], output: Tensor) -> None:
        numbers, ctx.part = inputs
        ctx.shape = numbers.shape

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _reduced(grad, ctx.part).reshape(ctx.shape), None


def _reduced(weight: Tensor, part: Part) -> Tensor:
    """Return the numbers c = W R, (groups out, groups in * numbers), of kernels (O, I * h * w)."""
    kernels = part.kernels
    if isinstance(kernels, Copied):
        rows = weight.reshape(part.groups_out, -1)  # (groups out, out * I * h * w)
        moved = rows.index_select(1, kernels.orbits.flatten())  # (groups out, elements * numbers)
        moved = moved.view(part.groups_out, *kernels.orbits.shape)
        return _smoothed(moved.mean(1), kernels)  # mean over g of ρ_out(g) W ρ_in(g)⁻¹
    places = weight.reshape(part.groups_out, part.out, part.groups_in, -1)
    places = places.transpose(1, 2)  # (groups out, groups in, out, inner * h * w)
    numbers = _product(places.reshape(-1, len(kernels.reduce)), kernels.reduce)
    return numbers.view(part.groups_out, -1)


def _smoothed(numbers: Tensor, kernels: Copied) -> Tensor:
    """Return c S if kernels are smooth, in the shape of c."""
    if kernels.smoothing is None:
        return numbers
    together = numbers.reshape(-1, len(kernels.smoothing))  # (all / n, n)
    return _product(together, kernels.smoothing).view(numbers.shape)


def _side_by_side(kernels: Copied, out: int, count: int) -> Copied:
    """Return the kernels from ``count`` feature groups in a row to one with ``out`` members."""
    group_in = torch.arange(count, device="cpu").view(1, -1, 1)
    copies = kernels.copies.view(out, 1, -1)  # (out, 1, inner * h * w)
    copies = copies + kernels.num_numbers * group_in  # (out, groups in, inner * h * w)
    places = len(kernels.copies) // out  # of a member
    member, place = kernels.orbits // places, kernels.orbits % places  # (elements, numbers) both
    orbits = (member * count * places + place)[:, None] + places * group_in  # (elements, groups in, numbers)
    return Copied(copies.flatten(), orbits.flatten(1), kernels.smoothing)


def _moved(kernels: Copied | Combined, device: torch.device, dtype: torch.dtype) -> Copied | Combined:
    """Return the same kernels on a device, with matrices of this dtype."""
    if isinstance(kernels, Combined):
        return Combined(kernels.expand.to(device, dtype), kernels.reduce.to(device, dtype))
    matrix = kernels.smoothing
    if matrix is not None:
        matrix = matrix.to(device, dtype)
    return Copied(kernels.copies.to(device), kernels.orbits.to(device), matrix)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b as the dtype of ``a``, computed in that of ``b``: autocast would round it."""
    device = a.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        with torch.autocast(device, enabled=False):
            return (a.to(b.dtype) @ b).to(a.dtype)
    return (a.to(b.dtype) @ b).to(a.dtype)


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
