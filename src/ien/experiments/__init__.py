"""Every row of every table of the paper, as Python values, and the queue that runs them."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Mapping
from types import ModuleType

from ..report import PaperRow
from ..training import Config
from . import rot_mnist

__all__ = ["DATASETS", "PRESETS", "config", "deviations", "find", "names", "paper"]

DATASETS: dict[str, ModuleType] = {"rot-mnist": rot_mnist}
PRESETS = ("paper", "small", "smoke")


def names() -> list[str]:
    """All experiments, ``dataset/row``, in the order of the tables."""
    return [f"{dataset}/{row}" for dataset, module in DATASETS.items() for row in module.ROWS]


def find(pattern: str) -> list[str]:
    """The experiments that a name or a pattern such as ``rot-mnist/*`` means."""
    found = fnmatch.filter(names(), pattern)
    if not found:
        close = difflib.get_close_matches(pattern, names(), n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(close)}?" if close else "see ien list"
        raise ValueError(f"there is no experiment {pattern!r}; {hint}")
    return found


def config(name: str, preset: str) -> Config:
    """The configuration of one experiment at one size.

    >>> config("rot-mnist/ien-r4-beta0.1", "paper").beta
    0.1
    """
    if name not in names():
        find(name)  # names the nearest
        raise ValueError(f"{name!r} is a pattern; name one experiment, such as {find(name)[0]}")
    if preset not in PRESETS:
        raise ValueError(f"preset is {', '.join(PRESETS[:-1])} or {PRESETS[-1]}; got {preset!r}")
    dataset, row = name.split("/")
    return DATASETS[dataset].config(row, preset)


def paper(dataset: str) -> Mapping[str, PaperRow]:
    """The paper's figures by experiment."""
    return {f"{dataset}/{row}": figures for row, figures in DATASETS[dataset].PAPER.items()}


def deviations(name: str) -> tuple[str, ...]:
    """What we do otherwise than the paper's authors, whatever the preset."""
    return DATASETS[name.split("/")[0]].DEVIATIONS
