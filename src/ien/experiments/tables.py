"""The tables: records of runs beside the paper's figures, on the terminal and as a page."""

from __future__ import annotations

import difflib
from pathlib import Path

from rich.console import Console

from ..report import as_rich, collect, page, section, summarise
from . import DATASETS, names, paper

__all__ = ["print_table", "write_page"]


def print_table(
    dataset: str, results: Path, preset: str | None = None, console: Console | None = None
) -> None:
    if dataset not in DATASETS:
        close = difflib.get_close_matches(dataset, DATASETS, n=1, cutoff=0.3)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(DATASETS)}"
        raise ValueError(f"there is no table {dataset!r}; {hint}")
    rows = summarise(collect(results, f"{dataset}/*"), names())
    if preset is not None:
        rows = [row for row in rows if row.preset == preset]
        if not rows:
            raise ValueError(f"no records of preset {preset!r} in {results}")
    (console or Console()).print(as_rich(rows, paper(dataset)))


def write_page(path: Path, results: Path) -> None:
    """Write the page of all tables that have records."""
    recorded = [name for name in DATASETS if (results / name).is_dir()]
    if not recorded:
        raise ValueError(
            f"{results} holds no records: ien run 'rot-mnist/*' --preset small --seeds 1-3 makes some"
        )
    path.write_text(
        page(*(section(results, name, names(), paper(name)) for name in recorded)), encoding="utf-8"
    )
