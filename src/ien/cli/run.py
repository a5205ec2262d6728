"""The commands that train: run, resume, status and demo."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .completion import complete_experiments
from .errors import INTERRUPTED, fail
from .options import (
    AsJson,
    MovedData,
    OwnModel,
    Preset,
    Quiet,
    Settings,
    own_model,
    print_json,
    run_folder_of,
)

if TYPE_CHECKING:
    from ..training import Config

__all__ = ["demo", "resume", "resume_hint", "run", "status"]

MAX_SEEDS = 1000
"""How many seeds a range may have: more is a typing error."""

DEFAULT_HOURS = 24.0
CLUSTER = "On a cluster"
"""The panel of options that submit jobs."""
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the run folders.")]
Results = Annotated[
    Path, typer.Option("--results", metavar="DIR", help="Folder for the records of finished runs.")
]


def run(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME",
            autocompletion=complete_experiments,
            help="Experiments, or quoted patterns: 'rot-mnist/*'.",
        ),
    ],
    preset: Preset = "small",
    seeds: Annotated[
        str,
        typer.Option("--seed", "--seeds", help="Seed of weights, order and elements; several: 1-3 or 1,2,5."),
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
    out: Out = Path("runs"),
    results: Results = Path("results"),
    device: Annotated[str, typer.Option(help="cpu, cuda, mps or auto.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.", show_default="torch's")] = None,
    precision: Annotated[str, typer.Option(help="float32 or bf16.")] = "float32",
    compile: Annotated[
        bool, typer.Option("--compile", help="Compile the network's blocks with torch.compile.")
    ] = False,
    launcher: Annotated[
        str | None,
        typer.Option(
            metavar="slurm|local",
            rich_help_panel=CLUSTER,
            help="Submit a job for each run and return: to SLURM, or to processes of this machine.",
        ),
    ] = None,
    at_once: Annotated[
        int | None,
        typer.Option(min=1, rich_help_panel=CLUSTER, help="Jobs at a time.", show_default="all; local: 1"),
    ] = None,
    gpus: Annotated[int, typer.Option(min=0, rich_help_panel=CLUSTER, help="GPUs of each job.")] = 0,
    cpus: Annotated[int, typer.Option(min=1, rich_help_panel=CLUSTER, help="CPUs of each job.")] = 1,
    hours: Annotated[
        float,
        typer.Option(
            min=0.1, rich_help_panel=CLUSTER, help="After so many, a job stops, queues again and resumes."
        ),
    ] = DEFAULT_HOURS,
    partition: Annotated[
        str | None,
        typer.Option(rich_help_panel=CLUSTER, help="SLURM's partition.", show_default="its default"),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Train and test experiments one by one. Finished runs are skipped, stopped ones resumed.

    Each run gets a folder below --out and leaves its record below --results, where ien table
    finds it. Runs of the preset smoke leave no record.

    Example: ien run rot-mnist/ien-r4 --preset small --seed 1

    Example: ien run rot-mnist/cnn-aug 'rot-mnist/ien*' --seeds 1-3 --data ~/data

    Example: torchrun --nproc-per-node 2 -m ien run rot-mnist/ien-r4

    Example: ien run 'rot-tim/*' --seeds 1-3 --launcher slurm --gpus 1 --cpus 8
    """
    with resume_hint():
        from ..experiments import find
        from ..experiments.queue import plan, run_all
        from ..training import joined

        if launcher is None:
            _refuse_without_launcher(at_once, gpus, cpus, hours, partition)
        # --set wins over these, which are the same for all rows
        machine = {"device": device, "threads": threads, "precision": precision, "compile": compile}
        if launcher is not None:
            from ..experiments.launch import Resources, submit

            resources = Resources(launcher, at_once, gpus, cpus, hours, partition)  # type: ignore[arg-type]
            configs = plan(find(*names), preset, _read_seeds(seeds), settings or [], 1, machine)
            # whatever folder the job starts in
            options = _job_options(preset, settings, data, out.resolve(), results.resolve(), machine)
            submit(configs, options, out, results, data, resources, typer.echo)
            return
        with joined() as processes:  # one of several under torchrun, else alone
            chosen = find(*names)
            configs = plan(chosen, preset, _read_seeds(seeds), settings or [], processes.count, machine)
            run_all(configs, out, results, data, processes)


def _refuse_without_launcher(
    at_once: int | None, gpus: int, cpus: int, hours: float, partition: str | None
) -> None:
    """Raise a ValueError if an option of jobs is given where none is submitted."""
    usual = {
        "--at-once": at_once is None,
        "--gpus": gpus == 0,
        "--cpus": cpus == 1,
        "--hours": hours == DEFAULT_HOURS,
        "--partition": partition is None,
    }
    for option, unchanged in usual.items():
        if not unchanged:
            raise ValueError(f"{option} is for jobs: add --launcher slurm or local, or leave it out")


def _job_options(
    preset: str,
    settings: list[str] | None,
    data: str | None,
    out: Path,
    results: Path,
    machine: dict[str, Any],
) -> Callable[[Config], list[str]]:
    """Return the function from a run to the options of its own ``ien run``."""
    from ..data import data_folder

    shared = ["--preset", preset, "--out", str(out), "--results", str(results)]
    where = data_folder(data)
    shared += ["--data", "embedded" if str(where) == "embedded" else str(where.resolve())]
    for setting in settings or []:
        shared += ["--set", setting]
    shared += ["--device", machine["device"], "--precision", machine["precision"]]
    if machine["threads"] is not None:
        shared += ["--threads", str(machine["threads"])]
    if machine["compile"]:
        shared.append("--compile")
    return lambda config: ["--seed", str(config.seed), *shared]


def status(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the run folders.")] = Path(
        "runs"
    ),
    as_json: AsJson = False,
) -> None:
    """Show how far each run is, and which machine is on it.

    Example: ien status

    Example: ien status --out /shared/runs --json
    """
    from .._text import columns
    from ..experiments.launch import status as read_status

    found = read_status(out)
    if as_json:
        print_json([each._asdict() for each in found])
        return
    if not found:
        typer.echo(f"there are no runs in {out}")
        return
    typer.echo("\n".join(columns([("run", "state", "progress", "where"), *found])))


def resume(
    folder: Annotated[
        Path,
        typer.Argument(metavar="RUN", callback=run_folder_of, help="A run folder of ien run or ien train."),
    ],
    data: MovedData = None,
    results: Results = Path("results"),
    model: OwnModel = None,
    device: Annotated[
        str, typer.Option(help="Go on elsewhere: cpu, cuda or mps.", show_default="as before")
    ] = "auto",
    quiet: Quiet = False,
) -> None:
    """Resume a run that was stopped or killed. It ends as if it had never stopped, bit for bit.

    Example: ien resume runs/rot-mnist/ien-r4/small-seed1

    Example: ien resume runs/rot-mnist/ien-r4/small-seed1 --device cpu
    """
    with resume_hint(), own_model(model, [folder]):
        from ..experiments.queue import resume as resume_run
        from ..training import joined

        with joined() as processes:
            resume_run(folder, results, data, processes, device=device)


def demo(
    epochs: Annotated[
        int | None,
        typer.Option(min=1, help="Passes over the training digits.", show_default="5, or 8 with --paper"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights, order and elements.")] = 1,
    out: Out = Path("runs/demo"),
    paper: Annotated[
        bool, typer.Option("--paper", help="Train rows of the paper instead, on rotated digits.")
    ] = False,
    settings: Annotated[list[str] | None, typer.Option("--set", hidden=True)] = None,
    quiet: Quiet = False,
) -> None:
    """Train small CNNs on upright digits, test them on rotated ones, and write a page to explore.

    An ordinary CNN, one that sees rotated copies, one made equivariant, and one with slack: two
    minutes on two cores. Uses 5,000 MNIST digits that come with the package; nothing is downloaded.

    Example: ien demo

    Example: ien demo --paper --epochs 2
    """
    with resume_hint():
        from ..experiments import demo as demos

        if paper:
            demos.paper_demo(epochs or demos.PAPER_EPOCHS, seed, out, settings or [])
        else:
            demos.demo(epochs or demos.EPOCHS, seed, out, settings or [])


@contextmanager
def resume_hint() -> Iterator[None]:
    """Say how to go on after Ctrl-C; a run that diverges or lacks memory ends with exit code 1."""
    from ..training import Diverged, OutOfMemory, Stopped
    from ..training.memory import memory_errors

    try:
        # in a run, where the same error says what helps, it has become one of these before
        with memory_errors(lambda: "close other programs, or use a machine with more"):
            yield
    except Stopped as stopped:
        fail(f"stopped; resume with: ien resume {stopped}", INTERRUPTED)
    except KeyboardInterrupt:
        # no run folder to resume yet; or a demo, which the same command takes up again
        fail("stopped; the same command resumes from the last checkpoint", INTERRUPTED)
    except (Diverged, OutOfMemory) as error:
        fail(f"error: {error}", 1)


def _read_seeds(text: str) -> list[int]:
    """Read ``1``, ``1-3`` or ``1,2,5``, each seed once.

    >>> _read_seeds("5,1-3,2")
    [5, 1, 2, 3]
    """
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None:
            raise ValueError(f"write seeds as 1, 1-3 or 1,2,5; got {text!r}")
        first = int(match[1])
        last = int(match[2] or first)
        if last < first:
            raise ValueError(f"write seeds as 1, 1-3 or 1,2,5; got {text!r}")
        if last - first >= MAX_SEEDS:
            raise ValueError(f"--seed takes at most {MAX_SEEDS} seeds at a time; got {text!r}")
        for seed in range(first, last + 1):
            if seed not in seeds:
                seeds.append(seed)
    return seeds
