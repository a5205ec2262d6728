"""The step of a tracker: its losses against those by hand, and two processes that do what one does."""

import copy
import itertools
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ien
from ien._files import generator
from ien.tracking.training.losses import Siamese, balanced_loss
from ien.tracking.training.pairs import make_pairs
from ien.tracking.training.task import TRACK_TARGETS, TrackingTask, sequences
from ien.training import ALONE, Config, Processes, Stopped, checkpoint
from ien.training.loop import take_step, train
from ien.training.network import build, objective_of
from tests.helpers import toy, toy_clips
from tests.helpers.configs import with_values
from tests.helpers.tracker_losses import is_target, loss_by_hand
from tests.helpers.two_processes import together

pytestmark = pytest.mark.usefixtures("one_thread")

TAPS = [f"conv{i}" for i in range(1, 6)]
R4 = ien.rotation(4)


def prepared(config: Any, dtype: torch.dtype = torch.float32) -> TrackingTask:
    """In float64 the order of a sum makes no difference."""
    task = TRACK_TARGETS.prepare(config, toy_clips.clips(), ALONE)
    task.network.to(dtype)
    return task


@pytest.mark.parametrize("changes", [{"feature_groups": "4-2-1"}, {"samples": 2}], ids=str)
def test_losses_of_originals_and_views_are_those_by_hand(changes) -> None:
    config = toy_clips.config(pairs=2, batch_size=2, beta=0.3, **changes)
    samples = config.objective.samples
    task = prepared(config, torch.float64)
    network, batch = copy.deepcopy(task.network), next(task.batches(0, 0))
    forward = task.forward(batch, 0, 0)
    g = ien.EquivarianceLoss(R4, TAPS, 4, samples=samples).sample(2, generator(1, "elements", 0, 0))
    features, terms = [], []
    for images in (batch.exemplars.double(), batch.searches.double()):
        views = [images[k % 2].rot90(int(element), (1, 2)) for k, element in enumerate(g)]
        with ien.capture(network, TAPS) as maps:
            features.append(network(torch.cat([images, torch.stack(views)])))
        of_layers = []
        for tap in TAPS:
            h, *rest = ien.group_pool(maps[tap], network.feature_groups).split(2)
            errors = [
                ien.equivariance_loss(h, view, R4, g_) for view, g_ in zip(rest, g.split(2), strict=True)
            ]
            of_layers.append(sum(errors).item() / samples)
        terms.append(of_layers)
    responses = torch.stack([0.001 * F.conv2d(x[None], z[None])[0] for z, x in zip(*features, strict=True)])
    expected = [loss_by_hand(responses), *((a + b) / 2 for a, b in zip(*terms, strict=True))]
    assert task.losses == ["task_loss", *TAPS] and len(responses) == 2 * (1 + samples)
    for part, value in zip(forward.parts, expected, strict=True):
        assert abs(part.item() - value) < 1e-9 * abs(value)
    assert abs(forward.loss.item() - (expected[0] + 0.3 * sum(expected[1:]))) < 1e-8
    largest = [divmod(int(response.argmax()), 29) for response in responses[:2, 0]]
    assert int(forward.hits) == sum(is_target(row, column, 29) for row, column in largest)
    assert (forward.items, forward.total) == (2, 2)


def regular_errors(network: nn.Module) -> list[float]:
    x = torch.rand(2, 3, 127, 127)
    report = ien.measure(network.eval(), x, R4, TAPS, 4, floors=False, action="regular")
    return [layer.relative for layer in report.layers.values()]


def test_a_tracker_may_start_equivariant_and_stay_so(tmp_path) -> None:
    task = prepared(toy_clips.config(tie="start", action="regular", epochs=1, pairs=2))
    assert max(regular_errors(task.network)) < 1e-10 and task.views == 4
    done = train(tmp_path, prepared(task.config))
    assert done.images_seen == 4 * 2  # exemplar and search image, and a view of each
    errors = {}
    for tie in ("start", "free", "smooth"):
        (tmp_path / tie).mkdir()
        config = with_values(task.config, action="pooled", tie=tie, augment=False, beta=0.0)
        trained = train(tmp_path / tie, prepared(config)).network
        errors[tie] = regular_errors(trained)[-1]
    assert errors["free"] < 1e-9 and errors["smooth"] < 1e-9 and errors["start"] > 1e-7


@pytest.mark.parametrize("augment", [False, True])
def test_a_tracker_listens_to_each_pair_of_a_short_epoch(augment) -> None:
    config = toy_clips.config(tie="smooth", slack="auto", augment=augment, beta=0.0, pairs=3, epochs=3)
    task = prepared(config)
    tied = task.tied
    assert tied is not None
    take_step(task, next(task.batches(0, 0)), 0, 0)
    take_step(task, next(task.batches(1, 0)), 1, 0)  # an epoch of one step is too short: split from now on
    heard: list[dict[str, torch.Tensor]] = []
    listener = tied._listener
    assert listener is not None
    listener.listen = lambda pieces, epoch: heard.extend(pieces)  # type: ignore[method-assign]
    task.forward(next(task.batches(2, 0)), 2, 0).loss.backward()
    whole = {name: gradient.clone() for name, gradient in tied.gradients().items()}
    tied.listen(2, 1 + augment)
    filled = [piece for piece in heard if any(gradient.any() for gradient in piece.values())]
    assert len(filled) == 3  # a gradient for each pair
    for name, gradient in whole.items():
        total = torch.stack([piece[name] for piece in heard]).sum(0)
        assert (total - gradient).norm() < 1e-4 * gradient.norm()
    task.optimizer.zero_grad()
    take_step(task, next(task.batches(2, 0)), 2, 0)  # and the loop passes the views that there are


PHASES = {"pretrain_epochs": 1, "pretrain_clips": 3, "epochs": 2, "turn": True, "colour": 0.2, "data_seed": 3}


def test_stopped_in_either_phase_and_resumed_ends_as_if_never_stopped(tmp_path, monkeypatch) -> None:
    config = toy_clips.config(tie="smooth", augment=False, beta=0.0, **PHASES)

    def run(folder: Path) -> Any:
        folder.mkdir(exist_ok=True)
        return train(folder, prepared(config)).network

    def stop_after(steps: int, folder: Path) -> None:
        calls = itertools.count(1)

        def step(*arguments: Any) -> torch.Tensor:
            if next(calls) == steps:
                signal.raise_signal(signal.SIGINT)
            return take_step(*arguments)

        with monkeypatch.context() as patch, pytest.raises(Stopped):
            patch.setattr("ien.training.loop.take_step", step)
            run(folder)

    whole = run(tmp_path / "whole")
    cut = tmp_path / "cut"
    stop_after(2, cut)  # of three steps with generated clips
    stop_after(3, cut)  # of the four that are left: in the second of the toy clips
    state = checkpoint.load_checkpoint(cut)
    assert state is not None and (state["epoch"], state["step"]) == (1, 2)
    toy.assert_same(run(cut), whole)
    lines = [(folder / "metrics.jsonl").read_bytes() for folder in (tmp_path / "whole", cut)]
    assert lines[0] == lines[1]


def test_generated_clips_belong_to_the_digest_of_the_data_and_are_told() -> None:
    made = toy_clips.clips()
    plain, phases, other = toy_clips.config(), toy_clips.config(**PHASES), toy_clips.config(pretrain_epochs=1)
    digests = {TRACK_TARGETS.describe(each, made).digest for each in (plain, phases, other)}
    assert len(digests) == 3
    assert TRACK_TARGETS.describe(phases, made).train == 3  # of the data set
    assert TRACK_TARGETS.epoch_items(plain, None).note == ""
    for pairs in (7, None):
        note = TRACK_TARGETS.epoch_items(toy_clips.config(**PHASES, pairs=pairs), None).note
        assert note.endswith(", those of the first 1 epochs from generated clips")


@pytest.mark.parametrize(("augment", "feature_groups", "views"), [(False, "1", 1), (True, "4", 2)])
def test_without_a_weight_no_term_is_computed(augment, feature_groups, views) -> None:
    task = prepared(toy_clips.config(beta=0.0, augment=augment, feature_groups=feature_groups), torch.float64)
    seen = []
    task.network.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
    forward = task.forward(next(task.batches(0, 0)), 0, 0)
    assert task.losses == ["task_loss"] and len(forward.parts) == 1
    assert forward.loss.item() == forward.parts[0].item()
    assert seen == [3 * views] * 2  # exemplars, and search images


def test_a_step_is_that_of_a_bare_loop() -> None:
    task = prepared(toy_clips.config(beta=0.0, augment=False, feature_groups="1", weight_decay=5e-4))
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


def test_a_run_takes_the_first_sequences_as_many_as_it_asks() -> None:
    made = toy_clips.clips(12, 2)
    assert sequences(toy_clips.config(), made) == (made.train, made.tests)
    train_on, tests = sequences(toy_clips.config(train_images=5, test_images=1), made)
    assert train_on == made.train[:5]
    assert {name: len(some) for name, some in tests.items()} == {"clips": 1, "rot-clips": 1}
    with pytest.raises(ValueError, match="test_images is 3, but generated synthetic-clips has 2 sequences"):
        sequences(toy_clips.config(test_images=3), made)


# --- two processes


def one_step(config: Config, step: int, processes: Processes) -> dict[str, Any]:
    """A step of plain gradient descent, in float64, with BatchNorm in eval mode."""
    network = build(config).double().eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.constant_(module.running_var, 1e4)  # of raw pixels
    before = {name: weight.detach().clone() for name, weight in network.named_parameters()}
    objective = objective_of(config, network)
    model = processes.wrap(Siamese(network, objective), torch.device("cpu"))
    pairs = make_pairs(config, toy_clips.clips().train, processes)
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
    network, *_ = train(mine, TRACK_TARGETS.prepare(config, toy_clips.clips(), processes))
    torch.save(dict(network.named_parameters()), path / f"trained {processes.rank}.pt")


@pytest.mark.slow
def test_two_processes_do_what_one_does(tmp_path) -> None:
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
