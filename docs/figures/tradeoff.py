"""Accuracy against the relative error of the last layer, one panel for each network: tradeoff.png.

Rank correlation: -1 where a lower error always goes with a higher accuracy.
"""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from records import rows, save
from scipy.stats import spearmanr

from ien.report import Row
from ien.report.plots.axes import log_ticks
from ien.report.plots.costs import accuracy_axis, draw_points
from ien.report.plots.style import styled

# data set and network, the experiments, and what all their names begin with
PANELS = (
    ("rot-tim, resnet18", "rot-tim/resnet18-*", "resnet18-"),
    ("rot-mnist, cnn6", "rot-mnist/*", ""),
    ("rot-tim, vgg", "rot-tim/vgg-*", "vgg-"),
)
EXACT = 1e-6
"""Errors below it are those of rounding."""


@styled()
def draw() -> Figure:
    figure = Figure(figsize=(13, 9.6), layout="constrained")
    grid = figure.add_gridspec(2, 2)  # the panel with most points has the whole width
    cells = [figure.add_subplot(cell) for cell in (grid[0, :], grid[1, 0], grid[1, 1])]
    panels = []
    for (title, experiments, prefix), axes in zip(PANELS, cells, strict=True):
        shown = list(rows(experiments).values())
        errors = [last_error(row) for row in shown]
        correlation = spearmanr(errors, [row.accuracy[0] for row in shown]).statistic
        axes.set_title(
            f"{title}: rank correlation {correlation:+.2f}".replace("-", "−").replace("rot−", "rot-")
        )
        panels.append((axes, shown, error_axis(axes, errors), prefix))
        accuracy_axis(axes, shown)
    for axes, shown, places, prefix in panels:  # the layout is settled before names are placed
        names = [row.label.removeprefix(prefix) for row in shown]
        draw_points(axes, shown, places, names)
    return figure


def last_error(row: Row) -> float:
    return row.layer(list(row.records[0].layers)[-1]).relative


def error_axis(axes: Axes, errors: list[float]) -> list[float]:
    """Make the horizontal axis; returns where errors are drawn, those of rounding at the left."""
    shown = [error for error in errors if error >= EXACT]
    left = min(shown) / 6
    places = [error if error >= EXACT else left for error in errors]
    ticks = log_ticks(min(shown) / 1.6, max(shown) * 1.6)
    if left in places:
        ticks |= {left: "exact"}
    axes.set(xscale="log", xlabel="relative error of the last layer")
    axes.set_xlim(min(places) / 1.6, max(places) * 1.6)
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.minorticks_off()
    return places


if __name__ == "__main__":
    save(draw(), "tradeoff.png")
