"""Relative error and accuracy against the angle, or against the scale factor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from ..._text import nearest
from ...measuring.layer_report import ElementReport
from ...measuring.report import Report
from .axes import angle_axis, angle_curve, factor_axis
from .errors import Point, draw_errors, error_axis
from .labels import legend_below
from .style import NARROW, WIDE, check_any, looks_of, plain, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_angles", "plot_factors"]

Curve = dict[float, float]
"""Degrees, or factor, to error or accuracy."""


@styled()
def plot_angles(reports: Mapping[str, Report], layer: str | None = None, *, narrow: bool = False) -> Figure:
    """Draw the error of a layer against the angle, and accuracy or unchanged predictions.

    Both axes begin at 0. At 0° the image is not moved, and so there is no error.

    Args:
        reports: Name of the run to its report under many angles, such as rot72.
        layer: Which layer; by default the last one that is large enough for all angles.
        narrow: Whether the panels stand below each other, to fit a phone.
    """
    check_any(reports, "report")
    layer = _common_layer(reports, layer)
    errors: dict[str, Curve] = {}
    highest = 0.0
    for name, report in reports.items():
        errors[name] = {0.0: 0.0} | _errors_by_angle(name, report, layer)
        highest = max(highest, *filter(math.isfinite, errors[name].values()))
    share, shares = _shares(reports, "degrees", identity=0.0)
    looks = looks_of(reports)

    titles = [f"relative error of {plain(layer)}"]
    if shares:
        titles.append(f"{share}, %")
    figure, panels = _panels(titles, narrow)
    for name, curve in errors.items():
        angle_curve(panels[0], curve, looks[name], name)
    panels[0].set_ylim(0, 1.05 * highest or 1)
    for name, curve in shares.items():
        angle_curve(panels[1], curve, looks[name], name)
        panels[1].set_ylim(0, 100)
    for axes in panels:
        angle_axis(axes)
    legend_below(figure, looks)
    return figure


@styled()
def plot_factors(reports: Mapping[str, Report], layer: str | None = None, *, narrow: bool = False) -> Figure:
    """Draw the error of a layer, and accuracy or unchanged predictions, against the scale factor.

    Dotted lines are the floors. The axis is logarithmic, with 1 in the middle: the identity has no
    error, so the curves of errors have a gap there.

    Args:
        reports: Name of the run to its report under several factors, such as scale0.5,0.7,1.4,2.
        layer: Which layer; by default the last one that is large enough for all factors.
        narrow: Whether the panels stand below each other, to fit a phone.
    """
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
    figure, panels = _panels(titles, narrow)
    for axes in panels:
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


def _panels(titles: Sequence[str], narrow: bool) -> tuple[Figure, list[Axes]]:
    """Make a panel for each title, beside each other or, if narrow, below each other."""
    from matplotlib.figure import Figure

    count = len(titles)
    if narrow:
        figure = Figure(figsize=(NARROW, 0.6 + 2.4 * count), layout="constrained")
        grid = figure.subplots(count, 1, squeeze=False)
    else:
        figure = Figure(figsize=(WIDE, 3.6), layout="constrained")
        grid = figure.subplots(1, count, squeeze=False)
    panels = list(grid.flat)
    for axes, title in zip(panels, titles, strict=True):
        axes.set_title(title)
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
