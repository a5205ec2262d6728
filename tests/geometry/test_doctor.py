"""The doctor's verdict is what networks with symmetric kernels do, and it leaves the model alone."""

from __future__ import annotations

import copy
import dataclasses
import gc
import json
import time
from collections import Counter, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ien.geometry import exactness, interpreter, rules_rearrange
from ien.geometry.doctor import Diagnosis, doctor

CHANNELS = 4
Function = Callable[[Tensor], Tensor]


class Fn(nn.Module):
    """A function as a module; with the module ``inner`` it takes that too."""

    def __init__(self, function: Callable[..., Tensor], inner: nn.Module | None = None) -> None:
        super().__init__()
        self.function, self.inner = function, inner

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x) if self.inner is None else self.function(x, self.inner)


def conv(kernel: int = 3, **options: object) -> nn.Module:
    return nn.Conv2d(CHANNELS, CHANNELS, kernel, **options)  # type: ignore[arg-type]


def strided() -> nn.Module:
    return conv(3, stride=2, padding=1)


def net(*modules: nn.Module) -> nn.Sequential:
    """The modules between convolutions, so that what goes in and comes out of each is not symmetric."""
    first = [nn.Conv2d(3, CHANNELS, 1), nn.BatchNorm2d(CHANNELS), nn.GELU()]
    return nn.Sequential(*first, *modules)


def symmetrised(model: nn.Module) -> nn.Module:
    """A copy in float64 with every kernel averaged over the eight turns and flips, one by one."""
    model = copy.deepcopy(model).double().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.is_floating_point():
                noise = torch.randn(tensor.shape, generator=generator) / tensor[0].numel() ** 0.5
                tensor.copy_(noise.square() + 0.5 if "running_var" in name else noise)
            if tensor.ndim == 4 and tensor.shape[-1] == tensor.shape[-2] > 1:
                turned = [tensor.rot90(k, (-2, -1)) for k in range(4)]
                tensor.copy_(torch.stack([*turned, *(t.flip(-1) for t in turned)]).mean(0))
    return model


def measured_exact(model: nn.Module, size: int) -> bool:
    """Whether f(g x) is g f(x), or f(x) where the output is no map, for all g."""
    model = symmetrised(model)
    x = torch.randn(2, 3, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        y = model(x)
        assert not torch.allclose(y[0], y[1]), "the output says nothing of the input"
        for turns in range(4):
            for flip in (False, True):

                def g(z: Tensor, turns: int = turns, flip: bool = flip) -> Tensor:
                    return (z.flip(-1) if flip else z).rot90(turns, (-2, -1))

                got, expected = model(g(x)), g(y) if y.ndim == 4 else y
                if got.shape != expected.shape:
                    return False
                if float((got - expected).square().mean()) > 1e-20 * float(y.square().mean()):
                    return False
    return True


class Attention(nn.Module):
    def __init__(self, position: int = 0, cls: bool = False, heads: int = 2) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(CHANNELS, heads, batch_first=True)
        self.norm = nn.LayerNorm(CHANNELS)
        self.mlp = nn.Sequential(nn.Linear(CHANNELS, 8), nn.GELU(), nn.Linear(8, CHANNELS))
        self.cls = nn.Parameter(torch.randn(1, 1, CHANNELS)) if cls else None
        self.pos_embed = nn.Parameter(torch.randn(1, position, CHANNELS)) if position else None

    def forward(self, x: Tensor) -> Tensor:
        t = x.flatten(2).transpose(1, 2)
        if self.cls is not None:
            t = torch.cat([self.cls.expand(len(x), -1, -1), t], 1)
        if self.pos_embed is not None:
            t = t + self.pos_embed
        u = self.norm(t)
        t = t + self.attend(u, u, u, need_weights=False)[0]
        t = t + self.mlp(self.norm(t))
        if self.cls is not None:
            return t[:, 0]
        return t.transpose(1, 2).reshape(x.shape)


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(CHANNELS, 2, 1), nn.Conv2d(2, CHANNELS, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.b(self.a(F.adaptive_avg_pool2d(x, 1)).relu()).sigmoid()


class UNet(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.down, self.middle, self.mode = conv(padding=1), conv(padding=1), mode
        self.up = nn.ConvTranspose2d(CHANNELS, CHANNELS, 2, stride=2)
        self.head = nn.Conv2d(2 * CHANNELS, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.down(x).relu()
        y = self.middle(F.max_pool2d(skip, 2)).relu()
        if self.mode == "transposed":
            y = self.up(y)
            y = F.pad(y, (0, skip.shape[-1] - y.shape[-1], 0, skip.shape[-2] - y.shape[-2]))
        else:
            y = F.interpolate(y, size=skip.shape[-2:], mode=self.mode)
        return self.head(torch.cat([skip, y], 1))


class CoordConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(CHANNELS + 2, CHANNELS, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h, w = x.shape[-2:]
        rows = torch.linspace(-1, 1, h, dtype=x.dtype).view(1, 1, h, 1).expand(len(x), 1, h, w)
        columns = torch.linspace(-1, 1, w, dtype=x.dtype).view(1, 1, 1, w).expand(len(x), 1, h, w)
        return self.conv(torch.cat([x, rows, columns], 1))


def resize(**options: object) -> nn.Module:
    return Fn(lambda x: F.interpolate(x, **options))  # type: ignore[arg-type]


def nonlocal_block(x: Tensor) -> Tensor:
    q = x.flatten(2)
    return x + torch.einsum("bcn,bnm->bcm", q, (q.transpose(1, 2) @ q).softmax(1)).view_as(x)


def channel_shuffle(x: Tensor) -> Tensor:
    return x.view(len(x), 2, CHANNELS // 2, *x.shape[2:]).transpose(1, 2).reshape(x.shape)


# fmt: off
ZOO: dict[str, Callable[[], nn.Module]] = {
    "conv 1x1": lambda: net(conv(1)),
    **{
        f"conv k{k} s{s} p{p} d{d}": lambda k=k, s=s, p=p, d=d: net(conv(k, stride=s, padding=p, dilation=d))  # type: ignore[misc]
        for k, s, p, d in [
            (3, 1, 1, 1), (3, 2, 1, 1), (3, 3, 0, 1), (2, 2, 0, 1), (2, 1, 0, 1), (4, 2, 1, 1), (5, 2, 2, 1),
            (7, 2, 3, 1), (3, 2, 2, 2), (1, 2, 0, 1), (6, 3, 1, 1), (4, 1, 1, 1), (3, 1, 2, 2),
        ]
    },
    "depthwise": lambda: net(conv(3, stride=2, padding=1, groups=CHANNELS)),
    "same, odd": lambda: net(conv(3, padding="same")),
    "circular": lambda: net(conv(3, padding=1, padding_mode="circular")),
    "reflect": lambda: net(conv(5, stride=2, padding=2, padding_mode="reflect")),
    "replicate": lambda: net(conv(3, padding=1, padding_mode="replicate")),
    "kernel 1x3": lambda: net(nn.Conv2d(CHANNELS, CHANNELS, (1, 3), padding=(0, 1))),
    "stride (1, 2)": lambda: net(conv(3, stride=(1, 2), padding=1)),
    "transposed 2": lambda: net(nn.ConvTranspose2d(CHANNELS, CHANNELS, 2, 2)),
    "transposed 4": lambda: net(nn.ConvTranspose2d(CHANNELS, CHANNELS, 4, 2, 1)),
    "transposed 3, output padding": lambda: net(nn.ConvTranspose2d(CHANNELS, CHANNELS, 3, 2, 1, 1)),
    "transposed 3": lambda: net(nn.ConvTranspose2d(CHANNELS, CHANNELS, 3, 2, 1)),
    "output padding cut off": lambda: net(
        nn.ConvTranspose2d(CHANNELS, CHANNELS, 3, 2, 1, 1), Fn(lambda x: x[:, :, :-1, :-1])
    ),
    "max pool 2": lambda: net(nn.MaxPool2d(2)),
    "max pool 3 s2 p1": lambda: net(nn.MaxPool2d(3, 2, 1)),
    "max pool 3 s2 ceil": lambda: net(nn.MaxPool2d(3, 2, ceil_mode=True)),
    "max pool 2 ceil": lambda: net(nn.MaxPool2d(2, ceil_mode=True), nn.GELU()),
    "avg pool 2": lambda: net(nn.AvgPool2d(2)),
    "avg pool 3 s2 p1": lambda: net(nn.AvgPool2d(3, 2, 1, count_include_pad=False)),
    "avg pool 3 s1 p1": lambda: net(nn.AvgPool2d(3, 1, 1)),
    "avg pool 3 s2 ceil": lambda: net(nn.AvgPool2d(3, 2, ceil_mode=True)),
    "lp pool": lambda: net(Fn(torch.abs), nn.LPPool2d(2, 2)),
    "adaptive avg 3": lambda: net(nn.AdaptiveAvgPool2d(3)),
    "adaptive max 4": lambda: net(nn.AdaptiveMaxPool2d(4)),
    "adaptive avg 3x2": lambda: net(nn.AdaptiveAvgPool2d((3, 2))),
    "nearest ×2": lambda: net(resize(scale_factor=2)),
    "nearest to 12": lambda: net(resize(size=12)),
    "nearest ×0.5": lambda: net(resize(scale_factor=0.5)),
    "nearest-exact to 12": lambda: net(resize(size=12, mode="nearest-exact")),
    "nearest-exact ×0.5": lambda: net(resize(scale_factor=0.5, mode="nearest-exact")),
    "bilinear to 13": lambda: net(resize(size=13, mode="bilinear")),
    "bilinear ×1.5": lambda: net(resize(scale_factor=1.5, mode="bilinear")),
    "bilinear ×1.5 recomputed": lambda: net(
        resize(scale_factor=1.5, mode="bilinear", recompute_scale_factor=True)
    ),
    "bilinear corners": lambda: net(resize(size=13, mode="bilinear", align_corners=True)),
    "bilinear antialias": lambda: net(resize(size=5, mode="bilinear", antialias=True)),
    "bicubic to 11": lambda: net(resize(size=11, mode="bicubic")),
    "area to 5": lambda: net(resize(size=5, mode="area")),
    "pad one side": lambda: net(nn.ZeroPad2d((0, 1, 0, 1)), conv()),
    "pad one side, unused": lambda: net(nn.ZeroPad2d((0, 1, 0, 1)), conv(2, stride=2)),
    "pad left, then right": lambda: net(nn.ZeroPad2d((1, 0, 1, 0)), nn.ZeroPad2d((0, 1, 0, 1)), conv()),
    "pad both sides": lambda: net(nn.ReflectionPad2d(1), conv()),
    "reflect one side": lambda: net(nn.ReflectionPad2d((1, 0, 1, 0)), conv()),
    "circular one side": lambda: net(Fn(lambda x: F.pad(x, (1, 0, 1, 0), mode="circular")), conv()),
    "pad channels": lambda: net(Fn(lambda x: F.pad(x, (0, 0, 0, 0, 1, 0))[:, 1:])),
    "slice one side": lambda: net(Fn(lambda x: x[:, :, 1:, 1:])),
    "slice in two steps": lambda: net(Fn(lambda x: x[:, :, 1:, 1:].relu()[:, :, :-1, :-1]), conv()),
    "crop": lambda: net(Fn(lambda x: x[..., 2:-2, 2:-2]), conv()),
    "every second": lambda: net(Fn(lambda x: x[..., ::2, ::2])),
    "centre pixel": lambda: net(Fn(lambda x: x[:, :, x.shape[2] // 2, x.shape[3] // 2])),
    "narrow and chunk of channels": lambda: net(Fn(lambda x: torch.cat(x.chunk(2, 1)[::-1], 1)), conv()),
    "roll": lambda: net(Fn(lambda x: x.roll((1, 1), (2, 3))), conv()),
    "flip one axis": lambda: net(Fn(lambda x: x.flip(2)), conv()),
    "flip both": lambda: net(Fn(lambda x: x.flip((2, 3))), conv()),
    "transpose": lambda: net(Fn(lambda x: x.transpose(2, 3))),
    "transpose twice": lambda: net(Fn(lambda x: x.mT), conv(), Fn(lambda x: x.mT)),
    "x plus its transpose": lambda: net(Fn(lambda x: x + x.mT), conv()),
    "channels last": lambda: net(Fn(lambda x, f: f(x.permute(0, 2, 3, 1)).movedim(3, 1), nn.Linear(4, 4))),
    "global mean": lambda: net(Fn(lambda x: x.mean((2, 3)))),
    "mean of means": lambda: net(Fn(lambda x: x.mean(3).mean(2))),
    "max of means": lambda: net(Fn(lambda x: x.mean(3).amax(2))),
    "mean over rows": lambda: net(Fn(lambda x: x.mean(2, keepdim=True) * x)),
    "softmax over places": lambda: net(Fn(lambda x: x.flatten(2).softmax(-1).view_as(x))),
    "softmax over rows": lambda: net(Fn(lambda x: x.softmax(2))),
    "cumsum": lambda: net(Fn(lambda x: x.cumsum(-1))),
    "group norm": lambda: net(nn.GroupNorm(2, CHANNELS), conv()),
    "instance norm": lambda: net(nn.InstanceNorm2d(CHANNELS, affine=True), conv()),
    "response norm": lambda: net(nn.LocalResponseNorm(3), conv()),
    "layer norm over channels": lambda: net(
        Fn(lambda x, f: f(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), nn.LayerNorm(CHANNELS))
    ),
    "layer norm without weights": lambda: net(Fn(lambda x: F.layer_norm(x, x.shape[1:]))),
    "normalize": lambda: net(Fn(lambda x: F.normalize(x)), nn.PReLU(CHANNELS)),
    "squeeze and excite": lambda: net(conv(padding=1), SqueezeExcite()),
    "residual, in place": lambda: net(
        Fn(lambda x, f: f(x).add_(x).relu_(), nn.Sequential(conv(padding=1), nn.ReLU(inplace=True)))
    ),
    "residual with stride": lambda: net(
        Fn(lambda x, f: f[0](x) + f[1](x), nn.ModuleList([conv(3, stride=2, padding=1), conv(1, stride=2)]))
    ),
    "attention": lambda: net(Attention()),
    "attention with class token": lambda: net(Attention(cls=True)),
    "sdpa": lambda: net(Fn(lambda x: F.scaled_dot_product_attention(*[x.flatten(2).mT] * 3).mT.view_as(x))),
    "non-local": lambda: net(Fn(nonlocal_block)),
    "axial attention": lambda: net(Fn(lambda x: (x @ x.mT).softmax(-1) @ x)),
    "coordinates": lambda: net(CoordConv()),
    "unet bilinear": lambda: net(UNet("bilinear")),
    "unet nearest": lambda: net(UNet("nearest")),
    "unet transposed": lambda: net(UNet("transposed")),
    "channel shuffle": lambda: net(conv(padding=1, groups=2), Fn(channel_shuffle)),
    "pixel shuffle": lambda: net(nn.PixelShuffle(2)),
    "space to depth": lambda: net(
        Fn(lambda x: torch.cat([x[..., i:8:2, j:8:2] for i in (0, 1) for j in (0, 1)], 1))
    ),
    "repeat interleave": lambda: net(Fn(lambda x: x.repeat_interleave(2, 2).repeat_interleave(2, 3)), conv()),
    "write a border": lambda: net(Fn(lambda x: _with_zero_row(x))),
    "write a channel": lambda: net(Fn(lambda x: _with_zero_channel(x)), conv()),
    "global code": lambda: net(
        nn.AdaptiveAvgPool2d(1), nn.ConvTranspose2d(CHANNELS, CHANNELS, 4), conv(padding=1)
    ),
    "image pooling": lambda: net(
        Fn(lambda x: torch.cat([x, F.interpolate(x.mean((2, 3), True), x.shape[2:])], 1)[:, 2:6]), conv()
    ),
    "dilated pool": lambda: net(nn.MaxPool2d(2, 1, dilation=2)),
    "zeros joined": lambda: net(Fn(lambda x: torch.cat([x, torch.zeros_like(x)], 1)[:, 2:6]), conv()),
    "loud channels by index": lambda: net(Fn(lambda x: x[:, torch.tensor([3, 1, 0, 2])]), conv()),
    "canvas of channels": lambda: net(Fn(lambda x, f: drawn(f(x), 8, slice(4)), strided())),
    "canvas, all of it": lambda: net(Fn(lambda x, f: drawn(f(x), 4, slice(None)), strided())),
    "canvas, copied": lambda: net(strided(), Fn(lambda x: torch.zeros_like(x).copy_(x))),
    "canvas, half another": lambda: net(Fn(half_another, strided()), conv()),
    "canvas, cut on one side": lambda: net(Fn(half_uncut), conv()),
    "output padding, then zeros": lambda: net(
        nn.ConvTranspose2d(CHANNELS, CHANNELS, 2, 2, 0, 1), nn.ZeroPad2d((1, 0, 1, 0))
    ),
    "cut, then pad with -3e38": lambda: net(
        Fn(lambda x: F.pad(x[..., 1:, 1:], (1,) * 4, value=-3e38)), nn.MaxPool2d(3, 1)
    ),
    "lp pool ceil": lambda: net(nn.LPPool2d(2, 3, 2, ceil_mode=True)),
}
# what has nothing to do with even and odd sizes
AT_NINE: dict[str, Callable[[], nn.Module]] = {
    "row of a mask": lambda: net(Fn(lambda x: x * masked(x, 0))),
    "every second column of a mask": lambda: net(Fn(lambda x: x * masked(x, (..., slice(None, None, 2))))),
    "corners of a mask": lambda: net(Fn(lambda x: x * masked(x, (slice(-4, None), slice(0, -4))))),
    "a view of a mask that changes": lambda: net(Fn(stale_mask)),
    "transposed view of a mask": lambda: net(Fn(lambda x: x * masked(x, 0).mT)),
    "sines and cosines of tokens": lambda: net(Fn(token_sines)),
    "sines of columns": lambda: net(Fn(column_sines)),
    "mask of attention": lambda: net(Fn(masked_attention)),
    "rows of one of two maps": lambda: net(Fn(lambda x: correlation(x).sum((1, 2)))),
    "one of two maps": lambda: net(Fn(lambda x: correlation(x).sum((2, 3)).amax(1))),
    "rows twice": lambda: net(Fn(lambda x: x.repeat(1, 1, 2, 1)), conv(padding=1)),
    "rows twice, mean": lambda: net(
        Fn(lambda x: x.repeat(1, 1, 2, 1)), conv(padding=1), nn.GELU(), Fn(lambda x: x.mean((2, 3)))
    ),
    "each row twice": lambda: net(Fn(lambda x: x.repeat_interleave(2, 2)), conv(padding=1)),
    "map of maps": lambda: net(Fn(lambda x: x.repeat(1, 1, 2, 2)), conv(padding=1)),
    "rows twice, each column twice": lambda: net(
        Fn(lambda x: x.repeat(1, 1, 2, 1).repeat_interleave(2, 3)), conv(padding=1)
    ),
    "channels twice": lambda: net(Fn(lambda x: x.repeat(1, 2, 1, 1)[:, 2:6]), conv(padding=1)),
    "code on 3x5": lambda: net(Fn(lambda x: x.mean((2, 3), True).expand(-1, -1, 3, 5)), conv(padding=1)),
    "code on 5x5": lambda: net(Fn(lambda x: x.mean((2, 3), True).expand(-1, -1, 5, 5)), conv(padding=1)),
    "response norm over rows": lambda: net(
        Fn(lambda x: F.local_response_norm(x.permute(0, 2, 3, 1), 3).permute(0, 3, 1, 2))
    ),
    "pad with -inf": lambda: net(Fn(lambda x: F.pad(x, (1,) * 4, value=-torch.inf)), nn.MaxPool2d(3, 1)),
    "conv along rows": lambda: net(Fn(lambda x, f: f(x.mean(3)).mean(2), nn.Conv1d(CHANNELS, CHANNELS, 3))),
    "conv along channels": lambda: net(
        Fn(lambda x, f: x * f(x.mean((2, 3))[:, None])[:, 0, :, None, None], nn.Conv1d(1, 1, 3, padding=1))
    ),
    "stack": lambda: net(Fn(lambda x: torch.stack([x, -2 * x], 2).amax(2)), conv()),
    "softmax over channels": lambda: net(nn.Softmax2d(), conv()),
    "sorted channels": lambda: net(Fn(lambda x: x.sort(1)[0]), conv()),
    "layer norm of each place": lambda: net(Fn(lambda x, f: f(x), nn.LayerNorm([CHANNELS, 9, 9]))),
    "batch norm of rows": lambda: net(Fn(lambda x, f: f(x.mT.transpose(1, 3)), nn.BatchNorm2d(9))),
    "moments": lambda: net(Fn(lambda x: torch.cat(torch.std_mean(x, (2, 3)), 1))),
    "rolled and rolled back": lambda: net(Fn(lambda x: x.roll(1, 2).relu().roll(-1, 2)), conv()),
}
# fmt: on
CASES = [*((name, size) for size in (8, 9) for name in ZOO), *((name, 9) for name in AT_NINE)]


def masked(x: Tensor, at: Any) -> Tensor:
    """Ones, with twos written at an index of a map's size."""
    mask = torch.ones(x.shape[-2:], dtype=x.dtype)
    mask[at] = 2
    return mask


def stale_mask(x: Tensor) -> Tensor:
    mask = torch.ones(x.shape[-2:], dtype=x.dtype)
    view = mask[:, :]
    mask[2:, :4] = 2
    return x * view


def token_sines(x: Tensor) -> Tensor:
    tokens = x.flatten(2).mT
    sines = torch.zeros(tokens.shape[1:], dtype=x.dtype)
    place = torch.arange(len(sines), dtype=x.dtype)[:, None]
    sines[:, 0::2], sines[:, 1::2] = torch.sin(place / 3), torch.cos(place / 3)
    return (tokens + sines).mT.reshape(x.shape)


def column_sines(x: Tensor) -> Tensor:
    sines = torch.zeros(x.shape[1:], dtype=x.dtype)
    sines[0::2] = torch.arange(x.shape[-1], dtype=x.dtype).sin().expand(2, *x.shape[2:])
    return x + sines


def masked_attention(x: Tensor) -> Tensor:
    t = x.flatten(2).mT
    n = t.shape[1]
    mask = torch.zeros(n, n, dtype=x.dtype)
    mask[: n // 2, n // 2 :] = -100
    return ((t @ t.mT + mask).softmax(-1) @ t).mT.reshape(x.shape)


def drawn(y: Tensor, channels: int, at: slice) -> Tensor:
    canvas = torch.zeros(len(y), channels, *y.shape[2:], dtype=y.dtype)
    canvas[:, at] = y
    return canvas


def half_another(x: Tensor, f: nn.Module) -> Tensor:
    y = f(x).clone()
    y[:, :2] = F.max_pool2d(x, 3, 2, 1)[:, :2]
    return y


def half_uncut(x: Tensor) -> Tensor:
    y = x[..., 1:, 1:].clone()
    y[:, :2] = F.avg_pool2d(x, 2, 1)[:, :2]
    return y[..., :-1, :-1]


def correlation(x: Tensor) -> Tensor:
    return (x.flatten(2).mT @ x.flatten(2)).view(len(x), -1, *x.shape[2:])


def _with_zero_row(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, :, 0] = 0
    return x


def _with_zero_channel(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, 0] = 0
    return x


@pytest.mark.parametrize("name, size", CASES)
def test_verdict_is_what_symmetric_kernels_measure(
    name: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ien.geometry.sizes.MAX_OPERATIONS", 1)  # the search is another test's
    model = (ZOO | AT_NINE)[name]()
    found = doctor(model, (3, size, size))
    assert found.exact == measured_exact(model, size), str(found)
    assert found.exact == (not found.findings)
    assert (size in found.exact_sizes) == found.exact
    assert not any(finding.kind == "unknown" for finding in found.findings) or name in (
        "cumsum", "softmax over rows", "pixel shuffle", "write a border", "axial attention",
        "rows of one of two maps", "response norm over rows", "conv along rows",
        "a view of a mask that changes",
    ), str(found)  # fmt: skip


def changed(change: Callable[[Tensor], object]) -> nn.Module:
    """What ``change`` does in place to a copy of the map."""

    def function(x: Tensor) -> Tensor:
        x = x.clone()
        change(x)
        return x

    return net(Fn(function), conv(padding=1))


def through_a_stale_view(x: Tensor) -> Tensor:
    canvas = torch.zeros_like(x)
    view = canvas[:, :2]
    canvas.copy_(x)
    return view * torch.arange(x.shape[-1], dtype=x.dtype)


def rows_normalised(x: Tensor) -> Tensor:
    rows = x.transpose(1, 2).flatten(0, 1)
    return F.group_norm(rows, 2).unflatten(0, (x.shape[0], x.shape[2])).transpose(1, 2)


SNEAKY: dict[str, Callable[[], nn.Module]] = {
    "transposed write": lambda: changed(lambda x: x.transpose(2, 3).copy_(x.clone())),
    "transposed channel": lambda: changed(lambda x: x[:, 1].copy_(x[:, 0].mT)),
    "scaled rows": lambda: changed(lambda x: x[:, :, 1:-1].mul_(2)),
    "flattened ramp": lambda: changed(lambda x: x.flatten(2).mul_(torch.arange(x[0, 0].numel()).to(x))),
    "one flattened element": lambda: changed(lambda x: x.flatten(2)[..., 0].zero_()),
    "checkerboard": lambda: changed(lambda x: x[..., ::2, ::2].zero_()),
    "stale view": lambda: net(Fn(through_a_stale_view)),
    "rows of one map, columns of another": lambda: net(
        Fn(lambda x: torch.einsum("bchw,bcHW->bhwHW", x, x).sum((1, 4)))
    ),
    "outer product": lambda: net(Fn(lambda x: (x[..., None, None] * x[:, :, None, None]).sum((2, 5)))),
    "group norm of rows": lambda: net(Fn(rows_normalised)),
    "triangular mask": lambda: net(Fn(lambda x: x * torch.ones_like(x).tril())),
    "index of the largest": lambda: net(Fn(lambda x: x.flatten(2).argmax(2).to(x))),
    "fourier": lambda: net(Fn(lambda x: torch.fft.fft2(x).abs())),
    "token mixing": lambda: net(Fn(lambda x: x.flatten(2) @ torch.rand(x[0, 0].numel(), 3).to(x))),
    "random places": lambda: net(Fn(lambda x: x * torch.rand_like(x))),
    "random numbers written": lambda: changed(lambda x: x.mul_(torch.ones_like(x).uniform_())),
    "joined rows": lambda: net(Fn(lambda x: torch.cat([x, 2 * x], 2)), conv(padding=1)),
    "other data": lambda: changed(lambda x: setattr(x, "data", x.flip(3))),
    "kernel made of a map": lambda: net(Fn(lambda x: F.conv2d(x, x[..., :3, :3]))),
    "matrix for each row": lambda: net(
        Fn(lambda x: torch.einsum("bchw,hcd->bdhw", x, torch.rand(x.shape[2], 4, 4, generator=seed()).to(x)))
    ),
    "vector of weights": lambda: net(Fn(lambda x: x @ torch.arange(x.shape[-1]).to(x))),
    "rolled tokens": lambda: net(Fn(lambda x: x.flatten(2).roll(1, 2).view_as(x))),
    "layer norm of rows": lambda: net(Fn(lambda x: F.layer_norm(x, x.shape[-1:]))),
    "rows by index": lambda: net(Fn(lambda x: x[:, :, torch.arange(x.shape[2]).flip(0)])),
    "rows plus columns": lambda: net(Fn(lambda x: x.flatten(2) + x.mT.flatten(2))),
    "rows times columns": lambda: net(Fn(lambda x: x.flatten(2) @ x.mT.flatten(2).mT)),
    "list of maps": lambda: changed(lambda x: torch._foreach_mul_([x], [torch.arange(x.shape[-1]).to(x)])),
    "rows of a part": lambda: changed(lambda x: x[:, :2].mul_(torch.arange(x.shape[-1]).to(x))),
    "channels that are no longer the same": lambda: net(Fn(one_of_equals), conv(padding=1)),
}


def seed() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def one_of_equals(x: Tensor) -> Tensor:
    equals = x.mean(1, True).expand(-1, 2, -1, -1).clone()
    equals[:, 0].mul_(-2)
    return equals.flatten(1, 2)[:, None].repeat(1, 4, 1, 2)


@pytest.mark.parametrize("name", SNEAKY)
@pytest.mark.parametrize("size", [8, 9])
def test_exact_is_never_said_of_what_is_not(name: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ien.geometry.sizes.MAX_OPERATIONS", 1)
    model = SNEAKY[name]()
    torch.manual_seed(0)
    measured = measured_exact(model, size)
    assert doctor(model, (3, size, size)).exact == measured == (name == "checkerboard" and size == 9)


@dataclasses.dataclass
class Plain:
    maps: object


@dataclasses.dataclass
class Slotted:
    __slots__ = ("maps",)
    maps: object


CONTAINERS: dict[str, Callable[[Tensor], object]] = {
    "values": lambda y: {"a": y}.values(),
    "generator": lambda y: (each for each in [y]),
    "deque": lambda y: deque([y]),
    "object": Plain,
    "object with slots": Slotted,
    "nested": lambda y: (None, {"a": [{"b": Plain((y,))}]}),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_tensors_are_found_in_whatever_the_model_returns(name: str) -> None:
    model = Fn(lambda x, f: CONTAINERS[name](f(x)), conv_of_three())  # type: ignore[arg-type, return-value]
    assert [f.kind for f in doctor(model, (3, 8, 8)).findings] == ["grid"]
    assert doctor(model, (3, 9, 9)).exact


def test_what_no_rule_foresees_and_what_leaves_the_model_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = torch.zeros(2, 3, 8, 8)
    found = doctor(Fn(lambda x: kept.copy_(x[..., 1:].repeat(1, 1, 1, 2)[..., :8]) + x), (3, 8, 8))
    assert "unknown" in {f.kind for f in found.findings} and not kept.any()

    def fails(*_: object) -> None:
        raise KeyError("dims")

    monkeypatch.setitem(interpreter.RULES, "permute", fails)
    found = doctor(Fn(lambda x: x.permute(0, 1, 2, 3)), (3, 8, 8))
    assert [(f.op, f.kind) for f in found.findings] == [("permute", "unknown")]


def test_a_cyclic_output_ends_and_one_without_tensors_is_an_error() -> None:
    def cyclic(x: Tensor) -> object:
        out: list[object] = [x[..., 1:]]
        out.append(SimpleNamespace(out=out))
        return out

    assert not doctor(Fn(cyclic), (3, 8, 8)).exact  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="returns no tensor: let it return what it computes"):
        doctor(Fn(lambda x: None), (3, 8, 8))  # type: ignore[arg-type, return-value]


SOBEL = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]).expand(3, 1, 3, 3)
BLUR = torch.tensor([[1.0, 2, 1], [2, 4, 2], [1, 2, 1]]).expand(3, 1, 3, 3)


class Fixed(nn.Module):
    """A convolution with a kernel that is not learnt, held or made in one of several ways."""

    def __init__(self, kernel: Tensor, how: str) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("kernel", kernel.clone() if how == "buffer" else kernel[:1].clone())
        self.held = [kernel]

    def forward(self, x: Tensor) -> Tensor:
        kernel = {
            "buffer": lambda: self.kernel,
            "made of a buffer": lambda: (self.kernel / 8).to(x).repeat(3, 1, 1, 1),
            "list": lambda: self.held[0],
        }[self.how]()
        return F.conv2d(x, kernel, padding=1, groups=3)


@pytest.mark.parametrize("how", ["buffer", "made of a buffer", "list"])
@pytest.mark.parametrize("kernel", [SOBEL, BLUR])
def test_a_fixed_kernel_must_look_the_same_in_all_orientations(how: str, kernel: Tensor) -> None:
    model, x = Fixed(kernel, how), torch.rand(2, 3, 8, 8)
    found = doctor(model, (3, 8, 8))
    assert found.exact == torch.allclose(model(x.rot90(1, (2, 3))), model(x).rot90(1, (2, 3)), atol=1e-5)
    assert found.exact == (kernel is BLUR) and {f.kind for f in found.findings} <= {"kernel"}


def test_a_fixed_kernel_may_be_a_constant_and_a_parameter_is_learnt() -> None:
    rows = SOBEL.tolist()
    found = doctor(Fn(lambda x: F.conv2d(x, torch.tensor(rows), groups=3)), (3, 8, 8))
    assert [f.kind for f in found.findings] == ["kernel"]
    found = doctor(Fn(lambda x: F.conv2d(x, SOBEL, groups=3)), (3, 8, 8))
    assert [f.kind for f in found.findings] == ["kernel"]
    learnt = nn.Conv2d(3, 3, 3, groups=3, bias=False)
    learnt.weight.data, learnt.weight.requires_grad = SOBEL.clone(), False
    assert doctor(learnt, (3, 8, 8)).exact


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("kernel", [2, 3, 4])
def test_same_padding_of_an_even_kernel_is_one_sided(kernel: int) -> None:
    model = net(conv(kernel, padding="same"))
    found = doctor(model, (3, 9, 9))
    assert found.exact == measured_exact(model, 9) == (kernel == 3)
    assert found.exact or (found.findings[0].shift == 0.5 and "padding" in found.findings[0].op)


OPTIONS = st.sampled_from(["conv", "max", "avg", "up", "transposed", "pad", "crop"])


@st.composite
def layers(draw: st.DrawFn) -> nn.Module:
    kind = draw(OPTIONS)
    k, s = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    p = draw(st.integers(0, k // 2))
    if kind == "conv":
        return conv(k, stride=s, padding=p, dilation=draw(st.integers(1, 2)))
    if kind == "max":
        return nn.MaxPool2d(k, s, p, ceil_mode=draw(st.booleans()))
    if kind == "avg":
        return nn.AvgPool2d(k, s, p, ceil_mode=draw(st.booleans()), count_include_pad=draw(st.booleans()))
    if kind == "up":
        mode = draw(st.sampled_from(["nearest", "nearest-exact", "bilinear", "bicubic"]))
        return resize(size=draw(st.integers(2, 14)), mode=mode)
    if kind == "transposed":
        return nn.ConvTranspose2d(CHANNELS, CHANNELS, k, s, p, draw(st.integers(0, s - 1)))
    if kind == "pad":
        sides = draw(st.tuples(*[st.integers(0, 1)] * 4))
        return nn.Sequential(nn.ZeroPad2d(sides), conv(k, stride=s, padding=p))
    start, stop = draw(st.integers(0, 1)), draw(st.integers(0, 1))
    return Fn(lambda x: x[..., start : x.shape[-2] - stop, start : x.shape[-1] - stop])


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(layers(), min_size=1, max_size=3), st.integers(5, 13))
def test_verdict_on_random_nets_is_what_symmetric_kernels_measure(chosen: list[nn.Module], size: int) -> None:
    model = net(*(nn.Sequential(layer, nn.GELU()) for layer in chosen))
    x = torch.randn(2, 3, size, size, dtype=torch.float64)
    try:
        for module in symmetrised(model):
            x = module(x)
            assume(x.shape[-1] > 1 and x.shape[-2] > 1)  # one pixel forgets what was done to its neighbours
    except RuntimeError:
        with pytest.raises(ValueError, match="fails on an input"):
            doctor(model, (3, size, size))
        return
    with mock.patch("ien.geometry.sizes.MAX_OPERATIONS", 1):
        found = doctor(model, (3, size, size))
    if found.exact or len(chosen) == 1:  # a stride may skip what an upsampling doubled: exact, but not found
        assert found.exact == measured_exact(model, size), str(found)


def same_padding(x: Tensor) -> Tensor:
    """What TensorFlow pads for a convolution 3×3 with stride 2: by the size, and more at the far edge."""
    total = [max((-(-n // 2) - 1) * 2 + 3 - n, 0) for n in (x.shape[-1], x.shape[-2])]
    return F.pad(x, (total[0] // 2, total[0] - total[0] // 2, total[1] // 2, total[1] - total[1] // 2))


SEARCHED = {
    "strides": lambda: net(conv(7, stride=2, padding=3), nn.MaxPool2d(3, 2, 1), conv(3, stride=2, padding=1)),
    "tf same": lambda: net(Fn(same_padding), conv(3, stride=2), Fn(same_padding), conv(3, stride=2)),
    "unet": lambda: net(UNet("nearest")),
    "cut": lambda: net(nn.ConvTranspose2d(CHANNELS, CHANNELS, 3, 2, 1, 1), Fn(lambda x: x[:, :, :-1, :-1])),
    "resize": lambda: net(resize(size=24), conv(3, stride=2)),
    "scale": lambda: net(resize(scale_factor=1.5, mode="bilinear")),
    "none": lambda: net(Fn(lambda x: x.roll(1, 3)), conv()),
    "pool that repairs": lambda: net(
        nn.ConvTranspose2d(CHANNELS, CHANNELS, 3, 2, 1, 1), nn.MaxPool2d(3, 2), conv(3, stride=2)
    ),
    "at few sizes": lambda: net(
        Fn(lambda x: x if x.shape[-1] in (8, 20, 22) else x * torch.arange(x.shape[-1], dtype=x.dtype))
    ),
}


@pytest.mark.parametrize("name", SEARCHED)
def test_exact_sizes_are_those_at_which_symmetric_kernels_measure_zero(name: str) -> None:
    given_size = 12
    model = SEARCHED[name]()
    found = doctor(model, (3, given_size, given_size))
    expected = [n for n in range(6, 25) if measured_exact(model, n)]
    nearest = sorted(expected, key=lambda n: (abs(n - given_size), n))[:8]
    assert found.exact_sizes == tuple(sorted(nearest))
    assert found.exact_sizes == found.grid_sizes or name == "at few sizes"
    assert found.exact == (given_size in found.exact_sizes)


def test_sizes_do_not_depend_on_the_clock_and_the_text_says_which_were_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = net(*[nn.Sequential(Fn(same_padding), conv(3, stride=2)) for _ in range(3)])
    whole = doctor(model, (3, 40, 40))
    assert whole.exact_sizes == (25, 33, 41, 49, 57, 65, 73) and whole.searched == (20, 80)
    assert "(nearest: 33 below, 41 above; searched 20 to 80)" in str(whole)
    monkeypatch.setattr("ien.geometry.sizes.MAX_OPERATIONS", 200)
    few = doctor(model, (3, 40, 40))
    assert set(few.exact_sizes) < set(whole.exact_sizes) and 20 < few.searched[0] < 40 < few.searched[1] < 80
    assert f"searched {few.searched[0]} to {few.searched[1]}" in str(few)
    monkeypatch.setattr("time.monotonic", lambda: 1e9)
    assert doctor(model, (3, 40, 40)) == few


LARGE = {
    "slices": (lambda: Fn(lambda x: x[..., 1:, 1:]), 2048),
    "reflection": (lambda: nn.Sequential(nn.ReflectionPad2d((0, 1, 0, 1)), nn.Conv2d(3, 3, 3)), 1536),
    "stride": (lambda: nn.Sequential(conv_of_three(), nn.MaxPool2d(3, 2)), 4096),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_maps_are_tried_on_small_ones(name: str) -> None:
    build, size = LARGE[name]
    tried: list[int] = []

    def noise(count: int, shape: tuple[int, int], make: Callable[..., Tensor] = exactness._noise) -> Tensor:
        tried.append(max(shape))
        return make(count, shape)

    started = time.process_time()
    with mock.patch.object(exactness, "_noise", noise):
        found = doctor(build(), (3, size, size))
    assert not found.exact and max(tried, default=0) <= exactness.MIN_COST_SIZE + 8
    assert time.process_time() - started < 6  # under one second on an idle machine


def test_no_map_that_was_tried_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ien.geometry.sizes.MAX_OPERATIONS", 1)
    assert not doctor(resize(size=150), (3, 301, 301)).exact
    gc.collect()
    held = [each for each in gc.get_objects() if type(each) is Tensor and each.shape[-1:] == (301,)]
    assert not held


class Block(nn.Module):
    """A residual block, with a bottleneck if ``expansion`` is 4, inverted if it is less than 1."""

    def __init__(self, inside: int, width: int, stride: int, expansion: int) -> None:
        super().__init__()
        outside = width * expansion
        kernels = [1, 3, 1] if expansion > 1 else [3, 3]
        widths = [inside, *[width] * (len(kernels) - 1), outside]
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        for i, kernel in enumerate(kernels):
            by = stride if i == (1 if expansion > 1 else 0) else 1
            self.convs.append(nn.Conv2d(widths[i], widths[i + 1], kernel, by, kernel // 2, bias=False))
            self.norms.append(nn.BatchNorm2d(widths[i + 1]))
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride > 1 or inside != outside:
            self.downsample = nn.Sequential(nn.Conv2d(inside, outside, 1, stride), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for i, (convolve, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            y = norm(convolve(y))
            y = self.relu(y) if i + 1 < len(self.convs) else y
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


class ResNet(nn.Module):
    def __init__(self, depths: list[int], expansion: int, width: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1, self.relu, self.maxpool = (
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        inside = width
        for i, depth in enumerate(depths):
            blocks = []
            for j in range(depth):
                blocks.append(Block(inside, width << i, 2 if i and not j else 1, expansion))
                inside = (width << i) * expansion
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(inside, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def test_resnet50_is_exact_at_225_and_not_at_224() -> None:
    with torch.device("meta"):  # no time for weights
        model = ResNet([3, 4, 6, 3], 4)
    started = time.monotonic()
    found = doctor(model, (3, 224, 224))
    assert time.monotonic() - started < 15  # two or three seconds on an idle machine
    assert not found.exact
    assert {193, 225, 257} <= set(found.exact_sizes) and all(n % 32 == 1 for n in found.exact_sizes)
    assert [f.module for f in found.findings[:2]] == ["conv1", "maxpool"]
    assert {f.module.split(".")[0] for f in found.findings} == {
        "conv1",
        "maxpool",
        "layer2",
        "layer3",
        "layer4",
    }
    assert found.findings[0].op == "conv 7×7, stride 2, padding 3" and found.findings[0].size == (224, 224)
    assert [f.shift for f in found.findings] == [0.5, 1, 2, 2, 4, 4, 8, 8]


def test_resnet18_at_64_is_repaired_by_65() -> None:
    model = ResNet([2, 2, 2, 2], 1, width=4)
    found = doctor(model, (3, 64, 64))
    assert not found.exact and min(n for n in found.exact_sizes if n > 64) == 65
    assert doctor(model, (3, 65, 65)).exact and measured_exact(model, 65) and not measured_exact(model, 64)


def test_flattened_map_is_found_at_its_linear_layer_and_no_size_repairs_it() -> None:
    vgg = nn.Sequential(
        *[nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)],
        *[nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(36, 8), nn.ReLU(inplace=True), nn.Linear(8, 5)],
    )
    found = doctor(vgg, (3, 9, 9))
    assert [(f.module, f.kind, f.size) for f in found.findings] == [
        ("2", "grid", (9, 9)),
        ("5", "flatten", (3, 3)),
    ]
    assert found.exact_sizes == () and set(found.grid_sizes) == {6, 8, 10, 12, 14, 16, 18}
    assert not measured_exact(vgg, 8)
    assert "no input size was found that repairs all of it (searched 5 to 18)" in str(found)
    assert "8 below, 10 above" in str(found) and "cost: depends on the weights" in str(found)


@pytest.mark.parametrize("cls", [False, True])
def test_position_embedding_is_found_by_name(cls: bool) -> None:
    model = net(conv(2, stride=2), Attention(position=16 + cls, cls=cls))
    found = doctor(model, (3, 8, 8))
    assert [(f.module, f.kind, f.op) for f in found.findings] == [("4", "position", "add of '4.pos_embed'")]
    assert not measured_exact(model, 8)


def test_cost_is_the_relative_error_of_the_worst_element() -> None:
    found = doctor(nn.Conv2d(1, 1, 1, stride=2), (1, 8, 8)).findings[0]
    assert found.cost == pytest.approx(2, rel=0.2)  # other pixels of noise: unrelated
    assert found.reason == "8 + 2·0 − 1·(1−1) − 1 = 7 is not divisible by the stride 2"
    assert found.remedy == "a map of 7 or 9" and found.shift == 0.5


def test_functional_calls_are_named_by_the_module_they_ran_in() -> None:
    model = nn.Sequential(
        nn.Identity(), nn.Sequential(Fn(lambda x: F.max_pool2d(x, 2)), Fn(lambda x: x[:, :, 1:]))
    )
    found = doctor(model, (3, 9, 9))
    assert [f.module for f in found.findings] == ["1.0", "1.1"]
    assert doctor(Fn(lambda x: F.max_pool2d(x, 2)), (3, 9, 9)).findings[0].module == ""


def test_a_model_off_the_grid_on_non_square_inputs_says_so() -> None:
    found = doctor(conv_of_three(), (3, 9, 13))
    assert [f.kind for f in found.findings] == ["input"] and not found.exact and 9 in found.exact_sizes


def test_of_a_map_that_is_not_square_the_axis_that_fails_is_explained() -> None:
    found = doctor(conv_of_three(), (3, 9, 12))
    assert [f.kind for f in found.findings] == ["input", "grid"]
    assert found.findings[1].reason.startswith("12 + 2·1") and found.findings[1].remedy == "11 or 13 columns"
    assert {9, 11} <= set(found.exact_sizes) and "exact square input sizes" in str(found)
    assert "(nearest: 7 below, 13 above)" in str(found)


def test_remedies_name_what_to_do() -> None:
    wide = doctor(nn.Conv2d(3, 3, (1, 7), padding=(0, 3)), (3, 9, 9)).findings[0]
    assert wide.remedy.startswith("a kernel 7×7")
    windows = doctor(Fn(lambda x: x.view(2, 3, 2, 4, 2, 4).mean((3, 5))), (3, 8, 8)).findings[0]
    assert windows.kind == "unknown" and "in place of windows" in windows.remedy
    places = doctor(Fn(lambda x: x + torch.arange(8.0)), (3, 8, 8)).findings[0]
    assert "instead of a position embedding, a relative one or none" in places.remedy


def test_findings_that_differ_in_numbers_only_are_one() -> None:
    found = doctor(Fn(lambda x: torch.stack([x[:, :, i] * 2 for i in range(8)], 2)), (3, 8, 8))
    slices = [f for f in found.findings if f.kind == "grid"]
    assert [(f.op, f.times) for f in slices] == [("slice 0:1 of 8 rows", 8)]
    assert "slice 0:1 of 8 rows, on 8×8, 8 times with other numbers" in str(found)


def conv_of_three() -> nn.Module:
    return nn.Conv2d(3, 3, 3, stride=2, padding=1)


OUTSIDE = torch.zeros(3)


class Restless(nn.Module):
    """Everything that a forward pass may change in a model."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.conv, self.norm, self.fails = conv_of_three(), nn.BatchNorm2d(3), fails
        self.register_buffer("count", torch.zeros(1))
        self.grid: Tensor | None = None
        self.constant = torch.ones(3, 1, 1)
        self.memo: dict[str, object] = {"inner": []}
        self.calls = 0
        self.means = [torch.zeros(3, 1, 1)]
        self.named = {"mean": torch.zeros(3, 1, 1)}
        self.last: deque[Tensor] = deque(maxlen=2)
        self.pair: tuple[list[Tensor], int] = ([], 0)
        self.counts: Counter[str] = Counter()
        self.state = SimpleNamespace(last=None, count=0, mean=torch.zeros(3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.calls += 1
        self.grid = torch.linspace(0, 1, x.shape[-1])
        self.memo["last"] = x
        self.memo["inner"].append(x)  # type: ignore[attr-defined]
        self.constant.mul_(2)
        for mean in (self.means[0], self.named["mean"], self.state.mean, OUTSIDE):
            mean.add_(1)
        self.last.append(x)
        self.pair[0].append(x)
        self.counts["forward"] += 1
        self.state.last, self.state.count = x, self.state.count + 1
        if self.fails:
            raise RuntimeError("no")
        return self.norm(self.conv(x * self.constant + self.grid + self.means[0])) + torch.rand(1)


def state_of(model: nn.Module) -> list[object]:
    return [
        {
            key: (id(value), len(value) if isinstance(value, dict | list) else None)
            for key, value in m.__dict__.items()
        }
        for m in model.modules()
    ]


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_untouched(fails: bool) -> None:
    model = nn.Sequential(Restless(fails), nn.Dropout()).train()
    model[1].eval()
    seen: list[str] = []
    model[0].conv.register_forward_hook(lambda *_: seen.append("own hook"))
    state = state_of(model)
    tensors = {key: (tensor, tensor.clone()) for key, tensor in model.state_dict(keep_vars=True).items()}
    rng, fastpath = torch.get_rng_state(), torch.backends.mha.get_fastpath_enabled()
    if fails:
        with pytest.raises(ValueError, match="no"):
            doctor(model, (3, 8, 8))
    else:
        doctor(model, (3, 8, 8))
    assert not seen
    assert state_of(model) == state
    assert [m.training for m in model.modules()] == [True, True, True, True, False]
    assert model[0].memo == {"inner": []} and model[0].calls == 0 and model[0].grid is None
    assert (
        not model[0].last and model[0].last.maxlen == 2 and model[0].pair == ([], 0) and not model[0].counts
    )
    assert model[0].state.last is None and model[0].state.count == 0
    for tensor in (model[0].means[0], model[0].named["mean"], model[0].state.mean, OUTSIDE):
        assert type(tensor) is Tensor and not tensor.any() and vars(tensor) == {}
    assert torch.equal(model[0].constant, torch.ones(3, 1, 1)) and vars(model[0].constant) == {}
    for key, tensor in model.state_dict(keep_vars=True).items():
        assert tensor is tensors[key][0] and torch.equal(tensor, tensors[key][1])
    assert torch.equal(torch.get_rng_state(), rng) and torch.backends.mha.get_fastpath_enabled() == fastpath


def test_a_model_may_hold_tensors_of_any_kind() -> None:
    model = conv_of_three()
    ragged = torch.nested.nested_tensor([torch.rand(2), torch.rand(3)], layout=torch.jagged)
    model.held = [torch.eye(3).to_sparse(), torch.tensor(1), ragged]  # type: ignore[assignment]
    before = list(model.held)  # type: ignore[arg-type]
    assert not doctor(model, (3, 8, 8)).exact
    assert all(a is b for a, b in zip(model.held, before, strict=True))  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, on import of its compiler
def test_a_compiled_or_parallel_model_is_seen_through() -> None:
    inner = nn.Sequential(torch.compile(conv_of_three()), nn.ReLU())
    model = nn.DataParallel(inner)
    found = doctor(model, (3, 8, 8))
    assert [f.module for f in found.findings] == ["0"]
    assert model.module is inner and hasattr(inner[0], "_orig_mod")


def test_diagnosis_is_plain_data_and_readable() -> None:
    found = doctor(ResNet([1, 1, 1, 1], 1, width=4), (3, 64, 64))
    assert json.loads(json.dumps(dataclasses.asdict(found)))["findings"][0]["size"] == [64, 64]
    text = str(found)
    assert "at 64×64: not exact" in text and "conv1: conv 7×7, stride 2, padding 3, on 64×64" in text
    assert "relative error" in text and "off centre by 0.5 px" in text and "33 below, 65 above" in text
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.exact = True  # type: ignore[misc]
    exact = doctor(nn.Conv2d(3, 3, 3), (3, 8, 8))
    assert isinstance(exact, Diagnosis) and str(exact).startswith("quarter turns and flips at 8×8: exact\n")


@pytest.mark.parametrize(
    "size", [224, (224, 224), (3, 224, 0), (3, 2.5, 2), (True, 8, 8), "abc", None, (1, 3, 8, 8)]
)
def test_a_wrong_input_size_says_what_to_give(size: object) -> None:
    with pytest.raises(
        ValueError, match=r"input_size must be \(channels, height, width\), such as \(3, 224, 224\)"
    ):
        doctor(nn.Identity(), size)  # type: ignore[arg-type]


def test_input_sizes_may_be_of_any_integers() -> None:
    assert doctor(nn.Identity(), np.array([3, 8, 8])).input_size == (3, 8, 8)  # type: ignore[arg-type]
    assert doctor(nn.Identity(), torch.rand(3, 8, 8).shape).input_size == (3, 8, 8)


def test_a_model_that_fails_or_reads_values_is_a_clear_error() -> None:
    with pytest.raises(ValueError, match=r"the model fails on an input \(2, 4, 8, 8\)") as caught:
        doctor(conv_of_three(), (4, 8, 8))
    assert isinstance(caught.value.__cause__, RuntimeError) and "\n" not in str(caught.value)
    for reads in (lambda x: x * x.mean().item(), lambda x: x if x.sum() > 0 else -x, lambda x: x[x > 0]):
        with pytest.raises(ValueError, match="reads values of tensors") as caught:
            doctor(Fn(reads), (3, 8, 8))
        assert caught.value.__cause__ is not None and "\n" not in str(caught.value)
    for lazy in (nn.LazyConv2d(2, 3), nn.LazyBatchNorm2d(affine=False)):
        with pytest.raises(ValueError, match="module '0' is lazy and not set up yet: run the model once"):
            doctor(nn.Sequential(lazy), (3, 8, 8))
    for other in (nn.Bilinear(3, 3, 3), nn.Embedding(5, 3)):
        with pytest.raises(ValueError, match="wrap it in a module that takes one batch of images") as caught:
            doctor(other, (3, 8, 8))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "model, what", [(len, "a builtin"), (None, "a NoneType"), (nn.Conv2d, "the class Conv2d")]
)
def test_what_is_no_model_is_named(model: Any, what: str) -> None:
    with pytest.raises(TypeError, match=f"doctor takes a torch.nn.Module, such as .*; got {what}"):
        doctor(model, (3, 8, 8))


@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_the_small_map_that_is_tried_gives_the_answer_of_the_large_one(kernel: int, stride: int) -> None:
    for padding in range(kernel // 2 + 1):
        args = (
            ("kernel_size", (kernel, kernel)),
            ("stride", (stride, stride)),
            ("padding", (padding, padding)),
        )
        for extra in ((), (("ceil_mode", True),)):
            for func in (torch.ops.aten.avg_pool2d.default, torch.ops.aten.max_pool2d_with_indices.default):
                step = exactness.Step("pool", func, (*args, *extra))
                for n in range(40, 40 + stride):
                    assert exactness.is_exact((step,), (n, n)) == exactness._commutes((step,), (n, n), True)


@st.composite
def chains(draw: st.DrawFn) -> tuple[exactness.Step, ...]:
    """Convolutions, pools, slices and pads, one after the other."""
    chosen: list[exactness.Step] = []
    for kind in draw(st.lists(st.sampled_from(["pool", "conv", "slice", "pad"]), min_size=1, max_size=3)):
        k, s = draw(st.integers(1, 4)), draw(st.integers(1, 3))
        if kind == "pool":
            func, args = torch.ops.aten.avg_pool2d.default, {"kernel_size": (k, k), "stride": (s, s)}
            args |= {"padding": (k // 2, k // 2), "ceil_mode": draw(st.booleans())}
        elif kind == "conv":
            func, args = torch.ops.aten.convolution.default, {"kernel": (k, k), "stride": (s, s)}
            args |= {"padding": (k // 2, k // 2), "dilation": (1, 1), "transposed": draw(st.booleans())}
            args |= {"output_padding": (0, 0)}
        elif kind == "slice":
            func, args = rules_rearrange._slice_map, {"dim": 2, "start": draw(st.integers(0, 3))}
            args |= {"stop": -draw(st.integers(0, 3)), "step": s}
            chosen.append(exactness.Step(kind, func, tuple((args | {"dim": 3}).items())))
        else:
            func, args = F.pad, {"pad": draw(st.tuples(*[st.integers(0, 3)] * 4)), "mode": "reflect"}
        chosen.append(exactness.Step(kind, func, tuple(args.items())))
    return tuple(chosen)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(chains(), st.integers(60, 72))
def test_a_chain_on_a_small_map_gives_the_answer_of_the_large_one(
    chain: tuple[exactness.Step, ...], n: int
) -> None:
    size, placed = (n, n), []
    for step in chain:
        args = dict(step.args)
        if step.kind == "slice":  # the end was drawn from the far edge
            args["stop"] += size[args["dim"] - 2]
        placed.append(step._replace(args=tuple(args.items())))
        size = exactness.size_after(placed[-1], size)
        assume(min(size) > 12)
        assert size == tuple(
            exactness._run(tuple(placed), torch.rand(1, 1, n, n, dtype=torch.float64)).shape[2:]
        )
    assert exactness.is_exact(tuple(placed), (n, n)) == exactness._commutes(tuple(placed), (n, n), True)
