"""A table of experiments as a value: its rows, their settings, and the paper's numbers.

A row is a name and the few fields that set it apart. A preset is a size, the same for all rows of a
table. Together they are a configuration, so no experiment needs a file of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..report import PaperRow
from ..training import Config, change

__all__ = [
    "EQUIVARIANT",
    "NOTE_ON_2X",
    "NOTE_ON_E2CNN_ALONE",
    "NOTE_ON_EARLIER_RUNS",
    "NOTE_ON_EQUIVARIANT",
    "NOTE_ON_FREE",
    "NOTE_ON_TIED",
    "PRESETS",
    "USUAL_PRESETS",
    "Settings",
    "Table",
    "notes_beyond_the_paper",
]

Settings = Mapping[str, Any]
"""Fields of a configuration by name; the others keep their default."""
PRESETS = ("paper", "medium", "small", "demo", "smoke")
"""Sizes of a run, from the paper's own down to one that only shows that everything works."""
USUAL_PRESETS = ("paper", "small", "demo", "smoke")
"""The sizes that every table has."""

EQUIVARIANT: dict[str, Any] = {"tie": "smooth", "augment": False, "beta": 0.0}
"""Weights tied by ``ien.make_equivariant`` throughout training: every row called equivariant.

Images are also transformed if an element resamples. Chosen on validation images of Rot-MNIST at the
preset small, from this, free kernels, and whole orbits with the loss.
"""

# Notes that tables print below rows that the paper does not have.
NOTE_ON_TIED = (
    "tied: an ordinary network whose weights ien.make_equivariant ties throughout training, with free "
    "kernels; BatchNorm pools its statistics over the members of a feature group"
)
NOTE_ON_EQUIVARIANT = (
    "equivariant: tied, with smooth kernels, and shown each image once, without copies; as many steps and "
    "epochs as the other rows, so half of their compute, and all of it in equivariant-2x"
)
NOTE_ON_EARLIER_RUNS = (
    "tied, free, flip-equivariant and n500-equivariant (rotate=true) were trained by an earlier version, in "
    "which BatchNorm saw each member of a feature group by itself in training"
)
NOTE_ON_FREE = "free: as equivariant, with free kernels, like those of tied"
NOTE_ON_2X = (
    "rows with 2x are trained for twice as many epochs; study/cnn-aug-2x, which has copies, has twice the "
    "compute of other rows"
)
NOTE_ON_CNN_AUG_ALONE = (
    "cnn-aug-alone-2x: CNN-aug without copies too and with twice as many epochs as cnn-aug"
)
NOTE_ON_E2CNN_ALONE = "e2cnn-alone-2x: E2CNN without copies too and with twice as many epochs as e2cnn"


@dataclass(frozen=True)
class Table:
    """The experiments whose names begin with the name of the table."""

    name: str
    """Also the name of the data set, unless the settings say otherwise."""
    rows: Mapping[str, Settings]
    """Row → what sets it apart from the others."""
    settings: Callable[[str, str], Settings]
    """From a row and a preset to the settings of that size."""
    paper: Mapping[str, PaperRow] = field(default_factory=dict)
    """Row → the numbers that the paper prints for it."""
    deviations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Row → what we do differently from the paper's authors, whatever the preset."""
    config_class: type[Config] = Config
    """The class of the configurations, which names the kind of task that they train."""
    presets: tuple[str, ...] = USUAL_PRESETS
    """The sizes that its rows have."""

    def config(self, row: str, preset: str) -> Config:
        """Return the configuration of a row at a preset.

        Raises:
            ValueError: The table has no such preset.
        """
        if preset not in self.presets:
            raise ValueError(f"{self.name} has no preset {preset!r}; choose from {', '.join(self.presets)}")
        # the size comes last: at smoke it also cuts down what a row asks for
        settings = {"dataset": self.name, **self.rows[row], **self.settings(row, preset)}
        config = self.config_class.of(f"{self.name}/{row}", preset, **settings)
        if row.endswith("-2x"):
            # without views, twice as many epochs are the compute of rows that have them
            return change(config, [f"epochs={2 * config.schedule.epochs}"])
        return config


def notes_beyond_the_paper(row: str, settings: Settings) -> tuple[str, ...]:
    """Say what there is to know of a row that goes beyond the paper."""
    notes = []
    tie = settings.get("tie", "never")
    tied = tie in ("free", "smooth")
    # no views beside the image itself
    alone = not settings.get("augment", True)
    if tied:
        notes.append(NOTE_ON_TIED)
    if tied and alone:
        notes.append(NOTE_ON_EQUIVARIANT)
        if tie == "free":
            notes.append(NOTE_ON_FREE)
    if row.endswith("-2x"):
        notes.append(NOTE_ON_2X)
    if "cnn-aug-alone" in row:
        notes.append(NOTE_ON_CNN_AUG_ALONE)
    if "e2cnn-alone" in row:
        notes.append(NOTE_ON_E2CNN_ALONE)
    return tuple(notes)
