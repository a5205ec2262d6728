"""Accuracy against the relative error of the last layer, one panel for each network: tradeoff.png.

Rank correlation: -1 where a lower error always goes with a higher accuracy.
"""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from records import rows, save
from scipy.stats import spearmanr

from ien.report import Row
from ien.report.palette import colour_of, plain_name
from ien.report.plots.axes import log_ticks
from ien.report.plots.costs import accuracy_axis, draw_points
from ien.report.plots.labels import legend_below
from ien.report.plots.style import Look, styled

# what to call the panel, and its experiments
PANELS = (
    ("ResNet18 on Rot-TIM", "rot-tim/resnet18-*"),
    ("six-layer CNN on Rot-MNIST", "rot-mnist/*"),
    ("VGG on Rot-TIM", "rot-tim/vgg-*"),
)
EXACT = 1e-6
"""Errors below it are those of rounding."""


@styled()
def draw() -> Figure:
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    methods = {}
    for axes, (title, experiments) in zip(figure.subplots(1, 3), PANELS, strict=True):
        shown = list(rows(experiments).values())
        errors = [last_error(row) for row in shown]
        correlation = spearmanr(errors, [row.accuracy[0] for row in shown]).statistic
        written = f"{correlation:+.2f}".replace("-", "−")
        axes.set_title(f"{title}\nrank correlation {written}")
        accuracy_axis(axes, shown)
        draw_points(axes, shown, error_axis(axes, errors))
        for row in shown:
            methods[plain_name(row.label)] = Look(colour_of(row.label), "o", "")
    legend_below(figure, methods)
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
