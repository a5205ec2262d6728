"""Run experiments one after another: skip what is recorded, resume what was cut, record each as it ends."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from ..data import data_folder
from ..report import read
from ..training import (
    ALONE,
    MACHINE,
    Config,
    Diverged,
    Processes,
    Stopped,
    change,
    changed,
    differences,
    flat,
    kind_of,
    run,
)
from ..training.run_folder import read_config, read_data, read_result, write_json
from .catalogue import config as preset_config

__all__ = ["outcome", "plan", "resume", "run_all", "run_name"]

FIXED = {
    "seed": "give --seed or --seeds",
    "weights_of": "it is what the row is; average=true does the same to any other row",
}


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
    for field in (setting.partition("=")[0].strip() for setting in settings):
        if field in FIXED:
            raise ValueError(f"{field} cannot be set: {FIXED[field]}")
    configs = []
    for seed in seeds:
        for name in experiments:
            config = preset_config(name, preset)
            try:
                config = change(changed(config, machine or {}), settings)
                configs.append(changed(config, {"seed": seed, "processes": processes}))
            except ValueError as error:
                raise error if len(experiments) == 1 else ValueError(f"{name}: {error}") from None
    return configs


def changes(config: Config) -> dict[str, Any]:
    """The fields that differ from the preset, but for those of the machine."""
    different = differences(config, preset_config(config.experiment, config.preset))
    return {name: ours for name, (ours, _) in different.items() if name not in ("seed", *MACHINE)}


def run_name(config: Config, data: str | None = None) -> str:
    """Where a run lives below the folders of runs and of results: ``rot-mnist/ien-r4/small-seed1-beta0.3``.

    Runs on the embedded digits have names of their own: ``…/small-seed1-embedded``.
    """
    parts = [f"{config.preset}-seed{config.seed}"]
    parts += [
        f"{name}{value:g}" if isinstance(value, float) else f"{name}{value}"
        for name, value in changes(config).items()
    ]
    if config.machine.processes > 1:
        parts.append(f"processes{config.machine.processes}")
    if _embedded(data) and kind_of(config).can_embed:
        parts.append("embedded")
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

    Runs of the smoke preset only show that everything works, and leave no record in ``results``. A run that
    diverges does not keep the others from running.
    """
    console = console or Console()
    data = "embedded" if _embedded(data) else data
    todo = [(config, results / f"{run_name(config, data)}.json") for config in configs]
    for config, path in todo:  # what would stop the last run is told before the first
        if processes.from_first(partial(_recorded, path, config, data)) is None:
            _check_installed(config)
    records = []
    for number, (config, path) in enumerate(todo, start=1):
        folder = runs / run_name(config, data)
        record = processes.from_first(partial(_recorded, path, config, data))
        # one run, asked for by itself, is made where only its record is left: it is the model that is wanted
        if record is not None and (len(todo) > 1 or processes.from_first(partial(read_result, folder))):
            text = f"recorded in {path}, {outcome(record)} on {record['data']['source']}"
        else:
            try:
                weights = _weights(folder, config, runs, results, data, processes, console)
                record = _finish(folder, config, results, data, weights, processes, console)
                kept = f"recorded in {path}" if path.exists() else f"kept in {folder}, not recorded"
                text = f"{outcome(record)}, {kept}"
            except Stopped as stopped:
                where = "" if results == Path("results") else f" --results {results}"
                raise Stopped(f"{stopped}{where}") from None
            except Diverged as error:
                if len(todo) == 1:
                    raise
                text = f"{error}"
        _say(console, processes, f"{number}/{len(todo)} {run_name(config, data)}: {text}")
        records.append(record)
    if diverged := sum(record is None for record in records):
        raise Diverged(f"{diverged} of {len(todo)} runs diverged, as told above; the others are finished")
    return [record for record in records if record is not None]


def resume(
    folder: Path,
    results: Path,
    data: str | None = None,
    processes: Processes = ALONE,
    console: Console | None = None,
) -> dict[str, Any]:
    """Go on with the run in ``folder``, on the data it was begun on, and record it."""
    console, config = console or Console(), processes.from_first(partial(read_config, folder))
    finished = processes.from_first(partial(read_result, folder)) is not None
    if finished or data is None:
        data = processes.from_first(partial(read_data, folder))["folder"]
    if not finished:
        _check_resumable(folder, config, data, processes)
    record = _finish(folder, config, results, data, None, processes, console)
    state = "was finished before" if finished else "is finished"
    _say(console, processes, f"{folder} {state}: {outcome(record)}")
    return record


def outcome(record: Mapping[str, Any]) -> str:
    """What a run reached, in a few words; its record is empty in all processes but the first.

    >>> outcome({"accuracy": 0.9812})
    'accuracy 98.12%'
    """
    if not record.get("tracking"):
        return f"accuracy {record.get('accuracy', 0):.2%}"
    tests = {test: of for test, of in record["tracking"].items() if "success_curve" in of}
    scores = (f"{of['success']:.3f} / {of['precision']:.3f} on {test}" for test, of in tests.items())
    return f"success / precision {', '.join(scores)}"


def _weights(
    folder: Path,
    config: Config,
    runs: Path,
    results: Path,
    data: str | None,
    processes: Processes,
    console: Console,
) -> Path | None:
    """The run folder whose weights a row without training tests; a record of that row does not do."""
    if not config.weights_of or processes.from_first(partial(read_result, folder)) is not None:
        return None
    trained = preset_config(config.weights_of, config.preset)  # it may be tested under another group
    base = changed(
        config,
        {
            "experiment": config.weights_of,
            "weights_of": "",
            "average": False,
            "group": trained.objective.group,
            "measured": trained.objective.measured,
        },
    )
    weights = runs / run_name(base, data)
    _say(console, processes, f"{config.experiment} tests the weights in {weights}")
    _finish(weights, base, results, data, None, processes, console)
    return weights


def _finish(
    folder: Path,
    config: Config,
    results: Path,
    data: str | None,
    weights: Path | None,
    processes: Processes,
    console: Console,
) -> dict[str, Any]:
    """The record of the run in ``folder``, which is made or gone on with if need be, and put into results."""
    path = results / f"{run_name(config, data)}.json"
    for there in (path, folder / "result.json"):
        processes.from_first(partial(_recorded, there, config, data))
    record = run(folder, config, data, weights, changes(config), processes, console)
    if processes.first and config.preset != "smoke" and not path.exists():
        write_json(path, record)
    return record


def _recorded(path: Path, config: Config, data: str | None) -> dict[str, Any] | None:
    """The record in ``path`` if there is one; it must be of this configuration, on whatever machine."""
    if not path.exists():
        return None
    record = read(path)
    found = {**flat(type(config)("", "")), **record.config}  # fields that are newer than the record
    different = [
        f"{name} {found[name]!r} and now {value!r}"
        for name, value in flat(config).items()
        if name not in MACHINE and found[name] != value
    ]
    source = kind_of(config).source(config, data)
    if source is not None and record.source != source:
        different.append(f"data {record.source} and now {source}")
    if different:
        raise ValueError(
            f"{path} is the record of another configuration ({', '.join(different)}): move it away, or "
            f"choose another {'--out' if path.name == 'result.json' else '--results'}"
        )
    return json.loads(path.read_text())


def _check_installed(config: Config) -> None:
    if config.network.steerable and importlib.util.find_spec("e2cnn") is None:
        raise ModuleNotFoundError(f'{config.experiment} needs e2cnn: pip install "ien[steerable]"')


def _check_resumable(folder: Path, config: Config, data: str, processes: Processes) -> None:
    if config.weights_of:
        command = f"ien run {config.experiment} --preset {config.preset} --seed {config.seed}"
        raise ValueError(f"{folder} trains nothing: make it anew with {command}")
    if config.machine.processes != processes.count:
        raise ValueError(
            f"{folder} was begun by {config.machine.processes} processes and resumed by {processes.count}: "
            f"use torchrun --nproc-per-node {config.machine.processes} -m ien resume {folder}"
        )
    if not _embedded(data) and not data_folder(data).is_dir():
        raise FileNotFoundError(f"{data} with the data of {folder} is not there: give its new place, --data")


def _embedded(data: str | None) -> bool:
    return str(data_folder(data)) == "embedded"


def _say(console: Console, processes: Processes, text: str) -> None:
    if processes.first:
        console.print(text, soft_wrap=True, highlight=False, markup=False)
