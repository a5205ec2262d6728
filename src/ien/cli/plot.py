"""The commands ``ien plot``: pictures of runs and records, as PNG and as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .commands import Commands
from .options import (
    GroupName,
    Layers,
    MovedData,
    Number,
    OnlyPreset,
    Quiet,
    Runs,
    folder_of,
    layer_names,
    run_folders_of,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..measuring.report import Report
    from ..report.opened import OpenedRun
    from ..report.rows import Row

__all__ = ["app"]

app = Commands("Draw runs and records, as PNG and SVG.")

Out = Annotated[
    Path, typer.Option("--out", metavar="FILE", help="Where to draw; both .png and .svg are written.")
]
Layer = Annotated[str | None, typer.Option("--layer", help="Which layer.", show_default="the last")]
Results = Annotated[
    Path,
    typer.Argument(metavar="DIR", callback=folder_of, help="A folder with records, or with run folders."),
]
Trackers = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="RUN|DIR",
        callback=run_folders_of,
        help="Run folders of trackers, or folders with records.",
        show_default="results",
    ),
]

MAX_REACH = 100
"""The largest scale factor that ``ien plot factors`` goes to."""


@app.command()
def features(
    runs: Runs,
    layers: Layers = None,
    image: Annotated[int, typer.Option(min=0, help="Which image of the test set.")] = 0,
    group: GroupName = None,
    data: MovedData = None,
    out: Out = Path("plots/features"),
    quiet: Quiet = False,
) -> None:
    """Draw the feature maps of one image in all orientations, as computed and rotated back.

    Rotated back, the maps of an equivariant layer all look the same.

    Example: ien plot features runs/rot-mnist/*/small-seed1

    Example: ien plot features RUN --layers conv1,conv3 --image 7 --group rot8
    """
    from ..groups.families import group as parse_group
    from ..report.opened import open_runs
    from ..report.plots.features import plot_features

    opened = open_runs(runs, data, count=max(image + 1, 2))  # no more images than needed
    chosen = None
    if group is not None:
        chosen = parse_group(group)
    _save(plot_features(opened, layer_names(layers), image, group=chosen), out)


@app.command()
def errors(
    runs: Runs,
    group: GroupName = None,
    number: Number = 500,
    data: MovedData = None,
    out: Out = Path("plots/errors"),
    quiet: Quiet = False,
) -> None:
    """Draw the relative error of each layer on a log scale, with floors and intervals.

    Example: ien plot errors runs/rot-mnist/*/small-seed1 --group rot8
    """
    from ..report.plots.errors import plot_errors

    _save(plot_errors(_measure_runs(runs, group, data, number)), out)


@app.command()
def angles(
    runs: Runs,
    layer: Layer = None,
    step: Annotated[int, typer.Option(min=1, max=90, help="Degrees between two angles.")] = 15,
    number: Number = 500,
    data: MovedData = None,
    out: Out = Path("plots/angles"),
    quiet: Quiet = False,
) -> None:
    """Draw relative error and accuracy against the angle of rotation, around the circle.

    Example: ien plot angles runs/rot-mnist/*/small-seed1 --step 5
    """
    from ..report.plots.angles import plot_angles

    if 360 % step:
        raise ValueError(f"--step must divide 360, such as 5, 10 or 15; got {step}")
    group = f"rot{360 // step}"
    # without floors, which this plot does not show
    _save(plot_angles(_measure_runs(runs, group, data, number, floors=False), layer), out)


@app.command()
def factors(
    runs: Runs,
    layer: Layer = None,
    reach: Annotated[float, typer.Option(help="Draw factors from 1/REACH to REACH.")] = 2.0,
    steps: Annotated[int, typer.Option(min=1, max=50, help="Factors on each side of 1.")] = 6,
    number: Number = 500,
    data: MovedData = None,
    out: Out = Path("plots/factors"),
    quiet: Quiet = False,
) -> None:
    """Draw relative error, with its floor, and accuracy against the scale factor.

    Example: ien plot factors RUN RUN --layer conv3 --reach 3
    """
    from ..report.plots.angles import plot_factors

    if not 1.01 <= reach <= MAX_REACH:
        raise ValueError(
            f"--reach must be 1.01 to {MAX_REACH}, such as 2 for factors from 0.5 to 2; got {reach:g}"
        )
    # equal steps of the logarithm, without the factor 1
    exponents = [k / steps for k in range(-steps, steps + 1) if k != 0]
    group = "scale" + ",".join(f"{reach**exponent:.4g}" for exponent in exponents)
    _save(plot_factors(_measure_runs(runs, group, data, number), layer), out)


@app.command()
def training(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", callback=run_folders_of, help="Run folders, finished or not."),
    ],
    out: Out = Path("plots/training"),
    quiet: Quiet = False,
) -> None:
    """Draw training curves: task loss, accuracy and each layer's term.

    Runs with a target also show it, and the multipliers that led there.

    Example: ien plot training runs/rot-mnist/ien-r4*/small-seed1
    """
    from ..report.plots.training import plot_training

    _save(plot_training(runs), out)


@app.command()
def costs(
    results: Results = Path("results"),
    preset: OnlyPreset = None,
    out: Out = Path("plots/costs"),
    quiet: Quiet = False,
) -> None:
    """Draw accuracy against the cost of inference, for every row that has records.

    Example: ien plot costs results/rot-mnist --preset small
    """
    from ..report.plots.costs import plot_costs

    _save(plot_costs(_classifier_rows(results, preset)), out)


@app.command()
def tracking(
    trackers: Trackers = None,
    preset: OnlyPreset = None,
    out: Out = Path("plots/tracking"),
    quiet: Quiet = False,
) -> None:
    """Draw success and precision curves of trackers, one plot for each data set of the test.

    Runs that differ only in their seed are averaged.

    Example: ien plot tracking results --preset small

    Example: ien plot tracking runs/tracking/*/small-seed1
    """
    from ..tracking.report.plots import plot_curves, scores_by_test

    _save(plot_curves(scores_by_test(_tracker_rows(trackers, preset))), out)


@app.command()
def turning(
    trackers: Trackers = None,
    preset: OnlyPreset = None,
    out: Out = Path("plots/turning"),
    quiet: Quiet = False,
) -> None:
    """Draw the overlap of trackers against the target's angle: where does each of them lose it?

    One plot is against its orientation, one against how far it has rotated since the first frame.

    Example: ien plot turning results --preset small

    Example: ien plot turning runs/tracking/*/small-seed1
    """
    from ..tracking.report.plots import plot_turning, scores_by_test

    _save(plot_turning(scores_by_test(_tracker_rows(trackers, preset))), out)


def _save(figure: Figure, out: Path) -> None:
    """Write a picture as PNG and SVG, and say so."""
    from ..report.plots.style import save_figure

    for path in save_figure(figure, out):
        typer.echo(f"wrote {path}")


def _measure_runs(
    runs: Sequence[Path], group: str | None, data: str | None, number: int, floors: bool = True
) -> dict[str, Report]:
    """Measure each run under this group, or under its own."""
    from ..report.opened import open_runs

    reports = {}
    for run in open_runs(runs, data, number):
        reports[run.name] = _measure_run(run, group, floors)
    return reports


def _measure_run(run: OpenedRun, group: str | None, floors: bool) -> Report:
    from ..measuring.measure import measure

    return measure(
        run.model,
        run.images,
        group or run.group,
        run.layers,
        run.feature_groups,
        labels=run.labels,
        floors=floors,
        progress=True,
    )


def _classifier_rows(results: Path, preset: str | None) -> list[Row]:
    """Return the rows that have accuracies."""
    classifiers = [row for row in _rows([results], preset) if row.has_accuracy]
    if not classifiers:
        raise ValueError(
            f"all records in {results} are of trackers: draw them with ien plot tracking {results}"
        )
    return classifiers


def _tracker_rows(folders: Sequence[Path] | None, preset: str | None) -> list[Row]:
    from ..tracking.report.records import trackings

    folders = folders or [Path("results")]
    trackers = [row for row in _rows(folders, preset) if trackings(row)]
    if not trackers:
        raise ValueError(
            f"no records of trackers in {', '.join(map(str, folders))}: make some with "
            f"ien run 'tracking/*' --preset small"
        )
    return trackers


def _rows(folders: Sequence[Path], preset: str | None) -> list[Row]:
    """Return the rows of all records in these folders, of one preset or of all."""
    from ..report.records import collect
    from ..report.rows import summarise

    records = {}
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"there is no folder {folder} with records")
        for record in collect(folder):
            records[record.path.resolve()] = record  # a record in two of the folders counts once
    rows = [row for row in summarise(records.values()) if preset in (None, row.preset)]
    if not rows:
        raise ValueError(f"no records of preset {preset!r} in {', '.join(map(str, folders))}")
    return rows
