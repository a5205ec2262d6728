r"""A basis of the kernels that commute with rotations and flips, in closed form.

The members of a field are permuted by the group. In other coordinates, Qᵀ h with an orthonormal Q,
the permutation falls apart into *irreps*, of one or two coordinates each. A rotation by θ acts on
two coordinates as R(kθ), where k is the frequency of the irrep and

    R(θ) = (cos θ, -sin θ; sin θ, cos θ),

and a flip as diag(1, -1). Single coordinates have frequency 0 or N/2 for N rotations, and change
their sign or stay.

From an irrep of frequency n to one of frequency m leads, on a ring around the middle pixel where α
is the angle of a pixel, every

    κ(α) = R(μα + γ) diag(1, ±1)    with    μ = m ∓ n + tN,

a wave of frequency μ with the phase γ = 0 or 90°; flips allow one of the two phases. Irreps of one
coordinate take the first row or column of it. The widths of rings and the highest frequencies on
them are those of ``tying/harmonics.py``. All these kernels, written for the members again, are a
basis of everything that commutes (Weiler & Cesa, 2019): it is e2cnn's, in the same order and with
the same norms, so weights trained with the one mean the same with the other.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..tying.harmonics import MIN_STRENGTH, polar, ring_limits

__all__ = ["E2CNN_DEFAULT", "E2CNN_WIDE", "Functions", "steerable_basis"]


class Functions(NamedTuple):
    """Which functions the kernels are made of; None for the limits of ``tying/harmonics.py``."""

    cutoff: float | None = None
    """The highest frequency on a ring, for each pixel of its radius."""
    sigma: float | None = None
    """The width of the rings, in pixels."""

    def limits(self, radius: float, outermost: bool) -> tuple[float, int]:
        """Return the width of a ring and the highest frequency on it."""
        width, max_frequency = ring_limits(radius, outermost)
        if self.sigma is not None:
            width = self.sigma
        if self.cutoff is not None:
            max_frequency = int(self.cutoff * radius)
        return width, max_frequency


E2CNN_DEFAULT = Functions()
"""6 functions for a 3×3 filter."""
E2CNN_WIDE = Functions(cutoff=math.pi, sigma=0.45)
"""8 functions for a 3×3 filter, as in e2cnn's wide residual nets."""


class Irrep(NamedTuple):
    """How one or two coordinates of a field rotate and flip."""

    frequency: int
    size: int
    """The number of coordinates."""
    flips_sign: bool
    """Whether a flip changes the sign of the first coordinate."""


class Wave(NamedTuple):
    """κ(α) = R(frequency · α + phase) diag(1, ±1), the sign being -1 if ``mirrored``."""

    frequency: int
    phase: float
    mirrored: bool


@lru_cache(maxsize=64)
def steerable_basis(
    rotations: int, flips: bool, size: int, from_image: bool, functions: Functions = E2CNN_DEFAULT
) -> tuple[Tensor, Tensor]:
    """Return a basis of the kernels between two fields, and the initial deviation of each weight.

    Args:
        rotations: The number of rotations in the group.
        flips: Whether the group has flips too.
        size: The height and width of the kernels.
        from_image: The input is an image, which has one member that stays.
        functions: What the kernels are made of.

    Returns:
        The basis, (n, members out, members in, size, size), and the deviations, (n,), in float64.

    >>> [len(steerable_basis(4, False, size, True)[0]) for size in (1, 3, 5, 7)]
    [1, 6, 11, 18]
    """
    # a tensor cached in inference mode could not be used in training later
    with torch.inference_mode(False), torch.no_grad(), torch.device("cpu"):
        after = _coordinates(rotations, flips)
        before = after
        if from_image:
            before = [(Irrep(0, 1, False), torch.ones(1, 1, dtype=torch.float64))]

        distance, angle = polar(size)  # (size, size) each
        if flips:
            angle = angle - math.pi / 2  # a flip mirrors left and right: it keeps the vertical axis

        kernels = []
        paths = []
        centre = (size - 1) / 2
        for i in reversed(range((size + 1) // 2)):  # from the middle outwards
            radius = centre - i
            width, max_frequency = functions.limits(radius, outermost=radius == centre)
            ring = torch.exp(-((distance - radius) ** 2) / (2 * width**2))
            for irrep_in, columns_in in before:
                for position, (irrep_out, columns_out) in enumerate(after):
                    for wave in _waves(irrep_in, irrep_out, rotations, flips, max_frequency):
                        block = ring * _sample(wave, angle)  # (2, 2, size, size)
                        if wave.frequency != 0:
                            block = block * (distance > 0)  # the middle pixel has no direction
                        block = block[: irrep_out.size, : irrep_in.size]
                        strength = float(block.square().sum() / irrep_out.size) ** 0.5
                        if strength < MIN_STRENGTH:  # the wave is 0 at every pixel
                            continue
                        # κ = Q_out block Q_inᵀ
                        kernel = torch.einsum("ao,oihw,bi->abhw", columns_out, block, columns_in)
                        kernels.append(kernel / strength)
                        paths.append((irrep_in, position))
        return torch.stack(kernels), _deviations(paths)


def _coordinates(rotations: int, flips: bool) -> list[tuple[Irrep, Tensor]]:
    """Return the irreps of a field, each with its columns of Q, (members, size of the irrep).

    The member of an element g holds, up to a factor, the entries of the matrix of g: its first
    column, and with flips its second column too, as an irrep of its own.
    """
    members = torch.arange(rotations * (1 + flips), dtype=torch.float64)
    rotation = members
    sign = torch.ones_like(members)
    if flips:  # each rotation's flip is beside it
        rotation = members // 2
        sign = 1 - 2 * (members % 2)

    irreps = [Irrep(0, 1, False)]
    if flips:
        irreps.append(Irrep(0, 1, True))
    for frequency in range(1, (rotations + 1) // 2):
        irreps.append(Irrep(frequency, 2, False))
    if rotations % 2 == 0:
        if flips:
            irreps.append(Irrep(rotations // 2, 1, True))
        irreps.append(Irrep(rotations // 2, 1, False))

    found = []
    for irrep in irreps:
        theta = 2 * math.pi * irrep.frequency * rotation / rotations  # (members,)
        scale = math.sqrt(irrep.size / len(members))
        if irrep.size == 1:
            column = torch.cos(theta)
            if irrep.flips_sign:
                column = column * sign
            found.append((irrep, scale * column[:, None]))
        else:
            first = torch.stack([torch.cos(theta), torch.sin(theta)], 1)  # (members, 2)
            found.append((irrep, scale * first))
            if flips:
                second = torch.stack([-torch.sin(theta), torch.cos(theta)], 1)  # (members, 2)
                found.append((irrep, scale * sign[:, None] * second))
    return found


def _waves(before: Irrep, after: Irrep, rotations: int, flips: bool, max_frequency: int) -> list[Wave]:
    """Return the waves that lead from one irrep to another, up to a frequency."""
    single = before.size == after.size == 1
    phases = [0.0, math.pi / 2]
    if flips:
        # mirroring α turns cos into itself and sin into its negative
        phases = [math.pi / 2 if before.flips_sign != after.flips_sign else 0.0]
    signs = [True]  # with n or m = 0 or N/2, both signs give the same frequencies
    if before.size == after.size == 2:
        signs = [False, True]

    waves = []
    for phase in phases:
        for mirrored in signs:
            difference = after.frequency - before.frequency
            if mirrored:
                difference = after.frequency + before.frequency
            for frequency in range(-max_frequency, max_frequency + 1):
                if (frequency - difference) % rotations != 0:
                    continue
                # of single coordinates, cos μα and cos -μα are the same, and sin 0 is 0
                if single and (frequency < 0 or (frequency == 0 and phase != 0)):
                    continue
                waves.append(Wave(frequency, phase, mirrored))
    return waves


def _sample(wave: Wave, angle: Tensor) -> Tensor:
    """Return κ at every pixel, (2, 2, size, size), from the angles of pixels, (size, size)."""
    cos = torch.cos(wave.frequency * angle + wave.phase)
    sin = torch.sin(wave.frequency * angle + wave.phase)
    sign = -1 if wave.mirrored else 1
    first_row = torch.stack([cos, -sign * sin])
    second_row = torch.stack([sin, sign * cos])
    return torch.stack([first_row, second_row])


def _deviations(paths: list[tuple[Irrep, int]]) -> Tensor:
    """Generalised He initialisation: each output irrep hears each kind of input irrep equally loud.

    A function that leads from input irreps of kind i to output irrep o starts with the deviation

        1 / √(functions from i to o  ·  kinds of input irreps that lead to o)
    """
    functions_on = Counter(paths)
    kinds_into = Counter(position for _, position in functions_on)
    deviations = []
    for path in paths:
        deviations.append((functions_on[path] * kinds_into[path[1]]) ** -0.5)
    return torch.tensor(deviations, dtype=torch.float64)
