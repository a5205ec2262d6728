"""An ordinary net that is equivariant before training: against loops, against e2cnn, and what it refuses."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import ien
from ien import models
from ien.tying.projection import tied_weight, ungrouped
from tests.helpers.blocks import BasicBlock

pytestmark = pytest.mark.usefixtures("one_thread")

D4 = ien.rotation(4) * ien.reflection()


def moved(x: Tensor, label: str) -> Tensor:
    """An image (…, n, n) under an element, from its label alone."""
    label = label.replace("vflip", "180° flip").replace("identity", "")
    x = x.flip(-1) if "flip" in label else x
    return x.rot90(int(label.split("°")[0]) // 90 if "°" in label else 0, (-2, -1))


def member_moved(group: ien.Group, size: int, g: int, m: int) -> int:
    """The member that element ``g`` moves to place ``m``: by turns, or found with pictures."""
    if size < len(group) or group == ien.rotation(4):
        return (m - g) % size
    picture = torch.arange(9.0).view(3, 3)
    made = [moved(picture, label) for label in group.labels]
    return next(j for j in range(size) if torch.equal(moved(made[j], group.labels[g]), made[m]))


def channel_table(group: ien.Group, feature_groups: object, channels: int, g: int) -> list[int]:
    table, first = [], 0
    for size, count in ien.FeatureGroups.of(feature_groups).blocks(channels):
        for start in range(first, first + count, size):
            table += [start + member_moved(group, size, g, m) for m in range(size)]
        first += count
    return table


def regular_error(h: Tensor, h_g: Tensor, group: ien.Group, g: int, feature_groups: object) -> float:
    """Relative error of all members, permuted and turned one by one."""
    expected = moved(h, group.labels[g])[:, channel_table(group, feature_groups, h.shape[1], g)]
    return float((h_g - expected).square().mean() / h.var())


def user_net() -> nn.Sequential:
    """Biases, in-place activations, odd sizes, two kinds of pools, a linear layer on pooled channels."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(16, 16, 3, padding=1, groups=16),
        nn.GroupNorm(2, 16),
        nn.PReLU(16),
        nn.Conv2d(16, 8, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )


def usual_resnet() -> nn.Sequential:
    """As in torchvision, with no group pool."""
    stem = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(True))
    layers = [BasicBlock(8, 8, 1), BasicBlock(8, 16, 2)]
    return nn.Sequential(
        stem, nn.MaxPool2d(3, 2, 1), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)
    )


NETS: dict[str, tuple[Callable[[], nn.Module], str, object, tuple[int, int], list[str]]] = {
    "cnn6": (lambda: models.cnn6(4, 1 / 32), "rot4", 4, (1, 28), ["conv1", "conv2", "conv4", "conv6"]),
    "cnn6 mixed": (
        lambda: models.cnn6("4-2-1", 1 / 32),
        "rot4",
        "4-2-1",
        (1, 28),
        ["conv1", "conv3", "conv6"],
    ),
    "cnn6 flips": (lambda: models.cnn6(8, 1 / 32), "rot4xflip", 8, (1, 28), ["conv1", "conv3", "conv6"]),
    "resnet18": (lambda: models.resnet18(4, 1 / 32), "rot4", 4, (3, 16), ["layer1", "layer2", "layer4"]),
    "resnet18 mixed": (
        lambda: models.resnet18("4-2-1", 1 / 16),
        "rot4",
        "4-2-1",
        (3, 17),
        ["layer1", "layer4"],
    ),
    "vgg": (lambda: models.vgg(4, 1 / 32), "rot4", 4, (3, 32), ["conv1", "conv5", "conv8"]),
    "wide-resnet": (lambda: models.wide_resnet(4, 1 / 64), "rot4", 4, (3, 16), ["layer1", "layer3"]),
    "siamfc": (
        lambda: models.factory("siamfc")("alexnet-v2", "4-2-1", 1 / 32),
        "rot4",
        "4-2-1",
        (3, 127),
        ["conv1", "conv5"],
    ),
    "user": (user_net, "rot4", 4, (3, 17), ["0", "3", "5", "7"]),
    "user flips": (user_net, "rot4xflip", 8, (3, 17), ["3", "5", "7"]),
    "usual resnet": (usual_resnet, "rot4", 4, (3, 33), ["0", "2", "3"]),
}


def prepared(name: str) -> tuple[nn.Module, ien.Group, object, Tensor, list[str]]:
    joined = (lambda: Joined(), "rot4", {"": "4-2-1", "head": 1}, (2, 8), ["mix"])
    make, group, feature_groups, (channels, size), layers = NETS.get(name, joined)
    torch.manual_seed(3)
    net = make().eval()
    return net, ien.group(group), feature_groups, torch.rand(2, channels, size, size), layers


def used(layers: list[str], net: nn.Module) -> list[str]:
    """Without those that an in-place activation overwrites."""
    return [name for name in layers if not isinstance(net.get_submodule(name), nn.Conv2d)]


@pytest.mark.parametrize("name", NETS)
def test_net_is_equivariant_in_every_layer_and_invariant_at_the_end(name: str) -> None:
    net, group, feature_groups, x, layers = prepared(name)
    wrong = ien.measure(net, x, group, used(layers, net), feature_groups, floors=False)
    assert all(layer.relative > 0.01 for layer in wrong.layers.values())
    start = ien.start_equivariant(net, group, feature_groups, x)  # type: ignore[arg-type]
    assert all(0.3 < layer.distance < 1 and layer.exact < 1e-10 for layer in start.layers.values())
    report = ien.measure(net, torch.rand_like(x), group, used(layers, net), feature_groups, floors=False)
    assert all(layer.relative < 1e-10 for layer in report.layers.values())
    assert report.output is None or report.output.logit_error < 1e-10
    g = torch.full((2,), 1)
    with ien.capture(net, used(layers, net)) as features, torch.no_grad():
        net(x.clone())
        net(group.act(x, g))
    for layer in used(layers, net):
        assert regular_error(*features.all(layer), group, 1, feature_groups) < 1e-10
        assert features.all(layer)[0].std() > 1e-3


@pytest.mark.parametrize(
    "name", ["cnn6", "cnn6 mixed", "cnn6 flips", "resnet18 mixed", "user", "usual resnet", "joined"]
)
def test_variance_of_every_layer_is_kept_on_other_images(name: str) -> None:
    net, group, feature_groups, x, _ = prepared(name)
    found: list[float] = []

    def note(layer: nn.Module, args: object, output: Tensor) -> None:
        bias = torch.zeros(1) if layer.bias is None else layer.bias
        found.append(float((output - (bias if output.ndim == 2 else bias.view(-1, 1, 1))).var()))

    kinds = nn.Conv2d | nn.ConvTranspose2d | nn.Linear  # but not those behind a group pool, which stay
    layers = {n: m for n, m in net.named_modules() if isinstance(m, kinds) and "classifier" not in n}
    for layer in layers.values():
        layer.register_forward_hook(note)
    norms = {n: float(layer.weight.detach().norm()) for n, layer in layers.items()}
    with torch.no_grad():
        net(torch.rand(48, *x.shape[1:]))
        before = list(found)
        ien.start_equivariant(net, group, feature_groups, torch.rand(48, *x.shape[1:]))  # type: ignore[arg-type]
        found.clear()
        net(torch.rand(48, *x.shape[1:]))
    ratios = {n: b / a for n, a, b in zip(layers, before, found, strict=True)}
    assert all(0.9 < ratio < 1.1 for ratio in ratios.values()), ratios
    growth = {n: float(layer.weight.detach().norm()) / norms[n] for n, layer in layers.items()}
    assert all(0.25 < factor < 4 for factor in growth.values()), growth


def test_weights_behind_maps_that_are_almost_dead_do_not_grow_without_bound() -> None:
    growth = []
    for seed in range(6):
        torch.manual_seed(seed)
        convs = [nn.Conv2d(channels, 4, 3, padding=1) for channels in (1, 4, 4, 4)]
        net = nn.Sequential(*(layer for conv in convs for layer in (conv, nn.ReLU())))
        before = [float(conv.weight.detach().norm()) for conv in convs]
        ien.start_equivariant(net, "rot4", 4, torch.rand(8, 1, 15, 15))
        growth += [float(c.weight.detach().norm()) / norm for c, norm in zip(convs, before, strict=True)]
    assert all(0.249 < factor < 4.001 for factor in growth), growth


def test_outputs_of_random_nets_tell_images_apart_as_much_as_before_on_the_average() -> None:
    logs, x = [], torch.rand(24, 3, 17, 17)
    for seed in range(8):
        torch.manual_seed(seed)
        net = nn.Sequential(*user_net()[:-1], nn.Linear(8, 64)).eval()
        with torch.no_grad():
            before = net(x).var(0).mean()
            ien.start_equivariant(net, "rot4", 4, torch.rand(24, 3, 17, 17))
            logs.append((net(x).var(0).mean() / before).log())
    assert abs(torch.stack(logs).mean()) < 0.7, logs


@pytest.mark.parametrize(
    ("group", "after", "before"),
    [
        (ien.rotation(4), 4, 4),
        (ien.rotation(4), "4-2-1", 1),
        (ien.rotation(4), "4-2-1", "4-2-1"),
        (D4, 8, 1),
        (D4, 8, 8),
        (D4, 1, 8),
    ],
)
@pytest.mark.parametrize("kernel", [1, 2, 3])
def test_tied_kernels_are_the_mean_over_the_group_written_as_a_loop(
    group: ien.Group, after: object, before: object, kernel: int
) -> None:
    rows, columns = (11 if spec == "4-2-1" else 16 if spec == 8 else 4 for spec in (after, before))
    weight = torch.randn(rows, columns, kernel, kernel, dtype=torch.float64)
    expected = torch.zeros_like(weight)
    for g, label in enumerate(group.labels):
        out, inner = channel_table(group, after, rows, g), channel_table(group, before, columns, g)
        for o in range(rows):
            for i in range(columns):
                expected[o, i] += moved(weight[out[o], inner[i]], label) / len(group)
    blocks = [ien.FeatureGroups.of(spec).blocks(n) for spec, n in ((after, rows), (before, columns))]  # type: ignore[arg-type]
    tied, distance = tied_weight(weight, *blocks, group)
    torch.testing.assert_close(tied, expected)
    assert distance == pytest.approx(float((weight - expected).norm()))
    kept, _ = tied_weight(weight, *blocks, group, random=True)
    assert float(kept.norm()) == pytest.approx(float(weight.norm()))


def test_filters_of_a_feature_group_are_turned_copies_and_small_groups_are_symmetric() -> None:
    net = nn.Sequential(nn.Conv2d(3, 22, 3))
    ien.start_equivariant(net, "rot4", "4-2-1", torch.rand(2, 3, 9, 9))
    filters = net[0].weight.detach()
    for first in (0, 4, 8, 12):
        for m in range(4):
            torch.testing.assert_close(filters[first + m], filters[first].rot90(m, (-2, -1)))
    assert not torch.allclose(filters[0], filters[0].rot90(2, (-2, -1)))
    for first in (16, 18):
        torch.testing.assert_close(filters[first + 1], filters[first].rot90(1, (-2, -1)))
        torch.testing.assert_close(filters[first], filters[first].rot90(2, (-2, -1)))
    torch.testing.assert_close(filters[20:], filters[20:].rot90(1, (-2, -1)))


@pytest.mark.parametrize("name", ["cnn6 mixed", "usual resnet", "user flips"])
def test_projection_of_a_trained_net_is_equivariant_and_a_second_one_changes_nothing(name: str) -> None:
    net, group, feature_groups, x, layers = prepared(name)
    for tensor in [*net.parameters(), *(b for b in net.buffers() if b.is_floating_point())]:
        tensor.data += 0.1 * torch.rand_like(tensor)  # norms have statistics
    first = ien.start_equivariant(net, group, feature_groups, x, weights="project")  # type: ignore[arg-type]
    norms = [n for n, m in net.named_modules() if isinstance(m, nn.BatchNorm2d)]
    assert set(norms) <= set(first.layers)
    weights = copy.deepcopy(net.state_dict())
    report = ien.measure(net, x, group, used(layers, net), feature_groups, floors=False)
    assert all(layer.relative < 1e-10 for layer in report.layers.values())
    second = ien.start_equivariant(net, group, feature_groups, x, weights="project")  # type: ignore[arg-type]
    assert all(layer.distance < 1e-6 for layer in second.layers.values())
    torch.testing.assert_close(net.state_dict(), weights)


def test_distance_is_that_of_the_weights_and_a_norm_gets_the_mean_of_its_members() -> None:
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)).eval()
    net[1].bias.data.copy_(torch.arange(8.0))
    before = copy.deepcopy(net)
    start = ien.start_equivariant(net, "rot4", 4, torch.rand(2, 1, 5, 5), weights="project")
    assert net[1].bias.tolist() == [1.5] * 4 + [5.5] * 4
    old, new = (torch.cat([p.detach().flatten() for p in m[0].parameters()]) for m in (before, net))
    assert start.layers["0"].distance == pytest.approx(float((new - old).norm() / old.norm()))
    assert net[0].bias.view(2, 4).std(1).max() < 1e-6


def incoming(net: nn.Module, x: Tensor) -> list[tuple[nn.BatchNorm2d, Tensor]]:
    """Every norm with the maps that come into it."""
    found: list[tuple[nn.BatchNorm2d, Tensor]] = []
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    handles = [norm.register_forward_pre_hook(lambda m, args: found.append((m, args[0]))) for norm in norms]
    with torch.no_grad():
        net(x)
    for handle in handles:
        handle.remove()
    assert len(found) == len(norms)
    return found


def test_statistics_of_norms_fit_the_projected_weights_and_outputs_keep_a_spread() -> None:
    torch.manual_seed(2)
    net, x = usual_resnet(), torch.rand(32, 3, 33, 33)
    with torch.no_grad():
        for _ in range(40):
            net(torch.rand(16, 3, 33, 33))
        before = net.eval()(x).std(0).mean()
        ien.start_equivariant(net, "rot4", 4, torch.rand(32, 3, 33, 33), weights="project")
        for norm, maps in incoming(net, x):
            ratios = maps.var((0, 2, 3)) / norm.running_var
            assert 0.5 < ratios.min() and ratios.max() < 2, ratios
            assert ((maps.mean((0, 2, 3)) - norm.running_mean).abs() < 0.5 * norm.running_var.sqrt()).all()
            for numbers in (norm.running_mean, norm.running_var):
                assert torch.equal(numbers, numbers.view(-1, 4)[:, :1].expand(-1, 4).flatten())
        assert net(x).std(0).mean() > 0.2 * before


def test_statistics_of_norms_stay_where_what_comes_in_does_and_in_a_random_start() -> None:
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


@pytest.mark.parametrize(("group", "size"), [("rot4", 4), ("rot4xflip", 8)])
def test_nets_exported_from_e2cnn_are_at_no_distance(group: str, size: int) -> None:
    pytest.importorskip("e2cnn")
    net, x = ien.baselines.create("e2cnn-cnn6", group=group, width=1 / 32).export(), torch.rand(2, 1, 28, 28)
    report = ien.measure(net, x, group, net.taps, size, floors=False, action="regular")
    assert all(layer.relative < 1e-10 for layer in report.layers.values())
    start = ien.start_equivariant(net, group, size, x, weights="project")
    assert len(start.layers) == 6 and all(layer.distance < 1e-6 for layer in start.layers.values())


def smooth(count: int, channels: int, size: int) -> Tensor:
    return F.interpolate(torch.rand(count, channels, size // 5, size // 5), size, mode="bicubic")


@pytest.mark.parametrize("feature_groups", [8, "8-4-2-1"])
def test_eighth_turns_cost_interpolation_only(feature_groups: object) -> None:
    def between(net: nn.Module) -> list[float]:
        report = ien.measure(net, x, "rot8", ["1", "3"], feature_groups, floors=False, action="regular")
        assert not exact or all(layer.exact < 1e-10 for layer in report.layers.values())
        return [layer.between for layer in report.layers.values()]

    channels = ien.FeatureGroups.of(feature_groups).channels(2 if feature_groups == 8 else 8)  # type: ignore[arg-type]
    convs = nn.Conv2d(1, channels, 7, padding=3), nn.Conv2d(channels, channels, 5, padding=2)
    net, x, exact = nn.Sequential(convs[0], nn.ELU(), convs[1], nn.ELU()), smooth(4, 1, 31), False
    before, exact = between(net), True
    start = ien.start_equivariant(net, "rot8", feature_groups, x)  # type: ignore[arg-type]
    after = between(net)
    assert all(a < 0.3 and a < b / 5 for a, b in zip(after, before, strict=True)), (before, after)
    assert start.layers["0"].between is not None and start.layers["0"].between < 0.2
    again = ien.start_equivariant(net, "rot8", feature_groups, x, weights="project")  # type: ignore[arg-type]
    assert all(layer.distance < 1e-6 for layer in again.layers.values())


@pytest.mark.parametrize("smooth", [False, True])
def test_random_kernels_have_less_of_a_mean_only_if_turned_between_pixels(smooth: bool) -> None:
    weight = torch.randn(32, 24, 5, 5)
    eighths, quarters = ([(8, 32)], [(8, 24)], ien.rotation(8)), ([(4, 32)], [(4, 24)], ien.rotation(4))
    (nearest, distance), (started, same) = (tied_weight(weight, *eighths, random=r) for r in (False, True))
    assert distance == same and 0.4 * mean_of(nearest) < mean_of(started) < 0.6 * mean_of(nearest)
    torch.testing.assert_close(tied_weight(started, *eighths)[0], started)
    (nearest, _), (started, _) = (
        tied_weight(weight, *quarters, random=r, smooth=smooth) for r in (False, True)
    )
    assert float(started.norm()) == pytest.approx(float(weight.norm()))
    torch.testing.assert_close(started / started.norm(), nearest / nearest.norm())


def mean_of(kernels: Tensor) -> float:
    """Over pixels, relative to the kernel."""
    return float(kernels.mean((-2, -1)).norm() / kernels.norm())


class Joined(nn.Module):
    """A small U-Net: maps of two sizes and the image itself are joined; a head with a map for each class."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(2, 22, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.up = nn.ConvTranspose2d(22, 11, 2, stride=2)
        self.mix = nn.Conv2d(2 + 11 + 11, 11, 3, padding=1)
        self.side = nn.Conv2d(2, 11, 1)
        self.head = nn.Conv2d(11, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(torch.cat([x, self.up(self.down(x)), self.side(x)], 1)))


def test_joined_maps_transposed_convolutions_and_heads_of_their_own() -> None:
    net, x, group = Joined(), torch.rand(2, 2, 8, 8), ien.rotation(4)
    start = ien.start_equivariant(net, group, {"": "4-2-1", "head": 1}, x)
    assert start.layers["mix"].before == "1-4-2-1-4-2-1" and start.layers["head"].after == "1"
    with torch.no_grad():
        torch.testing.assert_close(net(x.rot90(1, (-2, -1))), net(x).rot90(1, (-2, -1)))
    with pytest.raises(ValueError, match=r"'head' \(Conv2d\): 3 channels cannot be split .* \"head\": 1"):
        ien.start_equivariant(Joined(), group, "4-2-1", x)


class Beside(nn.Module):
    """An image joined to features in 4-2-1 of it, or of it with pixels from 0 to 1."""

    def __init__(self, largest: float = 1.0) -> None:
        super().__init__()
        self.largest, self.conv = largest, nn.Conv2d(1, 11, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, torch.relu(self.conv(x / self.largest))], 1)


@pytest.mark.parametrize("largest", [1.0, 255.0, 2000.0])
def test_joined_maps_are_read_where_some_are_much_larger(largest: float) -> None:
    torch.manual_seed(1)
    net, x = nn.Sequential(Beside(largest), nn.Conv2d(12, 11, 3)), largest * torch.rand(4, 1, 9, 9)
    nn.init.normal_(net[0].conv.weight)
    start = ien.start_equivariant(net, "rot4", "4-2-1", x, weights="project")
    assert start.layers["1"].before == "1-4-2-1"
    net[1].weight.data[:, 0] = 0  # what comes of the features alone
    with torch.no_grad():
        assert regular_error(net(x), net(x.rot90(1, (-2, -1))), ien.rotation(4), 1, "4-2-1") < 1e-10


@pytest.mark.parametrize(("feature_groups", "specs"), [({"": 4, "2": 2}, "42"), ({"": 2, "2": 4}, "24")])
@pytest.mark.parametrize("dead", ["weights", "activations"])
def test_constant_maps_have_the_feature_groups_of_the_layer_before(
    feature_groups: dict[str, object], specs: str, dead: str
) -> None:
    convs = [nn.Conv2d(before, 8, 3) for before in (1, 8, 8)]
    net = nn.Sequential(convs[0], nn.ReLU(), convs[1], nn.ReLU(), nn.MaxPool2d(1), convs[2])
    if dead == "weights":
        nn.init.zeros_(convs[1].weight)
        nn.init.zeros_(convs[1].bias)
    else:
        nn.init.constant_(convs[1].bias, -100.0)
    start = ien.start_equivariant(net, "rot4", feature_groups, torch.rand(2, 1, 11, 11))  # type: ignore[arg-type]
    found = [(start.layers[name].before, start.layers[name].after) for name in ("0", "2", "5")]
    assert found == [("1", specs[0]), (specs[0], specs[1]), (specs[1], specs[0])]


class Pixels(nn.Module):
    """Channels last, as in ConvNeXt: a norm and linear layers on each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3), nn.LayerNorm(8)
        self.wide, self.narrow = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        return h + self.narrow(F.gelu(self.wide(self.norm(h.permute(0, 2, 3, 1))))).permute(0, 3, 1, 2)


@pytest.mark.parametrize("size", [7, 10])  # of 10 pixels come maps as high as they have channels
def test_linear_layers_on_pixels(size: int) -> None:
    net, x = Pixels(), torch.rand(2, 3, size, size)
    nn.init.uniform_(net.norm.weight)
    start = ien.start_equivariant(net, "rot4", 4, x)
    assert [start.layers[name].after for name in ("stem", "norm", "wide", "narrow")] == ["4"] * 4
    with torch.no_grad():
        h, h_g = net(x), net(x.rot90(1, (-2, -1)))
    assert regular_error(h, h_g, ien.rotation(4), 1, 4) < 1e-10


class Scaled(nn.Module):
    """A residual block that has a number for each channel beside its layers, as in ConvNeXt."""

    def __init__(self, before: int = 8, after: int = 8) -> None:
        super().__init__()
        self.conv, self.gamma = nn.Conv2d(before, after, 3), nn.Parameter(torch.rand(after, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.gamma * self.conv(x)


def test_numbers_for_each_channel_beside_layers_are_tied_or_named() -> None:
    x, net = torch.rand(2, 1, 9, 9), nn.Sequential(nn.Conv2d(1, 8, 3), Scaled())
    means = net[1].gamma.detach().view(2, 4).mean(1)
    start = ien.start_equivariant(net, "rot4", 4, x)
    torch.testing.assert_close(net[1].gamma.detach().flatten(), means.repeat_interleave(4))
    assert start.layers["1"].after == "4" and start.layers["1"].exact < 1e-10
    with torch.no_grad():
        assert regular_error(net(x), net(x.rot90(1, (-2, -1))), ien.rotation(4), 1, 4) < 1e-10
    with pytest.raises(ValueError, match=r"layer '1' \(Scaled\) breaks rot4.*its own 'gamma' cannot be tied"):
        ien.start_equivariant(nn.Sequential(nn.Conv2d(1, 8, 3), Scaled(8, 16)), "rot4", 4, x)


def test_a_bias_beside_a_shared_weight_is_tied() -> None:
    net, x = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3)), torch.rand(2, 1, 9, 9)
    net[2].weight = net[1].weight
    biases = [layer.bias.detach().view(2, 4).mean(1).repeat_interleave(4) for layer in net[1:]]
    start = ien.start_equivariant(net, "rot4", 4, x, weights="project")
    for layer, bias in zip(net[1:], biases, strict=True):
        torch.testing.assert_close(layer.bias.detach(), bias)
    assert 0 < start.layers["2"].distance < start.layers["1"].distance
    with torch.no_grad():
        assert regular_error(net(x), net(x.rot90(1, (-2, -1))), ien.rotation(4), 1, 4) < 1e-10


class Squeezed(nn.Module):
    """Gates for each channel from linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3)
        self.gates = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 8), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x)
        return h * self.gates(h.mean((2, 3)))[:, :, None, None]


def test_linear_layers_on_vectors_end_feature_groups_unless_they_are_named() -> None:
    x = torch.rand(2, 1, 7, 7)
    start = ien.start_equivariant(Squeezed(), "rot4", {"": 4, "gates": 4}, x)
    assert start.layers["gates.2"].after == "4"
    with pytest.raises(ValueError, match="the model itself breaks rot4"):
        ien.start_equivariant(Squeezed(), "rot4", 4, x)


def test_a_classifier_behind_the_group_pool_and_the_names_of_weights_stay() -> None:
    net, group, feature_groups, x, _ = prepared("cnn6")
    net.train()
    keys, head = list(net.state_dict()), copy.deepcopy(net.classifier.state_dict())
    parameters, state = list(net.parameters()), torch.get_rng_state()
    ien.start_equivariant(net, group, feature_groups, x)  # type: ignore[arg-type]
    assert list(net.state_dict()) == keys and all(
        a is b for a, b in zip(parameters, net.parameters(), strict=True)
    )
    torch.testing.assert_close(net.classifier.state_dict(), head, rtol=0, atol=0)
    assert net.training and net.conv1.training and torch.equal(torch.get_rng_state(), state)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


@pytest.mark.parametrize("name", ["cnn6 mixed", "cnn6 flips"])
def test_loss_of_all_members_starts_at_zero(name: str) -> None:
    net, group, feature_groups, x, layers = prepared(name)
    objective = ien.EquivarianceLoss(group, layers, feature_groups, action="regular", normalize=True)  # type: ignore[arg-type]
    before = objective(net, x).loss
    ien.start_equivariant(net, group, feature_groups, x)  # type: ignore[arg-type]
    assert objective(net, x).loss < 1e-10 < 0.1 < before


def test_depthwise_is_tied_and_conv_groups_that_cut_feature_groups_are_named() -> None:
    x = torch.rand(2, 3, 9, 9)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=2), nn.Conv2d(8, 16, 3, groups=8))
    ien.start_equivariant(net[:2], "rot4", 4, x)
    torch.testing.assert_close(net[1].weight[1, 1], net[1].weight[0, 0].rot90(1, (-2, -1)))
    with pytest.raises(ValueError, match=r"layer '2' \(Conv2d\): its 8 conv groups cut .* use groups=1"):
        ien.start_equivariant(net, "rot4", 4, x)
    with pytest.raises(ValueError, match=r"layer '1' \(Conv2d\): its 2 conv groups cut"):
        ien.start_equivariant(net[:2], "rot4xflip", 8, x)


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize(
    ("group", "conv_groups", "after", "before"),
    [
        ("rot4", 8, [(4, 8)], [(4, 8)]),  # depthwise
        ("rot8", 12, [(8, 8), (2, 4)], [(8, 8), (2, 4)]),
        ("rot4", 2, [(4, 8), (2, 4), (1, 4)], [(4, 16)]),
        ("rot4xflip", 2, [(8, 16)], [(8, 32)]),
        ("rot8", 3, [(8, 24)], [(4, 24)]),
    ],
)
def test_conv_groups_are_tied_as_kernels_with_zeros_between_them(
    group, conv_groups: int, after, before, smooth: bool
) -> None:
    group = ien.group(group)
    rows, columns = (sum(channels for _, channels in blocks) for blocks in (after, before))
    weight = torch.randn(rows, columns // conv_groups, 3, 3, dtype=torch.float64)
    sides = ungrouped(conv_groups, after, before, group)
    assert sides[2] == 1
    tied, distance = tied_weight(weight, sides[0], sides[1], group, smooth=smooth)
    expected, same = tied_weight(weight, after, before, group, conv_groups, smooth=smooth)
    torch.testing.assert_close(tied, expected)
    assert abs(distance - same) < 1e-9 and distance > 0.1


def test_conv_groups_of_several_sizes_are_left_as_they_are() -> None:
    blocks = [(4, 4), (2, 4)]
    assert ungrouped(2, blocks, blocks, ien.rotation(4)) == (blocks, blocks, 2)
    assert ungrouped(4, [(4, 8)], [(4, 8)], ien.rotation(4)) == ([(4, 8)], [(4, 8)], 4)  # cut: told elsewhere


def test_grid_that_is_not_exact_is_named_with_sizes_that_are_and_the_net_is_as_it_was() -> None:
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1))
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(
        ValueError, match=r"layer '2' \(Conv2d\) breaks rot4.* exact input sizes: .*17, 19, 21"
    ):
        ien.start_equivariant(net, "rot4", 4, torch.rand(2, 1, 18, 18))
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())
    ien.start_equivariant(net, "rot4", 4, torch.rand(2, 1, 19, 19))


@pytest.mark.parametrize(("mean", "bias"), [(1000.0, 0.0), (0.0, 100.0)])
def test_grid_that_is_not_exact_is_found_behind_maps_of_large_means(mean: float, bias: float) -> None:
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
def test_a_layer_of_which_nothing_would_be_left_is_named(weights: str) -> None:
    net = nn.Sequential(nn.Conv2d(1, 1, 3, bias=False), nn.Conv2d(1, 8, 3)).requires_grad_(False)
    net[0].weight.copy_(torch.tensor([[-0.1, 0, 0.1], [-0.2, 0, 0.2], [-0.1, 0, 0.1]]))
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(ValueError, match=r"layer '0' \(Conv2d\): no part of its weight .* 1.* larger size"):
        ien.start_equivariant(net, "rot4", {"": 4, "0": 1}, torch.rand(2, 1, 11, 11), weights)  # type: ignore[arg-type]
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)


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


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (nn.Conv2d(1, 6, 3), r"6 channels cannot be split into feature groups 4.*nearest: 4 or 8"),
        (nn.Sequential(nn.Conv2d(1, 4, (1, 3))), r"layer '0' \(Conv2d\) has kernels of 1×3.* make them 3×3"),
        (
            nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 49, 2)),
            r"layer '1' \(Flatten\) breaks",
        ),
        (nn.Sequential(weight_norm(nn.Conv2d(1, 4, 3))), r"layer '0' .*remove_parametrizations"),
        (Shuffled(), r"the input of layer 'second' \(Conv2d\), 8×7×7, rotates neither in feature groups 4"),
        (nn.Sequential(Own()), r"layer '0' \(Own\) breaks rot4.* only the weights of Conv2d"),
        (
            nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(4, 8)),
            r"layer '1' \(GroupNorm\) cuts .* num_groups=4: use 1",
        ),
        (
            nn.Sequential(nn.utils.spectral_norm(nn.Conv2d(1, 4, 3))),
            r"layer '0' .*remove_weight_norm or remove_spectral_norm of torch.nn.utils",
        ),
        (
            nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8, affine=False, track_running_stats=False)),
            r"layer '1' \(BatchNorm2d\) normalises with the statistics.* track_running_stats=True",
        ),
        (nn.ReLU(), "there is nothing to start"),
    ],
)
def test_what_cannot_be_equivariant_is_named(net: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ien.start_equivariant(net, "rot4", 4, torch.rand(2, 1, 9, 9))


def test_wrong_arguments_are_told() -> None:
    net, x = nn.Sequential(nn.Conv2d(1, 8, 3)), torch.rand(2, 1, 9, 9)
    for group in ("scale0.7", "rot3", "rot4xscale0.7"):
        with pytest.raises(ValueError, match="rotations and flips"):
            ien.start_equivariant(net, group, 4, x)
    with pytest.raises(ValueError, match="size 3; use 4 or 2 or 1"):
        ien.start_equivariant(net, "rot4", 3, x)
    with pytest.raises(ValueError, match='weights must be "random" or "project"'):
        ien.start_equivariant(net, "rot4", 4, x, weights="trained")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="almost invariant to rot4"):
        ien.start_equivariant(net, "rot4", 4, torch.ones(2, 1, 9, 9))
    with pytest.raises(ValueError, match=r"a batch of images \(B, C, H, W\)"):
        ien.start_equivariant(net, "rot4", 4, x[0])
    with pytest.raises(ValueError, match="input holds NaN or infinite values"):
        ien.start_equivariant(net, "rot4", 4, x / 0)
    with pytest.raises(ValueError, match="if it takes several inputs, wrap it"):
        ien.start_equivariant(nn.Bilinear(9, 9, 3), "rot4", 4, x)
    with pytest.raises(KeyError, match="names 'con'"):
        ien.start_equivariant(net, "rot4", {"": 4, "con": 1}, x)
    with pytest.raises(KeyError, match="says nothing about layer"):
        ien.start_equivariant(nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU()), "rot4", {"1": 4}, x)
    with pytest.raises(RuntimeError, match=r"before torch\.compile"):
        ien.start_equivariant(torch.compile(net, backend="eager"), "rot4", 4, x)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrap", [nn.parallel.DistributedDataParallel, nn.DataParallel])
def test_a_model_is_started_before_it_is_wrapped(
    wrap: Callable[[nn.Module], nn.Module], tmp_path: Path
) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        net, x = wrap(nn.Sequential(nn.Conv2d(1, 8, 3))), torch.rand(2, 1, 9, 9)
        for model in (net, nn.Sequential(net)):
            with pytest.raises(RuntimeError, match=f"{wrap.__name__}.*start it before wrapping"):
                ien.start_equivariant(model, "rot4", 4, x)
    finally:
        dist.destroy_process_group()


def test_a_net_that_is_equivariant_whatever_its_weights_is_left_as_it_was() -> None:
    net, x = nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 1)), torch.rand(2, 1, 9, 9)
    before = copy.deepcopy(net.state_dict())
    start = ien.start_equivariant(net, "rot4", 1, x)
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)
    assert start.layers == {} and str(start) == "already equivariant to rot4: no weight had to change"


def test_a_layer_that_runs_twice_one_that_does_not_and_the_report() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.again = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3)
            self.aside, self.slope = nn.Conv2d(8, 8, 3), nn.PReLU(8)

        def forward(self, x: Tensor) -> Tensor:
            return self.again(torch.relu(self.again(self.first(x))))

    net, x = Twice(), torch.rand(2, 1, 11, 11)
    with torch.inference_mode():
        start = ien.start_equivariant(net, "rot4", 4, x)
    net(x).sum().backward()  # its weights can still be trained
    assert list(start.layers) == ["first", "again"] and start.unused == ("aside", "slope")
    assert ien.measure(net, x, "rot4", ["first"], 4).layers["first"].relative < 1e-12
    lines = str(start).splitlines()
    assert lines[0].startswith("equivariant to rot4, weights random") and lines[1].split()[:2] == [
        "layer",
        "before",
    ]
    assert lines[2].split()[:3] == ["first", "1", "4"] and lines[-1].endswith(
        "were not changed: aside, slope"
    )


class Several(nn.Module):
    """Maps that turn, and others of another size that do not, in a dict or a tuple."""

    def __init__(self, container: type) -> None:
        super().__init__()
        self.conv, self.container = nn.Conv2d(1, 8, 3), container

    def forward(self, x: Tensor) -> Any:
        h = self.conv(x)
        parts = {"maps": h, "size": h.shape, "larger": F.interpolate(h, size=11, mode="nearest")}
        if self.container in (dict, Parts):
            return self.container(**parts)
        return self.container(parts.values())


@dataclass
class Parts:
    maps: Tensor
    size: torch.Size
    larger: Tensor


def nested(parts: Any) -> Any:
    """A loss that is not known yet, and parts within others."""
    return {"loss": None, "of": [{"stage": tuple(parts)}]}


@pytest.mark.parametrize("container", [dict, tuple, list, Parts, nested])
def test_all_that_a_model_returns_must_turn(container: type) -> None:
    with pytest.raises(ValueError, match=r"the model itself breaks rot4: its output, 8×11×11, rotates"):
        ien.start_equivariant(Several(container), "rot4", 4, torch.rand(2, 1, 9, 9))


def test_vectors_whose_numbers_an_element_exchanges_are_no_classes() -> None:
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    net, x = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1), *head), torch.rand(4, 1, 9, 9)
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(
        ValueError,
        match=r"4 values that rot4 permutes.* linear layer, or .*\{\"\": …, \"2\": 1\}; if",
    ):
        ien.start_equivariant(net, "rot4", 4, x)
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)
    turned = x.rot90(1, (-2, -1))
    ien.start_equivariant(net, "rot4", {"": 4, "2": 4}, x)
    torch.testing.assert_close(net(turned), net(x).roll(1, 1))  # features that turn, as asked for
    ien.start_equivariant(net, "rot4", {"": 4, "2": 1}, x)
    torch.testing.assert_close(net(turned), net(x))


def test_maps_that_are_feature_groups_are_told_with_how_to_have_classes() -> None:
    net, x = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1)), torch.rand(4, 1, 9, 9)
    told = 'returns feature groups, not class scores; to return class scores: feature_groups={"": …, "2": 1}'
    assert told in str(ien.start_equivariant(net, "rot4", 4, x))
    for asked in (1, 4):
        assert "class scores" not in str(ien.start_equivariant(net, "rot4", {"": 4, "2": asked}, x))
    assert "class scores" not in str(
        ien.start_equivariant(nn.Sequential(*net, nn.Conv2d(4, 3, 1)), "rot4", {"": 4, "3": 1}, x)
    )


def test_features_may_be_returned_beside_classes_and_what_is_no_batch_is_not_looked_at() -> None:
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
    turned, upright = net(x.rot90(1, (-2, -1))), net(x)
    torch.testing.assert_close(turned["classes"], upright["classes"])
    expected = upright["of"][0].unflatten(1, (2, 4)).roll(1, 2).flatten(1)
    torch.testing.assert_close(turned["of"][0], expected)


def test_tokens_are_told_from_maps() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.mix = nn.Conv2d(1, 8, 3), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.mix(self.conv(x).flatten(2).mT)

    with pytest.raises(ValueError, match=r"'mix' .* of shape \(8, 49, 8\), is neither maps .* keep height"):
        ien.start_equivariant(Tokens(), "rot4", 4, torch.rand(2, 1, 9, 9))


def test_images_are_single_maps_also_where_their_channels_are_equal() -> None:
    net = nn.Sequential(nn.Conv2d(4, 8, 3))
    start = ien.start_equivariant(net, "rot4", 4, torch.rand(2, 1, 9, 9).expand(2, 4, 9, 9))
    assert start.layers["0"].before == "1"
    report = ien.measure(net, torch.rand(2, 4, 9, 9), "rot4", ["0"], 4, action="regular")
    assert report.layers["0"].relative < 1e-10


class Along(nn.Module):
    """Numbers for each column of a map, which has as many columns as channels."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.numbers = nn.Parameter(torch.zeros(shape))

    def forward(self, h: Tensor) -> Tensor:
        return h + self.numbers


@pytest.mark.parametrize(
    ("shape", "loose"),
    [((8, 1, 1), ()), ((1, 8, 1, 1), ()), ((1, 1, 1, 8), ("1.numbers",)), ((8, 1), ("1.numbers",))],
)
def test_numbers_along_the_sides_of_a_map_are_not_those_of_its_channels(shape, loose) -> None:
    net = nn.Sequential(nn.Conv2d(1, 8, 3), Along(*shape))
    start = ien.start_equivariant(net, "rot4", 4, torch.rand(2, 1, 10, 10))
    assert start.untied == loose and any(tie.name == "numbers" for tie in start.ties) == (not loose)


class Fused(nn.Module):
    """Two paths with a weight each, which cannot break anything, and what a list of maps is scaled by."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3, padding=1)
        self.weights = nn.Parameter(torch.ones(2))
        self.join = Join()
        self.aside = nn.Parameter(torch.ones(8))  # takes no part

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.join([h * self.weights[0], self.second(h) * self.weights[1]])


class Join(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList([torch.ones(8, 1, 1) for _ in range(2)])

    def forward(self, maps: list[Tensor]) -> Tensor:
        return sum((h * scale for h, scale in zip(maps, self.scales, strict=True)), torch.zeros(()))


def test_parameters_are_loose_if_others_in_their_place_would_break_something() -> None:
    net, x = Fused(), torch.rand(2, 1, 9, 9)
    start = ien.start_equivariant(net, "rot4", 4, x)
    assert start.untied == ("join.scales.0", "join.scales.1") and not start.unused
    torch.testing.assert_close(net.weights, torch.ones(2))
    torch.testing.assert_close(net.join.scales[0], torch.ones(8, 1, 1))
    report = ien.measure(net, x, "rot4", ["second"], 4, action="regular")
    assert report.layers["second"].relative < 1e-10
