"""run and resume: what they print, and how they end when something is wrong."""

import json
import os
import re
import shutil
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from ien.training.checkpoint import _config_digest
from ien.training.run_folder import read_config
from tests.helpers.shell import error_of, invoke

SMOKE = ("--preset", "smoke", "--data", "embedded", "--threads", "1")
RUN = Path("runs/rot-mnist/ien-r4/smoke-seed1-embedded")
R4 = ("run", "rot-mnist/ien-r4")

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run, not to be changed."""
    folder = tmp_path_factory.mktemp("finished")
    invoke(*R4, *SMOKE, "--out", folder / "runs")
    return folder / RUN


@contextmanager
def pressing_ctrl_c(*arguments):
    """A progress display that presses Ctrl-C in the middle of the second epoch."""

    def report(status):
        if (status.epoch, status.step) == (2, 1):
            os.kill(os.getpid(), signal.SIGINT)

    yield report


@pytest.fixture
def stopped(monkeypatch):
    """A run that Ctrl-C stopped in the middle of its second and last epoch."""
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["ien.training.run"], "shown", pressing_ctrl_c)
        done = invoke(*R4, *SMOKE, code=130)
    assert done.stderr == f"stopped; resume with: ien resume {RUN}\n"
    return RUN


def test_show_of_a_run_tells_how_far_it_is(stopped, finished) -> None:
    text = invoke("show", stopped).output
    assert re.search(rf"{stopped}\n  not finished, 1 of 2 epochs done: .*ien resume {stopped}\n", text)
    assert "embedded-5k rot-mnist from embedded: 128 images to train on" in text
    assert "8 steps, 512 images seen" in text
    accuracy = json.loads((finished / "result.json").read_text())["accuracy"]
    assert re.search(rf"finished \d{{4}}-.* UTC, accuracy {accuracy:.2%}\n", invoke("show", finished).output)
    assert "--set changes an experiment" in error_of("show", finished, "--set", "beta=2")


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        ("show rot-mnist/ien-r5", "no experiment 'rot-mnist/ien-r5'; did you mean rot-mnist/ien-r4"),
        ("show rot-mnist/cnn --preset smal", "no preset 'smal'; choose from paper, small, demo, smoke"),
        ("run rot-mnist/cnn cnn-og", "no experiment 'cnn-og'; did you mean"),
        ("run rot-mnist/cnn --preset large", "no preset 'large'; choose from paper"),
        ("run rot-mnist/ien-r4 --set bta=3", "no field 'bta'; did you mean beta"),
        ("run rot-mnist/ien-r4 --set epochs=0", "epochs must be 1 to"),
        ("run rot-mnist/ien-r4 --precision half", "float32 or bf16; got 'half'"),
        ("run rot-mnist/e2cnn --precision bf16", "e2cnn-cnn6 does not support precision=bf16"),
        ("run rot-mnist/ien-r4 --seeds 1-", "write seeds as 1, 1-3 or 1,2,5; got '1-'"),
        ("run rot-mnist/ien-r4 --seeds 1-99999999999", "at most 1000 seeds at a time; got '1-99999999999'"),
        (f"run rot-mnist/ien-r4 --seeds 1-{10**30}", "at most 1000 seeds at a time"),
        ("run rot-mnist/ien-r4 --seeds 3-1", "got '3-1'"),
        ("run rot-mnist/ien-r4 --seeds 1,x", "got '1,x'"),
        ("run rot-mnist/ien-r4 --set group=rot", "rot4xflip"),
        ("run rot-mnist/ien-r4 --seed -1", "got '-1'"),
        (f"run rot-mnist/ien-r4 --seed {10**30}", "seed must be 0 to"),
        ("run rot-mnist/cnn --preset smoke", "no MNIST in data: the folder does not exist"),
        ("run rot-mnist/cnn --preset smoke", "ien data get mnist"),
        ("resume nowhere", "nowhere is not a run folder: it has no config.json"),
        ("table rot-mnits", "no table 'rot-mnits'; did you mean rot-mnist"),
        ("table x", "no table 'x'; choose from rot-mnist, rot-tim, het, r2-tim, scale, tracking, study"),
        ("table rot-mnist --write page.md", "no records of rot-mnist/* in results"),
        ("table rot-mnist --write page.md --preset small", "drop --preset: --write includes all presets"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(arguments, fragment) -> None:
    assert fragment in error_of(*arguments.split())
    assert not list(Path.cwd().iterdir())


@pytest.mark.slow
def test_run_takes_several_rows_and_seeds_each_once() -> None:
    arguments = ("rot-mnist/cnn", "rot-mnist/c?n", "rot-mnist/cnn-aug", "--seeds", "2,1-2")
    output = invoke("run", *arguments, *SMOKE, columns=200).output
    order = re.findall(r"(\d)/4 rot-mnist/(\S+)/smoke-seed(\d)-embedded: accuracy", output)
    assert order == [("1", "cnn", "2"), ("2", "cnn-aug", "2"), ("3", "cnn", "1"), ("4", "cnn-aug", "1")]
    assert not Path("results").exists()


def test_a_diverging_run_ends_with_1_and_says_which_loss(monkeypatch) -> None:
    monkeypatch.setattr("ien.training.loop.MAX_TASK_LOSS", 0.0)
    done = invoke(*R4, *SMOKE, code=1)
    assert re.fullmatch(r"error: the task loss became [^\n]+\n", done.stderr)


def test_a_run_without_memory_ends_with_1_and_says_what_helps(monkeypatch) -> None:
    words = "DefaultCPUAllocator: not enough memory: you tried to allocate 5 bytes.\nMore"
    monkeypatch.setattr("ien.training.loop.take_step", Mock(side_effect=RuntimeError(words)))
    done = invoke(*R4, *SMOKE, code=1)
    told = (
        r"error: out of memory \(Default[^\n]+ 5 bytes.\): use a batch_size below \d+, as in --set [^\n]+\n"
    )
    assert re.fullmatch(told, done.stderr)
    # while the images are read it is not the batch
    monkeypatch.setattr(sys.modules["ien.training.run"], "_load_in_turn", Mock(side_effect=MemoryError))
    done = invoke(*R4, *SMOKE, code=1)
    assert (
        done.stderr
        == "error: out of memory (MemoryError): close other programs, or use a machine with more\n"
    )


@pytest.mark.parametrize("command", ["resume", "run"])
def test_a_run_of_a_gpu_goes_on_without_one(command, stopped, finished) -> None:
    path = stopped / "config.json"
    path.write_text(path.read_text().replace('"device": "cpu"', '"device": "cuda:77"'))
    # as it would have been saved there
    state = torch.load(stopped / "last.pt", weights_only=True)
    config = read_config(stopped)
    torch.save(state | {"config": _config_digest(config, "cuda:77")}, stopped / "last.pt")
    arguments = ["resume", stopped] if command == "resume" else [*R4, *SMOKE]
    remedy = f"ien resume {stopped} --device cpu"
    assert f"begun on cuda:77, which cannot be used here: go on with {remedy}" in error_of(*arguments)
    done = invoke(*arguments, "--device", "cpu", columns=200)
    assert "begun on cuda:77, and now on cpu, which rounds differently" in done.output
    record = json.loads((stopped / "result.json").read_text())
    assert record["begun_on"] == "cuda:77" and record["config"]["machine"]["device"] == "cpu"
    assert (stopped / "model.safetensors").read_bytes() == (finished / "model.safetensors").read_bytes()


def test_ctrl_c_outside_of_training_ends_with_130(monkeypatch) -> None:
    monkeypatch.setattr("ien.experiments.queue.run_all", Mock(side_effect=KeyboardInterrupt))
    done = invoke("run", "rot-mnist/cnn", code=130)
    assert done.stderr == "stopped; the same command resumes from the last checkpoint\n"


@pytest.mark.parametrize("command", ["resume", "run"])
def test_a_stopped_run_ends_as_if_it_had_never_stopped(command, stopped, finished) -> None:
    if command == "resume":
        assert f"{RUN} is finished: accuracy" in invoke("resume", stopped, columns=200).output
    else:
        invoke(*R4, *SMOKE)
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (stopped / name).read_bytes() == (finished / name).read_bytes(), name
    assert not Path("results").exists()


def test_resume_of_a_finished_run_says_so_and_records_it(finished) -> None:
    accuracy = json.loads((finished / "result.json").read_text())["accuracy"]
    for moved in ((), ("--data", "nowhere")):  # it no longer needs its data
        done = invoke("resume", finished, *moved, columns=400)
        assert f"{finished} was finished before: accuracy {accuracy:.2%}" in done.output
    shutil.copytree(finished, "copy")
    for name in ("config.json", "result.json"):  # as if it were of another preset
        path = Path("copy", name)
        path.write_text(path.read_text().replace('"smoke"', '"small"'))
    invoke("resume", "copy")
    (record,) = Path("results").rglob("*.json")
    assert record.read_bytes() == Path("copy/result.json").read_bytes()
    assert record.name.startswith("small-seed1-") and record.name.endswith("-embedded.json")
    record.write_text(record.read_text().replace('"beta": 1.0', '"beta": 2.0'))
    assert f"{record} is the record of another configuration" in error_of("resume", "copy")


def test_resume_asks_for_data_that_were_moved(stopped) -> None:
    path = stopped / "config.json"
    path.write_text(path.read_text().replace('"folder": "embedded"', '"folder": "/moved"'))
    message = error_of("resume", stopped)
    assert f"/moved with the data of {stopped} is gone" in message and "--data" in message
    assert "no MNIST in ." in error_of("resume", stopped, "--data", ".")
    invoke("resume", stopped, "--data", "embedded")
    assert (stopped / "result.json").exists()


def test_resume_of_a_row_without_training_names_the_command() -> None:
    invoke("run", "rot-mnist/cnn-aug-tta", *SMOKE)
    folder = Path("runs/rot-mnist/cnn-aug-tta/smoke-seed1-embedded")
    assert "was finished before" in invoke("resume", folder, columns=200).output
    (folder / "result.json").unlink()
    assert "ien run rot-mnist/cnn-aug-tta --preset smoke --seed 1" in error_of("resume", folder)


def test_table_prints_and_writes_what_is_recorded(finished) -> None:
    command = ("table", "rot-mnist", "--results", finished.parents[2])
    text = invoke(*command).output
    assert "Accuracy and cost (smoke, embedded-5k)" in text and "98.6" in text
    assert invoke(*command, "--preset", "smoke").output == text
    empty = invoke(*command, "--preset", "small").output
    assert "no records of rot-mnist at preset small in" in empty and "rot-mnist/ien-r4 " in empty
    assert "ien run 'rot-mnist/*' --preset small --seeds 1-3 makes them" in " ".join(empty.split())
    assert "no preset 'smok'; choose from" in error_of(*command, "--preset", "smok")
    assert invoke(*command, "--write", "docs/results.md").output == "wrote docs/results.md\n"
    page = Path("docs/results.md").read_text()
    assert page.startswith("# Results\n") and "| ien-r4 | smoke | embedded-5k | 1 |" in page
