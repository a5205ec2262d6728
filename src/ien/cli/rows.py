"""The commands that show the rows of tables and what was measured: list, show and table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .completion import complete_experiments, complete_tables
from .options import (
    AsJson,
    OnlyPreset,
    Preset,
    Settings,
    folder_of,
    print_json,
    run_folder_of,
)

__all__ = ["list_", "show", "table"]


def list_(as_json: AsJson = False) -> None:
    """List the experiments: every row of the paper's tables, and those of our own study.

    The last column is what the paper reports: accuracy, or success / precision on Rot-OTB.

    Example: ien list --json
    """
    from ..experiments import names

    rows = [_listed(name) for name in names()]
    if as_json:
        print_json(rows)
        return
    width = max(len(row["name"]) for row in rows)
    model_width = max(len(row["model"]) for row in rows)
    typer.echo(f"{'experiment':{width}} {'model':{model_width}} {'beta':>5}  {'paper':>11}")
    for row in rows:
        beta = "–"
        if row["beta"] is not None:
            beta = f"{row['beta']:g}"
        printed = row["paper"] or "–"
        typer.echo(f"{row['name']:{width}} {row['model']:{model_width}} {beta:>5}  {printed:>11}")
    typer.echo("\nNext: ien show NAME tells more, ien run NAME trains and tests it.")


def _listed(name: str) -> dict[str, Any]:
    """What ``ien list`` says of an experiment, as the paper trained it, if it did."""
    from ..experiments import config, paper

    table_name, _ = name.split("/")
    settings = config(name, "paper")
    beta = None
    if settings.objective.augment:  # without views there is no loss
        beta = settings.objective.beta
    printed = paper(table_name).get(name)
    return {
        "name": name,
        "model": settings.network.model,
        "feature_groups": settings.network.feature_groups,
        "beta": beta,
        "paper": None if printed is None else str(printed),
    }


def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|RUN",
            autocompletion=complete_experiments,
            help="An experiment, or a run folder.",
        ),
    ],
    preset: Preset = "small",
    settings: Settings = None,
) -> None:
    """Show an experiment's settings, how they differ from the paper, its cost; or a run's progress.

    Example: ien show rot-mnist/ien-r4 --preset paper --set beta=0.3

    Example: ien show runs/rot-mnist/ien-r4/small-seed1
    """
    from ..experiments import names
    from ..experiments.describe import describe, describe_run
    from ..experiments.queue import plan

    folder = run_folder_of(Path(name)) or Path(name)
    is_run = (folder / "config.json").exists()
    # any other folder is taken for a run too, so the error says what it lacks; but not if it has
    # the name of an experiment
    if is_run or (folder.exists() and name not in names()):
        if settings:
            raise ValueError(f"--set changes an experiment; the settings of the run {folder} are fixed")
        typer.echo(describe_run(folder))
        return
    (config,) = plan([name], preset, [1], settings or [])  # one name and one seed: one configuration
    typer.echo(describe(config))


def table(
    name: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            autocompletion=complete_tables,
            help="The table: rot-mnist, rot-tim, het, r2-tim, scale, tracking, study, symmetry, size or "
            "nuclei.",
        ),
    ],
    results: Annotated[
        Path,
        typer.Option(metavar="DIR", callback=folder_of, help="Folder with records, or with run folders."),
    ] = Path("results"),
    preset: OnlyPreset = None,
    write: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write all tables as a Markdown page instead of printing one."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print what was measured, beside the paper's numbers.

    Instead of a table, a record or a folder of records may be named.

    Example: ien table rot-mnist --preset small

    Example: ien table rot-mnist --write docs/results.md

    Example: ien table results/rot-mnist/ien-r4
    """
    from ..experiments.printed import TABLES
    from ..experiments.tables import print_table, table_rows, write_page

    if name not in TABLES and Path(name).exists():
        results = folder_of(Path(name)) or results
        name = _table_of(results)
    if as_json:
        if write is not None:
            raise ValueError("--json prints one table, and --write writes all: drop one of them")
        print_json({"table": name, "rows": table_rows(name, results, preset)})
        return
    if write is None:
        print_table(name, results, preset)
        return
    if preset is not None:
        raise ValueError("drop --preset: --write includes all presets")
    write_page(write, name, results)
    typer.echo(f"wrote {write}")


def _table_of(folder: Path) -> str:
    """The table that shows the first record in a folder."""
    from ..experiments.printed import table_with
    from ..report import collect

    return table_with(collect(folder)[0].experiment)
