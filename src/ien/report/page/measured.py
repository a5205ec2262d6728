"""The page of one report: what ``ien.measure(...).save(folder)`` writes beside the JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ..._text import MODEL_ITSELF
from ...measuring.layer_report import ElementReport, LayerReport
from ...measuring.report import Report
from ..palette import CYCLE
from .html import fill

__all__ = ["measured_page"]

MIN_ANGLES, MIN_FACTORS = 7, 4
"""How many angles or factors make a curve worth drawing."""
MAX_LABELLED_FACTORS = 9
"""With more factors, only the first, the last and 1 have a label."""
MIN_ERROR = 1e-16
"""Errors below it are drawn as this one: 0 has no place on a logarithmic axis."""
DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 2")
# of the drawing, in its own units
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 300, 60, 20, 10, 34

Points = list[tuple[float, float]]
"""Place along the axis, and relative error."""


class Axis(NamedTuple):
    """What the curves run over, and its ticks from the first place to the last."""

    name: str
    ticks: list[tuple[float, str]]


class Tick(NamedTuple):
    """A line of the grid, and its label."""

    place: float
    label: str


class Line(NamedTuple):
    """The curve of one layer."""

    name: str
    colour: str
    dashes: str
    points: str
    """As SVG's polyline wants them: x,y x,y …"""


class Drawing(NamedTuple):
    """Curves, in the units of the drawing; y grows downwards."""

    axis: str
    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int
    across: list[Tick]
    upward: list[Tick]
    lines: list[Line]


def measured_page(report: Report) -> str:
    """Write a report as one HTML page that loads nothing from elsewhere and runs no script.

    There is a curve where the group has at least seven angles, or four factors counting 1.
    """
    header, rows = report.table()
    elements_header, *elements = report.element_table()
    return fill(
        "measured.html",
        title=report.title[:1].upper() + report.title[1:],
        header=header,
        rows=rows,
        remarks=report.remarks(),
        drawing=_drawing(report.layers),
        elements_header=elements_header,
        elements=elements,
    )


def _drawing(layers: Mapping[str, LayerReport]) -> Drawing | None:
    """Draw the relative error of each layer against the angle, or else against the factor."""
    curves = _curves(layers, _degrees)
    if max(map(len, curves.values())) >= MIN_ANGLES:
        quarters = [(0.0, "0°"), (90.0, "90°"), (180.0, "180°"), (270.0, "270°"), (360.0, "360°")]
        return _draw(curves, Axis("angle", quarters))

    curves = _curves(layers, _log_factor)
    places = {0.0}  # the identity, log 1, is always on the axis
    for points in curves.values():
        places.update(dict(points))
    if len(places) < MIN_FACTORS:
        return None
    return _draw(curves, Axis("factor", _factor_ticks(sorted(places))))


def _degrees(element: ElementReport) -> float | None:
    return element.degrees


def _log_factor(element: ElementReport) -> float | None:
    if element.factor is None:
        return None
    return math.log(element.factor)  # 1/2 is as far from 1 as 2


def _curves(
    layers: Mapping[str, LayerReport], place_of: Callable[[ElementReport], float | None]
) -> dict[str, Points]:
    """Return the curve of each layer, over the elements that have a place and an error."""
    curves = {}
    for name, layer in layers.items():
        points = []
        for element in layer.elements.values():
            place = place_of(element)
            # no place: a flip; no error: the map is too small for this element
            if place is not None and math.isfinite(element.relative):
                points.append((place, max(element.relative, MIN_ERROR)))
        curves[name or MODEL_ITSELF] = sorted(points)
    return curves


def _factor_ticks(places: Sequence[float]) -> list[tuple[float, str]]:
    ticks = []
    for place in places:
        if len(places) <= MAX_LABELLED_FACTORS or place in (0.0, places[0], places[-1]):
            ticks.append((place, f"×{math.exp(place):.3g}"))
    return ticks


class _Scale(NamedTuple):
    """From values to the units of the drawing, in which y grows downwards."""

    first: float
    """The place at the left end of the axis."""
    last: float
    low: int
    """The power of ten at its lower end."""
    high: int

    def x(self, place: float) -> float:
        share = (place - self.first) / (self.last - self.first)
        return LEFT + (WIDTH - LEFT - RIGHT) * share

    def y(self, error: float) -> float:
        share = (self.high - math.log10(error)) / (self.high - self.low)
        return TOP + (HEIGHT - BOTTOM - TOP) * share


def _scale(curves: Mapping[str, Points], axis: Axis) -> _Scale:
    """Return a scale that holds all curves between two whole powers of ten."""
    errors: list[float] = []
    for points in curves.values():
        errors.extend(dict(points).values())
    # the small number takes an error of exactly 1 as one above 10^0
    high = math.ceil(math.log10(max(errors)) + 1e-9)
    low = math.floor(math.log10(min(errors)))
    low = min(low, high - 1)
    first, _ = axis.ticks[0]
    last, _ = axis.ticks[-1]
    return _Scale(first, last, low, high)


def _draw(curves: Mapping[str, Points], axis: Axis) -> Drawing:
    """Place curves and grid: the axis across, whole powers of ten upward."""
    scale = _scale(curves, axis)
    across, upward = [], []
    for place, label in axis.ticks:
        across.append(Tick(round(scale.x(place), 1), label))
    every = max(1, (scale.high - scale.low) // 6)  # about six lines
    for power in range(scale.low, scale.high + 1, every):
        error = 10.0**power
        upward.append(Tick(round(scale.y(error), 1), f"{error:g}"))

    lines = []
    # dashes as well as colours tell layers apart
    for k, (name, points) in enumerate(curves.items()):
        places = []
        for place, error in points:
            x, y = scale.x(place), scale.y(error)
            places.append(f"{x:.1f},{y:.1f}")
        colour = CYCLE[k % len(CYCLE)]
        dashes = DASHES[k % len(DASHES)]
        lines.append(Line(name, colour, dashes, " ".join(places)))
    return Drawing(
        axis=axis.name,
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        right=WIDTH - RIGHT,
        top=TOP,
        bottom=HEIGHT - BOTTOM,
        across=across,
        upward=upward,
        lines=lines,
    )
