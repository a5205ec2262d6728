"""The commands ``ien plot sizes`` and ``ien plot rows``: from records of any experiments to pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .errors import one_line_errors

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..report.records import Row

__all__ = ["Out", "Preset", "rows", "save", "sizes"]

Out = Annotated[Path, typer.Option(metavar="FILE", help="Where to draw; both .png and .svg are written.")]
Preset = Annotated[str | None, typer.Option(help="Only rows of this preset.")]
Which = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME|DIR",
        help="Experiments, or quoted patterns: 'study/*'; or folders with records, or with run folders.",
        show_default="all",
    ),
]
Results = Annotated[Path, typer.Option("--results", metavar="DIR", help="Where the records of NAMEs are.")]


def sizes(
    which: Which = None,
    results: Results = Path("results"),
    preset: Preset = None,
    out: Out = Path("plots/sizes"),
) -> None:
    """Draw accuracy against the number of training images: a line for each recipe trained on several.

    Rows that differ in their training images and seeds only are one recipe.

    Example: ien plot sizes 'study/*' 'rot-mnist/*'
    """
    with one_line_errors():
        from ..report.sizes import plot_sizes

        save(plot_sizes(_chosen(which, results, preset)), out)


def rows(
    which: Which = None,
    results: Results = Path("results"),
    preset: Preset = None,
    out: Out = Path("plots/rows"),
) -> None:
    """Draw accuracy and the largest relative error of a layer: a line for each row, beside those like it.

    Example: ien plot rows 'study/*' 'rot-mnist/*'

    Example: ien plot rows rot-mnist/cnn-aug 'rot-mnist/ien*' --preset small
    """
    with one_line_errors():
        from ..report.dots import plot_rows

        save(plot_rows(_chosen(which, results, preset)), out)


def save(figure: Figure, out: Path) -> None:
    """Write a picture, and say so."""
    from ..report.plots.style import save_figure

    for path in save_figure(figure, out):
        typer.echo(f"{path} is written")


def _chosen(which: list[str] | None, results: Path, preset: str | None) -> list[Row]:
    """The rows of classifiers of these experiments and in these folders: trackers have no accuracy."""
    from ..report.records import collect, summarise

    given = which or [str(results)]
    if not which and not results.is_dir():
        raise FileNotFoundError(f"there is no folder {results} with records")
    found = [collect(each) if Path(each).is_dir() else collect(results, each) for each in given]
    records = {record.path.resolve(): record for some in found for record in some}
    rows = [row for row in summarise(records.values()) if preset in (None, row.preset)]
    if not rows:
        raise ValueError(f"no records of {', '.join(given)} are of preset {preset!r}")
    if all(row.tracks for row in rows):
        raise ValueError(
            f"all records of {', '.join(given)} are of trackers: draw them with ien plot tracking {results}"
        )
    return [row for row in rows if not row.tracks]
