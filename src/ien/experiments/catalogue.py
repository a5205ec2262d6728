"""All experiments by name: ``rot-mnist/ien-r4`` is row ``ien-r4`` of table ``rot-mnist``."""

from __future__ import annotations

import fnmatch

from .._text import nearest
from ..report import PaperRow
from ..training import Config
from .nuclei import NUCLEI
from .rot_mnist import ROT_MNIST
from .rows import PRESETS, Table
from .scale import ROT_SCALE_MNIST, SCALE_MNIST, STL10
from .size import SIZE
from .study import STUDY
from .symmetry import SYMMETRY
from .tim import R2_TIM, ROT_TIM
from .tracking import TRACKING

__all__ = ["CATALOGUE", "check_preset", "config", "deviations", "find", "names", "paper"]

# in the order in which ien list shows them
ALL_TABLES = (
    ROT_MNIST,
    ROT_TIM,
    R2_TIM,
    SCALE_MNIST,
    STL10,
    ROT_SCALE_MNIST,
    TRACKING,
    STUDY,
    SYMMETRY,
    SIZE,
    NUCLEI,
)
CATALOGUE: dict[str, Table] = {table.name: table for table in ALL_TABLES}
"""The first part of an experiment's name → its table."""


def names() -> list[str]:
    """Return all experiments, in the order of the tables."""
    found = []
    for table in ALL_TABLES:
        found += [f"{table.name}/{row}" for row in table.rows]
    return found


def find(*patterns: str) -> list[str]:
    """Return the experiments that match names or patterns such as ``rot-mnist/*``, each once.

    >>> find("rot-mnist/ien-r4", "rot-mnist/ien-r4*1")
    ['rot-mnist/ien-r4', 'rot-mnist/ien-r4-beta0.01', 'rot-mnist/ien-r4-beta0.1']
    """
    known = names()
    # a dict as an ordered set: two patterns may match the same row
    found: dict[str, None] = {}
    for pattern in patterns:
        matching = fnmatch.filter(known, pattern)
        if not matching:
            hint = nearest(pattern, known)
            rows = fnmatch.filter(known, f"{pattern}/*")
            if rows:
                hint = f"for all {len(rows)} of that table write '{pattern}/*'"
            raise ValueError(f"there is no experiment {pattern!r}; {hint}")
        found |= dict.fromkeys(matching)
    return list(found)


def config(name: str, preset: str) -> Config:
    """Return the configuration of one experiment at one size.

    >>> config("rot-mnist/ien-r4-beta0.1", "paper").objective.beta
    0.1
    """
    if name not in names():
        # find() raises, with the nearest names, if it is not a pattern either
        raise ValueError(f"{name!r} is a pattern; name one experiment, such as {find(name)[0]}")
    table, row = _split(name)
    return table.config(row, preset)


def check_preset(preset: str) -> None:
    """Raise if no table has such a preset."""
    if preset not in PRESETS:
        raise ValueError(f"there is no preset {preset!r}; choose from {', '.join(PRESETS)}")


def paper(table: str) -> dict[str, PaperRow]:
    """Return the paper's numbers for the rows of a table, by experiment."""
    return {f"{table}/{row}": numbers for row, numbers in CATALOGUE[table].paper.items()}


def deviations(name: str) -> tuple[str, ...]:
    """Say what we do differently from the paper's authors in an experiment, whatever the preset."""
    table, row = _split(name)
    return table.deviations[row]


def _split(name: str) -> tuple[Table, str]:
    table, row = name.split("/")
    return CATALOGUE[table], row
