"""Tables: from records to rows beside the paper's figures, on the terminal and in ``docs/results.md``."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from .records import Record, Row, ranges

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["PaperRow", "Part", "Section", "as_markdown", "as_rich", "page"]

TEXT_COLUMNS = ("row", "preset", "data", "seeds")


@dataclass(frozen=True)
class PaperRow:
    """What the paper prints for one experiment."""

    accuracy: float
    """In percent."""
    exponents: tuple[int, ...] = ()
    """Of ten, for L_G, from the first layer to the last."""


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


def as_rich(part: Part, paper: Mapping[str, PaperRow]) -> RenderableType:
    """For a terminal of 80 columns or more: tables of their own for each preset and data source."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = []
    for preset, data in dict.fromkeys((row.preset, row.data) for row in part.rows):
        alike = [row for row in part.rows if (row.preset, row.data) == (preset, data)]
        for title, header, lines in _tables(replace(part, rows=alike), paper):
            shown = [i for i, name in enumerate(header) if name not in ("preset", "data")]
            table = Table(
                title=f"{title} ({preset}, {data})",
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


class _Table(NamedTuple):
    title: str
    header: list[str]
    lines: list[list[str]]


def _tables(part: Part, paper: Mapping[str, PaperRow]) -> list[_Table]:
    rows, layers = part.rows, list(part.layers or ())
    if part.layers is None:
        layers = list(dict.fromkeys(name for row in rows for record in row.records for name in record.layers))
    of_layers = ["row", "preset", "data", *layers]
    shares = {share for row in rows for share in row.channel_shares}
    costs, raw, relative, exact, between = [], [], [], [], []
    for row in rows:
        known = _figures(row, paper)
        mean, spread = row.accuracy
        with_copies, printed = row.accuracy_with_copies, known.accuracy if known else math.nan
        if part.errors:
            mean, with_copies, printed = 100 - mean, 100 - with_copies, 100 - printed
        costs.append(
            [
                *(row.label, row.preset, row.data, row.seeds),
                f"{mean:.2f}" if spread is None else f"{mean:.2f} ± {spread:.2f}",
                _number(with_copies, ".2f"),
                _number(printed, ".2f" if part.errors else ".1f"),
                *[" / ".join(f"{100 * share:.0f}" for share in row.channel_shares)] * (len(shares) > 1),
                " / ".join(dict.fromkeys(_human(record.parameters) for record in row.records)),
                " / ".join(dict.fromkeys(_human(record.macs) for record in row.records)),
                _number(row.images_per_second, ",.0f"),
            ]
        )
        means = [row.layer(name) for name in layers]
        raw.append([row.label, row.preset, row.data, *(_number(layer.raw, ".1e") for layer in means)])
        if known and known.exponents:
            powers = [f"10{str(n).translate(_SUPERSCRIPTS)}" for n in known.exponents]
            padded = [*powers, *["–"] * len(layers)][: len(layers)]
            raw.append(["in the paper", "", "", *padded])
        relative.append([row.label, row.preset, row.data, *(_number(x.relative, ".1e") for x in means)])
        exact.append([row.label, row.preset, row.data, *(_number(x.exact, ".1e") for x in means)])
        between.append([row.label, row.preset, row.data, *(_number(x.between, ".1e") for x in means)])
    of = "error" if part.errors else "accuracy"
    measures = [f"{of} %", "error with copies %" if part.errors else "with copies %"]
    measures += ["paper error %" if part.errors else "paper %", *["channels %"] * (len(shares) > 1)]
    measures += ["params", "MACs", "images/s"]
    title = f"{part.title}: " if part.title else ""
    tables = [
        _Table(
            f"{title}{'Error rate' if part.errors else 'Accuracy'} and cost",
            [*TEXT_COLUMNS, *measures],
            costs,
        ),
        _Table(f"{title}Equivariance loss L_G: lower is better", of_layers, raw),
        _Table(f"{title}Relative error, L_G over variance: lower is better", of_layers, relative),
    ]
    if all(any(cell != "–" for line in kind for cell in line[3:]) for kind in (exact, between)):
        tables += [
            _Table(f"{title}Relative error of quarter turns and flips alone", of_layers, exact),
            _Table(f"{title}Relative error of the other elements alone, which resample", of_layers, between),
        ]
    return tables


def _notes(rows: Sequence[Row], paper: Mapping[str, PaperRow]) -> list[str]:
    labels = [row.label for row in rows]
    names = [
        row.label if labels.count(row.label) == 1 else f"{row.label} {row.preset} {row.data}" for row in rows
    ]
    named = list(zip(names, rows, strict=True))
    notes = [
        "accuracy: mean ± sample standard deviation over the seeds; with copies: the authors' measure, over "
        "the originals and their transformed copies; errors of layers: means over the seeds; images/s: the "
        "median"
    ]
    if any(row.preset != "paper" and _figures(row, paper) for row in rows):
        notes.append("the paper's figures are of its full-size networks; only the preset paper is that size")
    facts: dict[str, Callable[[Record], str]] = {
        "data": lambda record: (
            f"{record.data}, {record.source}: {record.train:,} training and {record.test:,} "
            f"{record.tested_on} images"
        ),
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
        notes += [f"{name}: {_human(count)} parameters are trained" for count in trained]
    return notes


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


def _figures(row: Row, paper: Mapping[str, PaperRow]) -> PaperRow | None:
    # a changed row is no longer the paper's experiment
    return None if row.changes else paper.get(row.experiment)


_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _number(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else "–"


def _human(count: float) -> str:
    """Three digits and a unit: 174 k, 12.3 M."""
    if not math.isfinite(count):
        return "–"
    for unit in ("", " k", " M", " G"):
        if count < 999.5:
            return f"{count:.3g}{unit}"
        count /= 1000
    return f"{count:.3g} T"


def _markdown_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
