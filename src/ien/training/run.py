"""One run from start to end: data, training, the test, and the record that tables are made from."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from ..data import data_folder
from ..measuring.weights import load_into
from ..tying.tied import count_parameters
from . import run_folder
from .card import write_run_card
from .config import Config, changed
from .distributed import ALONE, Processes
from .loop import Stopped, Trained, train
from .memory import memory_errors
from .network import create, warn_of_slow_precision
from .own_model import OWN, OwnNetwork
from .progress import ignore, shown
from .single_file import read_single
from .task import Description, kind_of

__all__ = ["load", "processor", "run"]

RECORDED_DATA = ("name", "source", "train", "test", "tested_on", "class_names")
"""What a record says of the data, as far as it is known."""


def load(path: Path | str, build: Callable[..., nn.Module] | nn.Module | None = None) -> nn.Module:
    """Load the trained network of a run folder or of one file: a plain module in eval mode.

    Nothing that is read is executed, nor any code that it names. A steerable baseline comes as the
    ordinary network that it was exported to. Averaging over a group at test time is not part of the
    network. To load other weights into a model of your own, use ``safetensors.torch.load_file`` and
    ``load_state_dict`` instead.

    Args:
        path: The run folder, such as ``runs/rot-mnist/ien-r4/small-seed1``, or a .safetensors file
            that ``ien export`` made of one.
        build: For a network of your own (``--model net.py:build``): the function that makes it, or
            such a network, which then gets the weights.

    Returns:
        The network on the CPU, with ``taps`` and ``feature_groups`` to measure it by.

    Raises:
        FileNotFoundError: It is not a run folder, or its run is not finished.
        ValueError: The configuration or the weights are damaged, or do not belong together; or the
            network is your own and ``build`` is missing.
    """
    place = Path(path)
    if place.name == "model.safetensors" and (place.parent / "config.json").is_file():
        place = place.parent  # the weights of a run: its folder says what they are
    if place.is_file() or place.suffix == ".safetensors":
        weights, config, measured_by = read_single(place)
        file, of, remedy = place, "its header", "export it again"
    else:
        config, weights = run_folder.read_config(place), run_folder.load_weights(place)
        measured_by = (run_folder.read_result(place) or {}).get("measured_by", {})
        file, of = place / "model.safetensors", "config.json"
        remedy = f"delete it and run ien resume {place}"
    if config is None:
        return _without_configuration(place, weights, build)

    if isinstance(config.network, OwnNetwork) and config.network.model == OWN:
        model = _own_network(config, build, measured_by)
    elif build is not None:
        raise ValueError(f"{place} trained {config.network.model}, a network of ien: leave build out")
    else:
        plain = changed(config, {"model": config.network.plain_model})
        with torch.device("meta"):  # without drawing weights that are replaced at once
            model = kind_of(config).network(plain)
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise ValueError(
            f"{file} does not fit the network of {of} ({str(error).splitlines()[0]}): {remedy}"
        ) from None
    return model.eval()


def _own_network(
    config: Config, build: Callable[..., nn.Module] | nn.Module | None, measured_by: dict[str, Any]
) -> nn.Module:
    """Return a network of the user's own, with the layers that it was measured by."""
    if build is None:
        model = kind_of(config).network(config)  # raises unless a command was given the code
    elif isinstance(build, nn.Module):
        model = build
    else:
        known = {"num_classes": config.data.classes, "in_channels": config.data.channels}
        model = create(build, **known)
    ours: Any = model
    ours.feature_groups = measured_by
    ours.taps = tuple(ours.feature_groups)
    return model


def _without_configuration(
    file: Path, weights: dict[str, Tensor], build: Callable[..., nn.Module] | nn.Module | None
) -> nn.Module:
    """Return a network of the user's own with the weights of a file that says nothing about it."""
    if build is None:
        raise ValueError(
            f"{file} holds weights and no configuration of a run: give the function that makes the network, "
            f"ien.load(path, build=…), or export a run folder"
        )
    model = build if isinstance(build, nn.Module) else build()
    load_into(model, weights)
    return model.eval()


def run(
    folder: Path,
    config: Config,
    data: str | None = None,
    weights: Path | None = None,
    changes: dict[str, Any] | None = None,
    processes: Processes = ALONE,
    console: Console | None = None,
    title: str = "",
) -> dict[str, Any]:
    """Train and test in ``folder``, or go on where it stopped.

    Args:
        folder: The run folder, which may exist.
        config: The configuration of the run.
        data: The data folder.
        weights: A finished run folder to test instead of training.
        changes: The fields that were set by hand, for the record.
        processes: This process among those that share each batch.
        console: Where progress is shown.
        title: What to call the run there; its experiment, preset and seed if empty.

    Returns:
        The record, as in result.json; an empty one in all processes but the first.
    """
    console = console or Console()
    finished = processes.from_first(lambda: run_folder.read_result(folder))
    if finished is not None:
        return finished
    commit = _commit()  # of the code that runs, whatever is edited meanwhile
    kind = kind_of(config)
    dataset = _load_in_turn(config, data, processes)
    description = kind.describe(config, dataset)
    described = _described(config, description, data)
    # two processes that train in one folder would spoil each other's files
    locked: Any = nullcontext()
    if processes.first:
        locked = run_folder.lock(folder)
    refused = _no_folder_if_refused(folder, processes)
    out_of_memory = memory_errors(partial(_memory_advice, folder, config))
    with refused, locked, _resumable(folder, config), out_of_memory:
        config = processes.from_first(lambda: run_folder.create(folder, config, described))
        title = title or f"{config.experiment} {config.preset} seed {config.seed}"
        moved_from = processes.from_first(lambda: run_folder.begun_on(folder))
        if processes.first:
            _compare_versions(folder, title, console)
            if moved_from is not None:
                now = config.machine.device
                console.print(f"{title}: begun on {moved_from}, and now on {now}, which rounds differently")
        if processes.first and weights is None:
            warn_of_slow_precision(config)
        # the number that the folder was begun with: another one rounds differently
        torch.set_num_threads(config.machine.threads or torch.get_num_threads())
        if weights is None:
            reporting: Any = nullcontext(ignore)
            if processes.first:
                reporting = shown(folder, title, console)
            with reporting as report:
                trained = train(folder, kind.prepare(config, dataset, processes), report)
        else:
            trained = _load_trained(weights, config, described)
        record: dict[str, Any] = {}
        if processes.first:
            console.print(f"{title}: testing on {description.test:,} {kind.test_unit}", highlight=False)
            say = partial(console.print, f"{title}:", soft_wrap=True, highlight=False, markup=False)
            network = trained.network
            record = {
                "format": run_folder.FORMAT,
                "config": config.to_json(),
                "changes": changes or {},
                "data": {name: described[name] for name in RECORDED_DATA if name in described},
                "versions": run_folder.versions(),
                "machine": _machine(config),
                **({} if moved_from is None else {"begun_on": moved_from}),
                "commit": commit,
                "seconds": round(trained.seconds, 1),
                "images_seen": trained.images_seen,
                **kind.test(folder, config, network, dataset, say),
                "trained_parameters": count_parameters(network),
                run_folder.DIGEST: run_folder.weights_digest(folder),
                "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            }
            run_folder.write_json(folder / "result.json", record)
            write_run_card(folder, config, record)
        processes.wait()  # only the first one tests
        return record


def processor() -> str:
    """Return the name of the CPU."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _described(config: Config, data: Description, folder: str | None) -> dict[str, Any]:
    """What a run folder says about its data."""
    place = data_folder(folder)
    where = str(place)
    if where != "embedded":
        where = str(place.absolute())  # ien resume may be called from elsewhere
    described: dict[str, Any] = {
        "folder": where,
        **data._asdict(),
        "tested_on": config.data.test_on,
    }
    if data.drawn_from is None:
        del described["drawn_from"]
    described["class_names"] = list(data.class_names)  # as JSON has them
    if not data.class_names:
        del described["class_names"]
    return described


def _load_trained(weights: Path, config: Config, described: dict[str, Any]) -> Trained:
    """The network of a finished run, which must have been trained on the same data."""
    if run_folder.read_data(weights)["digest"] != described["digest"]:
        raise ValueError(f"{weights} was trained on other data: give its --data, or choose another --out")
    record = run_folder.read_result(weights) or {}
    return Trained(load(weights).to(config.machine.device), 0.0, record.get("images_seen", 0))


def _load_in_turn(config: Config, folder: str | None, processes: Processes) -> Any:
    """Load the data: the first process may have to make the cache, which the others then find."""
    if not processes.first:
        processes.wait()
    dataset = kind_of(config).load(config, folder)
    if processes.first:
        processes.wait()
    return dataset


@contextmanager
def _no_folder_if_refused(folder: Path, processes: Processes) -> Iterator[None]:
    """Leave nothing behind if a run is refused before its first checkpoint, as for bad settings."""
    made = []  # the folders that this run makes, the innermost first
    for path in (folder, *folder.parents):
        if path.exists():
            break
        made.append(path)
    try:
        yield
    except (ValueError, KeyError, ModuleNotFoundError):
        if processes.first and made:
            found = {path.name for path in folder.glob("*")}
            if found <= {"config.json", ".lock"}:
                for name in found:
                    (folder / name).unlink()
                for path in made:
                    path.rmdir()
        raise


@contextmanager
def _resumable(folder: Path, config: Config) -> Iterator[None]:
    """Turn Ctrl-C between training steps into a stop: all epochs done are saved."""
    try:
        yield
    except KeyboardInterrupt:
        # nothing to resume: the row trains nothing, or has not begun
        if config.weights_of or not (folder / "config.json").exists():
            raise
        raise Stopped(folder) from None


def _memory_advice(folder: Path, config: Config) -> str:
    """Say what helps a run that has too little memory."""
    size = config.schedule.batch_size
    advice = (
        f"use a batch_size below {size}, as in --set batch_size={max(2, size // 2)}, "
        f"or gradient accumulation in a loop of your own"
    )
    if (folder / "last.pt").exists():
        advice += f"; {folder} keeps what was saved before"
    return advice


def _compare_versions(folder: Path, title: str, console: Console) -> None:
    begun, now = run_folder.read_versions(folder), run_folder.versions()
    if begun != now:
        console.print(f"{title}: begun with {begun}, and now {now}", highlight=False)


def _machine(config: Config) -> str:
    name = processor()
    if config.machine.device.startswith("cuda"):
        name = torch.cuda.get_device_name(torch.device(config.machine.device))
    return f"{name}, {config.machine.threads} threads, {platform.system()}"


def _commit() -> str | None:
    """Return the commit of this package's source, with "+changes" if files differ from it.

    None if it does not run from a checkout.
    """
    package = Path(__file__).parents[1]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip()

    try:
        # fails for a copy that is installed inside another checkout, and is not tracked by it
        git("ls-files", "--error-unmatch", "__init__.py")
        commit = git("rev-parse", "--short=10", "HEAD")
        if git("status", "--porcelain", "."):
            commit += "+changes"
        return commit
    except (OSError, subprocess.SubprocessError):
        return None
