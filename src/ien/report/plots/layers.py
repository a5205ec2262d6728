"""Plots: from reports to figures of relative errors by layer, angle and factor; other plots come along."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..._text import nearest
from ...measuring.report import LayerReport, Report
from ..tradeoff import plot_tradeoff
from .labels import label_ends, legend, legend_columns
from .runs import plot_costs, plot_training
from .style import (
    GREY,
    LogAxis,
    Look,
    closed,
    factor_axis,
    look,
    needs,
    percent_ticks,
    plain,
    rings,
    save_figure,
    styled,
    union,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "plot_angles",
    "plot_costs",
    "plot_errors",
    "plot_factors",
    "plot_tradeoff",
    "plot_training",
    "save_figure",
]

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

    needs(reports, "report")
    panels = _panels(reports)
    layers = union(points for lines in panels.values() for points in lines.values())
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
            places = {float(x): points.get(layer, _Point()) for x, layer in enumerate(layers)}
            _error_line(axes, axis, places, look(i), plain(name))
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
    needs(reports, "report")
    layer = _common_layer(reports, layer)
    errors = {name: _angles(name, report, layer) for name, report in reports.items()}
    accuracies = {n: curve for n, report in reports.items() if (curve := _accuracies(report, "degrees"))}
    axis = LogAxis.over(value for curve in errors.values() for value in curve.values())
    looks = {name: look(i) for i, name in enumerate(reports)}
    figure, plots = _polar_panels(2 if accuracies else 1, looks)
    plots[0].set_title(f"relative error of {plain(layer)}", y=1.13, loc="center")
    plots[0].set_rscale("log")
    for name, curve in errors.items():
        closed(plots[0], {a: axis.place(v) for a, v in curve.items()}, looks[name], name)
    rings(plots[0], axis.low, axis.high, axis.ticks)
    if accuracies:
        plots[1].set_title("accuracy", y=1.13, loc="center")
        for name, curve in accuracies.items():
            closed(plots[1], {a: 100 * v for a, v in curve.items()}, looks[name], name)
        low, ticks = percent_ticks([100 * v for curve in accuracies.values() for v in curve.values()])
        rings(plots[1], low, 100, ticks)
    return figure


@styled()
def plot_factors(reports: Mapping[str, Report], layer: str | None = None) -> Figure:
    """Relative error of a layer with, dotted, its floor, and accuracy if labels were given, by scale factor.

    ``layer`` is by default the last one that is large enough for all factors. The axis is logarithmic, with 1
    in the middle: there is no error, and its curves have a gap.
    """
    from matplotlib.figure import Figure

    needs(reports, "report")
    layer = _common_layer(reports, layer)
    errors = {name: _factors(name, report, layer) for name, report in reports.items()}
    accuracies = {n: curve for n, report in reports.items() if (curve := _accuracies(report, "factor"))}
    axis = LogAxis.over(value for curve in errors.values() for point in curve.values() for value in point[:2])
    looks = {name: look(i) for i, name in enumerate(reports)}
    figure = Figure(figsize=(9 if accuracies else 5.5, 4.2), layout="constrained")
    plots = figure.subplots(1, 2 if accuracies else 1, squeeze=False)[0]
    for axes, title in zip(plots, (f"relative error of {plain(layer)}", "accuracy, %"), strict=False):
        axes.set_title(title)
        factor_axis(axes, [factor for curve in errors.values() for factor in curve])
    floors = any(point.floor is not None for curve in errors.values() for point in curve.values())
    plots[0].set_xlabel("factor (dotted: the floor)" if floors else "factor")
    axis.draw(plots[0])
    for name, found in errors.items():
        _error_line(plots[0], axis, dict(sorted((found | {1.0: _Point()}).items())), looks[name], plain(name))
    for name, shares in accuracies.items():
        points = sorted((factor, 100 * share) for factor, share in shares.items())
        plots[1].plot(*zip(*points, strict=True), **looks[name]._asdict(), label=plain(name))
    legend(figure, [(plain(name), mark) for name, mark in looks.items()])
    return figure


def _panels(reports: Mapping[str, Report | Errors]) -> dict[str, dict[str, dict[str, _Point]]]:
    """Title → run → layer → what is drawn: two panels where quarter turns and others are known apart."""
    elements = [
        element
        for report in reports.values()
        if isinstance(report, Report)
        for layer in report.layers.values()
        for element in layer.elements.values()
    ]
    kinds = {element.exact for element in elements}
    if len(kinds) == 2 and all(isinstance(report, Report) for report in reports.values()):
        turned = all(element.exact or element.degrees is not None for element in elements)
        titles = {"quarter turns and flips": True, "in between" if turned else "resampled": False}
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
    axes.set_xticks(range(len(layers)), [plain(layer, 20) for layer in layers])
    axes.set_xlim(-0.35, len(layers) - 0.65)
    axis.draw(axes)
    if crowded:
        axes.tick_params(axis="x", labelrotation=90)


def _error_line(axes: Axes, axis: LogAxis, points: Mapping[float, _Point], mark: Look, name: str) -> None:
    """``points`` are by their places, from left to right."""
    places = list(points)
    values, floors = (
        [axis.place(value) for value in side] for side in zip(*(p[:2] for p in points.values()), strict=True)
    )
    axes.plot(places, values, color=mark.color, marker=mark.marker, label=name, zorder=3)
    if not all(map(math.isnan, floors)):
        thin: dict[str, Any] = {"linestyle": ":", "linewidth": 1.1, "zorder": 2}
        axes.plot(places, floors, color=mark.color, label=f"{name}: floor", **thin)
    for x, point in points.items():
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


def _factors(name: str, report: Report, layer: str) -> dict[float, _Point]:
    elements = report.layers[layer].elements.values()
    curve = {e.factor: _Point(e.relative, e.floor, e.interval) for e in elements if e.factor is not None}
    if not curve:
        raise ValueError(
            f"{name} was measured under {report.group}, which has no scalings: "
            f"measure it under scale0.5,0.7,1.4,2"
        )
    return curve


def _accuracies(report: Report, place: Literal["degrees", "factor"]) -> dict[float, float]:
    """Angle, or factor → accuracy, with that of the untransformed images."""
    if report.accuracy is None:
        return {}
    elements = next(iter(report.layers.values())).elements
    places = {label: getattr(e, place) for label, e in elements.items()}
    places["identity"] = {"degrees": 0.0, "factor": 1.0}[place]
    return {a: v for label, v in report.accuracy.items() if (a := places.get(label)) is not None}
