"""The printed tables: records of runs beside the paper's numbers, on the terminal and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from .._files import replace_file
from .._text import columns, nearest
from ..report import Part, Section, as_rich, collect, results_page, summarise
from ..report.records import Record
from ..report.rows import Row
from ..tracking.report.records import tracking_of
from .catalogue import check_preset, names
from .claims import claims_section
from .overview import missing_methods, overview, overview_text
from .printed import TABLES, PrintedTable
from .rows import PRESETS

__all__ = ["print_table", "table_rows", "write_page"]


def print_table(name: str, results: Path, preset: str | None = None, console: Console | None = None) -> None:
    """Print a table; without records, the paper's numbers and the command that makes records.

    Args:
        name: One of :data:`TABLES`.
        results: The folder with records.
        preset: Only rows of this size; None for all.
        console: Where to print it.
    """
    console = console or Console()
    parts = _checked_parts(name, results, preset)
    if not parts:
        console.print(Text("\n".join(_empty_table(name, results, preset))))
        return
    table = TABLES[name]
    rows: list[Row] = []
    for part in parts:
        rows += part.rows
    if table.has_overview:
        console.print(Text("\n".join(_overview(rows))))
    said: list[str] = []
    for part in parts:
        new = [note for note in part.notes if note not in said]  # parts may share notes
        said += new
        console.print(as_rich(replace(part, notes=new), table.paper(), console.width))
    if table.has_overview:
        console.print(Text(_what_is_missing(name, rows, preset)))


def table_rows(name: str, results: Path, preset: str | None = None) -> list[dict[str, Any]]:
    """Return the rows of a table as nested dicts, for JSON; see :func:`print_table`.

    Accuracies are fractions, means over the seeds. What was not measured is NaN or None.
    """
    printed = TABLES[name].paper()
    rows = []
    for part in _checked_parts(name, results, preset):
        for row in part.rows:
            mean, spread = row.accuracy
            content: dict[str, Any] = {
                "part": part.title,
                "experiment": row.experiment,
                "name": row.label,
                "preset": row.preset,
                "data": row.data,
                "changes": dict(row.changes),
                "accuracy": mean / 100,
                "accuracy_sd": None if spread is None else spread / 100,
                "paper": None,
                "runs": [_run_of(record) for record in row.records],
            }
            if row.experiment in printed:
                numbers = printed[row.experiment]
                content["paper"] = asdict(numbers) | {"accuracy": round(numbers.accuracy / 100, 4)}
            rows.append(content)
    return rows


def write_page(path: Path, name: str, results: Path) -> None:
    """Write the page of this table and all others that have records, whole or not at all.

    Args:
        path: The Markdown file to write.
        name: A table that must be on it.
        results: The folder with records, and with ``<table>/reading.md``: what the numbers say.
    """
    _check_name(name)
    sections = []
    for each, table in TABLES.items():
        # the table asked for is read in any case, to say what is wrong if it has no records
        if each != name and not _has_records(table, results):
            continue
        parts = _parts(each, results)
        if parts:
            sections.append(Section(each, parts, table.paper(), _reading(each, results)))
    text = results_page(*sections, first=claims_section(results))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _parts(name: str, results: Path, preset: str | None = None) -> list[Part]:
    """The parts of a table that have records."""
    table = TABLES[name]
    patterns = [f"{source}/*" for source in table.sources]
    rows = summarise(collect(results, *patterns, *table.also), names())
    parts = []
    for part in table.parts:
        chosen = []
        for row in rows:
            elsewhere = row.experiment in part.labels and part.labelled_preset not in (None, row.preset)
            if preset in (None, row.preset) and part.shows(row.experiment) and not elsewhere:
                chosen.append(replace(row, name=part.labels.get(row.experiment, "")))
        if chosen:
            parts.append(Part(part.title, chosen, part.layers, part.notes, part.kind))
    return parts


def _checked_parts(name: str, results: Path, preset: str | None) -> list[Part]:
    """The same, and none without records; unknown names and presets are errors."""
    _check_name(name)
    if preset is not None:
        check_preset(preset)
    try:
        return _parts(name, results, preset)
    except FileNotFoundError:
        return []


def _empty_table(name: str, results: Path, preset: str | None) -> list[str]:
    """The rows of a table that has no records, with the paper's numbers, and what fills it."""
    printed = TABLES[name].paper()
    lines = [["row", "paper"]]
    for experiment in names():
        if any(part.shows(experiment) for part in TABLES[name].parts):
            shown = "–"
            if experiment in printed:
                shown = str(printed[experiment])
            lines.append([experiment, shown])
    what = f"no records of {name} in {results}"
    if preset is not None:
        what = f"no records of {name} at preset {preset} in {results}"
    return [*columns(lines), "", f"{what}: {_filling(name, preset)} makes them"]


def _filling(name: str, preset: str | None) -> str:
    """The command that runs whatever rows of a table are not recorded."""
    patterns = [f"'{source}/*'" for source in TABLES[name].sources]
    return f"ien run {' '.join(patterns)} --preset {preset or 'small'} --seeds 1-3"


def _overview(rows: Sequence[Row]) -> list[str]:
    """The symmetry study at a glance, for each size that has records."""
    texts = []
    for preset in PRESETS:
        for tenth in (False, True):
            lines = overview(rows, preset, tenth)
            if not lines:
                continue
            title = f"Accuracy % ({preset})"
            if tenth:
                title = f"Accuracy % with a tenth of the training images ({preset})"
            texts += [title, "", *overview_text(lines), ""]
    texts.append("in brackets the agreement in %, where it is not 100; † one seed, ‡ two")
    return texts


def _what_is_missing(name: str, rows: Sequence[Row], preset: str | None) -> str:
    """One line about all rows of the symmetry study that have no records."""
    counts = missing_methods(rows)
    if not counts:
        return ""
    parts = [f"{ending} ({count})" for ending, count in counts.items()]
    return f"no records yet on this many data sets: {', '.join(parts)}; {_filling(name, preset)} runs them"


def _run_of(record: Record) -> dict[str, Any]:
    """What one seed of a row reached and cost."""
    content: dict[str, Any] = {
        "seed": record.seed,
        "record": str(record.path),
        "accuracy": record.accuracy,
        "accuracy_with_copies": record.accuracy_with_copies,
        "accuracy_under_group": record.accuracy_under_group,
        "agreement": record.agreement,
        "layers": {name: layer._asdict() for name, layer in record.layers.items()},
        "parameters": record.parameters,
        "macs": record.macs,
        "images_per_second": record.images_per_second,
        "training_seconds": record.seconds,
    }
    # what only records of segmentation have
    for name in ("dice", "dice_under_group", "consistency"):
        if name in record.content:
            content[name] = record.content[name]
    tracked = tracking_of(record)
    if tracked is not None:
        content["tracking"] = {}
        for test, scores in tracked.tests.items():
            content["tracking"][test] = {
                "success": scores.success,
                "success_hull": scores.success_hull,
                "precision": scores.precision,
                "orientation_error": scores.orientation_error,
                "orientation_error_on_target": scores.orientation_error_on_target,
            }
    return content


def _has_records(table: PrintedTable, results: Path) -> bool:
    for source in table.sources:
        # any() stops at the first record
        if any((results / source).rglob("*.json")):
            return True
    return False


def _reading(name: str, results: Path) -> str:
    """What the numbers say, from ``results/name/reading.md``."""
    path = results / name / "reading.md"
    if not path.is_file():
        return ""
    return path.read_text(encoding="utf-8")


def _check_name(name: str) -> None:
    if name not in TABLES:
        raise ValueError(f"there is no table {name!r}; {nearest(name, TABLES)}")
