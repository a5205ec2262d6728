"""Does the paper's claim come with size? Rot-MNIST with wider networks and longer training.

The paper has its network at full width and 90 epochs. Here are an eighth and a quarter of the width
with 10 to 90 epochs: the size is part of a row's name, ``w8-e30-tied``. Rows that rot-mnist has
already, an eighth of the width with 10 epochs, are shown again and trained once.
"""

from __future__ import annotations

from typing import Any

from .rot_mnist import ROT_MNIST, SIZES
from .rows import EQUIVARIANT, Settings, Table

__all__ = ["LABELS", "METHODS", "NOTES", "SIZE", "SIZES_OF_ROWS", "TWINS"]

SIZES_OF_ROWS = {
    "w8-e10": {"width": 1 / 8, "epochs": 10, "cycle_epochs": 8},
    "w8-e30": {"width": 1 / 8, "epochs": 30, "cycle_epochs": 24},
    "w8-e90": {"width": 1 / 8, "epochs": 90, "cycle_epochs": 72},
    "w4-e10": {"width": 1 / 4, "epochs": 10, "cycle_epochs": 8},
    "w4-e30": {"width": 1 / 4, "epochs": 30, "cycle_epochs": 24},
}
"""The first part of a row's name → its size."""
METHODS: dict[str, Settings] = {
    "cnn-aug": {"beta": 0.0},
    "ien-beta1": {"beta": 1.0},
    "ien-beta0.1": {"beta": 0.1},
    "e2cnn": {"beta": 0.0, "model": "e2cnn-cnn6"},
    "tied": EQUIVARIANT,
    "slack": {**EQUIVARIANT, "slack": "auto"},
}
"""The second part of a row's name → what sets it apart."""
LABELS = {
    "rot-mnist/cnn-aug": "w8-e10-cnn-aug",
    "rot-mnist/ien-r4": "w8-e10-ien-beta1",
    "rot-mnist/ien-r4-beta0.1": "w8-e10-ien-beta0.1",
    "rot-mnist/e2cnn": "w8-e10-e2cnn",
    "rot-mnist/equivariant": "w8-e10-tied",
}
"""Rows of rot-mnist at the preset small → what they are called here."""
NOTES = (
    "w8-e30: an eighth of the paper's width and 30 epochs, whatever the preset; rows of w8-e10 but slack are "
    "those of rot-mnist",
    "tied and slack see each image once, without copies: half of the compute of the other rows",
)
"""What a reader of these rows has to know."""


def _rows() -> dict[str, Settings]:
    rows = {}
    for size in SIZES_OF_ROWS:
        for method, settings in METHODS.items():
            row = f"{size}-{method}"
            if row not in LABELS.values():  # rot-mnist trains it already
                rows[row] = settings
    return rows


def _twins() -> dict[str, str]:
    twins = {}
    by_method = {}
    for experiment, label in LABELS.items():
        twins[experiment] = experiment
        by_method[label.split("-", 2)[2]] = experiment
    for row in _rows():
        method = row.split("-", 2)[2]
        if method in by_method:
            twins[f"size/{row}"] = by_method[method]
    return twins


TWINS = _twins()
"""Experiment → that of rot-mnist with the same method, for which the paper may print a number."""


def _settings(row: str, preset: str) -> Settings:
    settings: dict[str, Any] = {"dataset": "rot-mnist", **SIZES[preset]}
    if preset != "smoke":
        width, epochs, _ = row.split("-", 2)
        settings |= SIZES_OF_ROWS[f"{width}-{epochs}"]
    return settings


def _deviations(row: str) -> tuple[str, ...]:
    twin = "e2cnn" if "e2cnn" in row else "cnn-aug"
    return (*ROT_MNIST.deviations[twin], *NOTES)


SIZE = Table("size", _rows(), _settings, deviations={row: _deviations(row) for row in _rows()})
