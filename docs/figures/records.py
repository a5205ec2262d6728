"""What the scripts beside it share: rows of the recorded runs, and a picture next to the script."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ien.report import Row, collect, summarise
from ien.report.plots.style import styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "results"


def rows(*experiments: str, preset: str = "small") -> dict[str, Row]:
    """Return the rows of experiments by label, such as ``study/n500-cnn-aug (rotate=true)``."""
    found = {}
    for row in summarise(collect(RESULTS, *experiments)):
        if row.preset == preset:
            table = row.experiment.rpartition("/")[0]
            found[f"{table}/{row.label}"] = row
    return found


def save(figure: Figure, name: str) -> None:
    """Write a picture next to the scripts; the same figure gives the same bytes."""
    with styled():
        figure.savefig(HERE / name, dpi=200, metadata={"Software": None})
    print(f"docs/figures/{name} is written")


def error_rates(row: Row) -> list[float]:
    """Return the error rate of each seed, in percent."""
    return [100 - 100 * record.accuracy for record in row.records]


def accuracy_axis(axes: Axes, side: str) -> None:
    """Label an axis of error rates by accuracies: equal steps are equal factors of the error.

    From 80 to 90 % is as far as from 98 to 99 %: either way half of the errors go.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    if side == "x":
        axes.set_xscale("log")
        axes.xaxis.set_inverted(True)
    else:
        axes.set_yscale("log")
        axes.yaxis.set_inverted(True)
    axis = axes.xaxis if side == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=9))
    axis.set_major_formatter(FuncFormatter(lambda error, _: f"{100 - error:g}"))
    axis.set_minor_locator(NullLocator())
