"""The symmetry study at a glance: a line for each data set, accuracy and agreement of each method.

From the same records comes the table of ``docs/study.md`` and the first lines of ``ien table
symmetry``. Runs with changed settings and runs on validation images are left out.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from .._text import markdown_table
from ..report import collect, summarise
from ..report.rows import Row
from ..report.tables.columns import formatted
from .symmetry import DATA, METHODS, ROWS

__all__ = ["PRINTED", "Line", "missing_methods", "overview", "overview_text", "study_table"]

TABLE = "symmetry"
PRINTED = {
    "cnn": "ordinary CNN",
    "cnn-aug": "random elements in training",
    "cnn-aug-tta": "the same, averaged over the group",
    "e2cnn": "steerable twin (E2CNN)",
    "ien-beta0.1": "paper's loss, β = 0.1",
    "tied": "tied",
    "slack": '`slack="auto"`',
}
"""Method → its column in the study."""
MARKS = {1: "†", 2: "‡"}
"""Number of seeds → the mark of a mean over so few; three and more have none."""
EXPLAINED = (
    "Accuracy in %, mean ± standard deviation over three seeds († one seed, ‡ two), and in brackets the "
    "agreement: how many of 100 test images keep their class under all elements of the group."
)


class Line(NamedTuple):
    """A data set, and the rows of each method on it."""

    data: str
    """Its key in :data:`~ien.experiments.symmetry.DATA`."""
    source: str
    """Of which copy of the data: ``generated``, ``subset`` and so on."""
    rows: Mapping[str, Row]
    """Method → its row; methods without records are not in it."""


def overview(rows: Iterable[Row], preset: str, tenth: bool = False) -> list[Line]:
    """Arrange rows of the study by data set and method.

    Args:
        rows: Any rows.
        preset: The only size that counts.
        tenth: Whether to take the rows on a tenth of the training images, or those on all.
    """
    found: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        table, _, name = row.experiment.partition("/")
        if table != TABLE or row.preset != preset or not _counts(row):
            continue
        place = ROWS[name]
        if place.tenth == tenth:
            found.setdefault((place.data, row.source), {})[place.method] = row

    lines = []
    for data in DATA:
        for (of, source), methods in found.items():
            if of == data:
                lines.append(Line(data, source, methods))
    return lines


def study_table(results: Path, preset: str = "small") -> str:
    """Write the table of ``docs/study.md`` as Markdown, from the records in a folder.

    Rows on a tenth of the images follow in a table of their own, if there are any.

    Args:
        results: The folder with records.
        preset: The size of the runs.
    """
    rows = summarise(collect(results, f"{TABLE}/*"))
    parts = [_markdown(overview(rows, preset)), EXPLAINED]
    on_a_tenth = overview(rows, preset, tenth=True)
    if on_a_tenth:
        parts.append("With a tenth of the training images, in three tenths of the steps:")
        parts.append(_markdown(on_a_tenth))
    return "\n\n".join(parts) + "\n"


def overview_text(lines: Sequence[Line]) -> list[str]:
    """Lay out an overview for a terminal of 80 columns, without spreads.

    Column titles are the ends of the names of rows, broken at hyphens.

    Args:
        lines: What :func:`overview` found.
    """
    methods = _methods(lines)
    titles = ["", *(method.replace("-", "-\n") for method in methods)]
    height = max(title.count("\n") for title in titles) + 1
    table = []
    for k in range(height):
        table.append([_line_of(title, k, height) for title in titles])
    for line in lines:
        cells = [line.data]
        for method in methods:
            cells.append(_short_cell(line.rows.get(method)))
        table.append(cells)

    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    texts = []
    for cells in table:
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
        texts.append(" ".join(padded).rstrip())
    return texts


def missing_methods(rows: Iterable[Row]) -> Counter[str]:
    """Count the data sets on which a method has no record, such as ``{"slack-tenth": 13}``.

    Args:
        rows: The rows that there are.
    """
    recorded = {row.experiment for row in rows if _counts(row)}
    counts: Counter[str] = Counter()
    for name, place in ROWS.items():
        if f"{TABLE}/{name}" not in recorded:
            counts[name.removeprefix(f"{place.data}-")] += 1
    return counts


def _counts(row: Row) -> bool:
    """Whether a row is of the study itself: nothing was changed, and the test images were used."""
    return not row.changes and row.tested_on == "test"


def _methods(lines: Sequence[Line]) -> list[str]:
    """Return the methods that some line has, in the order of the study."""
    found: set[str] = set()
    for line in lines:
        found.update(line.rows)
    return [method for method in METHODS if method in found]


def _markdown(lines: Sequence[Line]) -> str:
    methods = _methods(lines)
    table = [["", *(PRINTED[method] for method in methods)]]
    for line in lines:
        cells = [DATA[line.data].title]
        for method in methods:
            cells.append(_cell(line.rows.get(method)))
        table.append(cells)
    return markdown_table(table)


def _cell(row: Row | None) -> str:
    """Write accuracy ± spread, the mark of its seeds, and the agreement in brackets."""
    if row is None:
        return "–"
    mean, spread = row.accuracy
    text = f"{mean:.2f}"
    if spread is not None:
        text += f" ± {spread:.2f}"
    return f"{text}{MARKS.get(len(row.records), '')} ({_agreement(row)})"


def _short_cell(row: Row | None) -> str:
    """Write the accuracy with one digit, and the agreement in brackets where it is not 100."""
    if row is None:
        return "–"
    mean, _ = row.accuracy
    text = f"{mean:.1f}{MARKS.get(len(row.records), '')}"
    agreement = _agreement(row)
    if agreement != "100":
        text += f" ({agreement})"
    return text


def _agreement(row: Row) -> str:
    """Write the mean agreement over the seeds, in percent."""
    return formatted(100 * statistics.fmean(record.agreement for record in row.records), ".0f")


def _line_of(title: str, k: int, height: int) -> str:
    """Return line k of a title that stands at the bottom of a header."""
    lines = title.split("\n")
    above = height - len(lines)
    if k < above:
        return ""
    return lines[k - above]
