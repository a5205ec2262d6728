"""The three files of rules: what they say of a net is what it does with symmetric kernels."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.helpers.symmetrised import (
    CHANNELS,
    Fn,
    assert_verdict_is_measured,
    commutes,
    conv,
    diagnosed,
    measured_exact,
    net,
    resize,
    strided,
    symmetrised,
    transposed,
    unet,
)

# --- convolutions, pools, resizes, padding, flips and rolls: those of usual windows are drawn below

SPATIAL = {
    "depthwise": net(conv(3, stride=2, padding=1, groups=4)),
    "same padding, even kernel": net(conv(2, padding="same")),
    "replicate": net(conv(3, padding=1, padding_mode="replicate")),
    "kernel 1x3": net(nn.Conv2d(4, 4, (1, 3), padding=(0, 1))),
    "stride (1, 2)": net(conv(3, stride=(1, 2), padding=1)),
    "output padding cut off": net(transposed(3, 2, 1, 1), lambda x: x[:, :, :-1, :-1]),
    "output padding, then zeros": net(transposed(2, 2, 0, 1), nn.ZeroPad2d((1, 0, 1, 0))),
    "dilated pool": net(nn.MaxPool2d(2, 1, dilation=2)),
    "lp pool": net(torch.abs, nn.LPPool2d(2, 2)),
    "adaptive avg 3": net(nn.AdaptiveAvgPool2d(3)),
    "adaptive avg 3x2": net(nn.AdaptiveAvgPool2d((3, 2))),
    "nearest-exact ×0.5": net(resize(scale_factor=0.5, mode="nearest-exact")),
    "bilinear ×1.5": net(resize(scale_factor=1.5, mode="bilinear")),
    "bilinear, recomputed": net(resize(scale_factor=1.5, mode="bilinear", recompute_scale_factor=True)),
    "bilinear antialias": net(resize(size=5, mode="bilinear", antialias=True)),
    "pad one side, unused": net(nn.ZeroPad2d((0, 1, 0, 1)), conv(2, stride=2)),
    "pad left, then right": net(nn.ZeroPad2d((1, 0, 1, 0)), nn.ZeroPad2d((0, 1, 0, 1)), conv()),
    "pad with -inf": net(lambda x: F.pad(x, (1,) * 4, value=-torch.inf), nn.MaxPool2d(3, 1)),
    "cut, pad with -3e38": net(lambda x: F.pad(x[..., 1:, 1:], (1,) * 4, value=-3e38), nn.MaxPool2d(3, 1)),
    "reflect one side": net(nn.ReflectionPad2d((1, 0, 1, 0)), conv()),
    "circular one side": net(lambda x: F.pad(x, (1, 0, 1, 0), mode="circular"), conv()),
    "pad channels": net(lambda x: F.pad(x, (0, 0, 0, 0, 1, 0))[:, 1:]),
    "roll": net(lambda x: x.roll((1, 1), (2, 3)), conv()),
    "rolled and rolled back": net(lambda x: x.roll(1, 2).relu().roll(-1, 2), conv()),
    "flip one axis": net(lambda x: x.flip(2), conv()),
    "unet": unet(),
    "global code": net(nn.AdaptiveAvgPool2d(1), transposed(4), conv(padding=1)),
    "code on 3x5": net(lambda x: x.mean((2, 3), True).expand(-1, -1, 3, 5), conv(padding=1)),
    "code on 5x5": net(lambda x: x.mean((2, 3), True).expand(-1, -1, 5, 5), conv(padding=1)),
    "code, padded": net(lambda x: F.pad(x.mean((2, 3), True).expand(-1, -1, 5, 5), (1, 0, 1, 0)), conv()),
    "image pooling": net(lambda x: x + F.interpolate(x.mean((2, 3), True), x.shape[2:]), conv()),
    "conv along channels": net(
        Fn(lambda x, f: x * f(x.mean((2, 3))[:, None])[:, 0, :, None, None], nn.Conv1d(1, 1, 3, padding=1))
    ),
}

# --- views, slices, joins, repetition and single elements


def with_coordinates(x: Tensor, f: nn.Module) -> Tensor:
    rows = torch.linspace(-1, 1, x.shape[2], dtype=x.dtype).view(1, 1, -1, 1).expand(len(x), 1, *x.shape[2:])
    return f(torch.cat([x, rows], 1))


def channel_shuffle(x: Tensor) -> Tensor:
    return x.view(len(x), 2, 2, *x.shape[2:]).transpose(1, 2).reshape(x.shape)


REARRANGE = {
    "slice in two steps": net(lambda x: x[:, :, 1:, 1:].relu()[:, :, :-1, :-1], conv()),
    "every second": net(lambda x: x[..., ::2, ::2]),
    "centre pixel": net(lambda x: x[:, :, x.shape[2] // 2, x.shape[3] // 2]),
    "chunks of channels": net(lambda x: torch.cat(x.chunk(2, 1)[::-1], 1), conv()),
    "transpose": net(lambda x: x.transpose(2, 3)),
    "transpose twice": net(lambda x: x.mT, conv(), lambda x: x.mT),
    "x plus its transpose": net(lambda x: x + x.mT, conv()),
    "channels last": net(Fn(lambda x, f: f(x.permute(0, 2, 3, 1)).movedim(3, 1), nn.Linear(4, 4))),
    "coordinates": net(Fn(with_coordinates, nn.Conv2d(5, 4, 3, padding=1))),
    "channel shuffle": net(conv(padding=1, groups=2), channel_shuffle),
    "space to depth": net(lambda x: torch.cat([x[..., i:8:2, j:8:2] for i in (0, 1) for j in (0, 1)], 1)),
    "residual, in place": net(Fn(lambda x, f: f(x).relu_().add_(x).relu_(), conv(padding=1))),
    "residual with stride": net(
        Fn(lambda x, f: f(x) + F.conv2d(x, f.weight[..., 1:2, 1:2], None, 2), strided())
    ),
    "normalize": net(lambda x: F.normalize(x), nn.PReLU(4)),
    "zeros joined": net(lambda x: torch.cat([x, torch.zeros_like(x)], 1)[:, 2:6], conv()),
    "channels by index": net(lambda x: x[:, torch.tensor([3, 1, 0, 2])], conv()),
    "unbind and stack": net(lambda x: torch.stack(x.unbind(1)[::-1], 1), conv()),
    "stack": net(lambda x: torch.stack([x, -2 * x], 2).amax(2), conv()),
    "rows twice": net(lambda x: x.repeat(1, 1, 2, 1), conv(padding=1)),
    "rows twice, mean": net(lambda x: x.repeat(1, 1, 2, 1), conv(padding=1), lambda x: x.mean((2, 3))),
    "each row twice": net(lambda x: x.repeat_interleave(2, 2), conv(padding=1)),
    "each twice": net(lambda x: x.repeat_interleave(2, 2).repeat_interleave(2, 3), conv()),
    "channels twice": net(lambda x: x.repeat(1, 2, 1, 1)[:, 2:6], conv(padding=1)),
    "triangular mask": net(lambda x: x * torch.ones_like(x).tril()),
    "rows plus columns": net(lambda x: x.flatten(2) + x.mT.flatten(2)),
}

# --- reductions, softmax, norms and matrix products


def transformer() -> nn.Module:
    return nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)


def with_class_token(x: Tensor, f: nn.Module) -> Tensor:
    return f(torch.cat([x.new_ones(len(x), 1, 4), x.flatten(2).mT], 1))[:, 0]


def nonlocal_block(x: Tensor) -> Tensor:
    q = x.flatten(2)
    return x + torch.einsum("bcn,bnm->bcm", q, (q.transpose(1, 2) @ q).softmax(1)).view_as(x)


def correlation(x: Tensor) -> Tensor:
    """Two maps in one tensor (B, H·W, H, W)."""
    return (x.flatten(2).mT @ x.flatten(2)).view(len(x), -1, *x.shape[2:])


def group_norm_of_rows(x: Tensor) -> Tensor:
    rows = x.transpose(1, 2).flatten(0, 1)
    return F.group_norm(rows, 2).unflatten(0, (x.shape[0], x.shape[2])).transpose(1, 2)


def matrix_for_each_row(x: Tensor) -> Tensor:
    return torch.einsum("bchw,hcd->bdhw", x, torch.arange(16.0 * x.shape[2]).sin().view(-1, 4, 4).to(x))


COMBINE = {
    "global mean": net(lambda x: x.mean((2, 3))),
    "mean of means": net(lambda x: x.mean(3).mean(2)),
    "mean over rows": net(lambda x: x.mean(2, keepdim=True) * x),
    "moments": net(lambda x: torch.cat(torch.std_mean(x, (2, 3)), 1)),
    "softmax over places": net(lambda x: x.flatten(2).softmax(-1).view_as(x)),
    "sorted channels": net(lambda x: x.sort(1)[0], conv()),
    "group norm": net(nn.GroupNorm(2, 4), conv()),
    "instance norm": net(nn.InstanceNorm2d(4, affine=True), conv()),
    "response norm": net(nn.LocalResponseNorm(3), conv()),
    "layer norm over channels": net(Fn(lambda x, f: f(x.movedim(1, 3)).movedim(3, 1), nn.LayerNorm(4))),
    "layer norm without weights": net(lambda x: F.layer_norm(x, x.shape[1:])),
    "squeeze and excite": net(Fn(lambda x, f: x * f(F.adaptive_avg_pool2d(x, 1)).sigmoid(), conv(1))),
    "attention": net(Fn(lambda x, f: f(x.flatten(2).mT).mT.reshape(x.shape), transformer())),
    "attention with class token": net(Fn(with_class_token, transformer())),
    "sdpa": net(lambda x: F.scaled_dot_product_attention(*[x.flatten(2).mT] * 3).mT.view_as(x)),
    "non-local": net(nonlocal_block),
    "products, added": net(lambda x: torch.baddbmm(x.mean((2, 3))[:, None], x.flatten(2), x.flatten(2).mT)),
    "one of two maps": net(lambda x: correlation(x).sum((2, 3)).amax(1)),
    "token mixing": net(lambda x: x.flatten(2) @ torch.arange(3.0 * x[0, 0].numel()).view(-1, 3).to(x)),
    "rows times columns": net(lambda x: x.flatten(2) @ x.mT.flatten(2).mT),
    "matrix for each row": net(matrix_for_each_row),
}
UNKNOWN = {
    "conv along rows": net(Fn(lambda x, f: f(x.mean(3)).mean(2), nn.Conv1d(4, 4, 3))),
    "pixel shuffle": net(nn.PixelShuffle(2)),
    "joined rows": net(lambda x: torch.cat([x, 2 * x], 2), conv(padding=1)),
    "rolled as a whole": net(lambda x: x.roll(1)),
    "padded tokens": net(lambda x: F.pad(x.flatten(2), (1, 0))[..., :-1].view_as(x)),
    "sums of tokens": net(lambda x: x.flatten(2).cumsum(2).view_as(x)),
    "rolled tokens": net(lambda x: x.flatten(2).roll(1, 2).view_as(x)),
    "rows by index": net(lambda x: x[:, :, torch.arange(x.shape[2]).flip(0)]),
    "columns by index": net(lambda x: x.index_select(-1, torch.arange(x.shape[3]).flip(0))),
    "softmax over rows": net(lambda x: x.softmax(2)),
    "cumsum": net(lambda x: x.cumsum(-1)),
    "axial attention": net(lambda x: (x @ x.mT).softmax(-1) @ x),
    "rows of one of two maps": net(lambda x: correlation(x).sum((1, 2))),
    "rows and columns of two": net(lambda x: torch.einsum("bchw,bcHW->bhwHW", x, x).sum((1, 4))),
    "response norm of rows": net(lambda x: F.local_response_norm(x.movedim(1, 3), 3).movedim(3, 1)),
    "group norm of rows": net(group_norm_of_rows),
    "layer norm of rows": net(lambda x: F.layer_norm(x, x.shape[-1:])),
    "index of the largest": net(lambda x: x.flatten(2).argmax(2).to(x)),
    "vector of weights": net(lambda x: x @ torch.arange(x.shape[-1]).to(x)),
    "fourier": net(lambda x: torch.fft.fft2(x).abs()),
    "kernel computed from a map": net(lambda x: F.conv2d(x, x[..., :3, :3])),
}
FOLLOWED = SPATIAL | REARRANGE | COMBINE


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("size", [8, 9])
@pytest.mark.parametrize("name", FOLLOWED)
def test_verdict_is_what_symmetric_kernels_measure(name, size) -> None:
    assert_verdict_is_measured(FOLLOWED[name], size)


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_no_rule_follows_is_unknown_and_not_exact(name) -> None:
    assert not measured_exact(UNKNOWN[name], 9)
    assert "unknown" in {finding.kind for finding in diagnosed(UNKNOWN[name], 9).findings}


@st.composite
def layers(draw: st.DrawFn) -> nn.Module:
    kind = draw(st.sampled_from(["conv", "max", "avg", "up", "transposed", "pad", "crop"]))
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
        return transposed(k, s, p, draw(st.integers(0, s - 1)))
    if kind == "pad":
        sides = draw(st.tuples(*[st.integers(0, 1)] * 4))
        return nn.Sequential(nn.ZeroPad2d(sides), conv(k, stride=s, padding=p))
    start, stop = draw(st.integers(0, 1)), draw(st.integers(0, 1))
    return Fn(lambda x: x[..., start : x.shape[-2] - stop, start : x.shape[-1] - stop])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(layers(), min_size=1, max_size=3), st.integers(5, 13))
def test_verdict_on_random_nets_is_what_symmetric_kernels_measure(chosen, size) -> None:
    model = net(*(nn.Sequential(layer, nn.GELU()) for layer in chosen))
    x = torch.randn(2, 3, size, size, dtype=torch.float64)
    try:
        for module in symmetrised(model):
            x = module(x)
            assume(x.shape[-1] > 1 and x.shape[-2] > 1)  # one pixel forgets what was done to its neighbours
    except RuntimeError:
        with pytest.raises(ValueError, match="fails on an input"):
            diagnosed(model, size)
        return
    found = diagnosed(model, size)
    if found.exact or len(chosen) == 1:  # a stride may skip what an upsampling doubled: exact, but not found
        assert found.exact == measured_exact(model, size), str(found)


class Positions(nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.rand(shape))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.embedding


POSITIONS = {
    "add of '3.embedding'": Positions(9, 9),
    "add of '3.inner.embedding'": Fn(lambda x, f: f(x.flatten(2).mT).mT.view_as(x), Positions(81, 4)),
    "layer norm": nn.LayerNorm([4, 9, 9]),
    "batch norm": Fn(lambda x, f: f(x.mT.transpose(1, 3)).transpose(1, 3).mT, nn.BatchNorm2d(9)),
}


@pytest.mark.parametrize("op", POSITIONS)
def test_weights_for_each_position_are_found(op) -> None:
    model = net(POSITIONS[op])
    found = diagnosed(model, 9).findings[0]
    assert (found.kind, found.op) == ("position", op)
    assert not measured_exact(model, 9)


SOBEL = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]).expand(3, 1, 3, 3)
BLUR = torch.tensor([[1.0, 2, 1], [2, 4, 2], [1, 2, 1]]).expand(3, 1, 3, 3)
WAYS = {
    "buffer": lambda x, holder: holder.kernel,
    "computed from a buffer": lambda x, holder: (holder.kernel[:1] / 8).to(x).repeat(3, 1, 1, 1),
    "list": lambda x, holder: holder.held[0],
    "constant": lambda x, holder: torch.tensor(holder.numbers),
}


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("kernel", [SOBEL, BLUR], ids=["sobel", "blur"])
def test_a_fixed_kernel_must_be_symmetric(how, kernel) -> None:
    holder, x = nn.Identity(), torch.rand(2, 3, 8, 8)
    holder.register_buffer("kernel", kernel.clone())
    holder.held, holder.numbers = [kernel], kernel.tolist()
    model = Fn(lambda x, holder: F.conv2d(x, WAYS[how](x, holder), padding=1, groups=3), holder)
    found = diagnosed(model, 8)
    assert found.exact == torch.allclose(model(x.rot90(1, (2, 3))), model(x).rot90(1, (2, 3)), atol=1e-5)
    assert found.exact == (kernel is BLUR) and {f.kind for f in found.findings} <= {"kernel"}


def test_a_frozen_parameter_counts_as_learnt() -> None:
    learnt = nn.Conv2d(3, 3, 3, groups=3, bias=False)
    learnt.weight.data, learnt.weight.requires_grad = SOBEL.clone(), False
    assert diagnosed(learnt, 8).exact


# --- pixel shuffles: channels that become places rotate with the image


def shuffled(factor: int, *between: nn.Module, **options: int) -> nn.Sequential:
    """A convolution, a pixel shuffle, and a convolution at the higher resolution."""
    first = nn.Conv2d(3, CHANNELS * factor**2, **{"kernel_size": 3, "padding": 1} | options)
    return nn.Sequential(first, *between, nn.PixelShuffle(factor), nn.ReLU(), conv(padding=1))


def with_rotating_channels(model: nn.Sequential, factor: int) -> nn.Sequential:
    """Symmetric kernels, and a first one that is symmetric if its r² sub-pixels rotate with it."""
    model = symmetrised(model)
    kernel = torch.randn(model[0].weight.shape, dtype=torch.float64)
    blocks = kernel.unflatten(0, (-1, factor, factor))  # (C, r, r, 3, k, k)
    views = []
    for turns in range(4):
        view = blocks.rot90(turns, (1, 2)).rot90(turns, (4, 5))
        views += [view, view.flip(2, 5)]
    model[0].weight.data = torch.stack(views).mean(0).flatten(0, 2)  # (C r², 3, k, k)
    model[0].bias.data.fill_(0.3)
    return model


SHUFFLES = {
    "×2": (2, shuffled(2)),
    "×3, activation": (3, shuffled(3, nn.PReLU())),
    "in place, learnt scale": (2, shuffled(2, nn.ReLU(inplace=True), nn.Hardswish(inplace=True))),
    "strided": (2, shuffled(2, stride=2)),
    "pooled, strided": (2, shuffled(2, nn.AvgPool2d(3, 2), kernel_size=1, padding=0)),
    "even kernel": (2, shuffled(2, kernel_size=4, stride=2)),
}


@pytest.mark.parametrize("size", [8, 9, 10, 11])
@pytest.mark.parametrize("name", SHUFFLES)
def test_a_pixel_shuffle_is_as_exact_as_the_convolution_before_it(name: str, size: int) -> None:
    factor, model = SHUFFLES[name]
    found = diagnosed(model, size)
    assert found.exact == commutes(with_rotating_channels(model, factor), size), str(found)
    assert all(finding.kind == "grid" for finding in found.findings)
    assert not commutes(symmetrised(model), size)  # its channels do not rotate by themselves


def test_a_convolution_and_a_pixel_shuffle_are_a_transposed_convolution() -> None:
    """Which is why symmetric kernels make them exact: those of the transposed one are symmetric."""
    size, r = 3, 2
    model = with_rotating_channels(shuffled(r), r)[:2]
    kernel = torch.zeros(3, CHANNELS, size * r, size * r, dtype=torch.float64)
    blocks = model[0].weight.detach().view(CHANNELS, r, r, 3, size, size)
    for i, j, u, v in itertools.product(range(r), range(r), range(size), range(size)):
        kernel[:, :, i + r * (size - 1 - u), j + r * (size - 1 - v)] = blocks[:, i, j, :, u, v].T
    x = torch.rand(2, 3, 7, 7, dtype=torch.float64)
    expected = F.conv_transpose2d(x, kernel, stride=r, padding=r * (size - 1 - 1))
    torch.testing.assert_close(model(x), expected + 0.3)
    torch.testing.assert_close(kernel, kernel.rot90(1, (2, 3)))
    torch.testing.assert_close(kernel, kernel.flip(3))


CANNOT_ROTATE = {
    "the input": lambda x, f: F.pixel_shuffle(x.repeat(1, 4, 1, 1), 2),
    "a norm between": lambda x, f: F.pixel_shuffle(F.instance_norm(f(x)), 2),
    "channels alike": lambda x, f: F.pixel_shuffle(f(x).repeat(1, 4, 1, 1), 2),
    "another order": lambda x, f: F.pixel_shuffle(f(x).flip(1), 2),
    "images and channels": lambda x, f: F.pixel_shuffle(f(x).transpose(0, 1)[:, :1].expand(-1, 4, -1, -1), 2),
    "with the input": lambda x, f: F.pixel_shuffle(f(x) + x[:, :1], 2),
    "a constant": lambda x, f: F.pixel_shuffle(f(x) * torch.arange(16.0).view(-1, 1, 1), 2),
    "a constant in place": lambda x, f: F.pixel_shuffle(f(x).mul_(torch.arange(16.0).view(-1, 1, 1)), 2),
    "a part in place": lambda x, f: F.pixel_shuffle(written(f(x), x), 2),
    "twice": lambda x, f: F.pixel_shuffle(F.pixel_shuffle(f(x), 2), 2),
    "groups": lambda x, f: F.pixel_shuffle(F.conv2d(f(x), f.weight[:, :1, :1, :1], groups=16), 2),
    "unshuffle": lambda x, f: F.pixel_unshuffle(f(x), 2),
}


def written(h: Tensor, x: Tensor) -> Tensor:
    h[:, :1].copy_(x[:, :1])
    return h


@pytest.mark.parametrize("name", CANNOT_ROTATE)
def test_channels_that_cannot_rotate_make_a_pixel_shuffle_a_finding(name: str) -> None:
    found = diagnosed(Fn(CANNOT_ROTATE[name], nn.Conv2d(3, 16, 3, padding=1)), 8)
    assert not found.exact and any("pixel" in finding.op for finding in found.findings), str(found)


def test_findings_about_pixel_shuffles_name_the_remedy() -> None:
    norm = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.PixelShuffle(2), nn.Conv2d(4, 4, 3))
    (finding,) = diagnosed(norm, 8).findings
    assert (finding.module, finding.op, finding.kind) == ("2", "pixel shuffle", "unknown")
    assert finding.remedy == "put a convolution right before it, and a norm after it"
    (finding,) = diagnosed(nn.Sequential(nn.PixelUnshuffle(2), nn.Conv2d(12, 4, 3)), 8).findings
    assert finding.remedy.startswith("use a convolution with kernel size 2 and stride 2")
