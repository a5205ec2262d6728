"""Plots: from reports to figures of relative errors by layer and by angle; the other plots come along."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .._measured import LayerReport, Report
from .._names import nearest
from .figures import GREY, LogAxis, Look, look, plain, save_figure, styled
from .labels import label_ends, legend, legend_columns
from .run_plots import plot_costs, plot_tradeoff, plot_training

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_angles", "plot_costs", "plot_errors", "plot_tradeoff", "plot_training", "save_figure"]

Errors = Mapping[str, float]
"""Layer → relative error."""


class _Point(NamedTuple):
    relative: float = math.nan
    floor: float | None = None
    interval: tuple[float, float] | None = None


@styled()
def plot_errors(reports: Mapping[str, Report | Errors]) -> Figure:
    """The relative error of each layer, a line a run, with intervals and, dotted, the floors.

    A run is a report, or layer → relative error where nothing else is known. Quarter turns and flips have one
    panel and all else another, if every run tells them apart and there are both.
    """
    from matplotlib.figure import Figure

    _needs(reports, "report")
    panels = _panels(reports)
    layers = _union(points for lines in panels.values() for points in lines.values())
    axis = LogAxis.over(
        value
        for lines in panels.values()
        for points in lines.values()
        for p in points.values()
        for value in (p.relative, p.floor)
    )
    crowded = sum(map(len, layers)) * len(panels) > 90
    figure = Figure(figsize=(9, 5.2 if crowded else 4.2), layout="constrained")
    plots = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, lines) in zip(plots, panels.items(), strict=True):
        axes.set_title(title)
        _error_axes(axes, axis, layers, crowded)
        for i, (name, points) in enumerate(lines.items()):
            _error_line(axes, axis, [points.get(layer, _Point()) for layer in layers], look(i), plain(name))
        for x, layer in enumerate(layers):
            if not any(math.isfinite(points.get(layer, _Point()).relative) for points in lines.values()):
                missing: dict[str, Any] = {"rotation": 90, "ha": "center", "color": GREY, "fontsize": 8.5}
                axes.text(x, axis.start * 1.3, "no value", **missing)
    plots[0].set_ylabel("relative error")
    label_ends(
        plots[-1], [(plain(name), _end(axis, panels, name), look(i)) for i, name in enumerate(reports)]
    )
    if any(
        p.floor is not None for lines in panels.values() for points in lines.values() for p in points.values()
    ):
        said = "dotted: the floor, what the grid or resampling alone costs"
        figure.supxlabel(said, fontsize=8.5, color=GREY)
    return figure


@styled()
def plot_angles(reports: Mapping[str, Report], layer: str | None = None) -> Figure:
    """Relative error of a layer, and accuracy if labels were given, against the angle: a closed curve a run.

    ``layer`` is by default the last one that is large enough for all angles. 0° is up, angles grow
    counter-clockwise, and quarter turns are marked. The identity has no error: those curves pass it by.
    """
    _needs(reports, "report")
    layer = _common_layer(reports, layer)
    errors = {name: _angles(name, report, layer) for name, report in reports.items()}
    accuracies = {name: curve for name, report in reports.items() if (curve := _accuracies(report))}
    axis = LogAxis.over(value for curve in errors.values() for value in curve.values())
    looks = {name: look(i) for i, name in enumerate(reports)}
    figure, plots = _polar_panels(2 if accuracies else 1, looks)
    plots[0].set_title(f"relative error of {plain(layer)}", y=1.13, loc="center")
    plots[0].set_rscale("log")
    for name, curve in errors.items():
        _closed(plots[0], {a: axis.place(v) for a, v in curve.items()}, looks[name], name)
    _rings(plots[0], axis.low, axis.high, axis.ticks)
    if accuracies:
        plots[1].set_title("accuracy", y=1.13, loc="center")
        for name, curve in accuracies.items():
            _closed(plots[1], {a: 100 * v for a, v in curve.items()}, looks[name], name)
        low, ticks = _percent_ticks([100 * v for curve in accuracies.values() for v in curve.values()])
        _rings(plots[1], low, 100, ticks)
    return figure


def _panels(reports: Mapping[str, Report | Errors]) -> dict[str, dict[str, dict[str, _Point]]]:
    """Title → run → layer → what is drawn: two panels where quarter turns and others are known apart."""
    kinds = {
        element.exact
        for report in reports.values()
        if isinstance(report, Report)
        for layer in report.layers.values()
        for element in layer.elements.values()
    }
    if len(kinds) == 2 and all(isinstance(report, Report) for report in reports.values()):
        titles = {"quarter turns and flips": True, "in between": False}
        return {
            title: {
                name: {n: _part(layer, exact) for n, layer in report.layers.items()}
                for name, report in reports.items()
                if isinstance(report, Report)
            }
            for title, exact in titles.items()
        }
    return {"relative error of each layer": {name: _whole(report) for name, report in reports.items()}}


def _whole(report: Report | Errors) -> dict[str, _Point]:
    if isinstance(report, Report):
        return {n: _Point(layer.relative, layer.floor, layer.interval) for n, layer in report.layers.items()}
    return {name: _Point(value) for name, value in report.items()}


def _part(layer: LayerReport, exact: bool) -> _Point:
    """Means over the elements of one kind; the mean of their intervals is, if anything, too wide."""
    chosen = [e for e in layer.elements.values() if e.exact == exact and not math.isnan(e.relative)]
    if not chosen:
        return _Point()
    floors = [e.floor for e in chosen if e.floor is not None and not math.isnan(e.floor)]
    low, high = (statistics.fmean(e.interval[side] for e in chosen) for side in (0, 1))
    relative = statistics.fmean(e.relative for e in chosen)
    return _Point(relative, statistics.fmean(floors) if floors else None, (low, high))


def _error_axes(axes: Axes, axis: LogAxis, layers: Sequence[str], crowded: bool) -> None:
    axes.set_yscale("log")
    axes.set_ylim(axis.low, axis.high)
    axes.set_yticks(list(axis.ticks), list(axis.ticks.values()))
    axes.set_xticks(range(len(layers)), [plain(layer, 20) for layer in layers])
    axes.set_xlim(-0.35, len(layers) - 0.65)
    axes.minorticks_off()
    if crowded:
        axes.tick_params(axis="x", labelrotation=90)
    if axis.rounding is not None:
        axes.axhspan(axis.low, axis.start, color="#e3e3e3", alpha=0.45, linewidth=0, zorder=0)


def _error_line(axes: Axes, axis: LogAxis, points: Sequence[_Point], mark: Look, name: str) -> None:
    places = range(len(points))
    values, floors = (
        [axis.place(value) for value in side] for side in zip(*(p[:2] for p in points), strict=True)
    )
    axes.plot(places, values, color=mark.color, marker=mark.marker, label=name, zorder=3)
    if not all(map(math.isnan, floors)):
        thin: dict[str, Any] = {"linestyle": ":", "linewidth": 1.1, "zorder": 2}
        axes.plot(places, floors, color=mark.color, label=f"{name}: floor", **thin)
    for x, point in enumerate(points):
        if point.interval is not None and all(map(math.isfinite, point.interval)):
            ends = [max(axis.place(end), axis.low) for end in point.interval]
            bar: dict[str, Any] = {"linewidth": 1, "marker": "_", "markersize": 6}
            axes.plot([x, x], ends, color=mark.color, label=f"{name}: interval", **bar)


def _end(axis: LogAxis, panels: Mapping[str, Mapping[str, Mapping[str, _Point]]], name: str) -> float:
    """The last value of a run, in the last panel that has one."""
    values = [axis.place(point.relative) for lines in panels.values() for point in lines[name].values()]
    return next((value for value in reversed(values) if not math.isnan(value)), axis.low)


def _polar_panels(count: int, looks: Mapping[str, Look]) -> tuple[Figure, list[Any]]:
    """Circles beside each other, 0° at the top, and the names below; placed by hand, in inches."""
    from matplotlib.figure import Figure

    shown = [(plain(name), mark) for name, mark in looks.items()]
    width, radius = 4.5 * count, 1.6
    columns = legend_columns([name for name, _ in shown], width)
    names = 0.15 + 0.22 * math.ceil(len(shown) / columns)
    height = 4.5 + names
    figure = Figure(figsize=(width, height))
    panels = []
    for i in range(count):
        left, bottom = 4.5 * (i + 0.5) - radius, names + 0.42
        box = left / width, bottom / height, 2 * radius / width, 2 * radius / height
        axes: Any = figure.add_axes(box, projection="polar")
        axes.set_theta_zero_location("N")
        axes.set_thetagrids(range(0, 360, 45))
        axes.spines["polar"].set_visible(False)
        panels.append(axes)
    legend(figure, shown)
    return figure, panels


def _closed(axes: Axes, curve: Mapping[float, float], mark: Look, name: str) -> None:
    angles = sorted(curve)
    around = [*angles, angles[0] + 360]
    values = [curve[a] for a in angles]
    quarters = [a for a in angles if a % 90 == 0]
    axes.plot(
        [math.radians(a) for a in around],
        [*values, values[0]],
        color=mark.color,
        linestyle=mark.linestyle,
        label=plain(name),
    )
    axes.plot(
        [math.radians(a) for a in quarters],
        [curve[a] for a in quarters],
        color=mark.color,
        marker=mark.marker,
        linestyle="",
        label="_quarters",
    )


def _rings(axes: Any, low: float, high: float, ticks: Mapping[float, str]) -> None:
    axes.set_rlim(low, high)
    axes.set_rgrids(list(ticks), [""] * len(ticks))
    axes.minorticks_off()
    behind = {"facecolor": "#ffffff", "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
    for radius, label in ticks.items():  # over the curves, which would hide the grid's own labels
        axes.text(
            math.radians(22.5), radius, label, fontsize=8, color=GREY, ha="center", va="center", bbox=behind
        )


def _percent_ticks(values: Sequence[float]) -> tuple[float, dict[float, str]]:
    known = [v for v in values if math.isfinite(v)] or [0.0]
    step = next(s for s in (1, 2, 5, 10, 20, 25) if 100 - 4 * s <= min(known) or s == 25)
    return 100 - 4.0 * step, {100 - k * step: f"{100 - k * step:g} %" for k in range(4)}


def _common_layer(reports: Mapping[str, Report], layer: str | None) -> str:
    """``layer``, or of those in all reports the one measured at most angles, the last if several are."""
    first = next(iter(reports.values()))
    common = [name for name in first.layers if all(name in r.layers for r in reports.values())]
    if layer is None and not common:
        raise ValueError("the reports have no layer in common: measure them at the same layers")
    if layer is not None and layer not in common:
        raise ValueError(f"not every report has a layer {layer!r}: {nearest(layer, common)}")

    def measured(name: str) -> int:
        return sum(math.isfinite(v) for r in reports.values() for v in r.layers[name].per_element.values())

    return max(reversed(common), key=measured) if layer is None else layer


def _angles(name: str, report: Report, layer: str) -> dict[float, float]:
    elements = report.layers[layer].elements.values()
    curve = {e.degrees: e.relative for e in elements if e.degrees is not None}
    if not curve:
        raise ValueError(
            f"{name} was measured under {report.group}, which has no rotations: measure it under rot72"
        )
    return curve


def _accuracies(report: Report) -> dict[float, float]:
    if report.accuracy is None:
        return {}
    elements = next(iter(report.layers.values())).elements
    degrees = {label: e.degrees for label, e in elements.items()} | {"identity": 0.0}
    return {a: v for label, v in report.accuracy.items() if (a := degrees.get(label)) is not None}


def _union(runs: Iterable[Iterable[str]]) -> list[str]:
    """All names in an order that agrees with that of each run, as far as that is possible."""
    names: list[str] = []
    for run in runs:
        place = 0
        for name in run:
            if name in names:
                place = names.index(name) + 1
            else:
                names.insert(place, name)
                place += 1
    return names


def _needs(given: Sequence[Any] | Mapping[str, Any], what: str) -> None:
    if not given:
        raise ValueError(f"there is nothing to plot: give at least one {what}")
