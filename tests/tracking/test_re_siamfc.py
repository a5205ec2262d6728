"""RE-SiamFC: exact at the sizes of SiamFC, of the plain net's size, a plain net once exported."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor, nn

import ien
from ien import baselines, models
from ien.baselines.steerable_layers import SteerableConv2d
from ien.tracking.siamfc_network import SiamFC, respond, respond_all

from ..helpers.exports import check_export

pytest.importorskip("e2cnn")

pytestmark = pytest.mark.usefixtures("one_thread")

V1, V2 = "alexnet-v1", "alexnet-v2"
GROUPS = ("rot4", "rot8", "rot4xflip")


def twin(backbone: str = V2, group: str = "rot4", **options: object) -> nn.Module:
    """Narrow, with statistics, affine parameters and biases far from where they start."""
    settings = {"backbone": backbone, "group": group, "width": 1 / 16}
    net = baselines.create("re-siamfc", **(settings | options))
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm3d):
            for values in (layer.running_mean, layer.running_var, layer.weight.data, layer.bias.data):
                values.uniform_(0.5, 1.5)
        elif isinstance(layer, SteerableConv2d):
            layer.bias.data.uniform_(-1, 1)
    return net.eval()


def noise(count: int, size: int) -> Tensor:
    return torch.rand(count, 3, size, size, dtype=torch.float64)


def turn(x: Tensor, quarters: int) -> Tensor:
    return torch.rot90(x, quarters, (2, 3))


@pytest.mark.parametrize("size", [127, 239, 255])
@pytest.mark.parametrize("backbone", [V1, V2])
def test_quarter_turns_are_exact_by_numbers_and_for_the_doctor(backbone, size) -> None:
    net = twin(backbone).double()
    assert ien.doctor(net, (3, size, size)).exact
    report = ien.measure(net, noise(2, size), "rot4", net.taps, net.feature_groups, floors=False)
    assert tuple(report.layers) == net.taps
    assert all(layer.relative < 1e-10 for layer in report.layers.values())


@pytest.mark.parametrize("group", GROUPS)
def test_twin_and_export_commute_with_quarter_turns_and_flips(group) -> None:
    net, x = twin(V2, group).double(), noise(2, 127)
    g = ien.group("rot4" if group == "rot8" else group)
    assert net.feature_groups == ien.FeatureGroups.of(len(ien.group(group)))
    for model in (net, net.export()):
        report = ien.measure(model, x, g, net.taps, net.feature_groups, floors=False)
        assert all(layer.relative < 1e-10 for layer in report.layers.values())
        with torch.no_grad():
            h = model(x)
            for i in range(1, len(g)):
                one = torch.full((2,), i)
                apart = model(g.act(x, one)) - g.act_on_features(h, one)
                assert apart.abs().max() < 1e-10 * h.abs().max()


def test_the_ruler_finds_a_plain_net_far_from_turns_and_rotations_alone_far_from_flips() -> None:
    x = noise(2, 127)
    plain = models.create("siamfc", feature_groups=4, width=1 / 16).double()
    for net, group in ((plain, "rot4"), (twin().double(), "flip")):
        report = ien.measure(net, x, group, net.taps, 4, floors=False)
        assert all(layer.relative > 1e-3 for layer in report.layers.values())


def test_an_image_without_direction_gives_features_and_responses_without_direction() -> None:
    net = twin().double()
    z, x = (sum(turn(n, k) for k in range(4)) / 4 for n in (noise(1, 127), noise(1, 255)))
    with torch.no_grad():
        exemplar, search = net(z), net(x)
    for maps in (exemplar, search, respond(exemplar, search)):
        assert (turn(maps, 1) - maps).abs().max() < 1e-10 * maps.abs().max() and maps.std() > 0


@pytest.mark.parametrize(("backbone", "side"), [(V1, 17), (V2, 33)])
def test_turning_exemplar_and_search_turns_the_response(backbone, side) -> None:
    net, z, x = twin(backbone).double(), noise(1, 127), noise(1, 255)
    plain = models.create("siamfc", backbone=backbone, width=1 / 16).double().eval()
    with torch.no_grad():
        response = respond(net(z), net(x))
        assert response.shape == (1, 1, side, side) and response.std() > 0
        for k in (1, 2, 3):
            turned = respond(net(turn(z, k)), net(turn(x, k)))
            assert (turned - turn(response, k)).abs().max() < 1e-10 * response.abs().max()
        before, after = respond(plain(z), plain(x)), respond(plain(turn(z, 1)), plain(turn(x, 1)))
        assert (after - turn(before, 1)).abs().max() > 1e-3 * before.std()


def test_turning_the_search_moves_the_response_on_to_the_next_turned_exemplar() -> None:
    net, z, x = twin().double(), noise(1, 127), noise(2, 255)
    with torch.no_grad():
        exemplars = net(torch.cat([turn(z, k) for k in range(4)]))
        still, turned = respond_all(exemplars, net(x)), respond_all(exemplars, net(turn(x, 1)))
    assert still.shape == (4, 2, 33, 33)
    assert (turned.roll(-1, 0) - turn(still, 1)).abs().max() < 1e-10 * still.abs().max()
    assert (turned - turn(still, 1)).abs().max() > 1e-6 * still.abs().max()


@pytest.mark.parametrize(
    ("backbone", "last", "millions", "plain_millions"), [(V1, 128, 2.341, 2.333), (V2, 16, 1.825, 1.946)]
)
def test_full_width_has_about_the_parameters_of_the_plain_net(
    backbone, last, millions, plain_millions
) -> None:
    with torch.device("meta"):
        net = baselines.create("re-siamfc", backbone=backbone)
        plain = models.create("siamfc", backbone=backbone)
    kernels = [m.weight for m in net.modules() if isinstance(m, SteerableConv2d)]
    fields = (48, 128, 192, 192, last)
    assert tuple(map(len, kernels)) == fields
    assert [k.shape[2] for k in kernels] == [
        46,
        4 * 11,
        4 * 6,
        4 * 6,
        4 * 6,
    ]  # functions of 11, 5 and 3 pixels
    count = sum(k.numel() for k in kernels)
    theirs = sum(m.weight.numel() for m in plain.modules() if isinstance(m, nn.Conv2d))
    assert (round(count / 1e6, 3), round(theirs / 1e6, 3)) == (millions, plain_millions)
    rest = sum(fields) + 2 * sum(fields[:4])  # a bias for each field, and two parameters of its BatchNorm
    assert sum(p.numel() for p in net.parameters()) == count + rest


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("backbone", [V1, V2])
def test_the_exported_net_is_a_siamfc_with_its_keys_and_the_same_features(backbone, group) -> None:
    net = twin(backbone, group)
    plain = net.train().export()
    assert type(plain) is SiamFC and net.training and not plain.training
    assert (plain.taps, plain.stride, plain.backbone) == (net.taps, net.stride, backbone)
    like = models.create("siamfc", backbone=backbone, feature_groups=net.feature_groups, width=1 / 16)
    check_export(net, plain, like, noise(2, 95).float())


def test_norms_keep_the_settings_of_the_plain_net() -> None:
    norms = [m for m in twin().modules() if isinstance(m, nn.BatchNorm3d)]
    assert [(m.eps, m.momentum, m.num_features) for m in norms] == [(1e-6, 0.05, n) for n in (3, 8, 12, 12)]


def test_every_parameter_gets_a_gradient_in_training() -> None:
    net = baselines.create("re-siamfc", width=1 / 16).train()
    respond(net(noise(2, 87).float()), net(noise(2, 111).float())).square().sum().backward()
    for name, parameter in net.named_parameters():
        shift = name.endswith(".0.bias") and name != "conv5.0.bias"  # the BatchNorm takes it out again
        assert parameter.grad.isfinite().all() and (shift or parameter.grad.abs().max() > 0), name


def test_full_width_is_built_in_seconds_and_by_the_seed() -> None:
    start, weights = time.process_time(), []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        weights.append(baselines.create("re-siamfc", backbone=V1).conv1[0].weight)
    assert time.process_time() - start < 10
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_mixes_and_unknown_groups_and_backbones_are_refused() -> None:
    with pytest.raises(ValueError, match="takes a group, such as rot4, and its feature groups have one size"):
        baselines.create("re-siamfc", group="4-2-1")
    with pytest.raises(
        ValueError, match=r"rotations \(rot4, rot8\), also with flips \(rot4xflip\); got flip"
    ):
        baselines.create("re-siamfc", group="flip")
    with pytest.raises(ValueError, match="siamfc has no backbone 'alexnet'"):
        baselines.create("re-siamfc", backbone="alexnet")
