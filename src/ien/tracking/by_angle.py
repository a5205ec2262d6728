"""Overlap by angle: at which orientations a tracker loses a target that rotates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .data.boxes import Array
from .data.clip import Clip
from .scoring import frame_overlaps

__all__ = ["Bin", "ByAngle", "overlap_by_angle"]

BIN_WIDTH = 15
"""Degrees from the middle of one bin to that of the next."""


class Bin(NamedTuple):
    """The frames around one angle."""

    degrees: float
    overlap: float
    """The mean over the frames of each sequence, then over the sequences that have such frames."""
    frames: int


class ByAngle(NamedTuple):
    """Bins from the smallest angle to the largest; angles that no target has are left out."""

    orientation: list[Bin]
    """0° to 345°: full turns are taken off."""
    turned: list[Bin]
    """Rotation since the first frame, either way, as far as half of the targets get."""


class _Binned(NamedTuple):
    """The frames of one sequence that are scored."""

    bins: NDArray[np.int64]
    """(T,): index of the bin of each frame."""
    overlaps: Array
    """(T,)."""


def overlap_by_angle(predictions: Iterable[tuple[Array, Clip]]) -> ByAngle:
    """Average the overlap of predicted boxes over frames of similar angles.

    Args:
        predictions: Boxes (T, 4), each with its clip; clips without angles are ignored.

    Returns:
        The bins; none if no target rotates.
    """
    by_orientation: list[_Binned] = []
    by_rotation: list[_Binned] = []
    for boxes, clip in predictions:
        if clip.angles is None or np.ptp(clip.angles) == 0:
            continue  # its target does not rotate
        # frames without a true box have no overlap, and are left out as in the scores
        overlaps = frame_overlaps(boxes, clip.boxes)
        known = ~np.isnan(overlaps)
        angles, overlaps = clip.angles[known], overlaps[known]
        orientations = _nearest_bin(angles) % (360 // BIN_WIDTH)
        rotations = _nearest_bin(np.abs(angles))
        by_orientation.append(_Binned(orientations, overlaps))
        by_rotation.append(_Binned(rotations, overlaps))
    if not by_orientation:
        return ByAngle([], [])

    # the farthest bin that at least half of the targets reach
    farthest = [int(one.bins.max()) for one in by_rotation]
    farthest.sort(reverse=True)
    reached = BIN_WIDTH * farthest[(len(farthest) - 1) // 2]
    turned = [one for one in _averaged(by_rotation) if one.degrees <= reached]
    return ByAngle(_averaged(by_orientation), turned)


def _nearest_bin(degrees: Array) -> NDArray[np.int64]:
    """Return the nearest multiple of ``BIN_WIDTH``, divided by it."""
    # not np.round, which takes halves to the even neighbour and would make bins unequal
    return np.floor(degrees / BIN_WIDTH + 0.5).astype(np.int64)


def _averaged(sequences: Sequence[_Binned]) -> list[Bin]:
    # by the index of the bin: the mean overlap of each sequence, and the frames of all of them
    means: dict[int, list[float]] = defaultdict(list)
    frames: dict[int, int] = defaultdict(int)
    for one in sequences:
        for index in np.unique(one.bins).tolist():
            overlaps = one.overlaps[one.bins == index].tolist()
            means[index].append(fmean(overlaps))
            frames[index] += len(overlaps)
    bins = []
    for index in sorted(means):
        degrees = float(BIN_WIDTH * index)
        bins.append(Bin(degrees, fmean(means[index]), frames[index]))
    return bins
