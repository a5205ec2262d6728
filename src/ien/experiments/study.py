"""The study: rows that tell what each change to the paper's recipe brings, at equal compute, as values."""

from __future__ import annotations

from itertools import product
from typing import Any

from .rot_mnist import E2CNN_RECIPE, ROT_MNIST, SIZES
from .rows import ALONE, FREE, STEERABLE_ALONE, TIED, TWICE, Settings, Table, notes_beyond_the_paper

__all__ = ["LABELS", "LONGER", "NOTES", "NOTES_ON_FEWER", "STUDY"]

ACTIONS = ("pooled", "regular")
STARTS = ("random", "equivariant")
SAMPLES = {"1": False, "all": True}
"""Views of an image in a step, and whether they are whole orbits."""
BETAS = (0.0, 0.1, 1.0)
BESIDE_THE_GRID = ("cnn-aug", "cnn-aug-tta", "e2cnn", "ien-r4", "ien-r4-beta0.1", "recommended")
"""Rows of rot-mnist that stand in the grid or beside it, and are not trained again."""
WRONG_GROUP = ("cnn-aug", "free", "ien-r4", "recommended")
"""Rows that are also trained under the wrong group: a mirrored digit is not a digit."""
ON_FEWER_IMAGES = ("cnn-aug", "e2cnn", "free", "ien-r4", "ien-r4-beta0.1", "recommended")
"""Rows that are also trained on fewer images: the paper's main one, the other beta of the grid, and ours."""
LONGER = ("cnn-aug", "e2cnn-alone", "free", "recommended")
"""Rows that are also trained for twice as many epochs."""
SUBSETS = {500: 32, 2000: 64}
"""Images to train on, and how many at the preset smoke, which has 128 in all."""
USUAL = {"action": "pooled", "start": "random", "orbits": False, "beta": 1.0}
"""The fields that make up the grid, and their defaults."""


def _grid() -> dict[str, Settings]:
    """Action × start × samples × beta; without the loss there is no action."""
    rows: dict[str, Settings] = {}
    for start, (samples, orbits), beta in product(STARTS, SAMPLES.items(), BETAS):
        same = {"start": start, "orbits": orbits, "beta": beta}
        if beta == 0:
            rows[f"{start}-{samples}-beta0"] = same
            continue
        for action in ACTIONS:
            rows[f"{action}-{start}-{samples}-beta{beta:g}"] = {"action": action, **same}
    return rows


def _place(settings: Settings) -> tuple[Any, ...] | None:
    """Where a row with these settings stands in the grid; None if it differs in other fields too."""
    if not set(settings) <= set(USUAL):
        return None
    action, start, orbits, beta = (USUAL | dict(settings)).values()
    if beta == 0:
        action = ""
    return action, start, orbits, beta


def _taken() -> dict[str, str]:
    """Rows of rot-mnist that have a place in the grid → the name of that place."""
    names = {_place(settings): name for name, settings in _grid().items()}
    found = {}
    for row in BESIDE_THE_GRID:
        place = _place(ROT_MNIST.rows[row])
        if place in names:
            found[row] = names[place]
    return found


def _labels() -> dict[str, str]:
    labels = {f"rot-mnist/{row}": row for row in BESIDE_THE_GRID}
    for row, place in _taken().items():
        labels[f"rot-mnist/{row}"] = f"{place} = {row}"
    return labels


LABELS = _labels()
"""What the study calls the rows of rot-mnist that belong to it."""


def _rows() -> dict[str, Settings]:
    rows = dict(_grid())
    for place in _taken().values():
        del rows[place]
    named: dict[str, Settings] = {row: ROT_MNIST.rows[row] for row in BESIDE_THE_GRID}
    named["e2cnn-alone"] = {**named["e2cnn"], "augment": False}
    named["free"] = {**named["recommended"], "kernels": "free"}
    rows["tied"] = {"beta": 0.0, "start": "equivariant", "tied": True}
    rows["free"] = named["free"]
    for row in LONGER:
        rows[f"{row}-2x"] = named[row]
    for row in WRONG_GROUP:
        rows[f"flip-{row}"] = {**named[row], "group": "flip", "feature_groups": "2"}
    for count in SUBSETS:
        for row in ON_FEWER_IMAGES:
            rows[f"n{count}-{row}"] = {**named[row], "subset": count}
    return rows


def _settings(row: str, preset: str) -> Settings:
    settings: dict[str, Any] = {"dataset": "rot-mnist"}
    if "e2cnn" in row and preset == "paper":
        settings |= E2CNN_RECIPE
    settings |= SIZES[preset]
    if row.startswith("flip-"):  # twice as many feature groups of half the size: the same channels
        settings["width"] = 2 * ROT_MNIST.config("cnn-aug", preset).network.width
    if row.startswith("n") and preset == "smoke":
        count = row.removeprefix("n").split("-")[0]
        settings["subset"] = SUBSETS[int(count)]
    return settings


DRAWN = (
    "500 and 2,000 digits are drawn by the seed, others for each, in epochs as long as those of all digits: "
    "steps and training images seen are the same"
)
NOTES = (
    "a name with = is a place in the grid and the row of rot-mnist that has it, trained once",
    TIED,
    ALONE,
    FREE,
    TWICE,
    STEERABLE_ALONE,
)
"""What a reader of the rows on all digits has to know."""
NOTES_ON_FEWER = (DRAWN, ALONE, FREE)
"""The same for rows on fewer digits."""


def _deviations(row: str, settings: Settings) -> tuple[str, ...]:
    twin = "e2cnn" if "e2cnn" in row else "cnn-aug"
    found = ROT_MNIST.deviations[twin] + notes_beyond_the_paper(row, settings)
    if row.startswith("n"):
        found += (DRAWN,)
    return found


STUDY = Table(
    "study",
    _rows(),
    _settings,
    deviations={row: _deviations(row, settings) for row, settings in _rows().items()},
)
