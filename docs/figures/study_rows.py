"""Accuracy and the largest relative error of a layer, for the rows that matter: study-rows.png."""

from __future__ import annotations

import math
import statistics

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from records import accuracy_axis, error_rates, rows, save

from ien.report.palette import METHODS
from ien.report.plots.axes import ROUNDING, log_ticks
from ien.report.plots.style import GRID, note_below, styled

# what to call a row: its method, for the colour, and its place among the records; the best one last
ROWS = {
    "CNN + the paper's loss, β = 1": ("IEN", "rot-mnist/ien-r4"),
    "CNN + the paper's loss, β = 0.1": ("IEN", "rot-mnist/ien-r4-beta0.1"),
    "CNN + rotated copies": ("CNN-aug", "rot-mnist/cnn-aug"),
    "the loss from an equivariant start, β = 0.1": ("IEN", "study/regular-start-all-beta0.1"),
    "CNN + rotated copies, averaged over 4 rotations": ("CNN-aug", "rot-mnist/cnn-aug-tta"),
    "E2CNN": ("E2CNN", "rot-mnist/e2cnn"),
    "equivariant (tied), free kernels": ("equivariant", "study/free"),
    "E2CNN, twice the epochs": ("E2CNN", "study/e2cnn-alone-2x"),
    "equivariant (tied)": ("equivariant", "rot-mnist/equivariant"),
    "equivariant (tied), free kernels, twice the epochs": ("equivariant", "study/free-2x"),
    "equivariant (tied), twice the epochs": ("equivariant", "study/equivariant-2x"),
}
NOTE = (
    "bars: standard deviation over the seeds, which are the small dots; to the right, equal steps are equal "
    "factors of the error\nthe right panel has the worst layer of each run"
)


@styled()
def draw() -> Figure:
    known = rows("study/*", "rot-mnist/*")
    errors = {}
    measured = []
    for name, (_, experiment) in ROWS.items():
        errors[name] = [largest_error(record.layers) for record in known[experiment].records]
        measured += [error for error in errors[name] if error >= ROUNDING]
    low, high = min(measured) / 2, max(measured) * 2
    exact = low / math.sqrt(10)  # where errors of rounding are drawn, in a band beside the scale

    figure = Figure(figsize=(10, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    left.set_title("accuracy on Rot-MNIST, %")
    right.set_title("largest relative error of a layer")
    right.set(xscale="log", xlim=(low / 10, high))
    right.axvspan(low / 10, low, color=GRID, alpha=0.45, linewidth=0, zorder=0)
    for y, (name, (method, experiment)) in enumerate(ROWS.items()):
        draw_seeds(left, y, error_rates(known[experiment]), METHODS[method], spread=True)
        places = [error if error >= ROUNDING else exact for error in errors[name]]
        draw_seeds(right, y, places, METHODS[method])
    accuracy_axis(left, "x")
    ticks = {exact: "exact"} | log_ticks(low, high, 5)
    right.set_xticks(list(ticks), list(ticks.values()))
    right.minorticks_off()
    left.set_yticks(range(len(ROWS)), list(ROWS))
    for axes in (left, right):
        axes.tick_params(axis="y", length=0)
    note_below(figure, NOTE)
    return figure


def largest_error(layers: dict) -> float:
    known = [layer.relative for layer in layers.values() if math.isfinite(layer.relative)]
    return max(known)


def draw_seeds(axes: Axes, y: float, values: list[float], colour: str, spread: bool = False) -> None:
    mean = statistics.fmean(values)
    if spread and len(values) > 1:
        deviation = statistics.stdev(values)
        axes.plot([mean - deviation, mean + deviation], [y, y], "|-", color=colour, linewidth=1, markersize=5)
    axes.plot(values, [y] * len(values), ".", color=colour, alpha=0.55, markersize=4)
    axes.plot([mean], [y], "o", color=colour, markersize=8, markeredgecolor="#ffffff", zorder=3)


if __name__ == "__main__":
    save(draw(), "study-rows.png")
