"""Run experiments one after another: skip what is recorded, resume what was cut, record the rest.

What happens inside one run is in :mod:`ien.training.run`; here are the names of runs, the order in
which they go, and the records below ``results``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from .._text import printable
from ..data import data_folder
from ..report import read
from ..training import (
    ALONE,
    MACHINE,
    Config,
    Diverged,
    OutOfMemory,
    Processes,
    Stopped,
    change,
    changed,
    differences,
    flat,
    kind_of,
    run,
)
from ..training.config import SHORT_NAMES
from ..training.run_folder import read_config, read_data, read_result, write_json
from .catalogue import config as preset_config
from .catalogue import names

__all__ = ["is_recorded", "plan", "resume", "run_all", "run_name"]

Record = dict[str, Any]
"""The content of result.json; empty in all processes but the first."""
LONG_NAMES = {short: long for long, short in SHORT_NAMES.items()}
"""Field → what people write for it, which is also its word in the name of a run."""
UNSETTABLE_FIELDS = {
    "seed": "give --seed or --seeds",
    "weights_of": "it is what the row is; average=true does the same to any other row",
}
"""Fields that --set does not take → what to do instead."""


def plan(
    experiments: Sequence[str],
    preset: str,
    seeds: Sequence[int],
    settings: Sequence[str] = (),
    processes: int = 1,
    machine: Mapping[str, Any] | None = None,
) -> list[Config]:
    """Return the configurations of rows × seeds: all rows with the first seed, then with the next.

    Args:
        experiments: Names of experiments.
        preset: The size of the runs.
        seeds: One run of every experiment for each of them.
        settings: ``field=value`` texts, which win over ``machine``.
        processes: How many processes share each batch.
        machine: Fields of the machine, such as ``device`` and ``threads``.
    """
    # a seed would be overwritten below without a word; a row without weights_of is another row
    for setting in settings:
        name = setting.partition("=")[0].strip()
        if name in UNSETTABLE_FIELDS:
            raise ValueError(f"{name} cannot be set: {UNSETTABLE_FIELDS[name]}")
    configs = []
    for seed in seeds:
        for experiment in experiments:
            config = preset_config(experiment, preset)
            try:
                # the machine first, so that --set device=… wins over --device
                config = change(changed(config, machine or {}), settings)
                configs.append(changed(config, {"seed": seed, "processes": processes}))
            except ValueError as error:
                if len(experiments) == 1:
                    raise
                # say which of them: a setting may suit one network and not the next
                raise ValueError(f"{experiment}: {error}") from None
    return configs


def run_name(config: Config, data: str | None = None) -> str:
    """Name a run, below the folder of runs and that of results.

    Whatever was changed is part of it: ``rot-mnist/ien-r4/small-seed1-beta0.3``. Runs on the
    embedded digits have names of their own: ``…/small-seed1-embedded``.
    """
    parts = [f"{config.preset}-seed{config.seed}"]
    for name, value in _changes(config).items():
        text = str(value)
        if isinstance(value, float):
            text = f"{value:g}"
        parts.append(f"{LONG_NAMES.get(name, name)}{text}")
    if config.machine.processes > 1:
        parts.append(f"processes{config.machine.processes}")
    if _is_embedded(data) and kind_of(config).can_embed:
        parts.append("embedded")
    # a text may have a slash, and this part of the name is a single folder
    leaf = "-".join(parts).replace("/", "_")
    return f"{config.experiment}/{leaf}"


def is_recorded(config: Config, results: Path, data: str | None = None) -> bool:
    """Whether a run has a record, which must be of this configuration.

    Args:
        config: The run.
        results: Where the records are.
        data: The data folder.
    """
    return _read_record(results / f"{run_name(config, data)}.json", config, data) is not None


def run_all(
    configs: Sequence[Config],
    runs: Path,
    results: Path,
    data: str | None = None,
    processes: Processes = ALONE,
    console: Console | None = None,
    titles: Sequence[str] = (),
) -> list[Record]:
    """Run each configuration, and record it.

    Runs of the preset smoke only show that everything works: they leave no record. A run that
    diverges, or has too little memory, does not keep the others from running.

    Args:
        configs: What to run, in this order.
        runs: Where the run folders are made.
        results: Where the records go.
        data: The data folder.
        processes: This process among those that share each batch.
        console: Where to say what happens.
        titles: What to call each run meanwhile, instead of its whole name.

    Returns:
        The records, in the order of ``configs``.

    Raises:
        Stopped: By Ctrl-C or a polite kill.
        OutOfMemory: A single run has too little memory.
        Diverged: After all others have run, if some of the runs diverged or had too little memory.
    """
    if _is_embedded(data):
        data = "embedded"
    queue = _Queue(results, data, processes, console or Console(), runs)
    for config in configs:  # what would stop the last run is said before the first
        queue.recorded(config)
    records = []
    failed = 0
    for number, config in enumerate(configs, start=1):
        try:
            title = titles[number - 1] if titles else ""
            record, text = queue.run(config, alone=len(configs) == 1, title=title)
            records.append(record)
        except Stopped as stopped:
            # the message becomes the command that resumes the run
            where = ""
            if results != Path("results"):
                where = f" --results {results}"
            raise Stopped(f"{stopped}{where}") from None
        except (Diverged, OutOfMemory) as error:
            if len(configs) == 1:
                raise
            # other runs may well succeed: a night on the machine should not end with the first
            failed += 1
            text = str(error)
        queue.say(f"{number}/{len(configs)} {title or run_name(config, data)}: {text}")
    if failed:
        raise Diverged(
            f"{failed} of {len(configs)} runs diverged or had too little memory, see above; the others are "
            f"finished"
        )
    return records


def resume(
    folder: Path,
    results: Path,
    data: str | None = None,
    processes: Processes = ALONE,
    console: Console | None = None,
    device: str = "auto",
) -> Record:
    """Go on with the run in ``folder``, and record it.

    Args:
        folder: The run folder.
        results: Where the record goes.
        data: Where the data are now, if they were moved since the run began.
        processes: This process among those that share each batch.
        console: Where to say what happens.
        device: Where to go on; auto: where it ran before.
    """
    config = processes.from_first(partial(read_config, folder))
    if device != "auto":
        config = changed(config, {"device": device})
    finished = processes.from_first(partial(read_result, folder)) is not None
    # the name of a finished run, and so its record, says which data it was made with
    if finished or data is None:
        data = processes.from_first(partial(read_data, folder))["folder"]
    if not finished:
        _check_resumable(folder, config, data, processes)
    queue = _Queue(results, data, processes, console or Console())
    if config.experiment in names():
        record = queue.finish(folder, config)
    else:  # of ien train: its record stays in its folder
        record = run(folder, config, data, None, None, processes, console)
    state = "was finished before" if finished else "is finished"
    queue.say(f"{folder} {state}: {kind_of(config).outcome(record)}")
    return record


@dataclass(frozen=True)
class _Queue:
    """Where runs and their records are, and who computes them."""

    results: Path
    data: str | None
    processes: Processes
    console: Console
    runs: Path = field(default_factory=Path)

    def run(self, config: Config, alone: bool, title: str = "") -> tuple[Record, str]:
        """Return the record of a configuration, which is run if need be, and what happened.

        A title takes the place of the run's name, and what happened is then what was reached.
        """
        folder, path = self.runs / run_name(config, self.data), self.path(config)
        kind = kind_of(config)
        record = self.recorded(config)
        if title:
            if record is None or not self.has_result(folder):
                record = self.finish(folder, config, self.weights(folder, config), title)
            return record, kind.outcome(record)
        # one run asked for by itself is made again if only its record is left: its model is wanted
        if record is not None and (not alone or self.has_result(folder)):
            return record, f"{kind.outcome(record)} on {record['data']['source']}\n  recorded in {path}"
        record = self.finish(folder, config, self.weights(folder, config))
        kept = f"kept in {folder}, not recorded"
        if path.exists():
            kept = f"recorded in {path}"
        # the path on a line of its own, which fits a terminal
        return record, f"{kind.outcome(record)}\n  {kept}"

    def weights(self, folder: Path, config: Config) -> Path | None:
        """Return the run folder whose weights a row that trains nothing tests; finish it first."""
        if not config.weights_of or self.has_result(folder):
            return None
        # the row may be measured under another group than the one its weights were trained with
        trained = preset_config(config.weights_of, config.preset).objective
        base = changed(
            config,
            {
                "experiment": config.weights_of,
                "weights_of": "",
                "average": False,
                "group": trained.group,
                "measured": trained.measured,
            },
        )
        weights = self.runs / run_name(base, self.data)
        self.say(f"{config.experiment} tests the weights in {weights}")
        self.finish(weights, base)
        return weights

    def finish(self, folder: Path, config: Config, weights: Path | None = None, title: str = "") -> Record:
        """Run what is missing in ``folder``, and put its record into the results."""
        path = self.path(config)
        # raises if either belongs to another configuration: better now than after hours of training
        for there in (path, folder / "result.json"):
            self.processes.from_first(partial(_read_record, there, config, self.data))
        changes = _changes(config)
        record = run(folder, config, self.data, weights, changes, self.processes, self.console, title)
        if self.processes.first and config.preset != "smoke" and not path.exists():
            write_json(path, record)
        return record

    def path(self, config: Config) -> Path:
        """Where the record of a run goes."""
        return self.results / f"{run_name(config, self.data)}.json"

    def recorded(self, config: Config) -> Record | None:
        """Return the record of a run if there is one."""
        return self.processes.from_first(partial(_read_record, self.path(config), config, self.data))

    def has_result(self, folder: Path) -> bool:
        """Whether the run in a folder is finished."""
        return self.processes.from_first(partial(read_result, folder)) is not None

    def say(self, text: str) -> None:
        """Print a line, in the first process."""
        if self.processes.first:
            self.console.print(printable(text), soft_wrap=True, highlight=False, markup=False)


def _changes(config: Config) -> dict[str, Any]:
    """Return the fields that differ from the preset, except those of the machine."""
    found = {}
    for name, (ours, _) in differences(config, preset_config(config.experiment, config.preset)).items():
        if name not in ("seed", *MACHINE):
            found[name] = ours
    return found


def _read_record(path: Path, config: Config, data: str | None) -> Record | None:
    """Return the record in ``path``, which must be of this configuration; None if there is none."""
    if not path.exists():
        return None
    record = read(path)
    found = flat(type(config)("", "")) | dict(record.config)  # a record may be older than some fields
    different = []
    for name, value in flat(config).items():
        if name not in MACHINE and found[name] != value:
            different.append(f"{name} {found[name]!r}, now {value!r}")
    # None: cannot be known without reading the data, so it is not compared
    source = kind_of(config).source(config, data)
    if source is not None and record.source != source:
        different.append(f"data {record.source}, now {source}")
    if different:
        option = "--out" if path.name == "result.json" else "--results"
        raise ValueError(
            f"{path} is the record of another configuration ({', '.join(different)}): move it away, or "
            f"choose another {option}"
        )
    content: Record = json.loads(path.read_text())
    return content


def _check_resumable(folder: Path, config: Config, data: str, processes: Processes) -> None:
    count = config.machine.processes
    if config.weights_of:
        command = f"ien run {config.experiment} --preset {config.preset} --seed {config.seed}"
        raise ValueError(f"{folder} trains nothing: make it again with {command}")
    if count != processes.count:
        raise ValueError(
            f"{folder} was begun by {count} processes and resumed by {processes.count}: "
            f"use torchrun --nproc-per-node {count} -m ien resume {folder}"
        )
    if not _is_embedded(data) and not data_folder(data).is_dir():
        raise FileNotFoundError(f"{data} with the data of {folder} is gone: give its new place, --data")


def _is_embedded(data: str | None) -> bool:
    """Whether the data are the digits that come with the installation."""
    return str(data_folder(data)) == "embedded"
