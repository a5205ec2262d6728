"""Accuracy against the cost of inference, one point for each row of a table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..palette import colour_of
from ..rows import Row
from .axes import ROUNDING, log_ticks
from .labels import label_points
from .style import EDGE, check_any, plain, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["accuracy_axis", "check_known", "draw_points", "plot_costs", "row_labels"]

UNKNOWN, EXACT = "#CCCCCC", "#FFFFFF"
POINT_WIDTH = 11
"""Typographic points, its edge included."""


@styled()
def plot_costs(rows: Sequence[Row]) -> Figure:
    """Draw accuracy against multiply-accumulates for one image, one point for each row.

    Bars are the spread over the seeds. The edge of a point has the colour of its method. The darker
    its inside, the larger its relative error, averaged over the layers.

    Args:
        rows: Rows of classifiers whose multiply-accumulates are known.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

    macs = []
    for row in rows:
        macs.append(statistics.fmean(record.macs for record in row.records))
    check_known(rows, macs, "no count of multiply-accumulates")
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    axes.set(xscale="log", xlim=(min(macs) / 1.6, max(macs) * 1.6))
    axes.set_xlabel("multiply-accumulates for one image")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=9))
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    accuracy_axis(axes, rows)
    fills = _error_shades(figure, axes, list(map(_mean_error, rows)))
    draw_points(axes, rows, macs, fills, row_labels(rows))
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


def draw_points(
    axes: Axes, rows: Sequence[Row], places: Sequence[float], fills: Sequence[Any], names: Sequence[str]
) -> None:
    """Draw a point with a bar and a name for each row, in the colour of its method."""
    means = [row.accuracy[0] for row in rows]
    points = _side_by_side(axes, list(zip(places, means, strict=True)))
    drawn = []
    for row, (x, y), fill in zip(rows, points, fills, strict=True):
        spread = row.accuracy[1]
        if spread:
            drawn += axes.plot([x, x], [y - spread, y + spread], "_-", color=EDGE, linewidth=1.1)
        look: dict[str, Any] = {
            "markersize": 8,
            "markeredgecolor": colour_of(row.label),
            "markeredgewidth": 2,
        }
        drawn += axes.plot([x], [y], "o", markerfacecolor=fill, zorder=3, label=plain(row.label), **look)
    label_points(axes, points, names, drawn)


def _side_by_side(axes: Axes, points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Move points that would hide each other apart, to the right and to the left."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # the layout is done, and places on the page are known
    width = POINT_WIDTH * figure.dpi / 72  # pixels
    pixels = axes.transData.transform(points)
    clusters: list[list[int]] = []
    for i in range(len(points)):
        for cluster in clusters:
            # near the first point of a cluster, across and upward
            if abs(pixels[cluster[0]] - pixels[i]).max() < width:
                cluster.append(i)
                break
        else:
            clusters.append([i])
    moved = list(points)
    for cluster in clusters:
        for k, i in enumerate(cluster):
            shift = (k - (len(cluster) - 1) / 2) * width  # around the place that they share
            x, _ = axes.transData.inverted().transform(pixels[i] + (shift, 0))
            moved[i] = float(x), points[i][1]
    return moved


def row_labels(rows: Sequence[Row]) -> list[str]:
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
        labels.append(plain(" ".join(words), 60))
    return labels


def _mean_error(row: Row) -> float:
    errors = [row.layer(name).relative for name in row.records[0].layers]
    if not errors:
        return math.nan
    return statistics.fmean(errors)


def _error_shades(figure: Figure, axes: Axes, errors: Sequence[float]) -> list[Any]:
    """Return the fill of each point, and draw a bar that explains it."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm

    shown = []
    has_rounding = False
    for error in errors:
        if error < ROUNDING:
            has_rounding = True
        elif math.isfinite(error):
            shown.append(error)
    shade = None
    if shown:
        low, high = min(shown) / 1.5, max(shown) * 1.5
        norm = LogNorm(low, high)
        shade = ScalarMappable(norm, "cividis_r")
        bar = figure.colorbar(shade, ax=axes, aspect=32, pad=0.02)
        ticks = log_ticks(low, high)
        bar.set_ticks(list(ticks), labels=list(ticks.values()))
        bar.minorticks_off()
        label = "relative error, mean over layers"
        if has_rounding:
            label += f" (white: below {ROUNDING:g})"
        bar.set_label(label)
        bar.outline.set_visible(False)
    fills: list[Any] = []
    for error in errors:
        if error < ROUNDING:
            fills.append(EXACT)
        elif shade is None or not math.isfinite(error):
            fills.append(UNKNOWN)
        else:
            fills.append(shade.cmap(float(norm(error))))
    return fills
