"""Kernels between two feature groups that commute with rotations by any angle.

A *block* holds the kernels between feature groups of one size on either side of a weight, as
(feature groups out, feature groups in, members out, members in, h, w). Let W[a, b] be the kernel
from member b of an input to member a of an output. The layer commutes with the group if

    W[g·a, g·b] = g · W[a, b]    for every element g,

where g permutes members and rotates kernels. So the group carries the *place* (a, b) around an
orbit of places, and one kernel of an orbit determines all others. Where an element resamples,
kernels are made of the patterns of ``harmonics.py``, which rotate by any angle: resampling pixels
could not be undone, and nothing would be left that commutes. The kernels of an orbit that commute
are the combinations c of orthonormal rows B:

    W = Bᵀ c    and the nearest to any kernels W is    Bᵀ B W.

Orbits differ by the orientation of a relative to b. An optimizer steps on the Fourier transform
of c over these relative orientations, as it does in steerable CNNs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from ..groups.group import Group
from ..groups.members import member_table, similarities
from .harmonics import harmonics, orthonormal

__all__ = ["from_coefficients", "nearest", "precise", "to_coefficients"]

Moves = tuple[tuple[int, ...], ...]
"""For each element: which place of an orbit it carries to each place of it."""


def nearest(block: Tensor, group: Group) -> Tensor:
    """The kernels nearest to those of a block that commute with ``group``: Bᵀ B W."""

    def project(kernels: Tensor, basis: Tensor) -> Tensor:
        return basis.T @ (basis @ kernels)

    return _orbit_by_orbit(block, group, project)


def to_coefficients(block: Tensor, group: Group) -> Tensor:
    """The coefficients of :func:`nearest`, in a block of the same shape that is 0 elsewhere.

    They are the Fourier transform over relative orientations, F (B W), scaled so that coefficients
    and weights have the same root mean square.
    """

    def transform(kernels: Tensor, basis: Tensor) -> Tensor:
        fourier = _fourier(len(kernels)).to(basis)
        by_orbit = basis @ kernels  # (orbits, rows of B, others)
        coefficients = torch.einsum("fo,okx->fkx", fourier, by_orbit)  # (frequencies, rows of B, others)
        unused = basis.shape[1] - len(basis)  # there are fewer coefficients than pixels
        return F.pad(coefficients / _scale(basis), (0, 0, 0, unused))

    return _orbit_by_orbit(block, group, transform)


def from_coefficients(block: Tensor, group: Group) -> Tensor:
    """The kernels with these coefficients, Bᵀ Fᵀ c: the inverse of :func:`to_coefficients`."""

    def invert(padded: Tensor, basis: Tensor) -> Tensor:
        fourier = _fourier(len(padded)).to(basis)
        coefficients = padded[:, : len(basis)] * _scale(basis)  # (frequencies, rows of B, others)
        by_orbit = torch.einsum("fo,fkx->okx", fourier, coefficients)  # (orbits, rows of B, others)
        return basis.T @ by_orbit

    return _orbit_by_orbit(block, group, invert)


def precise(weight: Tensor) -> torch.dtype:
    """Double precision, which neither autocast nor TF32 rounds; MPS has none."""
    if weight.device.type == "mps":
        return torch.float32
    return torch.float64


def _orbit_by_orbit(block: Tensor, group: Group, change: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Apply ``change(kernels, B)`` to the kernels of orbits that share a basis B.

    It is given them as (orbits, places * h * w, others), where *others* counts the feature groups
    of both sides, and returns the same shape.
    """
    groups_out, groups_in, out, inner, height, width = block.shape
    kernels = block.movedim((0, 1), (-2, -1))  # (out, inner, h, w, groups …)
    kernels = kernels.flatten(-2).flatten(0, 1)  # (places, h, w, others)
    result = torch.empty_like(kernels, memory_format=torch.contiguous_format)
    for orbits, basis in _bases(group, out, inner, height, block.device, precise(block)):
        chosen = kernels[orbits].flatten(1, 3)  # (orbits, places * h * w, others)
        changed = change(chosen.to(basis.dtype), basis).to(block.dtype)
        changed = changed.unflatten(1, (-1, height, width))  # (orbits, places, h, w, others)
        result[orbits] = changed
    result = result.unflatten(0, (out, inner))  # (out, inner, h, w, others)
    result = result.unflatten(-1, (groups_out, groups_in))  # (out, inner, h, w, groups …)
    return result.movedim((-2, -1), (0, 1))  # (groups out, groups in, out, inner, h, w)


def _scale(basis: Tensor) -> float:
    """How much smaller the root mean square of pixels is than that of as few coefficients."""
    return math.sqrt(basis.shape[1] / len(basis))


@lru_cache(maxsize=32)
def _fourier(count: int) -> Tensor:
    """The real Fourier transform F of ``count`` points on a circle: orthonormal rows, (q, points).

    Row q of F has cos(2πqk / count) or sin(2πqk / count) at point k; the first row is the mean.
    """
    # a tensor cached in inference mode could not be used in training later
    with torch.inference_mode(False), torch.no_grad():
        points = torch.arange(count, dtype=torch.float64, device="cpu")
        angles = 2 * math.pi * points / count
        rows = []
        for q in range(count // 2 + 1):
            rows.append(torch.cos(q * angles))
            # the sine is 0 at frequency 0, and at the highest one of an even count
            if 0 < 2 * q < count:
                rows.append(torch.sin(q * angles))
        waves = torch.stack(rows)
        return waves / waves.norm(dim=1, keepdim=True)


@lru_cache(maxsize=128)
def _bases(
    group: Group, out: int, inner: int, size: int, device: torch.device, dtype: torch.dtype
) -> list[tuple[Tensor, Tensor]]:
    """The places of orbits, (orbits, places), with the basis B that these orbits share."""
    bases = []
    with torch.inference_mode(False), torch.no_grad():
        for moves, orbits in _orbits(group, out, inner).items():
            places = torch.tensor(orbits, device=device)
            basis = _basis(group, moves, size)
            bases.append((places, basis.to(device, dtype)))
    return bases


def _orbits(group: Group, out: int, inner: int) -> dict[Moves, list[list[int]]]:
    """The orbits of places, gathered by how the group moves places within them.

    The place of out member a and in member b is ``a * inner + b``.
    """
    members_out = member_table(group, out).tolist()  # [element][place]
    members_in = member_table(group, inner).tolist()
    elements = list(zip(members_out, members_in, strict=True))
    left = dict.fromkeys(product(range(out), range(inner)))  # an ordered set
    found: dict[Moves, list[list[int]]] = {}
    while left:
        first_a, first_b = next(iter(left))
        orbit: dict[tuple[int, int], int] = {}  # place -> its number in the orbit
        for rows, columns in elements:
            place = rows[first_a], columns[first_b]
            orbit.setdefault(place, len(orbit))
        for place in orbit:
            del left[place]
        moves = []
        for rows, columns in elements:
            sources = [orbit[rows[a], columns[b]] for a, b in orbit]
            moves.append(tuple(sources))
        places = [a * inner + b for a, b in orbit]
        found.setdefault(tuple(moves), []).append(places)
    return found


def _basis(group: Group, moves: Moves, size: int) -> Tensor:
    """B: orthonormal rows, each of them commuting kernels for all places of an orbit in a row.

    A pattern ψ in one place has the mean over the group Σ_g g·ψ in the place that g carries it to;
    these means, for every pattern in every place, span all kernels that commute.
    """
    places = len(moves[0])
    upright = harmonics(size)
    means = upright.new_zeros(places, len(upright), places, size * size)
    for element, sources in zip(similarities(group), moves, strict=True):
        patterns = harmonics(size, element).flatten(1)  # (patterns, size * size)
        for place, source in enumerate(sources):
            means[source, :, place] += patterns
    rows = means.flatten(2).flatten(0, 1)  # (places * patterns, places * size * size)
    return orthonormal(rows)
