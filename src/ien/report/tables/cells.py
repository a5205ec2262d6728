"""Cells: what all tables share, from the paper's figures and numbers to the text of a cell."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..records import Row

__all__ = ["TEXT_COLUMNS", "PaperRow", "Table", "figures_of", "human", "number", "with_spread"]

TEXT_COLUMNS = ("row", "preset", "data", "seeds")


@dataclass(frozen=True)
class PaperRow:
    """What the paper prints for one experiment; what it does not print is NaN.

    >>> str(PaperRow(98.6)), str(PaperRow(success=0.37, precision=0.63))
    ('98.6 %', '0.37 / 0.63')
    """

    accuracy: float = math.nan
    """In percent."""
    exponents: tuple[int, ...] = ()
    """Of ten, for L_G, from the first layer to the last."""
    success: float = math.nan
    """Of a tracker, on Rot-OTB."""
    precision: float = math.nan

    def __str__(self) -> str:
        if math.isnan(self.accuracy):
            return f"{self.success:.2f} / {self.precision:.2f}"
        return f"{self.accuracy} %"


class Table(NamedTuple):
    title: str
    header: list[str]
    lines: list[list[str]]


def figures_of(row: Row, paper: Mapping[str, PaperRow]) -> PaperRow | None:
    # a changed row is no longer the paper's experiment
    return None if row.changes else paper.get(row.experiment)


def number(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else "–"


def with_spread(values: Sequence[float], form: str) -> str:
    """Mean and sample standard deviation; of a single value there is no spread.

    >>> with_spread([1.0, 2.0, 3.0], ".1f"), with_spread([0.5], ".2f")
    ('2.0 ± 1.0', '0.50')
    """
    mean = number(statistics.fmean(values), form)
    return mean if len(values) == 1 or mean == "–" else f"{mean} ± {statistics.stdev(values):{form}}"


def human(count: float) -> str:
    """Three digits and a unit: 174 k, 12.3 M."""
    if not math.isfinite(count):
        return "–"
    for unit in ("", " k", " M", " G"):
        if count < 999.5:
            return f"{count:.3g}{unit}"
        count /= 1000
    return f"{count:.3g} T"
