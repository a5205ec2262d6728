"""What tables are made of: the paper's numbers, columns, and the text of a cell."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..._text import short_count
from ..records import Record
from ..rows import Row

__all__ = [
    "NAME_COLUMNS",
    "Column",
    "PaperRow",
    "Table",
    "counts",
    "formatted",
    "joined",
    "paper_row",
    "table_of",
    "with_spread",
]


@dataclass(frozen=True)
class PaperRow:
    """What the paper prints for one experiment; what it does not print is NaN.

    >>> str(PaperRow(98.6)), str(PaperRow(success=0.37, precision=0.63))
    ('98.6 %', '0.37 / 0.63')
    """

    accuracy: float = math.nan
    """In percent."""
    exponents: tuple[int, ...] = ()
    """Powers of ten of L_G, from the first layer to the last."""
    success: float = math.nan
    """For a tracker, on Rot-OTB."""
    precision: float = math.nan

    def __str__(self) -> str:
        if math.isnan(self.accuracy):
            return f"{self.success:.2f} / {self.precision:.2f}"
        return f"{self.accuracy} %"


class Table(NamedTuple):
    """A table as text."""

    title: str
    header: list[str]
    lines: list[list[str]]


class Column(NamedTuple):
    """A column of a table that has a line for each row."""

    title: str
    value: Callable[[Row], float | str]
    form: str = ""
    """How numbers are written, as in ``format(value, form)``."""

    def cell(self, row: Row) -> str:
        value = self.value(row)
        if isinstance(value, str):  # written already, such as a mean with its spread
            return value
        return formatted(value, self.form)


NAME_COLUMNS = (
    Column("row", lambda row: row.label),
    Column("preset", lambda row: row.preset),
    Column("data", lambda row: row.data),
    Column("seeds", lambda row: row.seeds),
)
"""The columns that say which row it is; all others hold numbers."""


def table_of(title: str, rows: Sequence[Row], columns: Sequence[Column]) -> Table:
    """Write a table with a line for each row."""
    lines = []
    for row in rows:
        lines.append([column.cell(row) for column in columns])
    return Table(title, [column.title for column in columns], lines)


def paper_row(row: Row, paper: Mapping[str, PaperRow]) -> PaperRow | None:
    """Return what the paper prints for a row; a changed row is another experiment."""
    if row.changes:
        return None
    return paper.get(row.experiment)


def formatted(value: float, form: str) -> str:
    """Write a number in a given form, and a dash for one that is missing.

    >>> formatted(0.5, ".2f"), formatted(float("nan"), ".2f")
    ('0.50', '–')
    """
    if not math.isfinite(value):
        return "–"
    return format(value, form)


def with_spread(values: Sequence[float], form: str) -> str:
    """Write mean and sample standard deviation; a single value has no spread.

    >>> with_spread([1.0, 2.0, 3.0], ".1f"), with_spread([0.5], ".2f")
    ('2.0 ± 1.0', '0.50')
    """
    mean = formatted(statistics.fmean(values), form)
    if len(values) == 1 or mean == "–":  # a seed that lacks the value leaves no mean
        return mean
    return f"{mean} ± {statistics.stdev(values):{form}}"


def counts(value: Callable[[Record], float]) -> Callable[[Row], str]:
    """Return the cell of a count, such as that of parameters, which may differ between seeds."""

    def cell(row: Row) -> str:
        return joined(short_count(value(record)) for record in row.records)

    return cell


def joined(texts: Iterable[str]) -> str:
    """Write the different texts of the seeds of one row.

    >>> joined(["174 k", "174 k", "180 k"])
    '174 k / 180 k'
    """
    return " / ".join(dict.fromkeys(texts))
