"""The relative error of each layer, one line for each run, with floors and intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...measuring.layer_report import LayerReport
from ...measuring.report import Report
from .axes import ErrorAxis
from .labels import legend_below, legend_beside
from .style import GREY, NARROW, WIDE, Look, check_any, looks_of, note_below, plain, styled, union

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Point", "draw_errors", "error_axis", "plot_errors"]

MAX_LETTERS = 90
"""Of the names of layers in all panels; with more they are written upright."""


HEIGHT, UPRIGHT_HEIGHT = 4.2, 5.2  # inches


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
def plot_errors(reports: Mapping[str, Report], *, narrow: bool = False) -> Figure:
    """Draw the relative error of each layer, one line for each run.

    Bars are confidence intervals, dotted lines the floors. Quarter turns and flips have one panel
    and all other elements another, if there are both.

    Args:
        reports: Name of the run to what :func:`ien.measure` returned.
        narrow: Whether the panels stand below each other, to fit a phone.
    """
    from matplotlib.figure import Figure

    check_any(reports, "report")
    panels = _panels(reports)
    layers = union(_lines(panels))
    points: list[Point] = []
    for line in _lines(panels):
        points.extend(line.values())
    axis = error_axis(points)
    looks = looks_of(reports)
    # names that would touch each other are written upright, and need more room below
    letters = sum(map(len, layers))
    if narrow:
        crowded = 2 * letters > MAX_LETTERS
        figure = Figure(figsize=(NARROW, 0.8 + (3.2 if crowded else 2.4) * len(panels)), layout="constrained")
        all_axes = figure.subplots(len(panels), 1, sharey=True, squeeze=False)[:, 0]
    else:
        crowded = letters * len(panels) > MAX_LETTERS
        figure = Figure(figsize=(WIDE, UPRIGHT_HEIGHT if crowded else HEIGHT), layout="constrained")
        all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, panel) in zip(all_axes, panels.items(), strict=True):
        axes.set_title(title)
        _layer_axis(axes, layers, crowded)
        axis.draw(axes)
        for name, line in panel.items():
            places = {}
            for x, layer in enumerate(layers):
                places[float(x)] = line.get(layer, Point())  # a gap if it has no such layer
            draw_errors(axes, axis, places, looks[name], plain(name))
        _mark_missing(axes, axis, layers, panel)
    all_axes[0].set_ylabel("relative error")  # one axis for all panels
    if narrow:
        legend_below(figure, looks)
    else:
        ends = []
        for name in reports:
            ends.append((plain(name), _last_value(axis, panels, name), looks[name]))
        legend_beside(all_axes[-1], ends)
    has_floors = any(point.floor is not None for point in points)
    if has_floors and narrow:  # the legend stands where the note would be
        all_axes[-1].set_xlabel("dotted: the floor")
    elif has_floors:
        note_below(figure, "dotted: the floor, what the grid or resampling alone costs")
    return figure


def error_axis(points: Sequence[Point]) -> ErrorAxis:
    """Return an axis that holds all errors and floors."""
    values: list[float | None] = []
    for point in points:
        values += [point.relative, point.floor]
    return ErrorAxis.over(values)


def draw_errors(axes: Axes, axis: ErrorAxis, points: Mapping[float, Point], look: Look, name: str) -> None:
    """Draw one line, its floor and its intervals; points are by place, from left to right."""
    places = list(points)
    values, floors = [], []
    for point in points.values():
        values.append(axis.place(point.relative))
        floors.append(axis.place(point.floor))
    axes.plot(places, values, color=look.color, marker=look.marker, label=name, zorder=3)

    has_floors = not all(map(math.isnan, floors))
    if has_floors:
        dotted: dict[str, Any] = {"linestyle": ":", "linewidth": 1.1, "zorder": 2}
        axes.plot(places, floors, color=look.color, label=f"{name}: floor", **dotted)

    for place, point in points.items():
        if point.interval is None or not all(map(math.isfinite, point.interval)):
            continue
        low, high = map(axis.place, point.interval)
        # a logarithmic axis has no place for an interval that reaches 0
        ends = [max(low, axis.low), max(high, axis.low)]
        bar: dict[str, Any] = {"linewidth": 1, "marker": "_", "markersize": 6}
        axes.plot([place, place], ends, color=look.color, label=f"{name}: interval", **bar)


def _panels(reports: Mapping[str, Report]) -> dict[str, Panel]:
    """Return the panels by their titles: two if there are both kinds of elements."""
    # quarter turns and flips only permute pixels; all other elements resample, and cost more
    has_exact = has_others = has_scalings = False
    for report in reports.values():
        for layer in report.layers.values():
            for element in layer.elements.values():
                if element.exact:
                    has_exact = True
                else:
                    has_others = True
                    has_scalings = has_scalings or element.degrees is None
    if not (has_exact and has_others):
        return {"relative error of each layer": _panel(reports, _whole_point)}
    between = "in between"
    if has_scalings:  # "in between" is said of angles
        between = "resampled"
    return {
        "quarter turns and flips": _panel(reports, _exact_point),
        between: _panel(reports, _between_point),
    }


def _panel(reports: Mapping[str, Report], point_of: Callable[[LayerReport], Point]) -> Panel:
    panel: Panel = {}
    for name, report in reports.items():
        line = {}
        for layer_name, layer in report.layers.items():
            line[layer_name] = point_of(layer)
        panel[name] = line
    return panel


def _whole_point(layer: LayerReport) -> Point:
    return Point(layer.relative, layer.floor, layer.interval)


def _exact_point(layer: LayerReport) -> Point:
    return _mean_point(layer, exact=True)


def _between_point(layer: LayerReport) -> Point:
    return _mean_point(layer, exact=False)


def _mean_point(layer: LayerReport, exact: bool) -> Point:
    """Average the elements of one kind; the mean of their intervals is, if anything, too wide."""
    errors, lows, highs, floors = [], [], [], []
    for element in layer.elements.values():
        if element.exact != exact or math.isnan(element.relative):
            continue
        errors.append(element.relative)
        lows.append(element.interval[0])
        highs.append(element.interval[1])
        if element.floor is not None and not math.isnan(element.floor):
            floors.append(element.floor)
    if not errors:
        return Point()
    floor = None
    if floors:
        floor = statistics.fmean(floors)
    return Point(statistics.fmean(errors), floor, (statistics.fmean(lows), statistics.fmean(highs)))


def _lines(panels: Mapping[str, Panel]) -> Iterator[Line]:
    for panel in panels.values():
        yield from panel.values()


def _layer_axis(axes: Axes, layers: Sequence[str], crowded: bool) -> None:
    axes.set_xticks(range(len(layers)), [plain(layer, 20) for layer in layers])
    axes.set_xlim(-0.35, len(layers) - 0.65)
    if crowded:
        axes.tick_params(axis="x", labelrotation=90)


def _mark_missing(axes: Axes, axis: ErrorAxis, layers: Sequence[str], panel: Panel) -> None:
    """Say so where no run has a value: the maps are too small for these elements."""
    for x, layer in enumerate(layers):
        known = 0
        for line in panel.values():
            known += math.isfinite(line.get(layer, Point()).relative)
        if not known:
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
