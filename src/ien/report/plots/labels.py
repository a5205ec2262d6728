"""Labels: from names and the lines or points of a plot to text that lies over nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .style import GREY, Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Mark", "label_ends", "label_marks", "legend", "legend_columns", "side_by_side", "spread"]


class Mark(NamedTuple):
    """A point with a bar, in data units, and how far to the right it is moved, in typographic points."""

    x: float
    y: float
    low: float
    high: float
    shift: float = 0.0


def legend(figure: Figure, looks: Sequence[tuple[str, Look]]) -> None:
    """Names below all panels."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **mark._asdict()) for _, mark in looks]
    # matplotlib leaves out labels that begin with an underscore
    labels = [f" {name}" if name.startswith("_") else name for name, _ in looks]
    place: Any = "lower center" if figure.get_layout_engine() is None else "outside lower center"
    figure.legend(
        handles, labels, loc=place, ncols=legend_columns(labels, figure.get_figwidth()), handlelength=3.2
    )


def legend_columns(labels: Sequence[str], width: float) -> int:
    """How many of the names fit beside each other on ``width`` inches."""
    return max(1, min(len(labels), int(11 * width / (max(map(len, labels)) + 8))))


def label_ends(axes: Axes, ends: Sequence[tuple[str, float, Look]], size: float = 9) -> None:
    """Names right of ``axes``, each at the height (in data units) where its line ends, none over another."""
    from matplotlib.transforms import ScaledTranslation

    figure = _settled(axes)
    height = axes.get_window_extent().height * 72 / figure.dpi
    to_axes = axes.transData + axes.transAxes.inverted()
    wished = [float(to_axes.transform((1, end))[1]) for _, end, _ in ends]
    marks, names = (axes.transAxes + ScaledTranslation(x / 72, 0, figure.dpi_scale_trans) for x in (9, 16))
    for (name, _, mark), y in zip(ends, spread(wished, 1.5 * size / height), strict=True):
        axes.plot(
            [1], [y], marker=mark.marker, color=mark.color, transform=marks, clip_on=False, label="_end"
        )
        axes.text(1, y, name, va="center_baseline", fontsize=size, transform=names)


def label_marks(axes: Axes, marks: Sequence[Mark], names: Sequence[str], size: float = 9) -> None:
    """A name near each mark, over no other name, point or bar; joined by a thin line where it is far."""
    from matplotlib.transforms import Bbox

    unit = _settled(axes).dpi / 72
    taken = []
    for mark in marks:
        ends = axes.transData.transform([(mark.x, mark.y), (mark.x, mark.low), (mark.x, mark.high)])
        x, y, low, high = ends[0][0] + mark.shift * unit, *ends[:, 1]
        taken += [Bbox([(x, y), (x, y)]).padded(5 * unit), Bbox([(x, low), (x, high)]).padded(3 * unit)]
    frame = axes.get_window_extent()
    for mark, name in zip(marks, names, strict=True):
        text: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": size}
        trial = axes.annotate(name, (mark.x, mark.y), (mark.shift, 0), **text)
        box = trial.get_window_extent()
        trial.remove()
        offsets = list(_offsets(box.width / unit, box.height / unit))
        boxes = [box.translated(dx * unit, dy * unit) for dx, dy, _ in offsets]
        best = min(
            range(len(boxes)), key=lambda i: (boxes[i].count_overlaps(taken) + _outside(boxes[i], frame), i)
        )
        taken.append(boxes[best].padded(unit))
        dx, dy, far = offsets[best]
        line = {"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4}
        axes.annotate(name, (mark.x, mark.y), (mark.shift + dx, dy), arrowprops=line if far else None, **text)


def side_by_side(axes: Axes, marks: Sequence[Mark], size: float = 10) -> list[Mark]:
    """The marks, those that would hide each other moved apart by ``size`` typographic points."""
    unit = _settled(axes).dpi / 72
    places = axes.transData.transform([(mark.x, mark.y) for mark in marks]) / unit
    clusters: list[list[int]] = []
    for i, place in enumerate(places):
        near = [c for c in clusters if any(abs(place - places[j]).max() < size for j in c)]
        clusters = [c for c in clusters if c not in near] + [[j for c in near for j in c] + [i]]
    shifts = {i: (k - (len(c) - 1) / 2) * size for c in clusters for k, i in enumerate(sorted(c))}
    return [mark._replace(shift=shifts[i]) for i, mark in enumerate(marks)]


def spread(places: Sequence[float], gap: float) -> list[float]:
    """Places in the same order, moved as little as needed to be ``gap`` apart.

    >>> spread([1.0, 1.1, 5.0], 1.0)
    [0.55, 1.55, 5.0]
    """
    order = sorted(range(len(places)), key=lambda i: places[i])
    clusters: list[
        tuple[float, int]
    ] = []  # sum of the places their first members wish for, number of members
    for rank, i in enumerate(order):
        total, count = places[i] - gap * rank, 1
        while clusters and clusters[-1][0] / clusters[-1][1] >= total / count:
            total, count = total + clusters[-1][0], count + clusters.pop()[1]
        clusters.append((total, count))
    starts = [total / count for total, count in clusters for _ in range(count)]
    moved = {i: starts[rank] + gap * rank for rank, i in enumerate(order)}
    return [moved[i] for i in range(len(places))]


def _settled(axes: Axes) -> Figure:
    """The figure of ``axes``, its layout done, so that places on the page are known."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    return figure


def _offsets(width: float, height: float) -> Iterator[tuple[float, float, bool]]:
    """Where a name may go, nearest first: right, left, above, below, between; and whether that is far."""
    for radius in (8, 13, 19, 26, 34, 43, 53, 64, 76, 90):
        for angle in (0, 180, 90, 270, 35, 325, 145, 215, 60, 300, 120, 240):
            cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            yield cos * (radius + width / 2) - width / 2, sin * (radius + height / 2), radius > 13


def _outside(box: Any, frame: Any) -> int:
    return not (frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1)
