"""Accuracy and agreement from exact symmetry to none, a row for each data set: symmetry.png."""

from __future__ import annotations

import statistics

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from records import accuracy_axis, error_rates, rows, save

from ien.experiments.symmetry import DATA
from ien.report import Row
from ien.report.palette import plain_name
from ien.report.plots.labels import legend_below
from ien.report.plots.style import GRID, Look, looks_of, styled

# method: how far above the middle of its row it is drawn, so that no dot hides another
METHODS = {"cnn": 0.34, "cnn-aug": 0.17, "e2cnn": 0.0, "tied": -0.17, "slack": -0.34}


@styled()
def draw() -> Figure:
    known = rows("symmetry/*")
    looks = {method: look._replace(linestyle="") for method, look in looks_of(METHODS).items()}
    there = [data for data in DATA if f"symmetry/{data}-slack" in known]
    figure = Figure(figsize=(9, 1.6 + 0.55 * len(there)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    left.set_title("accuracy, %")
    right.set_title("same answer in all views, %")
    for place, data in enumerate(there):
        if place % 2:  # every other row in grey, to follow it across
            for axes in (left, right):
                axes.axhspan(-place - 0.5, -place + 0.5, color=GRID, alpha=0.45, linewidth=0, zorder=0)
        for method, above in METHODS.items():
            row = known.get(f"symmetry/{data}-{method}")
            if row is not None:
                draw_row(left, right, row, -place + above, looks[method])
    left.set_yticks([-place for place in range(len(there))], [DATA[data].title for data in there])
    left.set_ylim(0.5 - len(there), 0.5)
    for axes in (left, right):
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
    accuracy_axis(left, "x")
    drawn = {row.experiment.rpartition("-")[2] for row in known.values()} | {"cnn-aug"}
    legend_below(figure, {plain_name(method): look for method, look in looks.items() if method in drawn})
    return figure


def draw_row(left: Axes, right: Axes, row: Row, height: float, look: Look) -> None:
    """Draw the mean over the seeds, and each seed as a dot."""
    agreements = [100 * record.agreement for record in row.records]
    for axes, values in ((left, error_rates(row)), (right, agreements)):
        axes.plot(values, [height] * len(values), ".", color=look.color, markersize=4, alpha=0.55)
        axes.plot(statistics.fmean(values), height, marker=look.marker, color=look.color, markersize=7)


if __name__ == "__main__":
    save(draw(), "symmetry.png")
