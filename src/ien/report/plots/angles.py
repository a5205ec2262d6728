"""Relative error and accuracy against the angle, around the circle, or against the scale factor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..._text import nearest
from ...measuring.report import ElementReport, Report
from .axes import ErrorAxis, closed_curve, factor_axis, percent_ticks, rings
from .errors import Point, draw_errors
from .labels import legend_below, legend_columns
from .style import Look, check_any, looks_of, plain, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_angles", "plot_factors"]


@styled()
def plot_angles(reports: Mapping[str, Report], layer: str | None = None) -> Figure:
    """Draw the error of a layer, and accuracy if there are labels, against the angle: closed curves.

    0° is up, angles grow counter-clockwise, and quarter turns are marked. The identity has no error, so
    the curves of errors pass it by.

    Args:
        reports: Name of the run to its report under many angles, such as rot72.
        layer: Which layer; by default the last one that is large enough for all angles.
    """
    check_any(reports, "report")
    layer = _common_layer(reports, layer)
    errors = {name: _errors_by_angle(name, report, layer) for name, report in reports.items()}
    accuracies = _known(_accuracies(reports, "degrees"))
    axis = ErrorAxis.over(value for curve in errors.values() for value in curve.values())
    looks = looks_of(reports)

    figure, panels = _circles(2 if accuracies else 1, looks)
    panels[0].set_title(f"relative error of {plain(layer)}", y=1.13, loc="center")
    panels[0].set_rscale("log")
    for name, curve in errors.items():
        placed = {angle: axis.place(value) for angle, value in curve.items()}
        closed_curve(panels[0], placed, looks[name], name)
    rings(panels[0], axis.low, axis.high, axis.ticks())
    if accuracies:
        panels[1].set_title("accuracy", y=1.13, loc="center")
        for name, curve in accuracies.items():
            closed_curve(panels[1], curve, looks[name], name)
        low, ticks = percent_ticks([value for curve in accuracies.values() for value in curve.values()])
        rings(panels[1], low, 100, ticks)
    return figure


@styled()
def plot_factors(reports: Mapping[str, Report], layer: str | None = None) -> Figure:
    """Draw the error of a layer with its floor (dotted), and accuracy if there are labels, by scale factor.

    The axis is logarithmic, with 1 in the middle: there is no error there, and the curves have a gap.

    Args:
        reports: Name of the run to its report under several factors, such as scale0.5,0.7,1.4,2.
        layer: Which layer; by default the last one that is large enough for all factors.
    """
    from matplotlib.figure import Figure

    check_any(reports, "report")
    layer = _common_layer(reports, layer)
    errors = {name: _errors_by_factor(name, report, layer) for name, report in reports.items()}
    accuracies = _known(_accuracies(reports, "factor"))
    points = [point for curve in errors.values() for point in curve.values()]
    axis = ErrorAxis.over([*(point.relative for point in points), *(point.floor for point in points)])
    looks = looks_of(reports)

    figure = Figure(figsize=(9 if accuracies else 5.5, 4.2), layout="constrained")
    panels = figure.subplots(1, 2 if accuracies else 1, squeeze=False)[0]
    for axes, title in zip(panels, (f"relative error of {plain(layer)}", "accuracy, %"), strict=False):
        axes.set_title(title)
        factor_axis(axes, [factor for curve in errors.values() for factor in curve])
    if any(point.floor is not None for point in points):
        panels[0].set_xlabel("factor (dotted: the floor)")
    axis.draw(panels[0])
    for name, curve in errors.items():
        with_gap = curve | {1.0: Point()}
        draw_errors(panels[0], axis, dict(sorted(with_gap.items())), looks[name], plain(name))
    for name, shares in accuracies.items():
        factors = sorted(shares)
        values = [shares[factor] for factor in factors]
        panels[1].plot(factors, values, **looks[name]._asdict(), label=plain(name))
    legend_below(figure, looks)
    return figure


def _circles(count: int, looks: Mapping[str, Look]) -> tuple[Figure, list[Any]]:
    """Make circles beside each other, 0° at the top, and the names below; placed by hand, in inches."""
    from matplotlib.figure import Figure

    width, radius = 4.5 * count, 1.6
    labels = [plain(name) for name in looks]
    lines = math.ceil(len(labels) / legend_columns(labels, width))
    legend_height = 0.15 + 0.22 * lines
    height = 4.5 + legend_height
    figure = Figure(figsize=(width, height))
    panels = []
    for i in range(count):
        left, bottom = 4.5 * (i + 0.5) - radius, legend_height + 0.42
        box = left / width, bottom / height, 2 * radius / width, 2 * radius / height
        axes: Any = figure.add_axes(box, projection="polar")
        axes.set_theta_zero_location("N")
        axes.set_thetagrids(range(0, 360, 45))
        axes.spines["polar"].set_visible(False)
        panels.append(axes)
    legend_below(figure, looks)
    return figure, panels


def _common_layer(reports: Mapping[str, Report], layer: str | None) -> str:
    """Return ``layer``, or of those in all reports the last one that was measured at most elements."""
    first, *others = reports.values()
    common = []
    for name in first.layers:
        if all(name in report.layers for report in others):
            common.append(name)
    if layer is not None:
        if layer not in common:
            raise ValueError(f"not every report has a layer {layer!r}: {nearest(layer, common)}")
        return layer
    if not common:
        raise ValueError("the reports have no layer in common: measure them at the same layers")

    def count_measured(name: str) -> int:
        count = 0
        for report in reports.values():
            count += sum(map(math.isfinite, report.layers[name].per_element.values()))
        return count

    return max(reversed(common), key=count_measured)


def _errors_by_angle(name: str, report: Report, layer: str) -> dict[float, float]:
    curve = {}
    for element in report.layers[layer].elements.values():
        if element.degrees is not None:
            curve[element.degrees] = element.relative
    if not curve:
        raise ValueError(
            f"{name} was measured under {report.group}, which has no rotations: measure it under rot72"
        )
    return curve


def _errors_by_factor(name: str, report: Report, layer: str) -> dict[float, Point]:
    curve = {}
    for element in report.layers[layer].elements.values():
        if element.factor is not None:
            curve[element.factor] = Point(element.relative, element.floor, element.interval)
    if not curve:
        raise ValueError(
            f"{name} was measured under {report.group}, which has no scalings: "
            f"measure it under scale0.5,0.7,1.4,2"
        )
    return curve


def _accuracies(reports: Mapping[str, Report], place: str) -> dict[str, dict[float, float]]:
    """Return the accuracy of each run, in percent, by ``degrees`` or ``factor``; empty without labels."""
    curves = {}
    for name, report in reports.items():
        curve = {}
        elements: Mapping[str, ElementReport] = next(iter(report.layers.values())).elements
        for label, share in (report.accuracy or {}).items():
            where = 0.0 if place == "degrees" else 1.0  # the identity, which is no element of a layer
            if label in elements:
                where = getattr(elements[label], place)
            if where is not None:
                curve[where] = 100 * share
        curves[name] = curve
    return curves


def _known(curves: Mapping[str, dict[float, float]]) -> dict[str, dict[float, float]]:
    return {name: curve for name, curve in curves.items() if curve}
