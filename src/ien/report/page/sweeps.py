"""What a slider goes through: all angles, or factors around those of the groups."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ...groups.families import rotation, scale
from ...groups.group import Group
from ...groups.similarity import Similarity
from ..opened import Opened

__all__ = ["IDENTITY", "Sweep", "groups_of", "sweeps_of"]

NUM_ANGLES = 72  # every 5°
FACTORS_PER_SIDE = 10  # on each side of 1, besides those of the groups
IDENTITY = {"rotation": 0.0, "scale": 1.0}
"""Kind of sweep to the value that leaves an image as it is."""


@dataclass(frozen=True)
class Sweep:
    """What a slider goes through: elements of a group, in the order of their values."""

    kind: Literal["rotation", "scale"]
    group: Group
    values: tuple[float, ...]
    """Degrees, or factors."""
    g: Tensor
    """The index of each value in the group."""
    marks: tuple[float, ...]
    """The values that stand out: quarter turns, or the factors of the runs' groups and 1."""


def groups_of(runs: Sequence[Opened]) -> list[Group]:
    """Return the groups that the runs were measured under, repeated ones included."""
    groups: list[Group] = []
    for run in runs:
        groups.extend(run.measured_groups)
    return groups


def sweeps_of(groups: Sequence[Group]) -> list[Sweep]:
    """Return a sweep over angles unless all groups only scale, and one over factors if any does.

    >>> [sweep.values[-1] for sweep in sweeps_of([ien.group("rot4"), ien.group("scale0.5")])]
    [355.0, 2.0]
    """
    own_factors = set()
    only_scales = True
    for step in _steps(groups):
        if isinstance(step, Similarity):
            own_factors.add(float(step.scale))
            only_scales = only_scales and not step.turn and not step.flip
        else:  # a black box is shown under rotations, like a flip
            only_scales = False
    own_factors.discard(1.0)

    sweeps = []
    if not only_scales:
        angles = tuple(360 * k / NUM_ANGLES for k in range(NUM_ANGLES))
        quarters = (0.0, 90.0, 180.0, 270.0)
        sweeps.append(Sweep("rotation", rotation(NUM_ANGLES), angles, torch.arange(NUM_ANGLES), quarters))
    if own_factors:
        factors = _factors(own_factors)
        others = list(factors)
        others.remove(1.0)
        elements = [1.0, *others]  # as in the group, whose identity comes first
        g = torch.tensor([elements.index(factor) for factor in factors])
        marks = tuple(sorted({1.0, *own_factors}))
        sweeps.append(Sweep("scale", scale(others), tuple(factors), g, marks))
    return sweeps


def _steps(groups: Sequence[Group]) -> Iterator[object]:
    """Yield what the elements of all groups are made of."""
    for group in groups:
        for element in group.elements:
            yield from element


def _factors(own: set[float]) -> list[float]:
    """Space factors about evenly by their logarithm around 1, with ``own`` among them."""
    reach = max(abs(math.log(min(own))), abs(math.log(max(own))))
    step = reach / FACTORS_PER_SIDE

    def is_far(factor: float, others: set[float], steps: float) -> bool:
        """Say whether no other is within this many steps, so that no two ticks touch."""
        return all(abs(math.log(factor / other)) > steps * step for other in others)

    # 1, the groups' own, and their inverses, which make both sides reach equally far
    fixed = {1.0, *own}
    for factor in own:
        if is_far(1 / factor, own, 0.1):
            fixed.add(float(f"{1 / factor:.6g}"))
    factors = set(fixed)
    for k in range(-FACTORS_PER_SIDE, FACTORS_PER_SIDE + 1):
        factor = float(f"{math.exp(k * step):.4g}")
        if is_far(factor, fixed, 0.45):
            factors.add(factor)
    return sorted(factors)
