"""RE-SiamFC: exact at the sizes of SiamFC, of the plain net's size, a plain net once exported."""

import pytest
import torch
from torch import Tensor, nn

import ien
from ien import baselines, models
from ien.baselines.steerable_layers import SteerableConv2d
from ien.tracking.siamfc_network import SiamFC, respond, respond_all
from tests.helpers.exports import check_export

pytestmark = pytest.mark.usefixtures("one_thread")

V1, V2 = "alexnet-v1", "alexnet-v2"
GROUPS = ("rot4", "rot8", "rot4xflip")
TAPS = ("conv1", "conv2", "conv3", "conv4", "conv5")


def twin(backbone: str = V2, group: str = "rot4") -> nn.Module:
    """Narrow, with statistics, affine parameters and biases far from where they start."""
    net = baselines.create("re-siamfc", backbone=backbone, group=group, width=1 / 16)
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm3d):
            for values in (layer.running_mean, layer.running_var, layer.weight.data, layer.bias.data):
                values.uniform_(0.5, 1.5)
        elif isinstance(layer, SteerableConv2d):
            layer.bias.data.uniform_(-1, 1)
    return net.eval()


def noise(count: int, size: int) -> Tensor:
    return torch.rand(count, 3, size, size, dtype=torch.float64)


def rot90(x: Tensor, quarters: int) -> Tensor:
    return torch.rot90(x, quarters, (2, 3))


def relative_errors(net: nn.Module, x: Tensor, group: object, feature_groups: object = 4) -> list[float]:
    report = ien.measure(net, x, group, TAPS, feature_groups, floors=False)
    return [layer.relative for layer in report.layers.values()]


@pytest.mark.parametrize(("backbone", "size"), [(V1, 127), (V2, 127), (V1, 239), (V2, 255)])
def test_quarter_turns_are_exact_by_numbers_and_for_the_doctor(backbone, size) -> None:
    net = twin(backbone).double()
    assert ien.doctor(net, (3, size, size)).exact and net.taps == TAPS
    assert max(relative_errors(net, noise(2, size), "rot4")) < 1e-10


@pytest.mark.parametrize("group", GROUPS)
def test_twin_and_export_commute_with_quarter_turns_and_flips(group) -> None:
    net, x = twin(V2, group).double(), noise(2, 127)
    g = ien.group("rot4" if group == "rot8" else group)
    assert net.feature_groups == ien.FeatureGroups.of(len(ien.group(group)))
    for model in (net, net.export()):
        assert max(relative_errors(model, x, g, net.feature_groups)) < 1e-10
        with torch.no_grad():
            h = model(x)
            for i in range(1, len(g)):
                one = torch.full((2,), i)
                apart = model(g.act(x, one)) - g.act_on_features(h, one)
                assert apart.abs().max() < 1e-10 * h.abs().max()


def test_the_ruler_finds_a_plain_net_and_missing_flips_far_from_equivariant() -> None:
    x, plain = noise(2, 127), models.create("siamfc", feature_groups=4, width=1 / 16).double()
    for net, group in ((plain, "rot4"), (twin().double(), "flip")):
        assert min(relative_errors(net, x, group)) > 1e-3


@pytest.mark.parametrize(("backbone", "side"), [(V1, 17), (V2, 33)])
def test_rotating_the_search_moves_the_response_to_the_next_exemplar(backbone, side) -> None:
    net, z, x = twin(backbone).double(), noise(1, 127), noise(1, 255)
    exemplars = torch.cat([rot90(z, k) for k in range(4)])
    with torch.no_grad():
        still, rotated = (respond_all(net(exemplars), net(search)) for search in (x, rot90(x, 1)))
    assert still.shape == (4, 1, side, side) and still.std() > 0
    assert (rotated.roll(-1, 0) - rot90(still, 1)).abs().max() < 1e-10 * still.abs().max()
    assert (rotated - rot90(still, 1)).abs().max() > 1e-6 * still.abs().max()


@pytest.mark.parametrize(
    ("backbone", "last", "millions", "plain_millions"), [(V1, 128, 2.341, 2.333), (V2, 16, 1.825, 1.946)]
)
def test_full_width_has_about_the_parameters_of_the_plain_net(
    backbone, last, millions, plain_millions
) -> None:
    with torch.device("meta"):
        net = baselines.create("re-siamfc", backbone=backbone)
        plain = models.create("siamfc", backbone=backbone)
    kernels = [module.weight for module in net.modules() if isinstance(module, SteerableConv2d)]
    fields = (48, 128, 192, 192, last)
    assert tuple(map(len, kernels)) == fields
    functions = [46, 4 * 11, 4 * 6, 4 * 6, 4 * 6]  # of 11, 5 and 3 pixels
    assert [kernel.shape[2] for kernel in kernels] == functions
    count = sum(kernel.numel() for kernel in kernels)
    theirs = sum(module.weight.numel() for module in plain.modules() if isinstance(module, nn.Conv2d))
    assert (round(count / 1e6, 3), round(theirs / 1e6, 3)) == (millions, plain_millions)
    rest = sum(fields) + 2 * sum(fields[:4])  # a bias for each field, and two parameters of its BatchNorm
    assert sum(p.numel() for p in net.parameters()) == count + rest


@pytest.mark.parametrize(("backbone", "group"), [(V1, "rot4"), (V2, "rot4"), (V1, "rot8"), (V2, "rot4xflip")])
def test_the_export_is_a_siamfc_with_its_keys_and_the_same_features(backbone, group) -> None:
    net = twin(backbone, group)
    plain = net.train().export()
    assert type(plain) is SiamFC and net.training and not plain.training
    assert (plain.taps, plain.stride, plain.backbone) == (net.taps, net.stride, backbone)
    like = models.create("siamfc", backbone=backbone, feature_groups=net.feature_groups, width=1 / 16)
    check_export(net, plain, like, noise(2, 95).float())


def test_norms_keep_their_settings_and_every_parameter_gets_a_gradient() -> None:
    net = twin().train()
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm3d)]
    assert [(n.eps, n.momentum, n.num_features) for n in norms] == [(1e-6, 0.05, k) for k in (3, 8, 12, 12)]
    respond(net(noise(2, 87).float()), net(noise(2, 111).float())).square().sum().backward()
    for name, parameter in net.named_parameters():
        shift = name.endswith(".0.bias") and name != "conv5.0.bias"  # the BatchNorm takes it out again
        assert parameter.grad.isfinite().all() and (shift or parameter.grad.abs().max() > 0), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": "4-2-1"}, "group"),
        ({"group": "flip"}, r"rotations \(rot4, rot8\).*got flip"),
        ({"backbone": "alexnet"}, "siamfc has no backbone 'alexnet'"),
    ],
)
def test_mixes_and_unknown_groups_and_backbones_are_refused(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        baselines.create("re-siamfc", **options)
