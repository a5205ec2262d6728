"""Small networks in plain torch, written as their authors would: what can be tied, and what cannot.

Sizes are exact under quarter turns: odd before a 3×3 convolution of stride 2, even before a pool of 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Entry:
    """A network, and images that it takes."""

    make: Callable[[], nn.Module]
    size: int = 17
    channels: int = 3
    group: str = "rot4"
    outputs: str = "scalar"
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def images(self, count: int = 4, seed: int = 0) -> Tensor:
        """Blobs with noise of different strength, so that pooled features differ too."""
        generator = torch.Generator().manual_seed(seed)
        blobs = torch.randn(count, self.channels, 4, 4, generator=generator)
        blobs = F.interpolate(blobs, size=(self.size, self.size), mode="bicubic")
        noise = torch.randn(blobs.shape, generator=generator)
        return blobs + torch.rand(count, 1, 1, 1, generator=generator) * noise

    def settings(self) -> dict[str, Any]:
        """The arguments of ``make_equivariant`` beside the model, the group and the images."""
        return {"outputs": self.outputs, "args": self.args, "kwargs": dict(self.kwargs)}


def conv_norm(inside: int, outside: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution that keeps the size, or halves it, and a norm."""
    return nn.Sequential(
        nn.Conv2d(inside, outside, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outside),
    )


def head(channels: int, classes: int = 5) -> nn.Sequential:
    """Class scores from maps."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


class Residual(nn.Module):
    """What a branch adds to its input, through a projection if the shape changes."""

    def __init__(self, branch: nn.Module, projection: nn.Module | None = None) -> None:
        super().__init__()
        self.branch = branch
        self.projection = projection or nn.Identity()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.branch(x)
        out += self.projection(x)
        return self.relu(out)


def resnet_basic() -> nn.Module:
    first = nn.Sequential(conv_norm(16, 16), nn.ReLU(), conv_norm(16, 16))
    second = nn.Sequential(conv_norm(16, 32, stride=2), nn.ReLU(), conv_norm(32, 32))
    return nn.Sequential(
        conv_norm(3, 16, 7, 2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        Residual(first),
        Residual(second, conv_norm(16, 32, 1, 2)),
        head(32),
    )


def resnet_bottleneck() -> nn.Module:
    branch = nn.Sequential(
        conv_norm(16, 8, 1), nn.ReLU(), conv_norm(8, 8, 3, 2), nn.ReLU(), conv_norm(8, 32, 1)
    )
    return nn.Sequential(conv_norm(3, 16), nn.ReLU(), Residual(branch, conv_norm(16, 32, 1, 2)), head(32))


def vgg() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 32),
        nn.ReLU(inplace=True),
        nn.Dropout(0.0),
        nn.Linear(32, 5),
    )


class DenseLayer(nn.Module):
    """Eight more channels, from all before them."""

    def __init__(self, inside: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(inside), nn.Conv2d(inside, 8, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(F.relu(self.norm(x)))], 1)


def densenet() -> nn.Module:
    transition = [nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 16, 1), nn.AvgPool2d(2)]
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        DenseLayer(16),
        DenseLayer(24),
        *transition,
        DenseLayer(16),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        head(24),
    )


class Branches(nn.Module):
    """The outputs of several branches, beside one another."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def inception() -> nn.Module:
    block = Branches(
        conv_norm(16, 8, 1),
        nn.Sequential(conv_norm(16, 8, 1), nn.ReLU(), conv_norm(8, 16, 3)),
        nn.Sequential(conv_norm(16, 4, 1), nn.ReLU(), conv_norm(4, 8, 5)),
        nn.Sequential(nn.MaxPool2d(3, 1, 1), conv_norm(16, 8, 1)),
    )
    return nn.Sequential(conv_norm(3, 16, 3, 2), nn.ReLU(), block, nn.ReLU(), head(40))


class Squeeze(nn.Module):
    """Squeeze and excitation, with 1×1 convolutions or with linear layers."""

    def __init__(self, channels: int, squeezed: int, linear: bool = False) -> None:
        super().__init__()
        self.linear = linear
        if linear:
            self.down, self.up = nn.Linear(channels, squeezed), nn.Linear(squeezed, channels)
        else:
            self.down, self.up = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = x.mean((2, 3), keepdim=not self.linear)
        gates = torch.sigmoid(self.up(F.relu(self.down(pooled))))
        if self.linear:
            gates = gates[:, :, None, None]  # (B, C) → (B, C, 1, 1)
        return x * gates


class Inverted(nn.Module):
    """An inverted residual block: wide inside, and depthwise there."""

    def __init__(
        self, channels: int, wide: int, outside: int, stride: int, act: type[nn.Module], squeezed: int = 0
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [conv_norm(channels, wide, 1), act()]
        layers += [conv_norm(wide, wide, 3, stride, groups=wide), act()]
        if squeezed:
            layers.append(Squeeze(wide, squeezed))
        self.layers = nn.Sequential(*layers, conv_norm(wide, outside, 1))
        self.adds = stride == 1 and channels == outside

    def forward(self, x: Tensor) -> Tensor:
        if self.adds:
            return x + self.layers(x)
        return self.layers(x)


def mobilenet_v2() -> nn.Module:
    blocks = [Inverted(16, 32, 16, 1, nn.ReLU6), Inverted(16, 32, 24, 2, nn.ReLU6)]
    return nn.Sequential(conv_norm(3, 16, 3, 2), nn.ReLU6(), *blocks, head(24))


def mobilenet_v3() -> nn.Module:
    blocks = [Inverted(16, 32, 16, 1, nn.Hardswish, 8), Inverted(16, 32, 24, 2, nn.Hardswish, 8)]
    return nn.Sequential(conv_norm(3, 16, 3, 2), nn.Hardswish(), *blocks, head(24))


def efficientnet() -> nn.Module:
    """Squeezed to 6 and to 5 channels, which no feature groups of 4 can fill."""
    blocks = [Inverted(16, 24, 16, 1, nn.SiLU, 6), Inverted(16, 40, 24, 2, nn.SiLU, 5)]
    return nn.Sequential(conv_norm(3, 16, 3, 2), nn.SiLU(), *blocks, head(24))


def efficientnet_lite() -> nn.Module:
    """Static "same" padding: below and right only, where the convolution after it never reads."""

    def half(inside: int, outside: int, groups: int = 1) -> list[nn.Module]:
        pad = nn.ZeroPad2d((0, 1, 0, 1))
        conv = nn.Conv2d(inside, outside, 3, 2, groups=groups, bias=False)
        return [pad, conv, nn.BatchNorm2d(outside), nn.ReLU6()]

    return nn.Sequential(
        *half(3, 16), conv_norm(16, 32, 1), nn.ReLU6(), *half(32, 32, 32), conv_norm(32, 32, 1), head(32)
    )


def squeeze_linear() -> nn.Module:
    return nn.Sequential(
        conv_norm(3, 16), nn.ReLU(), Squeeze(16, 8, linear=True), conv_norm(16, 32, 3, 2), nn.ReLU(), head(32)
    )


def regnet() -> nn.Module:
    """Grouped convolutions of 6 channels each, squeezed to 7."""

    def branch(stride: int) -> nn.Module:
        grouped = conv_norm(24, 24, 3, stride, groups=4)
        return nn.Sequential(
            conv_norm(24, 24, 1), nn.ReLU(), grouped, nn.ReLU(), Squeeze(24, 7), conv_norm(24, 24, 1)
        )

    return nn.Sequential(
        conv_norm(3, 24, 3, 2),
        nn.ReLU(),
        Residual(branch(1)),
        Residual(branch(2), conv_norm(24, 24, 1, 2)),
        head(24),
    )


class ConvNextBlock(nn.Module):
    """Depthwise, then linear layers on (B, H, W, C), with a scale for each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.wide, self.back = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.full((channels,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        h = self.depthwise(x).permute(0, 2, 3, 1)  # (B, H, W, C)
        h = self.gamma * self.back(F.gelu(self.wide(self.norm(h))))
        return x + h.permute(0, 3, 1, 2)


class ChannelsLastNorm(nn.Module):
    """A layer norm over the channels of maps."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def convnext() -> nn.Module:
    stem = [nn.Conv2d(3, 16, 4, 4), ChannelsLastNorm(16)]
    down = [ChannelsLastNorm(16), nn.Conv2d(16, 24, 2, 2)]
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(24), nn.Linear(24, 5)]
    return nn.Sequential(*stem, ConvNextBlock(16), *down, ConvNextBlock(24), *pooled)


class UNet(nn.Module):
    """Two levels with skips; four classes, which no rotation may permute."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.first = nn.Sequential(conv_norm(3, 16), nn.ReLU())
        self.second = nn.Sequential(conv_norm(16, 32), nn.ReLU())
        self.up = nn.ConvTranspose2d(32, 16, 2, 2)
        self.joined = nn.Sequential(conv_norm(32, 16), nn.ReLU())
        self.head = nn.Conv2d(16, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.first(x)
        up = self.up(self.second(F.max_pool2d(skip, 2)))
        return self.head(self.joined(torch.cat([skip, up], 1)))


class FPN(nn.Module):
    """Maps of two sizes, in a dict by level."""

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Sequential(conv_norm(3, 16), nn.ReLU())
        self.coarse = nn.Sequential(nn.AvgPool2d(2), conv_norm(16, 32), nn.ReLU())
        self.lateral = nn.ModuleList([nn.Conv2d(16, 16, 1), nn.Conv2d(32, 16, 1)])
        self.smooth = nn.Conv2d(16, 16, 3, padding=1)
        self.boxes = nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        fine = self.fine(x)
        top = self.lateral[1](self.coarse(fine))
        below = self.lateral[0](fine) + F.interpolate(top, scale_factor=2, mode="nearest")
        return {"p3": self.boxes(F.relu(self.smooth(below))), "p4": self.boxes(F.relu(self.smooth(top)))}


class ASPP(nn.Module):
    """Dilated branches and a pooled one, and classes at the size of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_norm(3, 16), nn.ReLU(), nn.AvgPool2d(2))
        rates = [nn.Conv2d(16, 8, 3, padding=rate, dilation=rate) for rate in (1, 2, 3)]
        self.branches = Branches(nn.Conv2d(16, 8, 1), *rates)
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 8, 1), nn.ReLU())
        self.project = nn.Sequential(conv_norm(40, 16, 1), nn.ReLU())
        self.classes = nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        pooled = F.interpolate(self.pooled(h), size=h.shape[2:], mode="bilinear", align_corners=False)
        h = self.project(torch.cat([self.branches(h), pooled], 1))
        return F.interpolate(self.classes(h), size=x.shape[2:], mode="bilinear", align_corners=False)


def pixel_shuffle() -> nn.Module:
    """Twice the size, three single channels after the shuffle."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, padding=2), nn.Tanh(), nn.Conv2d(16, 12, 3, padding=1), nn.PixelShuffle(2)
    )


def pixel_shuffle_features() -> nn.Module:
    """Feature groups after the shuffle, and a convolution that reads them."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.PixelShuffle(2),
        nn.ReLU(),
        nn.Conv2d(8, 3, 3, padding=1),
    )


def normed(make: Callable[[int], nn.Module]) -> nn.Module:
    """Two convolutions, each followed by a norm of some kind."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        make(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3),
        make(32),
        nn.ReLU(),
        head(32),
    )


def running_instance_norm(channels: int) -> nn.Module:
    return nn.InstanceNorm2d(channels, affine=True, track_running_stats=True)


def reparametrized(change: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Weights that are a function of others before anything is tied."""
    layers = [change(nn.Conv2d(3, 16, 3)), nn.ReLU(), change(nn.Conv2d(16, 32, 3)), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), change(nn.Linear(32, 5)))


class TwoHeads(nn.Module):
    """Class scores and a mask, as a dict or a tuple."""

    def __init__(self, named: bool) -> None:
        super().__init__()
        self.named = named
        self.trunk = nn.Sequential(conv_norm(3, 16), nn.ReLU(), conv_norm(16, 32), nn.ReLU())
        self.scores, self.mask = head(32, 4), nn.Conv2d(32, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Any:
        h = self.trunk(x)
        scores, mask = self.scores(h), self.mask(h)
        if self.named:
            return {"scores": scores, "maps": {"mask": mask, "size": h.shape[-1]}}
        return scores, [mask]


class Conditioned(nn.Module):
    """A vector for each image sets the gain of each channel, and a flag leaves the scores as they are."""

    def __init__(self, embed: nn.Module) -> None:
        super().__init__()
        self.stem, self.body, self.scores = conv_norm(3, 16), conv_norm(16, 32), head(32)
        self.embed = embed

    def forward(self, x: Tensor, condition: Tensor, softmax: bool = True) -> Tensor:
        gain = self.embed(condition)[:, :, None, None]  # (B, C) → (B, C, 1, 1)
        scores = self.scores(F.relu(self.body(F.relu(self.stem(x) * gain))))
        if softmax:
            return scores.softmax(1)
        return scores


def conditioned() -> nn.Module:
    return Conditioned(nn.Linear(2, 16))


def embedded() -> nn.Module:
    return Conditioned(nn.Embedding(10, 16))


class Siamese(nn.Module):
    """One trunk, called for each half of the channels; the scores of the two together."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(conv_norm(3, 16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU())
        self.scores = head(32)

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        return self.scores((self.trunk(a) - self.trunk(b)).abs())


class Recurrent(nn.Module):
    """One module that runs three times."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.again, self.scores = nn.Conv2d(3, 24, 3), conv_norm(24, 24), head(24)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for _ in range(3):
            h = F.relu(h + self.again(h))
        return self.scores(h)


def shared_weights() -> nn.Module:
    """Two modules that hold the same weight."""
    first, second = nn.Conv2d(24, 24, 3, padding=1), nn.Conv2d(24, 24, 3, padding=1)
    second.weight = first.weight
    return nn.Sequential(nn.Conv2d(3, 24, 3), nn.ReLU(), first, nn.ReLU(), second, nn.ReLU(), head(24))


def direction() -> nn.Module:
    """Two numbers (dx, dy), which rotate with the image."""
    return nn.Sequential(conv_norm(3, 16), nn.ReLU(), conv_norm(16, 32), nn.ReLU(), head(32, 2))


def flow() -> nn.Module:
    """Two numbers (dx, dy) at each pixel."""
    return nn.Sequential(conv_norm(3, 16), nn.ReLU(), nn.Conv2d(16, 2, 3, padding=1))


def group_norm_cuts() -> nn.Module:
    """Groups of two channels, which cut through feature groups of four."""
    return normed(lambda channels: nn.GroupNorm(channels // 2, channels))


class Attention(nn.Module):
    """Attention over positions (a non-local block), added with a gain that is one number."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.query, self.key = nn.Conv2d(channels, 8, 1), nn.Conv2d(channels, 8, 1)
        self.value, self.gain = nn.Conv2d(channels, channels, 1), nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        query, key = self.query(x).flatten(2), self.key(x).flatten(2)  # (B, 8, HW)
        weights = (query.transpose(1, 2) @ key).softmax(-1)  # (B, HW, HW)
        mixed = self.value(x).flatten(2) @ weights.transpose(1, 2)  # (B, C, HW)
        return x + self.gain * mixed.view_as(x)


class SpatialGate(nn.Module):
    """A gate for each position, from the mean and the maximum over channels (CBAM)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 1, 5, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
        return x * torch.sigmoid(self.conv(both))


class ResponseNorm(nn.Module):
    """Global response normalisation (ConvNeXt V2), with a scale and a shift for each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.rand(1, channels, 1, 1))
        self.beta = nn.Parameter(torch.rand(1, channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        energy = x.square().sum((2, 3), keepdim=True).sqrt()
        return self.gamma * (x * energy / energy.mean(1, keepdim=True)) + self.beta + x


def between(*blocks: nn.Module) -> nn.Module:
    """Blocks that take and return 16 channels, between a convolution and a head."""
    return nn.Sequential(conv_norm(3, 16), nn.ReLU(), *blocks, conv_norm(16, 32), nn.ReLU(), head(32))


class Checkpointed(nn.Module):
    """A block that is computed again in the backward pass, as its own forward says."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant, self.block = reentrant, conv_norm(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        if not x.requires_grad:
            return x + self.block(x)
        return x + checkpoint(self.block, x, use_reentrant=self.reentrant)


class Backbone(nn.Module):
    """A head that learns on a backbone that does not, and runs without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(conv_norm(3, 16), nn.ReLU(), conv_norm(16, 32), nn.ReLU())
        self.body, self.scores = conv_norm(32, 32), head(32)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = self.backbone(x)
        return self.scores(F.relu(self.body(h)))


def norms() -> nn.Module:
    """Batch norms without affine numbers, with a moving average of all batches, and of vectors."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.BatchNorm2d(16, affine=False),
        nn.PReLU(16),
        nn.Conv2d(16, 64, 3),
        nn.BatchNorm2d(64, momentum=None),
        nn.GLU(1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 32),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Linear(32, 5),
    )


CONDITION = torch.tensor([[1.0, -0.5], [0.3, 0.8], [-1.0, 0.2], [0.1, 0.4]])
ZOO: dict[str, Entry] = {
    "resnet": Entry(resnet_basic, 33),
    "resnet rot4xflip": Entry(resnet_basic, 33, group="rot4xflip"),
    "resnet rot8": Entry(resnet_basic, 33, group="rot8"),
    "bottleneck": Entry(resnet_bottleneck),
    "vgg": Entry(vgg, 16),
    "vgg flip": Entry(vgg, 16, group="flip"),
    "densenet": Entry(densenet, 16),
    "inception": Entry(inception),
    "mobilenet v2": Entry(mobilenet_v2),
    "mobilenet v3": Entry(mobilenet_v3),
    "mobilenet v3 rot4xflip": Entry(mobilenet_v3, group="rot4xflip"),
    "efficientnet": Entry(efficientnet),
    "efficientnet-lite": Entry(efficientnet_lite, 31),
    "squeeze with linear": Entry(squeeze_linear),
    "regnet": Entry(regnet),
    "regnet rot8": Entry(regnet, group="rot8"),
    "convnext": Entry(convnext, 32),
    "unet": Entry(UNet, 16),
    "unet rot4xflip": Entry(UNet, 16, group="rot4xflip"),
    "unet rot8": Entry(UNet, 16, group="rot8"),
    "fpn": Entry(FPN, 16),
    "aspp": Entry(ASPP, 16),
    "pixel shuffle": Entry(pixel_shuffle, 9),
    "pixel shuffle, feature groups": Entry(pixel_shuffle_features, 9),
    "group norm": Entry(lambda: normed(lambda channels: nn.GroupNorm(2, channels))),
    "group norm that cuts": Entry(group_norm_cuts),
    "instance norm": Entry(lambda: normed(lambda channels: nn.InstanceNorm2d(channels, affine=True))),
    "instance norm with statistics": Entry(lambda: normed(running_instance_norm)),
    "layer norm": Entry(lambda: normed(ChannelsLastNorm)),
    "weight norm": Entry(lambda: reparametrized(parametrizations.weight_norm)),
    "spectral norm": Entry(lambda: reparametrized(parametrizations.spectral_norm)),
    "dict": Entry(lambda: TwoHeads(named=True)),
    "tuple": Entry(lambda: TwoHeads(named=False)),
    "extra arguments": Entry(conditioned, args=(CONDITION,), kwargs={"softmax": False}),
    "extra argument for all images": Entry(conditioned, args=(CONDITION[:1],)),
    "siamese": Entry(Siamese, channels=6),
    "module called again": Entry(Recurrent),
    "shared weight": Entry(shared_weights),
    "batch norms": Entry(norms),
    "attention": Entry(lambda: between(Attention(16)), 9),
    "spatial gate": Entry(lambda: between(SpatialGate()), 9),
    "response norm": Entry(lambda: between(ResponseNorm(16)), 9),
    "checkpoint inside": Entry(lambda: between(Checkpointed(reentrant=False)), 9),
    "reentrant checkpoint inside": Entry(lambda: between(Checkpointed(reentrant=True)), 9),
    "backbone without gradients": Entry(Backbone, 9),
    "direction": Entry(direction, outputs="vector"),
    "direction rot4xflip": Entry(direction, group="rot4xflip", outputs="vector"),
    "direction rot8": Entry(direction, group="rot8", outputs="vector"),
    "flow": Entry(flow, outputs="vector"),
}
"""What can be tied, by name."""


class ViT(nn.Module):
    """Patches as tokens, with positions and one layer of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.positions = nn.Parameter(torch.randn(1, 16, 16) * 0.02)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.scores = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)  # (B, C, H, W) → (B, HW, C)
        return self.scores(self.block(tokens + self.positions).mean(1))


class StridedUNet(nn.Module):
    """Its stride needs odd sizes, its skip even ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, 2, 1)
        self.up, self.head = nn.ConvTranspose2d(32, 16, 2, 2), nn.Conv2d(32, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = F.relu(self.first(x))
        return self.head(torch.cat([skip, self.up(F.relu(self.down(skip)))], 1))


class Positions(nn.Module):
    """A learned number at each position of the maps."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.scores = nn.Conv2d(3, 16, 3, padding=1), head(16)
        self.positions = nn.Parameter(torch.randn(1, 16, 17, 17))

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(F.relu(self.stem(x) + self.positions))


class Coordinates(nn.Module):
    """Maps beside which the column of each pixel is given (CoordConv)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv, self.scores = nn.Conv2d(3, 16, 3), nn.Conv2d(17, 16, 3), head(16)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.stem(x))
        columns = torch.linspace(-1, 1, h.shape[3]).expand_as(h[:, :1])  # (B, 1, H, W)
        return self.scores(F.relu(self.conv(torch.cat([h, columns], 1))))


class ParameterOfModel(nn.Module):
    """Numbers per channel that belong to no module that is called with these channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body, self.scores = conv_norm(3, 16), conv_norm(16, 16), head(16)
        self.gains = nn.Parameter(torch.rand(16, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.stem(x))
        return self.scores(F.relu(h + self.gains * self.body(h)))


class FunctionalConv(nn.Module):
    """A convolution that is no module."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.scores = nn.Conv2d(3, 16, 3), head(16)
        self.kernels = nn.Parameter(torch.randn(16, 16, 3, 3) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(F.relu(F.conv2d(F.relu(self.stem(x)), self.kernels)))


def flatten_head() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 8 * 8, 5))


@dataclass(frozen=True)
class Refused:
    """A network that cannot be tied, and what the one line about it must say: the layer and the remedy."""

    entry: Entry
    says: tuple[str, ...]
    feature_groups: Any = "auto"


REFUSED: dict[str, Refused] = {
    "flatten before linear": Refused(Entry(flatten_head), ("'3'", "pool")),
    "vit": Refused(Entry(ViT, 16), ("'block.linear1'", "height and width")),
    "strided unet": Refused(Entry(StridedUNet, 16), ("'down'", "no other input size", "2×2", "pool")),
    "positions": Refused(Entry(Positions), ("positions",)),
    "coordinates": Refused(Entry(Coordinates), ("'conv'",)),
    "parameter of the model": Refused(Entry(ParameterOfModel), ("'gains'", "module of their own")),
    "embedding": Refused(Entry(embedded, args=(torch.tensor([3, 1, 4, 1]),)), ("'embed.weight'", "Linear")),
    "functional convolution": Refused(Entry(FunctionalConv), ("'kernels'", "Conv2d")),
    "group norm that cuts, explicit": Refused(Entry(group_norm_cuts), ("'1'", "GroupNorm"), 4),
}
"""What cannot be tied, by name."""
