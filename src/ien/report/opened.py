"""What pages and plots look at: a network with images, and a run with its record besides."""

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

__all__ = ["Opened", "OpenedRun", "open_run", "open_runs"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Opened:
    """A network, and images to look at it with."""

    name: str
    model: nn.Module
    """In eval mode."""
    layers: tuple[str, ...]
    """The layers to compare."""
    feature_groups: Spec | Mapping[str, Spec]
    group: Group
    images: Tensor
    """(N, C, H, W), float32 in [0, 1]."""
    labels: Tensor | None = None
    """Their classes (N,), if known."""
    masks: Tensor | None = None
    """The classes of their pixels (N, H, W), if they are to be segmented and these are known."""
    image_names: tuple[str, ...] = ()
    """What to call the images, if not test image 0, 1, …"""

    @property
    def measured_groups(self) -> tuple[Group, ...]:
        """The groups whose angles or factors are looked at."""
        return (self.group,)

    @property
    def averaged(self) -> bool:
        """Whether its accuracy is that of several passes, of which a page shows one."""
        return False


@dataclass(frozen=True, eq=False, kw_only=True)
class OpenedRun(Opened):
    """A trained run: its network, its test images, and what its folder says.

    Its name is the row and what tells it from others, as in ``ien-r4 small seed 1``; its layers are
    those that the paper compares; its images are those of its test set, or for a tracker what it
    searches in; it has labels if it classifies, and masks if it segments.
    """

    folder: Path
    config: Config
    record: Record

    @property
    def measured_groups(self) -> tuple[Group, ...]:
        """The groups that it was measured under when it was tested."""
        return self.config.objective.measured_groups

    @property
    def averaged(self) -> bool:
        return bool(self.record.config.get("average"))


def open_run(folder: Path | str, data: str | None = None, count: int = 1000) -> OpenedRun:
    """Open a finished run; nothing in its folder is executed.

    Args:
        folder: The run folder.
        data: Where its data set is now, if it was moved.
        count: How many images of its test set to take at most.
    """
    folder = Path(folder)
    config = read_config(folder)
    if read_result(folder) is None:
        raise ValueError(f"{folder} is not finished: go on with ien resume {folder}")
    model = load(folder)
    if not model.taps:
        raise ValueError(
            f"{folder}: no layer of its network returns a map (B, C, H, W), so there are no layers to look "
            f"at; its accuracy under the group is in {folder / 'result.json'}"
        )
    record = read(folder / "result.json")
    kind = kind_of(config)
    x, y = kind.examples(config, kind.load(config, data or read_data(folder)["folder"]))
    words = [record.experiment.split("/")[-1], record.preset, f"seed {record.seed}"]
    for field, value in record.changes:
        words.append(f"{field}={value}")
    labels, masks = None, None
    if y is not None and y.ndim == 3:
        masks = y[:count]
    elif y is not None:
        labels = y[:count]
    return OpenedRun(
        folder=folder,
        name=" ".join(words),
        model=model,
        layers=tuple(model.taps),  # type: ignore[arg-type]
        feature_groups=model.feature_groups,  # type: ignore[arg-type]
        group=next(iter(config.objective.groups)),
        images=to_float(x[:count]),
        labels=labels,
        masks=masks,
        config=config,
        record=record,
    )


def open_runs(folders: Sequence[Path | str], data: str | None = None, count: int = 1000) -> list[OpenedRun]:
    """Open several finished runs, each once and with a name of its own; see :func:`open_run`."""
    if not folders:
        raise ValueError("name at least one run folder, such as runs/rot-mnist/ien-r4/small-seed1")
    given: set[Path] = set()
    last_parts = set()
    runs = []
    names = []
    for folder in map(Path, folders):
        place = folder.resolve()  # a run may be given by two different paths
        if place in given:
            raise ValueError(f"{folder} was given twice: name each run once")
        given.add(place)
        last_parts.add(folder.name)
        runs.append(open_run(folder, data, count))
        names.append(runs[-1].name)
    for i, run in enumerate(runs):
        if names.count(run.name) > 1:
            where = str(run.folder)
            if len(last_parts) == len(given):  # the last part of the path tells them apart
                where = run.folder.name
            runs[i] = replace(run, name=f"{run.name} ({where})")
    return runs
