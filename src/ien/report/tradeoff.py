"""Does equivariance decide how well a net does? From rows of tables to accuracy against last-layer error."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from .plots.runs import accuracy_axes, check_rows, draw_rows
from .plots.style import look, power, styled
from .records import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_tradeoff", "rank_correlation"]

EXACT = 1e-6  # below this an error is one of rounding


@styled()
def plot_tradeoff(rows: Sequence[Row]) -> Figure:
    """Accuracy against the relative error of the last layer: a point a row, the spread over seeds as a bar.

    A panel for each data set and network, with the rank correlation of the two: -1 where a lower error always
    goes with a higher accuracy. Errors of rounding stand at the left, as exact.
    """
    from matplotlib.figure import Figure

    errors = [row.layer(list(row.records[0].layers)[-1]).relative for row in rows]
    check_rows(rows, errors, "no relative error of its last layer")
    between = [error for error in errors if error >= EXACT]
    left = min(between, default=1.0) / 6
    places = [error if error >= EXACT else left for error in errors]
    powers = range(
        math.ceil(math.log10(min(places, default=1)) + 0.3), math.floor(math.log10(max(places))) + 1
    )
    ticks = [*[left] * (len(between) < len(errors)), *(10.0**n for n in powers)]
    panels: dict[tuple[str, str], list[int]] = {}
    for i, row in enumerate(rows):
        net = str(row.records[0].config.get("model", "")).removeprefix("e2cnn-")
        panels.setdefault((row.experiment.split("/")[0], net), []).append(i)
    across = min(len(panels), 2)
    down = math.ceil(len(panels) / across)
    figure = Figure(figsize=(9 if across == 1 else 13, 4.6 * down), layout="constrained")
    cells = list(figure.subplots(down, across, squeeze=False).flat)
    for axes, ((dataset, net), chosen) in zip(cells, panels.items(), strict=False):
        some = [rows[i] for i in chosen]
        accuracy_axes(axes, some, places, "relative error of the last layer", partial(_text, left), ticks)
        title = ", ".join(part for part in (dataset, net) if part)
        if len(some) > 3:
            found = rank_correlation([errors[i] for i in chosen], [row.accuracy[0] for row in some])
            title += f": rank correlation {found:+.2f}".replace("-", "−")
        axes.set_title(title, loc="left")
    for axes in cells[len(panels) :]:
        axes.remove()
    for axes, ((_, net), chosen) in zip(figure.axes, panels.items(), strict=True):
        draw_rows(
            axes,
            [rows[i] for i in chosen],
            [places[i] for i in chosen],
            [look(0).color] * len(chosen),
            f"{net}-",
        )
    return figure


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's, equal values sharing the mean of their ranks; NaN where all values of one are equal.

    >>> rank_correlation([1, 2, 3], [30, 20, 10])
    -1.0
    """
    ranks = _ranks(x), _ranks(y)
    if any(len(set(values)) < 2 for values in ranks):
        return math.nan
    return statistics.correlation(*ranks)


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=lambda i: values[i])
    ranks = [0.0] * len(values)
    place = 0
    for _, equal in groupby(order, key=lambda i: values[i]):
        some = list(equal)
        for i in some:
            ranks[i] = place + (len(some) - 1) / 2
        place += len(some)
    return ranks


def _text(exact: float, error: float) -> str:
    return "exact" if math.isclose(error, exact) else power(round(math.log10(error)))
