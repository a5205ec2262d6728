"""Where a target that turns is lost: from boxes and true angles to the mean overlap at each angle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .data.boxes import Array
from .data.clips import Clip
from .scoring import frame_overlaps

__all__ = ["Bin", "ByAngle", "overlap_by_angle"]

STEP = 15
"""Degrees from one angle at which frames are gathered to the next."""


class Bin(NamedTuple):
    """The frames around an angle."""

    degrees: float
    overlap: float
    """The mean over the frames of a sequence, and then over the sequences that have some."""
    frames: int


class ByAngle(NamedTuple):
    """From the smallest angle to the largest; angles that no target has are left out."""

    orientation: list[Bin]
    """0° to 345°: whole turns are taken off."""
    turned: list[Bin]
    """How far the target has turned since the first frame, either way, as far as half of the targets turn."""


def overlap_by_angle(tracks: Iterable[tuple[Array, Clip]]) -> ByAngle:
    """Of predicted boxes (T, 4) and their clips, those without angles left out; empty if no target turns."""
    around, onward = [], []
    for boxes, clip in tracks:
        if clip.angles is not None and np.ptp(clip.angles) > 0:
            overlaps = frame_overlaps(boxes, clip.boxes)
            known = ~np.isnan(overlaps)
            around.append((_steps(clip.angles[known]) % (360 // STEP), overlaps[known]))
            onward.append((_steps(np.abs(clip.angles[known])), overlaps[known]))
    if not around:
        return ByAngle([], [])
    farthest = sorted((int(steps.max()) for steps, _ in onward), reverse=True)
    reached = STEP * farthest[(len(farthest) - 1) // 2]
    return ByAngle(_bins(around), [one for one in _bins(onward) if one.degrees <= reached])


def _steps(degrees: Array) -> NDArray[np.int64]:
    """Which multiple of ``STEP`` is the nearest."""
    return np.floor(degrees / STEP + 0.5).astype(np.int64)


def _bins(sequences: Sequence[tuple[NDArray[np.int64], Array]]) -> list[Bin]:
    values: dict[int, list[list[float]]] = defaultdict(list)
    for steps, overlaps in sequences:
        for step in np.unique(steps).tolist():
            values[step].append(overlaps[steps == step].tolist())
    return [
        Bin(float(STEP * step), fmean(map(fmean, values[step])), sum(map(len, values[step])))
        for step in sorted(values)
    ]
