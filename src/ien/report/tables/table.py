"""Tables: from records to rows beside the paper's figures, on the terminal and in ``docs/results.md``."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...tracking.report.tables import tracking_data, tracking_notes, tracking_tables
from ..records import Record, Row, ranges
from .cells import TEXT_COLUMNS, PaperRow, Table, figures_of, human, number

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Part", "Section", "as_markdown", "as_rich", "page"]

MEASURES = (
    "accuracy: mean ± sample standard deviation over the seeds; with copies: the authors' measure, over "
    "the originals and their transformed copies; training images seen: with their copies, each time; "
    "errors of layers: means over the seeds; images/s: the median, of rows on the machine that most are "
    "from, each measured beside whatever else ran on it"
)
NAMES = 28
"""Columns of a terminal that the names of rows take at most; longer ones wrap."""

REGULAR = (
    "members one by one: all members of feature groups are compared, permuted by the element, instead of "
    "their maximum; on the first 2,000 test images"
)


@dataclass(frozen=True)
class Part:
    """Rows that are shown together, such as those of one network."""

    title: str
    """Before the title of each table; may be empty."""
    rows: Sequence[Row]
    layers: Sequence[str] | None = None
    """Those that the paper shows; None for all."""
    notes: Sequence[str] = ()
    """What a reader of these rows has to know, besides how they were measured."""
    errors: bool = False
    """Whether error rates are shown instead of accuracies, as the paper does."""


def as_rich(part: Part, paper: Mapping[str, PaperRow], width: int = 80) -> RenderableType:
    """For a terminal of ``width`` columns: tables of their own for each preset and data source.

    What does not fit beside the names of the rows follows below, with these names again.
    """
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = []
    for preset, data in dict.fromkeys((row.preset, row.data) for row in part.rows):
        alike = [row for row in part.rows if (row.preset, row.data) == (preset, data)]
        for title, header, lines in _tables(replace(part, rows=alike), paper):
            for place, shown in enumerate(_fitting(header, lines, width)):
                table = Table(
                    title=None if place else f"{title} ({preset}, {data})",
                    title_justify="left",
                    box=box.SIMPLE_HEAD,
                    padding=(0, 1, 0, 0),
                )
                for name in (header[i] for i in shown):
                    table.add_column(
                        Text(name.replace(" ", "\n")),
                        justify="left" if name in TEXT_COLUMNS else "right",
                        no_wrap=name != "row",  # long names wrap, numbers stay whole
                        overflow="fold",
                    )
                for line in lines:
                    table.add_row(*(Text(line[i]) for i in shown))
                parts.append(table)
    return Group(*parts, *map(Text, [*part.notes, *_notes(part.rows, paper)]))


def as_markdown(parts: Sequence[Part], paper: Mapping[str, PaperRow]) -> str:
    """The same tables and notes for a document, under headings of the third level."""
    texts = []
    for title, header, lines in (table for part in parts for table in _tables(part, paper)):
        rule = ["---" if name in TEXT_COLUMNS else "---:" for name in header]
        table = [_markdown_line(line) for line in (header, rule, *lines)]
        texts.append(f"### {title}\n\n" + "\n".join(table))
    rows = [row for part in parts for row in part.rows]
    notes = [*dict.fromkeys(note for part in parts for note in part.notes), *_notes(rows, paper)]
    texts.append("### How these were measured\n\n" + "\n".join(f"- {note}" for note in notes))
    return "\n\n".join(texts) + "\n"


@dataclass(frozen=True)
class Section:
    """The section of the results page about one table of the paper."""

    name: str
    parts: Sequence[Part]
    paper: Mapping[str, PaperRow]
    reading: str = ""
    """What the numbers say, in Markdown, with headings of the fourth level at most."""


def page(*sections: Section) -> str:
    """The text of ``docs/results.md``."""
    parts = [
        "# Results\n\nWritten by `ien table` from the records in `results/`: every recorded run is in it, "
        "whatever it shows.\n"
    ]
    for part in sections:
        parts.append(f"## {part.name}\n\n{as_markdown(part.parts, part.paper)}")
        if part.reading.strip():
            parts.append(f"### Reading\n\n{part.reading.strip()}\n")
    return "\n".join(parts)


def _fitting(header: Sequence[str], lines: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """The columns of each table that is shown of one, by number: the names of the rows, and what fits."""

    def wide(i: int) -> int:
        return 2 + max(map(len, [*header[i].split(), *(line[i] for line in lines)]), default=0)

    named, *others = [i for i, name in enumerate(header) if name not in ("preset", "data")]
    room = width - 1 - min(wide(named), NAMES)
    tables, left = [[named]], room
    for i in others:
        if wide(i) > left and len(tables[-1]) > 1:
            tables.append([named])
            left = room
        tables[-1].append(i)
        left -= wide(i)
    return tables


def _tables(part: Part, paper: Mapping[str, PaperRow]) -> list[Table]:
    title = f"{part.title}: " if part.title else ""
    trackers, others = ([row for row in part.rows if row.tracks == tracks] for tracks in (True, False))
    return [
        *([_accuracies(title, others, paper, part.errors)] if others else []),
        *(tracking_tables(title, trackers, paper) if trackers else []),
        *_layer_errors(title, part, paper),
    ]


def _accuracies(title: str, rows: Sequence[Row], paper: Mapping[str, PaperRow], errors: bool) -> Table:
    shares = {share for row in rows for share in row.channel_shares}
    machines = Counter(record.machine for row in rows for record in row.records)
    usual, _ = machines.most_common(1)[0]
    lines = []
    for row in rows:
        known = figures_of(row, paper)
        mean, spread = row.accuracy
        with_copies, printed = row.accuracy_with_copies, known.accuracy if known else math.nan
        if errors:
            mean, with_copies, printed = 100 - mean, 100 - with_copies, 100 - printed
        lines.append(
            [
                *(row.label, row.preset, row.data, row.seeds),
                f"{mean:.2f}" if spread is None else f"{mean:.2f} ± {spread:.2f}",
                number(with_copies, ".2f"),
                number(printed, ".2f" if errors else ".1f"),
                *[" / ".join(f"{100 * share:.0f}" for share in row.channel_shares)] * (len(shares) > 1),
                " / ".join(dict.fromkeys(human(record.parameters) for record in row.records)),
                " / ".join(dict.fromkeys(human(record.macs) for record in row.records)),
                " / ".join(dict.fromkeys(human(record.images_seen) for record in row.records)),
                number(
                    row.images_per_second if {r.machine for r in row.records} == {usual} else math.nan, ",.0f"
                ),
            ]
        )
    measures = ["error %" if errors else "accuracy %", "error with copies %" if errors else "with copies %"]
    measures += ["paper error %" if errors else "paper %", *["channels %"] * (len(shares) > 1)]
    measures += ["params", "MACs", "training images seen", "images/s"]
    return Table(
        f"{title}{'Error rate' if errors else 'Accuracy'} and cost", [*TEXT_COLUMNS, *measures], lines
    )


def _layer_errors(title: str, part: Part, paper: Mapping[str, PaperRow]) -> list[Table]:
    rows, layers = part.rows, list(part.layers or ())
    if part.layers is None:
        layers = list(dict.fromkeys(name for row in rows for record in row.records for name in record.layers))
    header = ["row", "preset", "data", *layers]
    raw, relative, regular, exact, between = [], [], [], [], []
    for row in rows:
        known = figures_of(row, paper)
        means = [row.layer(name) for name in layers]
        raw.append([row.label, row.preset, row.data, *(number(layer.raw, ".1e") for layer in means)])
        if known and known.exponents:
            powers = [f"10{str(n).translate(_SUPERSCRIPTS)}" for n in known.exponents]
            padded = [*powers, *["–"] * len(layers)][: len(layers)]
            raw.append(["in the paper", "", "", *padded])
        relative.append([row.label, row.preset, row.data, *(number(x.relative, ".1e") for x in means)])
        regular.append([row.label, row.preset, row.data, *(number(x.regular, ".1e") for x in means)])
        exact.append([row.label, row.preset, row.data, *(number(x.exact, ".1e") for x in means)])
        between.append([row.label, row.preset, row.data, *(number(x.between, ".1e") for x in means)])
    tables = [
        Table(f"{title}Equivariance loss L_G: lower is better", header, raw),
        Table(f"{title}Relative error, L_G over variance: lower is better", header, relative),
    ]
    if any(cell != "–" for line in regular for cell in line[3:]):
        tables.append(Table(f"{title}Relative error, members one by one: lower is better", header, regular))
    if all(any(cell != "–" for line in kind for cell in line[3:]) for kind in (exact, between)):
        tables += [
            Table(f"{title}Relative error of quarter turns and flips alone", header, exact),
            Table(f"{title}Relative error of the other elements alone, which resample", header, between),
        ]
    return tables


def _notes(rows: Sequence[Row], paper: Mapping[str, PaperRow]) -> list[str]:
    labels = [row.label for row in rows]
    names = [
        row.label if labels.count(row.label) == 1 else f"{row.label} {row.preset} {row.data}" for row in rows
    ]
    named = list(zip(names, rows, strict=True))
    notes = []
    if not all(row.tracks for row in rows):
        notes.append(MEASURES)
    if any(math.isfinite(x.regular) for row in rows for r in row.records for x in r.layers.values()):
        notes.append(REGULAR)
    notes += tracking_notes([(name, row) for name, row in named if row.tracks])
    if any(row.preset != "paper" and figures_of(row, paper) for row in rows):
        notes.append("the paper's figures are of its full-size networks; only the preset paper is that size")
    facts: dict[str, Callable[[Record], str]] = {
        "data": _data,
        "commit": lambda record: record.commit or "unknown",
        "machine": lambda record: record.machine,
        "versions": lambda record: ", ".join(f"{k} {v}" for k, v in sorted(record.versions.items())),
    }
    notes += [f"{name}: {_who_has_what(named, value)}" for name, value in facts.items()]
    for name, row in named:
        if row.superseded:
            seeds = ranges(sorted({record.seed for record in row.superseded}))
            notes.append(f"{name}: seed {seeds} was recorded more than once; the newest record counts")
        fields = dict.fromkeys(field for record in row.records for field in record.config if field != "seed")
        for field in fields:
            values = dict.fromkeys(str(record.config.get(field)) for record in row.records)
            if len(values) > 1:
                notes.append(f"{name}: its runs differ in {field} ({', '.join(values)})")
        trained = dict.fromkeys(
            r.trained_parameters for r in row.records if r.trained_parameters != r.parameters
        )
        notes += [f"{name}: {human(count)} parameters are trained" for count in trained]
    return notes


def _data(record: Record) -> str:
    if record.tracking is not None:
        return tracking_data(record)
    counts = f"{record.train:,} training and {record.test:,} {record.tested_on} images"
    return f"{record.data}, {record.source}: {counts}"


def _who_has_what(named: Sequence[tuple[str, Row]], value: Callable[[Record], str]) -> str:
    """A value that all records share, or each value with the rows and seeds that have it."""
    owners: dict[str, list[str]] = defaultdict(list)
    for name, row in named:
        seeds: dict[str, list[int]] = defaultdict(list)
        for record in row.records:
            seeds[value(record)].append(record.seed)
        for text, having in seeds.items():
            owners[text].append(name if len(seeds) == 1 else f"{name} seed {ranges(having)}")
    if len(owners) == 1:
        return next(iter(owners))
    return "; ".join(f"{text} ({', '.join(having)})" for text, having in owners.items())


_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _markdown_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
