"""The study: what each change to the paper's recipe brings, at equal compute.

A grid of action × first weights × samples × beta, and beside it the rows that the grid cannot
express. Rows that rot-mnist has already are shown under both names and trained once.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from .rot_mnist import E2CNN_RECIPE, ROT_MNIST, SIZES
from .rows import (
    NOTE_ON_2X,
    NOTE_ON_E2CNN_ALONE,
    NOTE_ON_EARLIER_RUNS,
    NOTE_ON_EQUIVARIANT,
    NOTE_ON_FREE,
    NOTE_ON_TIED,
    Settings,
    Table,
    notes_beyond_the_paper,
)

__all__ = ["LABELS", "NOTES", "NOTES_ON_FEWER", "ROWS_AT_2X", "STUDY"]

ACTIONS = ("pooled", "regular")
FIRST_WEIGHTS = {"random": "never", "start": "start"}
"""What a network starts with, and what is tied: nothing, or the first weights alone."""
SAMPLES = {"1": False, "all": True}
"""Views of an image in a step, and whether they are whole orbits."""
BETAS = (0.0, 0.1, 1.0)
SHARED_ROWS = ("cnn-aug", "cnn-aug-tta", "e2cnn", "ien-r4", "ien-r4-beta0.1", "equivariant")
"""Rows of rot-mnist that stand in the grid or beside it, and are not trained again."""
ROWS_UNDER_FLIP = ("cnn-aug", "free", "ien-r4", "equivariant")
"""Rows that are also trained under the wrong group: a mirrored digit is not a digit."""
ROWS_ON_SUBSETS = ("cnn-aug", "e2cnn", "free", "ien-r4", "ien-r4-beta0.1", "equivariant")
"""Rows that are also trained on fewer images: the paper's main one, another beta, and ours."""
ROWS_AT_2X = ("cnn-aug", "e2cnn-alone", "free", "equivariant")
"""Rows that are also trained for twice as many epochs."""
SUBSETS = {500: 32, 2000: 64}
"""Images to train on, and how many at the preset smoke, which has 128 in all."""
GRID_DEFAULTS = {"action": "pooled", "tie": "never", "orbits": False, "beta": 1.0}
"""The fields that make up the grid, and their defaults."""


def _grid() -> dict[str, Settings]:
    """Action × first weights × samples × beta; without the loss there is no action."""
    rows: dict[str, Settings] = {}
    for (first, tie), (samples, orbits), beta in product(FIRST_WEIGHTS.items(), SAMPLES.items(), BETAS):
        same = {"tie": tie, "orbits": orbits, "beta": beta}
        if beta == 0:
            rows[f"{first}-{samples}-beta0"] = same
            continue
        for action in ACTIONS:
            rows[f"{action}-{first}-{samples}-beta{beta:g}"] = {"action": action, **same}
    return rows


def _place(settings: Settings) -> tuple[Any, ...] | None:
    """Return where these settings stand in the grid; None if they differ in other fields too."""
    if not set(settings) <= set(GRID_DEFAULTS):
        return None
    action, tie, orbits, beta = (GRID_DEFAULTS | dict(settings)).values()
    if beta == 0:
        # without the loss nothing is compared: both actions are one and the same row
        action = ""
    return action, tie, orbits, beta


def _taken() -> dict[str, str]:
    """Rows of rot-mnist that have a place in the grid → the name of that place."""
    names = {_place(settings): name for name, settings in _grid().items()}
    found = {}
    for row in SHARED_ROWS:
        place = _place(ROT_MNIST.rows[row])
        if place in names:
            found[row] = names[place]
    return found


def _labels() -> dict[str, str]:
    labels = {f"rot-mnist/{row}": row for row in SHARED_ROWS}
    for row, place in _taken().items():
        labels[f"rot-mnist/{row}"] = f"{place} = {row}"
    return labels


LABELS = _labels()
"""What the study calls the rows of rot-mnist that belong to it."""


def _rows() -> dict[str, Settings]:
    rows = dict(_grid())
    for place in _taken().values():
        # rot-mnist trains it already
        del rows[place]
    named: dict[str, Settings] = {row: ROT_MNIST.rows[row] for row in SHARED_ROWS}
    named["e2cnn-alone"] = {**named["e2cnn"], "augment": False}
    named["free"] = {**named["equivariant"], "tie": "free"}
    rows["tied"] = {"beta": 0.0, "tie": "free"}
    rows["free"] = named["free"]
    for row in ROWS_AT_2X:
        rows[f"{row}-2x"] = named[row]
    for row in ROWS_UNDER_FLIP:
        rows[f"flip-{row}"] = {**named[row], "group": "flip", "feature_groups": "2"}
    for count in SUBSETS:
        for row in ROWS_ON_SUBSETS:
            rows[f"n{count}-{row}"] = {**named[row], "subset": count}
    return rows


def _settings(row: str, preset: str) -> Settings:
    settings: dict[str, Any] = {"dataset": "rot-mnist"}
    if "e2cnn" in row and preset == "paper":
        # as in rot-mnist, so that rows of both tables can stand side by side
        settings |= E2CNN_RECIPE
    settings |= SIZES[preset]
    if row.startswith("flip-"):  # twice as many feature groups of half the size: the same channels
        settings["width"] = 2 * ROT_MNIST.config("cnn-aug", preset).network.width
    if row.startswith("n") and preset == "smoke":
        # smoke has fewer images than the row is named for
        count = row.removeprefix("n").split("-")[0]
        settings["subset"] = SUBSETS[int(count)]
    return settings


NOTE_ON_SUBSETS = (
    "500 and 2,000 digits are drawn by the seed, others for each, in epochs as long as those of all digits: "
    "steps and training images seen are the same"
)
NOTES = (
    "a name with = is a place in the grid and the row of rot-mnist that has it, trained once",
    NOTE_ON_TIED,
    NOTE_ON_EQUIVARIANT,
    NOTE_ON_FREE,
    NOTE_ON_2X,
    NOTE_ON_E2CNN_ALONE,
    NOTE_ON_EARLIER_RUNS,
)
"""What a reader of the rows on all digits has to know."""
NOTES_ON_FEWER = (NOTE_ON_SUBSETS, NOTE_ON_EQUIVARIANT, NOTE_ON_FREE, NOTE_ON_EARLIER_RUNS)
"""The same for rows on fewer digits."""


def _deviations(row: str, settings: Settings) -> tuple[str, ...]:
    # the row of rot-mnist that is trained in the same way
    twin = "e2cnn" if "e2cnn" in row else "cnn-aug"
    found = ROT_MNIST.deviations[twin] + notes_beyond_the_paper(row, settings)
    if row.startswith("n"):
        found += (NOTE_ON_SUBSETS,)
    return found


STUDY = Table(
    "study",
    _rows(),
    _settings,
    deviations={row: _deviations(row, settings) for row, settings in _rows().items()},
)
