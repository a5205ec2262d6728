"""The study: rows that tell what each change to the paper's recipe brings, at equal compute, as values."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

from . import rot_mnist
from .rows import Rows

__all__ = ["STUDY"]

ACTIONS, STARTS, BETAS = ("pooled", "regular"), ("random", "equivariant"), (0.0, 0.1, 1.0)
SAMPLES = {"1": False, "all": True}
"""Copies of an image in a step, and whether they are whole orbits."""
BEST, PAPERS = "regular-equivariant-all-beta1", "pooled-random-1-beta0.1"
REPEATED = ("cnn-aug", "e2cnn", PAPERS, BEST)
"""Rows that are also trained on fewer images."""
FEWER = (500, 2000)
IMAGES = {"paper": 12_000, "small": 12_000, "demo": 4000, "smoke": 128}
"""Training images of each preset: a run on fewer of them takes as many steps as one on all."""


def _grid() -> dict[str, dict[str, Any]]:
    """Action × start × samples × beta; without the loss there is no action, and its first row is CNN-aug."""
    rows: dict[str, dict[str, Any]] = {}
    for start, (samples, orbits), beta in product(STARTS, SAMPLES.items(), BETAS):
        for action in ACTIONS if beta else ():
            settings = {"action": action, "start": start, "orbits": orbits, "beta": beta}
            rows[f"{action}-{start}-{samples}-beta{beta:g}"] = settings
        if not beta:
            rows[f"{start}-{samples}-beta0"] = {"start": start, "orbits": orbits, "beta": beta}
    return {"cnn-aug": rows.pop("random-1-beta0"), **rows}


def _rows() -> dict[str, dict[str, Any]]:
    rows = {
        **_grid(),
        "cnn-aug-average": {"beta": 0.0, "average": True, "weights_of": "study/cnn-aug"},
        "cnn-aug-2x": {"beta": 0.0},
        "e2cnn": {"beta": 0.0, "model": "e2cnn-cnn6"},
    }
    # the wrong group: a mirrored digit is no digit
    flips = {f"flip-{row}": {**rows[row], "group": "flip"} for row in ("cnn-aug", "pooled-random-1-beta1")}
    flips[f"flip-{BEST}"] = {**rows[BEST], "group": "flip", "feature_groups": "2"}
    fewer = {f"n{count}-{row}": {**rows[row], "train_images": count} for count in FEWER for row in REPEATED}
    return {**rows, **flips, **fewer}


def _preset(row: str, preset: str) -> dict[str, Any]:
    settings = {"dataset": "rot-mnist", "epochs": 90, "batch_size": 64, **rot_mnist.PRESETS[preset]}
    steps = settings["epochs"] * math.ceil(IMAGES[preset] / settings["batch_size"])
    if row == "cnn-aug-2x":
        settings["steps"] = 2 * steps
    if row.startswith(tuple(f"n{count}-" for count in FEWER)):
        settings["steps"] = steps
    if row == f"flip-{BEST}":  # twice as many feature groups of half the size: the same channels
        settings["width"] = 2 * settings.get("width", 1.0)
    return settings


_DEVIATIONS = rot_mnist.DEVIATIONS["cnn-aug"]
_TIED = (
    "it is trained like cnn-aug, and stands for networks with tied weights: its kernels are made of e2cnn's "
    "functions, of which there are fewer than pixels",
)
_ROWS = _rows()
STUDY = Rows("study", _ROWS, {}, {row: _DEVIATIONS + _TIED * row.endswith("e2cnn") for row in _ROWS}, _preset)
