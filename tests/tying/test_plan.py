"""Models of all kinds are tied layer by layer, and the first layer that cannot be is named."""

import copy
import warnings
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import ien
from ien import models
from ien.loss.modules import tensors_in
from ien.tying.plan import errors_of, make_plan
from ien.tying.planned import Plan
from tests.helpers.tied import Net, conv, moved, regular_error, residual

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:layer .* has only . independent features"),
]


def planned(
    net: nn.Module, x: Tensor, group="rot4", feature_groups="auto", weights="random", **others
) -> Plan:
    """Tie a model; its own weights are tied then, and it is still an ordinary one."""
    settings = {"smooth": False, "outputs": "scalar", **others}
    return make_plan(net, group, x, feature_groups, weights, **settings)


def refused(message: str, net: nn.Module, x: Tensor, *arguments: Any, group="rot4", **settings: Any) -> None:
    """The model cannot be tied so; it is as it was, to the bit, and has no other hooks."""

    def hooks() -> list[int]:
        return [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in net.modules()]

    before, own, text = copy.deepcopy(net.state_dict()), hooks(), repr(net)
    with pytest.raises(ValueError, match=message):
        ien.make_equivariant(net, group, x, *arguments, **settings)
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)
    assert hooks() == own and repr(net) == text


def output_error(net: nn.Module, x: Tensor, group: str) -> float:
    """The largest relative error of what a model returns, each channel by itself, under all elements."""

    def parts(output: Any) -> list[Tensor]:
        return [part for part in tensors_in(output) if part.ndim in (2, 4)]

    worst = 0.0
    with torch.no_grad():
        upright = parts(net.eval()(x))
        for label in ien.group(group).labels[1:]:
            for expected, found in zip(upright, parts(net(moved(x, label))), strict=True):
                if expected.ndim == 4:
                    expected = moved(expected, label)
                worst = max(worst, float((found - expected).square().mean() / expected.var()))
    return worst


def head(channels: int, classes: int = 4) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]


def excited(kind: type, squeezed: int) -> nn.Module:
    """Squeeze-and-excitation, with linear layers or 1×1 convolutions."""

    def forward(net, x):
        h = F.relu(net.first(x))
        gates = h.mean((2, 3), keepdim=kind is nn.Conv2d)
        gates = net.excite(F.relu(net.squeeze(gates))).sigmoid()
        return net.last(h * gates.view(*h.shape[:2], 1, 1))

    kernel = (1,) if kind is nn.Conv2d else ()
    layers = {"squeeze": kind(16, squeezed, *kernel), "excite": kind(squeezed, 16, *kernel)}
    return Net(forward, first=conv(3, 16), **layers, last=conv(16, 4))


def unet() -> nn.Module:
    def forward(net, x):
        high = F.relu(net.high_norm(net.high(x)))
        low = F.relu(net.low_norm(net.low(F.max_pool2d(high, 2))))
        return net.head(F.relu(net.mix(torch.cat([x, net.up(low), high], 1))))

    return Net(
        forward,
        high=conv(3, 8),
        high_norm=nn.BatchNorm2d(8),
        low=conv(8, 16),
        low_norm=nn.GroupNorm(4, 16),
        up=nn.ConvTranspose2d(16, 8, 2, stride=2),
        mix=conv(3 + 8 + 8, 8),
        head=conv(8, 4, 1),
    )


def densenet() -> nn.Module:
    def forward(net, x):
        h = [net.stem(x)]
        for layer in net.layers:
            h.append(layer(torch.cat(h, 1)))
        return net.head(torch.cat(h, 1).mean((2, 3)))

    layers = nn.ModuleList()
    for channels in (8, 12, 16):
        layers.append(nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(), conv(channels, 4)))
    return Net(forward, stem=conv(3, 8), layers=layers, head=nn.Linear(20, 5))


class ConvNeXtBlock(nn.Module):
    """Linear layers and a norm on each pixel, with channels last, and a scale that starts near 0."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = conv(channels, channels, 7, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.wide = nn.Linear(channels, 4 * channels)
        self.narrow = nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.narrow(F.gelu(self.wide(h)))).permute(0, 3, 1, 2)


def convnext() -> nn.Module:
    return nn.Sequential(conv(3, 8, 4, stride=4, padding=0), ConvNeXtBlock(8), ConvNeXtBlock(8), *head(8))


def pyramid() -> nn.Module:
    """Maps of two sizes are added, and both are returned."""

    def forward(net, x):
        high = F.relu(net.high(x))
        low = net.side_low(F.relu(net.low(F.max_pool2d(high, 2))))
        high = net.side_high(high) + F.interpolate(low, scale_factor=2)
        return {"high": net.head(high), "low": [net.head(low)]}

    sides = {"side_high": conv(8, 16, 1), "side_low": conv(16, 16, 1)}
    return Net(forward, high=conv(3, 8), low=conv(8, 16), **sides, head=conv(16, 4))


class MBConv(nn.Module):
    """EfficientNet's block: wide, depthwise, squeezed to 6 channels, narrow."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        wide = 3 * before
        self.expand = nn.Sequential(conv(before, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU())
        self.depth = nn.Sequential(
            conv(wide, wide, stride=stride, groups=wide), nn.BatchNorm2d(wide), nn.SiLU()
        )
        self.gates = nn.Sequential(nn.AdaptiveAvgPool2d(1), conv(wide, 6, 1), nn.SiLU(), conv(6, wide, 1))
        self.project = nn.Sequential(conv(wide, after, 1, bias=False), nn.BatchNorm2d(after))
        self.adds = before == after and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        h = self.depth(self.expand(x))
        h = self.project(h * self.gates(h).sigmoid())
        return x + h if self.adds else h


class RegNetBlock(nn.Module):
    def __init__(self, before: int, after: int, stride: int, group_width: int) -> None:
        super().__init__()
        self.first = conv(before, after, 1)
        self.grouped = conv(after, after, stride=stride, groups=after // group_width)
        self.last = nn.Sequential(conv(after, after, 1), nn.BatchNorm2d(after))
        self.short = conv(before, after, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.last(F.relu(self.grouped(F.relu(self.first(x))))) + self.short(x))


def inception() -> nn.Module:
    """Branches of several widths, one of which does not divide by 4, and a pool of their input."""
    return Net(
        lambda net, x: net.head(
            torch.cat([net.a(x), net.b(x), F.avg_pool2d(net.a(x), 3, 1, 1)], 1).mean((2, 3))
        ),
        a=conv(3, 16, 1),
        b=conv(3, 10, 5),
        head=nn.Linear(42, 4),
    )


def aspp() -> nn.Module:
    def forward(net, x):
        h = net.stem(x)
        pooled = net.pooled(h.mean((2, 3), keepdim=True)).expand_as(h)
        mixed = net.head(torch.cat([h, net.near(h), net.far(h), pooled], 1))
        return F.interpolate(mixed, size=x.shape[-1], mode="bilinear", align_corners=True)

    dilated = {"near": conv(8, 8, dilation=2, padding=2), "far": conv(8, 8, dilation=3, padding=3)}
    return Net(forward, stem=conv(3, 8, stride=2), **dilated, pooled=conv(8, 8, 1), head=conv(32, 4))


def pixel_shuffle() -> nn.Module:
    return nn.Sequential(
        conv(3, 32), nn.PReLU(), nn.PixelShuffle(2), conv(8, 8), nn.ReLU(), conv(8, 12), nn.PixelShuffle(2)
    )


def group_pool() -> nn.Module:
    hidden = [nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4)]
    return nn.Sequential(
        conv(3, 16), nn.ReLU(), ien.GroupPool(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), *hidden
    )


def film() -> nn.Module:
    """Scales and shifts from one linear layer."""

    def forward(net, x):
        scale, shift = net.film(x.mean((2, 3)))[:, :, None, None].chunk(2, 1)
        return net.head(net.body(x) * scale + shift)

    return Net(forward, film=nn.Linear(3, 16), body=conv(3, 8), head=conv(8, 4))


def norms() -> nn.Module:
    return nn.Sequential(
        *(conv(3, 16), nn.GroupNorm(2, 16), nn.PReLU(16)),
        *(conv(16, 16), nn.InstanceNorm2d(16, affine=True, track_running_stats=True), nn.Dropout()),
        *(weight_norm(conv(16, 16)), nn.GroupNorm(16, 16), nn.ReLU(inplace=True)),
        *(spectral_norm(conv(16, 16)), nn.GroupNorm(8, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        *(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)),
    )


class Same(nn.Conv2d):
    """A padding on two sides only, of which a stride of 2 never reads the last column on odd maps."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (0, 1, 0, 1)))


def static_padding() -> nn.Module:
    pads = [nn.ZeroPad2d((0, 1, 0, 1)) for _ in range(2)]
    return nn.Sequential(
        *(pads[0], nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU6()),
        *(pads[1], nn.Conv2d(8, 8, 3, stride=2, groups=8), nn.BatchNorm2d(8)),
        *(Same(8, 8, 3, stride=2), *head(8)),
    )


ZOO = {  # a model, and the side of its images
    "residual": (residual, 9),
    "linear gates": (lambda: excited(nn.Linear, 8), 9),
    "linear gates, 6": (lambda: excited(nn.Linear, 6), 9),
    "1×1 gates, 6": (lambda: excited(nn.Conv2d, 6), 9),
    "unet": (unet, 8),
    "densenet": (densenet, 7),
    "convnext": (convnext, 32),
    "pyramid": (pyramid, 8),
    "efficientnet": (lambda: nn.Sequential(conv(3, 8), MBConv(8, 8, 1), MBConv(8, 12, 2), *head(12)), 9),
    "regnet": (
        lambda: nn.Sequential(conv(3, 8), RegNetBlock(8, 16, 2, 8), RegNetBlock(16, 16, 1, 8), *head(16)),
        9,
    ),
    "cut groups": (lambda: nn.Sequential(conv(3, 8), RegNetBlock(8, 16, 2, 2), *head(16)), 9),
    "inception": (inception, 7),
    "aspp": (aspp, 17),
    "pixel shuffle": (pixel_shuffle, 6),
    "film": (film, 7),
    "norms": (norms, 7),
    "static padding": (static_padding, 31),
    "transposed": (
        lambda: nn.Sequential(
            conv(3, 16),
            nn.ConvTranspose2d(16, 16, 2, 2, groups=16),
            nn.ConvTranspose2d(16, 16, 4, 2, 1, groups=2),
            *head(16),
        ),
        5,
    ),
}


def in_float64(name: str) -> tuple[nn.Module, Tensor]:
    """A model of the zoo with numbers of its norms that are not all equal, and images."""
    make, side = ZOO[name]
    torch.manual_seed(1)
    net = make().double()
    for module in net.modules():
        for key in ("running_mean", "running_var", "weight", "bias"):
            if "Norm" in type(module).__name__ and getattr(module, key, None) is not None:
                nn.init.uniform_(getattr(module, key), 0.5, 1.5)
    return net, torch.rand(3, 3, side, side, dtype=torch.float64)


@pytest.mark.parametrize("group", ["rot4", "rot4xflip"])
@pytest.mark.parametrize("name", ZOO)
def test_models_of_all_kinds_become_equivariant(name, group) -> None:
    net, x = in_float64(name)
    assert output_error(net, x, group) > 1e-7
    plan = planned(net, x, group)
    assert output_error(net, torch.rand_like(x), group) < 1e-20
    assert all(layer.exact < 1e-20 for layer in plan.layers.values() if layer.exact == layer.exact)
    assert list(plan.errors) == list(ien.group(group).labels[1:]) and max(plan.errors.values()) < 1e-20
    errors, problem = errors_of(net, plan, torch.rand_like(x), (), None)
    assert max(errors.values()) < 1e-20 and list(errors) == list(plan.errors) and not problem
    assert not plan.unused and not plan.untied


def test_a_group_pool_ends_feature_groups_and_what_follows_stays() -> None:
    net, x = group_pool().double(), torch.rand(2, 3, 7, 7, dtype=torch.float64)
    before = copy.deepcopy(net[5:].state_dict())
    plan = planned(net, x)
    sizes = {name: (layer.before, layer.after) for name, layer in plan.layers.items()}
    assert sizes == {"0": ("1", "4"), "5": ("1", "1"), "7": ("1", "1")}
    assert plan.layers["5"].distance == 0.0 and output_error(net, x, "rot4") < 1e-20
    torch.testing.assert_close(net[5:].state_dict(), before, rtol=0, atol=0)
    refused("the input of layer '5' .* does not rotate under rot4xflip", net, x, group="rot4xflip")


def test_independent_features_keep_their_number_where_channels_divide() -> None:
    """What was chosen, layer by layer; the rank of a tied weight tells that no more was tied."""
    net, x = in_float64("residual")
    plan = planned(net, x)
    sizes = {name: (layer.before, layer.after) for name, layer in plan.layers.items()}
    between = dict.fromkeys(["a", "b", "short", "norm"], ("4", "4"))
    assert sizes == {"stem": ("1", "4"), **between, "head": ("4", "1")}
    kernels = net.a.weight.detach()  # (8, 8, 3, 3): two of eight outputs are independent
    rotated = kernels.rot90(1, (2, 3)).unflatten(1, (2, 4)).roll(1, 2).flatten(1, 2)
    torch.testing.assert_close(kernels.unflatten(0, (2, 4))[:, 1], rotated.unflatten(0, (2, 4))[:, 0])


@pytest.mark.parametrize("size", [7, 10])  # 10 pixels give maps as high as they have channels
def test_linear_layers_on_pixels(size) -> None:
    def forward(net, x):
        h = net.stem(x)
        return h + net.narrow(F.gelu(net.wide(net.norm(h.permute(0, 2, 3, 1))))).permute(0, 3, 1, 2)

    layers = {"norm": nn.LayerNorm(8), "wide": nn.Linear(8, 16), "narrow": nn.Linear(16, 8)}
    net, x = Net(forward, stem=nn.Conv2d(3, 8, 3), **layers), torch.rand(2, 3, size, size)
    nn.init.uniform_(net.norm.weight)
    plan = planned(net, x, feature_groups={"": "auto", "stem": 4, "narrow": 4})
    assert list(plan.layers) == ["stem", *layers]
    assert {layer.after for layer in plan.layers.values()} == {"4"}
    assert regular_error(net, x, 4) < 1e-10


def test_mixes_of_sizes_are_concatenated() -> None:
    net = Net(
        lambda net, x: net.head(net.mix(torch.cat([x, net.up(net.down(x)), net.side(x)], 1))),
        down=nn.Sequential(nn.Conv2d(2, 22, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        up=nn.ConvTranspose2d(22, 11, 2, stride=2),
        side=nn.Conv2d(2, 11, 1),
        mix=nn.Conv2d(2 + 11 + 11, 11, 3, padding=1),
        head=nn.Conv2d(11, 3, 1),
    )
    x = torch.rand(2, 2, 8, 8)
    plan = planned(net, x, feature_groups="4-2-1")
    assert plan.layers["mix"].before == "1-4-2-1-4-2-1" and plan.layers["head"].after == "1"
    assert regular_error(net, x, 1) < 1e-10
    refused(r"'head' has 3 for 4-2-1 \(nearest: 11\).*'head': 1", net, x, {"": "4-2-1", "head": "4-2-1"})


class Frozen(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return super().forward(x)


HALVES = {  # what is read is not what the layers before it return, or they run without gradients
    "halves": (lambda net, x: torch.cat([net.a(x).chunk(2, 1)[0], net.d(x).chunk(2, 1)[1]], 1), "4"),
    "maximum over channels": (lambda net, x: net.a(x).amax(1, keepdim=True).expand(-1, 5, -1, -1), "1"),
    "without gradients": (lambda net, x: torch.cat([x, net.c(x)], 1), "1-4"),
    "detached": (lambda net, x: torch.cat([net.a(x).detach(), net.b(x)], 1), "4-1"),
    "gated": (lambda net, x: F.glu(net.a(x), 1), "4"),
}


@pytest.mark.parametrize("name", HALVES)
def test_feature_groups_are_detected_where_layers_do_not_tell(name) -> None:
    forward, before = HALVES[name]
    layers = {"a": conv(3, 16), "b": conv(3, 8), "c": Frozen(3, 8, 3, padding=1), "d": conv(3, 8)}
    x = torch.rand(2, 3, 9, 9)
    net = Net(lambda net, x: net.last(forward(net, x)), **layers, last=nn.LazyConv2d(3, 3))
    plan = planned(net, x, feature_groups={"": "auto", "b": 1})
    assert plan.layers["last"].before == before and output_error(net, x, "rot4") < 1e-10


def scaled(before: int, after: int) -> nn.Module:
    """A convolution with a number per channel beside it."""
    gamma = nn.Parameter(torch.rand(after, 1, 1))
    return Net(lambda net, x: net.gamma * net.conv(x), conv=nn.Conv2d(before, after, 3), gamma=gamma)


def test_numbers_per_channel_beside_layers_are_tied_or_named() -> None:
    x, net = torch.rand(2, 1, 9, 9), nn.Sequential(nn.Conv2d(1, 8, 3), scaled(8, 8), nn.Conv2d(8, 3, 1))
    means = net[1].gamma.detach().view(2, 4).mean(1)
    plan = planned(net, x)
    torch.testing.assert_close(net[1].gamma.detach().flatten(), means.repeat_interleave(4))
    assert plan.layers["1"].after == "4" and plan.layers["2"].exact < 1e-10
    assert [tensor.key for tensor in plan.ties if tensor.module is net[1]] == ["gamma"]
    assert regular_error(net, x, 1) < 1e-10
    net = nn.Sequential(nn.Conv2d(1, 8, 3), scaled(8, 16), nn.Conv2d(16, 3, 1))
    refused(r"layer '2' \(Conv2d\) breaks rot4; parameter '1.gamma' is not .*numbers per channel", net, x)


def test_numbers_of_a_convolution_itself_are_tied() -> None:
    class Scaled(nn.Conv2d):
        """As in networks without norms: a gain for each channel."""

        def __init__(self, before: int, after: int) -> None:
            super().__init__(before, after, 3)
            self.gain = nn.Parameter(torch.rand(after, 1, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            deviation, mean = torch.std_mean(self.weight, (1, 2, 3), keepdim=True)
            return F.conv2d(x, self.gain * (self.weight - mean) / deviation, self.bias)

    net, x = nn.Sequential(Scaled(3, 16), nn.ReLU(), Scaled(16, 8), *head(8)), torch.rand(2, 3, 9, 9)
    plan = planned(net, x)
    assert {tensor.key for tensor in plan.ties if tensor.module is net[2]} == {"weight", "bias", "gain"}
    assert output_error(net, x, "rot4") < 1e-10


def test_shared_weights_are_tied_alike_or_refused() -> None:
    net = nn.Sequential(*(nn.Conv2d(c, 8, 3) for c in (1, 8, 8)), nn.Conv2d(8, 3, 1))
    x = torch.rand(2, 1, 9, 9)
    net[2].weight = net[1].weight
    biases = [layer.bias.detach().view(2, 4).mean(1).repeat_interleave(4) for layer in net[1:3]]
    plan = planned(net, x, weights="project")
    for layer, bias in zip(net[1:3], biases, strict=True):
        torch.testing.assert_close(layer.bias.detach(), bias)
    sharing = [
        tensor.module for tensor in plan.ties if tensor.module in (net[1], net[2]) and tensor.key == "weight"
    ]
    assert sharing == [net[1], net[2]] and 0 < plan.layers["2"].distance < plan.layers["1"].distance
    assert regular_error(net, x, 1) < 1e-10
    refused("layer '2' .*shares its weight with a place that has other feature", net, x, {"": 4, "2": 2})


def test_a_layer_that_runs_twice_and_ones_that_do_not() -> None:
    layers = {name: nn.Conv2d(8, 8, 3) for name in ("again", "aside")}
    forward = lambda net, x: net.last(net.again(net.again(net.first(x)).relu()))  # noqa: E731
    net = Net(forward, first=nn.Conv2d(1, 8, 3), **layers, last=nn.Conv2d(8, 3, 1), slope=nn.PReLU(8))
    x = torch.rand(2, 1, 11, 11)
    with torch.inference_mode():
        plan = planned(net, x)
    net(x).sum().backward()  # its weights can still be trained
    assert list(plan.layers) == ["first", "again", "last"] and plan.unused == ("aside", "slope")
    assert len(plan.ties) == 2 + 2 + 1  # the bias of three classes is free


def test_the_model_keeps_its_mode_its_input_and_the_random_state() -> None:
    net, x = in_float64("static padding")
    net.train()
    net[3].eval()
    before, random = x.clone(), torch.get_rng_state()
    parameters = dict(net.named_parameters())
    planned(net, x)
    assert net.training and not net[3].training and torch.equal(x, before)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(after is parameters[name] for name, after in net.named_parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_explicit_sizes_that_are_cut_are_named() -> None:
    x = torch.rand(2, 3, 9, 9)
    net = nn.Sequential(conv(3, 8), conv(8, 8, groups=2), conv(8, 16, groups=8), conv(16, 3, 1))
    refused(r"layer '2' \(Conv2d\) cannot be tied: its groups cut .* use groups=1", net, x, 4)
    refused(
        r"layer '1' \(Conv2d\) cannot be tied: its groups cut", net, x, {"": 8, "2": 1}, group="rot4xflip"
    )
    planned(net, x, feature_groups="auto")
    normed = nn.Sequential(conv(3, 8), nn.GroupNorm(4, 8), conv(8, 3))
    refused(r"layer '1' \(GroupNorm\) cannot be tied: its groups cut .*auto", normed, x, 4)
    with pytest.warns(UserWarning, match="no layer can be split into them: all kernels look the same"):
        planned(normed, x)


@pytest.mark.parametrize(("mean", "bias"), [(0.0, 0.1), (1000.0, 0.0), (0.0, 100.0)])
def test_inexact_grids_are_named_with_exact_sizes_also_at_large_means(mean, bias) -> None:
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.Conv2d(8, 2, 1))
    nn.init.normal_(net[2].bias, 0, bias)
    message = r"layer '2' \(Conv2d\) breaks rot4.* exact input sizes: .*17, 19, 21"
    refused(message, net, mean + 3 * torch.rand(4, 1, 18, 18))
    planned(net, mean + 3 * torch.rand(4, 1, 19, 19))


@pytest.mark.parametrize("size", [31, 32, 33, 63])
def test_static_padding_is_accepted_where_the_doctor_says_so(size) -> None:
    net, x = static_padding(), torch.rand(2, 3, size, size)
    if ien.doctor(net, x).exact:
        plan = planned(net, x)
        assert max(plan.errors.values()) < 1e-10 and output_error(net, x, "rot4") < 1e-10
    else:
        refused("breaks rot4; doctor: .*exact input sizes: .*31", net, x)
    assert ien.doctor(net, x).exact == (size in (31, 63))


def test_a_strided_unet_without_an_exact_size_is_named_with_the_remedy() -> None:
    net = Net(
        lambda net, x: net.head(x + net.up(F.relu(net.down(x)))),
        down=nn.Conv2d(3, 8, 3, stride=2, padding=1),
        up=nn.ConvTranspose2d(8, 3, 3, stride=2, padding=1, output_padding=1),
        head=conv(3, 2),
    )
    refused(
        r"layer 'down' \(Conv2d\) breaks rot4.*; doctor: down, conv 3×3, stride 2.* no other input size is "
        r"exact; remedy: 2×2 convolutions of stride 2, or a pool",
        net,
        torch.rand(2, 3, 16, 16),
    )


def test_short_floats_and_one_image_will_do() -> None:
    net = models.resnet18(4, 1 / 16).bfloat16()
    plan = planned(net, torch.rand(1, 3, 17, 17).bfloat16(), feature_groups=4)
    moved = [layer.distance for name, layer in plan.layers.items() if name != "classifier"]
    assert min(moved) > 0.3 and plan.layers["classifier"].distance == 0.0  # it reads a group pool


@pytest.mark.parametrize("weights", ["random", "project"])
def test_a_layer_of_which_nothing_would_be_left_is_named(weights) -> None:
    net = nn.Sequential(nn.Conv2d(1, 1, 3, bias=False), nn.Conv2d(1, 8, 3), conv(8, 2, 1)).requires_grad_(
        False
    )
    net[0].weight.copy_(torch.tensor([[-0.1, 0, 0.1], [-0.2, 0, 0.2], [-0.1, 0, 0.1]]))
    message = (
        r"layer '0' .* cannot be tied: no part of its weight commutes .* from feature groups 1 to 1.* larger"
    )
    refused(message, net, torch.rand(2, 1, 11, 11), weights=weights)


SHUFFLED = Net(
    lambda net, x: net.last(net.second(net.first(x)[:, [0, 4, 1, 5, 2, 6, 3, 7]])),
    first=nn.Conv2d(1, 8, 3),
    second=nn.Conv2d(8, 8, 3),
    last=nn.Conv2d(8, 3, 1),
)
OWN = Net(lambda net, x: F.conv2d(x, net.kernels), kernels=nn.Parameter(torch.randn(8, 1, 3, 3)))
TOKENS = Net(lambda net, x: net.mix(net.conv(x).flatten(2).mT), conv=nn.Conv2d(1, 8, 3), mix=nn.Linear(8, 8))
CANNOT = {
    "kernels": (
        nn.Sequential(nn.Conv2d(1, 4, (1, 3))),
        r"layer '0' .* kernels of 1×3 cannot rotate by 90°: make them square",
    ),
    "flatten": (
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 49, 2)),
        r"the input of layer '2' \(Linear\), .*\(8, 196\), does not rotate under rot4; doctor: 2, .*: pool",
    ),
    "old spectral norm": (
        nn.Sequential(nn.utils.spectral_norm(nn.Conv2d(1, 4, 3))),
        r"layer '0' .*computes its weight in a hook: use torch.nn.utils.parametrizations",
    ),
    "shuffled": (
        SHUFFLED,
        r"layer 'second' \(Conv2d\) breaks rot4; remedy: ",
    ),
    "own kernels": (
        nn.Sequential(OWN, conv(8, 2)),
        r"the input of layer '1' .*does not rotate.* '0.kernels' is not tied; remedy: write it with Conv2d",
    ),
    "tokens": (TOKENS, r"the input of layer 'mix' .*\(8, 49, 8\), .*: keep height and width"),
    "batch norm": (
        nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8, affine=False, track_running_stats=False)),
        r"layer '1' \(BatchNorm2d\) normalises with the statistics.* track_running_stats=True",
    ),
    "no layer": (nn.ReLU(), "there is nothing to tie"),
    "norm before shuffle": (
        nn.Sequential(conv(1, 16), nn.BatchNorm2d(16), nn.PixelShuffle(2), conv(4, 2)),
        r"the input of layer '1' \(BatchNorm2d\) does not rotate.* a norm after it",
    ),
    "transposed shuffle": (
        nn.Sequential(nn.ConvTranspose2d(1, 16, 3), nn.PixelShuffle(2), conv(4, 2)),
        r"layer '0' \(ConvTranspose2d\) cannot be tied: only a Conv2d with groups=1",
    ),
    "slices": (
        Net(lambda net, x: net.conv(x)[:, :4], conv=nn.Conv2d(1, 8, 3)),
        r"the model's output \(8, 4, 7, 7\) holds feature groups that rot4 permutes: .*'conv'\] with size 1",
    ),
}


@pytest.mark.parametrize("name", CANNOT)
def test_what_cannot_be_equivariant_is_named(name) -> None:
    net, message = CANNOT[name]
    refused(message, net, torch.rand(2, 1, 9, 9))


def test_pixel_shuffles_need_exact_elements() -> None:
    refused(
        "layer '0' .* cannot be tied: .* pixel shuffle, under quarter turns",
        pixel_shuffle(),
        torch.rand(2, 3, 8, 8),
        group="rot8",
    )


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

    message = "the model itself breaks rot4: its output does not rotate"
    refused(message, Net(parts, conv=nn.Conv2d(1, 8, 3)), torch.rand(2, 1, 9, 9))


def test_named_features_may_be_returned_beside_classes_and_what_is_no_batch() -> None:
    def both(net, x):
        features = net.conv(x).mean((2, 3))
        return {"classes": net.classify(features), "of": [features, torch.rand(7, 4), torch.tensor(1.0)]}

    net, x = Net(both, conv=nn.Conv2d(1, 8, 3), classify=nn.Linear(8, 4)), torch.rand(2, 1, 9, 9)
    own = Net(
        lambda net, x: SimpleNamespace(classes=net.both(x)["classes"], noise=torch.rand(len(x), 4)), both=net
    )
    planned(own, x)  # an object of the user's is not looked into
    plan = planned(net, x, feature_groups={"": "auto", "conv": 4})
    assert plan.outputs == [((1, 4),), ((4, 8),)]
    rotated, upright = net(x.rot90(1, (-2, -1))), net(x)
    torch.testing.assert_close(rotated["classes"], upright["classes"])
    expected = upright["of"][0].unflatten(1, (2, 4)).roll(1, 2).flatten(1)
    torch.testing.assert_close(rotated["of"][0], expected)


@pytest.mark.parametrize("feature_groups", ["auto", 4])
def test_hidden_layers_of_a_head_keep_all_their_numbers(feature_groups) -> None:
    hidden = [nn.Linear(32, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5)]
    net = nn.Sequential(conv(1, 32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), *hidden)
    plan = planned(net, torch.rand(4, 1, 9, 9), feature_groups=feature_groups)
    assert (plan.layers["4"].before, plan.layers["4"].after) == ("4", "1")
    assert net[4].weight.unflatten(1, (8, 4)).std(2).max() == 0  # the mean of each feature group
    assert torch.linalg.matrix_rank(net[4].weight) == 8
    assert (plan.layers["7"].before, plan.layers["7"].distance) == ("1", 0.0)


def test_class_scores_are_permuted_only_if_asked() -> None:
    def net() -> nn.Module:
        return nn.Sequential(conv(1, 8), nn.ReLU(), conv(8, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    x = torch.rand(4, 1, 9, 9)
    for feature_groups in ("auto", 4, {"": 4, "2": 1}):
        scores = net()
        planned(scores, x, feature_groups=feature_groups)
        torch.testing.assert_close(scores(x.rot90(1, (2, 3))), scores(x))
        assert scores(x).std(1).min() > 1e-4
    features = net()
    planned(features, x, feature_groups={"": "auto", "2": 4})
    torch.testing.assert_close(features(x.rot90(1, (2, 3))), features(x).roll(1, 1))


@pytest.mark.parametrize("group", ["rot4", "rot4xflip", "rot8"])
@pytest.mark.parametrize("end", ["maps", "numbers", "hidden"])
def test_vectors_rotate_with_the_image(end, group) -> None:
    last = {
        "maps": [conv(16, 4)],
        "numbers": head(16),
        "hidden": [*head(16, 32), nn.Tanh(), nn.Linear(32, 4)],
    }[end]
    net = nn.Sequential(conv(3, 16, 5), nn.ReLU(), conv(16, 16, 5), *last).double()
    x = torch.rand(2, 3, 13, 13, dtype=torch.float64)
    plan = planned(net, x, group, outputs="vector", smooth=True)
    name, layer = list(plan.layers.items())[-1]
    assert (
        layer.after == "vector"
        and layer.exact < 1e-20
        and plan.outputs == [plan.mixing[net.get_submodule(name)]]
    )

    dx, dy = net(x)[:, ::2], net(x)[:, 1::2]
    turned, flipped = (dy, -dx), (-dx, dy)  # (1, 0) becomes (0, -1): up, as y points down
    if end == "maps":
        turned, flipped = [h.rot90(1, (2, 3)) for h in turned], [h.flip(3) for h in flipped]
    found = net(x.rot90(1, (2, 3)))
    torch.testing.assert_close([found[:, ::2], found[:, 1::2]], list(turned))
    assert found.std() > 1e-3
    if group == "rot4xflip":
        found = net(x.flip(3))
        torch.testing.assert_close([found[:, ::2], found[:, 1::2]], list(flipped))


def test_vectors_come_from_feature_groups() -> None:
    pooled = nn.Sequential(conv(3, 16), ien.GroupPool(4), *head(4, 2))
    x = torch.rand(2, 3, 7, 7)
    refused(
        "layer '4' .*no part of its weight commutes .* from feature groups 1 to vector",
        pooled,
        x,
        outputs="vector",
    )
    transposed = nn.Sequential(conv(3, 16), nn.ConvTranspose2d(16, 2, 2, 2))
    message = r"cannot be tied: vectors must leave the model"
    refused(rf"layer '1' \(ConvTranspose2d\) {message}", transposed, x, outputs="vector")
    refined = Net(
        lambda net, x: (net.rough(net.body(x)), net.fine(net.rough(net.body(x)))),
        body=conv(3, 16),
        rough=conv(16, 2),
        fine=conv(2, 2),
    )
    refused(rf"layer 'fine' \(Conv2d\) {message}", refined, x, outputs="vector")
    refused(
        "'2' returns 3, which are not pairs",
        nn.Sequential(conv(3, 16), nn.ReLU(), conv(16, 3)),
        x,
        outputs="vector",
    )


def test_further_arguments_are_passed_on_and_repeated_for_views() -> None:
    class Conditioned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.mix, self.head = conv(3, 8), nn.Linear(5, 8), conv(8, 4)

        def forward(self, x: Tensor, condition: Tensor, scale: float = 0.0, shift: Any = None) -> Tensor:
            gates = self.mix(condition)[:, :, None, None]
            return self.head(self.body(x) * gates * scale) + shift["each"][:, :, None, None]

    net, x = Conditioned(), torch.rand(12, 3, 9, 9)  # more images than feature groups are detected with
    args, kwargs = (torch.rand(12, 5),), {"scale": 2.0, "shift": {"each": torch.rand(12, 4)}}
    plan = planned(net, x, args=args, kwargs=kwargs)
    assert plan.layers["mix"].after == "4"
    expected = net(x, *args, **kwargs).rot90(1, (2, 3))
    torch.testing.assert_close(net(x.rot90(1, (2, 3)), *args, **kwargs), expected)
    assert max(errors_of(net, plan, x, args, kwargs)[0].values()) < 1e-10
    refused(r"the model fails on images 3×9×9 .* as args=", net, x)


class Gated(nn.Module):
    """A condition sets the gain of each channel."""

    def __init__(self, *gates: nn.Module) -> None:
        super().__init__()
        self.body, self.gates, self.head = conv(3, 16), nn.Sequential(*gates), conv(16, 4)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        return self.head(self.body(x) * self.gates(condition)[:, :, None, None])


CONDITIONS = {
    "numbers": (Gated(nn.Linear(2, 16)), torch.rand(1, 2)),
    "hidden": (Gated(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 16)), torch.rand(1, 2)),
    "label": (Gated(nn.Embedding(10, 8), nn.Linear(8, 16)), torch.tensor([3])),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_an_argument_that_is_the_same_for_all_images_is_invariant(name) -> None:
    net, condition = CONDITIONS[name]
    x = torch.rand(4, 3, 9, 9)
    plan = planned(net, x, args=(condition,))
    sizes = [(layer.before, layer.after) for key, layer in plan.layers.items() if "gates" in key]
    assert sizes[-1] == ("1", "4") and set(sizes[:-1]) <= {("1", "1")}
    torch.testing.assert_close(net(x.rot90(1, (2, 3)), condition), net(x, condition).rot90(1, (2, 3)))


def test_patches_without_gradients_are_not_taken_for_constants() -> None:
    """Windows of the images are a larger batch, and nothing tells where they come from."""

    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = conv(3, 8), conv(8, 8), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                patches = x.unfold(2, 5, 4).unfold(3, 5, 4)  # (B, C, 2, 2, 5, 5)
                h = self.first(patches.permute(0, 2, 3, 1, 4, 5).flatten(0, 2)).relu()  # (B * 4, C, 5, 5)
                h = self.second(h).mean((2, 3)).unflatten(0, (-1, 4)).mean(1)  # (B, C)
            return self.head(h)

    net, x = Patches(), torch.rand(2, 3, 9, 9)
    refused("layer 'first' .*breaks rot4|input of layer 'first' .*does not rotate", net, x)


def test_an_embedding_that_is_multiplied_with_maps_is_named() -> None:
    message = "'gates.0.weight' is not tied; remedy: .*Linear .*after an Embedding"
    refused(message, Gated(nn.Embedding(10, 16)), torch.rand(2, 3, 9, 9), args=(torch.tensor([1, 2]),))


def test_autocast_and_a_default_device_do_not_reach_the_plan() -> None:
    net, x = residual(), torch.rand(2, 3, 9, 9)
    again = copy.deepcopy(net)
    expected = planned(net, x)
    with torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
        found = planned(again, x)
        errors, problem = errors_of(again, found, x, (), None)
    torch.testing.assert_close(again.state_dict(), net.state_dict(), rtol=0, atol=0)
    assert found.layers == expected.layers and errors == expected.errors and not problem


@pytest.mark.parametrize("width", [8, 20, 24])
def test_narrow_networks_are_warned_about_with_the_width_that_would_do(width) -> None:
    net = nn.Sequential(conv(1, 8), nn.ReLU(), conv(8, width), nn.ReLU(), conv(width, 3, 1))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        ien.make_equivariant(net, "rot4", torch.rand(2, 1, 9, 9))
    if width >= 24:
        assert not found
        return
    assert f"layer '4' has only {width // 4} independent features" in str(found[0].message)
    assert f"{width} channels" in str(found[0].message) and "6 × 4 = 24 or more" in str(found[0].message)
    assert len(found) == 1 and found[0].filename == __file__


def test_narrow_networks_are_warned_about_before_hidden_layers_of_a_head() -> None:
    hidden = [nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)]
    net = nn.Sequential(conv(1, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), *hidden)
    with pytest.warns(UserWarning, match="layer '4' has only 2 independent features .* 24 or more"):
        ien.make_equivariant(net, "rot4", torch.rand(2, 1, 9, 9))


def test_weights_behind_almost_dead_maps_grow_no_more_than_fourfold() -> None:
    growth = []
    for seed in range(6):
        torch.manual_seed(seed)
        layers = [nn.Conv2d(channels, 4, 3, padding=1) for channels in (1, 4, 4, 4)]
        net = nn.Sequential(*(layer for each in layers for layer in (each, nn.ReLU())))
        before = [float(each.weight.detach().norm()) for each in layers]
        planned(net, torch.rand(8, 1, 15, 15), feature_groups={"": 4, "6": 4})
        growth += [
            float(each.weight.detach().norm()) / norm for each, norm in zip(layers, before, strict=True)
        ]
    assert all(0.249 < factor < 4.001 for factor in growth), growth


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("kind", [lambda layer: layer, weight_norm], ids=["plain", "weight norm"])
def test_the_variance_of_every_layer_is_kept_on_other_images(kind, smooth) -> None:
    torch.manual_seed(3)
    layers = [kind(conv(3, 32, 5)), nn.ReLU(), kind(conv(32, 64)), nn.ReLU(), kind(conv(64, 64, groups=4))]
    net, variances = nn.Sequential(*layers, nn.ReLU(), *head(64, 40)), {}

    def note(layer, args, output) -> None:
        variance = (output.movedim(1, -1) - layer.bias).detach().var()
        variances.setdefault(layer, []).append(float(variance))

    for index in (0, 2, 4, 8):
        net[index].register_forward_hook(note)
    with torch.no_grad():
        net(torch.rand(32, 3, 15, 15))
        planned(net, torch.rand(8, 3, 15, 15), smooth=smooth)
        net(torch.rand(32, 3, 15, 15))
    assert all(0.8 < last / first < 1.25 for first, *_, last in variances.values()), variances


def test_statistics_of_norms_stay_unless_their_input_changed() -> None:
    x = torch.rand(4, 1, 9, 9)
    net = nn.Sequential(
        nn.BatchNorm2d(1), nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), conv(8, 2, 1)
    ).eval()
    planned(net, x)
    assert net[2].running_var.tolist() == [1.0] * 8
    net[0].running_var.fill_(3.0)
    planned(net, x, weights="project")  # its weights are equivariant already
    assert net[2].running_var.tolist() == [1.0] * 8 and net[0].running_var.item() == 3.0
    nn.init.normal_(net[1].weight)
    planned(net, x, weights="project")
    assert net[2].running_var.tolist() != [1.0] * 8 and net[0].running_var.item() == 3.0


def test_projected_statistics_are_those_of_all_images_under_all_elements() -> None:
    torch.manual_seed(2)
    first = [conv(3, 8), nn.BatchNorm2d(8), nn.ReLU()]
    net = nn.Sequential(*first, conv(8, 16), nn.BatchNorm2d(16), nn.ReLU(), *head(16)).double()
    x = torch.rand(24, 3, 9, 9, dtype=torch.float64)  # more than feature groups are detected with
    plan = planned(net, x, weights="project")
    assert [(module, tuple(blocks)) for module, blocks in plan.norms] == [
        (net[1], ((4, 8),)),
        (net[4], ((4, 16),)),
    ]
    views = torch.cat([x.rot90(k, (2, 3)) for k in range(4)])
    for norm in (1, 4):
        pixels = net[:norm](views).detach().movedim(1, -1).flatten(0, -2)  # (pixels, C)
        torch.testing.assert_close(net[norm].running_mean, pixels.mean(0), rtol=1e-3, atol=0)
        torch.testing.assert_close(net[norm].running_var, pixels.var(0, unbiased=False), rtol=1e-3, atol=0)


def test_distance_is_that_of_weights_and_0_for_those_that_are_tied() -> None:
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), conv(8, 2, 1)).eval()
    net[1].bias.data.copy_(torch.arange(8.0))
    old = torch.cat([p.detach().flatten() for p in net[0].parameters()])
    plan = planned(net, torch.rand(2, 1, 5, 5), weights="project")
    assert net[1].bias.tolist() == [1.5] * 4 + [5.5] * 4
    new = torch.cat([p.detach().flatten() for p in net[0].parameters()])
    assert plan.layers["0"].distance == pytest.approx(float((new - old).norm() / old.norm()))
    again = planned(net, torch.rand(2, 1, 5, 5), weights="project")
    assert list(again.layers) == ["0", "2"] and all(layer.distance < 1e-6 for layer in again.layers.values())


def test_channels_of_images_are_no_members_even_if_they_are_equal() -> None:
    net = nn.Sequential(nn.Conv2d(4, 8, 3), conv(8, 2, 1))
    plan = planned(net, torch.rand(2, 1, 9, 9).expand(2, 4, 9, 9))
    assert plan.layers["0"].before == "1" and regular_error(net, torch.rand(2, 4, 9, 9), 1) < 1e-10


@pytest.mark.parametrize(("feature_groups", "sizes"), [({"": 4, "2": 2}, "42"), ({"": 2, "2": 4}, "24")])
@pytest.mark.parametrize("dead", ["weights", "activations"])
def test_dead_layers_keep_the_feature_groups_they_were_given(feature_groups, sizes, dead) -> None:
    convs = [nn.Conv2d(before, 8, 3) for before in (1, 8, 8)]
    net = nn.Sequential(convs[0], nn.ReLU(), convs[1], nn.ReLU(), nn.MaxPool2d(1), convs[2], conv(8, 2, 1))
    if dead == "weights":
        nn.init.zeros_(convs[1].weight)
        nn.init.zeros_(convs[1].bias)
    else:
        nn.init.constant_(convs[1].bias, -100.0)
    plan = planned(net, torch.rand(2, 1, 11, 11), feature_groups=feature_groups)
    found = [(plan.layers[name].before, plan.layers[name].after) for name in ("0", "2", "5")]
    assert found == [("1", sizes[0]), (sizes[0], sizes[1]), (sizes[1], sizes[0])]


def test_a_new_head_and_a_broken_layer_are_noticed() -> None:
    net, x = residual(), torch.rand(2, 3, 9, 9)
    plan = planned(net, x)
    old = net.head
    net.head = conv(16, 5, 1)
    assert errors_of(net, plan, x, (), None)[1].startswith("layer 'head' (Conv2d) is not tied")
    net.head = old
    with torch.no_grad():
        net.b.weight[0].normal_()
    errors, problem = errors_of(net, plan, x, (), None)
    assert problem == "layer 'b' (Conv2d) breaks rot4" and errors["90°"] > 1e-4


# parameters that could break a model as they train, and zeros that hide it


def with_positions(first: float, **others: Any) -> nn.Module:
    """A block that adds nothing at first, because its last norm is small; it may add positions as well."""

    def forward(net, x):
        h = net.stem(x)
        inner = net.block[0](h)
        if "position" in others:
            inner = inner + net.position
        return net.head(F.relu(h + net.block[1](inner)))

    block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8))
    nn.init.constant_(block[1].weight, first)
    return Net(forward, stem=nn.Conv2d(1, 8, 3), block=block, head=conv(8, 2, 1), **others)


@pytest.mark.parametrize("first", [0.0, 1e-6])
def test_a_block_that_adds_nothing_yet_must_fit_what_it_is_added_to(first) -> None:
    net, x = with_positions(first), torch.rand(4, 1, 9, 9)
    refused("breaks rot4, once these have other values: 'block.1.weight'", net, x, {"": 4, "block": 2})
    assert planned(net, x).untied == () and torch.equal(net.block[1].weight, torch.full((8,), first))


@pytest.mark.parametrize("first", [0.0, 1.0])
def test_an_untied_parameter_is_found_behind_zeros(first) -> None:
    net = with_positions(first, position=nn.Parameter(torch.zeros(8, 7, 7)))
    x = torch.rand(4, 1, 9, 9)
    refused(r"parameter 'position' \(8, 7, 7\) cannot be tied .* freeze it", net, x)
    net.position.requires_grad_(False)
    assert planned(net, x).untied == ("position",)


def test_gates_that_are_all_equal_yet_are_tied_as_what_they_multiply() -> None:
    net, x = excited(nn.Linear, 6), torch.rand(4, 3, 9, 9)
    nn.init.zeros_(net.excite.weight)
    nn.init.zeros_(net.excite.bias)
    plan = planned(net, x)
    assert plan.layers["excite"].after == "4"
    nn.init.normal_(net.excite.weight)
    tie = next(tensor.tie for tensor in plan.ties if tensor.module is net.excite)
    net.excite.weight.data = tie.project(net.excite.weight.data)
    assert output_error(net, x, "rot4") < 1e-10
    nn.init.zeros_(net.excite.weight)
    refused("once these have other values: 'excite.weight'", net, x, {"": "auto", "excite": 1})


def test_many_blocks_that_start_at_zero_are_no_reason_to_refuse() -> None:
    blocks = []
    for _ in range(48):
        first, last = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
        nn.init.zeros_(last.weight)
        blocks.append(Net(lambda net, h: h + net.last(F.relu(net.first(h))), first=first, last=last))
    net = nn.Sequential(nn.Conv2d(1, 8, 3), *blocks, conv(8, 2, 1))
    assert planned(net, torch.rand(2, 1, 7, 7)).untied == () and not net[1].last.weight.any()


def test_parameters_are_untied_if_other_numbers_would_break_something() -> None:
    def joined(net, x):
        h = net.first(x)
        return net.head(net.join([h * net.weights[0], net.second(h) * net.weights[1]]))

    def summed(net, maps):
        return sum((h * scale for h, scale in zip(maps, net.scales, strict=True)), torch.zeros(()))

    scales = nn.ParameterList([torch.ones(8, 1, 1) for _ in range(2)]).requires_grad_(False)
    net = Net(
        joined,
        first=nn.Conv2d(1, 8, 3),
        second=nn.Conv2d(8, 8, 3, padding=1),
        weights=nn.Parameter(torch.ones(2)),  # one for each path: cannot break anything
        join=Net(summed, scales=scales),  # per channel, in a module that gets no maps
        aside=nn.Parameter(torch.ones(8)),  # takes no part
        head=conv(8, 2, 1),
    )
    plan = planned(net, torch.rand(2, 1, 9, 9))
    assert plan.untied == ("join.scales.0", "join.scales.1") and not plan.unused
    torch.testing.assert_close([net.weights, scales[0]], [torch.ones(2), torch.ones(8, 1, 1)])
    assert regular_error(net, torch.rand(2, 1, 9, 9), 1) < 1e-10


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_numbers_along_the_sides_of_a_map_are_told_from_those_per_channel(value) -> None:
    def net(*shape: int) -> nn.Module:
        along = Net(lambda net, h: h + net.numbers, numbers=nn.Parameter(torch.full(shape, value)))
        return nn.Sequential(nn.Conv2d(1, 8, 3), along, conv(8, 2, 1))

    x = torch.rand(2, 1, 10, 10)  # maps with as many columns as channels
    plan = planned(net(8, 1, 1), x)
    assert plan.untied == () and "numbers" in [tensor.key for tensor in plan.ties]
    refused("once these have other values: '1.numbers'", net(1, 1, 1, 8), x)
    refused(r"parameter '1.numbers' .* cannot be tied", net(1, 1, 1, 10), torch.rand(2, 1, 12, 12))


@pytest.mark.filterwarnings("ignore:the model returns features that its own layers read")
def test_what_modules_return_beside_maps_is_no_reason_to_refuse() -> None:
    """A temperature, a table that is looked up, and tokens, in modules with numbers of their own."""

    def forward(net, x):
        h = net.body(x)
        tokens = net.tokens(h)  # (B, places, 8)
        codes = net.codes(tokens)  # (B, places), integers
        return net.head(h) * net.temperature, tokens.detach(), codes, net.table(x)

    shift = nn.Parameter(torch.rand(8), requires_grad=False)
    codebook = nn.Parameter(torch.rand(5, 8), requires_grad=False)
    net = Net(
        forward,
        body=conv(1, 8),
        tokens=Net(lambda net, h: h.flatten(2).mT + net.shift, shift=shift),
        codes=Net(lambda net, tokens: torch.cdist(tokens, net.book).argmin(-1), book=codebook),
        table=Net(lambda net, x: net.entries, entries=nn.Parameter(torch.rand(3, 4, 9, 9))),
        head=conv(8, 2),
        temperature=nn.Parameter(torch.tensor(2.0)),
    )
    plan = planned(net, torch.rand(2, 1, 9, 9))
    assert plan.outputs == [((1, 2),), ()] and max(plan.errors.values()) < 1e-10


NET, X = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 2, 1)), torch.rand(2, 1, 9, 9)
WRONG = {
    "scale": ({"group": "scale0.7"}, ValueError, "needs rotations and flips"),
    "no exact element": ({"group": "rot3"}, ValueError, "needs rotations and flips"),
    "size": ({"feature_groups": 3}, ValueError, "feature groups of size 3; use 4"),
    "weights": ({"weights": "old"}, ValueError, 'weights must be "random" or "project"; got \'old\''),
    "outputs": ({"outputs": "tensor"}, ValueError, 'outputs must be "scalar" or "vector"; got \'tensor\''),
    "equal images": ({"images": torch.ones(2, 1, 9, 9)}, ValueError, "almost invariant to rot4"),
    "one image": (
        {"images": X[0]},
        ValueError,
        r"a batch \(B, C, H, W\).*got one image .*: use images\[None\]",
    ),
    "list": ({"images": [X[0]]}, TypeError, r"a batch \(B, C, H, W\).*got a list: torch.stack\(images\)"),
    "batches": ({"images": iter([X])}, TypeError, "got a list_iterator: take a batch of it"),
    "array": ({"images": X.numpy()}, TypeError, r"got a numpy array \(torch.from_numpy converts it\)$"),
    "bytes": ({"images": X.byte()}, ValueError, r"got torch.uint8: use images.float\(\) / 255"),
    "colours last": ({"images": torch.rand(2, 9, 9, 3)}, ValueError, r"or x.permute\(0, 3, 1, 2\) if these"),
    "order": ({"group": X, "images": "rot4"}, TypeError, "a Group such as ien.rotation.*; got a Tensor$"),
    "nan": ({"images": X / 0}, ValueError, "images hold NaN or infinite values"),
    "two inputs": ({"model": nn.Bilinear(9, 9, 3)}, ValueError, "what else it takes as args"),
    "unknown layer": ({"feature_groups": {"": 4, "con": 1}}, KeyError, "names 'con'"),
    "no rest": ({"feature_groups": {"1": 4}}, KeyError, "says nothing about layer .*name it, or"),
    "compiled": ({"model": torch.compile(NET, backend="eager")}, RuntimeError, r"before torch\.compile"),
    "wrapped": ({"model": nn.Sequential(nn.DataParallel(NET))}, RuntimeError, "a DataParallel that"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused(name) -> None:
    change, error, message = WRONG[name]
    arguments = {"model": NET, "group": "rot4", "feature_groups": 4, "images": X, **change}
    with pytest.raises(error, match=message):
        ien.make_equivariant(**arguments)


def test_lazy_layers_get_their_weights_first() -> None:
    net = nn.Sequential(nn.LazyConv2d(8, 3), nn.ReLU(), nn.LazyConv2d(3, 3))
    planned(net, X)
    assert regular_error(net, X, 1) < 1e-10


def test_a_net_that_is_equivariant_whatever_its_weights_stays() -> None:
    net = nn.Sequential(nn.Conv2d(1, 5, 1), nn.ReLU(), nn.Conv2d(5, 2, 1))
    before = copy.deepcopy(net.state_dict())
    plan = planned(net, X)
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)
    assert {layer.distance for layer in plan.layers.values()} == {0.0} and list(plan.layers) == ["0", "2"]
    assert plan.ties == [] and max(plan.errors.values()) < 1e-12


@pytest.mark.parametrize("feature_groups", ["auto", "8-4-2-1"])
def test_eighth_turns_cost_interpolation_only(feature_groups) -> None:
    channels = 64 if feature_groups == "auto" else ien.FeatureGroups.of(feature_groups).channels(8)
    net = nn.Sequential(
        conv(1, channels, 7), nn.ELU(), conv(channels, channels, 5), nn.ELU(), *head(channels, 3)
    )
    x = F.interpolate(torch.rand(2, 1, 5, 5), 25, mode="bicubic")
    plan = planned(net, x, "rot8", feature_groups)
    for name in ("0", "2"):
        assert plan.layers[name].exact < 1e-10 and plan.layers[name].between < 0.3
    assert plan.errors["90°"] < 1e-10 and set(plan.errors) == set(ien.rotation(8).labels[1:])
    again = planned(net, x, "rot8", feature_groups, weights="project")
    assert all(layer.distance < 1e-6 for layer in again.layers.values())


def test_a_group_too_large_for_every_layer_is_warned_of() -> None:
    net = nn.Sequential(conv(1, 30, 3), nn.ReLU(), conv(30, 3, 3))
    with pytest.warns(UserWarning, match="feature groups of rot90 have 90 channels, and no layer"):
        ien.make_equivariant(net, "rot90", torch.rand(2, 1, 9, 9))


def test_single_channels_that_were_asked_for_are_no_surprise() -> None:
    net = nn.Sequential(conv(1, 30, 3), nn.ReLU(), conv(30, 3, 3))
    ien.make_equivariant(net, "rot4", torch.rand(2, 1, 9, 9), feature_groups=1)  # warnings are errors here
