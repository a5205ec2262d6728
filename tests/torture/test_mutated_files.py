"""Files with random damage: read as they were, or refused in one line that leaves everything as it is."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

import ien.data
from ien.cli.errors import USER_ERROR, Failed, one_line_errors
from tests.helpers import toy
from tests.torture.child import MAX_SECONDS, call, enter, tree
from tests.torture.readers import JSON, READERS, Reader
from tests.torture.tally import Tally

SHORT = 8
"""Mutations of each file in ``make test``."""
FULL = 500

HOSTILE: list[Any] = [None, True, -1, 0, 1e308, 10**400, "", "x", "\x1b[2J", [], [[]], {}, {"a": 1}]
HOSTILE += ["nan", "rot99999999", "../..", "a" * 100_000, float("nan"), float("inf")]
BYTES = [b"\0", b"\xff" * 4, b"\x7f\xff\xff\xff", b"\n", b"{", b"[" * 1000, b",", b"-", b"1e999", b"nan"]


class TooSlow(BaseException):
    """A reader took more time than it may."""


def mutated(content: bytes, draw: random.Random) -> bytes:
    """Content with one to three random changes."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 3)):
        start = draw.randrange(len(changed) + 1)
        end = min(len(changed), start + draw.choice([1, 4, 100, len(changed)]))
        kind = draw.randrange(6)
        if kind == 0 and start < len(changed):
            changed[start] ^= 1 << draw.randrange(8)
        elif kind == 1:
            changed[start:end] = draw.randbytes(end - start)
        elif kind == 2:
            del changed[start:end]
        elif kind == 3:
            changed[start:start] = changed[start:end]
        elif kind == 4:
            changed[start:start] = draw.choice(BYTES)
        else:
            changed[start:end] = bytes(end - start)
    return bytes(changed)


def with_a_field_changed(text: str, draw: random.Random) -> str:
    """JSON in which one value is replaced, or left out."""
    content = json.loads(text)
    holder = content
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = draw.choice(keys)
        inner = holder[key]
        if isinstance(inner, dict | list) and inner and draw.random() < 0.8:
            holder = inner
            continue
        break
    if draw.random() < 0.2:
        del holder[key]
    else:
        holder[key] = draw.choice(HOSTILE)
    return json.dumps(content)


def damaged(name: str, content: bytes, number: int) -> bytes:
    """The ``number``-th mutation of a reader's file."""
    draw = random.Random(f"{name} {number}")
    if name in JSON and number % 2:
        line = content.decode().splitlines()[0] if name == "metrics.jsonl" else content.decode()
        return with_a_field_changed(line, draw).encode() + b"\n"
    return mutated(content, draw)


def problem_with(reader: Reader, folder: Path, expected: object) -> str | None:
    """Read a damaged file; what is wrong with how that ended."""
    before = tree(folder)
    signal.setitimer(signal.ITIMER_VIRTUAL, MAX_SECONDS)
    try:
        with one_line_errors():
            found = reader.read(folder)
        if expected is not None and found != expected:
            return "was read as something else"
        return None
    except Failed as error:
        if error.exit_code != USER_ERROR or "\n" in error.message or len(error.message) < 20:
            return f"exit code {error.exit_code}: {error.message}"
    except (Exception, TooSlow) as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    after = tree(folder)
    if after != before:
        return f"changed {[path for path in before | after if before.get(path) != after.get(path)]}"
    return None


def too_slow(*arguments: object) -> None:
    raise TooSlow(f"more than {MAX_SECONDS} s")


def read_all(name: str, numbers: range, log: Path) -> None:
    """Read mutations one after another; the log has a line for each that was begun, and each problem."""
    ien.data.DATASETS |= toy.DATASETS
    signal.signal(signal.SIGVTALRM, too_slow)
    reader = READERS[name]
    folder = Path.cwd()
    path = folder / reader.file
    content = path.read_bytes()
    expected = reader.read(folder)
    with open(log, "a", buffering=1) as file:
        for number in numbers:
            file.write(json.dumps([number, ""]) + "\n")
            path.write_bytes(damaged(name, content, number))
            problem = problem_with(reader, folder, expected)
            path.write_bytes(content)
            if problem is not None:
                file.write(json.dumps([number, problem]) + "\n")


def read_mutations(name: str, place: Path, count: int) -> Tally:
    """Give ``count`` mutations of a file to its reader, in a child with limits."""
    tally = Tally(f"mutations of {name}")
    folder = place / "work"
    folder.mkdir()
    made = call(make, name, folder=folder)
    assert made.code == 0, made
    log = place / "log.txt"
    first = 0
    problems: dict[int, str] = {}
    while first < count:
        child = call(
            read_all, name, range(first, count), log, folder=folder, limited=True, seconds=60 + count
        )
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        problems |= {number: problem for number, problem in lines if problem}
        last = lines[-1][0] if lines else first
        if child.code != 0:  # it took the whole process with it
            problems[last] = str(child)
            (folder / READERS[name].file).unlink(missing_ok=True)
            call(make, name, folder=folder)
        first = last + 1
    for number in range(count):
        tally.add(f"mutation {number}", problems.get(number))
    return tally


def make(name: str) -> None:
    """Make the good file."""
    ien.data.DATASETS |= toy.DATASETS
    enter(Path.cwd())
    READERS[name].make(Path.cwd())
    assert os.path.isfile(READERS[name].file)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_a_mutated_file_is_read_as_it_was_or_refused_in_one_line(tmp_path: Path, name: str) -> None:
    read_mutations(name, tmp_path, SHORT).check(at_least=SHORT)
