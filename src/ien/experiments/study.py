"""The study: rows that tell what each change to the paper's recipe brings, at equal compute, as values."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from . import rot_mnist
from .rows import ALONE, FREE, STEERABLE_ALONE, TIED, TWICE, Rows, beyond

__all__ = ["LABELS", "NOTES", "STUDY"]

ACTIONS, STARTS, BETAS = ("pooled", "regular"), ("random", "equivariant"), (0.0, 0.1, 1.0)
SAMPLES = {"1": False, "all": True}
"""Copies of an image in a step, and whether they are whole orbits."""
BESIDE = ("cnn-aug", "cnn-aug-tta", "e2cnn", "ien-r4", "ien-r4-beta0.1", "recommended")
"""Rows of rot-mnist that stand in the grid or beside it, and are not trained again."""
WRONG = ("cnn-aug", "free", "ien-r4", "recommended")
"""Rows that are also trained under the wrong group: a mirrored digit is no digit."""
REPEATED = ("cnn-aug", "e2cnn", "free", "ien-r4", "ien-r4-beta0.1", "recommended")
"""Rows that are also trained on fewer images; of the paper's its main one, and the other beta of the grid."""
LONGER = ("cnn-aug", "e2cnn-alone", "free", "recommended")
"""Rows that are also trained for twice as many epochs."""
FEWER = {500: 32, 2000: 64}
"""So many images, and at the preset smoke, which has 128 in all."""


def _grid() -> dict[str, dict[str, Any]]:
    """Action × start × samples × beta; without the loss there is no action."""
    rows: dict[str, dict[str, Any]] = {}
    for start, (samples, orbits), beta in product(STARTS, SAMPLES.items(), BETAS):
        same = {"start": start, "orbits": orbits, "beta": beta}
        for action in ACTIONS if beta else ():
            rows[f"{action}-{start}-{samples}-beta{beta:g}"] = {"action": action, **same}
        if not beta:
            rows[f"{start}-{samples}-beta0"] = same
    return rows


def _place(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    """Where a row with these settings stands in the grid; nowhere if it differs in others as well."""
    usual = {"action": "pooled", "start": "random", "orbits": False, "beta": 1.0}
    action, *others, beta = ({**usual, **settings}[name] for name in usual)
    return (action if beta else "", *others, beta) if set(settings) <= set(usual) else ()


_TAKEN = {
    row: name
    for (name, settings), row in product(_grid().items(), BESIDE)
    if _place(settings) == _place(rot_mnist.ROWS[row])
}
"""The places that rows beside the grid have in it."""
LABELS = {f"rot-mnist/{row}": f"{_TAKEN[row]} = {row}" if row in _TAKEN else row for row in BESIDE}
"""What the study calls the rows of rot-mnist that belong to it."""


def _rows() -> dict[str, dict[str, Any]]:
    grid = {place: settings for place, settings in _grid().items() if place not in _TAKEN.values()}
    tied = {"beta": 0.0, "start": "equivariant", "tied": True}
    named: dict[str, dict[str, Any]] = {row: rot_mnist.ROWS[row] for row in BESIDE}
    named["e2cnn-alone"] = {**named["e2cnn"], "augment": False}
    named["free"] = {**named["recommended"], "kernels": "free"}
    flip = {"group": "flip", "feature_groups": "2"}
    return {
        **grid,
        "tied": tied,
        "free": named["free"],
        **{f"{row}-2x": named[row] for row in LONGER},
        **{f"flip-{row}": {**named[row], **flip} for row in WRONG},
        **{f"n{count}-{row}": {**named[row], "subset": count} for count in FEWER for row in REPEATED},
    }


def _preset(row: str, preset: str) -> dict[str, Any]:
    recipe = rot_mnist.E2CNN_RECIPE if "e2cnn" in row and preset == "paper" else {}
    settings = {"dataset": "rot-mnist", **recipe, **rot_mnist.PRESETS[preset]}
    if row.startswith("flip-"):  # twice as many feature groups of half the size: the same channels
        settings["width"] = 2 * rot_mnist.config("cnn-aug", preset).network.width
    if row.startswith("n") and preset == "smoke":
        settings["subset"] = FEWER[int(row[1:].split("-")[0])]
    return settings


_DRAWN = (
    "500 and 2,000 digits are drawn by the seed, others for each, in epochs as long as those of all digits: "
    "steps and training images seen are the same"
)
NOTES = {
    "": (
        "a name with = is a place in the grid and the row of rot-mnist that has it, trained once",
        TIED,
        ALONE,
        FREE,
        TWICE,
        STEERABLE_ALONE,
    ),
    "n": (_DRAWN, ALONE, FREE),
}
"""What a reader of the tables has to know: of rows on all digits, and on fewer."""


def _deviations(row: str, settings: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        *rot_mnist.DEVIATIONS["e2cnn" if "e2cnn" in row else "cnn-aug"],
        *beyond(row, settings),
        *[_DRAWN] * row.startswith("n"),
    )


_ROWS = _rows()
STUDY = Rows(
    "study", _ROWS, {}, {row: _deviations(row, settings) for row, settings in _ROWS.items()}, _preset
)
