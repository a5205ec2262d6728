"""One run from start to end: data, training, the test, and the record that the tables are made from."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from datetime import datetime, timezone
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from ..data import SETTINGS, Dataset, data_folder, to_float
from ..data import load as load_data
from ..tracking.data.sets import Clips, load_clips
from ..tracking.data.sets import digest as digest_of_clips
from ..tracking.training.evaluate import evaluate_tracker, search_crops
from ..tracking.training.task import sequences, untrained
from . import run_folder as run_folder
from .config import Config
from .distributed import ALONE, Processes
from .evaluate import cost, evaluate, inference_speed
from .loop import Stopped, train
from .network import channels_last, exported, images, network_of
from .progress import shown

__all__ = ["clips_of", "dataset_of", "load", "processor", "run"]


def load(folder: Path | str) -> nn.Module:
    """The trained network of a run folder, a plain module in eval mode; nothing in the folder is executed.

    A steerable baseline comes as the ordinary network that it was exported to. Averaging over a group at
    test time is not part of the network.
    """
    folder = Path(folder)
    config, weights = run_folder.read_config(folder), run_folder.load_weights(folder)
    with torch.device("meta"):  # without drawing weights that are replaced at once
        model = network_of(replace(config, model=config.plain_model))
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise ValueError(
            f"{folder / 'model.safetensors'} does not fit the network of config.json "
            f"({str(error).splitlines()[0]}): delete it and run ien resume {folder}"
        ) from None
    return model.eval()


def dataset_of(config: Config, folder: str | None = None) -> Dataset:
    """The images of a run, made with the settings of its configuration; a tracker has clips."""
    settings = {name: getattr(config, name) for name in SETTINGS.get(config.dataset, ())}
    return load_data(config.dataset, folder, _data_seed(config), **settings)


def clips_of(config: Config, folder: str | None = None) -> Clips:
    """The clips of a run that trains a tracker."""
    return load_clips(config.dataset, folder, _data_seed(config), config.test_on)


def run(
    folder: Path,
    config: Config,
    data: str | None = None,
    weights: Path | None = None,
    changes: dict[str, Any] | None = None,
    processes: Processes = ALONE,
    console: Console | None = None,
) -> dict[str, Any]:
    """Train and test in ``folder``, or go on where it stopped; returns the record, also in result.json.

    ``data`` is the data folder; ``weights`` a finished run folder to test instead of training; ``changes``
    are the fields that were set by hand, for the record.
    """
    console = console or Console()
    if (finished := processes.from_first(lambda: run_folder.read_result(folder))) is not None:
        return finished
    commit = _commit()  # of the code that runs, whatever is edited meanwhile
    dataset = _load_in_turn(config, data, processes)
    described = _describe(config, dataset, data)
    with run_folder.lock(folder) if processes.first else nullcontext(), _resumable(folder, config):
        config = processes.from_first(lambda: run_folder.create(folder, config, described))
        begun = processes.from_first(lambda: run_folder.read_versions(folder))
        title = f"{config.experiment} {config.preset} seed {config.seed}"
        if processes.first and begun != run_folder.versions():
            console.print(f"{title}: begun with {begun}, and now {run_folder.versions()}", highlight=False)
        torch.set_num_threads(config.threads or torch.get_num_threads())
        images_seen: int | None
        if weights is None:
            with shown(folder, title, console) if processes.first else nullcontext(_ignore) as report:
                network, seconds, images_seen = train(folder, config, dataset, processes, report)
        else:
            network, seconds = _load_trained(weights, config, described), 0.0
            images_seen = (run_folder.read_result(weights) or {}).get("images_seen")
        record: dict[str, Any] = {}
        if processes.first:
            what = "sequences, plain and rotated" if config.tracks else "images"
            console.print(f"{title}: testing on {described['test']:,} {what}", highlight=False)
            say = partial(console.print, f"{title}:", soft_wrap=True, highlight=False, markup=False)
            record = {
                "format": 1,
                "config": asdict(config),
                "changes": changes or {},
                "data": {key: described[key] for key in ("name", "source", "train", "test", "tested_on")},
                "versions": run_folder.versions(),
                "machine": _machine(config),
                "commit": commit,
                "seconds": round(seconds, 1),
                "images_seen": images_seen,
                **_test(folder, config, network, dataset, say),
                "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            }
            run_folder.write_json(folder / "result.json", record)
        processes.wait()
        return record


def _load_trained(weights: Path, config: Config, described: dict[str, Any]) -> nn.Module:
    if run_folder.read_data(weights)["digest"] != described["digest"]:
        raise ValueError(f"{weights} was trained on other data: give its --data, or choose another --out")
    return load(weights).to(config.device)


def _test(
    folder: Path, config: Config, network: nn.Module, dataset: Dataset | Clips, say: Callable[[str], None]
) -> dict[str, Any]:
    """Keep the plain network in the folder, and measure what it can do and what it costs."""
    if isinstance(dataset, Clips):
        measured = _test_tracker(folder, config, network, dataset, say)
    else:
        measured = _test_classifier(folder, config, network, dataset)
    return {**measured, "trained_parameters": sum(parameter.numel() for parameter in network.parameters())}


def _test_classifier(folder: Path, config: Config, network: nn.Module, dataset: Dataset) -> dict[str, Any]:
    _, (x, y) = images(config, dataset)
    plain = exported(network, to_float(x[:64]).to(config.device))
    channels_last(plain)
    run_folder.save_weights(folder, plain)
    return {
        **evaluate(config, plain, x, y),
        **cost(config, plain, x),
        "images_per_second": round(inference_speed(config, plain, x), 1),
    }


def _test_tracker(
    folder: Path, config: Config, network: nn.Module, clips: Clips, say: Callable[[str], None]
) -> dict[str, Any]:
    _, tests = sequences(config, clips)
    some = search_crops(next(iter(tests.values()))[:1])[:2]
    plain, before = exported(network, some.to(config.device)), untrained(config).to(config.device)
    for each in (plain, before):
        channels_last(each)
    run_folder.save_weights(folder, plain)
    return evaluate_tracker(folder, config, plain, before, tests, say)


@contextmanager
def _resumable(folder: Path, config: Config) -> Iterator[None]:
    """Ctrl-C outside of a training step: all epochs done are saved."""
    try:
        yield
    except KeyboardInterrupt:
        if config.weights_of or not (folder / "config.json").exists():
            raise
        raise Stopped(folder) from None


def _load_in_turn(config: Config, data: str | None, processes: Processes) -> Dataset | Clips:
    """The first process may have to make the data set's cache, the others then find it."""
    if not processes.first:
        processes.wait()
    dataset = clips_of(config, data) if config.tracks else dataset_of(config, data)
    if processes.first:
        processes.wait()
    return dataset


def _data_seed(config: Config) -> int:
    return config.seed if config.data_seed is None else config.data_seed


def _describe(config: Config, dataset: Dataset | Clips, folder: str | None) -> dict[str, Any]:
    place = data_folder(folder)
    if isinstance(dataset, Clips):
        train, tests = sequences(config, dataset)
        counts = len(train), len(next(iter(tests.values())))
        digest = digest_of_clips([*train, *chain(*tests.values())])
    else:
        (x, y), (test_x, test_y) = images(config, dataset)
        counts, total = (config.subset or len(x), len(test_x)), hashlib.sha256()
        for tensor in (x, y, test_x, test_y):
            total.update(tensor.contiguous().numpy().tobytes())
        digest = total.hexdigest()[:16]
    return {
        "folder": "embedded" if str(place) == "embedded" else str(place.absolute()),
        "name": dataset.name,
        "source": dataset.source,
        "train": counts[0],
        **({"drawn_from": len(x)} if config.subset else {}),
        "test": counts[1],
        "tested_on": config.test_on,
        "digest": digest,
    }


def _machine(config: Config) -> str:
    gpu = config.device.startswith("cuda")
    name = torch.cuda.get_device_name(torch.device(config.device)) if gpu else processor()
    return f"{name}, {config.threads} threads, {platform.system()}"


def processor() -> str:
    """The name of the CPU."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _commit() -> str | None:
    """The commit of this package's source if it runs from a checkout, "+changes" if files differ from it."""
    package = Path(__file__).parents[1]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # not an installed copy inside another checkout
        return git("rev-parse", "--short=10", "HEAD") + (
            "+changes" if git("status", "--porcelain", ".") else ""
        )
    except (OSError, subprocess.SubprocessError):
        return None


def _ignore(status: object) -> None:
    pass
