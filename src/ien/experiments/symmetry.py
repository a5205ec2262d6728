"""How symmetric are the data, and what should you pick? Data sets × methods, at equal compute.

The data go from exact symmetry to none: digits in all orientations, within ±90°, ±60°, ±30° and
upright; digits under the wrong group; real pictures from above, through a microscope, of rolled
steel, and of everyday things. All rows of a data set have the same network, or its steerable twin,
and see as many training images.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from . import rot_mnist
from .rows import EQUIVARIANT, Settings, Table
from .tim import SMOKE

__all__ = ["DATA", "METHODS", "NOTES", "ROWS", "SYMMETRY", "Source"]

NAME = "symmetry"


@dataclass(frozen=True)
class Source:
    """A data set, the group that it is studied under, and how long a run takes."""

    title: str
    """What a table calls it."""
    settings: Settings
    """Its fields of a configuration, whatever the size."""
    group: str
    feature_groups: int
    """As many members as the group has elements."""
    tenth: int
    """A tenth of its training images."""
    small: Settings
    """What is its own at the preset small."""


def _digits(max_angle: float, title: str, group: str = "rot4", feature_groups: int = 4) -> Source:
    settings = {"dataset": "rot-mnist", "max_angle": max_angle, "model": "cnn6"}
    return Source(title, settings, group, feature_groups, 1200, {"test_images": 10_000})


def _pictures(
    dataset: str, title: str, classes: int, group: str, feature_groups: int, train: int, epochs: int
) -> Source:
    settings = {"dataset": dataset, "classes": classes, "model": "resnet18", "validation_images": train // 5}
    if dataset == "neu-steel":
        settings["channels"] = 1
    # 33 -> 33, 17, 9, 5: strides of 2 commute with quarter turns on odd sizes only
    small: dict[str, Any] = {"image_size": 33, "epochs": epochs, "cycle_epochs": epochs * 4 // 5}
    if dataset in ("tiny-imagenet", "rot-tim"):
        small["image_size"] = 17  # -> 17, 9, 5, 3: five times as many pictures as the others
    # about the same channels: 16, 32, 64, 128 with feature groups of 8; 16, 32, 68, 136 with 4
    small["width"] = {4: 1 / 8, 8: 1 / 12}[feature_groups]
    return Source(title, settings, group, feature_groups, train // 10, small)


DATA: dict[str, Source] = {
    "rot-mnist": _digits(180, "Digits in all orientations, rot4"),
    "digits-90": _digits(90, "Digits within ±90°, rot4"),
    "digits-60": _digits(60, "Digits within ±60°, rot4"),
    "digits-30": _digits(30, "Digits within ±30°, rot4"),
    "digits-upright": _digits(0, "Upright digits, rot4"),
    "digits-flip": _digits(180, "Digits in all orientations under the wrong group, flip", "flip", 2),
    "eurosat": _pictures("eurosat", "EuroSAT, rot4xflip", 10, "rot4xflip", 8, 2000, 20),
    "uc-merced": _pictures("uc-merced", "UC Merced, rot4xflip", 21, "rot4xflip", 8, 1260, 30),
    "pbc-blood-cells": _pictures("pbc-blood-cells", "Blood cells, rot4xflip", 8, "rot4xflip", 8, 1200, 30),
    "neu-steel-rot4": _pictures("neu-steel", "Steel under the wrong group, rot4", 6, "rot4", 4, 900, 40),
    "neu-steel-rot2xflip": _pictures("neu-steel", "Steel, rot2xflip", 6, "rot2xflip", 4, 900, 40),
    "tiny-imagenet": _pictures("tiny-imagenet", "Tiny ImageNet upright, rot4", 20, "rot4", 4, 10_000, 12),
    "rot-tim": _pictures("rot-tim", "Rot-TIM, rot4", 20, "rot4", 4, 10_000, 12),
}
"""The first part of a row's name → its data."""

ALONE: Settings = {"augment": False, "beta": 0.0}
"""Each image is seen once, without a view beside it."""
METHODS: dict[str, Settings] = {
    "cnn": ALONE,
    "cnn-aug": {**ALONE, "transform": True},
    "cnn-aug-tta": {**ALONE, "transform": True, "average": True},
    "e2cnn": ALONE,
    "ien-beta0.1": {"beta": 0.1},
    "tied": EQUIVARIANT,
    "slack": {**EQUIVARIANT, "slack": "auto"},
}
"""The second part of a row's name → what sets it apart."""
ON_A_TENTH = ("cnn", "cnn-aug", "tied", "slack")
"""Methods that are also trained on a tenth of the images."""
STEPS_ON_A_TENTH = 0.3
"""Their steps, as a share of the others'. Chosen on validation images: with as many steps, so with
ten times as many passes, the plain CNN was 2.5 points worse on digits, and 19 on EuroSAT."""

SIZES: dict[str, dict[str, Any]] = {
    "paper": {"image_size": 65, "batch_size": 32},
    "small": {"batch_size": 32},
    "demo": {"batch_size": 32},
    "smoke": {"image_size": 17, **SMOKE},
}
"""Preset → settings of the rows on pictures; digits have those of rot-mnist."""
SMOKE_TENTHS = {"cnn6": 32, "resnet18": 8}
"""Images of the tenth at the preset smoke, which has 128 digits or 16 pictures in all."""

NOTE_ON_COMPUTE = (
    "all rows on the same images see as many of them; ien-beta0.1 sees two views of each, and so has half of "
    "the epochs and steps"
)
NOTES = (
    "accuracy: mean ± sample standard deviation over the seeds; agreement: share of test images whose "
    "predicted class is the same under all elements of the group; under group: accuracy on the test images "
    "under all elements, averaged; worst error: relative error of the layer where it is largest, mean over "
    "the seeds; most slack: ‖r‖ / ‖P W‖ of the layer that has left the symmetry furthest; "
    "training s: of the fastest seed, since the machines did other things too; 0: the weights of another "
    "row are tested",
    "cnn: the network as it is, neither copies nor augmentation",
    "cnn-aug: each training image is replaced by itself under a random element, drawn again in every epoch",
    "cnn-aug-tta: the weights of cnn-aug, softmax averaged over the group at test time",
    "e2cnn: the steerable twin with the same channels at inference, each image seen once; there is none for "
    "flip alone",
    "ien-beta0.1: the paper's loss",
    "tied: weights tied by ien.make_equivariant throughout training, smooth kernels, each image seen once",
    "slack: as tied, with slack=auto: weights stay tied until the training images say that they prefer an "
    "orientation",
    "rows with tenth have a tenth of the training images, drawn by the seed, and three tenths of the steps",
    NOTE_ON_COMPUTE,
    "cnn of neu-steel-rot2xflip has the weights of neu-steel-rot4-cnn, measured under the other group",
)
"""What a reader of these rows has to know."""


@dataclass(frozen=True)
class _Row:
    """What a row's name is made of."""

    data: str
    method: str
    tenth: bool

    @property
    def name(self) -> str:
        name = f"{self.data}-{self.method}"
        if self.tenth:
            name += "-tenth"
        return name


def _all_rows() -> dict[str, _Row]:
    rows = []
    for data, source in DATA.items():
        for method in METHODS:
            # e2cnn has no fields for flips without rotations
            if method == "e2cnn" and source.group == "flip":
                continue
            rows.append(_Row(data, method, tenth=False))
        for method in ON_A_TENTH:
            rows.append(_Row(data, method, tenth=True))
    return {row.name: row for row in rows}


ROWS = _all_rows()
"""Row → what its name is made of."""


def _row_settings(row: _Row) -> Settings:
    """What sets a row apart, whatever the size."""
    source = DATA[row.data]
    settings = {**source.settings, "group": source.group, "feature_groups": str(source.feature_groups)}
    settings |= METHODS[row.method]
    if row.method == "e2cnn":
        settings["model"] = f"e2cnn-{settings['model']}"
    if row.method == "cnn-aug-tta":
        settings["weights_of"] = f"{NAME}/{replace(row, method='cnn-aug').name}"
    if row.method == "cnn" and row.data == "neu-steel-rot2xflip":
        # without views the group plays no part in training: train once, measure under both
        settings["weights_of"] = f"{NAME}/{replace(row, data='neu-steel-rot4').name}"
    return settings


def _settings(name: str, preset: str) -> Settings:
    row = ROWS[name]
    source = DATA[row.data]
    model = source.settings["model"]
    sizes = SIZES
    if model == "cnn6":
        sizes = rot_mnist.SIZES
    settings = dict(sizes[preset])
    if model == "cnn6":
        # of feature groups of 2 there are twice as many: the same channels
        settings["width"] = settings.get("width", 1.0) * 4 / source.feature_groups
    if preset == "demo" and model == "cnn6":
        settings |= {"epochs": 5, "cycle_epochs": 4}  # ien demo takes two minutes
    # the embedded digits of demo are fewer than small tests on
    if preset == "small" or (preset == "demo" and model == "resnet18"):
        settings |= source.small
    if row.tenth:
        settings["subset"] = source.tenth
        if preset == "smoke":
            settings["subset"] = SMOKE_TENTHS[model]
        _scale_epochs(settings, STEPS_ON_A_TENTH)
    if row.method == "ien-beta0.1":
        # two views of each image: half of the epochs are as many images seen
        _scale_epochs(settings, 0.5)
    return settings


def _scale_epochs(settings: dict[str, Any], share: float) -> None:
    """Make a run and its cycle shorter; 90 and 70 epochs are the defaults."""
    settings["epochs"] = max(1, int(share * settings.get("epochs", 90)))
    settings["cycle_epochs"] = max(1, int(share * settings.get("cycle_epochs", 70)))


def _deviations(row: _Row) -> tuple[str, ...]:
    return (f"not in the paper: {DATA[row.data].title}", NOTE_ON_COMPUTE)


SYMMETRY = Table(
    NAME,
    {name: _row_settings(row) for name, row in ROWS.items()},
    _settings,
    deviations={name: _deviations(row) for name, row in ROWS.items()},
)
