"""Plots of runs: from run folders to training curves, and from rows of a table to accuracy against cost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...training.run_folder import read_config, read_metrics
from ..records import Row
from .labels import Mark, label_ends, label_marks, legend, side_by_side
from .style import LEAST, Look, log_ticks, look, plain, power, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["accuracy_axes", "check_rows", "draw_rows", "plot_costs", "plot_training", "row_labels"]

Epochs = Sequence[Mapping[str, Any]]
CURVES = {
    "task_loss": "task loss",
    "train_accuracy": "training accuracy, %",
    "learning_rate": "learning rate",
}


@styled()
def plot_training(folders: Mapping[str, Path] | Sequence[Path]) -> Figure:
    """Task loss, training accuracy and learning rate of each epoch, and below them the terms of each layer.

    Each run that was trained with the equivariance loss has its own panel of terms, all on one scale. A
    sequence of folders is named by their last two parts.
    """
    from matplotlib.figure import Figure

    runs = {name: _metrics(folder) for name, folder in _named(folders).items()}
    looks = {name: look(i) for i, name in enumerate(runs)}
    with_terms = {name: epochs for name, epochs in runs.items() if any(e["terms"] for e in epochs)}
    across = min(len(with_terms), 3) or 1
    rows = math.ceil(len(with_terms) / across)
    figure = Figure(figsize=(9, 2.9 + 2.6 * rows), layout="constrained")
    grid = figure.add_gridspec(1 + rows, 1, hspace=0.12)
    _shared_curves(figure, grid[0, 0].subgridspec(1, 3, width_ratios=(3, 3, 2)), runs, looks)
    if with_terms:
        below = grid[1:, 0].subgridspec(rows, across)
        _term_panels(figure, [below[i // across, i % across] for i in range(len(with_terms))], with_terms)
    if len(runs) > 1:
        legend(figure, [(plain(name), mark) for name, mark in looks.items()])
    return figure


@styled()
def plot_costs(rows: Sequence[Row]) -> Figure:
    """Accuracy against multiply-accumulates for one image: a point a row, the spread over its seeds as a bar.

    The darker a point, the larger its relative error, the mean over the layers. Points that would hide each
    other stand side by side. Rows without a count of multiply-accumulates are an error.
    """
    from matplotlib.figure import Figure

    macs = [statistics.fmean(record.macs for record in row.records) for row in rows]
    check_rows(rows, [count if count > 0 else math.nan for count in macs], "no count of multiply-accumulates")
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    accuracy_axes(axes, rows, macs, "multiply-accumulates for one image", _short)
    draw_rows(axes, rows, macs, _shades(figure, axes, [_mean_error(row) for row in rows]))
    return figure


def check_rows(rows: Sequence[Row], values: Sequence[float], lacking: str) -> None:
    if not rows:
        raise ValueError("there is nothing to plot: give at least one row")
    for row, value in zip(rows, values, strict=True):
        if not (math.isfinite(value) and math.isfinite(row.accuracy[0])):
            raise ValueError(f"{row.label} has no accuracy or {lacking}: run it again")


def accuracy_axes(
    axes: Axes,
    rows: Sequence[Row],
    places: Sequence[float],
    name: str,
    text: Callable[[float], str],
    ticks: Sequence[float] | None = None,
) -> None:
    """Room for the accuracies of the rows, over ``places`` on a logarithmic scale."""
    low, high = min(places) / 1.6, max(places) * 1.6
    axes.set(xscale="log", xlabel=name, ylabel="accuracy, %", xlim=(low, high))
    if ticks is None:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        digits = (1, 2, 5) if len(decades) <= 4 else (1,)
        ticks = [d * 10.0**e for e in decades for d in digits if low <= d * 10.0**e <= high]
    axes.set_xticks(ticks, [text(tick) for tick in ticks])
    axes.minorticks_off()
    means, spreads = zip(*(row.accuracy for row in rows), strict=True)
    ends = [
        mean + sign * (spread or 0) for mean, spread in zip(means, spreads, strict=True) for sign in (-1, 1)
    ]
    margin = max(0.15 * (max(ends) - min(ends)), 0.2)
    axes.set_ylim(min(ends) - margin, max(ends) + margin)


def draw_rows(
    axes: Axes, rows: Sequence[Row], places: Sequence[float], colours: Sequence[Any], without: str = ""
) -> None:
    """A point with a bar and a name for each row; points that would hide each other side by side.

    Names lose the beginning ``without``.
    """
    from matplotlib.transforms import ScaledTranslation

    figure: Any = axes.figure
    accuracies = [row.accuracy for row in rows]
    marks = side_by_side(
        axes,
        [Mark(x, y, y - (s or 0), y + (s or 0)) for x, (y, s) in zip(places, accuracies, strict=True)],
    )
    for mark, colour, row in zip(marks, colours, rows, strict=True):
        place = axes.transData + ScaledTranslation(mark.shift / 72, 0, figure.dpi_scale_trans)
        if mark.high > mark.low:
            ends = [mark.low, mark.high]
            axes.plot(
                [mark.x] * 2, ends, "_-", color="#8c8c8c", linewidth=1.1, transform=place, label="_spread"
            )
        point: dict[str, Any] = {"markersize": 8, "markeredgecolor": "#333333", "markerfacecolor": colour}
        axes.plot([mark.x], [mark.y], "o", transform=place, zorder=3, label=plain(row.label), **point)
    label_marks(axes, marks, [name.removeprefix(without) for name in row_labels(rows)])


def row_labels(rows: Sequence[Row]) -> list[str]:
    """The rows' own labels, with preset and data where these differ."""
    presets, data = len({row.preset for row in rows}) > 1, len({row.data for row in rows}) > 1
    return [
        plain(" ".join([row.label, *[row.preset] * presets, *[f"({row.data})"] * data]), 60) for row in rows
    ]


def _named(folders: Mapping[str, Path] | Sequence[Path]) -> dict[str, Path]:
    if not folders:
        raise ValueError("there is nothing to plot: give at least one run folder")
    if isinstance(folders, Mapping):
        return {name: Path(folder) for name, folder in folders.items()}
    named = {"/".join(Path(folder).absolute().parts[-2:]): Path(folder) for folder in folders}
    if len(named) < len(folders):
        raise ValueError("two of the run folders have the same name: give each run once, or name them")
    return named


def _metrics(folder: Path) -> Epochs:
    config, path = read_config(folder), folder / "metrics.jsonl"
    try:
        epochs = read_metrics(folder)
        lacking = [key for epoch in epochs for key in ("epoch", *CURVES, "terms") if key not in epoch]
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}): restore it, or leave this run out") from None
    if lacking:
        raise ValueError(f"{path} is damaged (a line has no {lacking[0]}): restore it, or leave this run out")
    if not epochs:
        remedy = f"plot {config.weights_of}" if config.weights_of else f"train it with ien resume {folder}"
        raise ValueError(f"{folder} has no trained epochs to plot: {remedy}")
    return epochs


def _shared_curves(figure: Figure, cells: Any, runs: Mapping[str, Epochs], looks: Mapping[str, Look]) -> None:
    for column, (key, title) in enumerate(CURVES.items()):
        axes = figure.add_subplot(cells[0, column])
        axes.set_title(title)
        for name, epochs in runs.items():
            values = [e[key] * (100 if key == "train_accuracy" else 1) for e in epochs]
            small = {"linewidth": 1.1, "marker": ""} if key == "learning_rate" else {}
            _epoch_line(axes, epochs, values, looks[name], name, **small)
        if key != "train_accuracy":
            _log_scale(axes, [e[key] for epochs in runs.values() for e in epochs])


def _term_panels(figure: Figure, cells: Sequence[Any], runs: Mapping[str, Epochs]) -> None:
    """The layers of a run from light to dark, each named where its line ends."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    values = [term for epochs in runs.values() for e in epochs for term in e["terms"].values()]
    panels = [figure.add_subplot(cell) for cell in cells]
    ends: list[list[tuple[str, float, Look]]] = []
    for axes, (name, epochs) in zip(panels, runs.items(), strict=True):
        layers = list(dict.fromkeys(layer for e in epochs for layer in e["terms"]))
        axes.set_title(f"terms of {plain(name, 24)}" if len(panels) == 1 else plain(name, 54 // len(panels)))
        shades = colormaps["viridis"]
        ends.append([])
        for i, layer in enumerate(layers):
            mark = look(i)._replace(color=to_hex(shades(0.85 * (1 - i / max(1, len(layers) - 1)))))
            line = [e["terms"].get(layer, math.nan) for e in epochs]
            _epoch_line(axes, epochs, line, mark._replace(linestyle="-"), layer, linewidth=1.3)
            if math.isfinite(line[-1]) and line[-1] > 0:
                ends[-1].append((plain(layer, 12), line[-1], mark))
        _log_scale(axes, values)
    for axes, of_run in zip(panels, ends, strict=True):
        label_ends(axes, of_run, 8)


def _epoch_line(
    axes: Axes, epochs: Epochs, values: Sequence[float], mark: Look, name: str, **options: Any
) -> None:
    from matplotlib.ticker import MaxNLocator

    options = {"markersize": 4.5, "markevery": max(1, len(epochs) // 8)} | mark._asdict() | options
    axes.plot([e["epoch"] for e in epochs], values, label=plain(name), **options)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_xlabel("epoch")


def _log_scale(axes: Axes, values: Sequence[float]) -> None:
    known = [v for v in values if math.isfinite(v) and v > 0]
    if not known:
        return
    axes.set_yscale("log", nonpositive="mask")
    axes.set_ylim(min(known) / 1.4, max(known) * 1.4)
    ticks = log_ticks(*axes.get_ylim(), most=6)
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.minorticks_off()


def _mean_error(row: Row) -> float:
    layers = list(row.records[0].layers)
    return statistics.fmean(row.layer(name).relative for name in layers) if layers else math.nan


def _shades(figure: Figure, axes: Axes, errors: Sequence[float]) -> list[Any]:
    """The fill of each point, and a bar that explains it: white for rounding, grey for what is unknown."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm

    shown = [e for e in errors if e >= LEAST and math.isfinite(e)]
    if not shown:
        return ["#ffffff" if e < LEAST else "#cccccc" for e in errors]
    low, high = min(shown) / 1.5, max(shown) * 1.5
    norm = LogNorm(low, high)
    shade = ScalarMappable(norm, "cividis_r")
    bar = figure.colorbar(shade, ax=axes, aspect=32, pad=0.02)
    ticks = log_ticks(low, high)
    bar.set_ticks(list(ticks), labels=list(ticks.values()))
    bar.minorticks_off()
    rounding = f" (white: below {power(round(math.log10(LEAST)))})" if any(e < LEAST for e in errors) else ""
    bar.set_label(f"relative error, mean over layers{rounding}")
    bar.outline.set_visible(False)
    return [
        shade.cmap(float(norm(e))) if e >= LEAST else "#ffffff" if e < LEAST else "#cccccc" for e in errors
    ]


def _short(count: float) -> str:
    for size, letter in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if count >= size:
            return f"{count / size:g}{letter}"
    return f"{count:g}"
