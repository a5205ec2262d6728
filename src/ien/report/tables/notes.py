"""The notes below a table: where its numbers come from, and what is odd about them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from ..._text import short_count
from ..records import Record
from ..rows import Row, ranges
from .columns import PaperRow, paper_row

__all__ = ["named_rows", "source_notes"]

NamedRows = Sequence[tuple[str, Row]]
MAX_OWNERS = 20
"""Rows that a note names; of more, it lists what they have."""


def named_rows(rows: Sequence[Row]) -> list[tuple[str, Row]]:
    """Name each row by its label, with preset and data where the label is not enough."""
    labels = [row.label for row in rows]
    named = []
    for row in rows:
        name = row.label
        if labels.count(name) > 1:
            name = f"{row.label} {row.preset} {row.data}"
        named.append((name, row))
    return named


def source_notes(named: NamedRows, paper: Mapping[str, PaperRow], tested_with: str) -> list[str]:
    """Say where the numbers of these rows come from.

    Args:
        named: Rows by their names.
        paper: What the paper prints, by experiment.
        tested_with: What data are counted in, such as ``images``.
    """
    notes = list(_paper_note(named, paper))

    def data(record: Record) -> str:
        train = f"{record.train:,} training"
        test = f"{record.test:,} {record.tested_on}"
        return f"{record.data}, {record.source}: {train} and {test} {tested_with}"

    # what it takes to repeat the runs
    facts: dict[str, Callable[[Record], str]] = {
        "data": data,
        "commit": _commit,
        "machine": _machine,
        "versions": _versions,
    }
    for fact, value in facts.items():
        notes.append(f"{fact}: {_who_has_what(named, value)}")
    for name, row in named:
        notes.extend(_superseded_note(name, row))
        notes.extend(_difference_notes(name, row))
        notes.extend(_trained_notes(name, row))
    return notes


def _paper_note(named: NamedRows, paper: Mapping[str, PaperRow]) -> Iterator[str]:
    for _, row in named:
        # beside a smaller network, the paper's accuracy is no target
        if row.preset != "paper" and paper_row(row, paper):
            yield "the paper's figures are of its full-size networks; only the preset paper is that size"
            return


def _superseded_note(name: str, row: Row) -> Iterator[str]:
    if row.superseded:
        repeated = {record.seed for record in row.superseded}
        seeds = ranges(sorted(repeated))
        yield f"{name}: seed {seeds} was recorded more than once; the newest record counts"


def _difference_notes(name: str, row: Row) -> Iterator[str]:
    """Say which settings the runs of a row do not share."""
    fields: dict[str, None] = {}
    for record in row.records:
        fields |= dict.fromkeys(record.config)
    fields.pop("seed", None)  # which has a column
    # here, so that tables are read without the training engine
    from ...training.config import Config, flat

    defaults = flat(Config("", ""))
    for field in fields:
        # a record may be older than the field: such runs did what is now its default
        default = defaults.get(field)
        values = dict.fromkeys(str(record.config.get(field, default)) for record in row.records)
        if len(values) > 1:  # not changed by hand: the preset itself changed meanwhile
            yield f"{name}: its runs differ in {field} ({', '.join(values)})"


def _trained_notes(name: str, row: Row) -> Iterator[str]:
    """Say how many parameters are trained, if not all."""
    notes: dict[str, None] = {}
    for record in row.records:
        if record.trained_parameters == record.parameters:
            continue
        note = f"{name}: {short_count(record.trained_parameters)} parameters are trained"
        if record.slack:
            note += ", free remainders counted"
        notes[note] = None
    yield from notes


def _commit(record: Record) -> str:
    return record.commit or "unknown"


def _machine(record: Record) -> str:
    return record.machine


def _versions(record: Record) -> str:
    parts = []
    for name in sorted(record.versions):
        parts.append(f"{name} {record.versions[name]}")
    return ", ".join(parts)


def _who_has_what(named: NamedRows, value: Callable[[Record], str]) -> str:
    """Write a value that all records share, or each value with the rows and seeds that have it.

    Of many rows, the values alone.
    """
    owners: dict[str, list[str]] = defaultdict(list)
    for name, row in named:
        seeds: dict[str, list[int]] = defaultdict(list)
        for record in row.records:
            seeds[value(record)].append(record.seed)
        for text, having in seeds.items():
            owner = name
            if len(seeds) > 1:  # the row itself is divided
                owner = f"{name} seed {ranges(having)}"
            owners[text].append(owner)
    if len(owners) == 1:
        return next(iter(owners))
    if sum(map(len, owners.values())) > MAX_OWNERS:
        return f"{'; '.join(owners)} (the record of a run says which is its own)"
    parts = []
    for text, names in owners.items():
        parts.append(f"{text} ({', '.join(names)})")
    return "; ".join(parts)
