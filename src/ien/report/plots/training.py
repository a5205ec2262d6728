"""Training curves: loss, accuracy, learning rate, terms, multipliers and slack by epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...training.run_folder import read_config, read_metrics
from .axes import log_ticks
from .labels import legend_below, legend_beside
from .style import LINES, MARKERS, NARROW, WIDE, Look, check_any, looks_of, plain, styled

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
BY_LAYER = ("terms", "multipliers", "slack")
"""What a line of metrics may have for each layer."""
MAX_PANELS_ACROSS = 3
MAX_TICKS = 6


@styled()
def plot_training(folders: Mapping[str, Path] | Sequence[Path], *, narrow: bool = False) -> Figure:
    """Draw task loss, training accuracy and learning rate by epoch, and each layer's term.

    Every run with the equivariance loss has its own panel of terms, all on one scale. A run with a
    target has it as a dotted line there, and below it a panel of its multipliers. A run with slack
    has a panel that says how far each layer has left the symmetry.

    Args:
        folders: Run folders, finished or not, by name; else their last two parts are the names.
        narrow: Whether the panels stand below each other, to fit a phone.
    """
    from matplotlib.figure import Figure

    runs: dict[str, Epochs] = {}
    by_layer: dict[str, dict[str, Epochs]] = {key: {} for key in BY_LAYER}
    targets: dict[str, float] = {}
    for name, folder in _named(folders).items():
        runs[name] = _read_epochs(folder)
        for key, with_it in by_layer.items():
            if any(epoch.get(key) for epoch in runs[name]):
                with_it[name] = runs[name]
        target = read_config(folder).objective.target
        if target is not None:
            targets[name] = target
    looks = looks_of(runs)
    most = max(len(with_it) for with_it in by_layer.values())
    across = 1
    if not narrow:
        across = max(1, min(most, MAX_PANELS_ACROSS))
    down = sum(math.ceil(len(with_it) / across) for with_it in by_layer.values())

    if narrow:
        top = len(CURVES)
        figure = Figure(figsize=(NARROW, 0.6 + 2.3 * (top + down)), layout="constrained")
        grid = figure.add_gridspec(top + down, 1)
        curves = grid[:top, 0].subgridspec(top, 1)
        cells = [curves[i, 0] for i in range(top)]
    else:
        top = 1
        figure = Figure(figsize=(WIDE, 2.9 + 2.6 * down), layout="constrained")
        grid = figure.add_gridspec(top + down, 1, hspace=0.12)
        curves = grid[0, 0].subgridspec(1, 3, width_ratios=(3, 3, 2))
        cells = [curves[0, i] for i in range(3)]
    _draw_curves(figure, cells, runs, looks)
    if down:
        below = grid[top:, 0].subgridspec(down, across)
    first_row = 0
    for key, with_it in by_layer.items():
        panels = []
        for i in range(len(with_it)):
            panels.append(figure.add_subplot(below[first_row + i // across, i % across]))
        first_row += math.ceil(len(with_it) / across)
        _draw_layers(panels, with_it, key, targets if key == "terms" else {})
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


def _draw_curves(
    figure: Figure, cells: Sequence[Any], runs: Mapping[str, Epochs], looks: Mapping[str, Look]
) -> None:
    for cell, (key, title) in zip(cells, CURVES.items(), strict=True):
        axes = figure.add_subplot(cell)
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
    """Draw the terms, multipliers or slack of each run, layers from light to dark.

    Targets are dotted.
    """
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
