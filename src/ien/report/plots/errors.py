"""The relative error of each layer, one line for each run, with floors and intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...measuring.report import LayerReport, Report
from .axes import ErrorAxis
from .labels import legend_beside
from .style import GREY, Look, check_any, looks_of, note_below, plain, styled, union

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Point", "draw_errors", "plot_errors"]

MAX_LETTERS = 90
"""Of the names of layers in all panels; with more they are written upright."""


class Point(NamedTuple):
    """What is drawn for one layer, or one factor."""

    relative: float = math.nan
    floor: float | None = None
    interval: tuple[float, float] | None = None


Line = Mapping[str, Point]
"""Layer to what is drawn."""
Panel = dict[str, Line]
"""Run to its line."""


@styled()
def plot_errors(reports: Mapping[str, Report]) -> Figure:
    """Draw the relative error of each layer, one line for each run, with intervals and floors (dotted).

    Quarter turns and flips have one panel and all other elements another, if there are both.

    Args:
        reports: Name of the run to what :func:`ien.measure` returned.
    """
    from matplotlib.figure import Figure

    check_any(reports, "report")
    panels = _panels(reports)
    layers = union(line for panel in panels.values() for line in panel.values())
    points = list(_points(panels))
    axis = ErrorAxis.over([*(point.relative for point in points), *(point.floor for point in points)])
    looks = looks_of(reports)
    crowded = sum(map(len, layers)) * len(panels) > MAX_LETTERS

    figure = Figure(figsize=(9, 5.2 if crowded else 4.2), layout="constrained")
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, panel) in zip(all_axes, panels.items(), strict=True):
        axes.set_title(title)
        _layer_axis(axes, layers, crowded)
        axis.draw(axes)
        for name, line in panel.items():
            places = {float(x): line.get(layer, Point()) for x, layer in enumerate(layers)}
            draw_errors(axes, axis, places, looks[name], plain(name))
        _mark_missing(axes, axis, layers, panel)
    all_axes[0].set_ylabel("relative error")
    ends = []
    for name in reports:
        ends.append((plain(name), _last_value(axis, panels, name), looks[name]))
    legend_beside(all_axes[-1], ends)
    if any(point.floor is not None for point in points):
        note_below(figure, "dotted: the floor, what the grid or resampling alone costs")
    return figure


def draw_errors(axes: Axes, axis: ErrorAxis, points: Mapping[float, Point], look: Look, name: str) -> None:
    """Draw one line, its floor and its intervals; points are by place, from left to right."""
    places = list(points)
    values = [axis.place(point.relative) for point in points.values()]
    axes.plot(places, values, color=look.color, marker=look.marker, label=name, zorder=3)

    floors = [axis.place(point.floor) for point in points.values()]
    if not all(map(math.isnan, floors)):
        dotted: dict[str, Any] = {"linestyle": ":", "linewidth": 1.1, "zorder": 2}
        axes.plot(places, floors, color=look.color, label=f"{name}: floor", **dotted)

    for place, point in points.items():
        if point.interval is not None and all(map(math.isfinite, point.interval)):
            ends = [max(axis.place(end), axis.low) for end in point.interval]
            bar: dict[str, Any] = {"linewidth": 1, "marker": "_", "markersize": 6}
            axes.plot([place, place], ends, color=look.color, label=f"{name}: interval", **bar)


def _panels(reports: Mapping[str, Report]) -> dict[str, Panel]:
    """Return the panels by their titles: two if there are both kinds of elements."""
    exact, rotated = set(), set()
    for report in reports.values():
        for layer in report.layers.values():
            for element in layer.elements.values():
                exact.add(element.exact)
                rotated.add(element.exact or element.degrees is not None)
    if len(exact) < 2:
        whole: Panel = {}
        for name, report in reports.items():
            line = {}
            for layer_name, layer in report.layers.items():
                line[layer_name] = Point(layer.relative, layer.floor, layer.interval)
            whole[name] = line
        return {"relative error of each layer": whole}

    others = "in between" if rotated == {True} else "resampled"
    panels: dict[str, Panel] = {"quarter turns and flips": {}, others: {}}
    for title, panel in panels.items():
        for name, report in reports.items():
            panel[name] = {n: _mean_point(layer, title != others) for n, layer in report.layers.items()}
    return panels


def _mean_point(layer: LayerReport, exact: bool) -> Point:
    """Average the elements of one kind; the mean of their intervals is, if anything, too wide."""
    chosen, floors = [], []
    for element in layer.elements.values():
        if element.exact != exact or math.isnan(element.relative):
            continue
        chosen.append(element)
        if element.floor is not None and not math.isnan(element.floor):
            floors.append(element.floor)
    if not chosen:
        return Point()
    low = statistics.fmean(element.interval[0] for element in chosen)
    high = statistics.fmean(element.interval[1] for element in chosen)
    return Point(
        relative=statistics.fmean(element.relative for element in chosen),
        floor=statistics.fmean(floors) if floors else None,
        interval=(low, high),
    )


def _points(panels: Mapping[str, Panel]) -> Iterator[Point]:
    for panel in panels.values():
        for line in panel.values():
            yield from line.values()


def _layer_axis(axes: Axes, layers: Sequence[str], crowded: bool) -> None:
    axes.set_xticks(range(len(layers)), [plain(layer, 20) for layer in layers])
    axes.set_xlim(-0.35, len(layers) - 0.65)
    if crowded:
        axes.tick_params(axis="x", labelrotation=90)


def _mark_missing(axes: Axes, axis: ErrorAxis, layers: Sequence[str], panel: Panel) -> None:
    """Say so where no run has a value: the maps are too small for these elements."""
    for x, layer in enumerate(layers):
        values = [line.get(layer, Point()).relative for line in panel.values()]
        if not any(map(math.isfinite, values)):
            text: dict[str, Any] = {"rotation": 90, "ha": "center", "color": GREY, "fontsize": 8.5}
            axes.text(x, axis.start * 1.3, "no value", **text)


def _last_value(axis: ErrorAxis, panels: Mapping[str, Panel], name: str) -> float:
    """Return the last value of a run, in the last panel that has one."""
    last = axis.low
    for panel in panels.values():
        for point in panel[name].values():
            place = axis.place(point.relative)
            if not math.isnan(place):
                last = place
    return last
