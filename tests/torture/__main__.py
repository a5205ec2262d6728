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


def full_disk(new: New) -> Iterator[Tally]:
    yield test_full_disk.full_disks(new(), test_full_disk.FULL)


def exactness(new: New) -> Iterator[Tally]:
    yield test_exactness.exact_for_all(test_exactness.FULL)


def hostile_names(new: New) -> Iterator[Tally]:
    yield test_hostile_names.shown(new())


PARTS = (
    file_operations,
    signals,
    mutated_files,
    hostile_files,
    texts,
    failing_calls,
    full_disk,
    exactness,
    hostile_names,
)


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


def write_rows(rows: dict[str, str]) -> None:
    """Put rows into the table of the page, in place of earlier ones about the same."""
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    table, _, after = rest.partition(END)
    known = {}
    for line in table.splitlines():
        if line.startswith("| ") and not line.startswith("| what"):
            known[line.split(" | ")[0]] = line
    known |= rows
    machine = f"{processor()}, {os.cpu_count()} cores, torch {torch.__version__}"
    body = f"{BEGIN}\n{HEADER}" + "\n".join(known.values()) + f"\n\n{machine}\n{END}"
    replace_file(PAGE, lambda temporary: temporary.write_text(before + body + after))


def main(chosen: list[str]) -> int:
    """Run the parts; returns the exit code, 1 if something did not survive."""
    names = [part.__name__ for part in PARTS]
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
        for part in PARTS:
            if chosen and part.__name__ not in chosen:
                continue
            before = cpu_seconds()
            for tally in part(new):
                now = cpu_seconds()
                tried = f"{tally.tried:,}"
                if tally.of > tally.tried:
                    tried += f" of {tally.of:,}"
                line = f"| {tally.what} | {tried} | {tally.survived:,} "
                line += f"| {date.today()} | {now - before:.0f} |"
                before = now
                print(line, flush=True)
                failures += tally.failures
                write_rows({line.split(" | ")[0]: line})
    for failure in failures:
        print(failure)
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
