"""Layers of all kinds are tied just before they run, and the first that cannot be is named."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import ien
from ien import models
from tests.helpers.tied import Net, assert_refused, regular_error

pytestmark = pytest.mark.usefixtures("one_thread")


def unet() -> nn.Module:
    """Maps of two sizes and the image itself are concatenated."""
    return Net(
        lambda net, x: net.head(net.mix(torch.cat([x, net.up(net.down(x)), net.side(x)], 1))),
        down=nn.Sequential(nn.Conv2d(2, 22, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        up=nn.ConvTranspose2d(22, 11, 2, stride=2),
        side=nn.Conv2d(2, 11, 1),
        mix=nn.Conv2d(2 + 11 + 11, 11, 3, padding=1),
        head=nn.Conv2d(11, 3, 1),
    )


def test_concatenated_maps_transposed_convolutions_and_heads() -> None:
    net, x = unet(), torch.rand(2, 2, 8, 8)
    start = ien.start_equivariant(net, "rot4", {"": "4-2-1", "head": 1}, x)
    assert start.layers["mix"].before == "1-4-2-1-4-2-1" and start.layers["head"].after == "1"
    assert regular_error(net, x, 1) < 1e-10
    assert_refused(r"'head' \(Conv2d\): 3 channels cannot be split .* \"head\": 1", net, "rot4", "4-2-1", x)


@pytest.mark.parametrize("size", [7, 10])  # 10 pixels give maps as high as they have channels
def test_linear_layers_on_pixels(size) -> None:
    def convnext(net, x):
        """A norm and linear layers on each pixel, with channels last."""
        h = net.stem(x)
        return h + net.narrow(F.gelu(net.wide(net.norm(h.permute(0, 2, 3, 1))))).permute(0, 3, 1, 2)

    layers = {"norm": nn.LayerNorm(8), "wide": nn.Linear(8, 16), "narrow": nn.Linear(16, 8)}
    net, x = Net(convnext, stem=nn.Conv2d(3, 8, 3), **layers), torch.rand(2, 3, size, size)
    nn.init.uniform_(net.norm.weight)
    start = ien.start_equivariant(net, "rot4", 4, x)
    assert list(start.layers) == ["stem", *layers]
    assert {layer.after for layer in start.layers.values()} == {"4"}
    assert regular_error(net, x, 4) < 1e-10


def scaled(before: int, after: int) -> nn.Module:
    """A convolution with a number per channel beside it."""
    gamma = nn.Parameter(torch.rand(after, 1, 1))
    return Net(lambda net, x: net.gamma * net.conv(x), conv=nn.Conv2d(before, after, 3), gamma=gamma)


def test_numbers_per_channel_beside_layers_are_tied_or_named() -> None:
    x, net = torch.rand(2, 1, 9, 9), nn.Sequential(nn.Conv2d(1, 8, 3), scaled(8, 8))
    means = net[1].gamma.detach().view(2, 4).mean(1)
    start = ien.start_equivariant(net, "rot4", 4, x)
    torch.testing.assert_close(net[1].gamma.detach().flatten(), means.repeat_interleave(4))
    assert start.layers["1"].after == "4" and start.layers["1"].exact < 1e-10
    assert regular_error(net, x, 4) < 1e-10
    net[1] = scaled(8, 16)
    assert_refused(r"layer '1' \(Net\) breaks rot4.*its own 'gamma' cannot be tied", net, "rot4", 4, x)


def test_a_bias_beside_a_shared_weight_is_tied() -> None:
    net, x = nn.Sequential(*(nn.Conv2d(c, 8, 3) for c in (1, 8, 8))), torch.rand(2, 1, 9, 9)
    net[2].weight = net[1].weight
    biases = [layer.bias.detach().view(2, 4).mean(1).repeat_interleave(4) for layer in net[1:]]
    start = ien.start_equivariant(net, "rot4", 4, x, weights="project")
    for layer, bias in zip(net[1:], biases, strict=True):
        torch.testing.assert_close(layer.bias.detach(), bias)
    assert 0 < start.layers["2"].distance < start.layers["1"].distance
    assert regular_error(net, x, 4) < 1e-10
    message = "layer '2' .*shares its weight with a layer that has other feature"
    assert_refused(message, net, "rot4", {"": 4, "2": 2}, x)


def test_linear_layers_on_vectors_end_feature_groups_unless_named() -> None:
    def squeeze(net, x):
        """Squeeze-and-excitation: gates for each channel from linear layers."""
        h = net.conv(x)
        return h * net.gates(h.mean((2, 3)))[:, :, None, None]

    gates = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 8), nn.Sigmoid())
    net, x = Net(squeeze, conv=nn.Conv2d(1, 8, 3), gates=gates), torch.rand(2, 1, 7, 7)
    assert_refused("the model itself breaks rot4", net, "rot4", 4, x)
    start = ien.start_equivariant(net, "rot4", {"": 4, "gates": 4}, x)
    assert start.layers["gates.2"].after == "4" and regular_error(net, x, 4) < 1e-10


def test_depthwise_is_tied_and_conv_groups_that_cut_are_named() -> None:
    x = torch.rand(2, 3, 9, 9)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=2), nn.Conv2d(8, 16, 3, groups=8))
    ien.start_equivariant(net[:2], "rot4", 4, x)
    torch.testing.assert_close(net[1].weight[1, 1], net[1].weight[0, 0].rot90(1, (-2, -1)))
    assert_refused(r"layer '2' \(Conv2d\): its 8 conv groups cut .* use groups=1", net, "rot4", 4, x)
    assert_refused(r"layer '1' \(Conv2d\): its 2 conv groups cut", net[:2], "rot4xflip", 8, x)


@pytest.mark.parametrize(("mean", "bias"), [(0.0, 0.1), (1000.0, 0.0), (0.0, 100.0)])
def test_inexact_grids_are_named_with_exact_sizes_also_at_large_means(mean, bias) -> None:
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2))
    nn.init.normal_(net[2].bias, 0, bias)
    message = r"layer '2' \(Conv2d\) breaks rot4.* exact input sizes: .*17, 19, 21"
    assert_refused(message, net, "rot4", 4, mean + 3 * torch.rand(4, 1, 18, 18))
    ien.start_equivariant(net, "rot4", 4, mean + 3 * torch.rand(4, 1, 19, 19))


@pytest.mark.parametrize("count", [1, 2])
def test_rounding_of_short_floats_breaks_nothing(count) -> None:
    net = models.resnet18(4, 1 / 16).bfloat16()
    start = ien.start_equivariant(net, "rot4", 4, torch.rand(count, 3, 17, 17).bfloat16())
    assert all(layer.distance > 0.3 for layer in start.layers.values())


@pytest.mark.parametrize("weights", ["random", "project"])
def test_a_layer_of_which_nothing_would_be_left_is_named(weights) -> None:
    net = nn.Sequential(nn.Conv2d(1, 1, 3, bias=False), nn.Conv2d(1, 8, 3)).requires_grad_(False)
    net[0].weight.copy_(torch.tensor([[-0.1, 0, 0.1], [-0.2, 0, 0.2], [-0.1, 0, 0.1]]))
    message = r"layer '0' \(Conv2d\): no part of its weight .* 1.* larger size"
    assert_refused(message, net, "rot4", {"": 4, "0": 1}, torch.rand(2, 1, 11, 11), weights)


SHUFFLED = Net(
    lambda net, x: net.second(net.first(x)[:, [0, 4, 1, 5, 2, 6, 3, 7]]),
    first=nn.Conv2d(1, 8, 3),
    second=nn.Conv2d(8, 8, 3),
)
OWN = Net(lambda net, x: F.conv2d(x, net.kernels), kernels=nn.Parameter(torch.randn(8, 1, 3, 3)))
TOKENS = Net(lambda net, x: net.mix(net.conv(x).flatten(2).mT), conv=nn.Conv2d(1, 8, 3), mix=nn.Linear(8, 8))
CANNOT = {
    "channels": (nn.Conv2d(1, 6, 3), r"6 channels cannot be split into feature groups 4.*nearest: 4 or 8"),
    "side": (nn.Sequential(nn.Conv2d(1, 4, (1, 3))), r"layer '0' .* kernels of 1×3.* make them 3×3"),
    "flatten": (
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 49, 2)),
        r"layer '1' \(Flatten\) breaks",
    ),
    "weight norm": (nn.Sequential(weight_norm(nn.Conv2d(1, 4, 3))), r"layer '0' .*remove_parametrizations"),
    "spectral norm": (
        nn.Sequential(nn.utils.spectral_norm(nn.Conv2d(1, 4, 3))),
        r"layer '0' .*remove_weight_norm or remove_spectral_norm of torch.nn.utils",
    ),
    "shuffled": (
        SHUFFLED,
        r"the input of layer 'second' \(Conv2d\), 8×7×7, rotates neither in feature groups 4",
    ),
    "own kernels": (nn.Sequential(OWN), r"layer '0' \(Net\) breaks rot4.* only the weights of Conv2d"),
    "tokens": (TOKENS, r"'mix' .* of shape \(8, 49, 8\), is neither maps .* keep height"),
    "group norm": (
        nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(4, 8)),
        r"layer '1' \(GroupNorm\) cuts .* num_groups=4: use 1",
    ),
    "batch norm": (
        nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8, affine=False, track_running_stats=False)),
        r"layer '1' \(BatchNorm2d\) normalises with the statistics.* track_running_stats=True",
    ),
    "no layer": (nn.ReLU(), "there is nothing to start"),
}


@pytest.mark.parametrize("name", CANNOT)
def test_what_cannot_be_equivariant_is_named(name) -> None:
    net, message = CANNOT[name]
    assert_refused(message, net, "rot4", 4, torch.rand(2, 1, 9, 9))


@dataclass
class Parts:
    maps: Tensor
    size: torch.Size
    larger: Tensor


CONTAINERS = {
    "dict": lambda *parts: dict(zip("abc", parts, strict=True)),
    "list": lambda *parts: list(parts),
    "dataclass": Parts,
    "nested": lambda *parts: {"a": [(None, parts)]},
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_all_that_a_model_returns_must_rotate(container) -> None:
    def parts(net, x):
        """Maps that rotate, and others of another size that do not."""
        h = net.conv(x)
        return CONTAINERS[container](h, h.shape, F.interpolate(h, size=11, mode="nearest"))

    message = "the model itself breaks rot4: its output, 8×11×11, rotates"
    assert_refused(message, Net(parts, conv=nn.Conv2d(1, 8, 3)), "rot4", 4, torch.rand(2, 1, 9, 9))


def test_features_may_be_returned_beside_classes_and_what_is_no_batch() -> None:
    def both(net, x):
        features = net.conv(x).mean((2, 3))
        return {"classes": net.classify(features), "of": [features, torch.rand(7, 4), torch.tensor(1.0)]}

    net, x = Net(both, conv=nn.Conv2d(1, 8, 3), classify=nn.Linear(8, 5)), torch.rand(2, 1, 9, 9)
    assert "class scores" not in str(ien.start_equivariant(net, "rot4", 4, x))
    own = Net(
        lambda net, x: SimpleNamespace(classes=net.both(x)["classes"], noise=torch.rand(len(x), 4)), both=net
    )
    ien.start_equivariant(own, "rot4", 4, x)  # nor is an object of the user's looked into
    rotated, upright = net(x.rot90(1, (-2, -1))), net(x)
    torch.testing.assert_close(rotated["classes"], upright["classes"])
    expected = upright["of"][0].unflatten(1, (2, 4)).roll(1, 2).flatten(1)
    torch.testing.assert_close(rotated["of"][0], expected)


def test_vectors_that_an_element_permutes_are_no_class_scores() -> None:
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    net, x = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1), *head), torch.rand(4, 1, 9, 9)
    message = r"4 values that rot4 permutes.* linear layer, or .*\{\"\": …, \"2\": 1\}; if"
    assert_refused(message, net, "rot4", 4, x)
    rotated = x.rot90(1, (-2, -1))
    ien.start_equivariant(net, "rot4", {"": 4, "2": 4}, x)
    torch.testing.assert_close(net(rotated), net(x).roll(1, 1))  # features that rotate, as asked for
    ien.start_equivariant(net, "rot4", {"": 4, "2": 1}, x)
    torch.testing.assert_close(net(rotated), net(x))


def test_weights_behind_almost_dead_maps_grow_no_more_than_fourfold() -> None:
    growth = []
    for seed in range(6):
        torch.manual_seed(seed)
        layers = [nn.Conv2d(channels, 4, 3, padding=1) for channels in (1, 4, 4, 4)]
        net = nn.Sequential(*(layer for conv in layers for layer in (conv, nn.ReLU())))
        before = [float(conv.weight.detach().norm()) for conv in layers]
        ien.start_equivariant(net, "rot4", 4, torch.rand(8, 1, 15, 15))
        growth += [float(c.weight.detach().norm()) / norm for c, norm in zip(layers, before, strict=True)]
    assert all(0.249 < factor < 4.001 for factor in growth), growth


def test_statistics_of_norms_stay_unless_their_input_changed() -> None:
    x = torch.rand(4, 1, 9, 9)
    net = nn.Sequential(nn.BatchNorm2d(1), nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
    ien.start_equivariant(net, "rot4", 4, x)
    assert net[2].running_var.tolist() == [1.0] * 8
    net[0].running_var.fill_(3.0)
    ien.start_equivariant(net, "rot4", 4, x, weights="project")  # its weights are equivariant already
    assert net[2].running_var.tolist() == [1.0] * 8 and net[0].running_var.item() == 3.0
    nn.init.normal_(net[1].weight)
    ien.start_equivariant(net, "rot4", 4, x, weights="project")
    assert net[2].running_var.tolist() != [1.0] * 8 and net[0].running_var.item() == 3.0


def test_a_norm_that_becomes_0_is_at_no_distance_and_changes_no_statistics() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 1), nn.GroupNorm(1, 4), nn.BatchNorm2d(4)).eval()
    nn.init.ones_(net[0].weight), nn.init.zeros_(net[0].bias)  # tied already
    net[1].weight.data.copy_(torch.tensor([1.0, -1.0, 1.0, -1.0]))
    start = ien.start_equivariant(net, "rot4", 4, torch.rand(2, 1, 5, 5), weights="project")
    assert start.layers["1"].distance == 0 and net[2].running_var.tolist() == [1.0] * 4


def test_a_norm_gets_the_mean_of_its_members_and_distance_is_that_of_weights() -> None:
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)).eval()
    net[1].bias.data.copy_(torch.arange(8.0))
    old = torch.cat([p.detach().flatten() for p in net[0].parameters()])
    start = ien.start_equivariant(net, "rot4", 4, torch.rand(2, 1, 5, 5), weights="project")
    assert net[1].bias.tolist() == [1.5] * 4 + [5.5] * 4
    new = torch.cat([p.detach().flatten() for p in net[0].parameters()])
    assert start.layers["0"].distance == pytest.approx(float((new - old).norm() / old.norm()))
    assert net[0].bias.view(2, 4).std(1).max() < 1e-6
