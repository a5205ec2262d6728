"""Accuracy beside the tied network's, and agreement, a row for each data set: symmetry.png."""

from __future__ import annotations

import statistics
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator
from records import rows, save

from ien.experiments.symmetry import DATA
from ien.report import Row
from ien.report.plots.labels import legend_below
from ien.report.plots.style import GRID, Look, looks_of, styled


class Shown(NamedTuple):
    """How a method is shown."""

    name: str
    above: float
    """How far above the middle of its row it is drawn, so that no dot hides another."""


METHODS = {
    "cnn": Shown("ordinary CNN", 0.35),
    "cnn-aug": Shown("CNN, random elements in training", 0.21),
    "ien-beta0.1": Shown("CNN, the paper's loss", 0.07),
    "e2cnn": Shown("steerable twin (E2CNN)", -0.07),
    "tied": Shown("equivariant (tied)", -0.21),
    "slack": Shown("equivariant with slack", -0.35),
}
LINEAR_UP_TO = 1.0
"""Percentage points from 0 within which the axis is linear; beyond, equal steps are equal factors."""
TICKS = (-30, -10, -3, -1, 0, 1, 3)


@styled()
def draw() -> Figure:
    known = rows("symmetry/*")
    looks = {method: look._replace(linestyle="") for method, look in looks_of(METHODS).items()}
    there = [data for data in DATA if f"symmetry/{data}-tied" in known]
    figure = Figure(figsize=(10, 1.6 + 0.62 * len(there)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    left.set_title("accuracy: points above tied")
    right.set_title("same answer in all views, %")
    for place, data in enumerate(there):
        if place % 2:  # every other row in grey, to follow it across
            for axes in (left, right):
                axes.axhspan(-place - 0.5, -place + 0.5, color=GRID, alpha=0.45, linewidth=0, zorder=0)
        tied = statistics.fmean(accuracies(known[f"symmetry/{data}-tied"]))
        for method, shown in METHODS.items():
            row = known.get(f"symmetry/{data}-{method}")
            if row is None:
                continue
            height = -place + shown.above
            draw_seeds(left, [accuracy - tied for accuracy in accuracies(row)], height, looks[method])
            draw_seeds(right, [100 * record.agreement for record in row.records], height, looks[method])
    left.set_yticks([-place for place in range(len(there))], [title_of(data) for data in there])
    left.set_ylim(0.5 - len(there), 0.5)
    left.axvline(0, color=looks["tied"].color, linewidth=1, alpha=0.6, zorder=1)
    left.set_xscale("symlog", linthresh=LINEAR_UP_TO, linscale=0.8)
    left.set_xlim(-45, 12)
    left.set_xticks(TICKS)
    left.xaxis.set_major_formatter(FuncFormatter(lambda points, _: f"{points:+g}" if points else "0"))
    left.xaxis.set_minor_locator(NullLocator())
    for axes in (left, right):
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
    legend_below(figure, {shown.name: looks[method] for method, shown in METHODS.items()})
    return figure


def title_of(data: str) -> str:
    """Return what a data set is called, a long title on two lines."""
    return DATA[data].title.replace(" under ", "\nunder ")


def accuracies(row: Row) -> list[float]:
    """Return the accuracy of each seed, in percent."""
    return [100 * record.accuracy for record in row.records]


def draw_seeds(axes: Axes, values: list[float], height: float, look: Look) -> None:
    """Draw the mean over the seeds, and each seed as a dot."""
    axes.plot(values, [height] * len(values), ".", color=look.color, markersize=4, alpha=0.55)
    axes.plot(statistics.fmean(values), height, marker=look.marker, color=look.color, markersize=6)


if __name__ == "__main__":
    save(draw(), "symmetry.png")
