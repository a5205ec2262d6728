"""Networks as runs have them: equivariant from the start, tied, compiled, with weight decay."""

import platform
import re
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import ien
from ien.experiments import config
from ien.training.evaluate import evaluate
from ien.training.loop import take_step
from ien.training.network import check_target, compile_blocks, objective_of, plain_of, warn_of_slow_precision
from ien.tying.tied import count_parameters
from tests.helpers import toy
from tests.helpers.configs import network, with_values
from tests.helpers.shell import error_of
from tests.helpers.toy import task, trained

pytestmark = pytest.mark.usefixtures("toy_data")

WHOLE = {"orbits": True, "action": "regular", "tie": "start"}
TIED = {"tie": "free", "beta": 0.0}
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


@pytest.mark.parametrize("tie", ["free", "smooth"])
@pytest.mark.parametrize("feature_groups", ["4", "4-2-1"])
def test_tied_weights_stay_tied_and_others_do_not(tmp_path, feature_groups, tie) -> None:
    settings = {**TIED, "feature_groups": feature_groups, "epochs": 1, "cycle_epochs": 1}
    tied = trained(tmp_path / "tied", **settings | {"tie": tie}).network
    start = trained(tmp_path / "start", **settings | {"tie": "start"}).network
    assert max(errors_of(tied)) < 1e-10 < 1e-4 < max(errors_of(start))
    first = plain_of(task(**settings | {"tie": tie}).network).state_dict()
    last = plain_of(tied).state_dict()
    moved = [name for name, weight in last.items() if not torch.equal(weight, first[name])]
    assert len(moved) == len(first)  # every weight, and the statistics of BatchNorm, have learnt


def test_the_plain_network_of_a_tied_one_is_an_ordinary_one_with_the_same_outputs() -> None:
    tied, never = task(**TIED).network.eval(), task(beta=0.0).network.eval()
    plain = plain_of(tied)
    x = torch.rand(5, 1, 28, 28, generator=torch.Generator().manual_seed(3))
    assert torch.equal(plain(x), tied(x)) and plain is not tied
    assert list(plain.state_dict()) == list(never.state_dict()) != list(tied.state_dict())
    assert [type(module) for module in plain.modules()] == [type(module) for module in never.modules()]
    # what a record calls parameters and trained parameters: about a quarter, but for the classifier
    assert count_parameters(plain) == count_parameters(never) > 2 * count_parameters(tied)
    assert plain_of(never) is never


@pytest.mark.parametrize("tie", ["free", "smooth"])
def test_a_tied_start_has_the_first_weights_of_tied_training(tie) -> None:
    start, tied = task(beta=0.0, tie="start").network, task(beta=0.0, tie=tie).network
    same = []
    for ours, theirs in zip(start.state_dict().values(), plain_of(tied).state_dict().values(), strict=True):
        same.append(torch.equal(ours, theirs))
    assert all(same) == (tie == "free")  # smooth kernels are others


def test_the_layout_of_tied_kernels_is_left_alone() -> None:
    usual, last = task(**TIED), task(**TIED, channels_last=True)
    losses = [each.forward(torch.arange(8), 0, 0).loss.item() for each in (usual, last)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for ours, theirs in zip(usual.network.parameters(), last.network.parameters(), strict=True):
        assert torch.equal(ours, theirs) and ours.stride() == theirs.stride()


def test_eighth_turns_start_exact_at_quarter_turns(monkeypatch) -> None:
    # a 2×2 map leaves no pixel at 45°, which a run refuses; the last layer is left out here
    monkeypatch.setattr("ien.training.network._check_measurable", lambda *arguments: None)
    some = task(**{**WHOLE, "group": "rot8", "feature_groups": "8"})
    report = ien.measure(some.network, torch.rand(4, 1, 28, 28), "rot4", TAPS[:5], 8, floors=False)
    assert all(layer.relative < 1e-10 for layer in report.layers.values())


@pytest.mark.parametrize("tie", ["never", "free", "smooth"])
def test_norms_and_biases_can_be_left_out_of_the_weight_decay(tie) -> None:
    setup = task(decay_weights_only=True, tie=tie)
    decayed, others = ({id(p) for p in group["params"]} for group in setup.optimizer.param_groups)
    names = set()
    for name, parameter in setup.network.named_parameters():
        if id(parameter) in decayed:
            # conv1.0.parametrizations.weight.original, if it is tied
            names.add(re.sub(r"parametrizations\.(\w+)\..*", r"\1", name))
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
    assert objective_of(with_values(both, group="C4+0.5*scale0.8,1.25"), net).groups == weighted.groups
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


def test_a_target_that_no_training_can_reach_is_told_before_it() -> None:
    net = task().network.eval()
    x = toy.dataset().train_x[:8].float() / 255
    floor = ien.measure(net, x, "rot8", "conv1", net.feature_groups).layers["conv1"].floor
    assert floor > 0.01
    said = (
        rf"target 1e-05 is out of reach: .* 24×24 map of layer 'conv1' .* {floor:.2g} under rot8, its floor"
    )
    with pytest.raises(ValueError, match=said):
        check_target(toy.config(group="rot8", target=1e-5), net, x)
    # training may lower a floor; quarter turns have none on this grid
    check_target(toy.config(group="rot8", target=floor / 2), net, x)
    check_target(toy.config(group="rot4", target=1e-5), net, x)
    check_target(toy.config(group="rot8"), net, x)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("beta", ["0", "1"])
def test_a_factor_that_leaves_nothing_to_compare_is_told_before_training(beta) -> None:
    settings = ("--set", "group=scale0.4,1.5", "--set", f"beta={beta}", "--preset", "smoke")
    said = error_of("run", "rot-mnist/cnn-aug", *settings, "--data", "embedded", "--threads", "1")
    assert "'conv6'" in said and "2×2" in said
    assert not list(Path("runs").rglob("metrics.jsonl"))


@pytest.mark.parametrize(("supported", "told"), [(False, 1), (True, 0)])
def test_bf16_on_a_cpu_without_instructions_for_it_is_warned_of(supported, told, monkeypatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: supported, raising=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_slow_precision(toy.config(precision="bf16", device="cpu"))
        warn_of_slow_precision(toy.config(device="cpu"))
    assert len(caught) == told
    assert all("precision=bf16 will be slower" in str(each.message) for each in caught)
