"""The training loop: repeatable to the bit, whenever it is killed, stopped or resumed, and on any layout."""

from __future__ import annotations

import io
import itertools
import json
import math
import random
import shutil
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from safetensors.torch import load_file
from torch import nn

import ien.data
from ien._files import generator
from ien.data import Dataset
from ien.training import ALONE, Config, Diverged, Stopped, run
from ien.training import run_folder as run_folder
from ien.training.classify import CLASSIFY, ClassifyTask
from ien.training.loop import take_step, train
from ien.training.network import compile_blocks, plain_of
from tests.helpers import toy

pytestmark = pytest.mark.usefixtures("toy_data")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert toy.finish(toy.start(toy.train, folder)) == 0
    return folder


def trained(folder: Path, data: Dataset | None = None, **changes: Any) -> nn.Module:
    folder.mkdir(exist_ok=True)
    return train(folder, CLASSIFY.prepare(toy.config(**changes), data or toy.dataset(), ALONE))[0]


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


def test_two_runs_are_equal_to_the_bit_whatever_the_global_generator(tmp_path: Path) -> None:
    first = trained(tmp_path / "a")
    torch.manual_seed(99)
    random.seed(99)
    torch.rand(7)
    second = trained(tmp_path / "b")
    a, b = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in "ab")
    assert a == b and len(a.splitlines()) == 3
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    trained(tmp_path / "a", epochs=2)
    trained(tmp_path / "b", epochs=2, seed=2)
    a, b = (run_folder.read_metrics(tmp_path / name) for name in "ab")
    assert all(ours["task_loss"] != theirs["task_loss"] for ours, theirs in zip(a, b, strict=True))


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
    config = toy.config(weight_decay=1e-2)
    setup, twin = (
        CLASSIFY.prepare(config, toy.dataset(), ALONE),
        CLASSIFY.prepare(config, toy.dataset(), ALONE),
    )
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


def test_norms_and_biases_can_be_left_out_of_the_weight_decay() -> None:
    setup = CLASSIFY.prepare(toy.config(decay_weights_only=True), toy.dataset(), ALONE)
    decayed, others = ({id(p) for p in group["params"]} for group in setup.optimizer.param_groups)
    names = {name for name, p in setup.network.named_parameters() if id(p) in decayed}
    assert names == {
        *(f"conv{i}.0.weight" for i in range(1, 7)),
        "classifier.0.weight",
        "classifier.3.weight",
    }
    assert len(decayed) + len(others) == len(list(setup.network.parameters()))
    assert [group["weight_decay"] for group in setup.optimizer.param_groups] == [1e-7, 0]


# --- killed


@pytest.mark.parametrize("point", toy.POINTS)
def test_killed_anywhere_and_resumed_ends_as_if_never_killed(
    tmp_path: Path, uninterrupted: Path, point: str
) -> None:
    folder = tmp_path / "run"
    assert toy.finish(toy.start(toy.train, folder, point)) == -signal.SIGKILL
    assert not (folder / "result.json").exists()
    assert toy.finish(toy.start(toy.train, folder)) == 0
    assert_same_end(folder, uninterrupted)


@pytest.mark.parametrize("kills", [1, 4])
def test_killed_at_random_moments_ends_as_if_never_killed(
    tmp_path: Path, uninterrupted: Path, kills: int
) -> None:
    folder, chance, codes = tmp_path / "run", random.SystemRandom(), []
    for _ in range(kills):
        epochs, delay = chance.randrange(toy.config().epochs), chance.uniform(0, 0.03)
        print(f"killed {delay:.4f} s after epoch {epochs}")  # shown where the test fails
        process = toy.start(toy.train, folder)
        while process.is_alive() and not (folder / "config.json").exists():
            process.join(0.001)
        metrics = folder / "metrics.jsonl"
        while (
            process.is_alive() and (metrics.read_bytes() if metrics.exists() else b"").count(b"\n") < epochs
        ):
            process.join(0.001)
        process.join(delay)
        process.kill()
        codes.append(toy.finish(process))
    assert codes[0] == -signal.SIGKILL and set(codes) <= {0, -signal.SIGKILL}
    assert toy.finish(toy.start(toy.train, folder)) == 0
    assert_same_end(folder, uninterrupted)


# --- stopped


def arguments_of(config: Config, out: Path) -> list[str]:
    """How ``ien run`` is told this configuration of the toy, on one thread."""
    names = ("dataset", "batch_size", "epochs", "cycle_epochs", "device", "train_images", "test_images")
    settings = [f"--set={name}={getattr(config, name)}" for name in names]
    places = ["--data=embedded", f"--out={out}", f"--results={out}"]
    return ["run", config.experiment, "--preset=smoke", "--threads=1", *settings, *places]


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM])
def test_a_polite_signal_saves_in_the_middle_of_an_epoch_and_says_how_to_go_on(
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


def test_a_second_interrupt_ends_at_once_with_the_last_checkpoint(tmp_path: Path) -> None:
    twice = [signal.SIGINT, signal.SIGINT]
    process = toy.start(toy.command, tmp_path, arguments_of(toy.config(), tmp_path), 9, twice)
    assert toy.finish(process) == 130
    (folder,) = (path.parent for path in tmp_path.rglob("config.json"))
    assert f"resume with: ien resume {folder}" in (tmp_path / "output.txt").read_text()
    state = run_folder.load_checkpoint(folder)
    assert state is not None and (state["epoch"], state["step"]) == (1, 0)


def test_an_interrupt_while_testing_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    module = sys.modules["ien.training.run"]
    with monkeypatch.context() as patch:
        patch.setattr(module, "evaluate", interrupted)
        with pytest.raises(Stopped, match=str(tmp_path)):
            run(tmp_path, toy.config(), "embedded", console=Console(file=io.StringIO()))
    state = run_folder.load_checkpoint(tmp_path)
    assert state is not None and state["epoch"] == 3
    record = run(tmp_path, toy.config(), "embedded", console=Console(file=io.StringIO()))
    assert record["config"]["epochs"] == 3 and (tmp_path / "model.safetensors").exists()


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


def bad_from(number: int, index: int, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the losses of the ``number``-th step hold ``value`` at ``index``."""
    calls = itertools.count(1)

    def step(*arguments: Any) -> torch.Tensor:
        values = take_step(*arguments)
        if next(calls) == number:
            values[index] = value
        return values

    monkeypatch.setattr("ien.training.loop.take_step", step)


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
    bad_from(9, index, value, monkeypatch)
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
    calls = itertools.count(1)

    def step(setup: ClassifyTask, *arguments: Any) -> torch.Tensor:
        values = take_step(setup, *arguments)
        if next(calls) == 12:  # the last step of the second epoch; its loss is finite
            setup.network.conv2[0].weight.data[0, 0, 0, 0] = math.nan
        return values

    monkeypatch.setattr("ien.training.loop.take_step", step)
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
    network = trained(tmp_path / "b", **short, **changes)
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
    network = trained(tmp_path / "b", **short, compile=True)
    a, b = losses(tmp_path / "a"), losses(tmp_path / "b")
    assert all(abs(ours / theirs - 1) < 1e-3 for ours, theirs in zip(b, a, strict=True))
    assert "forward" in vars(network.conv1) and "forward" not in vars(plain_of(network).conv1)
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler")
def test_a_compiled_block_has_the_same_loss() -> None:
    model = nn.Sequential(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ELU()))
    objective, x, g = (
        ien.EquivarianceLoss("rot4", ["0"], 4),
        torch.rand(4, 1, 8, 8),
        torch.tensor([1, 2, 2, 3]),
    )
    expected = objective(model, x, g=g).loss
    compile_blocks(model)
    loss = objective(model, x, g=g).loss
    loss.backward()
    assert abs(loss.item() - expected.item()) < 1e-5 and model[0][0].weight.grad.isfinite().all()


@pytest.mark.parametrize("changes", [{"batch_size": 2, "train_images": 3}])
def test_a_batch_of_one_image_is_refused_where_batchnorm_needs_more(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="single image, too few for BatchNorm: set it to 4 or more"):
        trained(tmp_path, augment=False, beta=0.0, **changes)
    trained(tmp_path, **changes)  # with its copy an image is not alone
