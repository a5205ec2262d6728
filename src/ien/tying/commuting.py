"""Pairs of members: from kernels between two feature groups to the patterns that commute, and back."""

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

__all__ = ["nearest", "precise", "to_coefficients", "to_kernels"]

Table = tuple[tuple[int, ...], ...]


def nearest(block: Tensor, group: Group) -> Tensor:
    """The kernels nearest to those of ``block`` that commute, made of patterns that turn by any angle.

    A block is (feature groups out, feature groups in, members out, members in, h, w). Resampling alone could
    not be undone, and would leave nothing that commutes.
    """
    return _by_orbits(block, group, lambda numbers, basis: basis.T @ (basis @ numbers))


def to_coefficients(block: Tensor, group: Group) -> Tensor:
    """Coefficients of the patterns that make up :func:`nearest`, in a block that is 0 elsewhere.

    They are those of the mean over the directions between two members and of waves around it, as steerable
    networks have them, and as large as the numbers that they stand for.
    """

    def change(numbers: Tensor, basis: Tensor) -> Tensor:
        coefficients = torch.einsum("fo,okx->fkx", _waves(len(numbers)).to(basis), basis @ numbers)
        return F.pad(coefficients / _scale(basis), (0, 0, 0, basis.shape[1] - len(basis)))

    return _by_orbits(block, group, change)


def to_kernels(block: Tensor, group: Group) -> Tensor:
    """The kernels with the coefficients that :func:`to_coefficients` gave."""

    def change(numbers: Tensor, basis: Tensor) -> Tensor:
        coefficients = numbers[:, : len(basis)] * _scale(basis)
        return basis.T @ torch.einsum("fo,fkx->okx", _waves(len(numbers)).to(basis), coefficients)

    return _by_orbits(block, group, change)


def precise(kernels: Tensor) -> torch.dtype:
    """Double precision, which neither autocast nor TF32 rounds; mps has none."""
    return torch.float32 if kernels.device.type == "mps" else torch.float64


def _by_orbits(block: Tensor, group: Group, change: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """What ``change`` makes of the numbers (orbits, pairs * h * w, others), given the basis of an orbit."""
    out, inner, *size = block.shape[2:]
    rows = block.movedim((0, 1), (-2, -1)).flatten(-2).flatten(0, 1)  # (pairs of members, h, w, others)
    result = torch.empty_like(rows, memory_format=torch.contiguous_format)
    for pairs, basis in _bases(group, out, inner, size[0], block.device, precise(block)):
        changed = change(rows[pairs].flatten(1, 3).to(basis.dtype), basis)
        result[pairs] = changed.to(block.dtype).unflatten(1, (-1, *size))
    return result.unflatten(0, (out, inner)).unflatten(-1, block.shape[:2]).movedim((-2, -1), (0, 1))


def _scale(basis: Tensor) -> float:
    return math.sqrt(basis.shape[1] / len(basis))


@lru_cache(maxsize=32)
def _waves(count: int) -> Tensor:
    """Orthonormal rows: the mean over ``count`` places on a circle, and waves around it."""
    with torch.inference_mode(False), torch.no_grad():  # a cached inference tensor would be of no use later
        angles = 2 * math.pi * torch.arange(count, dtype=torch.float64, device="cpu") / count
        rows = [f(q * angles) for q in range(count // 2 + 1) for f in (torch.cos, torch.sin)]
        waves = torch.stack([row for row in rows if row.norm() > 1e-6])
        return waves / waves.norm(dim=1, keepdim=True)


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


def _orbits(group: Group, out: int, inner: int) -> dict[Table, list[list[int]]]:
    """Pairs of members that the group takes to each other, by which of them it moves to each place.

    A pair is ``out member * inner + inner member``.
    """
    tables = list(zip(member_table(group, out).tolist(), member_table(group, inner).tolist(), strict=True))
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
