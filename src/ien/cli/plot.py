"""The commands ``ien plot``: from run folders to pictures, as PNG and as SVG."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..measuring.report import Report
from .errors import one_line_errors
from .look import Data, GroupName, Layers, Number, Runs, names_in
from .plot_rows import Out, Preset, rows, save, sizes

if TYPE_CHECKING:
    from ..report.opened import Subject
    from ..report.records import Row

__all__ = ["app"]

app = typer.Typer(
    help="Draw runs: features, errors, angles, factors, training, costs, rows, trackers; as PNG and SVG.",
    no_args_is_help=True,
)


@app.command()
def features(
    runs: Runs,
    layers: Layers = None,
    image: Annotated[int, typer.Option(min=0, help="Which image of the test set.")] = 0,
    group: GroupName = None,
    data: Data = None,
    out: Out = Path("plots/features"),
) -> None:
    """Draw an image in all orientations with the feature maps of each, as computed and aligned back.

    An equivariant layer shows equal pictures when aligned.

    Example: ien plot features runs/rot-mnist/cnn-aug/small-seed1 runs/rot-mnist/ien-r4/small-seed1

    Example: ien plot features RUN --layers conv1,conv3,conv4 --image 7 --group rot8
    """
    with one_line_errors():
        from ..groups.families import group as parse_group
        from ..report.opened import open_runs
        from ..report.plots.features import plot_features

        subjects = open_runs(runs, data, max(image + 1, 2))
        chosen = None if group is None else parse_group(group)
        save(plot_features(subjects, names_in(layers), image, group=chosen), out)


@app.command()
def errors(
    runs: Runs,
    group: GroupName = None,
    number: Number = 500,
    data: Data = None,
    out: Out = Path("plots/errors"),
) -> None:
    """Draw the relative error of each layer of runs, on a log scale, with floors and intervals.

    Example: ien plot errors runs/rot-mnist/*/small-seed1 --group rot8
    """
    with one_line_errors():
        from ..report.opened import open_runs
        from ..report.plots.layers import plot_errors

        subjects = open_runs(runs, data, number)
        save(plot_errors({subject.name: _measured(subject, group) for subject in subjects}), out)


@app.command()
def angles(
    runs: Runs,
    layer: Annotated[str | None, typer.Option(help="Which layer.", show_default="the last")] = None,
    step: Annotated[int, typer.Option(min=1, max=90, help="Degrees between two angles.")] = 15,
    number: Number = 500,
    data: Data = None,
    out: Out = Path("plots/angles"),
) -> None:
    """Draw relative error and accuracy against the angle, around the circle.

    Example: ien plot angles runs/rot-mnist/cnn-aug/small-seed1 runs/rot-mnist/ien-r4/small-seed1 --step 5
    """
    with one_line_errors():
        from ..report.opened import open_runs
        from ..report.plots.layers import plot_angles

        if 360 % step:
            raise ValueError(f"--step must divide 360, such as 5, 10 or 15; got {step}")
        subjects = open_runs(runs, data, number)
        reports = {s.name: _measured(s, f"rot{360 // step}", floors=False) for s in subjects}
        save(plot_angles(reports, layer), out)


@app.command()
def factors(
    runs: Runs,
    layer: Annotated[str | None, typer.Option(help="Which layer.", show_default="the last")] = None,
    reach: Annotated[float, typer.Option(help="From a factor of 1/REACH to REACH.")] = 2.0,
    steps: Annotated[int, typer.Option(min=1, max=50, help="Factors on each side of 1.")] = 6,
    number: Number = 500,
    data: Data = None,
    out: Out = Path("plots/factors"),
) -> None:
    """Draw relative error, with its floor, and accuracy against the scale factor.

    Example: ien plot factors RUN RUN --layer conv3 --reach 3
    """
    with one_line_errors():
        from ..report.opened import open_runs
        from ..report.plots.layers import plot_factors

        if not 1.01 <= reach <= 100:
            raise ValueError(
                f"--reach must be 1.01 to 100, such as 2 for factors from 0.5 to 2; got {reach:g}"
            )
        factors = [f"{reach ** (k / steps):.4g}" for k in range(-steps, steps + 1) if k]
        subjects = open_runs(runs, data, number)
        reports = {s.name: _measured(s, f"scale{','.join(factors)}") for s in subjects}
        save(plot_factors(reports, layer), out)


@app.command()
def training(
    runs: Runs,
    out: Out = Path("plots/training"),
) -> None:
    """Draw training curves of runs, finished or not: task loss, accuracy, and each layer's term.

    Example: ien plot training runs/rot-mnist/ien-r4*/small-seed1
    """
    with one_line_errors():
        from ..report.plots.layers import plot_training

        save(plot_training(runs), out)


Results = Annotated[Path, typer.Argument(metavar="DIR", help="A folder with records, or with run folders.")]


@app.command()
def costs(results: Results = Path("results"), preset: Preset = None, out: Out = Path("plots/costs")) -> None:
    """Draw accuracy against the cost of inference, for all rows that have records.

    Example: ien plot costs results/rot-mnist --preset small
    """
    with one_line_errors():
        from ..report.plots.layers import plot_costs

        save(plot_costs(_rows(results, preset)), out)


@app.command()
def tradeoff(
    results: Results = Path("results"), preset: Preset = None, out: Out = Path("plots/tradeoff")
) -> None:
    """Draw accuracy against the relative error of the last layer, for all rows that have records.

    Example: ien plot tradeoff results/rot-tim --preset small
    """
    with one_line_errors():
        from ..report.plots.layers import plot_tradeoff

        save(plot_tradeoff(_rows(results, preset)), out)


for command in (sizes, rows):
    app.command()(command)


Trackers = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="RUN|DIR", help="Run folders, or folders with records, of trackers.", show_default="results"
    ),
]


@app.command()
def tracking(trackers: Trackers = None, preset: Preset = None, out: Out = Path("plots/tracking")) -> None:
    """Draw success and precision curves of trackers on OTB and Rot-OTB, or on what else they were tested.

    Runs that differ in their seed only are averaged.

    Example: ien plot tracking results --preset small

    Example: ien plot tracking runs/tracking/*/small-seed1
    """
    with one_line_errors():
        from ..tracking.report.plots import plot_curves, scores_by_test

        save(plot_curves(scores_by_test(_tracker_rows(trackers, preset))), out)


@app.command()
def turning(trackers: Trackers = None, preset: Preset = None, out: Out = Path("plots/turning")) -> None:
    """Draw the overlap of trackers against the angle of the target: where does each of them lose it?

    Against its orientation, and against how far it has turned since the first frame.

    Example: ien plot turning results --preset small

    Example: ien plot turning runs/tracking/*/small-seed1
    """
    with one_line_errors():
        from ..tracking.report.plots import plot_turning, scores_by_test

        save(plot_turning(scores_by_test(_tracker_rows(trackers, preset))), out)


def _rows(results: Path, preset: str | None) -> list[Row]:
    """Those of classifiers: trackers have no accuracy."""
    rows = _all_rows([results], preset)
    classifiers = [row for row in rows if not row.tracks]
    if not classifiers:
        raise ValueError(
            f"all records in {results} are of trackers: draw them with ien plot tracking {results}"
        )
    return classifiers


def _tracker_rows(folders: list[Path] | None, preset: str | None) -> list[Row]:
    folders = folders or [Path("results")]
    trackers = [row for row in _all_rows(folders, preset) if row.tracks]
    if not trackers:
        raise ValueError(
            f"no records of trackers in {', '.join(map(str, folders))}: make them with  "
            f"ien run 'tracking/*' --preset small"
        )
    return trackers


def _all_rows(folders: list[Path], preset: str | None) -> list[Row]:
    from ..report.records import collect, summarise

    if missing := [folder for folder in folders if not folder.is_dir()]:
        raise FileNotFoundError(f"there is no folder {missing[0]} with records")
    records = {record.path.resolve(): record for folder in folders for record in collect(folder)}
    rows = [row for row in summarise(records.values()) if preset in (None, row.preset)]
    if not rows:
        raise ValueError(f"no records of preset {preset!r} in {', '.join(map(str, folders))}")
    return rows


def _measured(subject: Subject, group: str | None, floors: bool = True) -> Report:
    from ..measuring.measure import measure as measure_

    return measure_(
        subject.model,
        subject.images,
        group or subject.group,
        subject.layers,
        subject.feature_groups,
        labels=subject.labels,
        floors=floors,
        progress=True,
    )
