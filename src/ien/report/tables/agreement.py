"""The table of how symmetric predictions are: accuracy, agreement, errors and cost side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..records import Record
from ..rows import Row
from .columns import NAME_COLUMNS, Column, PaperRow, Table, counts, table_of, with_spread

__all__ = ["Agreement", "least_seconds", "mean_of", "most_slack", "worst_error"]


@dataclass(frozen=True)
class Agreement:
    """How rows are shown that ask whether data have a symmetry."""

    tested_with: ClassVar[str] = "images"

    def tables(self, title: str, rows: Sequence[Row], paper: Mapping[str, PaperRow]) -> list[Table]:
        """Return one table; ``title`` stands before its own."""
        columns = [
            *NAME_COLUMNS,
            Column("accuracy %", _percent(lambda record: record.accuracy, ".2f")),
            Column("agreement %", _percent(lambda record: record.agreement, ".1f")),
            Column("under group %", _percent(lambda record: record.accuracy_under_group, ".2f")),
            Column("worst error", mean_of(worst_error), ".1e"),
            Column("most slack", mean_of(most_slack), ".2f"),
            Column("MACs", counts(lambda record: record.macs)),
            Column("training s", least_seconds, ",.0f"),
        ]
        return [table_of(f"{title}Accuracy and agreement", rows, columns)]

    def notes(self, named: Sequence[tuple[str, Row]]) -> list[str]:
        """Say nothing: notes are too long for every data set, so the table has them once."""
        return []


def _percent(value: Callable[[Record], float], form: str) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        return with_spread([100 * value(record) for record in row.records], form)

    return cell


def mean_of(value: Callable[[Record], float]) -> Callable[[Row], float]:
    """Return the cell of a mean over the seeds."""

    def cell(row: Row) -> float:
        values = [value(record) for record in row.records]
        return math.fsum(values) / len(values)

    return cell


def least_seconds(row: Row) -> float:
    """Return the training time of the fastest seed: other work on a machine only adds to it."""
    return min(record.seconds for record in row.records)


def most_slack(record: Record) -> float:
    """Return the slack of the layer that has left the symmetry furthest; NaN without slack."""
    return max(record.slack.values(), default=math.nan)


def worst_error(record: Record) -> float:
    """Return the largest relative error of a layer; NaN if one was not measured."""
    errors = [layer.relative for layer in record.layers.values()]
    if not errors or any(map(math.isnan, errors)):
        return math.nan
    return max(errors)
