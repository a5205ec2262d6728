"""Deep scale-spaces: images in, nets out whose maps shift along the scales when the image is halved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..loss.feature_groups import FeatureGroups
from ..models.cnn3 import CNN3
from ..models.cnn3 import num_groups as cnn3_fields
from ..models.resnet18 import Block
from ..models.wide_resnet import BLOCKS, STRIDES, WideResNet
from ..models.widths import rounded
from .steerable_layers import FieldNorm

__all__ = ["DilatedConv2d", "ScaleSpace", "discrete_gaussian", "dss", "dss_wrn"]

BASE = 2  # the factor from one scale to the next
CNN3_SCALES, CNN3_ZERO_SCALE, CNN3_KERNEL = 2, 0.25, 7
WRN_SCALES, WRN_ZERO_SCALE = 4, 0.5
WRN_EXTENTS = (2, 2, 1)  # scales seen at once at the entry of each stage: 4 -> 3, 2, 2
WRN_STEM, WRN_FIELDS = 16, (128, 240, 512)  # 240, not 256: the second weights of the extents are paid for


def dss(
    size: int = 28,
    plus: bool = True,
    width: float | Fraction = 1,
    num_classes: int = 10,
    in_channels: int = 1,
) -> CNN3:
    """The DSS twin of :func:`ien.models.cnn3`: two scales, kernels of 7×7 dilated by 1 and by 2.

    ``plus`` changes nothing here: one list of scales serves both protocols. No convolution has a bias, 190
    parameters less than in the plain net. Of the last layer the maximum over scales is normalised, as in the
    plain net; the published one normalises before that maximum.

    >>> sum(parameter.numel() for parameter in dss().parameters())
    494359
    """
    fields = cnn3_fields(1, width)
    convs: list[nn.Module] = [
        DilatedConv2d(before, after, CNN3_KERNEL, CNN3_SCALES)
        for before, after in pairwise([in_channels, *fields])
    ]
    convs[0] = nn.Sequential(ScaleSpace(CNN3_SCALES, CNN3_ZERO_SCALE), convs[0])
    norms = [FieldNorm(n, CNN3_SCALES) for n in fields[:2]]
    return CNN3(convs, norms, FeatureGroups.of(CNN3_SCALES), fields[-1], num_classes, in_channels, size)


def dss_wrn(
    width: float | Fraction = 1, num_classes: int = 10, in_channels: int = 3, dropout: float = 0.3
) -> WideResNet:
    """The DSS twin of :func:`ien.models.wide_resnet`: four scales, of which two stages each merge a pair.

    The first convolution of stages 1 and 2 sees two scales at once, so that 3, 2 and 2 scales leave the
    stages. ``width`` is a factor on their 128, 240 and 512 fields. Kernels start as near identities.

    >>> sum(parameter.numel() for parameter in dss_wrn().parameters()), dss_wrn(1 / 8).feature_groups
    (10939482, {'layer1': 3, 'layer2': 2, 'layer3': 2})
    """
    fields, scales = (WRN_STEM, *rounded(WRN_FIELDS, 1, width)), WRN_SCALES
    lifting = ScaleSpace(scales, WRN_ZERO_SCALE)
    stem = nn.Sequential(lifting, DilatedConv2d(in_channels, fields[0], 3, scales, delta=True))
    stages, left = [], []
    for (before, after), stride, extent in zip(pairwise(fields), STRIDES, WRN_EXTENTS, strict=True):
        blocks = [_block(before, after, scales, extent, stride, dropout)]
        scales -= extent - 1
        blocks += [_block(after, after, scales, 1, 1, dropout) for _ in range(BLOCKS - 1)]
        stages.append(blocks)
        left.append(scales)
    net = WideResNet(
        stem,
        stages,
        FieldNorm(fields[-1], scales),
        FeatureGroups.of(scales),
        fields[-1],
        num_classes,
        in_channels,
    )
    net.feature_groups = dict(zip(net.taps, left, strict=True))
    return net


class ScaleSpace(nn.Module):
    """Blurs images (B, C, H, W) to each scale: maps (B, C * scales, H, W), the first scale the image itself.

    The image counts as blurred by a Gaussian of deviation ``zero_scale``; scale k is then what a picture
    ``2**k`` times as large, shrunk, would look like, with one of ``2**k * zero_scale``.

    >>> ScaleSpace(4, zero_scale=0.5)(torch.rand(1, 3, 9, 9)).shape
    torch.Size([1, 12, 9, 9])
    """

    kernels: Tensor

    def __init__(self, scales: int, zero_scale: float) -> None:
        super().__init__()
        self.scales, self.zero_scale = scales, zero_scale
        variances = [zero_scale**2 * (BASE ** (2 * k) - 1) for k in range(scales)]
        radius = 4 * math.ceil(math.sqrt(variances[-1]))
        kernels = torch.stack([discrete_gaussian(variance, radius) for variance in variances])
        self.register_buffer("kernels", kernels.to(torch.get_default_dtype()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        channels, radius = x.shape[1], self.kernels.shape[1] // 2
        kernels = self.kernels.repeat(channels, 1)[:, None]  # (C * scales, 1, taps)
        h = F.conv2d(x, kernels[..., None, :], padding=(0, radius), groups=channels)
        return F.conv2d(h, kernels[..., None], padding=(radius, 0), groups=len(kernels))

    def extra_repr(self) -> str:
        return f"scales={self.scales}, zero_scale={self.zero_scale}"


def discrete_gaussian(variance: float, radius: int) -> Tensor:
    """Lindeberg's discrete Gaussian ``exp(-t) I_n(t)`` of variance t, n from -radius to radius, of sum 1.

    Two of them in a row are exactly the one of the summed variances, also for variances far below a pixel.

    >>> discrete_gaussian(0.0, 2).round(decimals=6).abs()
    tensor([0., 0., 1., 0., 0.], dtype=torch.float64)
    """
    real = {"dtype": torch.float64, "device": "cpu"}
    # its spectrum is exp(t (cos θ - 1)); the mean over so many angles is the integral, to all digits
    angles = torch.arange(512, **real) * (2 * math.pi / 512)  # type: ignore[call-overload]
    places = torch.arange(-radius, radius + 1, **real)  # type: ignore[call-overload]
    kernel = (torch.exp(variance * (angles.cos() - 1)) * (places[:, None] * angles).cos()).mean(1)
    return kernel / kernel.sum()


class DilatedConv2d(nn.Module):
    """The scale-space correlation: output scale k sees its input through the kernels dilated by ``2**k``.

    .. math:: h(k, x) = \\sum_{l < extent} \\sum_y w(l, y) f(k + l, x + 2^k y)

    From fields of ``scales`` channels to fields of ``scales - extent + 1``. Each dilation is a call of its
    own: in one call the kernels would be filled up with zeros, at several times the cost.

    >>> DilatedConv2d(4, 8, 3, scales=4, extent=2)(torch.rand(1, 16, 9, 9)).shape
    torch.Size([1, 24, 9, 9])
    """

    def __init__(
        self,
        before: int,
        after: int,
        kernel_size: int,
        scales: int,
        extent: int = 1,
        stride: int = 1,
        delta: bool = False,
    ) -> None:
        super().__init__()
        if not 1 <= extent <= scales:
            raise ValueError(f"extent is a number of scales from 1 to {scales}; got {extent}")
        self.scales, self.extent, self.stride = scales, extent, stride
        self.weight = nn.Parameter(torch.empty(after, before, extent, kernel_size, kernel_size))
        if delta:
            _near_identity_(self.weight)
        else:
            nn.init.normal_(self.weight, std=math.sqrt(2 / self.weight[0].numel()))

    def kernels(self) -> Sequence[Tensor]:
        """The kernels before dilation, for each output scale (after, before, extent, k, k): all the same."""
        return [self.weight] * (self.scales - self.extent + 1)

    def forward(self, x: Tensor) -> Tensor:
        fields = x.unflatten(1, (-1, self.scales))  # (B, before, scales, H, W)
        maps = []
        for k, kernel in enumerate(self.kernels()):
            dilation = BASE**k
            seen = fields[:, :, k : k + self.extent].flatten(1, 2)
            padding = kernel.shape[-1] // 2 * dilation
            maps.append(F.conv2d(seen, kernel.flatten(1, 2), None, self.stride, padding, dilation))
        return torch.stack(maps, 2).flatten(1, 2)

    def extra_repr(self) -> str:
        after, before, extent, size, _ = self.weight.shape
        return (
            f"{before}×{self.scales}, {after}×{self.scales - extent + 1}, kernel_size={size}, "
            f"extent={extent}, stride={self.stride}"
        )


def _block(before: int, after: int, scales: int, extent: int, stride: int, dropout: float) -> Block:
    """A block whose first convolution sees ``extent`` scales at once."""
    left = scales - extent + 1
    shortcut: nn.Module | None = None
    if before != after or stride > 1:
        shortcut = DilatedConv2d(before, after, 1, left, stride=stride, delta=True)
    if left < scales:
        shortcut = nn.Sequential(_FirstScales(scales, left), *([] if shortcut is None else [shortcut]))
    return Block(
        FieldNorm(before, scales),
        DilatedConv2d(before, after, 3, scales, extent, stride, delta=True),
        FieldNorm(after, left),
        DilatedConv2d(after, after, 3, left, delta=True),
        shortcut,
        dropout,
    )


class _FirstScales(nn.Module):
    def __init__(self, scales: int, left: int) -> None:
        super().__init__()
        self.scales, self.left = scales, left

    def forward(self, x: Tensor) -> Tensor:
        return x.unflatten(1, (-1, self.scales))[:, :, : self.left].flatten(1, 2)

    def extra_repr(self) -> str:
        return f"{self.left} of {self.scales}"


def _near_identity_(weight: Tensor) -> None:
    """Yu and Koltun's start for dilated kernels: each input field passes through, and a little noise."""
    after, before, _, size, _ = weight.shape
    common = math.gcd(before, after)
    nn.init.uniform_(weight, -0.01, 0.01)
    of_input, of_output = (torch.arange(n, device=weight.device) * common // n for n in (before, after))
    passes = of_output[:, None] == of_input  # (after, before)
    with torch.no_grad():
        centre = weight[..., size // 2, size // 2]  # (after, before, extent)
        centre.copy_(torch.where(passes[..., None], common / after, centre))
