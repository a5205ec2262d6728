"""Every row of every table of the paper, and of the study beyond it, as values, and what runs them."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from types import ModuleType

from .._text import nearest
from ..report import PaperRow
from ..training import Config
from . import rot_mnist
from .rows import Rows
from .scale import ROT_SCALE_MNIST, SCALE_MNIST, STL10
from .study import STUDY
from .tim import R2_TIM, ROT_TIM
from .tracking import TRACKING

__all__ = ["DATASETS", "PRESETS", "check_preset", "config", "deviations", "find", "names", "paper"]

DATASETS: dict[str, ModuleType | Rows] = {
    "rot-mnist": rot_mnist,
    "rot-tim": ROT_TIM,
    "r2-tim": R2_TIM,
    "scale-mnist": SCALE_MNIST,
    "stl10": STL10,
    "rot-scale-mnist": ROT_SCALE_MNIST,
    "tracking": TRACKING,
    "study": STUDY,
}
"""The first part of an experiment's name → its rows."""
PRESETS = ("paper", "small", "demo", "smoke")


def names() -> list[str]:
    """All experiments, ``dataset/row``, in the order of the tables."""
    return [f"{dataset}/{row}" for dataset, module in DATASETS.items() for row in module.ROWS]


def find(*patterns: str) -> list[str]:
    """The experiments that names and patterns such as ``rot-mnist/*`` mean, each once.

    >>> find("rot-mnist/ien-r4", "rot-mnist/ien-r4*1")
    ['rot-mnist/ien-r4', 'rot-mnist/ien-r4-beta0.01', 'rot-mnist/ien-r4-beta0.1']
    """
    found: dict[str, None] = {}
    for pattern in patterns:
        matching = fnmatch.filter(names(), pattern)
        if not matching:
            raise ValueError(f"there is no experiment {pattern!r}; {nearest(pattern, names())}")
        found |= dict.fromkeys(matching)
    return list(found)


def config(name: str, preset: str) -> Config:
    """The configuration of one experiment at one size.

    >>> config("rot-mnist/ien-r4-beta0.1", "paper").beta
    0.1
    """
    if name not in names():
        raise ValueError(f"{name!r} is a pattern; name one experiment, such as {find(name)[0]}")
    check_preset(preset)
    dataset, row = name.split("/")
    return DATASETS[dataset].config(row, preset)


def check_preset(preset: str) -> None:
    if preset not in PRESETS:
        raise ValueError(f"there is no preset {preset!r}; there are {', '.join(PRESETS)}")


def paper(dataset: str) -> Mapping[str, PaperRow]:
    """The paper's figures by experiment."""
    return {f"{dataset}/{row}": figures for row, figures in DATASETS[dataset].PAPER.items()}


def deviations(name: str) -> tuple[str, ...]:
    """What we do otherwise than the paper's authors, whatever the preset."""
    dataset, row = name.split("/")
    return DATASETS[dataset].DEVIATIONS[row]
