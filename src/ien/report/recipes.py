"""Recipes: from rows of a table to their settings, their names, and the blocks in which a plot shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from ..models import NAMES as MODELS
from ..training.config import MACHINE, Config
from .plots.runs import row_labels
from .plots.style import needs
from .records import Row

__all__ = [
    "IMAGES",
    "Block",
    "blocks_of",
    "check_dataset",
    "has_loss",
    "recipe_of",
    "row_names",
    "settings_of",
]

NAMES = ("experiment", "preset", "seed", "weights_of")
LOSS, VIEWS, IMAGES = ("action", "beta"), ("start", "orbits", "samples"), ("train_images", "subset")
FEW = 3
"""A section without a block of so many rows is not divided."""


class Block(NamedTuple):
    """Rows that stand together."""

    section: str
    """Preset, data, network, training images and group, as far as they differ between rows; may be empty."""
    title: str
    """What tells it from other blocks of the section; may be empty."""
    rows: list[Row]


def check_dataset(rows: Sequence[Row]) -> None:
    """An error if there are no rows, or rows of several data sets."""
    needs(rows, "row")
    found = list(dict.fromkeys(row.records[0].data for row in rows))
    if len(found) > 1:
        table = rows[0].experiment.split("/")[0]
        raise ValueError(
            f"the rows are of {len(found)} data sets ({', '.join(found)}): "
            f"choose those of one, as in '{table}/*'"
        )


def row_names(rows: Sequence[Row]) -> list[str]:
    """The rows' own labels, with table, preset and data where these differ."""
    tables, labels = [row.experiment.rpartition("/")[0] for row in rows], row_labels(rows)
    if len(set(tables)) < 2:
        return labels
    return [f"{table}/{label}" for table, label in zip(tables, labels, strict=True)]


def settings_of(row: Row) -> dict[str, Any]:
    """Its configuration; a field that is younger than the record has its default: that is what was done."""
    given = row.records[0].config
    return {field.name: given.get(field.name, field.default) for field in fields(Config)}


def recipe_of(row: Row, *without: str) -> dict[str, str]:
    """The settings that make its results, as text: not names, seed and machine, nor those ``without``."""
    left_out = {*NAMES, *MACHINE, *without}
    return {name: str(value) for name, value in settings_of(row).items() if name not in left_out}


def has_loss(row: Row) -> bool:
    """Whether it was trained with the equivariance loss."""
    settings = settings_of(row)
    return bool(settings["augment"] and settings["beta"])


def blocks_of(rows: Sequence[Row]) -> list[Block]:
    """All rows, those that differ in the loss alone beside each other: first without it, then by beta.

    A section has a block for each start and number of copies, and one for rows with other settings than most.
    """
    usual = _commonest(name for name in map(_network, rows) if name in MODELS)
    sections: dict[_Section, list[Row]] = {}
    for row in rows:
        sections.setdefault(_section(row, usual), []).append(row)
    order = sorted(sections, key=lambda s: (*s[:3], -s.images, -len(sections[s]), s.group))
    told = [i for i in range(len(_Section._fields)) if len({section[i] for section in sections}) > 1]
    return [
        Block(", ".join(section.words[i] for i in told), title, some)
        for section in order
        for title, some in _parts(sections[section])
    ]


class _Section(NamedTuple):
    preset: str
    data: str
    network: str
    images: int
    group: str

    @property
    def words(self) -> tuple[str, ...]:
        return self.preset, self.data, self.network, f"{self.images:,} training images", self.group


def _section(row: Row, usual: str) -> _Section:
    network = _network(row)
    if network not in MODELS:  # a baseline stands beside the network that it is compared with
        network = usual
    return _Section(row.preset, row.data, network, row.records[0].train, str(settings_of(row)["group"]))


def _network(row: Row) -> str:
    return str(settings_of(row)["model"]).removeprefix("e2cnn-")


def _parts(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """The blocks of a section, with their titles."""
    recipes = [recipe_of(row, *LOSS, *VIEWS, *IMAGES) for row in rows]
    usual = {name: _commonest(recipe.get(name, "") for recipe in recipes) for name in recipes[0]}
    marked = sorted(
        ((recipe != usual, *_order(row)), i)
        for i, (row, recipe) in enumerate(zip(rows, recipes, strict=True))
    )
    blocks: dict[tuple[str, ...], list[Row]] = {}
    for (other, *_), i in marked:
        blocks.setdefault(("other settings",) if other else _views(rows[i]), []).append(rows[i])
    divided = {views: some for views, some in blocks.items() if len(views) > 1}
    if max(map(len, divided.values()), default=0) < FEW:
        return [("", [rows[i] for _, i in marked])]
    told = [i for i in range(2) if len({views[i] for views in divided}) > 1]
    return [
        (", ".join([views[i] for i in told] if views in divided else views), some)
        for views, some in blocks.items()
    ]


def _order(row: Row) -> tuple[Any, ...]:
    settings, with_loss = settings_of(row), has_loss(row)
    views = settings["start"] != "random", settings["orbits"], settings["samples"]
    return *views, with_loss, with_loss * settings["action"], settings["beta"], row.label


def _views(row: Row) -> tuple[str, str]:
    """How its network starts, and the copies of an image that it sees in a step."""
    settings = settings_of(row)
    copies = "one copy" if settings["samples"] == 1 else f"{settings['samples']} copies"
    return f"{settings['start']} start", "whole orbits" if settings["orbits"] else copies


def _commonest(values: Iterable[str]) -> str:
    """The first of those that are there most often; empty if there are none."""
    return next((value for value, _ in Counter(values).most_common(1)), "")
