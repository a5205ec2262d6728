"""Opens a run folder: its network, the images it is tested on, and its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor, nn

from ..data import to_float
from ..groups.group import Group
from ..loss.feature_groups import Spec
from ..training import kind_of, load
from ..training.config import Config
from ..training.run_folder import read_config, read_data, read_result
from .records import Record, read

__all__ = ["Subject", "open_run", "open_runs"]


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
    kind = kind_of(config)
    x, y = kind.examples(config, kind.load(config, data or read_data(folder)["folder"]))
    changes = "".join(f" {field}={value}" for field, value in record.changes)
    return Subject(
        folder,
        f"{config.experiment.split('/')[-1]} {config.preset} seed {config.seed}{changes}",
        model,
        tuple(model.taps),  # type: ignore[arg-type]
        model.feature_groups,  # type: ignore[arg-type]
        next(iter(config.objective.groups)),
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
