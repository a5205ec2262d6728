"""Time and memory of a step against images, channels, layers and elements of the group: growth.png.

Reads what `python benchmarks/bench.py growth` measured.
"""

from __future__ import annotations

import json
import statistics

from matplotlib.figure import Figure
from records import HERE, save

from ien.report.palette import METHODS
from ien.report.plots.style import styled

MEASURED = HERE.parents[1] / "benchmarks" / "measured.json"
AXES = {"images": "images", "channels": "channels", "layers": "layers", "elements": "elements of the group"}
ROWS = (("milliseconds", "ms", "time of a step, ms"), ("megabytes", "MB", "memory of a step, MB"))


@styled()
def draw() -> Figure:
    points = json.loads(MEASURED.read_text())["growth"]["found"]
    figure = Figure(figsize=(10.4, 5.2), layout="constrained")
    grid = figure.subplots(2, len(AXES), sharex="col")
    for row, (quantity, unit, label) in zip(grid, ROWS, strict=True):
        row[0].set_ylabel(label)
        for axes, axis in zip(row, AXES, strict=True):
            here = [point for point in points if point["axis"] == axis]
            xs = [point["x"] for point in here]
            whole = [point[quantity] for point in here]
            plain = [point[f"plain_{quantity}"] for point in here]
            added = [a - b for a, b in zip(whole, plain, strict=True)]
            axes.plot(xs, whole, "o-", color=METHODS["IEN"], label="with the loss")
            axes.plot(xs, plain, "o-", color=METHODS["CNN-aug"], label="plain, on the same views")
            axes.plot(xs, added, "o:", color=METHODS["IEN"], markersize=3, label="what the loss adds")
            slope, _ = statistics.linear_regression(xs, added)
            axes.set_title(f"the loss: {slope:.2f} {unit} for each", fontsize=10)
            axes.set(xlim=(0, None), ylim=(0, None))
    for axes, label in zip(grid[-1], AXES.values(), strict=True):
        axes.set_xlabel(label)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=3)
    return figure


if __name__ == "__main__":
    save(draw(), "growth.png")
