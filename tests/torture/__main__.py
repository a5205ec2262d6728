"""All of it at full size: ``python -m tests.torture [PART …]``, as ``make torture`` does.

Prints a table of what was tried and what survived, and writes it into docs/reliability.md. Everything that is
tried happens in a temporary folder. With names of parts, only their rows are made again.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import torch

from ien._files import replace_file
from ien.training.run import processor
from tests.torture import (
    test_exactness,
    test_failing_calls,
    test_file_operations,
    test_full_disk,
    test_hostile_files,
    test_hostile_names,
    test_memory,
    test_mutated_files,
    test_signals,
    test_texts,
)
from tests.torture.commands import COMMANDS
from tests.torture.readers import READERS
from tests.torture.tally import Tally

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- torture: begin -->", "<!-- torture: end -->"
HEADER = "| what | tried | survived | date | CPU seconds |\n|---|---:|---:|---|---:|\n"
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")

New = Callable[[], Path]
"""Makes a new temporary folder."""


def file_operations(new: New) -> Iterator[Tally]:
    for name in COMMANDS:
        yield test_file_operations.killed_everywhere(name, new(), test_file_operations.FULL)


def signals(new: New) -> Iterator[Tally]:
    for name in test_signals.SIGNALS:
        yield test_signals.stopped_at_random(name, new(), test_signals.FULL)
    yield test_signals.workers_killed(new(), test_signals.FULL_WORKERS)


def mutated_files(new: New) -> Iterator[Tally]:
    for name in READERS:
        yield test_mutated_files.read_mutations(name, new(), test_mutated_files.FULL)


def hostile_files(new: New) -> Iterator[Tally]:
    yield test_hostile_files.refused(new(), test_hostile_files.FULL)
    yield test_hostile_files.archives_refused(new())


def texts(new: New) -> Iterator[Tally]:
    for name in test_texts.PARSERS:
        yield test_texts.parsed(name, test_texts.FULL)


def failing_calls(new: New) -> Iterator[Tally]:
    for name in test_failing_calls.CALLS:
        yield test_failing_calls.fails_everywhere(name, test_failing_calls.FULL)


def memory(new: New) -> Iterator[Tally]:
    yield test_memory.too_little_memory(new(), test_memory.FULL)


def full_disk(new: New) -> Iterator[Tally]:
    yield test_full_disk.full_disks(new(), test_full_disk.FULL)


def exactness(new: New) -> Iterator[Tally]:
    yield test_exactness.exact_for_all(test_exactness.FULL)


def hostile_names(new: New) -> Iterator[Tally]:
    yield test_hostile_names.shown(new())


PARTS: dict[str, Callable[[New], Iterator[Tally]]] = {
    "Kills": file_operations,
    "Signals": signals,
    "Damaged files": mutated_files,
    "Hostile files and options": hostile_files,
    "Hostile names": hostile_names,
    "Texts": texts,
    "Failing calls": failing_calls,
    "Too little memory": memory,
    "Full disks": full_disk,
    "Exactness": exactness,
}
"""Title → part, in the order of the table."""

Rows = dict[str, dict[str, str]]
"""Title of a part → what was tried → a line of the table."""


def cpu_seconds() -> float:
    """Computing time of this process, and of its children and their children that have ended."""
    total = time.process_time()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # after the name of the program: state, parent, …, and the times as fields 12 to 15
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[1]) == os.getpid():
            total += sum(map(int, fields[11:15])) / CLOCK_TICKS
    return total


def read_rows(table: str) -> Rows:
    """Read the rows of a table, below the titles that it has."""
    rows: Rows = {}
    title = ""
    for line in table.splitlines():
        what = line.split(" | ")[0].removeprefix("| ")
        if what.startswith("**"):
            title = what.strip("*")
            rows[title] = {}
        elif title and line.startswith("| "):
            rows[title][what] = line
    return rows


def table_of(rows: Rows) -> str:
    """Return the table, in the order of the parts, and what it was made with."""
    lines = []
    seconds = 0
    for title in PARTS:
        if rows.get(title):
            lines.append(f"| **{title}** | | | | |")
            lines += rows[title].values()
            for line in rows[title].values():
                seconds += int(line.split(" | ")[-1].rstrip(" |"))
    machine = f"{processor()}, {os.cpu_count()} cores, torch {torch.__version__}"
    made = f"{seconds / 60:.0f} minutes of computing in all, one thread; {machine}"
    return HEADER + "\n".join(lines) + f"\n\n{made}\n"


def write_rows(title: str, made: dict[str, str], finished: bool) -> None:
    """Put the rows of a part into the table of the page.

    Args:
        title: Of the part.
        made: What was tried → a line of the table.
        finished: Whether these are all of them, so that earlier ones about other things go.
    """
    before, _, rest = PAGE.read_text().partition(BEGIN)
    table, _, after = rest.partition(END)
    rows = read_rows(table)
    earlier = rows.get(title, {})
    if finished:
        earlier = {}
    rows[title] = earlier | made
    text = f"{before}{BEGIN}\n{table_of(rows)}{END}{after}"
    replace_file(PAGE, lambda temporary: temporary.write_text(text))


def row_of(tally: Tally, seconds: float) -> str:
    """A line of the table."""
    tried = f"{tally.tried:,}"
    if tally.of > tally.tried:
        tried += f" of {tally.of:,}"
    return f"| {tally.what} | {tried} | {tally.survived:,} | {date.today()} | {seconds:.0f} |"


def main(chosen: list[str]) -> int:
    """Run the parts; returns the exit code, 1 if something did not survive."""
    names = [part.__name__ for part in PARTS.values()]
    unknown = set(chosen) - set(names)
    if unknown:
        print(f"there is no part {', '.join(sorted(unknown))}; choose from {', '.join(names)}")
        return 2
    torch.set_num_threads(1)
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="ien-torture-") as place:
        os.environ["IEN_CACHE"] = str(Path(place) / "cache")

        def new() -> Path:
            return Path(tempfile.mkdtemp(dir=place))

        print(HEADER, end="")
        for title, part in PARTS.items():
            if chosen and part.__name__ not in chosen:
                continue
            made: dict[str, str] = {}
            before = cpu_seconds()
            for tally in part(new):
                now = cpu_seconds()
                made[tally.what] = row_of(tally, now - before)
                before = now
                print(made[tally.what], flush=True)
                failures += tally.failures
                write_rows(title, made, finished=False)
            write_rows(title, made, finished=True)
    for failure in failures:
        print(failure)
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
