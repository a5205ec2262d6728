"""Images of plane waves that are known at every point, so that they are scaled without resampling."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

import ien

Net = TypeVar("Net", bound=nn.Module)


def waves(
    size: int, scales: Sequence[float], wavelengths: tuple[float, float], seed: int, channels: int = 1
) -> list[Tensor]:
    """Two images (2, C, size, size) drawn at each of the scales, about their centre.

    A channel is the sum of 20 plane waves of random direction and phase, their wavelengths between two limits
    in pixels: smooth, band-limited, and as large at a border as in the middle.
    """
    generator = torch.Generator().manual_seed(seed)
    draws = torch.rand(3, 2, channels, 20, 1, 1, generator=generator, dtype=torch.float64)
    shortest, longest = wavelengths
    frequency = 2 * math.pi / (shortest * (longest / shortest) ** draws[0])
    angle, phase = 2 * math.pi * draws[1], 2 * math.pi * draws[2]
    place = torch.arange(size, dtype=torch.float64) - (size - 1) / 2
    along = angle.cos() * place + angle.sin() * place[:, None]  # (2, C, 20, size, size)
    return [(frequency * along / scale + phase).cos().sum(2).float() / 10**0.5 for scale in scales]


def middle(h: Tensor, half: float) -> Tensor:
    """The pixels at most ``half`` of a side away from the centre."""
    centre = h.shape[-1] // 2
    kept = slice(centre - int(half), centre + int(half))
    return h[..., kept, kept]


def scale_error(h: Tensor, h_g: Tensor, factor: float, inside: float) -> float:
    """How far maps of a scaled image are from the scaled maps of the image, over the variance of these.

    Over the pixels at most ``inside`` away from the centre, which see no border.
    """
    ones = torch.ones(len(h), dtype=torch.int64)
    moved = ien.scale([factor]).act_on_features(h, ones, mode="bicubic")
    difference = middle(h_g - moved, inside * min(factor, 1))
    return float(difference.square().mean() / middle(h, inside).var())


def shift_error(h: Tensor, h_g: Tensor, members: int, factor: float, inside: float) -> float:
    """:func:`scale_error` where each member of a feature group sees the scaled image as the next one saw it.

    The scale of members grows: of a larger image they are one further up, of a smaller one further down.
    """
    h, h_g = h.unflatten(1, (-1, members)), h_g.unflatten(1, (-1, members))
    if members > 1 and factor > 1:
        h, h_g = h[:, :, :-1], h_g[:, :, 1:]
    elif members > 1:
        h, h_g = h[:, :, 1:], h_g[:, :, :-1]
    return scale_error(h.flatten(1, 2), h_g.flatten(1, 2), factor, inside)


def tap_maps(net: nn.Module, x: Tensor) -> list[Tensor]:
    """The maps of each tap; without its classifier a net takes images of any size."""
    net.classifier = nn.Identity()
    with torch.no_grad(), ien.capture(net, net.taps) as features:
        net(x)
    return [features[tap] for tap in net.taps]


def free_filters(net: Net, kind: type[nn.Module]) -> Net:
    """A copy of the net whose layers of this kind have random kernels of the same sizes and norms."""
    net = copy.deepcopy(net)
    for layer in net.modules():
        if isinstance(layer, kind):
            kernels = [_like(kernel.detach()) for kernel in layer.kernels()]
            layer.kernels = lambda kernels=kernels: kernels
    return net


def _like(kernel: Tensor) -> Tensor:
    free = torch.randn_like(kernel)
    norms = kernel.flatten(1).norm(dim=1) / free.flatten(1).norm(dim=1)
    return free * norms.view(-1, *[1] * (kernel.ndim - 1))
