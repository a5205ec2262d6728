"""Accuracy against the number of training images, one line for each recipe: study-sizes.png."""

from __future__ import annotations

import statistics

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from records import accuracy_axis, error_rates, rows, save

from ien.report import Row
from ien.report.plots.labels import legend_beside
from ien.report.plots.style import Look, looks_of, note_below, styled

# recipe: its row on 500, 2,000 and 12,000 digits
RECIPES = {
    "equivariant (tied)": ("study/n500-equivariant", "study/n2000-equivariant", "rot-mnist/equivariant"),
    "equivariant (tied), free kernels": ("study/n500-free", "study/n2000-free", "study/free"),
    "E2CNN": ("study/n500-e2cnn", "study/n2000-e2cnn", "rot-mnist/e2cnn"),
    "CNN + rotated copies": ("study/n500-cnn-aug", "study/n2000-cnn-aug", "rot-mnist/cnn-aug"),
    "CNN + the paper's loss, β = 0.1": (
        "study/n500-ien-r4-beta0.1",
        "study/n2000-ien-r4-beta0.1",
        "rot-mnist/ien-r4-beta0.1",
    ),
}
NOTE = "bars: standard deviation over the seeds, the dots; equal steps up: equal factors of the error"


@styled()
def draw() -> Figure:
    known = rows("study/*", "rot-mnist/*")
    looks = looks_of(RECIPES)
    figure = Figure(figsize=(9, 4.8), layout="constrained")
    axes = figure.subplots()
    axes.set_title("accuracy on Rot-MNIST, %")
    axes.set(xscale="log", xlabel="training images")
    ends = []
    for name, experiments in RECIPES.items():
        last = draw_recipe(axes, [known[experiment] for experiment in experiments], looks[name])
        ends.append((name, -last, looks[name]))
    axes.set_xticks([500, 2000, 12000], ["500", "2,000", "12,000"])
    axes.minorticks_off()
    accuracy_axis(axes, "y")
    note_below(figure, NOTE)
    legend_beside(axes, ends)
    return figure


def draw_recipe(axes: Axes, sizes: list[Row], look: Look) -> float:
    """Draw a line, the seeds and their spread; returns the error rate on most images."""
    places, means = [], []
    for row in sizes:
        errors = error_rates(row)
        place, mean = row.records[0].train, statistics.fmean(errors)
        axes.plot([place] * len(errors), errors, ".", color=look.color, markersize=4, alpha=0.55)
        if len(errors) > 1:
            spread = statistics.stdev(errors)
            axes.plot([place, place], [mean - spread, mean + spread], "_-", color=look.color, linewidth=1)
        places.append(place)
        means.append(mean)
    axes.plot(places, means, **look._asdict())
    return means[-1]


if __name__ == "__main__":
    save(draw(), "study-sizes.png")
