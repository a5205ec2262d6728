"""Plots of trackers: from scores or rows of a table to success and precision curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from ..tracking.score import PRECISION_THRESHOLDS, SUCCESS_THRESHOLDS
from .figures import GREY, Look, look, needs, plain, save_figure, styled, union
from .labels import label_ends
from .records import Row
from .run_plots import row_labels
from .tracking_records import Tracked, averaged, shown_test

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Curves", "draw", "note", "plot_curves", "save_figure", "scores_by_test", "trackers_of"]


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


@styled()
def plot_curves(tests: Mapping[str, Mapping[str, Curves]]) -> Figure:
    """Success and precision curves on each test, a line a tracker, named with the scores read off it.

    These are the area under the success curve and, where the dotted line is, the precision at 20 pixels. A
    tracker looks the same on every test, and need not have been on all.
    """
    from matplotlib.figure import Figure

    trackers = trackers_of(tests)
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
            draw(success, SUCCESS_THRESHOLDS, score.success_curve, mark, name, 4)
            draw(precision, PRECISION_THRESHOLDS, score.precision_curve, mark, name, 10)
            numbers = f"{score.success:.3f} / {score.precision:.3f}"
            ends[-1].append((f"{numbers}  {plain(name, 28)}", score.success, mark))
    note(figure, "numbers: area under the success curve / precision at 20 px")
    for (_, precision), of_test in zip(pairs, ends, strict=True):
        # all lines may end at 1: the names stand half way up, by success, the best one highest
        label_ends(precision, [(name, 0.5 + 1e-6 * success, mark) for name, success, mark in of_test])
    return figure


def scores_by_test(rows: Sequence[Row]) -> dict[str, dict[str, Tracked]]:
    """Test → tracker → the means over its seeds, of rows of a table; those that classify are left out."""
    found: dict[str, dict[str, Tracked]] = {}
    for name, row in zip(_names(rows), rows, strict=True):
        runs = [record.tracking for record in row.records if record.tracking is not None]
        for test in runs[0].tests if runs else ():
            found.setdefault(shown_test(test), {})[name] = averaged([run.tests[test] for run in runs])
    return found


def draw(axes: Axes, x: ArrayLike, y: ArrayLike, mark: Look, name: str, every: int) -> None:
    """The line of a tracker, with a mark at every so many of its points."""
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    known = ~np.isnan(y)  # a bin may have no frame where a target turns fast
    small: dict[str, Any] = {"markersize": 4.5, "markevery": slice(0, -1, every), "clip_on": False}
    axes.plot(x[known], y[known], label=plain(name), **small, **mark._asdict())


def note(figure: Figure, text: str) -> None:
    """What a reader has to know, below all panels."""
    figure.supxlabel(text, fontsize=8.5, color=GREY)


def trackers_of(tests: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The names of all trackers, each once."""
    for trackers in tests.values() or ({},):
        needs(trackers, "tracker")
    return union(tests.values())


def _names(rows: Sequence[Row]) -> list[str]:
    """One for each row, and no two alike."""
    names = row_labels(rows)
    return [f"{name} ({k})" if (k := names[:i].count(name) + 1) > 1 else name for i, name in enumerate(names)]
