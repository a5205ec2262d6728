"""What holds of every baseline by name: gradients, states, seeds, taps, and errors."""

import copy
from fractions import Fraction

import pytest
import torch
from torch import nn

import ien
from ien import baselines
from ien.baselines import BASELINES, create
from tests.helpers.nets import assert_trains

pytestmark = pytest.mark.usefixtures("one_thread")

DIGITS = ("e2cnn-cnn6", "sesn-vector", "sesn-scalar", "dss", "ss-cnn", "ss-cnn-published")
SCALES = [name for name in BASELINES if not name.startswith("e2cnn")]


@pytest.fixture(params=BASELINES)
def name(request) -> str:
    return request.param


def images(name, count=4):
    if name in DIGITS:
        return torch.rand(count, 1, 28, 28)
    return torch.rand(count, 3, 16, 16)


@pytest.mark.parametrize("width", [Fraction(1, 2), 1 / 8, 1 / 1000])
@pytest.mark.parametrize("scale_net", SCALES)
def test_every_width_runs_and_every_parameter_gets_a_gradient(scale_net, width) -> None:
    # at one field for each layer a single dead unit stops all
    net = create(scale_net, width=width, num_classes=7)
    assert_trains(net, images(scale_net, 3), 7, moves=width > 1 / 1000)


def test_the_state_carries_over_between_modes_and_holds_nothing_derived(name) -> None:
    x = images(name)
    net, other = create(name, width=1 / 8), create(name, width=1 / 8)
    net.train()(x)  # statistics of its own
    state = copy.deepcopy(net.state_dict())
    with torch.device("meta"):
        empty = create(name, width=1 / 8)
    with torch.no_grad():
        expected = net.eval()(x)
        assert not torch.allclose(other.eval()(x), expected)  # nothing of this pass may remain
        other.load_state_dict(state)
        assert torch.equal(other.eval()(x), expected)
        if not name.startswith("e2cnn"):
            empty.load_state_dict(state, assign=True)
            assert torch.equal(empty.eval()(x), expected)
    assert net.state_dict().keys() == state.keys()
    assert not [key for key in state if "basis" in key or "kernels" in key]


def test_the_seed_decides_the_weights(name) -> None:
    states = []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        states.append(create(name, width=1 / 12).state_dict())
    first, again, other = states
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_taps_pool_to_one_map_for_each_field_and_can_be_measured(name) -> None:
    net, x = create(name, width=1 / 8).eval(), images(name)
    with torch.no_grad(), ien.capture(net, net.taps) as features:
        net(x)
    for tap in net.taps:
        groups = net.feature_groups
        members = groups[tap] if isinstance(groups, dict) else groups.sizes[0]
        pooled = ien.group_pool(features[tap], members)
        assert torch.equal(pooled, features[tap].unflatten(1, (-1, members)).amax(2))
    group = "rot4" if name.startswith("e2cnn") else "scale0.8"
    report = ien.measure(net, x, group, net.taps, net.feature_groups, floors=False)
    assert tuple(report.layers) == net.taps


@pytest.mark.parametrize(
    ("name", "options", "shapes"),
    [
        ("dss", {"width": 1 / 8}, [(4 * 2, 28), (8 * 2, 14), (12 * 2, 7)]),  # fields of two scales
        ("dss", {"width": 1 / 8, "size": 56}, [(4 * 2, 56), (8 * 2, 28), (12 * 2, 14)]),
        ("dss-wrn", {"width": 1 / 8}, [(16 * 3, 17), (30 * 2, 9), (64 * 2, 5)]),
        ("ss-cnn", {"width": 1 / 6}, [(5, 28), (10, 14), (15, 7)]),
        ("ss-cnn", {"width": 1 / 6, "size": 56}, [(5, 56), (10, 28), (15, 14)]),
        ("ss-cnn-wrn", {"width": 1 / 11}, [(8, 17), (16, 9), (32, 5)]),
    ],
)
def test_taps_have_a_map_for_each_field_and_scale(name, options, shapes) -> None:
    net = create(name, **options).eval()
    with torch.no_grad(), ien.capture(net, net.taps) as features:
        net(images(name, 1))
    assert [features[tap].shape[1:] for tap in net.taps] == [(channels, n, n) for channels, n in shapes]
    assert name != "dss-wrn" or net.feature_groups == {"layer1": 3, "layer2": 2, "layer3": 2}


@pytest.mark.parametrize("scale_net", ["sesn-vector", "sesn-scalar", "sesn-wrn"])
def test_modes_agree_where_the_statistics_do(scale_net) -> None:
    net, x = create(scale_net, width=1 / 8), images(scale_net)
    norms = [m for m in net.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for module in net.modules():
        module.p = module.dropout = 0.0  # of nn.Dropout and of blocks
    for norm in norms:
        norm.momentum = 1.0
        norm.register_forward_hook(lambda m, args, _: setattr(m, "seen", args[0].numel() // args[0].shape[1]))
    with torch.no_grad():
        trained = net.train()(x)
        for norm in norms:
            norm.running_var.mul_((norm.seen - 1) / norm.seen)  # of the batch itself
        assert torch.allclose(net.eval()(x), trained, atol=1e-3 * trained.abs().max().item())


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("cnn6", {}, r"no baseline 'cnn6'; did you mean ss-cnn, e2cnn-cnn6, e2cnn-vgg\?$"),
        ("zzz", {}, r"no baseline 'zzz'; choose from e2cnn-cnn6, .* \(13 in all\)"),
        ("sesn-vector", {"size": 32}, "scales for size 28 or 56, plus True or False; got size=32"),
        ("sesn-scalar", {"size": 32}, "scales for size 28 or 56, plus True or False; got size=32"),
        ("dss", {"size": 32}, "size is 28, or 56"),
        ("ss-cnn", {"size": 32}, "size is 28, or 56"),
        ("dss", {"width": -1}, "width must be a positive factor"),
    ],
)
def test_what_cannot_be_built_says_what_can(name, options, match) -> None:
    with pytest.raises(ValueError, match=match):
        baselines.create(name, **options)
