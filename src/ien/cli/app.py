"""The command line: list, show, run, resume, table, measure, doctor, plot, report, track, data, demo."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from . import look as looking
from . import track as tracking
from .data import app as data_app
from .errors import fail, one_line_errors
from .plot import app as plot_app

app = typer.Typer(
    help="""Make an ordinary convolutional network equivariant by training it that way.

    First: ien demo, which needs no data and takes minutes.

    Then: ien list, ien show rot-mnist/ien-r4, ien run rot-mnist/ien-r4, ien table rot-mnist.

    For any torch model: ien measure net.py:build --images photos/ --group rot8, ien doctor net.py:build.

    To follow a target: ien track --demo, ien track VIDEO --run RUN --box 40,25,60,80.""",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
app.add_typer(data_app, name="data")

Preset = Annotated[
    str, typer.Option(help="Size: paper (for a GPU), small (minutes on two cores), demo or smoke (seconds).")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Change a field, as in --set beta=0.3; repeat for more. ien show lists the fields.",
    ),
]
Runs = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the run folders are made.")]
Results = Annotated[
    Path, typer.Option("--results", metavar="DIR", help="Where the records of finished runs go.")
]


@app.callback()
def main() -> None:
    pass


@app.command("list")
def list_() -> None:
    """List the experiments: the rows of the paper's tables, rows beside them, and those of the study.

    The last column is what the paper prints: the accuracy, or success / precision on Rot-OTB.
    """
    from ..experiments import config, names, paper

    width = max(map(len, names()))
    typer.echo(f"{'experiment':{width}} {'model':14} {'feature groups':14} {'beta':>5}  {'paper':>11}")
    for name in names():
        settings, figures = config(name, "paper"), paper(name.split("/")[0]).get(name)
        beta = f"{settings.beta:g}" if settings.augment else "–"
        printed = str(figures) if figures else "–"
        sizes = settings.feature_groups
        typer.echo(f"{name:{width}} {settings.model:14} {sizes:14} {beta:>5}  {printed:>11}")
    typer.echo("\nien show NAME tells more, ien run NAME trains and tests, ien table TABLE compares.")


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME|RUN", help="An experiment, or a run folder.")],
    preset: Preset = "small",
    settings: Settings = None,
) -> None:
    """Print a configuration, what it changes against the paper, and what it costs; of a run, how far it is.

    Example: ien show rot-mnist/ien-r4 --preset paper --set beta=0.3

    Example: ien show runs/rot-mnist/ien-r4/small-seed1
    """
    with _one_line_errors():
        from ..experiments import names
        from ..experiments.describe import describe, describe_run
        from ..experiments.queue import plan

        run = Path(name)
        if (run / "config.json").exists() or (run.exists() and name not in names()):
            if settings:
                raise ValueError(f"--set changes an experiment, and {run} is a run that has its settings")
            typer.echo(describe_run(run))
        else:
            (config,) = plan([name], preset, [1], settings or [])
            typer.echo(describe(config))


@app.command()
def run(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME", help="Experiments, or quoted patterns: 'rot-mnist/*'.")
    ],
    preset: Preset = "small",
    seeds: Annotated[
        str, typer.Option("--seed", "--seeds", help="Of weights, order and elements; several: 1-3 or 1,2,5.")
    ] = "1",
    settings: Settings = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="The data folder, or embedded: the 5,000 digits that come with the installation.",
            show_default="$IEN_DATA, else ./data",
        ),
    ] = None,
    out: Runs = Path("runs"),
    results: Results = Path("results"),
    device: Annotated[str, typer.Option(help="cpu, cuda, mps or auto.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.", show_default="torch's")] = None,
    precision: Annotated[str, typer.Option(help="float32 or bf16.")] = "float32",
    compile: Annotated[bool, typer.Option("--compile", help="torch.compile the blocks.")] = False,
) -> None:
    """Train and test experiments one after another; skip what is recorded, resume what was cut.

    Each run has a folder below --out and leaves its record below --results,
    from which ien table is made. Runs of the preset smoke leave no record.

    Example: ien run rot-mnist/ien-r4 --preset small --seed 1

    Example: ien run rot-mnist/cnn-aug 'rot-mnist/ien*' --seeds 1-3 --data ~/data

    Several processes share each batch: torchrun --nproc-per-node 2 -m ien run rot-mnist/ien-r4
    """
    with _one_line_errors():
        from ..experiments import find
        from ..experiments.queue import plan, run_all
        from ..training import joined

        machine = {"device": device, "threads": threads, "precision": precision, "compile": compile}
        with joined() as processes:
            configs = plan(find(*names), preset, _seeds(seeds), settings or [], processes.count, machine)
            run_all(configs, out, results, data, processes)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, as ien run names it.")],
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Where the data are now, if they were moved.",
            show_default="where they were when the run began",
        ),
    ] = None,
    results: Results = Path("results"),
) -> None:
    """Go on with a run that was stopped or killed: the end is the same, bit for bit, as without the stop.

    Example: ien resume runs/rot-mnist/ien-r4/small-seed1
    """
    with _one_line_errors():
        from ..experiments.queue import resume
        from ..training import joined

        with joined() as processes:
            resume(folder, results, data, processes)


@app.command()
def table(
    dataset: Annotated[
        str,
        typer.Argument(
            metavar="TABLE", help="The table: rot-mnist, rot-tim, het, r2-tim, scale, tracking or study."
        ),
    ],
    results: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder with records, or with run folders.")
    ] = Path("results"),
    preset: Annotated[str | None, typer.Option(help="Only rows of this preset.")] = None,
    write: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the Markdown page of all tables instead of printing one."),
    ] = None,
) -> None:
    """Print what was measured beside the paper's figures.

    Example: ien table rot-mnist --preset small

    Example: ien table rot-mnist --write docs/results.md
    """
    with _one_line_errors():
        from ..experiments.tables import print_table, write_page

        if write is None:
            print_table(dataset, results, preset)
        elif preset is not None:
            raise ValueError("the page that --write writes holds all presets: leave --preset away")
        else:
            write_page(write, dataset, results)
            typer.echo(f"{write} is written")


for command in (looking.measure, looking.doctor, looking.report):
    app.command()(command)
app.add_typer(plot_app, name="plot")


@app.command()
def track(
    source: tracking.SourcePath = None,
    run: tracking.Run = None,
    box: tracking.Box = None,
    select: tracking.Select = False,
    out: tracking.Out = None,
    csv: tracking.Csv = None,
    fps: tracking.Fps = None,
    start: tracking.Start = 0,
    templates: tracking.Templates = None,
    demo: tracking.Demo = False,
) -> None:
    """Follow a target through a video: writes a video that shows its box, and a table.

    A sequence folder of OTB has true boxes: the first is where the target is, and the track is scored.

    Example: ien track --demo

    Example: ien track clip.mp4 --run runs/tracking/ien-siamfc/small-seed1 --box 40,25,60,80

    Example: ien track data/otb/Crossing --run runs/tracking/ien-siamfc/small-seed1 --out crossing.mp4
    """
    with _one_line_errors():
        from ..tracking.demo import how_to_train, track_demo, tracker_of

        if demo:
            if source or box or select or csv or fps or start:
                raise ValueError(
                    "--demo makes a clip of its own: only --run, --templates and --out go with it"
                )
            return track_demo(out or Path("runs/track-demo"), run, templates)
        if source is None:
            raise ValueError("name a video, a folder of images or a sequence of OTB; or take --demo")
        if run is None:
            raise ValueError(f"tracking needs a trained tracker, --run RUN: {how_to_train()}")
        tracking.follow(tracker_of(run, templates), source, box, select, out, csv, fps, start)


@app.command()
def demo(
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the 4,000 training digits.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, order and elements.")] = 1,
    out: Runs = Path("runs/demo"),
) -> None:
    """Train a CNN on rotated digits without the equivariance loss, with it, and with fewer channels; compare.

    Uses 5,000 MNIST digits that come with the installation; nothing is downloaded.

    Example: ien demo --epochs 2
    """
    with _one_line_errors():
        from ..experiments.demo import demo

        demo(epochs, seed, out)


def _seeds(text: str) -> list[int]:
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise ValueError(f"seeds are written 1, 1-3 or 1,2,5; got {text!r}")
        seeds += range(first, last + 1)
    return list(dict.fromkeys(seeds))


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """As for all commands; and a run that was stopped or diverged says how to go on."""
    from ..training import Diverged, Stopped

    try:
        with one_line_errors():
            yield
    except Stopped as stopped:
        fail(f"stopped; go on with: ien resume {stopped}", 130)
    except KeyboardInterrupt:
        fail("stopped; the same command goes on from the last checkpoint", 130)
    except Diverged as error:
        fail(f"error: {error}", 1)
