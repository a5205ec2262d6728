"""SS-CNN: images in, nets out of scale-steerable filters, with the maximum over scales after each layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..loss.feature_groups import FeatureGroups, group_pool
from ..models.cnn3 import CNN3
from ..models.wide_resnet import WideResNet, plain_conv, wide_stages
from ..models.widths import rounded

__all__ = ["LogRadial", "ScaleSteerableConv2d", "log_radial_basis", "ss_cnn", "ss_cnn_wrn"]

CNN3_FIELDS = (30, 60, 90)
WRN_STEM, WRN_FIELDS = 11, (88, 176, 352)
SAMPLES = 16  # points along each side of a pixel, of which a filter's value there is the mean


class LogRadial(NamedTuple):
    """Of which functions the kernels are made, and in which sizes."""

    sizes: tuple[int, ...]
    """Pixels of the kernels, one scale for each: odd, ascending."""
    unit: int
    """The size of the kernel at scale 1: the scale of a kernel is its size over this one."""
    orders: tuple[float, ...]
    """Radial frequencies: periods of log r between one pixel and the corner of the largest kernel."""
    angles: int = 9
    """Directions from 0° to 180°, both included although they are the same: as published."""
    sigma: float = math.pi / 16
    """The deviation of a direction's Gaussian."""
    phase: float = -math.pi / 4

    @property
    def functions(self) -> int:
        """Weights of a kernel: a real and an imaginary part for each order and direction."""
        return 2 * len(self.orders) * self.angles

    @property
    def frequencies(self) -> tuple[float, ...]:
        """The orders as angular frequencies of log r."""
        corner = math.sqrt(2) * (max(self.sizes) - 1) / 2
        return tuple(2 * math.pi * order / math.log(corner) for order in self.orders)


CNN3_FILTERS = {
    28: LogRadial(sizes=(5, 7, 9, 11, 13), unit=11, orders=(0.5, 1, 2)),
    56: LogRadial(sizes=(7, 9, 11, 13, 15, 17), unit=11, orders=(0.5, 1, 2)),
}
WRN_FILTERS = LogRadial(sizes=(3, 5, 7), unit=3, orders=(1,))


def ss_cnn(
    size: int = 28,
    plus: bool = True,
    width: float | Fraction = 1,
    num_classes: int = 10,
    in_channels: int = 1,
) -> CNN3:
    """The SS-CNN twin of :func:`ien.models.cnn3`: 30, 60 and 90 fields of steered kernels without biases.

    ``plus`` changes nothing here: one list of sizes serves both protocols. The published count, 493,688, has
    7,410 parameters that its net never uses, and 256 biases that BatchNorm cancels.

    >>> sum(parameter.numel() for parameter in ss_cnn().parameters())
    486022
    """
    fields = rounded(CNN3_FIELDS, 1, width)
    filters = CNN3_FILTERS.get(size, CNN3_FILTERS[28])  # CNN3 refuses other sizes
    convs = [ScaleSteerableConv2d(*pair, filters) for pair in pairwise([in_channels, *fields])]
    norms = [nn.BatchNorm2d(n) for n in fields[:2]]
    return CNN3(convs, norms, FeatureGroups.of(1), fields[-1], num_classes, in_channels, size)


def ss_cnn_wrn(
    width: float | Fraction = 1, num_classes: int = 10, in_channels: int = 3, dropout: float = 0.3
) -> WideResNet:
    """The SS-CNN twin of :func:`ien.models.wide_resnet`: 11, 88, 176 and 352 fields, kernels of 3, 5 and 7.

    The published code forgets to hand the sizes to the blocks, so that only its stem has more than one scale;
    here all layers have three. Its count has one unused parameter more for each pair of fields.

    >>> sum(parameter.numel() for parameter in ss_cnn_wrn().parameters())
    10280522
    """
    fields = (WRN_STEM, *rounded(WRN_FIELDS, 1, width))
    stages = wide_stages(fields, _conv, nn.BatchNorm2d, dropout)
    stem = _conv(in_channels, fields[0], 3, 1)
    return WideResNet(
        stem, stages, nn.BatchNorm2d(fields[-1]), FeatureGroups.of(1), fields[-1], num_classes, in_channels
    )


def log_radial_basis(filters: LogRadial) -> list[Tensor]:
    """Log-radial harmonics, for each size (functions, size, size) in float64.

    Order k and direction φ_j make ``S(r, φ) = exp(i (k log r + phase)) K(φ - φ_j) / r`` on a disc as wide as
    the kernel, K a Gaussian around 0° and 180°. Steered to scale s it is ``exp(-i k log s) S / s``, by the
    paper's theorem ``S(r / s, φ) / s²``. Functions are its real part and minus its imaginary part, so that
    their combinations are the real parts of complex ones. Different from the published code:

    - a pixel is the mean over its area: S turns within pixels near the centre, where samples do not steer;
    - both parts are divided by one norm, and the factor 1 / s is there: steering needs both.

    >>> [tuple(b.shape) for b in log_radial_basis(LogRadial((3, 5), unit=3, orders=(1,)))]
    [(18, 3, 3), (18, 5, 5)]
    """
    bases = {size: _harmonics(filters, size) for size in (*filters.sizes, filters.unit)}
    norm = bases[filters.unit].abs().square().sum((1, 2), keepdim=True).sqrt() / math.sqrt(2)
    steered = (bases[size] / norm for size in filters.sizes)
    return [torch.stack([basis.real, -basis.imag], 1).flatten(0, 1) for basis in steered]


class ScaleSteerableConv2d(nn.Module):
    """A convolution with kernels steered to several scales, and the maximum over these, pixel by pixel.

    It commutes with scaling as far as the scale that wins at a pixel stays within the range of the kernels.
    Each size is a call of its own: in one call the small kernels would be padded to the largest, at almost
    twice the cost. Every forward pass expands the kernels, so that the state does not depend on the mode.

    >>> conv = ScaleSteerableConv2d(3, 8, LogRadial((3, 5), unit=3, orders=(1,)), stride=2)
    >>> conv(torch.rand(1, 3, 9, 9)).shape, conv.weight.shape
    (torch.Size([1, 8, 5, 5]), torch.Size([8, 3, 18]))
    """

    basis: Tensor

    def __init__(self, before: int, after: int, filters: LogRadial, stride: int = 1) -> None:
        super().__init__()
        self.filters, self.stride = filters, stride
        std = math.sqrt(2 / (before * filters.functions))
        self.weight = nn.Parameter(torch.empty(after, before, filters.functions))
        nn.init.normal_(self.weight, std=std)
        # constants, so they have values on the meta device too
        device = torch.device("cpu") if self.weight.is_meta else self.weight.device
        basis = _flat_basis(filters).to(device, self.weight.dtype, copy=True)
        self.register_buffer("basis", basis, persistent=False)

    def kernels(self) -> Sequence[Tensor]:
        """The plain kernels, for each size (after, before, size, size)."""
        sizes = self.filters.sizes
        parts = (self.weight @ self.basis).split([n * n for n in sizes], 2)
        return [part.unflatten(2, (n, n)) for part, n in zip(parts, sizes, strict=True)]

    def responses(self, x: Tensor) -> Tensor:
        """What the maximum is taken of: (B, after * scales, H, W)."""
        maps = [F.conv2d(x, k, None, self.stride, k.shape[-1] // 2) for k in self.kernels()]
        return torch.stack(maps, 2).flatten(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        return group_pool(self.responses(x), len(self.filters.sizes))

    def extra_repr(self) -> str:
        after, before, n = self.weight.shape
        return f"{before}, {after}, kernel_sizes={self.filters.sizes}, stride={self.stride}, basis={n}"


def _conv(before: int, after: int, kernel: int, stride: int) -> nn.Module:
    if kernel == 1:
        return plain_conv(before, after, 1, stride)
    return ScaleSteerableConv2d(before, after, WRN_FILTERS, stride)


@lru_cache(maxsize=16)
def _flat_basis(filters: LogRadial) -> Tensor:
    """The functions in all sizes, one after another: (functions, pixels of all)."""
    return torch.cat([basis.flatten(1) for basis in log_radial_basis(filters)], 1)


def _harmonics(filters: LogRadial, size: int) -> Tensor:
    """The functions steered to one size, complex (orders * angles, size, size)."""
    scale = size / filters.unit
    x = (_count(size * SAMPLES) + 0.5) / SAMPLES - size / 2
    y = -x[:, None]
    r = torch.hypot(x, y)
    turn = _column(filters.frequencies, 3) * (r / scale).log() + filters.phase
    radial = torch.polar((r <= size / 2) / (r * scale), turn)  # (orders, points, points)
    angular = _directions(filters, torch.atan2(y, x)).to(radial.dtype)  # (angles, points, points)
    pixels = (
        part.unflatten(2, (size, SAMPLES)).unflatten(1, (size, SAMPLES)).transpose(2, 3).flatten(3)
        for part in (radial, angular)
    )  # each (…, size, size, points of a pixel)
    means = torch.einsum("kyxp,jyxp->kjyx", *pixels).flatten(0, 1) / SAMPLES**2
    means[:, size // 2, size // 2] = _centre(filters, scale)
    return means


def _centre(filters: LogRadial, scale: float, rays: int = 1024) -> Tensor:
    """The functions over the centre pixel, where points do not converge: along rays the integral is known."""
    angle = (_count(rays) + 0.5) * (2 * math.pi / rays)
    edge = 0.5 / torch.maximum(angle.cos().abs(), angle.sin().abs())  # of the pixel
    frequency = _column(filters.frequencies, 2)
    power = 1 + 1j * frequency  # r S dr is a multiple of r**(power - 1) dr
    along = edge**power / power * torch.exp(1j * (filters.phase - frequency * math.log(scale))) / scale
    across = _directions(filters, angle).to(along.dtype) * (2 * math.pi / rays)
    return torch.einsum("kn,jn->kj", along, across).flatten()


def _directions(filters: LogRadial, angle: Tensor) -> Tensor:
    """The Gaussian of each direction at each angle: (angles, …)."""
    centres = _column([math.pi * j / (filters.angles - 1) for j in range(filters.angles)], angle.ndim + 1)
    off = torch.remainder(angle - centres + math.pi / 2, math.pi) - math.pi / 2
    return torch.exp(-((off / filters.sigma) ** 2) / 2)


def _count(n: int) -> Tensor:
    return torch.arange(n, dtype=torch.float64, device="cpu")


def _column(values: Sequence[float], ndim: int) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device="cpu").view(-1, *[1] * (ndim - 1))
