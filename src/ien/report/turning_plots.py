"""Plots of what turns: from a tracker's boxes, or from the bins of records, to its overlap by angle."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..data.boxes import Array
from ..tracking.results import read_result as read_track
from ..tracking.score import frame_overlaps
from ..training.folder import read_config, read_data, read_result
from ..training.run import clips_of
from ..training.tracking_task import sequences
from .figures import look, plain, styled, union
from .labels import label_ends
from .records import Row
from .tracking_plots import draw, note, scores_by_test, trackers_of
from .tracking_records import Bin

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Turning", "plot_rotation", "plot_turning", "turnings_of", "turns_by_test"]

Line = tuple[Array, Array]
Lines = Mapping[str, Line]
"""Of each tracker: where, and how high."""


class Turning(NamedTuple):
    """A tracker's boxes on one sequence whose target turns."""

    predicted: ArrayLike
    """(T, 4)"""
    truth: ArrayLike
    """(T, 4)"""
    true_angles: ArrayLike
    """(T,), degrees; whole turns may be counted on or not. NaN where it is not known."""


@styled()
def plot_rotation(trackers: Mapping[str, Mapping[str, Turning]], step: float = 15) -> Figure:
    """Mean overlap against the angle of the target: where does each tracker (→ sequence → boxes) lose it?

    On the left against its orientation, whole turns taken off, all turns together; on the right against how
    far it has turned since the first frame, as far as half of the sequences turn. Frames are gathered in
    bins of ``step`` degrees; means are over frames, then sequences.
    """
    trackers_of({"": trackers})
    if not (0 < step <= 90 and (360 / step).is_integer()):
        raise ValueError(
            f"bins of {step:g}° do not divide a turn: take a divisor of 360 up to 90, such as 15"
        )
    around: dict[str, Line] = {}
    onward: dict[str, Line] = {}
    for name, tracks in trackers.items():
        followed = _followed(name, tracks)
        means = _orientation_means(followed, step)
        around[name] = np.arange(len(means), dtype=np.float64) * step, means
        means = _turned_means(followed, step)
        onward[name] = (np.arange(len(means), dtype=np.float64) + 0.5) * step, means
    text = "means over frames, then sequences; right: as far as half of the sequences turn"
    return _turning_figure({"": (around, onward)}, step, text)


@styled()
def plot_turning(tests: Mapping[str, Mapping[str, Sequence[Bin]]]) -> Figure:
    """The same of the bins in records, for each test whose targets turn: test → tracker → bins.

    The panel on the right is there if turns are counted on, beyond 360°, and goes as far as a bin has half of
    the frames of the fullest one: short sequences end.
    """
    if not tests:
        raise ValueError(
            "there is nothing to plot: give at least one tracker whose targets turn in a test, as in rot-otb"
        )
    trackers_of(tests)
    bins = [bins for trackers in tests.values() for bins in trackers.values()]
    counted_on = max(one.degrees for some in bins for one in some) >= 360
    lines = {
        test: (
            {name: _around(some) for name, some in trackers.items()},
            {name: _onward(some) for name, some in trackers.items()} if counted_on else {},
        )
        for test, trackers in tests.items()
    }
    text = (
        "means over frames, then sequences; the true box, an upright hull, is largest between quarter turns"
    )
    if counted_on:
        text += "\nright: as long as a bin has half of the frames of the fullest one"
    return _turning_figure(lines, min(map(_step, bins)), text)


def turns_by_test(rows: Sequence[Row]) -> dict[str, dict[str, Sequence[Bin]]]:
    """Test → tracker → the bins of its rows' records, for the tests in which targets turn."""
    found: dict[str, dict[str, Sequence[Bin]]] = {
        test: {name: score.by_angle for name, score in scores.items() if score.by_angle}
        for test, scores in scores_by_test(rows).items()
    }
    return {test: bins for test, bins in found.items() if bins}


def turnings_of(folder: Path, data: str | None = None) -> dict[str, Turning]:
    """Sequence → boxes and angles, of the test of a finished run in which targets turn.

    Nothing is tracked: the boxes are in the folder, the true ones with the data. ``data`` is where these are
    now, if they were moved.
    """
    config = read_config(folder)
    if not config.tracks:
        raise ValueError(f"{folder} is a run of {config.experiment}, which tracks nothing")
    if read_result(folder) is None:
        raise ValueError(f"{folder} is not finished: go on with ien resume {folder}")
    _, tests = sequences(config, clips_of(config, data or read_data(folder)["folder"]))
    return {
        clip.name: Turning(read_track(folder / "tracks" / test, clip.name).boxes, clip.boxes, clip.angles)
        for test, clips in tests.items()
        if test.startswith("rot-")
        for clip in clips
        if clip.angles is not None
    }


def _turning_figure(tests: Mapping[str, tuple[Lines, Lines]], step: float, text: str) -> Figure:
    """For each test a panel by orientation and, where that is known, one by the angle turned so far."""
    from matplotlib.figure import Figure

    across = 2 if any(onward for _, onward in tests.values()) else 1
    trackers = union(around for around, _ in tests.values())
    figure = Figure(figsize=((6.4, 9)[across - 1], 0.6 + 3.6 * len(tests)), layout="constrained")
    cells = figure.subplots(len(tests), across, squeeze=False, sharey="row")
    for panels, (test, (around, onward)) in zip(cells, tests.items(), strict=True):
        where = f"{plain(test, 20)}: " if test else ""
        for axes, lines in zip(panels, (around, onward), strict=False):
            for name, line in lines.items():
                draw(axes, *line, look(trackers.index(name)), name, max(1, round(90 / step)))
        highest = max(float(np.nanmax(y)) for lines in (around, onward) for _, y in lines.values())
        panels[0].set(ylabel="mean overlap", ylim=(0, min(1, math.ceil(10 * highest + 0.5) / 10)))
        panels[0].set(
            xlabel="orientation, degrees counter-clockwise", xlim=(0, 360), xticks=range(0, 361, 90)
        )
        panels[0].set_title(f"{where}overlap by orientation")
        if onward:
            farthest = max(float(x[-1]) + step / 2 for x, _ in onward.values())
            apart = 90 * 2 ** max(0, math.ceil(math.log2(farthest / 630)))  # eight ticks at most
            panels[1].set(xlabel="degrees since the first frame", xlim=(0, farthest))
            panels[1].set(xticks=np.arange(0, farthest + 1, apart))
            panels[1].set_title(f"{where}overlap by angle turned")
    note(figure, text)
    for panels, (around, onward) in zip(cells, tests.values(), strict=True):
        last = onward or around
        ends = [
            (plain(name, 28), float(y[~np.isnan(y)][-1]), look(trackers.index(name)))
            for name, (_, y) in last.items()
        ]
        label_ends(panels[-1], ends)
    return figure


class _Followed(NamedTuple):
    """The frames of one sequence whose overlap and angle are known."""

    overlaps: Array
    orientation: Array
    """0 to 360 degrees."""
    turned: Array
    """Degrees since the first frame, back and forth both counted."""


def _followed(tracker: str, sequences: Mapping[str, Turning]) -> list[_Followed]:
    found = []
    for name, (predicted, truth, true_angles) in sequences.items():
        overlaps, angles = frame_overlaps(predicted, truth), np.asarray(true_angles, dtype=np.float64)
        if angles.shape != overlaps.shape:
            raise ValueError(
                f"{name} has {len(overlaps)} frames and {angles.size} angles: one for each is needed"
            )
        with_angle = ~np.isnan(angles)
        overlaps, angles = overlaps[with_angle], angles[with_angle]
        steps = np.abs((np.diff(angles) + 180) % 360 - 180)
        turned = np.concatenate([np.zeros(min(1, len(angles))), np.cumsum(steps)])
        known = ~np.isnan(overlaps)
        if known.any():
            found.append(_Followed(overlaps[known], angles[known] % 360, turned[known]))
    if not any(np.ptp(sequence.turned) > 0 for sequence in found):
        raise ValueError(f"no target of {tracker} turns: give sequences that do, such as those of Rot-OTB")
    return found


def _orientation_means(sequences: Sequence[_Followed], step: float) -> Array:
    """At 0°, ``step``, …, 360°, the last as the first."""
    count = round(360 / step)
    bins = [(np.floor(s.orientation / step + 0.5).astype(int) % count, s.overlaps) for s in sequences]
    means = _means(bins, count)
    return np.append(means, means[0])


def _turned_means(sequences: Sequence[_Followed], step: float) -> Array:
    """From one bin to the next, until fewer than half of the sequences get as far; the last has a value."""
    bins = [(np.floor(s.turned / step).astype(int), s.overlaps) for s in sequences]
    lengths = sorted((int(places.max()) + 1 for places, _ in bins), reverse=True)
    return _means(bins, lengths[0])[: lengths[math.ceil(len(lengths) / 2) - 1]]


def _means(bins: Sequence[tuple[NDArray[np.int64], Array]], count: int) -> Array:
    """The mean of each bin over frames, then over the sequences that have some there; NaN if none has."""
    total, sequences = np.zeros(count), np.zeros(count)
    for places, values in bins:
        frames = np.bincount(places, minlength=count)
        total += np.bincount(places, values, count) / np.maximum(frames, 1)
        sequences += frames > 0
    return np.where(sequences > 0, total / np.maximum(sequences, 1), np.nan)


def _step(bins: Sequence[Bin]) -> float:
    return min((after.degrees - before.degrees for before, after in pairwise(bins)), default=15)


def _around(bins: Sequence[Bin]) -> Line:
    """Bins of the same orientation together, each frame counted alike; 360° as 0°."""
    total: dict[float, float] = {}
    frames: dict[float, int] = {}
    for one in bins:
        if one.frames and not math.isnan(one.overlap):
            place = one.degrees % 360
            total[place] = total.get(place, 0) + one.frames * one.overlap
            frames[place] = frames.get(place, 0) + one.frames
    means = {place: total[place] / frames[place] for place in sorted(total)}
    if 0 in means:
        means[360.0] = means[0]
    return np.array(list(means)), np.array(list(means.values()))


def _onward(bins: Sequence[Bin]) -> Line:
    most = max(one.frames for one in bins)
    last = max(k for k, one in enumerate(bins) if 2 * one.frames >= most)
    kept = bins[: last + 1]
    return np.array([one.degrees for one in kept]), np.array([one.overlap for one in kept])
