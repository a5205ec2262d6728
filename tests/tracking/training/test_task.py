"""The step of a tracker: its losses written out by hand, and two processes that do what one does."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ien
from ien._files import generator
from ien.tracking.training.pairs import Shown, pairs_of
from ien.tracking.training.task import (
    TRACK,
    Siamese,
    TrackingTask,
    balanced_loss,
    found,
    sequences,
    target_places,
)
from ien.training import ALONE, Config, Processes
from ien.training.loop import take_step, train
from ien.training.network import build, objective_of
from tests.helpers import toy_clips
from tests.helpers.configs import with_values
from tests.training.test_distributed import together

pytestmark = pytest.mark.usefixtures("one_thread")

TAPS = [f"conv{i}" for i in range(1, 6)]
R4 = ien.rotation(4)


def positive(row: int, column: int, size: int) -> bool:
    return abs(row - size // 2) + abs(column - size // 2) <= 2


def loss_by_hand(responses: Tensor) -> float:
    """Half the mean over places of the target, and half that over all others, of the logistic loss."""
    near, far = [], []
    for response in responses[:, 0].tolist():
        for row, line in enumerate(response):
            for column, value in enumerate(line):
                if positive(row, column, len(response)):
                    near.append(math.log1p(math.exp(-value)))
                else:
                    far.append(math.log1p(math.exp(value)))
    return (sum(near) / len(near) + sum(far) / len(far)) / 2


@pytest.mark.parametrize("size", [15, 29])
def test_the_loss_is_balanced_between_the_target_and_the_rest(size: int) -> None:
    expected = [[positive(row, column, size) for column in range(size)] for row in range(size)]
    assert target_places(size).tolist() == expected and int(target_places(size).sum()) == 13
    responses = torch.randn(3, 1, size, size, dtype=torch.float64)
    assert abs(float(balanced_loss(responses)) - loss_by_hand(responses)) < 1e-12
    for turn in range(4):  # or copies would need labels of their own
        assert torch.equal(target_places(size), target_places(size).rot90(turn))


def test_a_pair_is_found_where_its_largest_response_is_on_the_target() -> None:
    responses = torch.zeros(4, 1, 29, 29)
    for k, place in enumerate([(14, 14), (12, 14), (13, 12), (0, 28)]):
        responses[k, 0][place] = 1
    assert found(responses).tolist() == [True, True, False, False]


def test_the_response_of_training_has_a_middle() -> None:
    for backbone, size in (("alexnet-v1", 15), ("alexnet-v2", 29)):
        network = build(toy_clips.config(backbone=backbone))
        responses, _, terms = Siamese(network, None)(
            torch.rand(2, 3, 127, 127), torch.rand(2, 3, 239, 239), None
        )
        assert responses.shape == (2, 1, size, size) and terms == []


def double(config: Config) -> TrackingTask:
    """In float64, where sums in another order differ by nothing."""
    task = TRACK.prepare(config, toy_clips.clips(), ALONE)
    task.network.double()
    return task


def first_batch(task: TrackingTask) -> Shown:
    return next(task.batches(0, 0))


@pytest.mark.parametrize("changes", [{"feature_groups": "4-2-1"}, {"samples": 2}], ids=str)
def test_losses_of_originals_and_copies_are_those_by_hand(changes: dict[str, Any]) -> None:
    config = toy_clips.config(pairs=4, batch_size=4, beta=0.3, **changes)
    task = double(config)
    network, batch = copy.deepcopy(task.network), first_batch(task)
    forward = task.forward(batch, 0, 0)
    objective = ien.EquivarianceLoss(R4, TAPS, 4, samples=config.objective.samples)
    g = objective.sample(4, generator(1, "elements", 0, 0))
    features, terms = [], []
    for images in (batch.exemplars.double(), batch.searches.double()):
        copies = [images[k % 4].rot90(int(element), (1, 2)) for k, element in enumerate(g)]
        with ien.capture(network, TAPS) as maps:
            features.append(network(torch.cat([images, torch.stack(copies)])))
        pooled = [ien.group_pool(maps[tap], network.feature_groups).split(4) for tap in TAPS]
        terms.append(
            [
                sum(
                    ien.equivariance_loss(h, h_g, R4, some).item()
                    for h_g, some in zip(rest, g.split(4), strict=True)
                )
                / config.objective.samples
                for h, *rest in pooled
            ]
        )
    responses = torch.stack([0.001 * F.conv2d(x[None], z[None])[0] for z, x in zip(*features, strict=True)])
    expected = [loss_by_hand(responses), *((a + b) / 2 for a, b in zip(*terms, strict=True))]
    assert task.losses == ["task_loss", *TAPS] and len(responses) == 4 * (1 + config.objective.samples)
    for part, value in zip(forward.parts, expected, strict=True):
        assert abs(part.item() - value) < 1e-9 * abs(value)
    assert abs(forward.loss.item() - (expected[0] + 0.3 * sum(expected[1:]))) < 1e-8
    largest = [divmod(int(response.argmax()), 29) for response in responses[:4, 0]]
    assert int(forward.hits) == sum(positive(row, column, 29) for row, column in largest)
    assert (forward.items, forward.total) == (4, 4)


def test_a_tracker_may_start_equivariant(tmp_path: Path) -> None:
    config = toy_clips.config(start="equivariant", action="regular", epochs=1)
    task = TRACK.prepare(config, toy_clips.clips(), ALONE)
    report = ien.measure(
        task.network, torch.rand(2, 3, 127, 127), R4, TAPS, 4, floors=False, action="regular"
    )
    assert all(layer.relative < 1e-10 for layer in report.layers.values()) and task.views == 4
    done = train(tmp_path, TRACK.prepare(config, toy_clips.clips(), ALONE))
    assert done.images_seen == 4 * 7  # exemplar and search, and a copy of each
    for setting in ({"orbits": True}, {"subset": 2}):
        with pytest.raises(
            ValueError, match=f"images to be classified do nothing; leave out {next(iter(setting))}"
        ):
            toy_clips.config(**setting)


def test_a_tracker_may_stay_equivariant(tmp_path: Path) -> None:
    config = toy_clips.config(start="equivariant", tied=True, augment=False, beta=0.0, epochs=1)
    done = train(tmp_path, TRACK.prepare(config, toy_clips.clips(), ALONE))
    x, free = torch.rand(2, 3, 127, 127), with_values(config, tied=False)
    (tmp_path / "free").mkdir()
    networks = done.network, train(tmp_path / "free", TRACK.prepare(free, toy_clips.clips(), ALONE)).network
    kept, moved = (
        ien.measure(network.eval(), x, R4, TAPS, 4, floors=False, action="regular").layers["conv5"].relative
        for network in networks
    )
    assert kept < 1e-9 < 1e-7 < moved


@pytest.mark.parametrize(("augment", "views"), [(False, 1), (True, 2)])
def test_without_a_weight_no_term_is_computed(augment: bool, views: int) -> None:
    task = double(toy_clips.config(beta=0.0, augment=augment, feature_groups="1" if not augment else "4"))
    seen = []
    task.network.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
    forward = task.forward(first_batch(task), 0, 0)
    assert (
        task.losses == ["task_loss"]
        and len(forward.parts) == 1
        and forward.loss.item() == forward.parts[0].item()
    )
    assert seen == [3 * views] * 2  # exemplars, and searches


def test_a_step_is_that_of_a_bare_loop() -> None:
    config = toy_clips.config(beta=0.0, augment=False, feature_groups="1", weight_decay=5e-4)
    task = TRACK.prepare(config, toy_clips.clips(), ALONE)
    network = copy.deepcopy(task.network)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-2, momentum=0.9, weight_decay=5e-4)
    for step, batch in zip(range(2), task.batches(0, 0), strict=False):
        take_step(task, batch, 0, step)
        z, x = network(batch.exemplars), network(batch.searches)
        responses = torch.cat([0.001 * F.conv2d(x[k : k + 1], z[k : k + 1]) for k in range(len(x))])
        balanced_loss(responses).backward()
        optimizer.step()
        optimizer.zero_grad()
    for name, weight in task.network.named_parameters():
        torch.testing.assert_close(weight, network.get_parameter(name), rtol=1e-4, atol=1e-6)


# --- what a run trains on


def test_a_run_takes_the_first_of_the_sequences_as_many_as_it_asks() -> None:
    made = toy_clips.clips(12, 2)
    assert sequences(toy_clips.config(), made) == (made.train, made.tests)
    train_on, tests = sequences(toy_clips.config(train_images=5, test_images=1), made)
    assert train_on == made.train[:5] and {name: len(some) for name, some in tests.items()} == {
        "clips": 1,
        "rot-clips": 1,
    }
    with pytest.raises(ValueError, match="test_images is 3, but generated synthetic-clips has 2 sequences"):
        sequences(toy_clips.config(test_images=3), made)


# --- two processes


def one_step(config: Config, step: int, processes: Processes) -> dict[str, Any]:
    """A step of plain gradient descent, in float64, with BatchNorm in eval mode."""
    network = build(config).double().eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.constant_(module.running_var, 1e4)  # type: ignore[arg-type]  # of raw pixels
    before = {name: weight.detach().clone() for name, weight in network.named_parameters()}
    objective = objective_of(config, network)
    model = processes.wrap(Siamese(network, objective), torch.device("cpu"))
    pairs = pairs_of(config, toy_clips.clips().train, processes)
    optimizer = torch.optim.SGD(network.parameters())
    task = TrackingTask(config, network, model, objective, optimizer, pairs, processes)
    sums = take_step(task, next(task.batches(0, step)), 0, step)
    steps = {name: before[name] - weight.detach() for name, weight in network.named_parameters()}
    return {"steps": steps, "sums": sums}


CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "odd": (0, {"pairs": 3, "batch_size": 3}),
    "one pair": (1, {"pairs": 3, "batch_size": 2}),  # in the second batch, which leaves a process idle
    "plain": (0, {"pairs": 2, "batch_size": 2, "augment": False, "beta": 0.0, "feature_groups": "1"}),
}


def steps(processes: Processes, path: Path) -> None:
    for name, (step, changes) in CASES.items():
        result = one_step(toy_clips.config(max_lr=1.0, **changes), step, processes)
        torch.save(result, path / f"{name} {processes.rank}.pt")
    # with BatchNorm in training mode
    mine = path / f"run {processes.rank}"
    mine.mkdir()
    config = toy_clips.config(pairs=3, batch_size=2, epochs=1, processes=2)
    network, *_ = train(mine, TRACK.prepare(config, toy_clips.clips(), processes))
    torch.save(dict(network.named_parameters()), path / f"trained {processes.rank}.pt")


def test_two_processes_do_what_one_does(tmp_path: Path) -> None:
    together(steps, tmp_path)
    for name, (at, changes) in CASES.items():
        alone = one_step(toy_clips.config(max_lr=1.0, **changes), at, ALONE)
        first, second = (torch.load(tmp_path / f"{name} {rank}.pt", weights_only=True) for rank in range(2))
        largest = max(float(step.abs().max()) for step in alone["steps"].values())
        assert largest > 1e-9
        for weight, step in alone["steps"].items():
            assert torch.equal(first["steps"][weight], second["steps"][weight])
            assert (first["steps"][weight] - step).abs().max() < 1e-9 * largest, (name, weight)
        torch.testing.assert_close(first["sums"] + second["sums"], alone["sums"], rtol=1e-9, atol=1e-9)
    weights = [torch.load(tmp_path / f"trained {rank}.pt", weights_only=True) for rank in range(2)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
