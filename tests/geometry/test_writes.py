"""Writing into tensors and their views: the verdict is what networks with symmetric kernels do."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.helpers.symmetrised import Fn, assert_verdict_is_measured, conv, net, strided


def changed(change) -> nn.Module:
    """What ``change`` does in place to a copy of the map."""

    def function(x: Tensor) -> Tensor:
        x = x.clone()
        change(x)
        return x

    return net(function, conv(padding=1))


def ramp(x: Tensor) -> Tensor:
    return torch.arange(x.shape[-1]).to(x)


def masked(x: Tensor, *at) -> Tensor:
    """Ones, with twos written at an index of a map's size."""
    mask = torch.ones(x.shape[-2:], dtype=x.dtype)
    mask[at] = 2
    return mask


def changed_behind_a_view(x: Tensor) -> Tensor:
    mask = torch.ones(x.shape[-2:], dtype=x.dtype)
    view = mask[:, :]
    mask[2:, :4] = 2
    return x * view


def through_an_outdated_view(x: Tensor) -> Tensor:
    canvas = torch.zeros_like(x)
    view = canvas[:, :2]
    canvas.copy_(x)
    return view * ramp(x)


def token_sines(x: Tensor) -> Tensor:
    tokens = x.flatten(2).mT
    sines = torch.zeros(tokens.shape[1:], dtype=x.dtype)
    angle = ramp(x.flatten(2))[:, None] / 3
    sines[:, 0::2], sines[:, 1::2] = angle.sin(), angle.cos()
    return (tokens + sines).mT.reshape(x.shape)


def masked_attention(x: Tensor) -> Tensor:
    t = x.flatten(2).mT
    mask = torch.zeros(t.shape[1], t.shape[1], dtype=x.dtype)
    mask[:30, 30:] = -100
    return ((t @ t.mT + mask).softmax(-1) @ t).mT.reshape(x.shape)


def drawn(y: Tensor, channels: int, at: slice) -> Tensor:
    canvas = torch.zeros(len(y), channels, *y.shape[2:], dtype=y.dtype)
    canvas[:, at] = y
    return canvas


def drawn_off_centre(x: Tensor) -> Tensor:
    canvas = torch.zeros(2, 4, x.shape[2] + 1, x.shape[3] + 1, dtype=x.dtype)
    canvas[..., 1:, 1:] = x
    return canvas


def half_another(x: Tensor, f: nn.Module) -> Tensor:
    y = f(x).clone()
    y[:, :2] = F.max_pool2d(x, 3, 2, 1)[:, :2]
    return y


def half_uncut(x: Tensor) -> Tensor:
    y = x[..., 1:, 1:].clone()
    y[:, :2] = F.avg_pool2d(x, 2, 1)[:, :2]
    return y[..., :-1, :-1]


def one_of_equals(x: Tensor) -> Tensor:
    equals = x.mean(1, True).expand(-1, 2, -1, -1).clone()
    equals[:, 0].mul_(-2)
    return equals.flatten(1, 2)[:, None].repeat(1, 4, 1, 2)


FOLLOWED = {
    "a channel": changed(lambda x: x[:, 0].zero_()),
    "canvas of channels": net(Fn(lambda x, f: drawn(f(x), 8, slice(4)), strided())),
    "canvas, all of it": net(Fn(lambda x, f: drawn(f(x), 4, slice(None)), strided())),
    "canvas, copied": net(strided(), lambda x: torch.zeros_like(x).copy_(x)),
    "canvas, half another": net(Fn(half_another, strided()), conv()),
    "canvas, cut on one side": net(half_uncut, conv()),
    "row of a mask": net(lambda x: x * masked(x, 0)),
    "every second column of a mask": net(lambda x: x * masked(x, ..., slice(None, None, 2))),
    "corners of a mask": net(lambda x: x * masked(x, slice(-4, None), slice(0, -4))),
    "transposed view of a mask": net(lambda x: x * masked(x, 0).mT),
    "mask of attention": net(masked_attention),
    "sines and cosines of tokens": net(token_sines),
}
INTO_PARTS = {
    "a border": changed(lambda x: x[:, :, 0].zero_()),
    "behind a view": net(changed_behind_a_view),
    "outdated view": net(through_an_outdated_view),
    "transposed write": changed(lambda x: x.transpose(2, 3).copy_(x.clone())),
    "transposed channel": changed(lambda x: x[:, 1].copy_(x[:, 0].mT)),
    "ramp in a channel": changed(lambda x: x[:, 0].copy_(ramp(x))),
    "map drawn off centre": net(drawn_off_centre, conv()),
    "scaled rows": changed(lambda x: x[:, :, 1:-1].mul_(2)),
    "flattened ramp": changed(lambda x: x.flatten(2).mul_(ramp(x.flatten(2)))),
    "one flattened element": changed(lambda x: x.flatten(2)[..., 0].zero_()),
    "checkerboard": changed(lambda x: x[..., ::2, ::2].zero_()),
    "other data": changed(lambda x: setattr(x, "data", x.flip(3))),
    "list of maps": changed(lambda x: torch._foreach_mul_([x], [ramp(x)])),
    "rows of a part": changed(lambda x: x[:, :2].mul_(ramp(x))),
    "channels no longer equal": net(one_of_equals, conv(padding=1)),
}


@pytest.mark.parametrize("size", [8, 9])
@pytest.mark.parametrize("name", FOLLOWED | INTO_PARTS)
def test_verdict_is_what_symmetric_kernels_measure(name, size) -> None:
    assert_verdict_is_measured((FOLLOWED | INTO_PARTS)[name], size, may_be_unknown=name in INTO_PARTS)
