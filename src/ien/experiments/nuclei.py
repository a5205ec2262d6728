"""Cell nuclei to segment, which have no upright: a U-Net as it is, augmented, tied, with slack."""

from __future__ import annotations

from typing import Any

from ..training.segment import SegmentConfig
from .rows import EQUIVARIANT, Settings, Table

__all__ = ["NOTES", "NUCLEI"]

ALONE: Settings = {"augment": False, "beta": 0.0}
"""Each image is seen once, without a view beside it."""
ROWS: dict[str, Settings] = {
    "cnn": ALONE,
    "cnn-aug": {**ALONE, "transform": True},
    "tied": EQUIVARIANT,
    "slack": {**EQUIVARIANT, "slack": "auto"},
}
"""Row → what sets it apart."""
SHARED: Settings = {"channels": 1, "group": "rot4", "feature_groups": "4"}
SIZES: dict[str, dict[str, Any]] = {
    "paper": {"image_size": 192, "epochs": 100, "cycle_epochs": 80, "batch_size": 8},
    # from 24 channels on: six features in four orientations are the fewest that a head needs
    "small": {"image_size": 96, "width": 0.75, "epochs": 30, "cycle_epochs": 24, "batch_size": 8},
    "smoke": {
        "image_size": 16,
        "width": 0.75,
        "epochs": 2,
        "cycle_epochs": 1,
        "batch_size": 4,
        "train_images": 8,
        "test_images": 4,
    },
}
SIZES["demo"] = SIZES["small"]

NOTES = (
    "Dice: 2 |A ∩ B| / (|A| + |B|) of predicted and true nuclei, mean over the test images, and mean ± "
    "sample standard deviation over the seeds; under group: the same for images and masks under all elements "
    "of rot4; consistency: Dice between what is predicted for a rotated image and the rotated prediction for "
    "the image, over the three quarter turns; worst error: relative error of the layer where it is largest; "
    "training s: of the fastest seed, since the machines did other things too",
    "cnn: the U-Net as it is, each image seen once in an epoch",
    "cnn-aug: each image and its mask are replaced by themselves under a random quarter turn, drawn again in "
    "every epoch",
    "tied: weights tied by ien.make_equivariant throughout training, smooth kernels",
    "slack: as tied, with slack=auto: weights stay tied until the training images say that they prefer an "
    "orientation",
    "all rows have the same network and see as many training images",
)
"""What a reader of these rows has to know."""


def _settings(row: str, preset: str) -> Settings:
    return {**SHARED, **SIZES[preset]}


NUCLEI = Table(
    "nuclei",
    ROWS,
    _settings,
    deviations=dict.fromkeys(ROWS, ("not in the paper: segmentation",)),
    config_class=SegmentConfig,
)
