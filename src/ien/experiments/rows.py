"""Rows: what the experiments of one data set have in common, from the name of a row to its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..report import PaperRow
from ..training import Config, change

__all__ = ["ALONE", "FREE", "RECOMMENDED", "STEERABLE_ALONE", "TIED", "TWICE", "Rows", "beyond"]

RECOMMENDED: dict[str, Any] = {
    "start": "equivariant",
    "kernels": "smooth",
    "tied": True,
    "augment": False,
    "beta": 0.0,
}
"""What ien.recommended does for quarter turns and flips, and every row that is called recommended; besides,
images are transformed where an element resamples.

Chosen on validation images of Rot-MNIST at the preset small, among these, free kernels, and whole orbits with
the loss.
"""


TIED = (
    "tied: an ordinary network that starts equivariant and whose gradients are those of tied weights, "
    "averaged over the group in every step; BatchNorm sees each member by itself in training"
)
ALONE = (
    "recommended: tied, with smooth kernels, and shown each image once, without copies; as many steps and "
    "epochs as the other rows, so half of their compute, and all of it in recommended-2x"
)
FREE = "free: as recommended, with kernels that are tied as they are, like those of tied"
TWICE = (
    "rows with 2x are trained for twice as many epochs; study/cnn-aug-2x, which has copies, has twice the "
    "compute of other rows"
)
AUGMENTED_ALONE = "cnn-aug-alone-2x: CNN-aug without copies too and with twice as many epochs as cnn-aug"
STEERABLE_ALONE = "e2cnn-alone-2x: E2CNN without copies too and with twice as many epochs as e2cnn"
"""What a reader has to know of rows that go beyond the paper."""


def beyond(row: str, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """What there is to know of a row that goes beyond the paper."""
    tied, alone = settings.get("tied", False), not settings.get("augment", True)
    return (
        *[TIED] * tied,
        *[ALONE] * (tied and alone),
        *[FREE] * (tied and alone and settings["kernels"] == "free"),
        *[TWICE] * row.endswith("-2x"),
        *[AUGMENTED_ALONE] * ("cnn-aug-alone" in row),
        *[STEERABLE_ALONE] * ("e2cnn-alone" in row),
    )


@dataclass(frozen=True)
class Rows:
    """The rows of one data set."""

    dataset: str
    ROWS: Mapping[str, Mapping[str, Any]]
    PAPER: Mapping[str, PaperRow]
    DEVIATIONS: Mapping[str, tuple[str, ...]]
    preset: Callable[[str, str], Mapping[str, Any]]
    """The settings of a row at a preset, besides its own; a data set among them goes before the name."""

    kind: type[Config] = Config
    """The class of their configurations, which says what kind of task they train."""

    def config(self, row: str, preset: str) -> Config:
        settings = {"dataset": self.dataset, **self.ROWS[row], **self.preset(row, preset)}
        config = self.kind.of(f"{self.dataset}/{row}", preset, **settings)
        # without copies, twice as many epochs are the compute of rows that have them
        return change(config, [f"epochs={2 * config.schedule.epochs}"]) if row.endswith("-2x") else config
