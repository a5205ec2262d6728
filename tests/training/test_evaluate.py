"""What a run reports: accuracy against a loop over images, cost against hand arithmetic, lines and plots."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
import types
from collections import defaultdict
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn

import ien
import ien.data
from ien.training import run
from ien.training.evaluate import cost, evaluate, inference_speed
from ien.training.loop import Status
from ien.training.network import build
from ien.training.progress import shown
from ien.training.run_folder import read_metrics
from tests.helpers import toy

pytestmark = pytest.mark.usefixtures("toy_data")


def classifier(n: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A net whose answer depends on the rotation, blurred noise, and labels that are often its answers."""
    x = (F.interpolate(torch.rand(n, 1, 5, 5), 28, mode="bilinear") * 255).to(torch.uint8)
    model = build(toy.config(width=1 / 16))
    with torch.no_grad():
        for _ in range(20):
            model(x / 255)  # so that BatchNorm knows these images
        labels = model.eval()(x / 255).argmax(1)
    return model, x, torch.where(torch.arange(n) < 0.6 * n, labels, (labels + 1) % 10)


def test_accuracies_equal_a_loop_over_images_and_elements() -> None:
    model, x, y = classifier(300)  # more than a batch of the evaluation
    clean = copies = averaged = 0
    with torch.no_grad():
        for image, label in zip(x, y, strict=True):
            views = [torch.rot90(image / 255, k, (-2, -1)) for k in range(4)]
            scores = [model(view[None])[0] for view in views]
            hits = [bool(score.argmax() == label) for score in scores]
            clean += hits[0]
            copies += sum(hits[1:])
            averaged += bool(torch.stack([score.softmax(0) for score in scores]).mean(0).argmax() == label)
    assert len({clean / 300, copies / 900, averaged / 300}) == 3  # or the test could not tell them apart
    once, mean = (evaluate(toy.config(average=average), model, x, y) for average in (False, True))
    assert abs(once["accuracy"] - clean / 300) < 1e-12
    assert abs(once["accuracy_with_copies"] - (clean / 300 + copies / 900) / 2) < 1e-12
    assert abs(mean["accuracy"] - averaged / 300) < 1e-12
    assert mean["accuracy_with_copies"] == mean["accuracy"] and mean["layers"] == once["layers"]


def test_layers_are_those_that_measure_reports() -> None:
    model, x, y = classifier(20)
    layers = evaluate(toy.config(), model, x, y)["layers"]
    report = ien.measure(model, x / 255, "rot4", [f"conv{i}" for i in range(1, 7)], 4)
    assert list(layers) == list(report.layers)
    for name, layer in report.layers.items():
        assert abs(layers[name]["raw"] / layer.raw - 1) < 1e-4
        assert abs(layers[name]["relative"] / layer.relative - 1) < 1e-4
        assert list(layers[name]["per_element"]) == ["90°", "180°", "270°"]


@pytest.mark.parametrize("feature_groups", ["4", "4-2-1"])
def test_members_are_compared_one_by_one_on_the_first_images(
    feature_groups: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ien.training.evaluate.REGULAR_IMAGES", 12)
    config = toy.config(feature_groups=feature_groups)
    model, x = build(config).eval(), torch.randint(256, (20, 1, 28, 28)).to(torch.uint8)
    layers = evaluate(config, model, x, torch.zeros(20, dtype=torch.int64))["layers"]
    report = ien.measure(model, x[:12] / 255, "rot4", list(layers), feature_groups, action="regular")
    for name, layer in report.layers.items():
        assert abs(layers[name]["relative_regular"] / layer.relative - 1) < 1e-4
        assert abs(layers[name]["relative"] / layer.relative - 1) > 1e-3  # it is not the pooled one


@pytest.mark.parametrize(
    "changes", [{"measured": "scale1.25"}, {"feature_groups": "1"}, {"feature_groups": "3"}], ids=str
)
def test_where_no_members_are_permuted_there_is_no_such_error(changes: dict[str, Any]) -> None:
    config = toy.config(**changes, beta=0.0)
    x = torch.randint(256, (20, 1, 28, 28)).to(torch.uint8)
    layers = evaluate(config, build(config).eval(), x, torch.zeros(20, dtype=torch.int64))["layers"]
    assert not any("relative_regular" in layer for layer in layers.values())


def test_cost_equals_hand_arithmetic() -> None:
    # channels, kernel and side of the map of each convolution, then the two linear layers
    layers = [
        (1, 16, 7, 24),
        (16, 24, 5, 24),
        (24, 32, 5, 12),
        (32, 32, 5, 12),
        (32, 48, 5, 6),
        (48, 64, 5, 2),
    ]
    macs = sum(before * after * kernel**2 * side**2 for before, after, kernel, side in layers)
    macs += 16 * 16 + 16 * 10
    parameters = sum(before * after * kernel**2 + 2 * after for before, after, kernel, _ in layers)
    parameters += 16 * 16 + 16 + 2 * 16 + 16 * 10 + 10
    config = toy.config(width=1 / 8)
    assert cost(config, build(config), (1, 28, 28)) == (parameters, macs)


def test_averaging_over_the_group_costs_a_pass_for_each_element() -> None:
    once, config = toy.config(), toy.config(average=True)
    x = torch.zeros(3, 1, 28, 28, dtype=torch.uint8)
    model = build(config)
    assert cost(config, model, x.shape[1:])[1] == 4 * cost(once, model, x.shape[1:])[1]
    calls: list[int] = []
    model.register_forward_hook(lambda module, inputs, output: calls.append(len(output)))
    assert inference_speed(config, model, x, rounds=3) > 0 and calls == [3] * 12


def test_a_row_of_averaged_predictions_tests_the_weights_of_another_run(tmp_path: Path) -> None:
    console = Console(file=io.StringIO())
    base = toy.config(beta=0.0, epochs=1, cycle_epochs=1)
    first = run(tmp_path / "base", base, "embedded", console=console)
    config = toy.config(beta=0.0, epochs=1, cycle_epochs=1, average=True, weights_of="rot-mnist/cnn-aug")
    torch.set_num_threads(2)
    second = run(tmp_path / "average", config, "embedded", weights=tmp_path / "base", console=console)
    assert torch.get_num_threads() == 1  # as the configuration says
    assert second["macs"] == 4 * first["macs"] and second["layers"] == first["layers"]
    assert not (tmp_path / "average" / "last.pt").exists() and second["seconds"] == 0
    x = torch.rand(2, 1, 28, 28)
    assert torch.equal(ien.load(tmp_path / "average")(x), ien.load(tmp_path / "base")(x))


def test_the_record_says_how_it_came_about(tmp_path: Path) -> None:
    config = toy.config(epochs=1, cycle_epochs=1)
    record = run(tmp_path, config, "embedded", changes={"beta": 1.0}, console=Console(file=io.StringIO()))
    assert record == json.loads((tmp_path / "result.json").read_text())
    assert record["data"] == {
        "name": "toy",
        "source": "random",
        "train": 96,
        "test": 40,
        "tested_on": "test",
    }
    assert record["changes"] == {"beta": 1.0} and record["config"]["machine"]["threads"] == 1
    assert record["versions"].keys() == {"ien", "torch", "numpy", "python"}
    assert ", 1 threads, " in record["machine"] and record["trained_parameters"] == record["parameters"]
    assert 0 <= record["accuracy"] <= 1 and record["images_per_second"] > 0


def test_validation_images_are_the_last_of_the_training_set(tmp_path: Path) -> None:
    config = toy.config(epochs=1, cycle_epochs=1, test_on="validation", validation_images=30, test_images=20)
    record = run(tmp_path, config, "embedded", console=Console(file=io.StringIO()))
    assert record["data"]["train"] == 66 and record["data"]["test"] == 20
    data, model = toy.dataset(), ien.load(tmp_path)
    hits = model(data.train_x[66:86] / 255).argmax(1) == data.train_y[66:86]
    assert abs(record["accuracy"] - hits.float().mean().item()) < 1e-6


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"train_images": 97}, "train_images is 97, but random toy has 96 of them"),
        ({"subset": 97}, "subset is 97, but random toy has 96 of them"),
        ({"subset": 60, "train_images": 50}, "subset is 60, but random toy has 50 of them"),
        ({"test_images": 41}, "test_images is 41, but random toy has 40 of them"),
        ({"test_on": "validation", "validation_images": 95}, r"validation_images \(95\) leaves none of 96"),
        ({"classes": 7}, "toy has 10 classes; the configuration says 7"),
    ],
)
def test_more_images_than_there_are_is_an_error_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        run(tmp_path, toy.config(**changes), "embedded", console=Console(file=io.StringIO()))
    assert not (tmp_path / "config.json").exists()


# --- progress


WORDS = ["epoch 2/3", "step 6/6", "images/s", "loss ", *(f"conv{i} " for i in range(1, 7)), "left 0:0"]


def test_plain_lines_say_all_when_not_on_a_terminal(tmp_path: Path) -> None:
    text = io.StringIO()
    run(tmp_path, toy.config(), "embedded", console=Console(file=text, width=40))
    lines = text.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines[:3]] == [
        f"rot-mnist/ien-r4 smoke seed 1 epoch {epoch}/3 step 6/6" for epoch in (1, 2, 3)
    ]
    assert all(word in lines[1] for word in WORDS) and "\x1b" not in text.getvalue()
    (_, metrics, _) = read_metrics(tmp_path)
    assert f"loss {metrics['task_loss']:.3f}  conv1 {metrics['terms']['conv1']:.1e}" in lines[1]


@pytest.mark.parametrize("width", [80, 200])
def test_a_terminal_shows_all_of_it_however_narrow(tmp_path: Path, width: int) -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=width)
    status = Status(2, 3, 6, 6, 1234.5, 30.0, {"task_loss": 2.3, **{f"conv{i}": 0.1 for i in range(1, 7)}})
    with shown(tmp_path, "a run", console) as report:
        report(status)
    words = " ".join(text.getvalue().split())
    assert all(word.strip() in words for word in WORDS)


def test_long_epochs_report_within(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ien.training.progress.SECONDS_BETWEEN_LINES", -1)
    text = io.StringIO()
    run(tmp_path, toy.config(epochs=1, cycle_epochs=1), "embedded", console=Console(file=text))
    assert [f"step {step}/6" in text.getvalue() for step in range(1, 7)] == [True] * 6


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


def test_tensorboard_gets_the_metrics_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("tensorboard")
    module.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    run(tmp_path, toy.config(), "embedded", console=Console(file=io.StringIO()))
    lines = read_metrics(tmp_path)
    assert Writer.scalars["task_loss"] == [(line["task_loss"], line["epoch"]) for line in lines]
    assert Writer.scalars["equivariance/conv6"] == [(line["terms"]["conv6"], line["epoch"]) for line in lines]
    assert Writer.scalars.keys() >= {"learning_rate", "train_accuracy"}


def test_tensorboard_writes_events(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason='needs pip install "ien[tensorboard]"')
    run(tmp_path, toy.config(epochs=1, cycle_epochs=1), "embedded", console=Console(file=io.StringIO()))
    assert list((tmp_path / "tensorboard").glob("events.*"))


def test_nothing_is_logged_without_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    run(tmp_path, toy.config(epochs=1, cycle_epochs=1), "embedded", console=Console(file=io.StringIO()))
    assert not (tmp_path / "tensorboard").exists()
