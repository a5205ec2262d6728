"""How a run is shown: on a terminal, in plain lines, in TensorBoard."""

import importlib.util
import io
import re
import sys
import types
from collections import defaultdict
from typing import ClassVar

import pytest
from rich.console import Console

from ien.training import run
from ien.training.loop import Status
from ien.training.progress import shown
from ien.training.run_folder import read_metrics
from tests.helpers import toy
from tests.helpers.toy import run_in

pytestmark = pytest.mark.usefixtures("toy_data")


WORDS = ["epoch 2/3", "step 6/6", "images/s", "loss ", *(f"conv{i} " for i in range(1, 7)), "left 0:0"]


def test_plain_lines_say_all_when_not_on_a_terminal(tmp_path, monkeypatch) -> None:
    """Without TensorBoard nothing is logged for it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    text = io.StringIO()
    run(tmp_path, toy.config(), "embedded", console=Console(file=text, width=40))
    lines = text.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines[:3]] == [
        f"rot-mnist/ien-r4 smoke seed 1 epoch {epoch}/3 step 6/6" for epoch in (1, 2, 3)
    ]
    assert all(word in lines[1] for word in WORDS) and "\x1b" not in text.getvalue()
    (_, metrics, _) = read_metrics(tmp_path)
    assert f"loss {metrics['task_loss']:.3f}  conv1 {metrics['terms']['conv1']:.1e}" in lines[1]
    assert not (tmp_path / "tensorboard").exists()


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("title", ["a run", "symmetry/neu-steel-rot2xflip-cnn-aug-tenth small seed 1"])
def test_a_terminal_shows_one_bar_on_one_line(tmp_path, title, width) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=width, color_system=None)
    losses = {"task_loss": 12.345, **{f"conv{i}": 0.1 for i in range(1, 7)}}
    with shown(tmp_path, title, console) as report:
        for epoch in (299, 300):
            report(Status(epoch, 300, 6, 6, 1234.5, 3 * 3600, losses))
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    lines = [line.rstrip() for line in re.split("[\r\n]+", drawn) if line.strip()]
    assert max(map(len, lines)) <= width
    if width >= 80:
        assert lines[-1].endswith("epoch 300/300  loss 12.345  left 3:00:00") and lines[-1].count("━") >= 6
        assert title[-20:] in lines[-1]


class Writer:
    """Stands in for TensorBoard's SummaryWriter."""

    scalars: ClassVar[dict[str, list[tuple[float, int]]]] = defaultdict(list)

    def __init__(self, path: str, purge_step: int) -> None:
        assert purge_step == 1
        self.scalars.clear()

    def add_scalar(self, name: str, value: float, epoch: int) -> None:
        self.scalars[name].append((value, epoch))

    def flush(self) -> None: ...

    def close(self) -> None: ...


def test_tensorboard_gets_the_metrics_and_long_epochs_report_within(tmp_path, monkeypatch) -> None:
    module = types.ModuleType("tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr("ien.training.progress.SECONDS_BETWEEN_LINES", -1)
    text = io.StringIO()
    run(tmp_path, toy.config(epochs=2), "embedded", console=Console(file=text))
    assert all(f"epoch 1/2 step {step}/6" in text.getvalue() for step in range(1, 7))
    lines = read_metrics(tmp_path)
    assert Writer.scalars["task_loss"] == [(line["task_loss"], line["epoch"]) for line in lines]
    assert Writer.scalars["equivariance/conv6"] == [(line["terms"]["conv6"], line["epoch"]) for line in lines]
    assert Writer.scalars.keys() >= {"learning_rate", "train_accuracy"}


def test_tensorboard_writes_events(tmp_path) -> None:
    pytest.importorskip("tensorboard", reason='needs pip install "ien[tensorboard]"')
    run_in(tmp_path, epochs=1, cycle_epochs=1)
    assert list((tmp_path / "tensorboard").glob("events.*"))
