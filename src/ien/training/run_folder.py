"""The run folder, the only thing that lasts: configuration, metrics, checkpoint, weights and result."""

from __future__ import annotations

import json
import os
import pickle
import platform
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from .._files import replace_file
from .config import Config
from .overrides import differences

__all__ = [
    "append_metrics",
    "create",
    "cut_metrics",
    "load_checkpoint",
    "load_weights",
    "lock",
    "read_config",
    "read_data",
    "read_metrics",
    "read_result",
    "read_versions",
    "save_checkpoint",
    "save_weights",
    "versions",
    "write_json",
]

_THREADS = torch.get_num_threads()  # now, before a run sets its own


def create(folder: Path, config: Config, data: dict[str, Any]) -> Config:
    """Start a run folder, or take up the one of the same run; returns its configuration.

    What ``config`` leaves open (device, threads) is taken from a folder that exists. ``data`` describes the
    data set, of which at least the digest must be the same.
    """
    if not (folder / "config.json").exists():
        # hidden: the lock, and what a killed process may leave
        if folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir()):
            raise ValueError(
                f"{folder} exists and is not a run folder (it has no config.json): choose another --out"
            )
        config = replace(
            config,
            device=_device(config.device),
            threads=_THREADS if config.threads is None else config.threads,
        )
        write_json(folder / "config.json", {"config": asdict(config), "data": data, "versions": versions()})
        return config
    found = read_config(folder)
    device = found.device if config.device == "auto" else config.device
    threads = found.threads if config.threads is None else config.threads
    if changed := differences(found, replace(config, device=device, threads=threads)):
        values = ", ".join(f"{name} {there!r} and now {asked!r}" for name, (there, asked) in changed.items())
        raise ValueError(f"{folder} holds another run ({values}): choose another --out")
    there = read_data(folder)
    if there["digest"] != data["digest"]:
        raise ValueError(
            f"{folder} was begun on other data ({there['source']} from {there['folder']}, now "
            f"{data['source']} from {data['folder']}): give its --data, or choose another --out"
        )
    return found


def read_config(folder: Path) -> Config:
    return _read(folder)[0]


def read_data(folder: Path) -> dict[str, Any]:
    """Which data the run was begun on: folder, name, source, counts and digest."""
    return _read(folder)[1]


def _read(folder: Path) -> tuple[Config, dict[str, Any]]:
    path = folder / "config.json"
    if not path.exists():
        raise FileNotFoundError(f"{folder} is not a run folder: it has no config.json (ien run makes one)")
    try:
        content = json.loads(path.read_text())
        given, data = content["config"], content["data"]
        if missing := {"folder", "name", "source", "train", "test", "digest"} - set(data):
            raise ValueError(f"no {', '.join(sorted(missing))} of the data")
        known = {field.name for field in fields(Config)}
        # a field that is gone, and was not set, changed nothing
        given = {name: value for name, value in given.items() if name in known or value is not None}
        if unknown := set(given) - known:
            raise ValueError(f"unknown fields {', '.join(sorted(unknown))}")
        return Config(**given), data
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not the configuration of a run ({error}): restore it, or start in another folder"
        ) from None


def versions() -> dict[str, str]:
    from .. import __version__

    return {
        "ien": __version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }


def read_versions(folder: Path) -> dict[str, str]:
    """With which versions the run was begun."""
    versions: dict[str, str] = json.loads((folder / "config.json").read_text())["versions"]
    return versions


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold the folder for one process at a time; a killed process gives it back."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "a") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder} is in use by another process: wait for it, or stop it") from None
        except (ModuleNotFoundError, OSError):  # Windows and some network drives have no such locks
            pass
        yield


def read_result(folder: Path) -> dict[str, Any] | None:
    """The record of a finished run, or None before that."""
    path = folder / "result.json"
    if not path.exists() or not (folder / "model.safetensors").exists():
        return None
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        return record
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): delete it and run ien resume {folder}") from None


def append_metrics(folder: Path, metrics: dict[str, Any]) -> None:
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(json.dumps(metrics) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def cut_metrics(folder: Path, epochs: int) -> None:
    """Keep the lines of the first ``epochs`` epochs: a line written after the last checkpoint comes again."""
    path = folder / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    if len(lines) < epochs:
        raise ValueError(
            f"{path} has {len(lines)} lines for the {epochs} epochs of last.pt: restore it, or start anew"
        )
    if len(lines) > epochs:
        replace_file(path, lambda temporary: temporary.write_bytes(b"".join(lines[:epochs])))


def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    replace_file(folder / "last.pt", lambda temporary: torch.save(state, temporary))


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """What :func:`save_checkpoint` wrote, or None before the first one. Code in the file is refused."""
    path = folder / "last.pt"
    if not path.exists():
        return None
    remedy = "delete it to train from the start, or restore it"
    try:
        with zipfile.ZipFile(path) as archive:
            if (damaged := archive.testzip()) is not None:
                raise zipfile.BadZipFile(f"wrong checksum of {damaged}")
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise ValueError(
            f"{path} holds something other than tensors and numbers, and was not loaded: {remedy}"
        ) from None
    except Exception as error:  # a damaged file can provoke anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{path} is truncated or damaged ({reason}): {remedy}") from None
    needed = {"model", "optimizer", "epoch", "step", "sums", "config", "seconds"}
    if not isinstance(state, dict) or not needed <= set(state):
        raise ValueError(f"{path} is not a checkpoint of ien: {remedy}")
    return state


def save_weights(folder: Path, model: nn.Module) -> None:
    from safetensors.torch import save_file

    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    replace_file(folder / "model.safetensors", lambda temporary: save_file(tensors, temporary))


def load_weights(folder: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = folder / "model.safetensors"
    if not path.exists():
        raise FileNotFoundError(f"{folder} holds no trained model yet: finish it with ien resume {folder}")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged ({error}): delete it and run ien resume {folder}") from None


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, lambda temporary: temporary.write_text(json.dumps(content, indent=1) + "\n"))


def _device(name: str) -> str:
    if name == "auto":
        mps = torch.backends.mps.is_available()
        return "cuda" if torch.cuda.is_available() else "mps" if mps else "cpu"
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {name!r} cannot be used here ({reason}): take cpu, or auto") from None
    return name
