"""The commands ``ien plot sizes``, ``rows`` and ``tradeoff``: pictures of records across experiments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import OnlyPreset
from .plot import Out, Results, app, classifier_rows, save

if TYPE_CHECKING:
    from ..report.records import Row

__all__ = ["app"]

Which = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME|DIR",
        help="Experiments, or quoted patterns: 'study/*'; or folders with records, or with run folders.",
        show_default="all",
    ),
]
RecordsOfNames = Annotated[
    Path, typer.Option("--results", metavar="DIR", help="Folder with the records of NAMEs.")
]


@app.command()
def tradeoff(
    results: Results = Path("results"), preset: OnlyPreset = None, out: Out = Path("plots/tradeoff")
) -> None:
    """Draw accuracy against the relative error of the last layer, for every row that has records.

    Example: ien plot tradeoff results/rot-tim --preset small
    """
    from ..report.plots.layers import plot_tradeoff

    save(plot_tradeoff(classifier_rows(results, preset)), out)


@app.command()
def sizes(
    which: Which = None,
    results: RecordsOfNames = Path("results"),
    preset: OnlyPreset = None,
    out: Out = Path("plots/sizes"),
) -> None:
    """Draw accuracy against the number of training images: a line for each recipe trained on several.

    Rows that differ only in their training images and seeds are one recipe.

    Example: ien plot sizes 'study/*' 'rot-mnist/*'
    """
    from ..report.sizes import plot_sizes

    save(plot_sizes(_chosen(which, results, preset)), out)


@app.command()
def rows(
    which: Which = None,
    results: RecordsOfNames = Path("results"),
    preset: OnlyPreset = None,
    out: Out = Path("plots/rows"),
) -> None:
    """Draw accuracy and the largest relative error of a layer: a line for each row, beside similar ones.

    Example: ien plot rows 'study/*' 'rot-mnist/*'

    Example: ien plot rows rot-mnist/cnn-aug 'rot-mnist/ien*' --preset small
    """
    from ..report.dots import plot_rows

    save(plot_rows(_chosen(which, results, preset)), out)


def _chosen(which: list[str] | None, results: Path, preset: str | None) -> list[Row]:
    """The rows of classifiers of these experiments and in these folders: trackers have no accuracy."""
    from ..report.records import collect, summarise

    given = which or [str(results)]
    if not which and not results.is_dir():
        raise FileNotFoundError(f"there is no folder {results} with records")
    records = {}
    for each in given:
        if Path(each).is_dir():
            found = collect(each)
        else:
            found = collect(results, each)
        for record in found:
            records[record.path.resolve()] = record
    rows = [row for row in summarise(records.values()) if preset in (None, row.preset)]
    if not rows:
        raise ValueError(f"no records of {', '.join(given)} are of preset {preset!r}")
    classifiers = [row for row in rows if not row.tracks]
    if not classifiers:
        raise ValueError(
            f"all records of {', '.join(given)} are of trackers: draw them with ien plot tracking {results}"
        )
    return classifiers
