"""Too little memory, for real: one line with advice, the checkpoint stays, and with more the same result."""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path

import pytest

from tests.torture.child import Outcome, call, fresh_copy, ien_command, used_memory
from tests.torture.commands import leftovers, problem_when_given_again, results, tiny
from tests.torture.tally import Tally

SHORT = (128,)
"""MB that a run may take in ``make test``, besides what its process has when it starts."""
FULL = (8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224)
"""In ``make torture``; the run needs about 380."""


def large_run() -> None:
    """A run of two epochs of one step, whose batch needs a few hundred MB."""
    ien_command("run", "rot-mnist/ien-r4", *tiny(epochs=2, images=128, batch_size=128, width="1/4"))


def half_a_run() -> None:
    """The same run in a process that kills itself just before its second checkpoint is in place."""
    saved = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal saved
        if event == "os.rename" and str(arguments[1]).endswith("last.pt"):
            saved += 1
            if saved == 2:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    large_run()


def with_little_memory(megabytes: int) -> None:
    """The same run in a process that may take so many MB more than it has."""
    memory = used_memory() + (megabytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    large_run()


def too_little_memory(place: Path, limits: tuple[int, ...]) -> Tally:
    """Give a run too little memory, from its beginning and from a checkpoint, and then enough."""
    tally = Tally("a run with too little memory")
    new, half, whole = place / "new", place / "half", place / "whole"
    for folder in (new, half, whole):
        folder.mkdir()
    done = call(large_run, folder=whole)
    assert done.code == 0, done
    expected = results(whole)
    cut = call(half_a_run, folder=half)
    assert cut.code == -signal.SIGKILL, cut
    for start in (new, half):
        for megabytes in limits:
            work = fresh_copy(start, place / "work")
            tally.add(f"{start.name}, {megabytes} MB", problem_with(work, megabytes, expected))
    return tally


def problem_with(work: Path, megabytes: int, expected: dict[str, bytes]) -> str | None:
    before = checkpoints(work)
    ended = call(with_little_memory, megabytes, folder=work)
    if not says_what_helps(ended):
        return str(ended)
    if checkpoints(work) != before:
        return "changed the checkpoint"
    if leftovers(work):
        return f"leaves {leftovers(work)}"
    return problem_when_given_again(work, expected, large_run)


def says_what_helps(ended: Outcome) -> bool:
    """Whether it ended with exit code 1 and one line, about a smaller batch if it came to train."""
    if ended.code != 1 or not ended.said.startswith("error: out of memory ("):
        return False
    return "--set batch_size=64" in ended.said or "a machine with more" in ended.said


def checkpoints(work: Path) -> dict[str, bytes]:
    """Path → content of the checkpoints that are in place."""
    found = {}
    for path in work.rglob("last.pt"):
        if path.parent.suffix != ".part":
            found[str(path)] = path.read_bytes()
    return found


@pytest.mark.slow
def test_a_run_with_too_little_memory_says_what_helps_and_loses_nothing(tmp_path: Path) -> None:
    too_little_memory(tmp_path, SHORT).check(at_least=2 * len(SHORT))
