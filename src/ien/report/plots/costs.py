"""Accuracy against the cost of inference, one point for each row of a table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..palette import colour_of
from ..rows import Row
from .labels import label_points
from .style import NARROW, WIDE, check_any, plain, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["accuracy_axis", "check_known", "draw_points", "plot_costs", "row_labels"]

NAME_HEIGHT = 0.2
"""Inches of a name and the gap below it."""


@styled()
def plot_costs(rows: Sequence[Row], names: Sequence[str] | None = None, *, narrow: bool = False) -> Figure:
    """Draw accuracy against multiply-accumulates for one image, one point for each row.

    Bars are the spread over the seeds, and a point has the colour of its method. Rows of equal cost
    stand exactly above each other.

    Args:
        rows: Rows of classifiers whose multiply-accumulates are known.
        names: What to call them; by default the names of the rows.
        narrow: Whether to fit a phone.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

    macs = []
    for row in rows:
        macs.append(statistics.fmean(record.macs for record in row.records))
    check_known(rows, macs, "no count of multiply-accumulates")
    width, height = WIDE, 5.0
    if narrow:
        width, height = NARROW, 4.2
    # tall enough for the names of all rows below each other
    figure = Figure(figsize=(width, max(height, 1 + NAME_HEIGHT * len(rows))), layout="constrained")
    axes = figure.subplots()
    axes.set(xscale="log", xlim=(min(macs) / 1.6, max(macs) * 1.6))
    axes.set_xlabel("multiply-accumulates for one image")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=9))
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    accuracy_axis(axes, rows)
    longest = 30 if narrow else 60
    labels = row_labels(rows, longest)
    if names is not None:
        labels = [plain(name, longest) for name in names]
    draw_points(axes, rows, macs)
    points, colours = [], []
    for row, x in zip(rows, macs, strict=True):
        points.append((x, row.accuracy[0]))
        colours.append(colour_of(row.label))
    label_points(axes, points, labels, colours)
    return figure


def check_known(rows: Sequence[Row], values: Sequence[float], lacking: str) -> None:
    """Raise an error that names the first row without an accuracy or a value."""
    check_any(rows, "row")
    for row, value in zip(rows, values, strict=True):
        if not (row.has_accuracy and math.isfinite(value) and value > 0):  # for a logarithmic axis
            raise ValueError(f"{row.label} has no accuracy or {lacking}: run it again")


def accuracy_axis(axes: Axes, rows: Sequence[Row]) -> None:
    """Make room for the accuracies of the rows on the vertical axis."""
    ends = []
    for row in rows:
        mean, spread = row.accuracy
        spread = spread or 0.0  # a single seed has none
        ends += [mean - spread, mean + spread]
    margin = max(0.15 * (max(ends) - min(ends)), 0.2)
    axes.set(ylabel="accuracy, %", ylim=(min(ends) - margin, max(ends) + margin))


def draw_points(axes: Axes, rows: Sequence[Row], places: Sequence[float]) -> None:
    """Draw a point with a bar for each row, in the colour of its method."""
    for row, x in zip(rows, places, strict=True):
        y, spread = row.accuracy
        colour = colour_of(row.label)
        if spread:
            axes.plot([x, x], [y - spread, y + spread], "_-", color=colour, linewidth=1.1)
        # a white rim tells points apart that lie over each other
        look: dict[str, Any] = {"markersize": 8, "markeredgecolor": "white", "markeredgewidth": 1}
        axes.plot([x], [y], "o", color=colour, zorder=3, label=plain(row.label), **look)


def row_labels(rows: Sequence[Row], longest: int = 60) -> list[str]:
    """Name rows by their labels, with preset and data where these differ."""
    presets, data = set(), set()
    for row in rows:
        presets.add(row.preset)
        data.add(row.data)
    labels = []
    for row in rows:
        words = [row.label]
        if len(presets) > 1:
            words.append(row.preset)
        if len(data) > 1:
            words.append(f"({row.data})")
        labels.append(plain(" ".join(words), longest))
    return labels
