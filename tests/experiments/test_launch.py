"""Jobs: each run is submitted once, two at a time if asked, and a killed one resumes to the same bits."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ien._files import digest
from ien.experiments import launch
from tests.helpers.shell import error_of, invoke

pytest.importorskip("submitit", reason="jobs are submitted by submitit: pip install submitit")
pytestmark = pytest.mark.usefixtures("elsewhere")

RUN = (
    "run",
    "rot-mnist/cnn",
    "rot-mnist/ien-r4",
    "--preset",
    "smoke",
    "--data",
    "embedded",
    "--threads",
    "1",
)


def states(folder: Path) -> dict[str, str]:
    return {each.run: each.state for each in launch.status(folder)}


def wait_for(condition, seconds: float = 200) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


def submit_two_at_once() -> str:
    """Submit from a process that ends at once, and return what it said."""
    command = [sys.executable, "-m", "ien", *RUN, "--launcher", "local", "--at-once", "2"]
    # of pipes, which a job must not hold open for as long as it runs
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert "finished" not in states(Path("runs")).values() or "finished before" in said
    return said


def child_of_job(run: str) -> int | None:
    """The process of ``ien run`` that a job has started for a run."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            folder = (process / "cwd").resolve()
        except OSError:
            continue
        if run.encode() in words and b"submitit.core._submit" not in words and folder == Path.cwd():
            return int(process.name)
    return None


def test_no_more_jobs_run_than_there_are_places(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(launch, "SECONDS_BETWEEN_LOOKS", 0.01)
    running = 0
    most = 0
    counting = threading.Lock()

    def work() -> None:
        nonlocal running, most
        with launch._place(tmp_path, 2):
            with counting:
                running += 1
                most = max(most, running)
            time.sleep(0.05)
            with counting:
                running -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 2


def test_a_second_job_for_the_same_run_does_nothing(tmp_path, capsys) -> None:
    lock = tmp_path / "run.lock"
    job = launch._Job(lock, 1)
    job.commands = [["no-such-command"]]  # would fail
    with launch._locked(lock) as mine:
        assert mine and launch._is_locked(lock)
        job()
    assert "nothing to do" in capsys.readouterr().out
    assert not launch._is_locked(lock)


def test_a_job_whose_command_fails_fails_and_lets_go(tmp_path) -> None:
    job = launch._Job(tmp_path / "run.lock", 1)
    job.commands = [["no-such-command"]]
    with pytest.raises(RuntimeError, match="ended with exit code 2"):
        job()
    assert not launch._is_locked(tmp_path / "run.lock")


def test_a_job_that_failed_is_in_the_status_with_its_output_and_one_that_ended_is_not(tmp_path) -> None:
    jobs = tmp_path / "runs" / launch.JOBS
    jobs.mkdir(parents=True)
    for name, number in {"broken": "11", "fine": "12", "new": "13"}.items():
        (jobs / f"{name}.id").write_text(f"local {number}\n")
    broken = launch._Job(jobs / "broken.lock", 1)
    broken.commands = [["no-such-command"]]
    with pytest.raises(RuntimeError):
        broken()
    fine = launch._Job(jobs / "fine.lock", 1)
    fine.commands = [["--help"]]
    fine()
    output = jobs / "11_0_log.err"
    assert launch.status(tmp_path / "runs") == [
        ("broken", "stopped", "", f"failed; output: {output}"),
        ("new", "waiting", "", f"starts; output: {jobs / '13_0_log.err'}"),
    ]


def test_a_row_that_trains_nothing_goes_along_with_the_row_whose_weights_it_tests(monkeypatch) -> None:
    submitted = []

    class Executor:
        batch = staticmethod(lambda: launch.contextlib.nullcontext())

        def submit(self, job):
            submitted.append([command[1] for command in job.commands])
            return type("Job", (), {"job_id": "1"})

    monkeypatch.setattr(launch, "_executor", lambda runs, resources: Executor())
    Path("runs/.jobs").mkdir(parents=True)
    names = ("rot-mnist/cnn-aug", "rot-mnist/cnn-aug-tta", "rot-mnist/cnn")
    invoke("run", *names, "--preset", "smoke", "--data", "embedded", "--launcher", "local")
    assert submitted == [["rot-mnist/cnn-aug", "rot-mnist/cnn-aug-tta"], ["rot-mnist/cnn"]]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the processes of jobs in /proc")
def test_a_killed_job_is_submitted_again_and_ends_with_the_same_bits() -> None:
    invoke(*RUN, "--out", "alone", "--results", "r")
    said = submit_two_at_once()
    assert said.count(": submitted\n") == 2 and "2 jobs;" in said
    killed = "rot-mnist/cnn"
    wait_for(lambda: child_of_job(killed) is not None)
    os.kill(child_of_job(killed), signal.SIGKILL)
    other = "rot-mnist/ien-r4/smoke-seed1-embedded"
    wait_for(lambda: states(Path("runs")).get(other) == "finished")
    wait_for(lambda: "running" not in states(Path("runs")).values())
    wait_for(lambda: not launch._alive_jobs(Path("runs")))

    said = submit_two_at_once()
    assert f"{other}: finished before" in said and "1 job;" in said
    for run in (f"{killed}/smoke-seed1-embedded", other):
        wait_for(lambda run=run: states(Path("runs")).get(run) == "finished")
        weights = [Path(folder, run, "model.safetensors").read_bytes() for folder in ("alone", "runs")]
        assert digest(weights[0]) == digest(weights[1])
    shown = json.loads(invoke("status", "--json").output)
    assert [each["state"] for each in shown] == ["finished", "finished"]


FAKE_SBATCH = """#!/bin/sh
cp "$1" sbatch.txt
echo Submitted batch job 77
"""
FAKE_SACCT = """#!/bin/sh
echo 'JobID|State|NodeList'
echo '77_0|PENDING|'
echo '77_1|PENDING|'
"""


@pytest.fixture
def slurm(monkeypatch) -> Path:
    """A SLURM that takes jobs, and never starts them."""
    tools = Path("bin")
    tools.mkdir()
    for name, text in {"sbatch": FAKE_SBATCH, "sacct": FAKE_SACCT, "srun": "#!/bin/sh\n"}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools.resolve()}{os.pathsep}{os.environ['PATH']}")
    return Path("sbatch.txt")


def test_slurm_is_asked_for_one_array_of_jobs_with_what_each_needs(slurm) -> None:
    options = ("--gpus", "1", "--cpus", "8", "--hours", "2", "--at-once", "3", "--partition", "fast")
    said = invoke(*RUN, "--launcher", "slurm", *options).output
    asked = slurm.read_text()
    for line in (
        "--array=0-1%2",  # not more at once than there are
        "--gpus-per-node=1",
        "--cpus-per-task=8",
        "--time=120",
        "--partition=fast",
    ):
        assert f"#SBATCH {line}" in asked, asked
    assert "2 jobs;" in said
    assert states(Path("runs")) == {
        "rot-mnist_cnn_smoke-seed1-embedded": "waiting",
        "rot-mnist_ien-r4_smoke-seed1-embedded": "waiting",
    }
    # they wait in the queue: the same command has nothing to do
    assert invoke(*RUN, "--launcher", "slurm").output.count("submitted before") == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--launcher", "slurm"), "use --launcher local"),
        (("--launcher", "pbs"), "--launcher is slurm or local; got pbs"),
        (("--launcher", "local", "--partition", "fast"), "--partition is for --launcher slurm"),
        (("--gpus", "1"), "--gpus is for jobs: add --launcher slurm or local"),
        (("--hours", "2"), "--hours is for jobs"),
    ],
)
def test_what_cannot_be_submitted_is_told_in_a_line(options, message) -> None:
    assert message in error_of(*RUN, *options)


def test_status_of_a_folder_without_runs_is_told() -> None:
    Path("runs").mkdir()
    assert "there are no runs in runs" in invoke("status").output
