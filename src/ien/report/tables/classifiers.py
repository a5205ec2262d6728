"""The table of classifiers: accuracies beside the paper's, and what they cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..records import Record
from ..rows import Row
from .columns import NAME_COLUMNS, Column, PaperRow, Table, counts, formatted, joined, paper_row, table_of

__all__ = ["Classifiers"]

MEASURES = (
    "accuracy: mean ± sample standard deviation over the seeds; with copies: the authors' measure, over "
    "the originals and their transformed copies; training images seen: with their copies, each time; "
    "errors of layers: means over the seeds; images/s: the median, of rows on the machine that most are "
    "from, each measured beside whatever else ran on it"
)
REGULAR = (
    "per channel (regular): all channels of feature groups are compared, permuted by the element, instead "
    "of their maximum; on the first 2,000 test images"
)


@dataclass(frozen=True)
class Classifiers:
    """How rows of classifiers are shown."""

    errors: bool = False
    """Whether error rates are shown instead of accuracies, as the paper does for scale."""
    tested_with: ClassVar[str] = "images"

    def tables(self, title: str, rows: Sequence[Row], paper: Mapping[str, PaperRow]) -> list[Table]:
        """Return one table; ``title`` stands before its own."""
        name = "Accuracy"
        if self.errors:
            name = "Error rate"
        columns = [*NAME_COLUMNS, *self._accuracies(paper), *_costs(rows)]
        return [table_of(f"{title}{name} and cost", rows, columns)]

    def notes(self, named: Sequence[tuple[str, Row]]) -> list[str]:
        """Say how the rows were measured."""
        notes = [MEASURES]
        for _, row in named:
            if REGULAR not in notes and any(map(_has_regular, row.records)):
                notes.append(REGULAR)
        return notes

    def _accuracies(self, paper: Mapping[str, PaperRow]) -> list[Column]:
        def own(row: Row) -> str:
            mean, spread = row.accuracy
            if self.errors:
                mean = 100 - mean
            if spread is None:
                return f"{mean:.2f}"
            return f"{mean:.2f} ± {spread:.2f}"

        def with_copies(row: Row) -> float:
            if self.errors:
                return 100 - row.accuracy_with_copies
            return row.accuracy_with_copies

        def printed(row: Row) -> float:
            known = paper_row(row, paper)
            if known is None:
                return math.nan
            if self.errors:
                return 100 - known.accuracy
            return known.accuracy

        if self.errors:
            return [
                Column("error %", own),
                Column("error with copies %", with_copies, ".2f"),
                Column("paper error %", printed, ".2f"),
            ]
        return [
            Column("accuracy %", own),
            Column("with copies %", with_copies, ".2f"),
            Column("paper %", printed, ".1f"),
        ]


def _costs(rows: Sequence[Row]) -> list[Column]:
    shares: set[float] = set()
    machines: Counter[str] = Counter()
    for row in rows:
        shares.update(row.channel_shares)
        machines.update(record.machine for record in row.records)
    # most rows are from one machine, and a speed says something beside theirs only
    usual_machine, _ = machines.most_common(1)[0]

    def speed(row: Row) -> float:
        if any(record.machine != usual_machine for record in row.records):
            return math.nan
        return row.images_per_second

    columns = []
    if len(shares) > 1:  # else all networks have the same channels
        columns.append(Column("channels %", _channels))
    columns += [
        Column("params", counts(lambda record: record.parameters)),
        Column("MACs", counts(lambda record: record.macs)),
        Column("training images seen", counts(lambda record: record.images_seen)),
        Column("images/s", speed, ",.0f"),
    ]
    return columns


def _channels(row: Row) -> str:
    return joined(formatted(100 * share, ".0f") for share in row.channel_shares)


def _has_regular(record: Record) -> bool:
    return any(math.isfinite(layer.regular) for layer in record.layers.values())
