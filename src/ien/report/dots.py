"""Row by row: from rows of tables to a dot plot of accuracy and of the largest relative error of a layer."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .accuracies import AccuracyAxis, span
from .plots.style import GREY, LogAxis, look, plain, styled
from .recipes import Block, blocks_of, check_dataset, has_loss, row_names, settings_of
from .records import Record, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_rows"]

SMALL = 0.01
"""The relative error at the dotted line."""
TOP = -1.1
"""Where the lines begin, the first of which is at 0."""
NOTE = (
    "bars: standard deviation over the seeds, the dots; equal steps of accuracy: equal factors of "
    "the error\nright: of the worst layer of each run, the mean over the seeds"
)


@styled()
def plot_rows(rows: Sequence[Row]) -> Figure:
    """Accuracy, and the largest relative error of a layer, of each row on a line of its own, with its seeds.

    Rows stand in blocks that differ in the loss alone: colour and shape tell what it compares, the size tells
    its weight. A row without errors of layers has no value on the right.
    """
    from matplotlib.figure import Figure

    check_dataset(rows)
    lines = list(_lines(blocks_of(rows)))
    errors = [[_largest(record) for record in line.records] for line in lines]
    axis = LogAxis.over([SMALL, *(error for each in errors for error in each)])
    marks = _marks(rows)
    figure = Figure(figsize=(9, 1.6 + 0.2 * lines[-1].y), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    left.set_title(f"accuracy on {plain(rows[0].records[0].data)}, %")
    right.set_title("largest relative error of a layer")
    spans = [span(line.accuracies) for line in lines if line.records]
    AccuracyAxis.over(end for ends in spans for end in ends).draw(left, across=True)
    axis.draw(right, across=True)
    right.axvline(SMALL, color=GREY, linewidth=1, linestyle=":", label="_small")
    right.text(SMALL, TOP, f" {100 * SMALL:g} %", va="top", color=GREY, fontsize=8.5)
    _line_axis(left, lines)
    right.tick_params(axis="y", which="both", length=0)
    for line, of_seeds in zip(lines, errors, strict=True):
        if line.records:
            _accuracies(left, line, marks[line.loss])
            _errors(right, line, of_seeds, axis, marks[line.loss])
    _legend(figure, marks)
    figure.supxlabel(NOTE, fontsize=8.5, color=GREY)
    return figure


class _Line(NamedTuple):
    """A row, or a heading, and where it stands, counted from above."""

    y: float
    text: str
    records: Sequence[Record] = ()
    loss: tuple[str, float] = ("", 0.0)
    main: bool = False
    """Whether it is the heading of a section."""

    @property
    def accuracies(self) -> list[float]:
        """In percent."""
        return [100 * record.accuracy for record in self.records]


class _Mark(NamedTuple):
    color: str
    marker: str
    markersize: float


def _lines(blocks: Sequence[Block]) -> Iterator[_Line]:
    names = iter(row_names([row for block in blocks for row in block.rows]))
    y, section = 0.0, ""
    for i, block in enumerate(blocks):
        y += 0.6 * (i > 0)
        if block.section != section:
            section = block.section
            yield _Line(y, section, main=True)
            y += 1
        if block.title:
            yield _Line(y, block.title)
            y += 1
        for row in block.rows:
            yield _Line(y, plain(next(names), 48), row.records, _loss(row))
            y += 1


def _loss(row: Row) -> tuple[str, float]:
    """What the loss compares and its weight; nothing and 0 without it."""
    settings = settings_of(row)
    return (str(settings["action"]), float(settings["beta"])) if has_loss(row) else ("", 0.0)


def _largest(record: Record) -> float:
    known = [layer.relative for layer in record.layers.values() if math.isfinite(layer.relative)]
    return max(known, default=math.nan)


def _marks(rows: Sequence[Row]) -> dict[tuple[str, float], _Mark]:
    """A mark for each loss: colour and shape for what it compares, the larger the larger its weight."""
    losses = sorted({_loss(row) for row in rows})
    betas = sorted({beta for _, beta in losses if beta})
    looks = {"pooled": look(0), "regular": look(1)}
    marks = {}
    for action, beta in losses:
        if beta:
            size = 4.5 + 4.0 * betas.index(beta) / max(1, len(betas) - 1)
            marks[action, beta] = _Mark(looks[action].color, looks[action].marker, size)
        else:
            marks[action, beta] = _Mark("#333333", "D", 5.0)
    return marks


def _line_axis(axes: Axes, lines: Sequence[_Line]) -> None:
    """Down: a name for each row, a heading for each block; not before the axes across are made."""
    headings = [line for line in lines if not line.records]
    rows = [line for line in lines if line.records]
    axes.set_ylim(lines[-1].y + 0.8, TOP)
    axes.set_yticks([line.y for line in rows], [line.text for line in rows])
    axes.set_yticks([line.y for line in headings], [line.text for line in headings], minor=True)
    axes.tick_params(axis="y", which="both", length=0)
    for label, line in zip(axes.get_yticklabels(minor=True), headings, strict=True):
        label.set(fontweight="bold", color="#333333" if line.main else GREY, fontsize=9.5 if line.main else 9)


def _accuracies(axes: Axes, line: _Line, mark: _Mark) -> None:
    values = line.accuracies
    mean = statistics.fmean(values)
    if len(values) > 1:
        ends = [mean - statistics.stdev(values), mean + statistics.stdev(values)]
        axes.plot(ends, [line.y] * 2, "|-", color=mark.color, linewidth=1, markersize=5, label="_spread")
    _dots(axes, line, values, mean, mark)


def _errors(axes: Axes, line: _Line, values: Sequence[float], axis: LogAxis, mark: _Mark) -> None:
    mean = axis.place(statistics.fmean(values))
    _dots(axes, line, [axis.place(value) for value in values], mean, mark)
    if math.isnan(mean):
        axes.text(axis.start * 1.1, line.y, "no value", va="center", color=GREY, fontsize=8.5)


def _dots(axes: Axes, line: _Line, values: Sequence[float], mean: float, mark: _Mark) -> None:
    small: dict[str, Any] = {"color": mark.color, "alpha": 0.55, "markersize": 4}
    axes.plot(values, [line.y] * len(values), ".", label="_seeds", **small)
    edge: dict[str, Any] = {
        "markeredgecolor": "#ffffff",
        "markeredgewidth": 0.6,
        "linestyle": "",
        "zorder": 3,
    }
    axes.plot([mean], [line.y], label=line.text, **mark._asdict(), **edge)


def _legend(figure: Figure, marks: Mapping[tuple[str, float], _Mark]) -> None:
    """What the marks mean, above the panels."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], linestyle="", **mark._asdict()) for mark in marks.values()]
    names = [f"{action}, beta {beta:g}" if beta else "no equivariance loss" for action, beta in marks]
    columns = min(len(names), 5)
    figure.legend(handles, names, loc="outside upper center", ncols=columns, handletextpad=0.2)
