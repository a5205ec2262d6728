"""Plots of trackers: from scores or rows of a table to success and precision curves, and overlap by angle."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ...report.plots.labels import label_ends
from ...report.plots.runs import row_labels
from ...report.plots.style import GREY, Look, look, needs, plain, styled, union
from ...report.records import Row
from ..by_angle import BIN_WIDTH, Bin
from ..scoring import PRECISION_THRESHOLDS, SUCCESS_THRESHOLDS
from .records import Tracked, averaged, shown_test

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Curves", "Turns", "plot_curves", "plot_turning", "scores_by_test"]


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


class Turns(Protocol):
    """What is drawn of a tracker whose targets turn; both are empty if they do not."""

    @property
    def by_orientation(self) -> Sequence[Bin]: ...
    @property
    def by_angle(self) -> Sequence[Bin]: ...


@styled()
def plot_curves(tests: Mapping[str, Mapping[str, Curves]]) -> Figure:
    """Success and precision curves on each test, a line a tracker, named with the scores read off it.

    These are the area under the success curve and, where the dotted line is, the precision at 20 pixels. A
    tracker looks the same on every test, and need not have been on all.
    """
    from matplotlib.figure import Figure

    trackers = _trackers(tests)
    figure = Figure(figsize=(9, 0.6 + 3.4 * len(tests)), layout="constrained")
    pairs = figure.subplots(len(tests), 2, squeeze=False)
    ends: list[list[tuple[str, float, Look]]] = []  # with the success
    for (success, precision), (test, scores) in zip(pairs, tests.items(), strict=True):
        success.set(ylabel="share of frames with more", xlim=(0, 1), ylim=(0, 1), xlabel="overlap threshold")
        precision.set(ylabel="share of frames with at most", xlim=(0, 50), ylim=(0, 1))
        precision.set_xlabel("centre error threshold, px")
        success.set_title(f"success on {plain(test)}")
        precision.set_title(f"precision on {plain(test)}")
        precision.axvline(20, color=GREY, linewidth=0.9, linestyle=":", label="_20")
        ends.append([])
        for name, score in scores.items():
            mark = look(trackers.index(name))
            _draw(success, SUCCESS_THRESHOLDS, score.success_curve, mark, name, 4)
            _draw(precision, PRECISION_THRESHOLDS, score.precision_curve, mark, name, 10)
            numbers = f"{score.success:.3f} / {score.precision:.3f}"
            ends[-1].append((f"{numbers}  {plain(name, 28)}", score.success, mark))
    _note(figure, "numbers: area under the success curve / precision at 20 px")
    for (_, precision), of_test in zip(pairs, ends, strict=True):
        # all lines may end at 1: the names stand half way up, by success, the best one highest
        label_ends(precision, [(name, 0.5 + 1e-6 * success, mark) for name, success, mark in of_test])
    return figure


@styled()
def plot_turning(tests: Mapping[str, Mapping[str, Turns]]) -> Figure:
    """Mean overlap against the angle of the target, for each test in which it turns: where is it lost?

    On the left against its orientation, whole turns taken off; on the right against how far it has turned
    since the first frame, as far as half of the targets turn.
    """
    from matplotlib.figure import Figure

    turning = {
        test: turns
        for test, scores in tests.items()
        if (turns := {name: of for name, of in scores.items() if of.by_orientation and of.by_angle})
    }
    if not turning:
        raise ValueError(
            "there is nothing to plot: give at least one tracker whose targets turn in a test, as in rot-otb"
        )
    trackers = _trackers(turning)
    figure = Figure(figsize=(9, 0.6 + 3.6 * len(turning)), layout="constrained")
    cells = figure.subplots(len(turning), 2, squeeze=False, sharey="row")
    for (around, onward), (test, scores) in zip(cells, turning.items(), strict=True):
        for name, score in scores.items():
            mark = look(trackers.index(name))
            again = [one._replace(degrees=360.0) for one in score.by_orientation if one.degrees == 0]
            _draw(around, *_line([*score.by_orientation, *again]), mark, name, 6)
            _draw(onward, *_line(score.by_angle), mark, name, 6)
        farthest = max(BIN_WIDTH, *(score.by_angle[-1].degrees for score in scores.values()))
        apart = 90 * 2 ** max(0, math.ceil(math.log2(farthest / 630)))  # eight ticks at most
        highest = max(one.overlap for score in scores.values() for one in score.by_angle)
        around.set(ylabel="mean overlap", ylim=(0, min(1, math.ceil(10 * highest + 0.5) / 10)))
        around.set(xlabel="orientation, degrees counter-clockwise", xlim=(0, 360), xticks=range(0, 361, 90))
        onward.set(xlabel="degrees since the first frame", xlim=(0, farthest))
        onward.set_xticks(np.arange(0, farthest + 1, apart))
        around.set_title(f"{plain(test, 20)}: overlap by orientation")
        onward.set_title(f"{plain(test, 20)}: overlap by angle turned")
    _note(
        figure,
        "means over frames, then sequences; the true box, an upright hull, is largest between quarter turns\n"
        "right: as far as half of the targets turn",
    )
    for (_, onward), scores in zip(cells, turning.values(), strict=True):
        ends = [(name, score.by_angle[-1].overlap) for name, score in scores.items()]
        label_ends(onward, [(plain(name, 28), end, look(trackers.index(name))) for name, end in ends])
    return figure


def scores_by_test(rows: Sequence[Row]) -> dict[str, dict[str, Tracked]]:
    """Test → tracker → the means over its seeds, of rows of a table; those that classify are left out."""
    found: dict[str, dict[str, Tracked]] = {}
    for name, row in zip(_names(rows), rows, strict=True):
        runs = [record.tracking for record in row.records if record.tracking is not None]
        for test in runs[0].tests if runs else ():
            found.setdefault(shown_test(test), {})[name] = averaged([run.tests[test] for run in runs])
    return found


def _draw(axes: Axes, x: Sequence[float], y: Sequence[float], mark: Look, name: str, every: int) -> None:
    """The line of a tracker, with a mark at every so many of its points."""
    small: dict[str, Any] = {"markersize": 4.5, "markevery": slice(0, -1, every), "clip_on": False}
    axes.plot(x, y, label=plain(name), **small, **mark._asdict())


def _line(bins: Sequence[Bin]) -> tuple[list[float], list[float]]:
    return [one.degrees for one in bins], [one.overlap for one in bins]


def _note(figure: Figure, text: str) -> None:
    """What a reader has to know, below all panels."""
    figure.supxlabel(text, fontsize=8.5, color=GREY)


def _trackers(tests: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The names of all trackers, each once."""
    for trackers in tests.values() or ({},):
        needs(trackers, "tracker")
    return union(tests.values())


def _names(rows: Sequence[Row]) -> list[str]:
    """One for each row, and no two alike."""
    names = row_labels(rows)
    return [f"{name} ({k})" if (k := names[:i].count(name) + 1) > 1 else name for i, name in enumerate(names)]
