"""Kernels between two feature groups that commute with a group, as a function of few numbers.

Let W[a, b] be the kernel from member b of one feature group to member a of another. A layer
commutes with the group if W[g·a, g·b] = g · W[a, b] for every element g, which permutes members and
rotates kernels. So the group carries every place (a, b, pixel) around an orbit, and few numbers c
determine all of W. Written as rows, W (places) and c (numbers),

    W = c M    and    c = W R,    where W R M = P W is the nearest commuting W to any W.

M would be large and mostly 0. So numbers are first combined by small matrices, and the results are
copied to places, which are selected by their index. Three cases, all in :func:`commuting`:

- Elements only permute places, as quarter turns do: c are the pixels of one kernel of each orbit,
  which the others copy, and R takes means over the group. Smooth kernels first lose what is not
  smooth.
- An element resamples: kernels are made of the patterns of ``harmonics.py``, which rotate by any
  angle, because resampled pixels could not be rotated back. c are coefficients of patterns, Fourier
  transformed over the orientation of a relative to b, as in steerable CNNs, because Adam learns
  best there.
- Vectors: the output is a pair (dx, dy) that rotates with the image.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from ..groups.group import Group
from ..groups.members import member_table, similarities
from .harmonics import harmonics, orthonormal, smoothing

__all__ = ["VECTOR", "Kernels", "commuting"]

VECTOR = -2
"""The size of a feature group that is a vector (dx, dy): dx points right, dy points down."""

Moves = tuple[tuple[int, ...], ...]
"""For each element: which place of an orbit it carries to each place of it."""


class Kernels(NamedTuple):
    """How kernels follow from numbers: W[place] = (c E)[copies[place]].

    And back, for any W: c = (mean over g of W[orbits[g]]) D.
    """

    copies: Tensor
    """The combined number that each place copies, (places,)."""
    orbits: Tensor
    """The places that elements carry to the first copy of each combined number, (elements, all)."""
    expand: tuple[Tensor, ...] = ()
    """E: matrices (n, m) that combine numbers n at a time, one after the other."""
    reduce: tuple[Tensor, ...] = ()
    """D: matrices (m, n) that do the inverse."""

    @property
    def num_numbers(self) -> int:
        """How many independent numbers there are."""
        count = self.orbits.shape[1]
        for matrix in self.reduce:
            count = count // matrix.shape[0] * matrix.shape[1]
        return count


@lru_cache(maxsize=256)
def commuting(
    group: Group, out: int, inner: int, height: int, width: int, smooth: bool, exact: bool = False
) -> Kernels:
    """Return the kernels that commute with ``group`` between two feature groups.

    Args:
        group: Rotations and flips.
        out: The size of the feature groups in the output; ``VECTOR`` for vectors.
        inner: The size of the feature groups in the input.
        height: Of the kernel; 1 for a linear layer, a bias or a norm.
        width: Of the kernel.
        smooth: Whether kernels are made of patterns that rotate by any angle, whatever the group.
        exact: Whether only elements that permute pixels count, so that none resamples.

    >>> kernels = commuting(rotation(4), 4, 4, 3, 3, smooth=False)
    >>> kernels.num_numbers, len(kernels.copies)  # four kernels of nine pixels determine sixteen
    (36, 144)
    """
    # a tensor cached in inference mode could not be used in training later
    with torch.inference_mode(False), torch.no_grad():
        resamples = not (exact or all(group.exact))
        if out == VECTOR:
            only_permutes = height * width == 1 or not resamples
            return _of_rows(_vector_rows(group, inner, height, width, only_permutes))
        # a single pixel stays, but several orientations of a relative to b have a Fourier transform
        if resamples and (height * width > 1 or min(out, inner) > 1):
            return _resampled(group, out, inner, height)
        copied = _copied(group, out, inner, height, width, exact)
        if smooth and height == width > 1:
            matrix = _smoothed_numbers(copied, out * inner, height)
            return copied._replace(expand=(matrix,), reduce=(matrix,))
        return copied


def _copied(group: Group, out: int, inner: int, height: int, width: int, exact: bool) -> Kernels:
    """Return the kernels whose places are only permuted: P W = mean over g of ρ_out(g) W ρ_in(g)⁻¹.

    So each place of P W holds the mean of its orbit; the first place of an orbit stands for it.
    """
    sources = _sources(group, out, inner, height, width, exact)  # (elements, places)
    first_of_orbit = sources.min(0).values  # (places,)
    firsts, copies = first_of_orbit.unique(return_inverse=True)  # (numbers,), (places,)
    return Kernels(copies, sources[:, firsts])


def _smoothed_numbers(kernels: Kernels, num_kernels: int, size: int) -> Tensor:
    """Return S, which takes numbers to those of the nearest smooth kernels.

    Copied to all places, smoothed there and averaged over orbits; P commutes with smoothing. If
    numbers are whole kernels, all of them are smoothed alike: then S is that of a single kernel.
    """
    identity = torch.eye(kernels.num_numbers, dtype=torch.float64, device="cpu")
    places = identity[:, kernels.copies]  # (numbers, places)
    pixels = places.unflatten(1, (num_kernels, -1)) @ smoothing(size)  # (numbers, kernels, h * w)
    smoothed = pixels.flatten(1)[:, kernels.orbits].mean(1)  # (numbers, numbers)
    one_kernel = smoothed[: size**2, : size**2]
    if kernels.num_numbers % size**2 == 0:
        repeats = torch.eye(kernels.num_numbers // size**2, dtype=torch.float64, device="cpu")
        if torch.allclose(torch.kron(repeats, one_kernel), smoothed):
            return one_kernel.contiguous()
    return smoothed


def _sources(group: Group, out: int, inner: int, height: int, width: int, exact: bool = False) -> Tensor:
    """Return which place each element moves to each place of W, (elements, places)."""
    count = out * inner * height * width
    places = torch.arange(count, dtype=torch.float64, device="cpu")
    places = places.view(out, inner, height, width)  # each holds its own number
    members_out = member_table(group, out)  # (elements, out)
    members_in = member_table(group, inner)  # (elements, inner)
    moved = []  # ρ_out(g) W ρ_in(g)⁻¹ of a weight W that holds the number of each place
    for i in range(len(group)):
        if exact and not group.exact[i]:
            continue
        permuted = places[members_out[i]][:, members_in[i]]  # (out, inner, h, w)
        permuted = permuted.view(1, -1, height, width)  # (1, out * inner, h, w)
        moved.append(group.act(permuted, torch.tensor([i], device="cpu")))  # (1, out * inner, h, w)
    return torch.cat(moved).flatten(1).round().long()  # (elements, places)


def _of_rows(rows: Tensor) -> Kernels:
    """Return the combinations of given rows (numbers, places), with orthonormal ones as basis B.

    W = c B and c = W Bᵀ, scaled so that numbers and weights have the same root mean square.
    """
    basis = orthonormal(rows)
    ratio = math.sqrt(basis.shape[1] / max(len(basis), 1))  # no bias of a vector commutes
    places = torch.arange(basis.shape[1], device="cpu")
    return Kernels(places, places[None], (basis * ratio,), (basis.T / ratio,))


def _vector_rows(group: Group, inner: int, height: int, width: int, only_permutes: bool) -> Tensor:
    """Return rows that span the kernels W (2, inner, h, w) to a vector that commute.

    A pattern in one place has the mean over the group Σ_g ρ_out(g) ρ_in(g) g·ψ, where ρ_out(g) is a
    matrix; these means, for every pattern in every place, span all that commute.
    """
    if only_permutes:
        sources = _sources(group, 1, inner, height, width)  # (elements, inner * h * w)
        identity = torch.eye(sources.shape[1], dtype=torch.float64, device="cpu")
        moved = identity[:, sources].movedim(1, 0)  # (elements, patterns, inner * h * w)
    else:
        identity = torch.eye(inner, dtype=torch.float64, device="cpu")
        moved_by_each = []
        for g, members in zip(similarities(group), member_table(group, inner), strict=True):
            patterns = harmonics(height, g).flatten(1)  # (patterns, h * w)
            moved_by_each.append(torch.kron(identity[:, members], patterns))
        moved = torch.stack(moved_by_each)  # (elements, inner * patterns, inner * h * w)
    means = moved.new_zeros(2, moved.shape[1], 2, moved.shape[2])
    for g, patterns in zip(similarities(group), moved, strict=True):
        (xx, xy), (yx, yy) = g.matrix  # with y pointing up
        matrix = moved.new_tensor([[xx, -xy], [-yx, yy]])  # with y pointing down
        means += matrix.T[:, None, :, None] * patterns[None, :, None, :]
    return means.flatten(2).flatten(0, 1)  # (2 * patterns, 2 * inner * h * w)


def _resampled(group: Group, out: int, inner: int, size: int) -> Kernels:
    """Return the kernels whose elements resample pixels, as combinations of rotated patterns.

    For orbits that the group moves in the same way, let B hold the orthonormal rows of one orbit
    and F the Fourier transform over these orbits, which differ by the orientation of a relative to
    b. Then W = c (F ⊗ B), scaled so that numbers and weights have the same root mean square. It is
    computed in two steps, F ⊗ 1 and then B for each orbit, as F ⊗ B is large.
    """
    found = _orbits(group, out, inner)
    transforms = []  # for all orbits that are moved alike
    expand = []  # for each orbit
    reduce = []
    order: list[int] = []  # the places of all orbits
    for moves, orbits in found.items():
        basis = _basis(group, moves, size)  # (rows, places of an orbit * h * w)
        ratio = math.sqrt(basis.shape[1] / len(basis))
        one = torch.eye(len(basis), dtype=basis.dtype, device="cpu")
        transforms.append(torch.kron(_fourier(len(orbits)), one))  # (frequencies * rows, orbits * rows)
        for places in orbits:
            expand.append(basis * ratio)
            reduce.append(basis / ratio)
            order += places
    if len(found) == 1:  # all orbits are expanded in the same way
        expand, reduce = expand[:1], reduce[:1]
    fourier = torch.block_diag(*transforms)
    pixels = torch.arange(size * size, device="cpu")
    source = torch.tensor(order, device="cpu")[:, None] * size**2 + pixels  # (out * inner, h * w)
    source = source.flatten()  # where each combined number goes
    return Kernels(
        copies=source.argsort(),
        orbits=source[None],
        expand=(fourier, torch.block_diag(*expand)),
        reduce=(torch.block_diag(*reduce).T, fourier.T),
    )


def _fourier(count: int) -> Tensor:
    """Return the real Fourier transform F of ``count`` points on a circle: orthonormal rows.

    F is (rows, points). A row has cos(2πqk / count) or sin(2πqk / count) at point k, for one
    frequency q; the first row is the mean.
    """
    angles = 2 * math.pi * torch.arange(count, dtype=torch.float64, device="cpu") / count
    rows = []
    for q in range(count // 2 + 1):
        rows.append(torch.cos(q * angles))
        # the sine is 0 at frequency 0, and at the highest one of an even count
        if 0 < 2 * q < count:
            rows.append(torch.sin(q * angles))
    waves = torch.stack(rows)  # (rows, points)
    return waves / waves.norm(dim=1, keepdim=True)


def _orbits(group: Group, out: int, inner: int) -> dict[Moves, list[list[int]]]:
    """Return the orbits of pairs of members, gathered by how the group moves pairs within them.

    The place of out member a and in member b is ``a * inner + b``.
    """
    members_out = member_table(group, out).tolist()  # [element][place]
    members_in = member_table(group, inner).tolist()
    tables = list(zip(members_out, members_in, strict=True))  # of each element
    left = dict.fromkeys(product(range(out), range(inner)))  # an ordered set
    found: dict[Moves, list[list[int]]] = {}
    while left:
        first_a, first_b = next(iter(left))
        orbit: dict[tuple[int, int], int] = {}  # place -> its number in the orbit
        for rows, columns in tables:
            place = rows[first_a], columns[first_b]
            orbit.setdefault(place, len(orbit))
        for place in orbit:
            del left[place]
        moves = []
        for rows, columns in tables:
            sources = [orbit[rows[a], columns[b]] for a, b in orbit]
            moves.append(tuple(sources))
        places = [a * inner + b for a, b in orbit]
        found.setdefault(tuple(moves), []).append(places)
    return found


def _basis(group: Group, moves: Moves, size: int) -> Tensor:
    """Return B: orthonormal rows, each of them commuting kernels for all places of an orbit.

    A pattern ψ in one place has the mean over the group Σ_g g·ψ in the place that g carries it to;
    these means, for every pattern in every place, span all kernels that commute.
    """
    places = len(moves[0])
    original = harmonics(size)  # (patterns, size, size)
    means = original.new_zeros(places, len(original), places, size * size)
    for element, sources in zip(similarities(group), moves, strict=True):
        patterns = harmonics(size, element).flatten(1)  # (patterns, size * size)
        for place, source in enumerate(sources):
            means[source, :, place] += patterns
    rows = means.flatten(2).flatten(0, 1)  # (places * patterns, places * size * size)
    return orthonormal(rows)
