"""Subjects: from a run folder, or a function in a code file, to a model with what it takes to look at it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ..data import to_float
from ..groups.group import Group
from ..loss.feature_groups import Spec
from ..tracking.training.evaluate import search_crops
from ..tracking.training.task import sequences
from ..training import load
from ..training.config import Config
from ..training.network import images
from ..training.run import clips_of, dataset_of
from ..training.run_folder import read_config, read_data, read_result
from .records import Record, read

__all__ = ["Subject", "build_model", "load_weights_into", "open_run", "open_runs"]


@dataclass(frozen=True, eq=False)
class Subject:
    """A trained run: its network, the images that it is tested on, and what its folder says."""

    folder: Path
    name: str
    """The row and what tells it from others: ``ien-r4 small seed 1``."""
    model: nn.Module
    """In eval mode."""
    layers: tuple[str, ...]
    """The layers that the paper compares."""
    feature_groups: Spec | Mapping[str, Spec]
    group: Group
    images: Tensor
    """Test images (N, C, H, W), float32 in [0, 1]; of a tracker what it searches in."""
    labels: Tensor | None
    """Their classes (N,); None for a tracker."""
    config: Config
    record: Record


def open_run(folder: Path | str, data: str | None = None, count: int = 1000) -> Subject:
    """A finished run with the first ``count`` images of its test set; nothing in the folder is executed.

    ``data`` is where the data set is now, if it was moved.
    """
    folder = Path(folder)
    config = read_config(folder)
    if read_result(folder) is None:
        raise ValueError(f"{folder} is not finished: go on with ien resume {folder}")
    model, record = load(folder), read(folder / "result.json")
    x, y = _tested_on(config, data or read_data(folder)["folder"])
    changes = "".join(f" {field}={value}" for field, value in record.changes)
    return Subject(
        folder,
        f"{config.experiment.split('/')[-1]} {config.preset} seed {config.seed}{changes}",
        model,
        tuple(model.taps),  # type: ignore[arg-type]
        model.feature_groups,  # type: ignore[arg-type]
        next(iter(config.groups)),
        to_float(x[:count]),
        None if y is None else y[:count],
        config,
        record,
    )


def open_runs(folders: Sequence[Path | str], data: str | None = None, count: int = 1000) -> list[Subject]:
    """The finished runs in these folders, each once and with a name of its own."""
    if not folders:
        raise ValueError("name at least one run folder, such as runs/rot-mnist/ien-r4/small-seed1")
    seen: dict[Path, Path] = {}
    for folder in map(Path, folders):
        if (place := folder.resolve()) in seen:
            raise ValueError(f"{folder} was given twice: name each run once")
        seen[place] = folder
    subjects = [open_run(folder, data, count) for folder in seen.values()]
    names = [subject.name for subject in subjects]
    places = [folder.name for folder in seen.values()]
    whole = len(set(places)) < len(places)  # else the last part of the path tells them apart
    return [
        subject
        if names.count(subject.name) == 1
        else replace(subject, name=f"{subject.name} ({subject.folder if whole else subject.folder.name})")
        for subject in subjects
    ]


def build_model(target: str) -> nn.Module:
    """What ``path/to/code.py:build`` or ``package.module:build`` names: a model or a function for one.

    The code runs, as by ``import``.
    """
    place, _, name = target.rpartition(":")
    if not place or not name.isidentifier():
        raise ValueError(
            f"a model is a run folder or a function in a code file, as in code.py:build; got {target!r}"
        )
    module = _import(place)
    if not hasattr(module, name):
        known = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
        raise ValueError(f"{place} has no {name!r}; it has {', '.join(known) or 'no functions'}")
    found = getattr(module, name)
    try:
        model = found if isinstance(found, nn.Module) else found()
    except (Exception, SystemExit) as error:
        raise ValueError(f"{target} raised {_where(error)}") from error
    if not isinstance(model, nn.Module):
        raise ValueError(f"{target} should return a torch.nn.Module; it returned a {type(model).__name__}")
    return model


def load_weights_into(model: nn.Module, path: Path) -> None:
    """Weights from a .safetensors file, or from what torch.save wrote; code in the file is refused."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path} with weights")
    state = _read_weights(path)
    for key in ("state_dict", "model"):  # what training scripts commonly save
        state = state[key] if isinstance(state.get(key), dict) else state
    try:
        model.load_state_dict(state)
    except (RuntimeError, TypeError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ValueError(f"{path} does not fit the model ({' '.join(lines[:2])[:300]})") from None


def _tested_on(config: Config, data: str) -> tuple[Tensor, Tensor | None]:
    """Images and labels; of a tracker some pictures in which it searches, of its first test."""
    if not config.tracks:
        return images(config, dataset_of(config, data))[1]
    _, tests = sequences(config, clips_of(config, data))
    return search_crops(next(iter(tests.values()))), None


def _read_weights(path: Path) -> dict[str, Any]:
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can provoke anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path} cannot be read as weights ({reason})") from None
    if not isinstance(state, dict):
        raise ValueError(f"{path} should hold a state_dict; it holds a {type(state).__name__}")
    return state


def _import(place: str) -> ModuleType:
    if not place.endswith(".py"):
        try:
            return importlib.import_module(place)
        except (Exception, SystemExit) as error:
            raise ValueError(f"{place} cannot be imported: {_where(error)}") from error
    path = Path(place).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"there is no code file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # it is a .py file
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.absolute()))  # its neighbours, as for a script
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{path} raised {_where(error)}") from error
    finally:
        sys.path.remove(str(path.parent.absolute()))
    return module


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" (line {frames[-1].lineno} of {Path(frames[-1].filename).name})" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{place}"
