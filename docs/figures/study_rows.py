"""Accuracy and the largest relative error of a layer, row by row of the study: study-rows.png."""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from records import accuracy_axis, error_rates, rows, save

from ien.report import Row
from ien.report.palette import COLOURS, METHODS, method_of
from ien.report.plots.axes import ROUNDING, log_ticks
from ien.report.plots.style import GREY, GRID, note_below, styled

BLOCKS = {
    "12,000 training images, rot4": {
        "random start, one copy": [
            "rot-mnist/cnn-aug",
            "rot-mnist/ien-r4-beta0.01",
            "rot-mnist/ien-r4-beta0.1",
            "rot-mnist/ien-r4",
            "study/regular-random-1-beta0.1",
            "study/regular-random-1-beta1",
        ],
        "random start, whole orbits": [
            "study/random-all-beta0",
            "study/pooled-random-all-beta0.1",
            "study/pooled-random-all-beta1",
            "study/regular-random-all-beta0.1",
            "study/regular-random-all-beta1",
        ],
        "equivariant start, one copy": [
            "study/start-1-beta0",
            "study/pooled-start-1-beta0.1",
            "study/pooled-start-1-beta1",
            "study/regular-start-1-beta0.1",
            "study/regular-start-1-beta1",
        ],
        "equivariant start, whole orbits": [
            "study/start-all-beta0",
            "study/pooled-start-all-beta0.1",
            "study/pooled-start-all-beta1",
            "study/regular-start-all-beta0.1",
            "study/regular-start-all-beta1",
        ],
        "other settings": [
            "rot-mnist/cnn",
            "study/cnn-aug-2x",
            "rot-mnist/cnn-aug-tta",
            "rot-mnist/e2cnn",
            "study/e2cnn-alone-2x",
            "rot-mnist/het-ien",
            "study/free",
            "study/free-2x",
            "study/tied",
            "rot-mnist/equivariant",
            "study/equivariant-2x",
        ],
    },
    "12,000 training images, flip": {
        "": ["study/flip-cnn-aug", "study/flip-ien-r4", "study/flip-free", "study/flip-equivariant"],
    },
    "2,000 training images, rot4": {
        "": [
            "study/n2000-cnn-aug",
            "study/n2000-ien-r4-beta0.1",
            "study/n2000-e2cnn",
            "study/n2000-free",
            "study/n2000-equivariant",
        ],
    },
    "500 training images, rot4": {
        "": [
            "study/n500-cnn-aug",
            "study/n500-cnn-aug (rotate=true)",
            "study/n500-ien-r4-beta0.1",
            "study/n500-e2cnn",
            "study/n500-e2cnn (rotate=true)",
            "study/n500-free",
            "study/n500-equivariant",
            "study/n500-equivariant (rotate=true)",
        ],
    },
}
LOSSES = {"pooled": (METHODS["IEN"], "o"), "regular": ("#004A74", "s")}
SIZES = {0.01: 4.5, 0.1: 6.0, 1.0: 8.5}
"""Of the mark, by the weight of the loss."""
ONE_PERCENT = 0.01
TOP = -1.1
"""Where the lines begin; the first of them is at 0."""
NOTE = (
    "bars: standard deviation over the seeds, the dots; equal steps of accuracy: equal factors of "
    "the error\nright: of the worst layer of each run, the mean over the seeds"
)


class Mark(NamedTuple):
    """Colour and shape tell the method, the size tells the weight of the loss."""

    color: str
    marker: str
    markersize: float


@styled()
def draw() -> Figure:
    known = rows("study/*", "rot-mnist/*")
    headings, names = lines()
    errors = {name: [largest_error(record.layers) for record in known[name].records] for name in names}
    measured = [error for of_row in errors.values() for error in of_row if error >= ROUNDING]
    low, high = min(measured) / 1.6, max(measured) * 1.6
    rounding = low / math.sqrt(5)  # where errors of rounding are drawn, in a band below the scale

    last = max(names.values())
    figure = Figure(figsize=(9, 1.6 + 0.2 * last), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    left.set_title("accuracy on rot-mnist, %")
    right.set_title("largest relative error of a layer")
    right.set(xscale="log", xlim=(low / 5, high))
    right.axvspan(low / 5, low, color=GRID, alpha=0.45, linewidth=0, zorder=0)
    right.axvline(ONE_PERCENT, color=GREY, linewidth=1, linestyle=":")
    right.text(ONE_PERCENT, TOP, " 1 %", va="top", color=GREY, fontsize=8.5)
    for name, y in names.items():
        mark = mark_of(name, known[name])
        draw_seeds(left, y, error_rates(known[name]), mark, spread=True)
        places = [max(error, rounding) if error >= ROUNDING else rounding for error in errors[name]]
        draw_seeds(right, y, places, mark)
    accuracy_axis(left, "x")
    ticks = {rounding: "< $10^{-8}$"} | log_ticks(low, high, 5)
    right.set_xticks(list(ticks), list(ticks.values()))
    right.minorticks_off()
    name_lines(left, headings, names, last)
    right.tick_params(axis="y", which="both", length=0)
    explain(figure)
    note_below(figure, NOTE)
    return figure


def lines() -> tuple[dict[float, tuple[str, bool]], dict[str, float]]:
    """Return place to heading (and whether it is a section's), and row to place, from above."""
    headings: dict[float, tuple[str, bool]] = {}
    names: dict[str, float] = {}
    y = 0.0
    for section, blocks in BLOCKS.items():
        headings[y] = section, True
        y += 1
        for title, block in blocks.items():
            if title:
                headings[y] = title, False
                y += 1
            for name in block:
                names[name] = y
                y += 1
            y += 0.6
    return headings, names


def largest_error(layers: dict) -> float:
    known = [layer.relative for layer in layers.values() if math.isfinite(layer.relative)]
    return max(known)


def mark_of(name: str, row: Row) -> Mark:
    config = row.records[0].config
    beta = float(config["beta"])
    if config["augment"] and beta:
        colour, marker = LOSSES[str(config.get("action", "pooled"))]
        if method_of(name) == "Het-IEN":
            colour = METHODS["Het-IEN"]
        return Mark(colour, marker, SIZES[beta])
    method = method_of(name) or "CNN-aug"  # the rows of the grid without the loss
    return Mark(METHODS[method], "D", 5.0)


def draw_seeds(axes: Axes, y: float, values: list[float], mark: Mark, spread: bool = False) -> None:
    mean = statistics.fmean(values)
    if spread and len(values) > 1:
        deviation = statistics.stdev(values)
        axes.plot(
            [mean - deviation, mean + deviation], [y, y], "|-", color=mark.color, linewidth=1, markersize=5
        )
    axes.plot(values, [y] * len(values), ".", color=mark.color, alpha=0.55, markersize=4)
    edge = {"markeredgecolor": "#ffffff", "markeredgewidth": 0.6, "linestyle": "", "zorder": 3}
    axes.plot([mean], [y], **mark._asdict(), **edge)


def name_lines(
    axes: Axes, headings: dict[float, tuple[str, bool]], names: dict[str, float], last: float
) -> None:
    axes.set_ylim(last + 0.8, TOP)
    axes.set_yticks(list(names.values()), list(names))
    axes.set_yticks(list(headings), [text for text, _ in headings.values()], minor=True)
    axes.tick_params(axis="y", which="both", length=0)
    for label, (_, is_section) in zip(axes.get_yticklabels(minor=True), headings.values(), strict=True):
        label.set(fontweight="bold", color=COLOURS["black"] if is_section else GREY, fontsize=9)


def explain(figure: Figure) -> None:
    """Say above the panels what the marks mean."""
    marks = {}
    for method in ("CNN", "CNN-aug", "E2CNN", "equivariant"):
        name = method
        if method == "equivariant":
            name = "tied weights"
        marks[f"{name}, no loss"] = Mark(METHODS[method], "D", 5.0)
    marks["Het-IEN, β = 1"] = Mark(METHODS["Het-IEN"], "o", SIZES[1.0])
    for action, (colour, marker) in LOSSES.items():
        for beta in (0.1, 1.0):
            marks[f"{action}, β = {beta:g}"] = Mark(colour, marker, SIZES[beta])
    handles = [Line2D([], [], linestyle="", **mark._asdict()) for mark in marks.values()]
    figure.legend(handles, list(marks), loc="outside upper center", ncols=5, handletextpad=0.2)


if __name__ == "__main__":
    save(draw(), "study-rows.png")
