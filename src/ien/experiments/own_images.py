"""``ien train``: a folder of your own images → the configuration of a run, and the run.

Settings are those that our studies recommend: the weights are tied under the group, and leave the
symmetry only if the training images ask for it (``slack="auto"``).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from .._text import nearest
from ..data import class_folders, mask_folders
from ..groups.families import group as parse_group
from ..measuring.image_folder import common_channels, read_square
from ..training import (
    ALONE,
    MACHINE,
    Config,
    Processes,
    Stopped,
    change,
    changed,
    differences,
    kind_of,
    run,
)
from ..training.folder import FolderConfig
from ..training.own_model import OWN, OwnNetwork, check_code
from ..training.run_folder import read_config
from ..training.segment import SegmentConfig
from .fitting import called, check_output, exact_size, takes

__all__ = ["MODELS", "Wanted", "plan_own", "train_own"]

PRESET = "folder"
"""What the runs of ``ien train`` have in place of a preset."""
NO_GROUP = "none"
"""In place of a group: an ordinary CNN."""
MEASURED_WITHOUT = "rot4"
"""The group under which an ordinary CNN is measured."""


@dataclass(frozen=True)
class Model:
    """A network that ``ien train`` knows by name."""

    segments: bool
    """Whether it returns maps for masks, and not a score for each class."""
    width: float
    """The default, for a CPU: minutes for some hundred images."""
    max_size: int
    """The largest size that is taken of the pictures, unless another one is asked for."""


MODELS = {
    "resnet18": Model(segments=False, width=1 / 8, max_size=64),
    "vgg": Model(segments=False, width=1 / 8, max_size=64),
    "wide-resnet": Model(segments=False, width=1 / 32, max_size=64),
    "unet": Model(segments=True, width=3 / 4, max_size=128),
}
MAX_OWN_SIZE = 224
"""The same for a network of the user's own."""
OWN_RATE = 1e-3
"""Highest learning rate of a network of the user's own; ours take 5e-3, which is high."""
CYCLE_SHARE = 0.8
"""Share of the epochs in which the learning rate rises and falls; the rest polishes."""
MIN_TRAIN_IMAGES = 2
"""Of each class, to train on."""
MIN_TEST_IMAGES = 2
"""In all, to measure on."""


@dataclass(frozen=True)
class Wanted:
    """What the user asks for; None where ``ien train`` should choose."""

    folder: Path
    model: str | None = None
    """One of :data:`MODELS`, or ``own``."""
    code: str = ""
    """Of a network of one's own, and its SHA-256."""
    code_sha256: str = ""
    group: str = "rot4"
    slack: str = "auto"
    size: int | None = None
    width: float | None = None
    epochs: int = 30
    batch_size: int = 32
    seed: int = 1
    name: str = ""
    ignore: int | None = None
    """A value of masks where nothing is known."""
    settings: Sequence[str] = ()
    """``field=value`` texts, which win over everything else."""
    machine: Mapping[str, Any] | None = None
    processes: int = 1


@dataclass(frozen=True)
class Planned:
    """A run that could begin."""

    config: Config
    name: str
    """Of its folder, below that of all runs."""
    notes: tuple[str, ...]
    """What was found and decided, for the user."""


@dataclass(frozen=True)
class _Images:
    """What is in the folder."""

    segments: bool
    classes: int
    channels: int
    side: int
    """The shorter side of the first picture."""
    note: str


def plan_own(wanted: Wanted) -> Planned:
    """Look at the folder and the network, and choose all settings; nothing is written.

    Raises:
        ValueError: The folder, the network or a setting cannot be used; the message says why.
        FileNotFoundError: There is no such folder, or there are no pictures in it.
    """
    if wanted.group != NO_GROUP:
        wanted = replace(wanted, group=str(parse_group(wanted.group)))  # D4 is rot4xflip
    found = _images_in(wanted)
    model = wanted.model
    if model is None:
        model = "unet" if found.segments else "resnet18"
    _check_model(model, found, wanted)
    config = _config(wanted, model, found)
    network = kind_of(config).network(config)
    notes = [found.note]
    if model == OWN and found.channels == 1 and not takes(network, config):
        colour = changed(config, {"channels": 3})
        if takes(network, colour):
            config = colour
            notes.append(f"the pictures are grey; {called(config)} is given three equal channels")
    # an ordinary CNN need not be exact, but it has to run
    if wanted.group != NO_GROUP or not takes(network, config):
        size, note = exact_size(network, config, asked=wanted.size)
        config = changed(config, {"image_size": size})
        if note:
            notes.append(note)
    # after the size is known: --set image_size=… is taken at its word
    config = change(config, wanted.settings)
    check_output(network, config)
    return Planned(config, _name(wanted, config), tuple(notes))


def train_own(
    planned: Planned,
    folder: Path,
    runs: Path,
    processes: Processes = ALONE,
    console: Console | None = None,
) -> dict[str, Any]:
    """Train and test, or go on where it stopped; a run that cannot begin leaves nothing behind.

    Args:
        planned: What :func:`plan_own` returned.
        folder: The folder with the images.
        runs: Where the run folder is made.
        processes: This process among those that share each batch.
        console: Where progress is shown.

    Returns:
        The record; empty in all processes but the first.
    """
    place = runs / planned.name
    network = planned.config.network
    if (place / "config.json").exists():
        _check_same(place, planned.config)
    with _nothing_left_behind(place, processes):
        try:
            return run(place, planned.config, str(folder), processes=processes, console=console)
        except Stopped as stopped:
            # the message becomes the command that resumes the run
            again = ""
            if isinstance(network, OwnNetwork) and network.code:
                again = f" --model {network.code}"
            raise Stopped(f"{stopped}{again}") from None


def _check_same(place: Path, config: Config) -> None:
    """Raise if a run folder was begun with other settings, or with other code."""
    begun = read_config(place)
    old, new = begun.network, config.network
    if isinstance(old, OwnNetwork) and isinstance(new, OwnNetwork) and new.code and old.code == new.code:
        check_code(old, new.code_sha256, place)
    different = []
    for name, (was, asked) in differences(begun, config).items():
        if name not in MACHINE:
            different.append(f"{name} {was!r}, now {asked!r}")
    if different:
        raise ValueError(f"{place} holds another run ({', '.join(different)}): choose another --name")


def _images_in(wanted: Wanted) -> _Images:
    """Find out what the folder holds: classes, or images and masks."""
    folder = wanted.folder
    if mask_folders.has_masks(folder):
        masks = mask_folders.find(folder)
        images = [image for image, _ in (*masks.train, *masks.test)]
        _check_counts(folder, {"images": len(masks.train)}, len(masks.test))
        values = mask_folders.values_of([mask for _, mask in masks.train], wanted.ignore)
        classes, note = len(values), f"{masks}, mask values {', '.join(map(str, values))}"
    else:
        found = class_folders.find(folder)
        images = [path for path, _ in (*found.train, *found.test)]
        of_class = dict.fromkeys(found.classes, 0)
        for _, label in found.train:
            of_class[found.classes[label]] += 1
        _check_counts(folder, of_class, len(found.test))
        classes, note = len(found.classes), str(found)
    if wanted.ignore is not None and not mask_folders.has_masks(folder):
        raise ValueError(f"--ignore is a value of masks, and {folder} has none: leave it out")
    channels = common_channels(images)
    side = read_square(images[0], channels).shape[-1]
    return _Images(mask_folders.has_masks(folder), classes, channels, side, f"{folder}: {note}")


def _check_counts(folder: Path, train: Mapping[str, int], test: int) -> None:
    for name, count in train.items():
        if count < MIN_TRAIN_IMAGES:
            raise ValueError(
                f"{folder} has {count} picture of {name} to train on, and {MIN_TRAIN_IMAGES} are the fewest, "
                f"a hundred a good start: add some"
            )
    if test < MIN_TEST_IMAGES:
        raise ValueError(
            f"{folder} has {test} picture to test on, and {MIN_TEST_IMAGES} are the fewest: add some"
        )


def _check_model(model: str, found: _Images, wanted: Wanted) -> None:
    if model == OWN:
        if wanted.width is not None:
            raise ValueError("--width is for networks of ien; the code of your own says how wide it is")
        return
    if model not in MODELS:
        raise ValueError(f"there is no model {model!r}; {nearest(model, [*MODELS, 'net.py:build'])}")
    if MODELS[model].segments and not found.segments:
        raise ValueError(
            f"{model} segments, and {wanted.folder} has no masks: it needs images/ and masks/, or choose "
            f"another --model, such as resnet18"
        )
    if found.segments and not MODELS[model].segments:
        raise ValueError(
            f"{model} classifies, and {wanted.folder} has masks: choose --model unet or your own net.py:build"
        )


def _config(wanted: Wanted, model: str, found: _Images) -> Config:
    """Return the configuration before its size is made exact."""
    known = MODELS.get(model, Model(found.segments, 1.0, MAX_OWN_SIZE))
    measured = MEASURED_WITHOUT if wanted.group == NO_GROUP else wanted.group
    group = parse_group(measured)
    values: dict[str, Any] = {
        "dataset": _dataset_name(wanted.folder),
        "classes": found.classes,
        "channels": found.channels,
        "image_size": wanted.size or min(found.side, known.max_size),
        "model": model,
        "width": wanted.width or known.width,
        "group": measured,
        # each image is seen once, without a view beside it
        "augment": False,
        "beta": 0.0,
        "epochs": wanted.epochs,
        "cycle_epochs": max(1, round(CYCLE_SHARE * wanted.epochs)),
        "batch_size": wanted.batch_size,
        "seed": wanted.seed,
        "processes": wanted.processes,
        **(wanted.machine or {}),
    }
    if model == OWN:
        values |= {"code": wanted.code, "code_sha256": wanted.code_sha256, "max_lr": OWN_RATE}
    elif len(group) in (1, 2, 4, 8):
        values["feature_groups"] = str(len(group))
    else:
        raise ValueError(
            f"{group} has {len(group)} elements, and {model} takes groups of 2, 4 or 8, such as rot4; a "
            f"network of yours takes any: --model net.py:build"
        )
    if wanted.group != NO_GROUP:
        # elements that resample are only learnt if they are seen
        resamples = not all(group.exact)
        values |= {"tie": "smooth", "slack": wanted.slack, "transform": resamples}
    config: type[Config] = FolderConfig
    if found.segments:
        config = SegmentConfig
        values["ignore"] = wanted.ignore
    experiment = f"{_dataset_name(wanted.folder)}/{_row(wanted, model)}"
    return config.of(experiment, PRESET, **values)


def _dataset_name(folder: Path) -> str:
    return folder.resolve().name or "images"


def _row(wanted: Wanted, model: str) -> str:
    """Name a run by what sets it apart: ``resnet18-rot4``."""
    if wanted.code:
        model = Path(wanted.code.rpartition(":")[0]).stem
    words = [model, wanted.group]
    if wanted.group != NO_GROUP and wanted.slack != "auto":
        words.append(f"slack{wanted.slack}")
    return "-".join(words)


def _name(wanted: Wanted, config: Config) -> str:
    if wanted.name:
        return wanted.name
    return f"{config.experiment}-seed{config.seed}"


@contextmanager
def _nothing_left_behind(place: Path, processes: Processes) -> Iterator[None]:
    """Remove a run folder that the block made, if bad input ends it before the first epoch."""
    made = _first_missing(place)
    try:
        yield
    except (ValueError, TypeError, RuntimeError, OSError):
        begun = (place / "last.pt").exists()
        if made is not None and processes.first and not begun:
            shutil.rmtree(made, ignore_errors=True)
        raise


def _first_missing(place: Path) -> Path | None:
    """Return the outermost folder that has to be made for this one; None if it is there."""
    missing = None
    for each in (place, *place.parents):
        if each.exists():
            break
        missing = each
    return missing
