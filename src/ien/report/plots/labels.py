"""Names of lines and points: legends, and texts that lie over nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from .style import Look, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

__all__ = ["label_points", "legend_below", "legend_beside", "legend_columns"]

BEND_DISTANCE, DOT_DISTANCE, NAME_DISTANCE = 10, 15, 20
"""Typographic points to the right or left of a point: where a line to its name bends and ends in a
dot, and where the name begins."""


def legend_below(figure: Figure, looks: Mapping[str, Look]) -> None:
    """Name the runs below all panels."""
    handles, labels = [], []
    for name, look in looks.items():
        handles.append(_handle(look))
        labels.append(_visible(plain(name)))
    place: Any = "outside lower center"
    if figure.get_layout_engine() is None:  # then nothing makes room for what is outside
        place = "lower center"
    columns = legend_columns(labels, figure.get_figwidth())
    figure.legend(handles, labels, loc=place, ncols=columns, handlelength=3.2)


def legend_columns(labels: Sequence[str], width: float) -> int:
    """Return how many of the names fit beside each other on this many inches."""
    longest = max(map(len, labels))
    fitting = int(11 * width / (longest + 8))
    return max(1, min(len(labels), fitting))


def legend_beside(axes: Axes, ends: Sequence[tuple[str, float, Look]], size: float = 9) -> None:
    """Name lines to the right of a panel, in the order in which they end, the highest first.

    Args:
        axes: The panel.
        ends: Name, last value and look of each line.
        size: Of the text, in points.
    """
    handles, labels = [], []
    for name, _, look in sorted(ends, key=lambda end: -end[1]):
        handles.append(_handle(look))
        labels.append(_visible(name))
    axes.legend(
        handles, labels, loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=size, handlelength=2.6
    )


def label_points(
    axes: Axes, points: Sequence[tuple[float, float]], names: Sequence[str], colours: Sequence[str]
) -> None:
    """Write a name beside each point, each below the last that it would lie over.

    A thin line and a dot of its colour join a name to its point: of points that lie over each
    other, only one can be seen. Call it last: it needs the final limits of the axes.

    Args:
        axes: The panel.
        points: In the units of the axes.
        names: One for each point.
        colours: One for each point.
    """
    from matplotlib.transforms import Bbox

    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # the layout is done, and places on the page are known
    dot = figure.dpi / 72  # pixels of a typographic point
    to_axes = axes.transData.inverted()
    frame = axes.get_window_extent()
    places = [axes.transData.transform(point) for point in points]
    # a name lies neither over a point nor over another name
    taken = [Bbox.from_extents(x - 5 * dot, y - 5 * dot, x + 5 * dot, y + 5 * dot) for x, y in places]
    for i in sorted(range(len(points)), key=lambda i: -points[i][1]):  # the highest first
        x, y = places[i]
        side: Literal["left", "right"] = "left"
        away = 1
        if x > frame.x0 + 2 / 3 * frame.width:  # to the right of the point, a name would leave the axes
            side, away = "right", -1
        text = axes.text(*points[i], names[i], fontsize=9, va="center", ha=side)
        box = text.get_window_extent()
        height = 1.1 * box.height
        left = x + away * NAME_DISTANCE * dot
        if side == "right":
            left -= box.width
        low = y - height / 2
        lower = True
        while lower:
            lower = False
            for other in taken:
                if (
                    left < other.x1
                    and other.x0 < left + box.width
                    and low < other.y1
                    and other.y0 < low + height
                ):
                    low, lower = other.y0 - height, True
        taken.append(Bbox.from_bounds(left, low, box.width, height))
        middle = low + height / 2
        start_x, start_y = to_axes.transform((x + away * NAME_DISTANCE * dot, middle))
        text.set_position((start_x, start_y))
        # from the point, and along the name's own line, to the dot before the name
        bend = to_axes.transform((x + away * BEND_DISTANCE * dot, middle))
        end = to_axes.transform((x + away * DOT_DISTANCE * dot, middle))
        across, up = zip(points[i], bend, end, strict=True)
        axes.plot(across, up, color=colours[i], linewidth=0.7, zorder=2)
        axes.plot(*end, "o", color=colours[i], markersize=4)


def _visible(name: str) -> str:
    """Return a name that matplotlib shows: it leaves out those that begin with an underscore."""
    if name.startswith("_"):
        return f" {name}"
    return name


def _handle(look: Look) -> Line2D:
    """Return the sample of a line that stands before its name."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **look._asdict())
