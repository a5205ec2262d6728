"""Run experiments one after another: skip what is recorded, resume what was cut, record each as it ends."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from ..training import ALONE, Config, Processes, change, differences, run
from ..training.folder import read_config, read_data, write_json
from . import config as preset_config

__all__ = ["plan", "resume", "run_all", "run_name"]


def plan(
    experiments: Sequence[str],
    preset: str,
    seeds: Sequence[int],
    settings: Sequence[str] = (),
    processes: int = 1,
    machine: Mapping[str, Any] | None = None,
) -> list[Config]:
    """The configurations of rows × seeds, one seed of every row after the other.

    ``settings`` are ``field=value`` texts and win over ``machine``, which holds device, threads and the like.
    """
    return [
        replace(
            change(replace(preset_config(name, preset), **(machine or {})), settings),
            seed=seed,
            processes=processes,
        )
        for seed in seeds
        for name in experiments
    ]


def changes(config: Config) -> dict[str, Any]:
    """The fields that differ from the preset, but for those of the machine."""
    machine = {"seed", "device", "threads", "processes"}
    different = differences(config, preset_config(config.experiment, config.preset))
    return {name: ours for name, (ours, _) in different.items() if name not in machine}


def run_name(config: Config) -> str:
    """Where a run lives below the folders of runs and results: ``rot-mnist/ien-r4/small-seed1-beta0.3``."""
    parts = [f"{config.preset}-seed{config.seed}"]
    parts += [
        f"{name}{value:g}" if isinstance(value, float) else f"{name}{value}"
        for name, value in changes(config).items()
    ]
    if config.processes > 1:
        parts.append(f"processes{config.processes}")
    return f"{config.experiment}/{'-'.join(parts).replace('/', '_')}"


def run_all(
    configs: Sequence[Config],
    runs: Path,
    results: Path,
    data: str | None = None,
    processes: Processes = ALONE,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Run each configuration in its folder below ``runs`` and put its record below ``results``.

    Runs of the smoke preset only show that everything works, and leave no record in ``results``.
    """
    console = console or Console()
    records = []
    for number, config in enumerate(configs, start=1):
        place = f"{number}/{len(configs)} {run_name(config)}"
        path = results / f"{run_name(config)}.json"
        if path.exists():
            records.append(json.loads(path.read_text()))
            _say(console, processes, f"{place}: recorded in {path}")
            continue
        weights = None
        if config.weights_of:
            base = replace(config, experiment=config.weights_of, weights_of="", average=False)
            weights = runs / run_name(base)
            if not (weights / "result.json").exists():
                run_all([base], runs, results, data, processes, console)
        record = run(runs / run_name(config), config, data, weights, changes(config), processes, console)
        _record(record, config, results, processes)
        _say(console, processes, f"{place}: accuracy {record.get('accuracy', 0):.2%}")
        records.append(record)
    return records


def resume(
    folder: Path,
    results: Path,
    data: str | None = None,
    processes: Processes = ALONE,
    console: Console | None = None,
) -> dict[str, Any]:
    """Go on with the run in ``folder``, on the data it was begun on, and record it."""
    config = read_config(folder)
    if config.weights_of:
        raise ValueError(f"{folder} trains nothing: run it again with ien run {config.experiment}")
    if config.processes != processes.count:
        raise ValueError(
            f"{folder} was begun by {config.processes} processes and resumed by {processes.count}: "
            f"use torchrun --nproc-per-node {config.processes} -m ien resume {folder}"
        )
    data = read_data(folder)["folder"] if data is None else data
    record = run(folder, config, data, None, changes(config), processes, console)
    _record(record, config, results, processes)
    _say(console or Console(), processes, f"{folder}: accuracy {record.get('accuracy', 0):.2%}")
    return record


def _record(record: dict[str, Any], config: Config, results: Path, processes: Processes) -> None:
    if processes.first and config.preset != "smoke":
        write_json(results / f"{run_name(config)}.json", record)


def _say(console: Console, processes: Processes, text: str) -> None:
    if processes.first:
        console.print(text, soft_wrap=True, highlight=False)
