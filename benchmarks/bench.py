"""Measures what the loss, tied weights and the engine cost, also beside peers, and writes docs/benchmarks.md.

    python benchmarks/bench.py              every part, a quarter of an hour on two idle cores
    python benchmarks/bench.py loss peers   these parts; the page keeps the others as they were

What was measured is kept in measured.json, from which the page and docs/figures/growth.py are made.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import engine
import growth
import inference
import loss
import peers
import tied
import torch
import trackers
from timing import Row

from ien.training.run import processor

MEASURED = Path(__file__).with_name("measured.json")
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
INTRODUCTION = """# Benchmarks

Written by `make bench`; `python benchmarks/bench.py loss peers` measures these parts alone. Machines are
noisy, so the sides of a ratio take turns: a ratio is the median over rounds, and beside it stand the
quartiles. Whether a goal is missed is decided before rounding. Float32; 64 images unless it says
otherwise.
"""


def described(row: Row) -> str:
    """One line for the terminal."""
    return f"{row.what:96} {row.value:6.3f}  ({row.interval}; goal {row.goal}; {row.detail})"


def table(rows: list[Row]) -> str:
    lines = ["| | ratio | quartiles | goal | measured |", "|---|---:|---:|---:|---|"]
    for row in rows:
        missed = "" if row.reached else " (missed)"
        lines.append(f"| {row.what} | {row.value:.2f} | {row.interval} | {row.goal}{missed} | {row.detail} |")
    return "\n".join(lines) + "\n"


@dataclass
class Part:
    """A section of the page: how it is measured, kept and shown."""

    title: str
    measure: Callable[[], Iterator[Any]]
    note: str
    kind: type = Row
    described: Callable[[Any], str] = described
    section: Callable[[list[Any]], str] = table


PARTS = {
    "loss": Part("The loss", loss.measure, loss.NOTE),
    "peers": Part("Beside the peers", peers.measure, peers.NOTE, peers.Cell, peers.described, peers.section),
    "tied": Part("Tied weights and slack", tied.measure, tied.NOTE),
    "inference": Part("Inference", inference.measure, inference.NOTE),
    "growth": Part("Growth", growth.measure, growth.NOTE, growth.Point, growth.described, growth.section),
    "trackers": Part("Trackers", trackers.measure, trackers.NOTE),
    "engine": Part("Start-up, engine and loader", engine.measure, engine.NOTE),
}


def machine() -> str:
    capability = torch.backends.cpu.get_cpu_capability()
    return (
        f"{processor()}, {torch.get_num_threads()} threads, {capability}, {platform.system()}; "
        f"Python {platform.python_version()}, torch {torch.__version__}; {date.today()}"
    )


def page(measured: dict[str, Any]) -> str:
    sections = [INTRODUCTION]
    for name, part in PARTS.items():
        if name not in measured:
            continue
        found = [part.kind(**each) for each in measured[name]["found"]]
        sections.append(
            f"## {part.title}\n\n{measured[name]['machine']}.\n\n{part.section(found)}\n{part.note}"
        )
    return "\n".join(sections)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all by default")
    chosen = parser.parse_args().parts or list(PARTS)
    for name in chosen:
        if name not in PARTS:
            parser.error(f"there is no part {name!r}; choose from {', '.join(PARTS)}")
    measured = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
    for name in chosen:
        found = []
        for each in PARTS[name].measure():
            print(PARTS[name].described(each), flush=True)
            found.append(asdict(each))
        measured[name] = {"machine": machine(), "found": found}
        # after each part: what was measured is kept if the next one fails
        MEASURED.write_text(json.dumps(measured, indent=1, ensure_ascii=False) + "\n")
        PAGE.write_text(page(measured))
        print(f"wrote {name} to {PAGE.name}", flush=True)


if __name__ == "__main__":
    main()
