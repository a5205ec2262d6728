"""The run folder: configuration, metrics, checkpoint, weights and result, each written whole."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from .._files import check_regular, file_digest, read_bounded, replace_file, write_tensors
from .._text import short_repr
from .config import Config, differences
from .task import config_from_json

__all__ = [
    "DAMAGE",
    "DIGEST",
    "FORMAT",
    "append_metrics",
    "begun_on",
    "count_epochs",
    "create",
    "cut_metrics",
    "load_weights",
    "lock",
    "read_config",
    "read_data",
    "read_metrics",
    "read_result",
    "read_versions",
    "reason_of",
    "save_weights",
    "versions",
    "weights_digest",
    "write_json",
]

FORMAT = 3
"""Of config.json and result.json."""
DIGEST = "weights_sha256"
"""The field of a record with the SHA-256 of its weights."""
MAY_CHANGE = ("device", "checkpoint_minutes")
"""Fields that may change in the course of a run."""
# what a file must have to be taken for one of ours
DATA_FIELDS = {"folder": str, "name": str, "source": str, "train": int, "test": int, "digest": str}
DAMAGE = (KeyError, ValueError, TypeError, AttributeError)
"""What reading a configuration raises if it is damaged."""
_THREADS = torch.get_num_threads()  # now, before a run sets its own


class _OtherFormat(ValueError):
    """A run folder was written by another version of ien."""


def create(folder: Path, config: Config, data: dict[str, Any]) -> Config:
    """Start a run folder, or take up that of the same run.

    Args:
        folder: The run folder, which may exist.
        config: The configuration; device and threads that it leaves open are taken from the folder.
            Another device than the folder's is fine: the run goes on there.
        data: What describes the data; the digest must be that of the folder.

    Returns:
        The configuration of the folder, with nothing left open.
    """
    if not (folder / "config.json").exists():
        return _start(folder, config, data)
    found = read_config(folder)
    settled = _with_machine(config, found.machine.device, found.machine.threads)
    listed = []
    for name, (was, asked) in differences(found, settled).items():
        if name not in MAY_CHANGE:
            listed.append(f"{name} {was!r}, now {asked!r}")
    if listed:
        raise ValueError(f"{folder} holds another run ({', '.join(listed)}): choose another --out")
    there = read_data(folder)
    if there["digest"] != data["digest"]:
        raise ValueError(
            f"{folder} was begun on other data ({there['source']} from {there['folder']}, now "
            f"{data['source']} from {data['folder']}): give its --data, or choose another --out"
        )
    _move(folder, found.machine.device, settled)
    return settled


def _move(folder: Path, was: str, config: Config) -> None:
    """See to it that the device of a run can be used, which may be another one than before."""
    device = config.machine.device
    try:
        _device(device)
    except ValueError:
        if device != was:
            raise
        raise ValueError(
            f"{folder} was begun on {was}, which cannot be used here: go on with ien resume {folder} "
            f"--device cpu, or where there is one"
        ) from None
    if device != was:
        content = json.loads(read_bounded(folder / "config.json"))
        content["config"]["machine"]["device"] = device
        content.setdefault("begun_on", was)
        write_json(folder / "config.json", content)


def begun_on(folder: Path) -> str | None:
    """Return the device that a run was begun on, if it is another one now."""
    path = folder / "config.json"
    if not path.exists():
        return None
    device: str | None = json.loads(read_bounded(path)).get("begun_on")
    return device


def _start(folder: Path, config: Config, data: dict[str, Any]) -> Config:
    # hidden files are the lock, and what a killed process may leave
    if folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise ValueError(
            f"{folder} exists and is not a run folder (it has no config.json): choose another --out"
        )
    config = _with_machine(config, _device(config.machine.device), _THREADS)
    content = {"format": FORMAT, "config": config.to_json(), "data": data, "versions": versions()}
    write_json(folder / "config.json", content)
    return config


def _with_machine(config: Config, device: str, threads: int | None) -> Config:
    """Fill in what a configuration leaves open about the machine."""
    machine = config.machine
    if machine.device != "auto":
        device = machine.device
    if machine.threads is not None:
        threads = machine.threads
    return replace(config, machine=replace(machine, device=device, threads=threads))


def read_config(folder: Path) -> Config:
    """Read the configuration of a run."""
    config, _ = _read(folder)
    return config


def read_data(folder: Path) -> dict[str, Any]:
    """Read which data a run was begun on: folder, name, source, counts and digest."""
    _, data = _read(folder)
    return data


def _read(folder: Path) -> tuple[Config, dict[str, Any]]:
    path = folder / "config.json"
    if not path.exists():
        raise FileNotFoundError(
            f"{folder} is not a run folder: it has no config.json, which ien run and ien train write"
        )
    text = read_bounded(path)
    try:
        content = _parsed(text)
        version = content["format"]
        data = content["data"]
        if version != FORMAT:
            remedy = "finish it with the version that began it, or start in another folder"
            raise _OtherFormat(
                f"{path} has format {version!r} and this version of ien reads {FORMAT}: {remedy}"
            )
        missing = DATA_FIELDS.keys() - set(data)
        if missing:
            raise ValueError(f"no {', '.join(sorted(missing))} of the data")
        for name, kind in DATA_FIELDS.items():
            if type(data[name]) is not kind:
                raise ValueError(f"{name} of the data is {short_repr(data[name])}")
        if not isinstance(content["versions"], dict):
            raise ValueError(f"versions is {short_repr(content['versions'])}")
        return config_from_json(content["config"]), data
    except _OtherFormat:
        raise
    except DAMAGE as error:
        raise ValueError(
            f"{path} is not the configuration of a run ({reason_of(error)}): restore it, or start in another "
            f"folder"
        ) from None


def reason_of(damage: Exception) -> str:
    """Say what is wrong with a configuration, from one of :data:`DAMAGE`."""
    if isinstance(damage, KeyError):
        return f"no {damage.args[0]}"
    return str(damage)


def _parsed(text: bytes) -> Any:
    """Parse JSON; a file that is nested too deeply is as damaged as any other."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def versions() -> dict[str, str]:
    """Return the versions that the numbers of a run depend on."""
    from .. import __version__  # ien imports this file, so not at the top

    return {
        "ien": __version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }


def read_versions(folder: Path) -> dict[str, str]:
    """Read with which versions the run was begun."""
    versions: dict[str, str] = json.loads(read_bounded(folder / "config.json"))["versions"]
    return versions


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold the folder for one process at a time; a process that is killed gives it back."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ".lock"
    if path.exists():
        check_regular(path)
    with open(path, "a") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder} is in use by another process: wait for it, or stop it") from None
        except (ModuleNotFoundError, OSError):  # Windows and some network drives have no such locks
            pass
        _clear(folder)
        yield


def _clear(folder: Path) -> None:
    """Remove what processes that were killed have left half-written; whoever calls has the lock."""
    for pattern in (".*.part", ".tmp??????"):  # the second: safetensors', when it wrote beside the weights
        for leftover in folder.glob(pattern):
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink()


def read_result(folder: Path) -> dict[str, Any] | None:
    """Read the record of a finished run; None before it is finished."""
    path = folder / "result.json"
    # without its weights a run is not finished: they are made again from the checkpoint
    if not path.exists() or not (folder / "model.safetensors").exists():
        return None
    text = read_bounded(path)
    try:
        record = _parsed(text)
        if not isinstance(record, dict):
            raise ValueError("it is no record")
        return record
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): delete it and run ien resume {folder}") from None


def append_metrics(folder: Path, metrics: dict[str, Any]) -> None:
    """Add the line of an epoch to metrics.jsonl, and make sure that it is on the disk."""
    path = folder / "metrics.jsonl"
    try:
        with open(path, "a") as file:
            file.write(json.dumps(metrics) + "\n")
            # the checkpoint, which comes next, must not be there without it
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:  # a full disk does not say where it is full
        raise OSError(
            f"{path} could not be written ({error}); epochs that were saved are untouched"
        ) from error


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Read the lines of all epochs so far."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    epochs = []
    for number, line in enumerate(read_bounded(path).splitlines(), 1):
        try:
            metrics = _parsed(line)
            if not isinstance(metrics, dict):
                raise ValueError("it is no epoch of a run")
        except ValueError as error:
            raise ValueError(f"{path}: line {number} is damaged ({error}): restore the file") from None
        epochs.append(metrics)
    return epochs


def count_epochs(folder: Path) -> int:
    """Return how many epochs of a run are done, by the lines of metrics.jsonl.

    Lines are counted, not parsed: the run may be writing the last one just now.
    """
    path = folder / "metrics.jsonl"
    if not path.exists():
        return 0
    return read_bounded(path).count(b"\n")


def cut_metrics(folder: Path, epochs: int) -> None:
    """Keep the lines of the first ``epochs`` epochs: later ones are written again."""
    path = folder / "metrics.jsonl"
    lines = []
    if path.exists():
        lines = read_bounded(path).splitlines(keepends=True)
    if len(lines) < epochs:
        raise ValueError(
            f"{path} has {len(lines)} lines for the {epochs} epochs of last.pt: restore it, or "
            f"start again in another folder"
        )
    if len(lines) > epochs:
        replace_file(path, lambda temporary: temporary.write_bytes(b"".join(lines[:epochs])))


def save_weights(folder: Path, model: nn.Module) -> None:
    """Write the weights of the trained network."""
    write_tensors(folder / "model.safetensors", model.state_dict())


def weights_digest(folder: Path) -> str:
    """Return the SHA-256 of the file of weights, for the record."""
    return file_digest(folder / "model.safetensors")


def load_weights(folder: Path) -> dict[str, Tensor]:
    """Read the weights of the trained network; nothing in the file is executed."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = folder / "model.safetensors"
    if not path.exists():
        raise FileNotFoundError(f"{folder} holds no trained model yet: finish it with ien resume {folder}")
    # older records have no digest
    recorded = (read_result(folder) or {}).get(DIGEST)
    if weights_digest(folder) != recorded and recorded is not None:
        raise ValueError(
            f"{path} is damaged (its SHA-256 is not the one in result.json): delete it and run ien resume "
            f"{folder}"
        )
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged ({error}): delete it and run ien resume {folder}") from None


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file, and the folders on the way to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, lambda temporary: temporary.write_text(json.dumps(content, indent=1) + "\n"))


def _device(name: str) -> str:
    """Choose a device for ``auto``, and check that any other can be used."""
    if name == "auto":
        if torch.cuda.is_available():
            return "cuda"
        if torch.backends.mps.is_available():
            return "mps"
        return "cpu"
    # the only sure way to find out; what torch raises depends on the device
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {name!r} cannot be used here ({reason}); use cpu or auto") from None
    return name
