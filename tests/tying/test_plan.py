"""Layers of all kinds are tied just before they run, and the first that cannot be is named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import ien
from ien import models
from tests.helpers.tied import assert_same_weights, regular_error, state

pytestmark = pytest.mark.usefixtures("one_thread")


def convs(*channels: int, size: int = 3) -> nn.Sequential:
    """Convolutions between so many channels."""
    return nn.Sequential(*(nn.Conv2d(a, b, size) for a, b in zip(channels, channels[1:], strict=False)))


class Joined(nn.Module):
    """A small U-Net: maps of two sizes and the image itself are concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(2, 22, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.up = nn.ConvTranspose2d(22, 11, 2, stride=2)
        self.mix = nn.Conv2d(2 + 11 + 11, 11, 3, padding=1)
        self.side = nn.Conv2d(2, 11, 1)
        self.head = nn.Conv2d(11, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(torch.cat([x, self.up(self.down(x)), self.side(x)], 1)))


def test_concatenated_maps_transposed_convolutions_and_heads() -> None:
    net, x = Joined(), torch.rand(2, 2, 8, 8)
    start = ien.start_equivariant(net, "rot4", {"": "4-2-1", "head": 1}, x)
    assert start.layers["mix"].before == "1-4-2-1-4-2-1" and start.layers["head"].after == "1"
    assert regular_error(net, x, 1) < 1e-10
    with pytest.raises(ValueError, match=r"'head' \(Conv2d\): 3 channels cannot be split .* \"head\": 1"):
        ien.start_equivariant(Joined(), "rot4", "4-2-1", x)


class Beside(nn.Module):
    """An image with large pixels, concatenated to features in 4-2-1 of it with pixels from 0 to 1."""

    def __init__(self, largest: float) -> None:
        super().__init__()
        self.largest, self.conv = largest, nn.Conv2d(1, 11, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, torch.relu(self.conv(x / self.largest))], 1)


@pytest.mark.parametrize("largest", [1.0, 2000.0])
def test_concatenated_maps_are_read_where_some_are_much_larger(largest: float) -> None:
    torch.manual_seed(1)
    net, x = nn.Sequential(Beside(largest), nn.Conv2d(12, 11, 3)), largest * torch.rand(4, 1, 9, 9)
    nn.init.normal_(net[0].conv.weight)
    start = ien.start_equivariant(net, "rot4", "4-2-1", x, weights="project")
    assert start.layers["1"].before == "1-4-2-1"
    net[1].weight.data[:, 0] = 0  # what comes of the features alone
    assert regular_error(net, x, "4-2-1") < 1e-10


class Pixels(nn.Module):
    """Channels last, as in ConvNeXt: a norm and linear layers on each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3), nn.LayerNorm(8)
        self.wide, self.narrow = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        return h + self.narrow(F.gelu(self.wide(self.norm(h.permute(0, 2, 3, 1))))).permute(0, 3, 1, 2)


@pytest.mark.parametrize("size", [7, 10])  # 10 pixels give maps as high as they have channels
def test_linear_layers_on_pixels(size: int) -> None:
    net, x = Pixels(), torch.rand(2, 3, size, size)
    nn.init.uniform_(net.norm.weight)
    start = ien.start_equivariant(net, "rot4", 4, x)
    assert [start.layers[name].after for name in ("stem", "norm", "wide", "narrow")] == ["4"] * 4
    assert regular_error(net, x, 4) < 1e-10


class Scaled(nn.Module):
    """A block with a number per channel beside its layer, as in ConvNeXt."""

    def __init__(self, before: int = 8, after: int = 8) -> None:
        super().__init__()
        self.conv, self.gamma = nn.Conv2d(before, after, 3), nn.Parameter(torch.rand(after, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.gamma * self.conv(x)


def test_numbers_per_channel_beside_layers_are_tied_or_named() -> None:
    x, net = torch.rand(2, 1, 9, 9), nn.Sequential(nn.Conv2d(1, 8, 3), Scaled())
    means = net[1].gamma.detach().view(2, 4).mean(1)
    start = ien.start_equivariant(net, "rot4", 4, x)
    torch.testing.assert_close(net[1].gamma.detach().flatten(), means.repeat_interleave(4))
    assert start.layers["1"].after == "4" and start.layers["1"].exact < 1e-10
    assert regular_error(net, x, 4) < 1e-10
    with pytest.raises(ValueError, match=r"layer '1' \(Scaled\) breaks rot4.*its own 'gamma' cannot be tied"):
        ien.start_equivariant(nn.Sequential(nn.Conv2d(1, 8, 3), Scaled(8, 16)), "rot4", 4, x)


def test_a_bias_beside_a_shared_weight_is_tied() -> None:
    net, x = convs(1, 8, 8, 8), torch.rand(2, 1, 9, 9)
    net[2].weight = net[1].weight
    biases = [layer.bias.detach().view(2, 4).mean(1).repeat_interleave(4) for layer in net[1:]]
    start = ien.start_equivariant(net, "rot4", 4, x, weights="project")
    for layer, bias in zip(net[1:], biases, strict=True):
        torch.testing.assert_close(layer.bias.detach(), bias)
    assert 0 < start.layers["2"].distance < start.layers["1"].distance
    assert regular_error(net, x, 4) < 1e-10
    with pytest.raises(ValueError, match="layer '2' .*shares its weight with a layer that has other feature"):
        ien.start_equivariant(net, "rot4", {"": 4, "2": 2}, x)


class Squeezed(nn.Module):
    """Squeeze-and-excitation: gates for each channel from linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3)
        self.gates = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 8), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x)
        return h * self.gates(h.mean((2, 3)))[:, :, None, None]


def test_linear_layers_on_vectors_end_feature_groups_unless_named() -> None:
    x = torch.rand(2, 1, 7, 7)
    start = ien.start_equivariant(Squeezed(), "rot4", {"": 4, "gates": 4}, x)
    assert start.layers["gates.2"].after == "4"
    with pytest.raises(ValueError, match="the model itself breaks rot4"):
        ien.start_equivariant(Squeezed(), "rot4", 4, x)


def test_depthwise_is_tied_and_conv_groups_that_cut_are_named() -> None:
    x = torch.rand(2, 3, 9, 9)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=2), nn.Conv2d(8, 16, 3, groups=8))
    ien.start_equivariant(net[:2], "rot4", 4, x)
    torch.testing.assert_close(net[1].weight[1, 1], net[1].weight[0, 0].rot90(1, (-2, -1)))
    with pytest.raises(ValueError, match=r"layer '2' \(Conv2d\): its 8 conv groups cut .* use groups=1"):
        ien.start_equivariant(net, "rot4", 4, x)
    with pytest.raises(ValueError, match=r"layer '1' \(Conv2d\): its 2 conv groups cut"):
        ien.start_equivariant(net[:2], "rot4xflip", 8, x)


class Along(nn.Module):
    """Numbers along one dim of maps that have as many columns as channels."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.numbers = nn.Parameter(torch.zeros(shape))

    def forward(self, h: Tensor) -> Tensor:
        return h + self.numbers


@pytest.mark.parametrize(("shape", "tied"), [((8, 1, 1), True), ((1, 1, 1, 8), False), ((8, 1), False)])
def test_numbers_along_the_sides_of_a_map_are_not_per_channel(shape, tied: bool) -> None:
    net = nn.Sequential(nn.Conv2d(1, 8, 3), Along(*shape))
    start = ien.start_equivariant(net, "rot4", 4, torch.rand(2, 1, 10, 10))
    assert start.untied == (() if tied else ("1.numbers",))
    assert any(tie.name == "numbers" for tie in start.ties) == tied


def test_inexact_grids_are_named_with_sizes_that_are_exact() -> None:
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1))
    before = state(net)
    message = r"layer '2' \(Conv2d\) breaks rot4.* exact input sizes: .*17, 19, 21"
    with pytest.raises(ValueError, match=message):
        ien.start_equivariant(net, "rot4", 4, torch.rand(2, 1, 18, 18))
    assert_same_weights(net, before)
    ien.start_equivariant(net, "rot4", 4, torch.rand(2, 1, 19, 19))


@pytest.mark.parametrize(("mean", "bias"), [(1000.0, 0.0), (0.0, 100.0)])
def test_inexact_grids_are_found_behind_maps_of_large_means(mean: float, bias: float) -> None:
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2))
    nn.init.normal_(net[2].bias, 0, bias)
    with pytest.raises(ValueError, match=r"layer '2' \(Conv2d\) breaks rot4"):
        ien.start_equivariant(net, "rot4", 4, mean + 3 * torch.rand(4, 1, 18, 18))
    ien.start_equivariant(net, "rot4", 4, mean + 3 * torch.rand(4, 1, 19, 19))


@pytest.mark.parametrize("count", [1, 2])
def test_rounding_of_short_floats_breaks_nothing(count: int) -> None:
    net = models.resnet18(4, 1 / 16).bfloat16()
    start = ien.start_equivariant(net, "rot4", 4, torch.rand(count, 3, 17, 17).bfloat16())
    assert all(layer.distance > 0.3 for layer in start.layers.values())


@pytest.mark.parametrize("weights", ["random", "project"])
def test_a_layer_of_which_nothing_would_be_left_is_named(weights: Any) -> None:
    net = nn.Sequential(nn.Conv2d(1, 1, 3, bias=False), nn.Conv2d(1, 8, 3)).requires_grad_(False)
    net[0].weight.copy_(torch.tensor([[-0.1, 0, 0.1], [-0.2, 0, 0.2], [-0.1, 0, 0.1]]))
    before = state(net)
    with pytest.raises(ValueError, match=r"layer '0' \(Conv2d\): no part of its weight .* 1.* larger size"):
        ien.start_equivariant(net, "rot4", {"": 4, "0": 1}, torch.rand(2, 1, 11, 11), weights)
    assert_same_weights(net, before)


class Shuffled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)[:, [0, 4, 1, 5, 2, 6, 3, 7]])


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kernels = nn.Parameter(torch.randn(8, 1, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.kernels)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.mix = nn.Conv2d(1, 8, 3), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(self.conv(x).flatten(2).mT)


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
        Shuffled(),
        r"the input of layer 'second' \(Conv2d\), 8×7×7, rotates neither in feature groups 4",
    ),
    "own kernels": (nn.Sequential(Own()), r"layer '0' \(Own\) breaks rot4.* only the weights of Conv2d"),
    "tokens": (Tokens(), r"'mix' .* of shape \(8, 49, 8\), is neither maps .* keep height"),
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
def test_what_cannot_be_equivariant_is_named(name: str) -> None:
    net, message = CANNOT[name]
    before = state(net)
    with pytest.raises(ValueError, match=message):
        ien.start_equivariant(net, "rot4", 4, torch.rand(2, 1, 9, 9))
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)


@dataclass
class Parts:
    maps: Tensor
    size: torch.Size
    larger: Tensor


class Several(nn.Module):
    """Maps that rotate, and others of another size that do not, in a container."""

    def __init__(self, container: type) -> None:
        super().__init__()
        self.conv, self.container = nn.Conv2d(1, 8, 3), container

    def forward(self, x: Tensor) -> Any:
        h = self.conv(x)
        parts = {"maps": h, "size": h.shape, "larger": F.interpolate(h, size=11, mode="nearest")}
        if self.container in (dict, Parts):
            return self.container(**parts)
        return self.container(parts.values())


def nested(parts: Any) -> Any:
    """A loss that is not known yet, and parts within others."""
    return {"loss": None, "of": [{"stage": tuple(parts)}]}


@pytest.mark.parametrize("container", [dict, tuple, list, Parts, nested])
def test_all_that_a_model_returns_must_rotate(container: type) -> None:
    with pytest.raises(ValueError, match=r"the model itself breaks rot4: its output, 8×11×11, rotates"):
        ien.start_equivariant(Several(container), "rot4", 4, torch.rand(2, 1, 9, 9))


def test_features_may_be_returned_beside_classes_and_what_is_no_batch() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.classify = nn.Conv2d(1, 8, 3), nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Any:
            features = self.conv(x).mean((2, 3))
            anchors = torch.rand(7, 4)
            return {"classes": self.classify(features), "of": [features, anchors, Parts, torch.tensor(1.0)]}

    net, x = Both(), torch.rand(2, 1, 9, 9)
    assert "class scores" not in str(ien.start_equivariant(net, "rot4", 4, x))
    rotated, upright = net(x.rot90(1, (-2, -1))), net(x)
    torch.testing.assert_close(rotated["classes"], upright["classes"])
    expected = upright["of"][0].unflatten(1, (2, 4)).roll(1, 2).flatten(1)
    torch.testing.assert_close(rotated["of"][0], expected)


def test_vectors_that_an_element_permutes_are_no_class_scores() -> None:
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    net, x = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1), *head), torch.rand(4, 1, 9, 9)
    before = state(net)
    message = r"4 values that rot4 permutes.* linear layer, or .*\{\"\": …, \"2\": 1\}; if"
    with pytest.raises(ValueError, match=message):
        ien.start_equivariant(net, "rot4", 4, x)
    assert_same_weights(net, before)
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


def test_a_norm_gets_the_mean_of_its_members_and_distance_is_that_of_weights() -> None:
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)).eval()
    net[1].bias.data.copy_(torch.arange(8.0))
    old = torch.cat([p.detach().flatten() for p in net[0].parameters()])
    start = ien.start_equivariant(net, "rot4", 4, torch.rand(2, 1, 5, 5), weights="project")
    assert net[1].bias.tolist() == [1.5] * 4 + [5.5] * 4
    new = torch.cat([p.detach().flatten() for p in net[0].parameters()])
    assert start.layers["0"].distance == pytest.approx(float((new - old).norm() / old.norm()))
    assert net[0].bias.view(2, 4).std(1).max() < 1e-6
