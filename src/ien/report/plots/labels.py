"""Names of lines and points: legends, and texts that lie over nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .style import GREY, Look, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["label_points", "legend_below", "legend_beside", "legend_columns"]

MAX_ITERATIONS = 500
"""Of moving labels apart; a limit in time would not give the same figure everywhere."""


def legend_below(figure: Figure, looks: Mapping[str, Look]) -> None:
    """Name the runs below all panels."""
    handles, labels = _handles(looks), [_visible(plain(name)) for name in looks]
    place: Any = "outside lower center"
    if figure.get_layout_engine() is None:
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
    ordered = sorted(ends, key=lambda end: -end[1])
    handles = _handles({name: look for name, _, look in ordered})
    labels = [_visible(name) for name, _, _ in ordered]
    axes.legend(
        handles, labels, loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=size, handlelength=2.6
    )


def label_points(axes: Axes, points: Sequence[tuple[float, float]], names: Sequence[str]) -> None:
    """Write a name near each point, over no other name or point; joined by a thin line where it is far.

    Call it last: it needs the final limits of the axes.
    """
    from adjustText import adjust_text

    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # the layout is done, and places on the page are known
    texts = []
    for (x, y), name in zip(points, names, strict=True):
        texts.append(axes.text(x, y, name, fontsize=9, va="center"))
    adjust_text(
        texts,
        x=[x for x, _ in points],
        y=[y for _, y in points],
        ax=axes,
        expand=(1.08, 1.5),
        iter_lim=MAX_ITERATIONS,
        arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkB": 4},
    )


def _visible(name: str) -> str:
    """Return a name that matplotlib does not leave out: it hides those that begin with an underscore."""
    if name.startswith("_"):
        return f" {name}"
    return name


def _handles(looks: Mapping[str, Look]) -> list[Any]:
    from matplotlib.lines import Line2D

    return [Line2D([], [], **look._asdict()) for look in looks.values()]
