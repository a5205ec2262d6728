"""Disks that fill up: one line with the path, nothing half-written, and with space again the same result."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.torture.child import call
from tests.torture.commands import one_run, problem_when_given_again, results
from tests.torture.tally import Tally

SHORT = (220,)
"""Sizes of the disk in ``make test``, in kB."""
FULL = (4, 100, 220)
"""Too small for the configuration, the first checkpoint, and the second, which has 156 kB like the first."""


@contextmanager
def small_disk(place: Path, size: int) -> Iterator[bool]:
    """A file system of ``size`` kB in a folder, where mounting is allowed; yields whether it is."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(place)]
    mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(place)], check=True)


def with_small_files(size: int) -> None:
    """A run whose files can have half of ``size`` kB each: a full disk for those who cannot mount one."""
    sys.dont_write_bytecode = True  # compiled modules would be cut short, and kept
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size * 500, size * 500))
    one_run()


def full_disks(place: Path, sizes: tuple[int, ...]) -> Tally:
    """Run on disks that are too small, and then go on where there is space."""
    tally = Tally("a run on a disk that fills up")
    whole = place / "whole"
    whole.mkdir()
    done = call(one_run, folder=whole)
    assert done.code == 0, done
    expected = results(whole)
    for size in sizes:
        with small_disk(place / f"disk{size}", size) as mounted:
            work = place / f"disk{size}"
            tally.add(f"{size} kB", problem_on(work, size, mounted, place / f"copy{size}", expected))
    return tally


def problem_on(work: Path, size: int, mounted: bool, copy: Path, expected: dict[str, bytes]) -> str | None:
    if mounted:
        ended = call(one_run, folder=work)
    else:
        ended = call(with_small_files, size, folder=work)
    if not ended.refused or str(Path("runs")) not in ended.said:
        return str(ended)
    if leftovers_now(work):
        return f"leaves {leftovers_now(work)}"
    shutil.copytree(work, copy)  # where there is space
    return problem_when_given_again(copy, expected, one_run)


def leftovers_now(work: Path) -> list[str]:
    """Temporary files, before anyone else writes."""
    return [str(path) for path in work.rglob("*.part")]


@pytest.mark.slow
def test_a_run_on_a_disk_that_fills_up_loses_nothing(tmp_path: Path) -> None:
    full_disks(tmp_path, SHORT).check(at_least=len(SHORT))
