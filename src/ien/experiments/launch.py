"""Hand runs to a cluster, one job each: SLURM, or processes of this machine, by ``submitit``.

A job is the command ``ien run`` for one run, so it skips what is done, resumes what was stopped and
records what ends, whoever started it. Nothing depends on the process that submits: it may be killed
at any moment, and the same command submits what is left.

Beside the run folders, ``.jobs`` holds submitit's files, the output of each job, its number in the
queue, and a file that it keeps locked for as long as it lives.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from .._files import replace_file
from .._text import to_install
from ..training import Config
from ..training.run_folder import count_epochs, read_config, read_result
from .queue import is_recorded, run_name

__all__ = ["JOBS", "Launcher", "Resources", "RunStatus", "status", "submit"]

Launcher = Literal["slurm", "local"]
JOBS = ".jobs"
"""The folder of jobs, beside the run folders."""
SECONDS_BETWEEN_LOOKS = 0.5
"""How often a job of this machine looks for a free place."""


@dataclass(frozen=True)
class Resources:
    """What each job asks for."""

    launcher: Launcher
    at_once: int | None = None
    """How many jobs may run at the same time; None: as many as the cluster allows, here one."""
    gpus: int = 0
    cpus: int = 1
    hours: float = 24.0
    """After these a job is stopped, and submitted again, up to three times: it resumes."""
    partition: str | None = None
    """Of SLURM; None: its default."""

    def __post_init__(self) -> None:
        if self.launcher not in get_args(Launcher):
            raise ValueError(f"--launcher is slurm or local; got {self.launcher}")
        if self.partition is not None and self.launcher == "local":
            raise ValueError("--partition is for --launcher slurm: this machine has none")


class RunStatus(NamedTuple):
    """What became of a run."""

    run: str
    """Its folder, below that of all runs."""
    state: Literal["finished", "running", "waiting", "stopped"]
    progress: str
    """Such as 3/10 epochs."""
    where: str
    """The machine and job that run it, or what a job that failed has printed; else empty."""


class _Waits(NamedTuple):
    """A job that does not run."""

    state: Literal["waiting", "stopped"]
    where: str
    """As in :class:`RunStatus`."""


def submit(
    configs: Sequence[Config],
    arguments: Callable[[Config], list[str]],
    runs: Path,
    results: Path,
    data: str | None,
    resources: Resources,
    say: Callable[[str], None],
) -> None:
    """Submit a job for each run that is neither recorded nor in the hands of another job.

    A row that tests the weights of another one goes along in the job of that row.

    Args:
        configs: What to run.
        arguments: From a configuration to what comes after ``ien run NAME``.
        runs: Where the run folders are made.
        results: Where the records go.
        data: The data folder.
        resources: What each job asks for.
        say: Called with a line for each run.

    Raises:
        ModuleNotFoundError: ``submitit`` is not installed.
        ValueError: There is no SLURM on this machine.
    """
    executor = _executor(runs, resources)
    places = None
    if resources.launcher == "local":
        places = resources.at_once or 1
    jobs: dict[str, _Job] = {}
    for config in configs:
        name = run_name(config, data)
        key = _key(config, name)
        if is_recorded(config, results, data) or read_result(runs / name) is not None:
            say(f"{name}: finished before")
        elif key not in jobs and _is_alive(runs, key):
            say(f"{name}: submitted before")
        else:
            if key not in jobs:
                jobs[key] = _Job(_lock_of(runs, key), places)
            jobs[key].commands.append(["run", config.experiment, *arguments(config)])
            say(f"{name}: submitted")
    if not jobs:
        return
    for key in jobs:
        _lock_of(runs, key).write_text("")  # status tells by this that the job has not begun
    # one array of jobs, so that SLURM can limit how many run at once
    with _nothing_inherited(), executor.batch():
        submitted = {key: executor.submit(job) for key, job in jobs.items()}
    for key, job in submitted.items():
        line = f"{resources.launcher} {job.job_id}\n"
        replace_file(_id_of(runs, key), partial(Path.write_text, data=line))
    jobs_text = "1 job" if len(submitted) == 1 else f"{len(submitted)} jobs"
    say(f"{jobs_text}; ien status shows how far they are, and {runs / JOBS} has their output")


def status(runs: Path) -> list[RunStatus]:
    """Return the state of every run below a folder, those that have not begun included.

    Args:
        runs: The folder of runs.

    Raises:
        FileNotFoundError: There is no such folder.
    """
    if not runs.is_dir():
        raise FileNotFoundError(f"{runs} does not exist: ien run makes it, or give another --out")
    alive = _alive_jobs(runs)
    others = _other_jobs(runs, alive)
    begun = set()
    found = []
    for path in sorted(runs.glob("**/config.json")):
        folder = path.parent
        name = str(folder.relative_to(runs))
        config = read_config(folder)
        key = _key(config, name)
        begun.add(key)
        where = alive.get(key, "")
        if read_result(folder) is not None:
            found.append(RunStatus(name, "finished", "", ""))
            continue
        progress = f"{count_epochs(folder)}/{config.schedule.epochs} epochs"
        if _is_locked(folder / ".lock"):
            found.append(RunStatus(name, "running", progress, where))
        elif where:
            found.append(RunStatus(name, "waiting", progress, where))
        else:
            state, where = others.get(key, _Waits("stopped", ""))
            found.append(RunStatus(name, state, progress, where))
    # jobs without a run folder yet, or that could not make one
    for key, where in alive.items():
        if key not in begun:
            found.append(RunStatus(key, "waiting", "", where))
    for key, (state, where) in others.items():
        if key not in begun:
            found.append(RunStatus(key, state, "", where))
    return found


class _Job:
    """What a job does: the commands of its runs, one after another."""

    def __init__(self, lock: Path, places: int | None) -> None:
        """Prepare a job without any run.

        Args:
            lock: The file that it keeps locked for as long as it lives.
            places: How many jobs of this machine may run at once; None leaves that to the cluster.
        """
        self.lock = lock.resolve()
        self.places = places
        self.commands: list[list[str]] = []
        """What comes after ``ien``, for each run."""
        self.running: subprocess.Popen[bytes] | None = None

    def __call__(self) -> None:
        with _locked(self.lock) as mine:
            if not mine:
                print(f"another job holds {self.lock}: nothing to do")
                return
            with _place(self.lock.parent, self.places):
                for command in self.commands:
                    self._run(command)
            # a number that is still there when the job has ended is that of one that failed
            self.lock.with_suffix(".id").unlink(missing_ok=True)

    def _run(self, command: Sequence[str]) -> None:
        self.running = subprocess.Popen([sys.executable, "-m", "ien", *command])
        exit_code = self.running.wait()
        if exit_code:
            raise RuntimeError(f"ien {' '.join(command)} ended with exit code {exit_code}")

    def checkpoint(self) -> Any:
        """Stop the run politely, so that it keeps its state, and return what goes on with it.

        submitit calls this when the time of a job is up or SLURM needs its machine.
        """
        from submitit.helpers import DelayedSubmission

        if self.running is not None and self.running.poll() is None:
            self.running.send_signal(signal.SIGTERM)
            self.running.wait()
        again = _Job(self.lock, self.places)
        again.commands = self.commands
        return DelayedSubmission(again)


def _executor(runs: Path, resources: Resources) -> Any:
    try:
        import submitit
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"--launcher needs submitit: {to_install('cluster', 'submitit')}") from None
    folder = runs / JOBS
    folder.mkdir(parents=True, exist_ok=True)
    try:
        executor = submitit.AutoExecutor(folder, cluster=resources.launcher)
    except RuntimeError as error:  # no sbatch here
        raise ValueError(
            f"there is no SLURM here ({error}): submit from a login node, or use --launcher local"
        ) from None
    executor.update_parameters(
        timeout_min=int(60 * resources.hours),
        gpus_per_node=resources.gpus,
        cpus_per_task=resources.cpus,
        name="ien",
    )
    if resources.launcher == "slurm":
        slurm: dict[str, Any] = {"slurm_array_parallelism": resources.at_once or 256}
        if resources.partition is not None:
            slurm["slurm_partition"] = resources.partition
        executor.update_parameters(**slurm)
    return executor


def _key(config: Config, name: str) -> str:
    """The job of a run, by the run's name: a row that trains nothing goes along with another."""
    first = config.weights_of or config.experiment
    return name.replace(config.experiment, first, 1).replace("/", "_")


def _lock_of(runs: Path, key: str) -> Path:
    return runs / JOBS / f"{key}.lock"


def _id_of(runs: Path, key: str) -> Path:
    return runs / JOBS / f"{key}.id"


def _is_alive(runs: Path, key: str) -> bool:
    """Whether a job waits or runs."""
    return key in _alive_jobs(runs)


def _alive_jobs(runs: Path) -> dict[str, str]:
    """Jobs that wait or run → their machine and process, or their number in SLURM's queue."""
    found = {}
    for path in sorted((runs / JOBS).glob("*.id")):
        launcher, number = path.read_text().split()
        lock = _lock_of(runs, path.stem)
        if _is_locked(lock):
            found[path.stem] = lock.read_text().strip()
        elif launcher == "slurm" and _is_queued(runs, number):
            found[path.stem] = f"SLURM job {number}"
    return found


def _other_jobs(runs: Path, alive: Mapping[str, str]) -> dict[str, _Waits]:
    """Jobs that do not run and have not ended well: about to start, or failed."""
    found = {}
    for path in sorted((runs / JOBS).glob("*.id")):
        if path.stem in alive:
            continue
        launcher, number = path.read_text().split()
        output = f"{runs / JOBS / number}_0_log.err"
        lock = _lock_of(runs, path.stem)
        has_begun = lock.exists() and lock.read_text() != ""
        if launcher == "local" and not has_begun:
            found[path.stem] = _Waits("waiting", f"starts; output: {output}")
        else:
            found[path.stem] = _Waits("stopped", f"failed; output: {output}")
    return found


def _is_queued(runs: Path, number: str) -> bool:
    """Ask SLURM whether a job waits or runs, on whatever machine."""
    from submitit import SlurmJob

    return not SlurmJob(runs / JOBS, number).done(force_check=True)


@contextlib.contextmanager
def _nothing_inherited() -> Iterator[None]:
    """Keep this command's output from its jobs: who reads a pipe would wait for their end."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = {number: os.dup(number) for number in (1, 2)}
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for number in saved:
            os.dup2(nowhere, number)
        yield
    finally:
        for number, copied in saved.items():
            os.dup2(copied, number)
            os.close(copied)
        os.close(nowhere)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Hold a file that tells who holds it; yields False if another process does."""
    import fcntl

    with open(path, "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        file.truncate(0)
        file.write(f"{platform.node()}, process {os.getpid()}\n")
        file.flush()
        yield True


@contextlib.contextmanager
def _place(folder: Path, places: int | None) -> Iterator[None]:
    """Wait for one of the places of this machine; a job that is killed gives its place back."""
    if places is None:
        yield
        return
    while True:
        for number in range(places):
            with _locked(folder / f".place{number}") as mine:
                if mine:
                    yield
                    return
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _is_locked(path: Path) -> bool:
    """Whether a process that is alive holds a file."""
    import fcntl

    if not path.exists():
        return False
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
