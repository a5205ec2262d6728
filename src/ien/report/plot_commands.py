"""The commands ``ien plot``: from run folders to pictures, as PNG and as SVG."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .._errors import one_line_errors
from .._measured import Report
from .commands import Data, GroupName, Layers, Number, Runs, names_in

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .records import Row
    from .subjects import Subject

__all__ = ["app"]

app = typer.Typer(
    help="Draw what runs are like: feature maps, errors, angles, factors, training, costs; as PNG and SVG.",
    no_args_is_help=True,
)

Out = Annotated[Path, typer.Option(metavar="FILE", help="Where to draw; both .png and .svg are written.")]


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
        from .._groups import group as parse_group
        from .features import plot_features
        from .subjects import open_runs

        subjects = open_runs(runs, data, max(image + 1, 2))
        chosen = None if group is None else parse_group(group)
        _save(plot_features(subjects, names_in(layers), image, group=chosen), out)


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
        from .plots import plot_errors
        from .subjects import open_runs

        subjects = open_runs(runs, data, number)
        _save(plot_errors({subject.name: _measured(subject, group) for subject in subjects}), out)


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
        from .plots import plot_angles
        from .subjects import open_runs

        if 360 % step:
            raise ValueError(f"--step must divide 360, such as 5, 10 or 15; got {step}")
        subjects = open_runs(runs, data, number)
        reports = {s.name: _measured(s, f"rot{360 // step}", floors=False) for s in subjects}
        _save(plot_angles(reports, layer), out)


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
        from .plots import plot_factors
        from .subjects import open_runs

        if not 1.01 <= reach <= 100:
            raise ValueError(
                f"--reach must be 1.01 to 100, such as 2 for factors from 0.5 to 2; got {reach:g}"
            )
        factors = [f"{reach ** (k / steps):.4g}" for k in range(-steps, steps + 1) if k]
        subjects = open_runs(runs, data, number)
        reports = {s.name: _measured(s, f"scale{','.join(factors)}") for s in subjects}
        _save(plot_factors(reports, layer), out)


@app.command()
def training(
    runs: Runs,
    out: Out = Path("plots/training"),
) -> None:
    """Draw training curves of runs, finished or not: task loss, accuracy, and each layer's term.

    Example: ien plot training runs/rot-mnist/ien-r4*/small-seed1
    """
    with one_line_errors():
        from .plots import plot_training

        _save(plot_training(runs), out)


Results = Annotated[Path, typer.Argument(metavar="DIR", help="A folder with records, or with run folders.")]
Preset = Annotated[str | None, typer.Option(help="Only rows of this preset.")]


@app.command()
def costs(results: Results = Path("results"), preset: Preset = None, out: Out = Path("plots/costs")) -> None:
    """Draw accuracy against the cost of inference, for all rows that have records.

    Example: ien plot costs results/rot-mnist --preset small
    """
    with one_line_errors():
        from .plots import plot_costs

        _save(plot_costs(_rows(results, preset)), out)


@app.command()
def tradeoff(
    results: Results = Path("results"), preset: Preset = None, out: Out = Path("plots/tradeoff")
) -> None:
    """Draw accuracy against the relative error of the last layer, for all rows that have records.

    Example: ien plot tradeoff results/rot-tim --preset small
    """
    with one_line_errors():
        from .plots import plot_tradeoff

        _save(plot_tradeoff(_rows(results, preset)), out)


def _rows(results: Path, preset: str | None) -> list[Row]:
    from .records import collect, summarise

    if not results.is_dir():
        raise FileNotFoundError(f"there is no folder {results} with records")
    rows = [row for row in summarise(collect(results)) if preset in (None, row.preset)]
    if not rows:
        raise ValueError(f"no records of preset {preset!r} in {results}")
    return rows


def _measured(subject: Subject, group: str | None, floors: bool = True) -> Report:
    from .._measure import measure as measure_

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


def _save(figure: Figure, out: Path) -> None:
    from .figures import save_figure

    for path in save_figure(figure, out):
        typer.echo(f"{path} is written")
