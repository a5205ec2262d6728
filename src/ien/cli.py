"""The command line: list, show, run, resume, table, data, demo."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from .data.commands import Folder
from .data.commands import app as data_app

app = typer.Typer(
    help="Make an ordinary convolutional network equivariant by training it that way.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
app.add_typer(data_app, name="data")

Preset = Annotated[
    str, typer.Option(help="Size: paper (for a GPU), small (minutes on two cores) or smoke (seconds).")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Change a field, as in --set beta=0.3; repeat for more (ien show).",
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
    """List the experiments: the rows of the paper's tables, and rows beside them."""
    from .experiments import config, names, paper

    typer.echo(f"{'experiment':28} {'model':11} {'groups':6} {'beta':>6}  {'paper':>6}")
    for name in names():
        settings, figures = config(name, "paper"), paper(name.split("/")[0]).get(name)
        beta = f"{settings.beta:g}" if settings.augment and settings.model == "cnn6" else "–"
        accuracy = f"{figures.accuracy} %" if figures else "–"
        typer.echo(f"{name:28} {settings.model:11} {settings.feature_groups:6} {beta:>6}  {accuracy:>6}")
    typer.echo(
        "\nien show NAME tells more, ien run NAME --preset small runs one, ien table rot-mnist compares."
    )


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME|RUN", help="An experiment, or a run folder.")],
    preset: Preset = "small",
    settings: Settings = None,
) -> None:
    """Print a configuration, what it changes against the paper, and what it costs."""
    with _one_line_errors():
        from .experiments import config
        from .experiments.show import describe
        from .training import change
        from .training.folder import read_config

        if (Path(name) / "config.json").exists():
            chosen = read_config(Path(name))
        else:
            chosen = change(config(name, preset), settings or [])
        typer.echo(describe(chosen))


@app.command()
def run(
    pattern: Annotated[
        str, typer.Argument(metavar="NAME", help="An experiment, or a quoted pattern: 'rot-mnist/*'.")
    ],
    preset: Preset = "small",
    seed: Annotated[int, typer.Option(min=0, help="Of weights, order and elements.")] = 1,
    seeds: Annotated[str | None, typer.Option(help="Several: 1-3 or 1,2,5. Instead of --seed.")] = None,
    settings: Settings = None,
    data: Folder = None,
    out: Runs = Path("runs"),
    results: Results = Path("results"),
    device: Annotated[str, typer.Option(help="cpu, cuda, mps or auto.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads. [default: torch's]")] = None,
    precision: Annotated[str, typer.Option(help="float32 or bf16.")] = "float32",
    compile: Annotated[bool, typer.Option("--compile", help="torch.compile the blocks.")] = False,
) -> None:
    """Train and test experiments one after another; skip what is recorded, resume what was cut.

    Each run has a folder below --out and leaves its record below --results, from which ien table is made.
    Several processes share each batch under torchrun --nproc-per-node 2 -m ien run …
    """
    with _one_line_errors():
        from .experiments import find
        from .experiments.queue import plan, run_all
        from .training import joined

        given = settings or []
        machine = {"device": device, "threads": threads, "precision": precision, "compile": compile}
        with joined() as processes:
            configs = plan(
                find(pattern), preset, _seeds(seeds) if seeds else [seed], given, processes.count, machine
            )
            run_all(configs, out, results, data, processes)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, as ien run names it.")],
    data: Folder = None,
    results: Results = Path("results"),
) -> None:
    """Go on with a run that was stopped or killed: the end is the same, bit for bit, as without the stop."""
    with _one_line_errors():
        from .experiments.queue import resume
        from .training import joined

        with joined() as processes:
            resume(folder, results, data, processes)


@app.command()
def table(
    dataset: Annotated[str, typer.Argument(help="The table: rot-mnist.")],
    results: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder with records, or with run folders.")
    ] = Path("results"),
    preset: Annotated[str | None, typer.Option(help="Only rows of this preset.")] = None,
    write: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the Markdown page of all tables, docs/results.md."),
    ] = None,
) -> None:
    """Print what was measured beside the paper's figures."""
    with _one_line_errors():
        from .experiments.tables import print_table, write_page

        if write is None:
            print_table(dataset, results, preset)
        else:
            write_page(write, results)


@app.command()
def demo(
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the 4,000 training digits.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, order and elements.")] = 1,
    out: Runs = Path("runs/demo"),
) -> None:
    """Train a CNN on rotated digits without the equivariance loss, with it, and with fewer channels; compare.

    Uses 5,000 MNIST digits that come with the installation; nothing is downloaded.
    """
    with _one_line_errors():
        from .experiments.demo import demo

        demo(epochs, seed, out)


def _seeds(text: str) -> list[int]:
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not (first.strip().isdecimal() and (last or first).strip().isdecimal()) or int(
            last or first
        ) < int(first):
            raise ValueError(f"seeds are written 1-3 or 1,2,5; got {text!r}")
        seeds += range(int(first), int(last or first) + 1)
    return list(dict.fromkeys(seeds))


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """What a user can mend is one line and exit code 2; IEN_TRACEBACK=1 shows where it came from."""
    from .training import Diverged, Stopped

    try:
        yield
    except Stopped as stopped:
        typer.echo(f"stopped; go on with: ien resume {stopped}", err=True)
        raise typer.Exit(130) from None
    except Diverged as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    except (OSError, ValueError, KeyError, ModuleNotFoundError) as error:
        if os.environ.get("IEN_TRACEBACK"):
            raise
        typer.echo(f"error: {error.args[0] if isinstance(error, KeyError) else error}", err=True)
        raise typer.Exit(2) from None
