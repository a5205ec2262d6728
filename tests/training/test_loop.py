"""The training loop: repeatable to the bit, whenever it is killed, stopped or resumed, and on any layout."""

import itertools
import json
import math
import random
import signal
import time
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
from ien.training import Config, Diverged, Stopped, checkpoint, flat
from ien.training import run_folder as run_folder
from ien.training.classify import ClassifyTask
from ien.training.loop import Status, take_step, train
from ien.training.network import plain_of
from tests.helpers import toy
from tests.helpers.shell import invoke
from tests.helpers.toy import task, trained

pytestmark = pytest.mark.usefixtures("toy_data")


SHORT = {"epochs": 1, "cycle_epochs": 1, "batch_size": 20}
ORBITS = {"orbits": True, "action": "regular", "tie": "start", "subset": 20}
FREE = {"tie": "free", "beta": 0.0}
TARGET = {"target": 0.05, "batch_size": 3, "subset": 20}  # many steps: multipliers move after 20
SMOOTH = {"tie": "smooth", "beta": 0.0, "augment": False, "decay_weights_only": True}


def assert_same_end(folder: Path, other: Path) -> None:
    """The same metrics, byte for byte, the same weights and optimizer, bit for bit, and nothing left over."""
    assert (folder / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
    weights, others = load_file(folder / "model.safetensors"), load_file(other / "model.safetensors")
    assert weights.keys() == others.keys()
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    state, expected = checkpoint.load_checkpoint(folder), checkpoint.load_checkpoint(other)
    assert state["epoch"] == expected["epoch"]
    for index, moments in expected["optimizer"]["state"].items():
        assert all(torch.equal(value, state["optimizer"]["state"][index][k]) for k, value in moments.items())
    assert {path.name for path in folder.iterdir()} == {path.name for path in other.iterdir()}
    ours, theirs = (json.loads((path / "result.json").read_text()) for path in (folder, other))
    for name in ("accuracy", "accuracy_with_copies", "layers", "parameters", "macs"):
        assert ours[name] == theirs[name]


# --- repeatable


def test_two_runs_of_one_seed_are_equal_to_the_bit(tmp_path, finished) -> None:
    before = handlers()
    torch.manual_seed(99)
    random.seed(99)
    torch.rand(7)
    again = trained(tmp_path / "again")
    assert handlers() == before
    metrics = (tmp_path / "again" / "metrics.jsonl").read_bytes()
    assert metrics == (finished / "metrics.jsonl").read_bytes() and len(metrics.splitlines()) == 3
    toy.assert_same(again.network, ien.load(finished))
    trained(tmp_path / "other", seed=2, epochs=2)
    ours, others = (run_folder.read_metrics(path) for path in (finished, tmp_path / "other"))
    assert all(x["task_loss"] != y["task_loss"] for x, y in zip(ours, others, strict=False))


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """An epoch of uneven batches: its line of metrics, and what its steps returned."""
    steps = []
    folder = tmp_path_factory.mktemp("short")
    with pytest.MonkeyPatch.context() as patch:
        after_step(None, lambda some, values: steps.append(values.tolist()), patch)
        trained(folder, **SHORT)
    (metrics,) = run_folder.read_metrics(folder)
    return metrics, steps


def test_metrics_are_the_means_over_the_steps_of_the_epoch(short) -> None:
    metrics, steps = short
    assert [values[-1] for values in steps] == [20, 19, 19, 19, 19]  # 96 images, as even as possible
    means = [sum(column) / 96 for column in zip(*steps, strict=True)]
    assert list(metrics["terms"]) == [f"conv{i}" for i in range(1, 7)]
    assert losses(metrics) == pytest.approx(means[:7], rel=0, abs=1e-12)
    assert abs(metrics["train_accuracy"] - means[7]) < 1e-12


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


def test_a_run_with_a_target_takes_the_steps_of_a_bare_loop() -> None:
    setup, twin = task(**TARGET), task(**TARGET)
    batch = torch.arange(5, 21)
    objective = ien.EquivarianceLoss("rot4", [f"conv{i}" for i in range(1, 7)], 4, target=0.05)
    optimizer = torch.optim.Adam(twin.network.parameters(), weight_decay=1e-7)
    x, y = twin.x[batch].float() / 255, twin.y[batch]
    for step in range(25):
        take_step(setup, batch, 0, step)
        optimizer.param_groups[0]["lr"] = setup.optimizer.param_groups[0]["lr"]
        out = objective(twin.network, x, generator=generator(1, "elements", 0, step))
        (F.cross_entropy(out.output, out.repeat(y)) + out.loss).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert setup.objective.multipliers == pytest.approx(objective.multipliers, rel=1e-3)
    assert min(objective.multipliers.values()) > 0.01


# --- killed


@pytest.mark.slow
@pytest.mark.parametrize("point", toy.POINTS)
def test_killed_anywhere_and_resumed_ends_as_if_never_killed(tmp_path, finished, point) -> None:
    folder = tmp_path / "run"
    assert toy.finish(toy.start(toy.train, folder, point)) == -signal.SIGKILL
    assert not (folder / "result.json").exists()
    toy.run_in(folder)
    assert_same_end(folder, finished)


EVERY_STEP = 1e-9
"""Minutes, fewer than a step takes."""


@pytest.mark.slow
def test_a_kill_costs_no_more_than_what_came_after_the_last_checkpoint(tmp_path, finished) -> None:
    folder = tmp_path / "run"
    changes = {"checkpoint_minutes": EVERY_STEP}
    process = toy.start(toy.train, folder, "in a step of the second epoch", changes)
    assert toy.finish(process) == -signal.SIGKILL
    state = checkpoint.load_checkpoint(folder)
    assert (state["epoch"], state["step"]) == (1, 2)  # it was killed in the third
    toy.run_in(folder)  # with other minutes, which change nothing
    assert_same_end(folder, finished)


class Minutes:
    """A clock that only moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def perf_counter(self) -> float:
        return time.perf_counter()


@pytest.mark.parametrize(
    ("minutes", "inside"), [(4.0, [4]), (2.0, [2, 4]), (2.5, [3]), (0.0, []), (10.0, [])], ids=str
)
def test_checkpoints_are_saved_every_so_many_minutes(tmp_path, monkeypatch, minutes, inside) -> None:
    """A step takes a minute here, and an epoch six."""
    clock, saved = Minutes(), []
    monkeypatch.setattr("ien.training.loop.time", clock)
    monkeypatch.setattr(checkpoint, "save", lambda folder, some, progress: saved.append(progress[:2]))

    def wait(status: Status) -> None:
        if status.step < status.steps:  # the end of an epoch is reported after it is saved
            clock.now += 60

    train(tmp_path, task(epochs=2, cycle_epochs=1, checkpoint_minutes=minutes), wait)
    assert saved == [*((0, step) for step in inside), (1, 0), *((1, step) for step in inside), (2, 0)]


# --- stopped


def arguments_of(config: Config, out: Path) -> list[str]:
    """How ``ien run`` is told this configuration of the toy, on one thread."""
    names = ("dataset", "batch_size", "epochs", "cycle_epochs", "device", "train_images", "test_images")
    settings = [f"--set={name}={flat(config)[name]}" for name in names]
    places = ["--data=embedded", f"--out={out}", f"--results={out}"]
    return ["run", config.experiment, "--preset=smoke", "--threads=1", *settings, *places]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signals", "step"),
    [([signal.SIGINT], 3), ([signal.SIGTERM], 3), ([signal.SIGINT, signal.SIGINT], 0)],
    ids=["interrupt", "terminate", "interrupt twice"],
)
def test_a_signal_leaves_a_checkpoint_and_says_how_to_go_on(tmp_path, finished, signals, step) -> None:
    """One saves within the epoch, a second one ends at once with what the last epoch saved."""
    arguments = arguments_of(toy.config(), tmp_path)
    assert toy.finish(toy.start(toy.command, tmp_path, arguments, 9, signals)) == 130
    (folder,) = (path.parent for path in tmp_path.rglob("config.json"))
    command = f"ien resume {folder} --results {tmp_path}"
    output = (tmp_path / "output.txt").read_text()
    assert f"resume with: {command}" in output
    if len(signals) == 1:
        assert output.splitlines()[-1] == f"stopped; resume with: {command}"
    state = checkpoint.load_checkpoint(folder)
    assert (state["epoch"], state["step"]) == (1, step)
    assert len(run_folder.read_metrics(folder)) == 1
    invoke(*command.split()[1:])
    assert_same_end(folder, finished)


def handlers() -> list[object]:
    return [signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)]


# --- diverged


def test_a_nan_image_stops_the_first_epoch_before_anything_is_written(tmp_path) -> None:
    data = toy.dataset()
    x = data.train_x.float() / 255
    x[40, 0, 9, 9] = math.nan
    order = torch.randperm(96, generator=generator(1, "order", 0))
    place = order.tolist().index(40) % 16
    before = handlers()
    with pytest.raises(ValueError, match=rf"1 of 16 images hold NaN or infinity.* x\[{place}\]"):
        trained(tmp_path, replace(data, train_x=x))
    assert list(tmp_path.iterdir()) == [] and handlers() == before


def after_step(number: int | None, change: Callable[[ClassifyTask, torch.Tensor], Any], patch: Any) -> None:
    """Let ``change`` see, or spoil, the task and the sums of the ``number``-th step, or of each."""
    calls = itertools.count(1)

    def step(some: ClassifyTask, *arguments: Any) -> torch.Tensor:
        values = take_step(some, *arguments)
        if number in (None, next(calls)):
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
    tmp_path, finished, monkeypatch, index, value, what
) -> None:
    after_step(9, lambda some, sums: sums[index].fill_(value), monkeypatch)
    with pytest.raises(Diverged, match=rf"{what} in step 3 of epoch 2; \S*last.pt holds the last good state"):
        trained(tmp_path)
    good, bad = ((path / "metrics.jsonl").read_text().splitlines() for path in (finished, tmp_path))
    assert bad == good[:1]
    state = checkpoint.load_checkpoint(tmp_path)
    assert (state["epoch"], state["step"]) == (1, 0)
    assert all(tensor.isfinite().all() for tensor in state["model"].values())


def test_weights_that_the_last_step_spoils_are_not_saved(tmp_path, monkeypatch) -> None:
    def spoil(some: ClassifyTask, sums: torch.Tensor) -> None:
        some.network.conv2[0].weight.data[0, 0, 0, 0] = math.nan

    after_step(12, spoil, monkeypatch)  # the last step of the second epoch; its loss is finite
    with pytest.raises(Diverged, match=r"the weight conv2.0.weight became nan in step 6 of epoch 2"):
        trained(tmp_path)
    assert checkpoint.load_checkpoint(tmp_path)["epoch"] == len(run_folder.read_metrics(tmp_path)) == 1


# --- layouts and precisions


def losses(metrics: dict[str, Any]) -> list[float]:
    return [metrics["task_loss"], *metrics["terms"].values()]


@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [({"channels_last": True}, 1e-3), ({"precision": "bf16"}, 0.1)],
    ids=["channels_last", "bf16"],
)
def test_layout_and_precision_change_the_losses_only_a_little(tmp_path, short, changes, tolerance) -> None:
    network = trained(tmp_path, **SHORT, **changes).network
    (metrics,) = run_folder.read_metrics(tmp_path)
    found, plain = losses(metrics), losses(short[0])
    assert found != plain and found == pytest.approx(plain, rel=tolerance)
    assert all(parameter.dtype == torch.float32 for parameter in network.parameters())


@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [({"channels_last": True}, 1e-3), ({"precision": "bf16"}, 0.1)],
    ids=["channels_last", "bf16"],
)
def test_tied_weights_train_in_other_layouts_and_precisions(tmp_path, changes, tolerance) -> None:
    settings = {**SHORT, **SMOOTH}
    usual = trained(tmp_path / "usual", **settings)
    other = trained(tmp_path / "other", **settings, **changes)
    (expected,), (metrics,) = (run_folder.read_metrics(tmp_path / name) for name in ("usual", "other"))
    assert metrics["task_loss"] == pytest.approx(expected["task_loss"], rel=tolerance)
    sizes = [parameter.shape for parameter in usual.network.parameters()]
    assert [parameter.shape for parameter in other.network.parameters()] == sizes
    assert all(parameter.dtype == torch.float32 for parameter in other.network.parameters())


@pytest.mark.filterwarnings("ignore")  # torch's own, while it compiles
def test_compiled_blocks_learn_the_same_with_tied_weights(tmp_path, monkeypatch) -> None:
    torch._dynamo.reset()
    settings = {**SHORT, **SMOOTH}
    trained(tmp_path / "usual", **settings)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager", fullgraph=True))
    network = trained(tmp_path / "compiled", **settings, compile=True).network
    (expected,), (metrics,) = (run_folder.read_metrics(tmp_path / name) for name in ("usual", "compiled"))
    assert metrics["task_loss"] == pytest.approx(expected["task_loss"], rel=1e-3)
    plain = plain_of(network).eval()
    x = torch.rand(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    assert "forward" not in vars(plain.conv1) and torch.equal(plain(x), network.eval()(x))
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")  # torch's own, while it compiles
def test_compiled_blocks_learn_the_same(tmp_path, short, monkeypatch) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager", fullgraph=True))
    # torch's own way: a setting that monkeypatch restores is hidden from then on
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True, recompile_limit=8):
        network = trained(tmp_path, **SHORT, compile=True).network
    (metrics,) = run_folder.read_metrics(tmp_path)
    assert losses(metrics) == pytest.approx(losses(short[0]), rel=1e-3)
    assert "forward" in vars(network.conv1) and "forward" not in vars(plain_of(network).conv1)
    torch._dynamo.reset()


def test_multipliers_are_in_metrics_and_checkpoints_and_resume_to_the_bit(tmp_path, monkeypatch) -> None:
    settings = {**TARGET, "epochs": 2, "cycle_epochs": 1, "max_lr": 1e-3}
    whole = trained(tmp_path / "whole", **settings)
    stopped_at(24, monkeypatch, tmp_path / "cut", **settings)  # after some have moved
    state = checkpoint.load_checkpoint(tmp_path / "cut")
    assert state["multipliers"]["steps"] == 24 and state["multipliers"]["names"][0] == "rot4 conv1"
    resumed = trained(tmp_path / "cut", **settings)
    cut, uncut = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("cut", "whole"))
    assert cut == uncut
    toy.assert_same(whole.network, resumed.network)
    states = [checkpoint.load_checkpoint(tmp_path / name)["multipliers"] for name in ("cut", "whole")]
    assert all(torch.equal(states[0][name], states[1][name]) for name in ("logs", "means"))
    first, last = run_folder.read_metrics(tmp_path / "whole")
    assert list(first["multipliers"]) == list(first["terms"])
    assert first["multipliers"] != last["multipliers"]
    # the checkpoint of a run with other layers, or of none, does not pass for this one
    del state["multipliers"]
    checkpoint.save_checkpoint(tmp_path / "cut", state)
    with pytest.raises(ValueError, match=r"does not fit this run \(these are the multipliers of no layer"):
        trained(tmp_path / "cut", **settings)


def test_checkpoints_from_before_multipliers_go_on(tmp_path, monkeypatch) -> None:
    stopped_at(2, monkeypatch, tmp_path, **SHORT)
    state = checkpoint.load_checkpoint(tmp_path)
    assert state.pop("multipliers") == {}
    checkpoint.save_checkpoint(tmp_path, state)
    trained(tmp_path, **SHORT)
    (metrics,) = run_folder.read_metrics(tmp_path)
    assert "multipliers" not in metrics


def stopped_at(number: int, monkeypatch: pytest.MonkeyPatch, folder: Path, **changes: Any) -> None:
    """Train until a signal arrives in the ``number``-th step."""
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        after_step(number, lambda *arguments: signal.raise_signal(signal.SIGINT), patch)
        trained(folder, **changes)


@pytest.mark.parametrize("settings", [ORBITS, FREE, SMOOTH], ids=["orbits of a subset", "free", "smooth"])
def test_stopped_anywhere_and_resumed_ends_as_if_never_stopped(settings, tmp_path, monkeypatch) -> None:
    settings = {**settings, "epochs": 2, "cycle_epochs": 1}
    views = 2 if settings.get("augment", True) else 1
    whole = trained(tmp_path / "whole", **settings)
    stopped_at(2, monkeypatch, tmp_path / "cut", **settings)
    stopped_at(6, monkeypatch, tmp_path / "cut", **settings)  # of those left: in the second epoch
    state = checkpoint.load_checkpoint(tmp_path / "cut")
    assert (state["epoch"], state["step"]) == (1, 2)
    resumed = trained(tmp_path / "cut", **settings)
    cut, uncut = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("cut", "whole"))
    assert cut == uncut
    toy.assert_same(whole.network, resumed.network)
    again = trained(tmp_path / "cut", **settings)  # nothing is left to do
    assert whole.images_seen == resumed.images_seen == again.images_seen == 6 * 32 * views


def upright() -> ien.data.Dataset:
    """Images whose upper or lower half is bright, by class: orientation decides."""
    data = toy.dataset()
    y = data.train_y % 2
    x = data.train_x.clone() // 2
    x[y == 0, :, :14] += 120
    x[y == 1, :, 14:] += 120
    return replace(data, train_x=x, train_y=y, test_y=data.test_y % 2)


def test_slack_opens_is_in_the_metrics_and_resumes_to_the_bit(tmp_path, monkeypatch) -> None:
    # 24 steps an epoch, more than anything is decided after
    settings = {**SMOOTH, "slack": "auto", "batch_size": 4, "width": 1 / 8, "data": upright()}
    whole = trained(tmp_path / "whole", **settings)
    metrics = run_folder.read_metrics(tmp_path / "whole")
    assert max(metrics[-1]["slack"].values()) > 0 and metrics[-1]["certainty"] > 4
    for step in (5, 50):  # before it opens, and after
        folder = tmp_path / f"cut-{step}"
        stopped_at(step, monkeypatch, folder, **settings)
        resumed = trained(folder, **settings)
        toy.assert_same(resumed.network, whole.network)
        assert run_folder.read_metrics(folder) == metrics


def test_remainders_learn_at_a_tenth_of_the_rate_of_the_schedule() -> None:
    slack = task(**SMOOTH, slack="1")
    take_step(slack, next(slack.batches(0, 0)), 0, 0)
    first, *_, remainders = slack.optimizer.param_groups
    assert remainders["lr"] == pytest.approx(0.1 * first["lr"])
    assert len(remainders["params"]) == 6
