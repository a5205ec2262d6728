"""Killed at every file operation, a command ends as if it had never been, when it is given again."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.torture.child import call, fresh_copy
from tests.torture.commands import COMMANDS, leftovers, problem_when_given_again, results
from tests.torture.tally import Tally

SHORT = 2
"""Kills of each command in ``make test``, at operations that are spread evenly."""
FULL = 10**6
"""In ``make torture``: all of them."""

OPERATIONS = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate"}
"""Audit events that change a folder; opening a file to write is one more."""
WRITING = os.O_WRONLY | os.O_RDWR
NO_PROMISE = ("tensorboard", "torchinductor", "matplotlib", "__pycache__", "/dev/")
"""Parts of paths whose files nobody goes on from."""


def is_operation(event: str, arguments: tuple[object, ...]) -> bool:
    """Whether an audit event is a file operation that a kill could come before."""
    if event != "open" and event not in OPERATIONS:
        return False
    path = arguments[0]
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    if not isinstance(path, str) or any(part in path for part in NO_PROMISE):
        return False
    return event in OPERATIONS or bool(int(str(arguments[2])) & WRITING)


def killed_at(number: int, function: Callable[[], None], count: Path | None = None) -> None:
    """Call a function in a process that kills itself just before its ``number``-th file operation.

    If it has fewer, their number is written to the file ``count``.
    """
    done = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal done
        if is_operation(event, arguments):
            done += 1
            if done == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    try:
        function()
    except SystemExit as end:  # by which typer ends every command
        if end.code:
            raise
    if count is not None:
        total = done
        count.write_text(str(total))


def killed_everywhere(name: str, place: Path, most: int) -> Tally:
    """Kill a command at ``most`` of its file operations, and give it again."""
    tally = Tally(f"kill -9 at file operations of {name}")
    command = COMMANDS[name]
    start = place / "start"
    start.mkdir()
    command.prepare(start)
    work = fresh_copy(start, place / "work")
    count = place / "count.txt"
    whole = call(killed_at, 0, command.function, count, folder=work)
    assert whole.code == 0, whole
    # what is expected comes from a second run: the first one may compile and cache what later ones read
    work = fresh_copy(start, place / "work")
    whole = call(killed_at, 0, command.function, folder=work)
    assert whole.code == 0, whole
    expected = results(work)
    assert expected and not leftovers(work), (expected, leftovers(work))
    operations = int(count.read_text())
    tally.of = operations
    step = math.ceil(operations / most)
    for number in range(1 + step // 2, operations + 1, step):
        work = fresh_copy(start, place / "work")
        tally.add(f"operation {number}", problem_after_a_kill(command.function, number, work, expected))
    return tally


def problem_after_a_kill(
    function: Callable[[], None], number: int, work: Path, expected: dict[str, bytes]
) -> str | None:
    cut = call(killed_at, number, function, folder=work)
    if cut.code != -signal.SIGKILL:
        return f"not killed: {cut}"
    return problem_when_given_again(work, expected, killed_at, 0, function)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_is_killed_and_given_again_ends_as_if_never_killed(tmp_path: Path, name: str) -> None:
    killed_everywhere(name, tmp_path, SHORT).check(at_least=SHORT)
