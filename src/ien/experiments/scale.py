"""Scale-MNIST, STL-10, and digits that are rotated and scaled: the rows of the scale table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..report import PaperRow
from .rows import Settings, Table

__all__ = ["ROT_SCALE_MNIST", "SCALE_MNIST", "STL10"]

MEMBERS = {28: "3", 56: "4"}
"""Pixels of a digit → the scales of SESN, and so the size of our feature groups."""
FACTORS = {28: "scale0.7,0.84", 56: "scale0.63,0.75,0.87"}
"""Pixels of a digit → the transformations of the loss.

These are one of four pairs, which differ by less than 2,000 images can tell.
"""
BEST_BETA = 0.01
"""Of 0.01, 0.1 and 1, on the validation images of Scale-MNIST 28×28 at the preset small."""
NATURAL_FACTORS = "scale0.71,0.84"
# a factor and its inverse: digits are shrunk as much as enlarged
ROTATION, SCALE = "rot4", "scale0.8,1.25"
BOTH_GROUPS = f"{ROTATION}+{SCALE}"
GROWTH = "scale1.25,1.5"  # a smaller view leaves nothing to compare on the last maps of cnn6, 2×2
NO_VIEWS = {"augment": False, "beta": 0.0, "feature_groups": "1"}

SMOKE = {"epochs": 2, "train_images": 48, "test_images": 32, "validation_images": 16, "batch_size": 16}
DIGIT_SIZES: dict[str, dict[str, Any]] = {
    "paper": {"epochs": 60, "steps_after": "20,40"},
    "small": {"epochs": 12, "steps_after": "5,9", "width": 1 / 4, "test_images": 10_000},
    "demo": {
        "epochs": 12,
        "steps_after": "5,9",
        "width": 1 / 4,
        "train_images": 3000,
        "validation_images": 500,
    },
    "smoke": {**SMOKE, "steps_after": "1", "width": 1 / 16},
}
"""Preset → its settings for digits."""
OBJECT_SIZES: dict[str, dict[str, Any]] = {
    "paper": {
        "image_size": 96,
        "shift": 12,
        "cutout": 32,
        "epochs": 1000,
        "steps_after": "300,400,600,800",
        "batch_size": 128,
        "max_lr": 0.1,
    },
    "small": {
        "image_size": 32,
        "shift": 4,
        "cutout": 11,
        "width": 1 / 8,
        "epochs": 30,
        "steps_after": "10,18,25",
        "batch_size": 32,
        "max_lr": 0.05,
    },
    "smoke": {**SMOKE, "image_size": 24, "shift": 3, "cutout": 8, "width": 1 / 32, "steps_after": "1"},
}
"""Preset → its settings for STL-10."""
OBJECT_SIZES["demo"] = OBJECT_SIZES["small"]


def _scale_mnist() -> dict[str, Settings]:
    rows: dict[str, Settings] = {}
    for size, members in MEMBERS.items():
        # the group is also what networks without the loss are measured under
        same = {"image_size": size, "group": FACTORS[size]}
        twin = {**same, "model": "cnn3", "feature_groups": members}
        rows[f"{size}-cnn"] = {**same, "model": "cnn3", **NO_VIEWS}
        rows[f"{size}-cnn-aug"] = {**twin, "beta": 0.0}
        for name in ("ss-cnn", "ss-cnn-published", "dss", "sesn-scalar", "sesn-vector"):
            rows[f"{size}-{name}"] = {**same, "model": name, **NO_VIEWS}
        rows[f"{size}-ien"] = {**twin, "beta": BEST_BETA}
    return rows


def _stl10() -> dict[str, Settings]:
    same = {"group": NATURAL_FACTORS}
    twin = {**same, "model": "wide-resnet", "feature_groups": "3"}
    return {
        "wrn": {**same, "model": "wide-resnet", **NO_VIEWS},
        "cnn-aug": {**twin, "beta": 0.0},
        "ss-cnn": {**same, "model": "ss-cnn-wrn", **NO_VIEWS},
        "ss-cnn-published": {**same, "model": "ss-cnn-wrn-published", **NO_VIEWS},
        "dss": {**same, "model": "dss-wrn", **NO_VIEWS},
        "sesn-a": {**same, "model": "sesn-wrn", **NO_VIEWS},
        "ien": {**twin, "beta": BEST_BETA},
    }


def _rot_scale_mnist() -> dict[str, Settings]:
    """Every row sees an image and two views of it in a step: both of one group, or one of each."""
    same = {"model": "cnn3", "feature_groups": "4", "image_size": 28, "measured": BOTH_GROUPS}
    # over the variance: each layer is followed by a BatchNorm, so shrinking it would lower the loss
    ien = {**same, "beta": 0.03, "normalize": True}
    # rotation by construction, and scale, under which no weights can be tied, by views or the loss;
    # the last pool of cnn3 does not commute with quarter turns, so these rows have another network
    cnn6 = {"model": "cnn6", "measured": f"{ROTATION}+{GROWTH}"}
    tied = {**cnn6, "group": GROWTH, "samples": 2, "tie": "smooth", "tie_group": ROTATION}
    return {
        "cnn-aug": {**same, "group": BOTH_GROUPS, "beta": 0.0},
        "ien-rotation": {**ien, "group": ROTATION, "samples": 2},
        "ien-scale": {**ien, "group": SCALE, "samples": 2},
        "ien-both": {**ien, "group": BOTH_GROUPS},
        "cnn6-cnn-aug": {**same, **cnn6, "group": f"{ROTATION}+{GROWTH}", "beta": 0.0},
        "cnn6-tied": {**same, **tied, "beta": 0.0},
        "cnn6-tied-ien-scale": {**ien, **tied},
        "cnn6-slack-ien-scale": {**ien, **tied, "slack": "auto"},
    }


def _digit_settings(row: str, preset: str) -> Settings:
    """The protocol of SESN's authors, with scaled training images (+)."""
    settings = {
        "rescale": 2.0,
        "train_images": 10_000,
        "batch_size": 128,
        "weight_decay": 0.0,
        "data_seed": None,  # each seed has digits and factors of its own
        "schedule": "steps",
        "decay": 0.1,
        "max_lr": 0.01,
        **DIGIT_SIZES[preset],
    }
    if row.startswith("56") and preset == "small":  # larger digits take longer
        settings |= {"width": 1 / 8, "epochs": 10, "steps_after": "4,8"}
    return settings


def _object_settings(row: str, preset: str) -> Settings:
    return {
        "optimizer": "sgd",
        "weight_decay": 5e-4,
        "mirror": True,
        "validation_images": 100,
        "schedule": "steps",
        "decay": 0.2,
        "max_lr": 0.05,
        **OBJECT_SIZES[preset],
    }


def _rotated_settings(row: str, preset: str) -> Settings:
    return {**_digit_settings(row, preset), "rescale": 1.0}  # the digits are scaled already


def _errors(rates: Mapping[str, float]) -> dict[str, PaperRow]:
    # the paper prints error rates here, records hold accuracies; 100 - 1.76 is not quite 98.24
    return {row: PaperRow(round(100 - rate, 2)) for row, rate in rates.items()}


SCALE_MNIST_PAPER = _errors(
    {
        "28-ss-cnn": 2.10,
        "28-ss-cnn-published": 2.10,
        "28-dss": 1.95,
        "28-sesn-vector": 1.76,
        "28-ien": 1.78,
        "56-ss-cnn": 1.76,
        "56-ss-cnn-published": 1.76,
        "56-dss": 1.57,
        "56-sesn-vector": 1.42,
        "56-ien": 1.33,
    }
)
STL10_PAPER = _errors(
    {"ss-cnn": 25.47, "ss-cnn-published": 25.47, "dss": 11.28, "sesn-a": 10.83, "ien": 10.11}
)

MNIST_DEVIATIONS = (
    "the last epoch is tested, once (SESN's authors test the best one on the validation images)",
    "digits are scaled with torch's bicubic interpolation (theirs: Pillow's)",
)
STL10_DEVIATIONS = ("images are enlarged by one pixel, so that strides of 2 keep their centre",)
ROTATED_DEVIATIONS = ("the paper claims several groups at once and shows no experiment with them",)
LOSS_DEVIATIONS = (
    "the paper names neither the factors nor the beta of its loss: beta is the best of 0.01, 0.1 and 1 on "
    "the validation images of Scale-MNIST 28×28, the factors are ours",
)
BOTH_DEVIATIONS = (
    "the factors are ours; beta is the best of 0.01, 0.03 and 0.1 for both groups on the validation images, "
    "after 4 epochs",
)
NO_IDLE_PARAMETERS = "without 7,666 parameters of the published net that do nothing"
MODEL_DEVIATIONS = {
    "sesn-wrn": ("the last BatchNorm comes before the maximum over scales (published: after)",),
    "dss": ("the last BatchNorm comes after the maximum over scales (published: before)",),
    "ss-cnn": (
        "filters are means over pixels with the factor 1 / s and one norm for both parts, as steering "
        "needs (published: samples at the centres, without the factor)",
        NO_IDLE_PARAMETERS,
    ),
    "ss-cnn-published": (NO_IDLE_PARAMETERS,),
    "ss-cnn-wrn": ("all layers see several scales (in the published code only the first one does)",),
}


def _deviations(
    rows: Mapping[str, Settings], texts: tuple[str, ...], loss: tuple[str, ...] = LOSS_DEVIATIONS
) -> dict[str, tuple[str, ...]]:
    found = {}
    for row, settings in rows.items():
        found[row] = texts + MODEL_DEVIATIONS.get(settings["model"], ())
        if settings["beta"]:
            found[row] += loss
    return found


SCALE_MNIST = Table(
    "scale-mnist",
    _scale_mnist(),
    _digit_settings,
    SCALE_MNIST_PAPER,
    _deviations(_scale_mnist(), MNIST_DEVIATIONS),
)
STL10 = Table("stl10", _stl10(), _object_settings, STL10_PAPER, _deviations(_stl10(), STL10_DEVIATIONS))
ROT_SCALE_MNIST = Table(
    "rot-scale-mnist",
    _rot_scale_mnist(),
    _rotated_settings,
    deviations=_deviations(_rot_scale_mnist(), ROTATED_DEVIATIONS, BOTH_DEVIATIONS),
)
