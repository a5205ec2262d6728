"""Training curves: loss, accuracy, learning rate, terms and multipliers by epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...training.run_folder import read_config, read_metrics
from .axes import log_ticks
from .labels import legend_below, legend_beside
from .style import LINES, MARKERS, Look, check_any, looks_of, plain, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_training"]

Epochs = Sequence[Mapping[str, Any]]
CURVES = {
    "task_loss": "task loss",
    "train_accuracy": "training accuracy, %",
    "learning_rate": "learning rate",
}
MAX_PANELS_ACROSS = 3
MAX_TICKS = 6


@styled()
def plot_training(folders: Mapping[str, Path] | Sequence[Path]) -> Figure:
    """Draw task loss, training accuracy and learning rate by epoch, and each layer's term.

    Every run with the equivariance loss has its own panel of terms, all on one scale. A run with a
    target has it as a dotted line there, and below it a panel of its multipliers.

    Args:
        folders: Run folders, finished or not, by name; else their last two parts are the names.
    """
    from matplotlib.figure import Figure

    runs: dict[str, Epochs] = {}
    with_terms: dict[str, Epochs] = {}
    with_multipliers: dict[str, Epochs] = {}
    targets: dict[str, float] = {}
    for name, folder in _named(folders).items():
        runs[name] = _read_epochs(folder)
        if any(epoch["terms"] for epoch in runs[name]):
            with_terms[name] = runs[name]
        if any(epoch.get("multipliers") for epoch in runs[name]):
            with_multipliers[name] = runs[name]
        target = read_config(folder).objective.target
        if target is not None:
            targets[name] = target
    looks = looks_of(runs)
    # one column for both: a run with multipliers has terms
    across = max(1, min(len(with_terms), MAX_PANELS_ACROSS))
    rows_of_terms = math.ceil(len(with_terms) / across)
    rows_of_multipliers = math.ceil(len(with_multipliers) / across)
    down = rows_of_terms + rows_of_multipliers

    figure = Figure(figsize=(9, 2.9 + 2.6 * down), layout="constrained")
    grid = figure.add_gridspec(1 + down, 1, hspace=0.12)
    _draw_curves(figure, grid[0, 0].subgridspec(1, 3, width_ratios=(3, 3, 2)), runs, looks)
    if with_terms:
        below = grid[1:, 0].subgridspec(down, across)
        panels = []
        for i in range(len(with_terms)):
            panels.append(figure.add_subplot(below[i // across, i % across]))
        _draw_layers(panels, with_terms, "terms", targets)
        panels = []
        for i in range(len(with_multipliers)):
            panels.append(figure.add_subplot(below[rows_of_terms + i // across, i % across]))
        _draw_layers(panels, with_multipliers, "multipliers", {})
    if len(runs) > 1:  # a single run is named above its terms
        legend_below(figure, looks)
    return figure


def _named(folders: Mapping[str, Path] | Sequence[Path]) -> dict[str, Path]:
    check_any(folders, "run folder")
    if isinstance(folders, Mapping):
        return {name: Path(folder) for name, folder in folders.items()}
    named = {}
    for folder in map(Path, folders):
        named["/".join(folder.absolute().parts[-2:])] = folder
    if len(named) < len(folders):
        raise ValueError("two of the run folders have the same name: give each run once, or name them")
    return named


def _read_epochs(folder: Path) -> Epochs:
    config = read_config(folder)
    path = folder / "metrics.jsonl"
    try:
        epochs = read_metrics(folder)
        for epoch in epochs:
            for key in ("epoch", *CURVES, "terms"):
                if key not in epoch:
                    raise ValueError(f"a line has no {key}")
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}): restore it, or leave this run out") from None
    if not epochs:
        remedy = f"train it with ien resume {folder}"
        if config.weights_of:
            remedy = f"plot {config.weights_of}"
        raise ValueError(f"{folder} has no trained epochs to plot: {remedy}")
    return epochs


def _draw_curves(figure: Figure, cells: Any, runs: Mapping[str, Epochs], looks: Mapping[str, Look]) -> None:
    for column, (key, title) in enumerate(CURVES.items()):
        axes = figure.add_subplot(cells[0, column])
        axes.set_title(title)
        everything = []
        for name, epochs in runs.items():
            scale = 100 if key == "train_accuracy" else 1
            values = [scale * epoch[key] for epoch in epochs]
            everything += values
            options: dict[str, Any] = {}
            if key == "learning_rate":  # often the same for all runs: thin lines without marks
                options = {"linewidth": 1.1, "marker": ""}
            _draw_line(axes, epochs, values, looks[name], name, **options)
        if key != "train_accuracy":
            _make_logarithmic(axes, everything)


def _draw_layers(
    panels: Sequence[Axes], runs: Mapping[str, Epochs], key: str, targets: Mapping[str, float]
) -> None:
    """Draw the terms or multipliers of each run, layers from light to dark; targets are dotted."""
    everything: list[float] = []
    ends_of_panels = []
    for axes, (name, epochs) in zip(panels, runs.items(), strict=True):
        title = plain(name, 54 // len(runs))
        if len(runs) == 1 or key != "terms":
            title = f"{key} of {plain(name, max(12, 24 // len(runs)))}"
        axes.set_title(title)
        layers: dict[str, None] = {}
        for epoch in epochs:
            layers |= dict.fromkeys(epoch[key])
            everything += epoch[key].values()
        if name in targets:
            axes.axhline(targets[name], color="black", linewidth=1, linestyle=":")
            everything.append(targets[name])
        ends = []
        for layer, look in zip(layers, _layer_looks(len(layers)), strict=True):
            # a layer may come in later, when its weight is no longer 0
            line = [epoch[key].get(layer, math.nan) for epoch in epochs]
            _draw_line(axes, epochs, line, look, layer, linewidth=1.3)
            if math.isfinite(line[-1]) and line[-1] > 0:
                ends.append((plain(layer, 12), line[-1], look))
        ends_of_panels.append(ends)
    # one scale for all runs, so that they can be compared
    for axes, ends in zip(panels, ends_of_panels, strict=True):
        _make_logarithmic(axes, everything)
        legend_beside(axes, ends, size=8)


def _layer_looks(count: int) -> list[Look]:
    """Return looks from light to dark, for the first layer to the last."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    shades = colormaps["viridis"]
    looks = []
    for i in range(count):
        depth = i / max(1, count - 1)
        colour = to_hex(shades(0.85 * (1 - depth)))  # the lightest yellow vanishes on white
        looks.append(Look(colour, MARKERS[i % len(MARKERS)], LINES[0]))
    return looks


def _draw_line(
    axes: Axes, epochs: Epochs, values: Sequence[float], look: Look, name: str, **options: Any
) -> None:
    from matplotlib.ticker import MaxNLocator

    every = max(1, len(epochs) // 8)  # eight marks are enough to tell lines apart
    settings = {"markersize": 4.5, "markevery": every} | look._asdict() | options
    axes.plot([epoch["epoch"] for epoch in epochs], values, label=plain(name), **settings)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_xlabel("epoch")


def _make_logarithmic(axes: Axes, values: Sequence[float]) -> None:
    """Scale a panel logarithmically over the positive values, if there are any."""
    known = []
    for value in values:
        if math.isfinite(value) and value > 0:
            known.append(value)
    if not known:
        return
    low, high = min(known) / 1.4, max(known) * 1.4
    ticks = log_ticks(low, high, MAX_TICKS)
    axes.set_yscale("log", nonpositive="mask")
    axes.set_ylim(low, high)
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.minorticks_off()
