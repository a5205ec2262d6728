"""Tied weights: from a kernel and the feature groups on its two sides to the nearest that commutes."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, product
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ._groups import Group
from ._patterns import harmonics, orthonormal, smoothing
from ._regular import Blocks, members, num_channels, similarities

__all__ = ["Tie", "cuts", "tie"]

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


def _mean(kernels: Tensor, after: Blocks, before: Blocks, group: Group) -> Tensor:
    """The mean of kernels (O, I, h, w) over the group; where elements resample, the nearest that commute."""
    result = torch.empty_like(kernels)
    permutes = _permutes(kernels, group)
    for (rows, out), (columns, inner) in product(_slices(after), _slices(before)):
        block = kernels[rows, columns].unflatten(1, (-1, inner)).unflatten(0, (-1, out)).transpose(1, 2)
        # (groups out, groups in, members out, members in, h, w)
        mean = _exact_mean(block, group) if permutes else _nearest(block, group)
        result[rows, columns] = mean.transpose(1, 2).flatten(2, 3).flatten(0, 1)
    return result


def _permutes(kernels: Tensor, group: Group) -> bool:
    """Whether elements only permute the numbers of kernels; a single pixel turns in its place."""
    return kernels[0, 0].numel() == 1 or all(group.exact)


def _smoothed(kernels: Tensor) -> Tensor:
    """The nearest smooth kernels; those that are not square do not turn, and stay as they are."""
    if not _square(kernels):
        return kernels
    matrix = smoothing(kernels.shape[-1], kernels.device, _precise(kernels))
    return (kernels.flatten(2).to(matrix.dtype) @ matrix).to(kernels.dtype).view_as(kernels)


def _square(kernels: Tensor) -> bool:
    height, width = kernels.shape[-2:]
    return height == width > 1


def _precise(kernels: Tensor) -> torch.dtype:
    """Double precision, which neither autocast nor TF32 rounds; mps has none."""
    return torch.float32 if kernels.device.type == "mps" else torch.float64


def _exact_mean(block: Tensor, group: Group) -> Tensor:
    """Each orbit of numbers is summed once, so that they are equal to the bit."""
    places, orbit = _places(group, *block.shape[2:], block.device)
    rows = block.movedim((0, 1), (-2, -1)).flatten(0, 3)  # a row for each number: it is moved as a whole
    mean = rows.index_select(0, places.flatten()).unflatten(0, places.shape).mean(0)
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
            for i, (rows, columns) in enumerate(zip(members(group, out), members(group, inner), strict=True))
        ]
        places, orbit = (
            torch.cat(moved).flatten(1).round().long().sort(0).values.unique(dim=1, return_inverse=True)
        )
        return places.to(device), orbit.to(device)


def _nearest(block: Tensor, group: Group) -> Tensor:
    """Made of patterns that turn by any angle, as resampling alone cannot be undone."""
    out, inner, *size = block.shape[2:]
    rows = block.movedim((0, 1), (-2, -1)).flatten(-2).flatten(0, 1)  # (pairs of members, h, w, others)
    tied = torch.empty_like(rows, memory_format=torch.contiguous_format)
    for pairs, basis in _bases(group, out, inner, size[0], block.device, _precise(block)):
        coefficients = basis @ rows[pairs].flatten(1, 3).to(basis.dtype)
        tied[pairs] = (basis.T @ coefficients).to(block.dtype).unflatten(1, (-1, *size))
    return tied.unflatten(0, (out, inner)).unflatten(-1, block.shape[:2]).movedim((-2, -1), (0, 1))


@lru_cache(maxsize=128)
def _bases(
    group: Group, out: int, inner: int, size: int, device: torch.device, dtype: torch.dtype
) -> list[tuple[Tensor, Tensor]]:
    """Orbits of pairs of members, (orbits, pairs), and what kernels of these pairs are made of."""
    with torch.inference_mode(False), torch.no_grad():
        return [
            (torch.tensor(orbits, device=device), _basis(group, table, size).to(device, dtype))
            for table, orbits in _orbits(group, out, inner).items()
        ]


Table = tuple[tuple[int, ...], ...]


def _orbits(group: Group, out: int, inner: int) -> dict[Table, list[list[int]]]:
    """Pairs of members that the group takes to each other, by which of them it moves to each place.

    A pair is ``out member * inner + inner member``.
    """
    tables = list(zip(members(group, out).tolist(), members(group, inner).tolist(), strict=True))
    left, found = dict.fromkeys(product(range(out), range(inner))), dict[Table, list[list[int]]]()
    while left:
        first, second = next(iter(left))
        pairs = list(dict.fromkeys((rows[first], columns[second]) for rows, columns in tables))
        for pair in pairs:
            del left[pair]
        place = {pair: p for p, pair in enumerate(pairs)}
        table = tuple(tuple(place[rows[a], columns[b]] for a, b in pairs) for rows, columns in tables)
        found.setdefault(table, []).append([a * inner + b for a, b in pairs])
    return found


def _basis(group: Group, table: Table, size: int) -> Tensor:
    """Orthonormal rows: the kernels of an orbit, one after another, that commute.

    They are the means over the group of each function in each place.
    """
    turned = torch.stack([harmonics(size, step).flatten(1) for step in similarities(group)])
    kernels = turned.new_zeros(len(table[0]), turned.shape[1], len(table[0]), size * size)
    for functions, row in zip(turned, table, strict=True):
        for place, pair in enumerate(row):
            kernels[pair, :, place] += functions
    return orthonormal(kernels.flatten(2).flatten(0, 1))


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
