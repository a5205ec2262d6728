"""The table of segmentation: Dice, how well predictions rotate with the image, errors and cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..records import Record, read_number
from ..rows import Row
from .agreement import least_seconds, mean_of, most_slack, worst_error
from .columns import NAME_COLUMNS, Column, PaperRow, Table, counts, table_of, with_spread

__all__ = ["Segmented"]


@dataclass(frozen=True)
class Segmented:
    """How rows are shown that segment images."""

    tested_with: ClassVar[str] = "images"

    def tables(self, title: str, rows: Sequence[Row], paper: Mapping[str, PaperRow]) -> list[Table]:
        """Return one table; ``title`` stands before its own."""
        columns = [
            *NAME_COLUMNS,
            Column("Dice", _spread("dice")),
            Column("under group", _spread("dice_under_group")),
            Column("consistency", _spread("consistency")),
            Column("worst error", mean_of(worst_error), ".1e"),
            Column("most slack", mean_of(most_slack), ".2f"),
            Column("params", counts(lambda record: record.parameters)),
            Column("MACs", counts(lambda record: record.macs)),
            Column("training s", least_seconds, ",.0f"),
        ]
        return [table_of(f"{title}Dice, and how predictions rotate with the image", rows, columns)]

    def notes(self, named: Sequence[tuple[str, Row]]) -> list[str]:
        """Say nothing: the table has its notes."""
        return []


def _spread(field: str) -> Callable[[Row], str]:
    """Return the cell of a score that only records of segmentation have."""

    def value(record: Record) -> float:
        return read_number(record.content, field)

    def cell(row: Row) -> str:
        return with_spread([value(record) for record in row.records], ".3f")

    return cell
