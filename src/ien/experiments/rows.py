"""Rows: what the experiments of one data set have in common, from the name of a row to its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..report import PaperRow
from ..training import Config

__all__ = ["RECOMMENDED", "Rows", "twice"]

RECOMMENDED: dict[str, Any] = {"start": "equivariant", "tied": True, "augment": False, "beta": 0.0}
"""What ien.recommended does for quarter turns and flips, and every row that is called recommended.

Chosen on validation images of Rot-MNIST at the preset small, among these and whole orbits with the loss.
"""


def twice(settings: Mapping[str, Any]) -> dict[str, Any]:
    """These settings with twice as many epochs: without copies, the compute of the usual ones with them."""
    longer = {name: 2 * settings.get(name, getattr(Config, name)) for name in ("epochs", "cycle_epochs")}
    return {**settings, **longer}


@dataclass(frozen=True)
class Rows:
    """The rows of one data set."""

    dataset: str
    ROWS: Mapping[str, Mapping[str, Any]]
    PAPER: Mapping[str, PaperRow]
    DEVIATIONS: Mapping[str, tuple[str, ...]]
    preset: Callable[[str, str], Mapping[str, Any]]
    """The settings of a row at a preset, besides its own; a data set among them goes before the name."""

    def config(self, row: str, preset: str) -> Config:
        settings = {"dataset": self.dataset, **self.ROWS[row], **self.preset(row, preset)}
        return Config(f"{self.dataset}/{row}", preset, **settings)
