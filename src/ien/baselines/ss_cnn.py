"""Scale-steerable filters (Ghosh and Gupta, 2019): the maximum over kernels at several scales.

A filter is a combination of log-radial harmonics. A harmonic of frequency k, stretched by s, is the
same one times exp(-i k log s) / s: its phase is steered, and the same weights give the filter at
every scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache, partial
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
SAMPLES = 16  # points along each side of a pixel; the value of a filter there is their mean
RAYS = 1024  # directions along which the pixel in the centre is integrated


class LogRadial(NamedTuple):
    """Which functions the kernels are made of, and in which sizes."""

    sizes: tuple[int, ...]
    """Pixels of the kernels, one scale for each: odd, ascending."""
    unit: int
    """The size of the kernel at scale 1: the scale of a kernel is its size over this one."""
    orders: tuple[float, ...]
    """Radial frequencies: periods of log r from one pixel to the corner of the largest kernel."""
    angles: int = 9
    """Directions from 0° to 180°, both included although they are the same: as published."""
    sigma: float = math.pi / 16
    """The deviation of a direction's Gaussian."""
    phase: float = -math.pi / 4
    published: bool = False
    """Sample the functions as the published code does, instead of so that they steer."""

    @property
    def functions(self) -> int:
        """Weights of a kernel: a real and an imaginary part for each order and direction."""
        return 2 * len(self.orders) * self.angles

    @property
    def frequencies(self) -> tuple[float, ...]:
        """The orders as angular frequencies of log r: 2π order / log(radius of the corner)."""
        corner = math.sqrt(2) * (max(self.sizes) - 1) / 2
        return tuple(2 * math.pi * order / math.log(corner) for order in self.orders)


CNN3_FILTERS = {
    28: LogRadial(sizes=(5, 7, 9, 11, 13), unit=11, orders=(0.5, 1, 2)),
    56: LogRadial(sizes=(7, 9, 11, 13, 15, 17), unit=11, orders=(0.5, 1, 2)),
}
WRN_FILTERS = LogRadial(sizes=(3, 5, 7), unit=3, orders=(1,))
PUBLISHED_BLOCK_FILTERS = LogRadial(sizes=(3,), unit=3, orders=(1,), published=True)


def ss_cnn(
    size: int = 28,
    plus: bool = True,
    width: float | Fraction = 1,
    num_classes: int = 10,
    in_channels: int = 1,
    published: bool = False,
) -> CNN3:
    """Build the SS-CNN twin of :func:`ien.models.cnn3`: 30, 60 and 90 fields, no biases.

    The published count, 493,688, has 7,410 parameters that its net never uses, and 256 biases that
    BatchNorm cancels.

    Args:
        size: 28, or 56 to double the images first.
        plus: Ignored: one list of sizes serves both protocols.
        width: A factor on the 30, 60 and 90 fields.
        num_classes: Scores for each image.
        in_channels: Channels of the images.
        published: Take the kernels of the published code, which do not steer exactly.

    >>> sum(parameter.numel() for parameter in ss_cnn().parameters())
    486022
    """
    fields = rounded(CNN3_FIELDS, 1, width)
    filters = CNN3_FILTERS.get(size, CNN3_FILTERS[28])  # other sizes: CNN3 raises the error
    filters = filters._replace(published=published)
    convs = []
    for before, after in pairwise([in_channels, *fields]):
        convs.append(ScaleSteerableConv2d(before, after, filters))
    norms = [nn.BatchNorm2d(fields[0]), nn.BatchNorm2d(fields[1])]
    return CNN3(convs, norms, FeatureGroups.of(1), fields[-1], num_classes, in_channels, size)


def ss_cnn_wrn(
    width: float | Fraction = 1,
    num_classes: int = 10,
    in_channels: int = 3,
    dropout: float = 0.3,
    published: bool = False,
) -> WideResNet:
    """Build the SS-CNN twin of :func:`ien.models.wide_resnet`, with kernels of 3, 5 and 7 pixels.

    The published code forgets to hand the sizes to the blocks, so that only its stem has more than
    one scale; here all layers have three, unless ``published``. Its count has one unused parameter
    more for each pair of fields.

    Args:
        width: A factor on the 88, 176 and 352 fields of the stages.
        num_classes: Scores for each image.
        in_channels: Channels of the images.
        dropout: The share of values dropped before the second convolution of each block.
        published: Take the kernels of the published code, several sizes in the stem alone.

    >>> sum(parameter.numel() for parameter in ss_cnn_wrn().parameters())
    10280522
    """
    fields = (WRN_STEM, *rounded(WRN_FIELDS, 1, width))
    in_stem = WRN_FILTERS._replace(published=published)
    in_blocks = in_stem
    if published:
        in_blocks = PUBLISHED_BLOCK_FILTERS
    stages = wide_stages(fields, partial(_conv, filters=in_blocks), nn.BatchNorm2d, dropout)
    stem = _conv(in_channels, fields[0], 3, 1, in_stem)
    last_norm = nn.BatchNorm2d(fields[-1])
    return WideResNet(stem, stages, last_norm, FeatureGroups.of(1), fields[-1], num_classes, in_channels)


def log_radial_basis(filters: LogRadial) -> list[Tensor]:
    """Sample log-radial harmonics in each size.

    Frequency k and direction φ_j make

        S(r, φ) = exp(i (k log r + phase)) K(φ - φ_j) / r

    on a disc as wide as the kernel, with K a Gaussian around 0° and 180°. Steered to scale s it is

        S_s(r, φ) = S(r / s, φ) / s² = exp(-i k log s) S(r, φ) / s

    which is the paper's theorem. The functions are its real part and minus its imaginary part, so
    that their combinations are the real parts of complex ones. Two things differ from the published
    code, which ``filters.published`` asks for instead:

    - a pixel is the mean over its area: near the centre S oscillates within pixels, and samples do
      not steer;
    - both parts are divided by one norm, and the factor 1 / s is there: steering needs both.

    Returns:
        For each size (functions, size, size) in float64.

    >>> [tuple(b.shape) for b in log_radial_basis(LogRadial((3, 5), unit=3, orders=(1,)))]
    [(18, 3, 3), (18, 5, 5)]
    """
    at_scale_1 = _harmonics(filters, filters.unit)
    squares = at_scale_1.abs().square().sum((1, 2), keepdim=True)  # (orders * angles, 1, 1)
    norm = squares.sqrt() / math.sqrt(2)  # the mean of both parts
    bases = []
    for size in filters.sizes:
        if filters.published:
            basis = _published_harmonics(filters, size)  # (orders * angles, size, size)
        else:
            basis = _harmonics(filters, size) / norm  # (orders * angles, size, size)
        parts = torch.stack([basis.real, -basis.imag], 1)  # (orders * angles, 2, size, size)
        bases.append(parts.flatten(0, 1))  # (functions, size, size)
    return bases


class ScaleSteerableConv2d(nn.Module):
    """A convolution with kernels steered to several scales, and the maximum over the scales.

    It commutes with scaling as long as the scale that wins at a pixel stays within the range of the
    kernels. Each size is a call of its own: in one call the small kernels would be padded to the
    largest, at almost twice the cost. Every forward pass expands the kernels, so the state does not
    depend on the mode.

    Args:
        before: Channels of the input.
        after: Channels of the output.
        filters: The functions and sizes.
        stride: As in ``nn.Conv2d``.

    >>> conv = ScaleSteerableConv2d(3, 8, LogRadial((3, 5), unit=3, orders=(1,)), stride=2)
    >>> conv(torch.rand(1, 3, 9, 9)).shape, conv.weight.shape
    (torch.Size([1, 8, 5, 5]), torch.Size([8, 3, 18]))
    """

    basis: Tensor

    def __init__(self, before: int, after: int, filters: LogRadial, stride: int = 1) -> None:
        super().__init__()
        self.filters = filters
        self.stride = stride
        self.weight = nn.Parameter(torch.empty(after, before, filters.functions))
        nn.init.normal_(self.weight, std=math.sqrt(2 / (before * filters.functions)))
        # the basis is constant, so it has values even while the network is built on the meta device
        device = torch.device("cpu") if self.weight.is_meta else self.weight.device
        basis = _flat_basis(filters).to(device, self.weight.dtype, copy=True)
        self.register_buffer("basis", basis, persistent=False)

    def kernels(self) -> Sequence[Tensor]:
        """Return the plain kernels, for each size (after, before, size, size)."""
        sizes = self.filters.sizes
        flat = self.weight @ self.basis  # (after, before, pixels of all sizes)
        parts = flat.split([size * size for size in sizes], 2)
        kernels = []
        for part, size in zip(parts, sizes, strict=True):
            kernels.append(part.unflatten(2, (size, size)))
        return kernels

    def responses(self, x: Tensor) -> Tensor:
        """Return what the maximum is taken over: (B, after * scales, H, W)."""
        maps = []
        for kernel in self.kernels():
            maps.append(F.conv2d(x, kernel, None, self.stride, kernel.shape[-1] // 2))
        return torch.stack(maps, 2).flatten(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        return group_pool(self.responses(x), len(self.filters.sizes))

    def extra_repr(self) -> str:
        after, before, functions = self.weight.shape
        sizes = self.filters.sizes
        return f"{before}, {after}, kernel_sizes={sizes}, stride={self.stride}, basis={functions}"


def _conv(before: int, after: int, kernel: int, stride: int, filters: LogRadial) -> nn.Module:
    if kernel == 1:
        return plain_conv(before, after, 1, stride)
    return ScaleSteerableConv2d(before, after, filters, stride)


@lru_cache(maxsize=16)
def _flat_basis(filters: LogRadial) -> Tensor:
    """The functions in all sizes, side by side: (functions, pixels of all sizes)."""
    return torch.cat([basis.flatten(1) for basis in log_radial_basis(filters)], 1)


def _harmonics(filters: LogRadial, size: int) -> Tensor:
    """Sample the functions steered to one size: complex (orders * angles, size, size)."""
    scale = size / filters.unit
    points = size * SAMPLES
    # the points of all pixels, in pixels from the centre
    x = (torch.arange(points, dtype=torch.float64, device="cpu") + 0.5) / SAMPLES - size / 2
    y = -x[:, None]  # rows count downwards
    r = torch.hypot(x, y)  # (points, points)

    # exp(i (k log(r / s) + phase)) / (r s), within the disc
    argument = _column(filters.frequencies, 3) * (r / scale).log() + filters.phase
    modulus = (r <= size / 2) / (r * scale)
    radial = torch.polar(modulus, argument)  # (orders, points, points)
    angular = _directions(filters, torch.atan2(y, x)).to(radial.dtype)  # (angles, points, points)

    # the mean of their product over the points of each pixel
    products = torch.einsum("kyxp,jyxp->kjyx", _by_pixel(radial, size), _by_pixel(angular, size))
    means = products.flatten(0, 1) / SAMPLES**2  # (orders * angles, size, size)
    means[:, size // 2, size // 2] = _centre(filters, scale)
    return means


def _published_harmonics(filters: LogRadial, size: int) -> Tensor:
    """Sample the functions as published: complex (orders * angles, size, size).

    They are sampled at the centres of the pixels of the largest kernel, where the middle counts as
    r = 1, and smaller kernels are cut out of it. Directions are clockwise from the top. Each part
    has a norm of its own, and steering to scale s is exp(-i k log s) without the factor 1 / s.
    """
    radius = max(filters.sizes) // 2
    x = torch.arange(-radius, radius + 1, dtype=torch.float64, device="cpu")
    up = -x[:, None]
    r = torch.hypot(x, up)  # (largest, largest)
    disc = r <= radius
    r[radius, radius] = 1
    frequency = _column(filters.frequencies, 3)
    radial = torch.polar(disc / r, frequency * r.log() + filters.phase)  # (orders, largest, largest)
    angular = _directions(filters, torch.atan2(x, up))  # (angles, largest, largest)
    values = radial[:, None] * angular  # (orders, angles, largest, largest)
    real = values.real / values.real.norm(dim=(2, 3), keepdim=True)
    imag = values.imag / values.imag.norm(dim=(2, 3), keepdim=True)
    steered = torch.exp(-1j * frequency * math.log(size / filters.unit))  # (orders, 1, 1)
    values = torch.complex(real, imag) * steered[:, None]
    edge = radius - size // 2
    cut = values[..., edge : edge + size, edge : edge + size]
    return cut.flatten(0, 1)


def _by_pixel(values: Tensor, size: int) -> Tensor:
    """Gather the points of each pixel: (n, points, points) to (n, size, size, SAMPLES²)."""
    values = values.unflatten(2, (size, SAMPLES))  # (n, points, size, SAMPLES)
    values = values.unflatten(1, (size, SAMPLES))  # (n, size, SAMPLES, size, SAMPLES)
    return values.transpose(2, 3).flatten(3)


def _centre(filters: LogRadial, scale: float) -> Tensor:
    """Integrate the functions over the pixel in the centre: (orders * angles,).

    Sums over points do not converge there, but along a ray from 0 to the edge R of the pixel

        ∫ S_s(r) r dr = exp(i (phase - k log s)) / s · R^(1 + ik) / (1 + ik)
    """
    step = 2 * math.pi / RAYS
    angle = (torch.arange(RAYS, dtype=torch.float64, device="cpu") + 0.5) * step
    edge = 0.5 / torch.maximum(angle.cos().abs(), angle.sin().abs())  # (RAYS,)
    frequency = _column(filters.frequencies, 2)
    power = 1 + 1j * frequency
    steered = torch.exp(1j * (filters.phase - frequency * math.log(scale)))
    along = edge**power / power * steered / scale  # (orders, RAYS)
    across = _directions(filters, angle).to(along.dtype) * step  # (angles, RAYS)
    return torch.einsum("kn,jn->kj", along, across).flatten()


def _directions(filters: LogRadial, angle: Tensor) -> Tensor:
    """K(φ - φ_j), the Gaussian of each direction at each angle modulo 180°: (angles, …)."""
    centres = [math.pi * j / (filters.angles - 1) for j in range(filters.angles)]
    away = angle - _column(centres, angle.ndim + 1)
    away = torch.remainder(away + math.pi / 2, math.pi) - math.pi / 2
    return torch.exp(-((away / filters.sigma) ** 2) / 2)


def _column(values: Sequence[float], ndim: int) -> Tensor:
    """The values along the first of ``ndim`` axes: (n, 1, …)."""
    column = torch.tensor(values, dtype=torch.float64, device="cpu")
    return column.view(-1, *[1] * (ndim - 1))
