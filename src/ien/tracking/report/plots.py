"""Plots of trackers: success and precision curves, and overlap by angle."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ...report.plots.costs import row_labels
from ...report.plots.labels import legend_beside
from ...report.plots.style import GREY, Look, check_any, looks_of, note_below, plain, styled, union
from ...report.rows import Row
from ..by_angle import BIN_WIDTH, Bin
from ..scoring import PRECISION_THRESHOLDS, SUCCESS_THRESHOLDS
from .records import Tracked, averaged, shown_test, trackings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Angles", "Curves", "plot_curves", "plot_turning", "scores_by_test"]


class Curves(Protocol):
    """What is drawn of a score, such as :class:`ien.tracking.Score`."""

    @property
    def success_curve(self) -> Sequence[float]: ...
    @property
    def precision_curve(self) -> Sequence[float]: ...
    @property
    def success(self) -> float: ...
    @property
    def precision(self) -> float: ...


class Angles(Protocol):
    """What is drawn of a tracker whose targets rotate; both are empty if they do not."""

    @property
    def by_orientation(self) -> Sequence[Bin]: ...
    @property
    def by_angle(self) -> Sequence[Bin]: ...


@styled()
def plot_curves(tests: Mapping[str, Mapping[str, Curves]]) -> Figure:
    """Draw success and precision curves on each test, one line for each tracker.

    Names carry the scores: the area under the success curve and, where the dotted line is, the
    precision at 20 pixels. A tracker looks the same on every test, and need not have been on all.

    Args:
        tests: Test to tracker to its score.
    """
    from matplotlib.figure import Figure

    looks = _looks(tests)
    figure = Figure(figsize=(9, 0.6 + 3.4 * len(tests)), layout="constrained")
    panels = figure.subplots(len(tests), 2, squeeze=False)
    for (success, precision), (test, scores) in zip(panels, tests.items(), strict=True):
        _curve_axes(success, precision, plain(test))
        names = []
        for name, score in scores.items():
            _draw(success, SUCCESS_THRESHOLDS, score.success_curve, looks[name], name, every=4)
            _draw(precision, PRECISION_THRESHOLDS, score.precision_curve, looks[name], name, every=10)
            shown = f"{score.success:.3f} / {score.precision:.3f}  {plain(name, 28)}"
            names.append((shown, score.success, looks[name]))
        legend_beside(precision, names)  # outside of the axes: curves of good trackers fill them
    note_below(figure, "numbers: area under the success curve / precision at 20 px")
    return figure


@styled()
def plot_turning(tests: Mapping[str, Mapping[str, Angles]]) -> Figure:
    """Draw the mean overlap against the angle of the target, for each test in which it rotates.

    On the left against its orientation, whole turns taken off; on the right against how far it has
    rotated since the first frame, as far as half of the targets do.

    Args:
        tests: Test to tracker to its overlap by angle.
    """
    from matplotlib.figure import Figure

    rotating = _rotating(tests)
    looks = _looks(rotating)
    figure = Figure(figsize=(9, 0.6 + 3.6 * len(rotating)), layout="constrained")
    panels = figure.subplots(len(rotating), 2, squeeze=False, sharey="row")
    for (around, onward), (test, scores) in zip(panels, rotating.items(), strict=True):
        around.set_title(f"{plain(test, 20)}: overlap by orientation")
        onward.set_title(f"{plain(test, 20)}: overlap by angle")
        names = []
        for name, score in scores.items():
            _draw(around, *_line(_around(score.by_orientation)), looks[name], name, every=6)
            _draw(onward, *_line(score.by_angle), looks[name], name, every=6)
            names.append((plain(name, 28), score.by_angle[-1].overlap, looks[name]))
        _angle_axes(around, onward, list(scores.values()))
        legend_beside(onward, names)
    note_below(
        figure,
        "means over frames, then sequences; the true box, an upright hull, is largest between quarter turns\n"
        "right: as far as half of the targets rotate",
    )
    return figure


def scores_by_test(rows: Sequence[Row]) -> dict[str, dict[str, Tracked]]:
    """Return the means over seeds of each tracker on each test; other rows are left out."""
    found: dict[str, dict[str, Tracked]] = {}
    for name, row in zip(_names(rows), rows, strict=True):
        runs = trackings(row)
        if not runs:
            continue
        for test in runs[0].tests:
            mean = averaged([run.tests[test] for run in runs])  # all seeds have the same tests
            found.setdefault(shown_test(test), {})[name] = mean
    return found


def _looks(tests: Mapping[str, Mapping[str, Any]]) -> dict[str, Look]:
    """Return the look of every tracker, which it has on all tests."""
    check_any(tests, "tracker")
    for trackers in tests.values():
        check_any(trackers, "tracker")
    return looks_of(union(tests.values()))


def _rotating(tests: Mapping[str, Mapping[str, Angles]]) -> dict[str, dict[str, Angles]]:
    """Keep the tests and trackers whose targets rotate."""
    rotating: dict[str, dict[str, Angles]] = {}
    for test, scores in tests.items():
        for name, score in scores.items():
            if score.by_orientation and score.by_angle:
                rotating.setdefault(test, {})[name] = score
    if not rotating:
        raise ValueError(
            "there is nothing to plot: give at least one tracker whose targets rotate in a test, "
            "as in rot-otb"
        )
    return rotating


def _curve_axes(success: Axes, precision: Axes, test: str) -> None:
    success.set_title(f"success on {test}")
    success.set(xlim=(0, 1), ylim=(0, 1))
    success.set(xlabel="overlap threshold", ylabel="share of frames with more")
    precision.set_title(f"precision on {test}")
    precision.set(xlim=(0, 50), ylim=(0, 1))
    precision.set(xlabel="centre error threshold, px", ylabel="share of frames with at most")
    # where the precision is read off
    precision.axvline(20, color=GREY, linewidth=0.9, linestyle=":", label="_20")


def _angle_axes(around: Axes, onward: Axes, scores: Sequence[Angles]) -> None:
    farthest = max(BIN_WIDTH, *(score.by_angle[-1].degrees for score in scores))
    highest = 0.0
    for score in scores:
        for one in score.by_angle:
            highest = max(highest, one.overlap)
    # a tick every quarter turn, or at a multiple of it, so that there are eight at most
    apart = 90 * 2 ** max(0, math.ceil(math.log2(farthest / 630)))
    # up to the next tenth above the highest curve, with a little room
    around.set(ylabel="mean overlap", ylim=(0, min(1, math.ceil(10 * highest + 0.5) / 10)))
    around.set(xlabel="orientation, degrees counter-clockwise", xlim=(0, 360), xticks=range(0, 361, 90))
    onward.set(xlabel="degrees since the first frame", xlim=(0, farthest))
    onward.set_xticks(np.arange(0, farthest + 1, apart))


def _draw(axes: Axes, x: Sequence[float], y: Sequence[float], look: Look, name: str, every: int) -> None:
    """Draw the line of a tracker, with a mark on one point in ``every``."""
    small: dict[str, Any] = {"markersize": 4.5, "markevery": slice(0, -1, every), "clip_on": False}
    axes.plot(x, y, label=plain(name), **small, **look._asdict())


def _around(bins: Sequence[Bin]) -> list[Bin]:
    """Return the bins with that of 0° at 360° again, if there is one."""
    around = list(bins)
    for one in bins:
        if one.degrees == 0:
            around.append(one._replace(degrees=360.0))
    return around


def _line(bins: Sequence[Bin]) -> tuple[list[float], list[float]]:
    return [one.degrees for one in bins], [one.overlap for one in bins]


def _names(rows: Sequence[Row]) -> list[str]:
    """Name each row, with a number where two have the same label."""
    names: list[str] = []
    labels = row_labels(rows)
    for i, label in enumerate(labels):
        earlier = labels[:i].count(label)
        if earlier:
            label = f"{label} ({earlier + 1})"
        names.append(label)
    return names
