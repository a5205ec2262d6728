"""Names of lines and points: legends, and texts that lie over nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from .style import GREY, Look, plain

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

__all__ = ["label_points", "legend_below", "legend_beside", "legend_columns"]

LABEL_DISTANCE = 8
"""Typographic points from a point to its name, if there is room."""
MAX_ITERATIONS = 500
"""Of moving labels apart; a limit in time would not give the same figure everywhere."""


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
    axes: Axes, points: Sequence[tuple[float, float]], names: Sequence[str], drawn: Sequence[Artist]
) -> None:
    """Write a name near each point, joined to it by a thin line where it had to go far away.

    Call it last: it needs the final limits of the axes.

    Args:
        axes: The panel.
        points: In the units of the axes.
        names: One for each point.
        drawn: Marks and bars that no name should lie over.
    """
    from adjustText import adjust_text  # type: ignore[import-untyped]

    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # the layout is done, and places on the page are known
    to_page, to_axes = axes.transData, axes.transData.inverted()
    beside = LABEL_DISTANCE * figure.dpi / 72  # pixels
    frame = axes.get_window_extent()
    right_third = frame.x0 + 2 / 3 * frame.width
    texts = []
    for point, name in zip(points, names, strict=True):
        x, y = to_page.transform(point)
        side: Literal["left", "right"] = "left"
        if x > right_third:  # to the right of the point, a name would leave the axes
            side = "right"
            x -= beside
        else:
            x += beside
        start_x, start_y = to_axes.transform((x, y))
        texts.append(axes.text(start_x, start_y, name, fontsize=9, va="center", ha=side))
    boxes = []
    for artist in drawn:
        boxes.append(artist.get_window_extent().transformed(to_axes))
    target_x, target_y = zip(*points, strict=True)
    adjust_text(
        texts,
        target_x=list(target_x),
        target_y=list(target_y),
        objects=boxes,
        avoid_self=False,
        ax=axes,
        expand=(1.02, 1.1),
        force_explode=(0, 0),  # a name that lies over nothing stays where it is
        force_static=(0.2, 0.3),
        min_arrow_len=2 * beside,
        iter_lim=MAX_ITERATIONS,
        arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkB": 4},
    )


def _visible(name: str) -> str:
    """Return a name that matplotlib shows: it leaves out those that begin with an underscore."""
    if name.startswith("_"):
        return f" {name}"
    return name


def _handle(look: Look) -> Line2D:
    """Return the sample of a line that stands before its name."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **look._asdict())
