"""Projection: from any weight to the nearest one that commutes with a group.

A layer with weight W commutes with a group if rotating its input rotates its output. Element g
acts on maps by a representation ρ(g) that permutes the members of feature groups and rotates
pixels, so

    ρ_out(g) W ρ_in(g)⁻¹ = W    for every element g,

and the nearest such weight is the mean over the group, an orthogonal projection:

    P W = mean over g of ρ_out(g) W ρ_in(g)⁻¹.

For a kernel between two members this reads: permute the members of both sides, rotate the pixels,
take the mean. Quarter turns and flips only permute numbers, so P makes all numbers of an orbit
equal (:func:`_orbit_means`); elements between them resample, and ``commuting.py`` takes over.
A bias or a norm has one number for each output channel: a 1×1 kernel of one input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..groups.group import Group
from ..groups.members import Blocks, member_table, num_channels
from . import commuting
from .commuting import precise
from .harmonics import smoothing

__all__ = ["MIN_SHARE", "Tie", "cuts", "tied_weight", "ungrouped"]

MIN_SHARE = 1e-6
"""A weight that keeps no more than this share of its norm under projection counts as 0."""
KEPT_MEAN_SHARE = 0.5
"""The share of their mean over pixels that random kernels keep where an element resamples.

Smooth random kernels have too large a mean over pixels: two of the six patterns of a 3×3 kernel
have one. Such kernels pass on brightness rather than structure, features become correlated from
layer to layer, and deep networks learn slowly (ResNet18 under rot8, on validation images; the
six-layer CNN under rot4 does not).
"""


class Tie(NamedTuple):
    """A tensor of a module, and the feature groups that tie its numbers."""

    module: nn.Module
    name: str
    """Of the parameter or buffer in its module."""
    group: Group
    after: Blocks
    """The feature groups of the output channels."""
    before: Blocks = ((1, 1),)
    """The feature groups of the input channels; a bias or a norm has one input."""
    conv_groups: int = 1
    smooth: bool = False
    """Whether kernels are made of patterns that rotate by any angle, whatever the group."""

    @property
    def tensor(self) -> Tensor:
        """The tensor that the module has now: ``.to(device)`` replaces a buffer."""
        found: Tensor = getattr(self.module, self.name)
        return found

    def is_tied_like(self, other: Tie) -> bool:
        """Return whether the same numbers are tied in the same way, be it in other modules."""
        mine = (self.group, self.after, self.before, self.conv_groups, self.smooth)
        return mine == (other.group, other.after, other.before, other.conv_groups, other.smooth)

    def project(self, values: Tensor) -> Tensor:
        """Return P ``values``: the nearest tied values, on the same device, of the same dtype."""
        weight = self._as_weight(values)
        if self.smooth:
            weight = _smoothed(weight)
        full = _without_conv_groups(weight, self.conv_groups)
        tied = _projected(full, self.after, self.before, self.group)
        return _with_conv_groups(tied, self.conv_groups).view_as(values)

    def start(self, values: Tensor, random: bool = False) -> tuple[Tensor, float]:
        """Return tied values to start with, and how far the nearest are: :func:`tied_weight`."""
        tied, distance = tied_weight(
            self._as_weight(values),
            self.after,
            self.before,
            self.group,
            self.conv_groups,
            random,
            self.smooth,
        )
        return tied.view_as(values), distance

    @property
    def has_coefficients(self) -> bool:
        """Whether an element resamples these kernels, so that coefficients can stand for them."""
        resamples = not all(self.group.exact)
        return resamples and self.tensor.ndim == 4 and self.conv_groups == 1

    def to_coefficients(self, values: Tensor) -> Tensor:
        """Return the coefficients of the nearest tied values, in a tensor that is 0 elsewhere."""
        return self._between_sizes(values, commuting.to_coefficients)

    def from_coefficients(self, values: Tensor) -> Tensor:
        """Return the tied values that have these coefficients."""
        return self._between_sizes(values, commuting.from_coefficients)

    @property
    def stays_tied(self) -> bool:
        """Whether equal steps keep it tied: its ties only say which numbers are equal."""
        weight = self._as_weight(self.tensor)
        smoothed = self.smooth and _is_square(weight)
        return _only_permutes(weight, self.group) and not smoothed

    def _between_sizes(self, values: Tensor, change: Callable[[Tensor, Group], Tensor]) -> Tensor:
        weight = self._as_weight(values)
        return _between_sizes(weight, self.after, self.before, self.group, change).view_as(values)

    def _as_weight(self, values: Tensor) -> Tensor:
        """Return ``values`` of any shape as the weight of a convolution, (O, I, h, w)."""
        channels = num_channels(self.after)
        if values.numel() == channels:  # a number for each channel
            return values.reshape(channels, 1, 1, 1)  # (O, 1, 1, 1)
        if values.ndim == 2:  # a linear layer
            return values.reshape(channels, -1, 1, 1)  # (O, I, 1, 1)
        return values.reshape(channels, -1, *values.shape[2:])  # (O, I, h, w)


def tied_weight(
    weight: Tensor,
    after: Blocks,
    before: Blocks,
    group: Group,
    conv_groups: int = 1,
    random: bool = False,
    smooth: bool = False,
) -> tuple[Tensor, float]:
    """Return the weight P W nearest to W that commutes with ``group``, and the distance ‖W - P W‖.

    Args:
        weight: W, (O, I / conv_groups, h, w).
        after: The feature groups of the O output channels.
        before: The feature groups of the I input channels.
        group: Rotations and flips.
        conv_groups: The ``groups`` of the convolution.
        random: Take ``weight`` as a random draw: any other equivariant one will do. Then the part
            between every two sizes is scaled back to the norm it had, and kernels that resample
            lose half of their mean. The distance is still that of the nearest.
        smooth: Make kernels of patterns that rotate by any angle, as they always are where an
            element resamples.

    >>> kernels, _ = tied_weight(torch.rand(4, 1, 3, 3), [(4, 4)], [(1, 1)], rotation(4))
    >>> torch.equal(kernels[1], kernels[0].rot90(1, (-2, -1)))
    True
    """
    if cuts(conv_groups, after, before, group):
        raise ValueError(
            f"its {conv_groups} conv groups cut through feature groups, whose members {group} permutes: "
            f"use groups=1, or a number that leaves each feature group in one piece"
        )
    precise_weight = weight.detach().to("cpu", torch.float64)
    given = _without_conv_groups(precise_weight, conv_groups)
    target = given
    if smooth:
        target = _without_conv_groups(_smoothed(precise_weight), conv_groups)
    tied = _projected(target, after, before, group)
    distance = float((given - tied).norm())
    if random and not _only_permutes(given, group):
        mean = tied.mean((-2, -1), keepdim=True)  # (O, I, 1, 1)
        tied = _projected(tied - (1 - KEPT_MEAN_SHARE) * mean, after, before, group)
    if random:
        _restore_norms(tied, given, after, before)
    tied = _with_conv_groups(tied, conv_groups)
    return tied.to(weight.device, weight.dtype), distance


def cuts(parts: int, after: Blocks, before: Blocks, group: Group) -> bool:
    """Return whether ``group`` mixes channels of different parts of a layer with equal ``parts``.

    >>> cuts(2, [(4, 8)], [(4, 8)], rotation(4)), cuts(4, [(4, 8)], [(4, 8)], rotation(4))
    (False, True)
    """
    if parts == 1:
        return False
    rows = num_channels(after)
    columns = num_channels(before) // parts
    ones = torch.ones(rows, columns, 1, 1, dtype=torch.float64, device="cpu")
    # 1 where an input and an output channel are in the same part: a weight that must commute, too
    same_part = _without_conv_groups(ones, parts)
    projected = _projected(same_part, after, before, group)
    return not torch.allclose(projected, same_part)


def ungrouped(conv_groups: int, after: Blocks, before: Blocks, group: Group) -> tuple[Blocks, Blocks, int]:
    """Return the feature groups that tie the weight of a grouped convolution as it is stored.

    It is (O, I / conv_groups, h, w), and there are some if every conv group holds whole feature
    groups of one size, or a single channel (depthwise). Otherwise the arguments come back, and the
    weight has to be written out with zeros.

    >>> ungrouped(8, [(4, 8)], [(4, 8)], rotation(4))
    ([(4, 8)], [(1, 1)], 1)
    >>> ungrouped(2, [(4, 8)], [(4, 16)], rotation(4))
    ([(4, 8)], [(4, 8)], 1)
    """
    if conv_groups == 1 or cuts(conv_groups, after, before, group):
        return after, before, conv_groups
    channels = num_channels(before) // conv_groups
    if channels == 1 and list(after) == list(before):
        return after, [(1, 1)], 1
    size = before[0][0]
    one_size = all(other == size for other, _ in before)
    if one_size and channels % size == 0:
        return after, [(size, channels)], 1
    return after, before, conv_groups


def _projected(weight: Tensor, after: Blocks, before: Blocks, group: Group) -> Tensor:
    """Return P W of a weight (O, I, h, w)."""
    if _only_permutes(weight, group):
        return _between_sizes(weight, after, before, group, _orbit_means)
    return _between_sizes(weight, after, before, group, commuting.project)


def _between_sizes(
    weight: Tensor, after: Blocks, before: Blocks, group: Group, change: Callable[[Tensor, Group], Tensor]
) -> Tensor:
    """Apply ``change(kernels, group)`` to each part of a weight (O, I, h, w) between two sizes.

    It gets and returns (feature groups out, feature groups in, members out, members in, h, w).
    """
    result = torch.empty_like(weight)
    for rows, columns, out, inner in _parts(after, before):
        part = weight[rows, columns]
        kernels = part.unflatten(1, (-1, inner))  # (O, groups in, inner, h, w)
        kernels = kernels.unflatten(0, (-1, out))  # (groups out, out, groups in, inner, h, w)
        kernels = kernels.transpose(1, 2)  # (groups out, groups in, out, inner, h, w)
        changed = change(kernels, group).transpose(1, 2)  # (groups out, out, groups in, inner, h, w)
        result[rows, columns] = changed.flatten(2, 3).flatten(0, 1)  # (O, I, h, w)
    return result


def _orbit_means(kernels: Tensor, group: Group) -> Tensor:
    """Return P W where elements only permute numbers: each number becomes the mean of its orbit.

    Each orbit is summed once, so its numbers come out equal to the bit, and equal numbers stay.
    """
    # (elements, orbits) and (places,)
    places, orbit_of = _orbits_of_numbers(group, *kernels.shape[2:], kernels.device)
    numbers = kernels.movedim((0, 1), (-2, -1))  # (out, inner, h, w, groups out, groups in)
    numbers = numbers.flatten(0, 3)  # (places, groups out, groups in): whole rows are moved
    orbits = numbers.index_select(0, places.flatten())  # (elements * orbits, groups out, groups in)
    orbits = orbits.unflatten(0, places.shape)  # (elements, orbits, groups out, groups in)
    # the mean over g, relative to the first number: those that are equal give exactly 0 here
    mean = orbits[0] + (orbits - orbits[0]).mean(0)  # (orbits, groups out, groups in)
    by_place = mean.index_select(0, orbit_of)  # (places, groups out, groups in)
    by_place = by_place.unflatten(0, kernels.shape[2:])  # (out, inner, h, w, groups out, groups in)
    return by_place.movedim((-2, -1), (0, 1))  # (groups out, groups in, out, inner, h, w)


@lru_cache(maxsize=128)
def _orbits_of_numbers(
    group: Group, out: int, inner: int, height: int, width: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the places of each orbit of numbers in kernels, and the orbit of each place.

    They are (elements, orbits) and (places,).
    """
    # a tensor cached in inference mode could not be used in training later
    with torch.inference_mode(False), torch.no_grad():
        count = out * inner * height * width
        places = torch.arange(count, dtype=torch.float64, device="cpu")
        places = places.view(out, inner, height, width)  # each holds its own number
        members_out = member_table(group, out)  # (elements, out)
        members_in = member_table(group, inner)  # (elements, inner)
        moved = []  # ρ_out(g) W ρ_in(g)⁻¹ of a weight W that holds the number of each place
        for i in range(len(group)):
            permuted = places[members_out[i]][:, members_in[i]]  # (out, inner, h, w)
            permuted = permuted.view(1, -1, height, width)  # (1, out * inner, h, w)
            element = torch.tensor([i], device="cpu")
            moved.append(group.act(permuted, element))  # (1, out * inner, h, w)
        table = torch.cat(moved).flatten(1).round().long()  # (elements, places)
        # the columns of places in one orbit hold the same places, so they are equal once sorted
        columns = table.sort(0).values
        orbits, orbit_of = columns.unique(dim=1, return_inverse=True)
        return orbits.to(device), orbit_of.to(device)


def _only_permutes(weight: Tensor, group: Group) -> bool:
    """Return whether elements only permute the numbers of a weight; a single pixel stays."""
    return weight[0, 0].numel() == 1 or all(group.exact)


def _smoothed(weight: Tensor) -> Tensor:
    """Return the nearest smooth kernels; those that are not square cannot rotate, and stay."""
    if not _is_square(weight):
        return weight
    matrix = smoothing(weight.shape[-1], weight.device, precise(weight))  # (h * w, h * w)
    pixels = weight.flatten(2).to(matrix.dtype)  # (O, I, h * w)
    smooth = (pixels @ matrix).to(weight.dtype)  # (O, I, h * w)
    return smooth.view_as(weight)  # (O, I, h, w)


def _is_square(weight: Tensor) -> bool:
    height, width = weight.shape[-2:]
    return height == width > 1


def _restore_norms(tied: Tensor, given: Tensor, after: Blocks, before: Blocks) -> None:
    """Scale the part between every two sizes to the norm that it was ``given`` with."""
    for rows, columns, _, _ in _parts(after, before):
        norm_before = float(given[rows, columns].norm())
        norm = float(tied[rows, columns].norm())
        if norm > MIN_SHARE * norm_before:
            tied[rows, columns] *= norm_before / norm


def _parts(after: Blocks, before: Blocks) -> Iterator[tuple[slice, slice, int, int]]:
    """Yield each part of a weight between two sizes: rows, columns, and the sizes out and in."""
    for rows, out in _slices(after):
        for columns, inner in _slices(before):
            yield rows, columns, out, inner


def _slices(blocks: Blocks) -> list[tuple[slice, int]]:
    """Return the channels of each block, and the size of its feature groups."""
    slices = []
    first = 0
    for size, channels in blocks:
        slices.append((slice(first, first + channels), size))
        first += channels
    return slices


def _without_conv_groups(weight: Tensor, conv_groups: int) -> Tensor:
    """Write out a weight (O, I / groups, h, w) as that of one conv group, (O, I, h, w)."""
    if conv_groups == 1:
        return weight
    # 1 where an output and an input channel are in the same conv group, 0 elsewhere
    same = torch.eye(conv_groups, dtype=weight.dtype, device=weight.device)
    same = same[:, None, :, None, None, None]  # (groups, 1, groups, 1, 1, 1)
    parts = weight.unflatten(0, (conv_groups, -1))  # (groups, O / groups, I / groups, h, w)
    full = parts.unsqueeze(2) * same  # (groups, O / groups, groups, I / groups, h, w)
    return full.flatten(2, 3).flatten(0, 1)  # (O, I, h, w)


def _with_conv_groups(weight: Tensor, conv_groups: int) -> Tensor:
    """Do the inverse of :func:`_without_conv_groups`."""
    if conv_groups == 1:
        return weight
    parts = weight.unflatten(1, (conv_groups, -1))  # (O, groups, I / groups, h, w)
    parts = parts.unflatten(0, (conv_groups, -1))  # (groups, O / groups, groups, I / groups, h, w)
    same = parts.diagonal(dim1=0, dim2=2).movedim(-1, 0)  # (groups, O / groups, I / groups, h, w)
    return same.flatten(0, 1)  # (O, I / groups, h, w)
