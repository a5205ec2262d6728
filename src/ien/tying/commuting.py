"""Kernels between two feature groups that commute with rotations by any angle.

The *kernels* between feature groups of one size on either side of a weight are a tensor
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

__all__ = ["from_coefficients", "precise", "project", "to_coefficients"]

Moves = tuple[tuple[int, ...], ...]
"""For each element: which place of an orbit it carries to each place of it."""


def project(kernels: Tensor, group: Group) -> Tensor:
    """Return the nearest kernels that commute with ``group``: Bᵀ B W."""

    def onto_basis(pixels: Tensor, basis: Tensor) -> Tensor:
        return basis.T @ (basis @ pixels)

    return _orbit_by_orbit(kernels, group, onto_basis)


def to_coefficients(kernels: Tensor, group: Group) -> Tensor:
    """Return the coefficients of :func:`project` in a tensor of the same shape, 0 elsewhere.

    They are the Fourier transform over relative orientations, F (B W), scaled so that coefficients
    and weights have the same root mean square.
    """

    def transform(pixels: Tensor, basis: Tensor) -> Tensor:
        fourier = _fourier(len(pixels)).to(basis)
        by_orbit = basis @ pixels  # (orbits, rows of B, others)
        coefficients = torch.einsum("fo,okx->fkx", fourier, by_orbit)  # (frequencies, rows of B, others)
        unused = basis.shape[1] - len(basis)  # there are fewer coefficients than pixels
        return F.pad(coefficients / _rms_ratio(basis), (0, 0, 0, unused))

    return _orbit_by_orbit(kernels, group, transform)


def from_coefficients(coefficients: Tensor, group: Group) -> Tensor:
    """Return the kernels Bᵀ Fᵀ c with coefficients c: the inverse of :func:`to_coefficients`."""

    def invert(padded: Tensor, basis: Tensor) -> Tensor:
        fourier = _fourier(len(padded)).to(basis)
        used = padded[:, : len(basis)] * _rms_ratio(basis)  # (frequencies, rows of B, others)
        by_orbit = torch.einsum("fo,fkx->okx", fourier, used)  # (orbits, rows of B, others)
        return basis.T @ by_orbit

    return _orbit_by_orbit(coefficients, group, invert)


def precise(weight: Tensor) -> torch.dtype:
    """Return double precision, which neither autocast nor TF32 rounds; MPS has none."""
    if weight.device.type == "mps":
        return torch.float32
    return torch.float64


def _orbit_by_orbit(kernels: Tensor, group: Group, change: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Apply ``change(pixels, B)`` to the pixels of all kernels in orbits that share a basis B.

    It is given them as (orbits, places * h * w, others), where *others* counts the feature groups
    of both sides, and returns the same shape.
    """
    groups_out, groups_in, out, inner, height, width = kernels.shape
    by_place = kernels.movedim((0, 1), (-2, -1))  # (out, inner, h, w, groups …)
    by_place = by_place.flatten(-2).flatten(0, 1)  # (places, h, w, others)
    result = torch.empty_like(by_place, memory_format=torch.contiguous_format)
    for orbits, basis in _bases(group, out, inner, height, kernels.device, precise(kernels)):
        pixels = by_place[orbits].flatten(1, 3)  # (orbits, places * h * w, others)
        changed = change(pixels.to(basis.dtype), basis).to(kernels.dtype)
        changed = changed.unflatten(1, (-1, height, width))  # (orbits, places, h, w, others)
        result[orbits] = changed
    result = result.unflatten(0, (out, inner))  # (out, inner, h, w, others)
    result = result.unflatten(-1, (groups_out, groups_in))  # (out, inner, h, w, groups …)
    return result.movedim((-2, -1), (0, 1))  # (groups out, groups in, out, inner, h, w)


def _rms_ratio(basis: Tensor) -> float:
    """Return the root mean square of coefficients, divided by that of the pixels they make."""
    return math.sqrt(basis.shape[1] / len(basis))


@lru_cache(maxsize=32)
def _fourier(count: int) -> Tensor:
    """Return the real Fourier transform F of ``count`` points on a circle: orthonormal rows.

    F is (rows, points). A row has cos(2πqk / count) or sin(2πqk / count) at point k, for one
    frequency q; the first row is the mean.
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
        waves = torch.stack(rows)  # (rows, points)
        return waves / waves.norm(dim=1, keepdim=True)


@lru_cache(maxsize=128)
def _bases(
    group: Group, out: int, inner: int, size: int, device: torch.device, dtype: torch.dtype
) -> list[tuple[Tensor, Tensor]]:
    """Return the places of orbits, (orbits, places), with the basis B that these orbits share."""
    bases = []
    with torch.inference_mode(False), torch.no_grad():
        for moves, orbits in _orbits(group, out, inner).items():
            places = torch.tensor(orbits, device=device)
            basis = _basis(group, moves, size)
            bases.append((places, basis.to(device, dtype)))
    return bases


def _orbits(group: Group, out: int, inner: int) -> dict[Moves, list[list[int]]]:
    """Return the orbits of places, gathered by how the group moves places within them.

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
