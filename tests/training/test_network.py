"""Networks as runs have them: equivariant from the start, tied, compiled, with weight decay."""

import itertools
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

import ien
from ien.experiments import config
from ien.training.evaluate import evaluate
from ien.training.loop import take_step
from ien.training.network import compile_blocks, objective_of
from tests.helpers import toy
from tests.helpers.configs import network, with_values
from tests.helpers.shell import error_of
from tests.helpers.toy import task, trained

pytestmark = pytest.mark.usefixtures("toy_data")

WHOLE = {"orbits": True, "action": "regular", "start": "equivariant"}
TIED = {"start": "equivariant", "tied": True, "beta": 0.0}
TAPS = [f"conv{i}" for i in range(1, 7)]


def errors_of(network: nn.Module) -> list[float]:
    """The relative error of every tap under quarter turns, channel by channel."""
    x = torch.rand(6, 1, 28, 28, generator=torch.Generator().manual_seed(3))
    report = ien.measure(network, x, "rot4", TAPS, network.feature_groups, floors=False, action="regular")
    return [layer.relative for layer in report.layers.values()]


def test_the_first_network_is_equivariant_and_another_seed_is_another_one() -> None:
    some, other = task(**WHOLE), task(**WHOLE, seed=2)
    assert max(errors_of(some.network)) < 1e-10 < 0.1 < min(errors_of(task().network))
    toy.assert_same(some.network, task(**WHOLE).network)
    assert not torch.equal(some.network.conv1[0].weight, other.network.conv1[0].weight)


def test_whole_orbits_have_no_loss_in_the_first_step_and_stay_equivariant(tmp_path) -> None:
    whole, pairs = (task(**WHOLE | {"orbits": orbits}) for orbits in (True, False))
    first = {some: take_step(some, torch.arange(8), 0, 0)[1:7].max() / 8 for some in (whole, pairs)}
    assert first[whole] < 1e-9 < 1e-4 < first[pairs]
    assert max(errors_of(trained(tmp_path, **WHOLE, epochs=2).network)) < 1e-3


@pytest.mark.parametrize("feature_groups", ["4", "4-2-1"])
def test_tied_weights_stay_tied_and_others_do_not(tmp_path, feature_groups) -> None:
    settings = {**TIED, "feature_groups": feature_groups, "epochs": 1, "cycle_epochs": 1}
    tied = trained(tmp_path / "tied", **settings).network
    free = trained(tmp_path / "free", **{**settings, "tied": False}).network
    assert max(errors_of(tied)) < 1e-10 < 1e-4 < max(errors_of(free))
    first = task(**settings).network.state_dict()
    moved = [name for name, weight in tied.state_dict().items() if not torch.equal(weight, first[name])]
    assert len(moved) == len(first)  # every weight, and the statistics of BatchNorm, have learnt


def test_gradients_of_tied_weights_are_means_over_the_turns() -> None:
    some = task(**TIED)
    some.forward(torch.arange(8), 0, 0).loss.backward()
    weights = dict(some.network.named_parameters())
    before = {name: weight.grad.clone() for name, weight in weights.items()}
    some.optimizer.step()
    for name in (f"conv{i}.0.weight" for i in range(1, 7)):
        members = before[name].unflatten(0, (-1, 4))  # (N, members, I, k, k)
        inner = (members if name[4] == "1" else members.unflatten(2, (-1, 4))).unbind(1)
        expected = torch.zeros_like(torch.stack(inner, 1))
        for m, turns in itertools.product(range(4), range(4)):
            turned = torch.rot90(inner[(m + turns) % 4], -turns, (-2, -1))
            expected[:, m] += (turned if name[4] == "1" else turned.roll(-turns, 2)) / 4
        torch.testing.assert_close(weights[name].grad, expected.view_as(before[name]))
    for name in ("conv3.1.weight", "conv3.1.bias"):
        mean = before[name].view(-1, 4).mean(1).repeat_interleave(4)
        torch.testing.assert_close(weights[name].grad, mean)
    for name in ("classifier.0.weight", "classifier.1.bias", "classifier.3.bias"):  # after the pool: single
        assert torch.equal(weights[name].grad, before[name])


def test_eighth_turns_start_exact_at_quarter_turns(monkeypatch) -> None:
    # a 2×2 map leaves no pixel at 45°, which a run refuses; the last layer is left out here
    monkeypatch.setattr("ien.training.network._check_measurable", lambda *arguments: None)
    some = task(**{**WHOLE, "group": "rot8", "feature_groups": "8"})
    report = ien.measure(some.network, torch.rand(4, 1, 28, 28), "rot4", TAPS[:5], 8, floors=False)
    assert all(layer.relative < 1e-10 for layer in report.layers.values())


def test_norms_and_biases_can_be_left_out_of_the_weight_decay() -> None:
    setup = task(decay_weights_only=True)
    decayed, others = ({id(p) for p in group["params"]} for group in setup.optimizer.param_groups)
    names = {name for name, p in setup.network.named_parameters() if id(p) in decayed}
    assert names == {f"{tap}.0.weight" for tap in TAPS} | {"classifier.0.weight", "classifier.3.weight"}
    assert len(decayed) + len(others) == len(list(setup.network.parameters()))
    assert [group["weight_decay"] for group in setup.optimizer.param_groups] == [1e-7, 0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler")
def test_a_compiled_block_has_the_same_loss() -> None:
    model = nn.Sequential(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ELU()))
    objective = ien.EquivarianceLoss("rot4", ["0"], 4)
    x, g = torch.rand(4, 1, 8, 8), torch.tensor([1, 2, 2, 3])
    expected = objective(model, x, g=g).loss
    compile_blocks(model)
    loss = objective(model, x, g=g).loss
    loss.backward()
    assert abs(loss.item() - expected.item()) < 1e-5 and model[0][0].weight.grad.isfinite().all()


def test_several_groups_train_together_and_are_measured_together() -> None:
    both = with_values(config("rot-scale-mnist/ien-both", "smoke"), threads=1)
    net = network(both).eval()
    objective = objective_of(both, net)
    groups = both.objective.group.split("+")
    assert [str(group) for group in objective.groups] == groups and objective.views == 3
    weighted = objective_of(with_values(both, group="rot4+0.5*scale0.8,1.25"), net)
    assert list(weighted.groups.values()) == [1.0, 0.5]
    x, y = torch.randint(256, (24, 1, 28, 28), dtype=torch.uint8), torch.randint(10, (24,))
    together = evaluate(both, net, x, y)
    apart = [evaluate(with_values(both, group=group, measured=""), net, x, y) for group in groups]
    # trained for one, measured for both
    alone = with_values(both, group="rot4", measured=both.objective.group)
    assert evaluate(alone, net, x, y) == together
    for name, layer in together["layers"].items():
        parts = [each["layers"][name] for each in apart]
        for measure in ("raw", "relative"):
            assert layer[measure] == pytest.approx(sum(part[measure] for part in parts) / 2)
        assert layer["per_element"] == parts[0]["per_element"] | parts[1]["per_element"]
        assert set(layer["per_element"]) == {"90°", "180°", "270°", "×0.8", "×1.25"}


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("beta", ["0", "1"])
def test_a_factor_that_leaves_nothing_to_compare_is_told_before_training(beta) -> None:
    settings = ("--set", "group=scale0.4,1.5", "--set", f"beta={beta}", "--preset", "smoke")
    said = error_of("run", "rot-mnist/cnn-aug", *settings, "--data", "embedded", "--threads", "1")
    assert "'conv6'" in said and "2×2" in said
    assert not list(Path("runs").rglob("metrics.jsonl"))
