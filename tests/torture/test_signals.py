"""Stopped at random moments, alone and as a worker of torchrun, a run ends as if it never was."""

from __future__ import annotations

import io
import os
import random
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

import ien.data
from ien.training import Stopped, joined, run
from tests.helpers import toy
from tests.torture.child import MAX_WAIT, call, start
from tests.torture.commands import leftovers, one_run, problem_when_given_again, results
from tests.torture.tally import Tally

SHORT = 1
"""Of each signal, and of workers that are killed, in ``make test``."""
FULL = 7
FULL_WORKERS = 6

NEVER = 10**6
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def run_for(seconds: float, name: signal.Signals, taken: Path | None = None) -> None:
    """A run in a process that sends itself a signal after so many seconds; writes how long it took."""
    alarm = threading.Timer(seconds, os.kill, (os.getpid(), name))
    alarm.daemon = True
    alarm.start()
    started = time.monotonic()
    try:
        one_run()
    finally:
        alarm.cancel()
        if taken is not None:
            taken.write_text(str(time.monotonic() - started))


def stopped_at_random(name: signal.Signals, place: Path, count: int) -> Tally:
    """Send a signal to a run at random moments, and give the command again until it ends."""
    tally = Tally(f"{name.name} at random moments of a run")
    whole = place / "whole"
    whole.mkdir()
    taken = place / "seconds.txt"
    done = call(run_for, NEVER, name, taken, folder=whole)
    assert done.code == 0, done
    seconds = float(taken.read_text())
    expected = results(whole)
    draw = random.Random(name.name)
    for number in range(count):
        work = place / f"work{number}"
        work.mkdir()
        moment = draw.uniform(0, seconds)
        tally.add(f"after {moment:.2f} s", problem_after(name, moment, work, expected))
    return tally


def problem_after(name: signal.Signals, moment: float, work: Path, expected: dict[str, bytes]) -> str | None:
    ended = call(run_for, moment, name, folder=work)
    if name is not signal.SIGKILL and "Traceback" in ended.output:
        return f"traceback: {ended}"
    return problem_when_given_again(work, expected, run_for, NEVER, name)


# --- torchrun


def worker(rank: int, port: int, killed: bool, step: int) -> None:
    """A run as torchrun starts it: one of two processes, which may be killed in a step."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in place.items()}}
    ien.data.DATASETS |= toy.DATASETS
    if killed:
        toy.at_call(step, toy.loop, "take_step", lambda *a: os.kill(os.getpid(), signal.SIGKILL))
    try:
        with joined() as processes:
            silent = Console(file=io.StringIO())
            run(Path("run"), toy.config(processes=2), "embedded", None, None, processes, silent)
    except Stopped:
        sys.exit(130)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def both(work: Path, killed: int | None = None, step: int = 0) -> list[int]:
    """Two workers; if one is killed, the other is ended, as torchrun does. Returns their exit codes."""
    port = free_port()
    processes = []
    for rank in range(2):
        processes.append(start(worker, rank, port, rank == killed, step, folder=work))
    if killed is not None:
        processes[killed].join(MAX_WAIT)
        processes[1 - killed].terminate()
        processes[1 - killed].join(30)
        processes[1 - killed].kill()
    for process in processes:
        process.join(MAX_WAIT)
    return [process.exitcode for process in processes]


def workers_killed(place: Path, count: int) -> Tally:
    """Kill one of two workers at random steps, and start both again."""
    tally = Tally("a worker of torchrun killed")
    whole = place / "whole"
    whole.mkdir()
    assert both(whole) == [0, 0]
    expected = results(whole)
    draw = random.Random("workers")
    for number in range(count):
        work = place / f"work{number}"
        work.mkdir()
        step = draw.randint(2, 18)  # of three epochs of six
        codes = both(work, number % 2, step)
        problem = None
        if codes[number % 2] != -signal.SIGKILL:
            problem = f"not killed: {codes}"
        elif both(work) != [0, 0]:
            problem = "does not go on"
        elif results(work) != expected:
            problem = "other results"
        elif leftovers(work):
            problem = f"leaves {leftovers(work)}"
        tally.add(f"worker {number % 2} in step {step}", problem)
    return tally


@pytest.mark.slow
@pytest.mark.parametrize("name", SIGNALS, ids=lambda name: name.name)
def test_a_run_that_is_stopped_at_any_moment_ends_as_if_never_stopped(
    tmp_path: Path, name: signal.Signals
) -> None:
    stopped_at_random(name, tmp_path, SHORT).check(at_least=SHORT)


@pytest.mark.slow
def test_two_processes_of_which_one_is_killed_end_as_if_it_never_was(tmp_path: Path) -> None:
    workers_killed(tmp_path, SHORT).check(at_least=SHORT)
