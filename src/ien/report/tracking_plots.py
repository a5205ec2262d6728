"""Plots of trackers: from scores to success and precision curves, and from boxes to overlap by angle."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..data.boxes import Array
from ..tracking.score import PRECISION_THRESHOLDS, SUCCESS_THRESHOLDS, Score, frame_overlaps
from .figures import GREY, Look, look, plain, save_figure, styled
from .labels import label_ends

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Turning", "plot_curves", "plot_rotation", "save_figure"]


class Turning(NamedTuple):
    """A tracker's boxes on one sequence whose target turns."""

    predicted: ArrayLike
    """(T, 4)"""
    truth: ArrayLike
    """(T, 4)"""
    true_angles: ArrayLike
    """(T,), degrees; whole turns may be counted on or not. NaN where it is not known."""


@styled()
def plot_curves(scores: Mapping[str, Score]) -> Figure:
    """Success and precision curves, a line a tracker, each named with the scores that are read off it.

    These are the area under the success curve and, where the dotted line is, the precision at 20 pixels.
    """
    from matplotlib.figure import Figure

    _needs(scores)
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    success, precision = figure.subplots(1, 2)
    success.set(xlabel="overlap threshold", ylabel="share of frames with more", xlim=(0, 1), title="success")
    precision.set(xlabel="centre error threshold, px", ylabel="share of frames with at most", xlim=(0, 50))
    precision.set_title("precision")
    precision.axvline(20, color=GREY, linewidth=0.9, linestyle=":", label="_20")
    ends = []
    for i, (name, score) in enumerate(scores.items()):
        _line(success, SUCCESS_THRESHOLDS, score.success_curve, look(i), name, 4)
        _line(precision, PRECISION_THRESHOLDS, score.precision_curve, look(i), name, 10)
        numbers = f"{score.success:.3f} / {score.precision:.3f}"
        ends.append((f"{numbers}  {plain(name, 28)}", score.precision_curve[-1], look(i)))
    for axes in (success, precision):
        axes.set_ylim(0, 1)
    note = "numbers: area under the success curve / precision at 20 px"
    figure.supxlabel(note, fontsize=8.5, color=GREY)
    label_ends(precision, ends)
    return figure


@styled()
def plot_rotation(trackers: Mapping[str, Mapping[str, Turning]], step: float = 15) -> Figure:
    """Mean overlap against the angle of the target: where does each tracker (→ sequence → boxes) lose it?

    On the left against its orientation, whole turns taken off, all turns together; on the right against how
    far it has turned since the first frame, as far as half of the sequences turn. Frames are gathered in
    bins of ``step`` degrees; means are over frames, then sequences.
    """
    from matplotlib.figure import Figure

    _needs(trackers)
    if not (0 < step <= 90 and (360 / step).is_integer()):
        raise ValueError(
            f"bins of {step:g}° do not divide a turn: take a divisor of 360 up to 90, such as 15"
        )
    followed = {name: _followed(name, sequences) for name, sequences in trackers.items()}
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    folded, onward = figure.subplots(1, 2, sharey=True)
    folded.set_title("overlap by orientation of the target")
    onward.set_title("overlap by angle turned so far")
    folded.set(xlabel="orientation, degrees counter-clockwise", ylabel="mean overlap", ylim=(0, 1))
    onward.set(xlabel="degrees turned since the first frame")
    ends, farthest = [], step
    for i, (name, sequences) in enumerate(followed.items()):
        around = _orientation_means(sequences, step)
        _line(folded, step * np.arange(len(around)), around, look(i), name, round(90 / step))
        means = _turned_means(sequences, step)
        places = step * (np.arange(len(means)) + 0.5)
        _line(onward, places, means, look(i), name, round(90 / step))
        farthest = max(farthest, step * len(means))
        ends.append((plain(name, 28), float(means[-1]), look(i)))
    folded.set(xlim=(0, 360), xticks=range(0, 361, 90))
    apart = 90 * 2 ** max(0, math.ceil(math.log2(farthest / 630)))  # eight ticks at most
    onward.set(xlim=(0, farthest), xticks=np.arange(0, farthest + 1, apart))
    note = "means over frames, then sequences; right: as far as half of the sequences turn"
    figure.supxlabel(note, fontsize=8.5, color=GREY)
    label_ends(onward, ends)
    return figure


def _line(axes: Axes, x: ArrayLike, y: ArrayLike, mark: Look, name: str, every: int) -> None:
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    known = ~np.isnan(y)  # a bin may have no frame where a target turns fast
    small: dict[str, Any] = {"markersize": 4.5, "markevery": slice(0, -1, every), "clip_on": False}
    axes.plot(x[known], y[known], label=plain(name), **small, **mark._asdict())


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


def _needs(given: Mapping[str, Any]) -> None:
    if not given:
        raise ValueError("there is nothing to plot: give at least one tracker")
