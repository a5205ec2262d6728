"""Rot-MNIST: every row of the paper's table, as values, at every size."""

from __future__ import annotations

from typing import Any

from ..report import PaperRow
from .rows import EQUIVARIANT, Settings, Table

__all__ = ["E2CNN_RECIPE", "ROT_MNIST", "SIZES"]

BETAS = (0.01, 0.1, 0.5, 10.0, 100.0, 1000.0)
"""Besides 1, which is ien-r4."""

# A row says only what sets it apart from the defaults of Config, which are those of ien-r4.
ROWS: dict[str, Settings] = {
    "cnn": {"augment": False, "beta": 0.0},
    "cnn-aug": {"beta": 0.0},
    "cnn-aug-tta": {"beta": 0.0, "average": True, "weights_of": "rot-mnist/cnn-aug"},
    "e2cnn": {"beta": 0.0, "model": "e2cnn-cnn6"},
    "ien-r4": {},
    **{f"ien-r4-beta{beta:g}": {"beta": beta} for beta in BETAS},
    "het-ien": {"feature_groups": "4-2-1"},
    "equivariant": EQUIVARIANT,  # beyond the paper
}

SIZES: dict[str, dict[str, Any]] = {
    "paper": {},
    "small": {"width": 1 / 8, "epochs": 10, "cycle_epochs": 8},
    # few digits come with the installation: smaller batches make up for it in steps
    "demo": {"width": 1 / 8, "epochs": 8, "cycle_epochs": 6, "batch_size": 32},
    "smoke": {
        "width": 1 / 32,
        "epochs": 2,
        "cycle_epochs": 1,
        "batch_size": 32,
        "train_images": 128,
        "test_images": 100,
        "validation_images": 100,
    },
}
"""Preset → its settings."""

E2CNN_RECIPE: dict[str, Any] = {
    "augment": False,
    "rotate": True,
    "epochs": 30,
    "schedule": "exponential",
    "max_lr": 1e-3,
    "decay": 0.8,
    "decay_after": 10,
    "decay_weights_only": True,
}
"""The paper's steerable network was trained the way its own authors do."""

# Test accuracy in percent, and the power of ten of L_G after each of the six convolutions.
PAPER = {
    "cnn": PaperRow(96.3, (0, -1, 0, 0, 0, -1)),
    "cnn-aug": PaperRow(98.4, (0, -1, 0, 0, 0, -1)),
    "e2cnn": PaperRow(98.8, (-11, -10, -8, -9, -8, -8)),
    "ien-r4": PaperRow(98.6, (-7, -6, -5, -5, -5, -4)),
    "ien-r4-beta0.1": PaperRow(98.5, (-5, -5, -4, -4, -3, -2)),
    "ien-r4-beta0.01": PaperRow(98.6, (-3, -3, -2, -2, -2, -1)),
    "het-ien": PaperRow(98.6, (-6, -6, -5, -5, -5, -4)),
}

DEVIATIONS = (
    "training images are shuffled in every epoch (the authors' loader does not shuffle)",
    "the last epoch is tested, once (the authors report the best epoch on the test set)",
    "settings are fixed beforehand (the authors report the best of several for each method)",
    "accuracy is that of the test images; the authors' measure, over images and views, stands beside it",
    "the batches of an epoch are equal, give or take an image (the authors' last one is half a batch)",
    "a view is never the image itself, and the authors' accuracy is over all elements, not a random one",
)
E2CNN_DEVIATIONS = (
    "the network mirrors that of IEN: no convolution bias, the mean over pixels, its own widths",
    "at small it is trained like cnn-aug; at paper by its authors' recipe, but for the last epoch instead of "
    "the best on a validation set, with all batches of an epoch, and with weight decay on all linear layers",
)


def _settings(row: str, preset: str) -> Settings:
    # at smaller sizes all rows share one recipe, so that a difference comes from the network
    if row == "e2cnn" and preset == "paper":
        return {**E2CNN_RECIPE, **SIZES[preset]}
    return SIZES[preset]


ROT_MNIST = Table(
    "rot-mnist",
    ROWS,
    _settings,
    PAPER,
    deviations=dict.fromkeys(ROWS, DEVIATIONS) | {"e2cnn": DEVIATIONS + E2CNN_DEVIATIONS},
)
