"""Relative error and accuracy against the angle, around the circle, or against the scale factor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from ..._text import nearest
from ...measuring.report import ElementReport, Report
from .axes import ErrorAxis, closed_curve, factor_axis, percent_ticks, rings
from .errors import Point, draw_errors, error_axis
from .labels import legend_below, legend_columns
from .style import Look, check_any, looks_of, plain, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_angles", "plot_factors"]

Curve = dict[float, float]
"""Degrees, or factor, to error or accuracy."""


@styled()
def plot_angles(reports: Mapping[str, Report], layer: str | None = None) -> Figure:
    """Draw the error of a layer around the circle, and accuracy or unchanged predictions.

    0° is up, angles grow counter-clockwise, and quarter turns are marked. The identity has no
    error, so the curves of errors pass it by.

    Args:
        reports: Name of the run to its report under many angles, such as rot72.
        layer: Which layer; by default the last one that is large enough for all angles.
    """
    check_any(reports, "report")
    layer = _common_layer(reports, layer)
    errors: dict[str, Curve] = {}
    values: list[float | None] = []
    for name, report in reports.items():
        errors[name] = _errors_by_angle(name, report, layer)
        values.extend(errors[name].values())
    share, shares = _shares(reports, "degrees", identity=0.0)
    axis = ErrorAxis.over(values)
    looks = looks_of(reports)

    num_circles = 1
    if shares:
        num_circles = 2
    figure, panels = _circles(num_circles, looks)
    panels[0].set_title(f"relative error of {plain(layer)}", y=1.13, loc="center")
    panels[0].set_rscale("log")  # before the curves, whose limits depend on it
    for name, curve in errors.items():
        placed = {angle: axis.place(value) for angle, value in curve.items()}
        closed_curve(panels[0], placed, looks[name], name)
    rings(panels[0], axis.low, axis.high, axis.ticks())
    if shares:
        _draw_shares(panels[1], share, shares, looks)
    return figure


@styled()
def plot_factors(reports: Mapping[str, Report], layer: str | None = None) -> Figure:
    """Draw the error of a layer, and accuracy or unchanged predictions, against the scale factor.

    Dotted lines are the floors. The axis is logarithmic, with 1 in the middle: the identity has no
    error, so the curves of errors have a gap there.

    Args:
        reports: Name of the run to its report under several factors, such as scale0.5,0.7,1.4,2.
        layer: Which layer; by default the last one that is large enough for all factors.
    """
    from matplotlib.figure import Figure

    check_any(reports, "report")
    layer = _common_layer(reports, layer)
    errors: dict[str, dict[float, Point]] = {}
    points: list[Point] = []
    factors: set[float] = set()
    for name, report in reports.items():
        errors[name] = _errors_by_factor(name, report, layer)
        points.extend(errors[name].values())
        factors.update(errors[name])
    share, shares = _shares(reports, "factor", identity=1.0)
    axis = error_axis(points)
    looks = looks_of(reports)

    titles = [f"relative error of {plain(layer)}"]
    if shares:
        titles.append(f"{share}, %")
    figure = Figure(figsize=(4.5 * len(titles) + 0.5, 4.2), layout="constrained")
    panels = figure.subplots(1, len(titles), squeeze=False)[0]
    for axes, title in zip(panels, titles, strict=True):
        axes.set_title(title)
        factor_axis(axes, factors)
    if any(point.floor is not None for point in points):
        panels[0].set_xlabel("factor (dotted: the floor)")
    axis.draw(panels[0])
    for name, curve in errors.items():
        with_gap = curve | {1.0: Point()}  # no line across the identity, which has no error
        draw_errors(panels[0], axis, dict(sorted(with_gap.items())), looks[name], plain(name))
    for name, of_run in shares.items():
        places = sorted(of_run)
        values = [of_run[place] for place in places]
        panels[1].plot(places, values, **looks[name]._asdict(), label=plain(name))
    legend_below(figure, looks)
    return figure


def _draw_shares(axes: Any, title: str, shares: Mapping[str, Curve], looks: Mapping[str, Look]) -> None:
    """Draw shares around a circle whose rim is 100 %."""
    axes.set_title(title, y=1.13, loc="center")
    values: list[float] = []
    for name, curve in shares.items():
        closed_curve(axes, curve, looks[name], name)
        values.extend(curve.values())
    low, ticks = percent_ticks(values)
    rings(axes, low, 100, ticks)


def _circles(count: int, looks: Mapping[str, Look]) -> tuple[Figure, list[Any]]:
    """Make circles beside each other, 0° at the top, and the names below, placed in inches."""
    from matplotlib.figure import Figure

    width, radius = 4.5 * count, 1.6
    labels = [plain(name) for name in looks]
    lines = math.ceil(len(labels) / legend_columns(labels, width))
    legend_height = 0.15 + 0.22 * lines  # inches; constrained layout does not know circles
    height = 4.5 + legend_height
    figure = Figure(figsize=(width, height))
    panels = []
    for i in range(count):
        left, bottom = 4.5 * (i + 0.5) - radius, legend_height + 0.42
        box = left / width, bottom / height, 2 * radius / width, 2 * radius / height
        axes: Any = figure.add_axes(box, projection="polar")
        axes.set_theta_zero_location("N")  # angles grow counter-clockwise from there
        axes.set_thetagrids(range(0, 360, 45))
        axes.spines["polar"].set_visible(False)
        panels.append(axes)
    legend_below(figure, looks)
    return figure, panels


def _common_layer(reports: Mapping[str, Report], layer: str | None) -> str:
    """Return ``layer``, or of those in all reports the last one measured at most elements."""
    first, *others = reports.values()
    common = list(first.layers)
    for report in others:
        common = [name for name in common if name in report.layers]
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

    return max(reversed(common), key=count_measured)  # of equal ones, the last layer


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


def _shares(
    reports: Mapping[str, Report], place: Literal["degrees", "factor"], identity: float
) -> tuple[str, dict[str, Curve]]:
    """Return a title, and the accuracy of each run that has labels, in percent.

    Where none has labels, it is the share of predictions that stay as they are; of what is no
    classifier there is no curve.

    Args:
        reports: By the names of the runs.
        place: What the share is drawn against, an attribute of an element.
        identity: Where the original images stand.
    """
    labelled = any(report.accuracy is not None for report in reports.values())
    curves = {}
    for name, report in reports.items():
        shares: dict[str, float] = {}
        if labelled:
            shares = report.accuracy or {}
        elif report.output is not None:
            shares = {label: 1 - element.flip_rate for label, element in report.output.elements.items()}
        elements: Mapping[str, ElementReport] = next(iter(report.layers.values())).elements
        curve = {}
        if shares and not labelled:
            curve[identity] = 100.0
        for label, share in shares.items():
            where: float | None = identity  # which is no element of a layer
            if label in elements:
                where = getattr(elements[label], place)
            if where is not None:
                curve[where] = 100 * share
        if curve:
            curves[name] = curve
    return "accuracy" if labelled else "unchanged predictions", curves
