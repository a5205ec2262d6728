"""The training loop: repeatable to the bit, whenever it is killed, stopped or resumed, and on any layout."""

from __future__ import annotations

import itertools
import json
import math
import random
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import ien.data
from ien._files import generator
from ien.data import Dataset
from ien.training import Config, Diverged, Stopped, flat
from ien.training import run_folder as run_folder
from ien.training.classify import ClassifyTask
from ien.training.loop import take_step
from ien.training.network import plain_of
from tests.helpers import toy
from tests.helpers.toy import task, trained

pytestmark = pytest.mark.usefixtures("toy_data")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert toy.finish(toy.start(toy.train, folder)) == 0
    return folder


def assert_same_end(folder: Path, other: Path) -> None:
    """The same metrics, byte for byte, the same weights and optimizer, bit for bit, and nothing left over."""
    assert (folder / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
    weights, others = load_file(folder / "model.safetensors"), load_file(other / "model.safetensors")
    assert weights.keys() == others.keys()
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    state, expected = run_folder.load_checkpoint(folder), run_folder.load_checkpoint(other)
    assert state is not None and expected is not None and state["epoch"] == expected["epoch"]
    for index, moments in expected["optimizer"]["state"].items():
        assert all(torch.equal(value, state["optimizer"]["state"][index][k]) for k, value in moments.items())
    assert {path.name for path in folder.iterdir()} == {path.name for path in other.iterdir()}
    ours, theirs = (json.loads((path / "result.json").read_text()) for path in (folder, other))
    for name in ("accuracy", "accuracy_with_copies", "layers", "parameters", "macs"):
        assert ours[name] == theirs[name]


# --- repeatable


def test_two_runs_of_one_seed_are_equal_to_the_bit(tmp_path: Path) -> None:
    first = trained(tmp_path / "a")
    torch.manual_seed(99)
    random.seed(99)
    torch.rand(7)
    second = trained(tmp_path / "b")
    a, b = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in "ab")
    assert a == b and len(a.splitlines()) == 3
    toy.assert_same(first.network, second.network)
    trained(tmp_path / "c", seed=2)
    ours, others = (run_folder.read_metrics(tmp_path / name) for name in "ac")
    assert all(x["task_loss"] != y["task_loss"] for x, y in zip(ours, others, strict=True))


def test_metrics_are_the_means_over_the_steps_of_the_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[list[float]] = []

    def recorded(*arguments: Any) -> torch.Tensor:
        values = take_step(*arguments)
        steps.append(values.tolist())
        return values

    monkeypatch.setattr("ien.training.loop.take_step", recorded)
    trained(tmp_path, epochs=1, cycle_epochs=1, batch_size=20)
    (metrics,) = run_folder.read_metrics(tmp_path)
    assert [values[-1] for values in steps] == [20, 19, 19, 19, 19]  # 96 images, as even as possible
    means = [sum(column) / 96 for column in zip(*steps, strict=True)]
    assert abs(metrics["task_loss"] - means[0]) < 1e-12
    assert list(metrics["terms"]) == [f"conv{i}" for i in range(1, 7)]
    assert all(abs(a - b) < 1e-12 for a, b in zip(metrics["terms"].values(), means[1:7], strict=True))
    assert abs(metrics["train_accuracy"] - means[7]) < 1e-12


@pytest.mark.parametrize("changes", [{"augment": False, "beta": 0.0}, {"beta": 0.0}])
def test_without_a_weight_the_loss_has_no_terms(tmp_path: Path, changes: dict[str, Any]) -> None:
    trained(tmp_path, epochs=1, cycle_epochs=1, **changes)
    assert [line["terms"] for line in run_folder.read_metrics(tmp_path)] == [{}]


def test_steps_are_those_of_a_bare_loop() -> None:
    setup, twin = task(weight_decay=1e-2), task(weight_decay=1e-2)
    batch = torch.arange(5, 21)
    objective = ien.EquivarianceLoss("rot4", [f"conv{i}" for i in range(1, 7)], 4)
    optimizer = torch.optim.Adam(twin.network.parameters(), weight_decay=1e-2)
    x, y = twin.x[batch].float() / 255, twin.y[batch]
    for step, rate in enumerate([1e-5, 1e-5 + (5e-3 - 1e-5) / 4]):  # the cycle rises for three steps
        take_step(setup, batch, 0, step)
        optimizer.param_groups[0]["lr"] = rate
        out = objective(twin.network, x, generator=generator(1, "elements", 0, step))
        (F.cross_entropy(out.output, out.repeat(y)) + out.loss).backward()
        optimizer.step()
        optimizer.zero_grad()
    for name, weight in setup.network.named_parameters():
        torch.testing.assert_close(weight, twin.network.get_parameter(name), rtol=0, atol=1e-6)


# --- killed


@pytest.mark.slow
@pytest.mark.parametrize("point", toy.POINTS)
def test_killed_anywhere_and_resumed_ends_as_if_never_killed(
    tmp_path: Path, uninterrupted: Path, point: str
) -> None:
    folder = tmp_path / "run"
    assert toy.finish(toy.start(toy.train, folder, point)) == -signal.SIGKILL
    assert not (folder / "result.json").exists()
    assert toy.finish(toy.start(toy.train, folder)) == 0
    assert_same_end(folder, uninterrupted)


# --- stopped


def arguments_of(config: Config, out: Path) -> list[str]:
    """How ``ien run`` is told this configuration of the toy, on one thread."""
    names = ("dataset", "batch_size", "epochs", "cycle_epochs", "device", "train_images", "test_images")
    settings = [f"--set={name}={flat(config)[name]}" for name in names]
    places = ["--data=embedded", f"--out={out}", f"--results={out}"]
    return ["run", config.experiment, "--preset=smoke", "--threads=1", *settings, *places]


@pytest.mark.slow
@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM])
def test_a_polite_signal_saves_within_an_epoch_and_says_how_to_go_on(
    tmp_path: Path, uninterrupted: Path, name: int
) -> None:
    arguments = arguments_of(toy.config(), tmp_path)
    assert toy.finish(toy.start(toy.command, tmp_path, arguments, 9, [name])) == 130
    (folder,) = (path.parent for path in tmp_path.rglob("config.json"))
    last_line = (tmp_path / "output.txt").read_text().splitlines()[-1]
    assert last_line == f"stopped; resume with: ien resume {folder} --results {tmp_path}"
    state = run_folder.load_checkpoint(folder)
    assert state is not None and (state["epoch"], state["step"]) == (1, 3)
    assert len(run_folder.read_metrics(folder)) == 1
    resume = last_line.split("ien ")[1].split()
    assert toy.finish(toy.start(toy.command, tmp_path, resume)) == 0
    assert_same_end(folder, uninterrupted)


@pytest.mark.slow
def test_a_second_interrupt_ends_at_once_with_the_last_checkpoint(tmp_path: Path) -> None:
    twice = [signal.SIGINT, signal.SIGINT]
    process = toy.start(toy.command, tmp_path, arguments_of(toy.config(), tmp_path), 9, twice)
    assert toy.finish(process) == 130
    (folder,) = (path.parent for path in tmp_path.rglob("config.json"))
    assert f"resume with: ien resume {folder}" in (tmp_path / "output.txt").read_text()
    state = run_folder.load_checkpoint(folder)
    assert state is not None and (state["epoch"], state["step"]) == (1, 0)


def test_handlers_of_signals_are_given_back(tmp_path: Path) -> None:
    before = [signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)]
    trained(tmp_path / "a", epochs=1, cycle_epochs=1)
    with pytest.raises(Diverged):
        trained(tmp_path / "b", spoilt())
    assert [signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)] == before


# --- diverged


def spoilt(image: int = 40) -> Dataset:
    """The toy's images with one pixel that is no number."""
    data = toy.dataset()
    x = data.train_x.float() / 255
    x[image, 0, 9, 9] = float("nan")
    return replace(data, train_x=x)


def test_a_nan_image_stops_the_first_epoch_and_names_step_and_term(tmp_path: Path) -> None:
    order = torch.randperm(96, generator=generator(1, "order", 0))
    step = order.tolist().index(40) // 16 + 1
    match = rf"the task loss became nan in step {step} of epoch 1; \S*last.pt was not written yet"
    with pytest.raises(Diverged, match=match):
        trained(tmp_path, spoilt())
    assert list(tmp_path.iterdir()) == []


def after_step(number: int, change: Callable[[ClassifyTask, torch.Tensor], None], patch: Any) -> None:
    """Let ``change`` spoil the task or the sums of the ``number``-th step."""
    calls = itertools.count(1)

    def step(some: ClassifyTask, *arguments: Any) -> torch.Tensor:
        values = take_step(some, *arguments)
        if next(calls) == number:
            change(some, values)
        return values

    patch.setattr("ien.training.loop.take_step", step)


@pytest.mark.parametrize(
    ("index", "value", "what"),
    [
        (0, math.nan, "the task loss became nan"),
        (0, 1e12, r"the task loss became 6.25e\+10"),
        (3, math.inf, "the equivariance loss of conv3 became inf"),
    ],
)
def test_a_bad_loss_keeps_checkpoint_and_metrics_of_the_last_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: int, value: float, what: str
) -> None:
    trained(tmp_path / "good", epochs=3)
    after_step(9, lambda some, sums: sums[index].fill_(value), monkeypatch)
    with pytest.raises(Diverged, match=rf"{what} in step 3 of epoch 2; \S*last.pt holds the last good state"):
        trained(tmp_path / "bad", epochs=3)
    good, bad = ((tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("good", "bad"))
    assert bad == good[:1]
    state = run_folder.load_checkpoint(tmp_path / "bad")
    assert state is not None and (state["epoch"], state["step"]) == (1, 0)
    assert all(tensor.isfinite().all() for tensor in state["model"].values())


def test_weights_that_the_last_step_spoils_are_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(some: ClassifyTask, sums: torch.Tensor) -> None:
        some.network.conv2[0].weight.data[0, 0, 0, 0] = math.nan

    after_step(12, spoil, monkeypatch)  # the last step of the second epoch; its loss is finite
    with pytest.raises(Diverged, match=r"the weight conv2.0.weight became nan in step 6 of epoch 2"):
        trained(tmp_path)
    state = run_folder.load_checkpoint(tmp_path)
    assert state is not None and state["epoch"] == 1 and len(run_folder.read_metrics(tmp_path)) == 1


# --- layouts and precisions


def losses(folder: Path) -> list[float]:
    return [
        value
        for line in run_folder.read_metrics(folder)
        for value in (line["task_loss"], *line["terms"].values())
    ]


@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [({"channels_last": True}, 1e-3), ({"precision": "bf16"}, 0.1)],
    ids=["channels_last", "bf16"],
)
def test_layout_and_precision_change_the_losses_only_a_little(
    tmp_path: Path, changes: dict[str, Any], tolerance: float
) -> None:
    short = {"epochs": 1, "cycle_epochs": 1}
    trained(tmp_path / "a", **short)
    network = trained(tmp_path / "b", **short, **changes).network
    a, b = losses(tmp_path / "a"), losses(tmp_path / "b")
    assert a != b and all(abs(ours / theirs - 1) < tolerance for ours, theirs in zip(b, a, strict=True))
    assert all(parameter.dtype == torch.float32 for parameter in network.parameters())


@pytest.mark.filterwarnings("ignore")  # torch's own, while it compiles
def test_compiled_blocks_learn_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager", fullgraph=True))
    monkeypatch.setattr(torch._dynamo.config, "fail_on_recompile_limit_hit", True)
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 8)  # as it is, and shall be afterwards
    short = {"epochs": 1, "cycle_epochs": 1, "batch_size": 20}  # batches of 20 and of 19
    trained(tmp_path / "a", **short)
    network = trained(tmp_path / "b", **short, compile=True).network
    a, b = losses(tmp_path / "a"), losses(tmp_path / "b")
    assert all(abs(ours / theirs - 1) < 1e-3 for ours, theirs in zip(b, a, strict=True))
    assert "forward" in vars(network.conv1) and "forward" not in vars(plain_of(network).conv1)
    torch._dynamo.reset()


def stopped_at(number: int, monkeypatch: pytest.MonkeyPatch, folder: Path, **changes: Any) -> None:
    """Train until a signal arrives in the ``number``-th step."""
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        after_step(number, lambda *arguments: signal.raise_signal(signal.SIGINT), patch)
        trained(folder, **changes)


ORBITS = {"orbits": True, "action": "regular", "start": "equivariant", "subset": 20}
TIED = {"start": "equivariant", "tied": True, "beta": 0.0}


@pytest.mark.parametrize("settings", [ORBITS, TIED], ids=["orbits of a subset", "tied"])
def test_stopped_anywhere_and_resumed_ends_as_if_never_stopped(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**settings, "epochs": 2, "cycle_epochs": 1}
    whole = trained(tmp_path / "whole", **settings)
    stopped_at(2, monkeypatch, tmp_path / "cut", **settings)
    stopped_at(6, monkeypatch, tmp_path / "cut", **settings)  # of those left: in the second epoch
    state = run_folder.load_checkpoint(tmp_path / "cut")
    assert state is not None and (state["epoch"], state["step"]) == (1, 2)
    resumed = trained(tmp_path / "cut", **settings)
    assert (tmp_path / "cut" / "metrics.jsonl").read_bytes() == (
        tmp_path / "whole" / "metrics.jsonl"
    ).read_bytes()
    toy.assert_same(whole.network, resumed.network)
    again = trained(tmp_path / "cut", **settings)  # nothing is left to do
    assert whole.images_seen == resumed.images_seen == again.images_seen == 12 * 32
