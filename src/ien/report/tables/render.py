"""Tables as they are read: on the terminal, and as Markdown in ``docs/results.md``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Literal, Protocol

from ..._text import markdown_table
from ..rows import Row, by_preset_and_data
from .classifiers import Classifiers
from .columns import NAME_COLUMNS, PaperRow, Table
from .layers import layer_names, layer_tables
from .notes import named_rows, source_notes

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table as RichTable

__all__ = ["Kind", "Part", "Section", "as_markdown", "as_rich", "results_page"]

MAX_NAME_WIDTH = 28
"""Columns of a terminal that the names of rows take at most; longer ones wrap."""
NAME_TITLES = [column.title for column in NAME_COLUMNS]


class Kind(Protocol):
    """What rows have in common: how they are scored, and shown."""

    @property
    def tested_with(self) -> str:
        """What data are counted in, such as ``images``."""

    def tables(self, title: str, rows: Sequence[Row], paper: Mapping[str, PaperRow]) -> list[Table]:
        """Return the tables of scores and costs; ``title`` stands before each of theirs."""

    def notes(self, named: Sequence[tuple[str, Row]]) -> list[str]:
        """Say how the rows, given with their names, were measured."""


@dataclass(frozen=True)
class Part:
    """Rows that are shown together, such as those of one network."""

    title: str
    """Before the title of each table; may be empty."""
    rows: Sequence[Row]
    layers: Sequence[str] | None = None
    """The layers that are shown; None for all, and none at all leaves their tables out."""
    notes: Sequence[str] = ()
    """What a reader of these rows has to know, besides how they were measured."""
    kind: Kind = field(default_factory=Classifiers)


@dataclass(frozen=True)
class Section:
    """The section of the results page about one table of the paper."""

    name: str
    parts: Sequence[Part]
    paper: Mapping[str, PaperRow]
    reading: str = ""
    """What the numbers say, in Markdown, with headings of the fourth level at most."""


def as_rich(part: Part, paper: Mapping[str, PaperRow], width: int = 80) -> RenderableType:
    """Lay out tables for a terminal, one for each preset and data source.

    Columns that do not fit beside the names of the rows follow below, with these names again.

    Args:
        part: The rows.
        paper: What the paper prints, by experiment.
        width: Columns of the terminal.
    """
    from rich.console import Group
    from rich.text import Text

    shown: list[RenderableType] = []
    for (preset, data), alike in by_preset_and_data(part.rows).items():
        for table in _tables(replace(part, rows=alike), paper):
            title: str | None = f"{table.title} ({preset}, {data})"
            for columns in _fitting_columns(table, width):
                shown.append(_rich_table(table, columns, title))
                title = None  # only above the first piece
    for note in [*part.notes, *_notes([part], paper)]:
        shown.append(Text(note))
    return Group(*shown)


def as_markdown(parts: Sequence[Part], paper: Mapping[str, PaperRow]) -> str:
    """Write the same tables and notes for a document, under headings of the third level."""
    texts = []
    own_notes: dict[str, None] = {}
    for part in parts:
        own_notes |= dict.fromkeys(part.notes)  # each once, although parts share some
        for table in _tables(part, paper):
            names = len(set(NAME_TITLES) & set(table.header))  # text; all other columns are numbers
            lines = markdown_table([table.header, *table.lines], left=names)
            texts.append(f"### {table.title}\n\n{lines}")
    notes = ["### How these were measured\n"]
    for note in [*own_notes, *_notes(parts, paper)]:
        notes.append(f"- {escape(note, quote=False)}")  # machines and versions are anyone's text
    texts.append("\n".join(notes))
    return "\n\n".join(texts) + "\n"


def results_page(*sections: Section, first: str = "") -> str:
    """Write the text of ``docs/results.md``.

    Args:
        sections: Its tables.
        first: A section in front of them, if there is any.
    """
    parts = [
        "# Results\n\nWritten by `ien table` from the records in `results/`: every recorded run is in it, "
        "whatever it shows.\n"
    ]
    if first:
        parts.append(first)
    for section in sections:
        parts.append(f"## {section.name}\n\n{as_markdown(section.parts, section.paper)}")
        if section.reading.strip():
            parts.append(f"### Reading\n\n{section.reading.strip()}\n")
    return "\n".join(parts)


def _tables(part: Part, paper: Mapping[str, PaperRow]) -> list[Table]:
    title = ""
    if part.title:
        title = f"{part.title}: "
    layers = part.layers
    if layers is None:
        layers = layer_names(part.rows)
    tables = part.kind.tables(title, part.rows, paper)
    if layers:
        tables += layer_tables(title, part.rows, layers, paper)
    return tables


def _notes(parts: Sequence[Part], paper: Mapping[str, PaperRow]) -> list[str]:
    """Write the notes of parts of one kind."""
    rows: list[Row] = []
    for part in parts:
        rows.extend(part.rows)
    named = named_rows(rows)
    kind = parts[0].kind
    return kind.notes(named) + source_notes(named, paper, kind.tested_with)


def _rich_table(table: Table, columns: Sequence[int], title: str | None) -> RichTable:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for i in columns:
        name = table.header[i]
        justify: Literal["left", "right"] = "right"
        if name in NAME_TITLES:
            justify = "left"
        shown.add_column(
            Text(name.replace(" ", "\n")),  # narrow, so that more columns fit
            justify=justify,
            no_wrap=name != "row",  # long names wrap, numbers stay whole
            overflow="fold",
        )
    for line in table.lines:
        shown.add_row(*(Text(line[i]) for i in columns))
    return shown


def _fitting_columns(table: Table, width: int) -> list[list[int]]:
    """Divide a table that is too wide: the columns of each piece, the names of the rows first."""

    def width_of(i: int) -> int:
        texts = table.header[i].split()
        texts += [line[i] for line in table.lines]
        return 2 + max(map(len, texts), default=0)

    # preset and data are in the title
    numbers = range(len(table.header))
    name, *others = [i for i in numbers if table.header[i] not in ("preset", "data")]
    room = width - 1 - min(width_of(name), MAX_NAME_WIDTH)
    pieces = [[name]]
    left = room
    for i in others:
        if width_of(i) > left and len(pieces[-1]) > 1:  # a piece has one column of numbers at least
            pieces.append([name])
            left = room
        pieces[-1].append(i)
        left -= width_of(i)
    return pieces
