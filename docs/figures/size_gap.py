"""How far each method is from CNN-aug, against the size of a run: size-gap.png."""

from __future__ import annotations

import statistics

from matplotlib.figure import Figure
from records import rows, save

from ien.experiments.rot_mnist import ROT_MNIST
from ien.experiments.size import LABELS, METHODS, SIZES_OF_ROWS
from ien.report import Row
from ien.report.palette import plain_name
from ien.report.plots.labels import legend_below
from ien.report.plots.style import looks_of, styled

# what the paper prints for its own size, full width and 90 epochs
CLAIMS = {"ien-beta1": "ien-r4", "ien-beta0.1": "ien-r4-beta0.1", "e2cnn": "e2cnn"}
NOTE = "dots: seeds; sizes without a mark are not recorded yet; the last column: what the paper prints"


@styled()
def draw() -> Figure:
    known = recorded()
    others = [method for method in METHODS if method != "cnn-aug"]
    looks = looks_of(others)
    figure = Figure(figsize=(9, 4.8), layout="constrained")
    axes = figure.subplots()
    axes.set_title("accuracy on Rot-MNIST beyond that of CNN-aug, points")
    axes.axhline(0, color="#888888", linewidth=1)
    for i, method in enumerate(others):
        look = looks[method]
        aside = 0.08 * (i - 2)  # so that no mark hides another
        lines: dict[str, list[tuple[float, float]]] = {}  # of each width
        for place, size in enumerate(SIZES_OF_ROWS):
            base, row = known.get(f"{size}-cnn-aug"), known.get(f"{size}-{method}")
            if base is None or row is None:
                continue
            gaps = [100 * record.accuracy - base.accuracy[0] for record in row.records]
            axes.plot([place + aside] * len(gaps), gaps, ".", color=look.color, markersize=4, alpha=0.55)
            width = size.split("-")[0]
            lines.setdefault(width, []).append((place + aside, statistics.fmean(gaps)))
        for points in lines.values():
            axes.plot(*zip(*points, strict=True), **look._asdict())
        if method in CLAIMS:
            claim = ROT_MNIST.paper[CLAIMS[method]].accuracy - ROT_MNIST.paper["cnn-aug"].accuracy
            beside = len(SIZES_OF_ROWS) + aside
            axes.plot(beside, claim, look.marker, color=look.color, markerfacecolor="white", markersize=8)
    axes.axvline(len(SIZES_OF_ROWS) - 0.5, color="#888888", linestyle=":", linewidth=1)
    ticks = [title_of(size) for size in SIZES_OF_ROWS]
    axes.set_xticks(range(len(ticks) + 1), [*ticks, "the paper:\nfull width,\n90 epochs"])
    axes.set_xlim(-0.5, len(ticks) + 0.5)
    axes.set_xlabel(NOTE, color="#666666")
    legend_below(figure, {name_of(method): look for method, look in looks.items()})
    return figure


def recorded() -> dict[str, Row]:
    """Return the rows that have records, by their name in the table of sizes."""
    found = {}
    for row in rows("size/*", *LABELS).values():
        if not row.changes:
            found[LABELS.get(row.experiment, row.experiment.removeprefix("size/"))] = row
    return found


def title_of(size: str) -> str:
    """Return what the axis calls a size."""
    width, epochs = size.split("-")
    return f"1/{width.removeprefix('w')} of the width,\n{epochs.removeprefix('e')} epochs"


def name_of(method: str) -> str:
    """Return what the legend calls a method."""
    name = plain_name(method)
    if "beta" in method:
        name += f", β = {method.rpartition('beta')[2]}"
    return name


if __name__ == "__main__":
    save(draw(), "size-gap.png")
