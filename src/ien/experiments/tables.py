"""The tables: records of runs beside the paper's figures, on the terminal and as a page."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from .._names import nearest
from ..report import as_rich, collect, page, section, summarise
from ..training.folder import replace_file
from . import DATASETS, check_preset, names, paper

__all__ = ["print_table", "write_page"]


def print_table(
    dataset: str, results: Path, preset: str | None = None, console: Console | None = None
) -> None:
    """Print the table of a data set, of the records of one preset or of all."""
    _check(dataset)
    rows = summarise(collect(results, f"{dataset}/*"), names())
    if preset is not None:
        check_preset(preset)
        rows = [row for row in rows if row.preset == preset]
        if not rows:
            raise ValueError(f"no records of preset {preset!r} in {results}")
    (console or Console()).print(as_rich(rows, paper(dataset)))


def write_page(path: Path, dataset: str, results: Path) -> None:
    """Write the page of this table and all others that have records, whole or not at all."""
    _check(dataset)
    recorded = [name for name in DATASETS if name == dataset or (results / name).is_dir()]
    text = page(*(section(results, name, names(), paper(name)) for name in recorded))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _check(dataset: str) -> None:
    if dataset not in DATASETS:
        raise ValueError(f"there is no table {dataset!r}; {nearest(dataset, DATASETS)}")
