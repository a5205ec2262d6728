"""Tied weights: from a kernel and the feature groups on its two sides to the nearest that commutes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from itertools import accumulate, product
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..groups.group import Group
from ..groups.members import Blocks, member_table, num_channels
from .commuting import nearest, precise, to_coefficients, to_kernels
from .harmonics import smoothing

__all__ = ["Tie", "cuts", "tie", "ungrouped"]

LOST = 1e-6
"""Kernels of which no more than this share is left are as good as 0."""
CONSTANT = 0.5
"""About what is left of the mean over its pixels of a random kernel, where an element resamples.

Two of the six patterns of a 3×3 kernel have one. Kernels of them pass brightness more than what an image
shows, from layer to layer features come to vary together, and a deep network learns slowly: ResNet18 under
rot8 does on validation images, the six-conv net under rot4 does not. It turns less well for it.
"""


class Tie(NamedTuple):
    """A weight, or what a layer has for each channel, and the feature groups that tie its numbers."""

    module: nn.Module
    name: str
    group: Group
    after: Blocks
    before: Blocks = ((1, 1),)
    conv_groups: int = 1
    smooth: bool = False

    @property
    def tensor(self) -> Tensor:
        """As the module has it now: a buffer is another one after ``.to(device)``."""
        found: Tensor = getattr(self.module, self.name)
        return found

    def nearest(self, values: Tensor) -> Tensor:
        """The tied values nearest to these, on their device and in their precision."""
        kernels = self._as_kernels(values)
        kernels = _smoothed(kernels) if self.smooth else kernels
        tied = _mean(_whole(kernels, self.conv_groups), self.after, self.before, self.group)
        return _parts(tied, self.conv_groups).view_as(values)

    @property
    def patterned(self) -> bool:
        """Whether these are kernels of patterns that an element resamples, which coefficients stand for."""
        return self.tensor.ndim == 4 and self.conv_groups == 1 and not all(self.group.exact)

    def to_coefficients(self, values: Tensor) -> Tensor:
        """Those of the nearest tied values, in a tensor of this shape with 0 in all other places."""
        return self._changed(values, to_coefficients)

    def from_coefficients(self, values: Tensor) -> Tensor:
        """The tied values that have these coefficients."""
        return self._changed(values, to_kernels)

    def _changed(self, values: Tensor, change: Callable[[Tensor, Group], Tensor]) -> Tensor:
        kernels = self._as_kernels(values)
        changed = _blockwise(kernels, self.after, self.before, lambda block: change(block, self.group))
        return changed.view_as(values)

    @property
    def copies(self) -> bool:
        """Whether what is tied are equal numbers, which equal steps leave so."""
        kernels = self._as_kernels(self.tensor)
        return _permutes(kernels, self.group) and not (self.smooth and _square(kernels))

    def start(self, values: Tensor, random: bool = False) -> tuple[Tensor, float]:
        """The tied values to start with, and how far the nearest are: :func:`tie`."""
        kernels = self._as_kernels(values)
        tied, distance = tie(
            kernels, self.after, self.before, self.group, self.conv_groups, random, self.smooth
        )
        return tied.view_as(values), distance

    def _as_kernels(self, values: Tensor) -> Tensor:
        channels = num_channels(self.after)
        shape = (1, 1, 1) if values.numel() == channels else (-1, *values.shape[2:], 1, 1)[:3]
        return values.reshape(channels, *shape)


def tie(
    weight: Tensor,
    after: Blocks,
    before: Blocks,
    group: Group,
    conv_groups: int = 1,
    random: bool = False,
    smooth: bool = False,
) -> tuple[Tensor, float]:
    """The kernels (O, I, k, k) nearest to ``weight`` that commute with ``group``, and how far they are.

    ``after`` and ``before`` are the feature groups of O and I, whose members the group permutes. It is the
    mean over the group of the transformed kernels, so that filters of a feature group are transformed copies.
    ``smooth`` ones turn by any angle: they are made of :func:`harmonics`, as they always are where an element
    resamples. Of a ``random`` draw other kernels will do: there they have less of a mean, and what lies
    between each two sizes is rescaled to the norm that it had. The distance is always that of the nearest.

    >>> kernels, _ = tie(torch.rand(4, 1, 3, 3), [(4, 4)], [(1, 1)], rotation(4))
    >>> torch.equal(kernels[1], kernels[0].rot90(1, (-2, -1)))
    True
    """
    given = weight.detach().to("cpu", torch.float64)
    kernels = _whole(given, conv_groups)
    if cuts(conv_groups, after, before, group):
        raise ValueError(
            f"its {conv_groups} conv groups cut through feature groups, whose members {group} permutes: "
            f"take groups=1, or a number that leaves each feature group in one piece"
        )
    tied = _mean(_whole(_smoothed(given), conv_groups) if smooth else kernels, after, before, group)
    distance = float((kernels - tied).norm())
    if random:
        if not _permutes(kernels, group):
            tied = _mean(tied - (1 - CONSTANT) * tied.mean((-2, -1), keepdim=True), after, before, group)
        for (rows, _), (columns, _) in product(_slices(after), _slices(before)):
            was, now = (float(each[rows, columns].norm()) for each in (kernels, tied))
            if now > LOST * was:
                tied[rows, columns] *= was / now
    return _parts(tied, conv_groups).to(weight.device, weight.dtype), distance


def cuts(parts: int, after: Blocks, before: Blocks, group: Group) -> bool:
    """Whether ``group`` mixes channels of different ones of so many equal ``parts``.

    >>> cuts(2, [(4, 8)], [(4, 8)], rotation(4)), cuts(4, [(4, 8)], [(4, 8)], rotation(4))
    (False, True)
    """
    if parts == 1:
        return False
    shape = num_channels(after), num_channels(before) // parts, 1, 1
    pattern = _whole(torch.ones(shape, dtype=torch.float64, device="cpu"), parts)
    return not torch.allclose(_mean(pattern, after, before, group), pattern)


def ungrouped(conv_groups: int, after: Blocks, before: Blocks, group: Group) -> tuple[Blocks, Blocks, int]:
    """The feature groups on both sides of a weight, without conv groups where it is tied alike without them.

    So it is if each holds whole feature groups of one size, or a single channel, which is depthwise.

    >>> ungrouped(8, [(4, 8)], [(4, 8)], rotation(4)), ungrouped(2, [(4, 8)], [(4, 16)], rotation(4))
    (([(4, 8)], [(1, 1)], 1), ([(4, 8)], [(4, 8)], 1))
    """
    if conv_groups > 1 and not cuts(conv_groups, after, before, group):
        channels, size = num_channels(before) // conv_groups, before[0][0]
        if channels == 1 and list(after) == list(before):
            return after, [(1, 1)], 1
        if channels % size == 0 and all(other == size for other, _ in before):
            return after, [(size, channels)], 1
    return after, before, conv_groups


def _mean(kernels: Tensor, after: Blocks, before: Blocks, group: Group) -> Tensor:
    """The mean of kernels (O, I, h, w) over the group; where elements resample, the nearest that commute."""
    mean = _exact_mean if _permutes(kernels, group) else nearest
    return _blockwise(kernels, after, before, partial(mean, group=group))


def _blockwise(kernels: Tensor, after: Blocks, before: Blocks, change: Callable[[Tensor], Tensor]) -> Tensor:
    """What ``change`` makes of kernels (O, I, h, w), one block of them after another.

    It is given (feature groups out, feature groups in, members out, members in, h, w).
    """
    result = torch.empty_like(kernels)
    for (rows, out), (columns, inner) in product(_slices(after), _slices(before)):
        block = kernels[rows, columns].unflatten(1, (-1, inner)).unflatten(0, (-1, out)).transpose(1, 2)
        result[rows, columns] = change(block).transpose(1, 2).flatten(2, 3).flatten(0, 1)
    return result


def _permutes(kernels: Tensor, group: Group) -> bool:
    """Whether elements only permute the numbers of kernels; a single pixel turns in its place."""
    return kernels[0, 0].numel() == 1 or all(group.exact)


def _smoothed(kernels: Tensor) -> Tensor:
    """The nearest smooth kernels; those that are not square do not turn, and stay as they are."""
    if not _square(kernels):
        return kernels
    matrix = smoothing(kernels.shape[-1], kernels.device, precise(kernels))
    return (kernels.flatten(2).to(matrix.dtype) @ matrix).to(kernels.dtype).view_as(kernels)


def _square(kernels: Tensor) -> bool:
    height, width = kernels.shape[-2:]
    return height == width > 1


def _exact_mean(block: Tensor, group: Group) -> Tensor:
    """Each orbit of numbers is summed once, so that they are equal to the bit; those that are so stay so."""
    places, orbit = _places(group, *block.shape[2:], block.device)
    rows = block.movedim((0, 1), (-2, -1)).flatten(0, 3)  # a row for each number: it is moved as a whole
    orbits = rows.index_select(0, places.flatten()).unflatten(0, places.shape)
    mean = orbits[0] + (orbits - orbits[0]).mean(0)
    return mean.index_select(0, orbit).unflatten(0, block.shape[2:]).movedim((-2, -1), (0, 1))


@lru_cache(maxsize=128)
def _places(
    group: Group, out: int, inner: int, height: int, width: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Where the numbers of each orbit stand in a block, (elements, orbits), and the orbit of each of them."""
    with torch.inference_mode(False), torch.no_grad():  # a cached inference tensor would be of no use later
        here = torch.arange(out * inner * height * width, dtype=torch.float64, device="cpu")
        block = here.view(out, inner, height, width)
        moved = [
            group.act(block[rows][:, columns].view(1, -1, height, width), torch.tensor([i], device="cpu"))
            for i, (rows, columns) in enumerate(
                zip(member_table(group, out), member_table(group, inner), strict=True)
            )
        ]
        places, orbit = (
            torch.cat(moved).flatten(1).round().long().sort(0).values.unique(dim=1, return_inverse=True)
        )
        return places.to(device), orbit.to(device)


def _slices(blocks: Blocks) -> list[tuple[slice, int]]:
    """The channels of each block, and its size."""
    ends = list(accumulate(channels for _, channels in blocks))
    return [(slice(end - channels, end), size) for end, (size, channels) in zip(ends, blocks, strict=True)]


def _whole(kernels: Tensor, conv_groups: int) -> Tensor:
    """Kernels (O, I / groups, k, k) as those of a convolution without groups, with zeros between them."""
    if conv_groups == 1:
        return kernels
    same = torch.eye(conv_groups, dtype=kernels.dtype, device=kernels.device)[:, None, :, None, None, None]
    return (kernels.unflatten(0, (conv_groups, -1)).unsqueeze(2) * same).flatten(2, 3).flatten(0, 1)


def _parts(kernels: Tensor, conv_groups: int) -> Tensor:
    """The inverse of :func:`_whole`."""
    if conv_groups == 1:
        return kernels
    split = kernels.unflatten(1, (conv_groups, -1)).unflatten(0, (conv_groups, -1))
    return split.diagonal(dim1=0, dim2=2).movedim(-1, 0).flatten(0, 1)
