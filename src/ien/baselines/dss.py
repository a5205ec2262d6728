"""Deep scale-spaces (Worrall and Welling, 2019): if the image shrinks, maps shift along the scales.

The image is blurred to several scales (:class:`ScaleSpace`), and each scale is convolved with the
same kernels, dilated by its factor (:class:`DilatedConv2d`). Halving the image then moves its maps
by one scale.
"""

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
WRN_STEM, WRN_FIELDS = 16, (128, 240, 512)  # 240, not 256: pays for the second weights of the extents
ANGLES = 512  # at which the spectrum of a discrete Gaussian is sampled


def dss(
    size: int = 28,
    plus: bool = True,
    width: float | Fraction = 1,
    num_classes: int = 10,
    in_channels: int = 1,
) -> CNN3:
    """Build the DSS twin of :func:`ien.models.cnn3`: two scales, 7×7 kernels dilated by 1 and by 2.

    No convolution has a bias, 190 parameters less than in the plain net. The last BatchNorm comes
    after the maximum over scales, as in the plain net; the published one comes before it.

    Args:
        size: 28, or 56 to double the images first.
        plus: Ignored: one list of scales serves both protocols.
        width: A factor on the 32, 63 and 95 fields.
        num_classes: Scores for each image.
        in_channels: Channels of the images.

    >>> sum(parameter.numel() for parameter in dss().parameters())
    494359
    """
    fields = cnn3_fields(1, width)
    convs: list[nn.Module] = []
    for before, after in pairwise([in_channels, *fields]):
        convs.append(DilatedConv2d(before, after, CNN3_KERNEL, CNN3_SCALES))
    convs[0] = nn.Sequential(ScaleSpace(CNN3_SCALES, CNN3_ZERO_SCALE), convs[0])
    norms = [FieldNorm(fields[0], CNN3_SCALES), FieldNorm(fields[1], CNN3_SCALES)]
    groups = FeatureGroups.of(CNN3_SCALES)
    return CNN3(convs, norms, groups, fields[-1], num_classes, in_channels, size)


def dss_wrn(
    width: float | Fraction = 1, num_classes: int = 10, in_channels: int = 3, dropout: float = 0.3
) -> WideResNet:
    """Build the DSS twin of :func:`ien.models.wide_resnet`, with four scales at its entry.

    The first convolution of stages 1 and 2 sees two scales at once, so that 3, 2 and 2 scales leave
    the stages. Kernels start near the identity.

    Args:
        width: A factor on the 128, 240 and 512 fields of the stages.
        num_classes: Scores for each image.
        in_channels: Channels of the images.
        dropout: The share of values dropped before the second convolution of each block.

    >>> net = dss_wrn()
    >>> sum(parameter.numel() for parameter in net.parameters()), net.feature_groups
    (10939482, {'layer1': 3, 'layer2': 2, 'layer3': 2})
    """
    fields = (WRN_STEM, *rounded(WRN_FIELDS, 1, width))
    scales = WRN_SCALES
    lift = ScaleSpace(scales, WRN_ZERO_SCALE)
    stem = nn.Sequential(lift, DilatedConv2d(in_channels, fields[0], 3, scales, near_identity=True))
    stages = []
    scales_after = []
    for (before, after), stride, extent in zip(pairwise(fields), STRIDES, WRN_EXTENTS, strict=True):
        blocks = [_block(before, after, scales, extent, stride, dropout)]
        scales -= extent - 1
        for _ in range(BLOCKS - 1):
            blocks.append(_block(after, after, scales, 1, 1, dropout))
        stages.append(blocks)
        scales_after.append(scales)
    last_norm = FieldNorm(fields[-1], scales)
    groups = FeatureGroups.of(scales)
    net = WideResNet(stem, stages, last_norm, groups, fields[-1], num_classes, in_channels)
    net.feature_groups = dict(zip(net.taps, scales_after, strict=True))
    return net


class ScaleSpace(nn.Module):
    """Blur images (B, C, H, W) to each scale: (B, C * scales, H, W), the first unchanged.

    The image counts as blurred by a Gaussian of deviation s = ``zero_scale``. Scale k should look
    like a picture 2^k times as large, shrunk, whose blur has the deviation 2^k s; so it is blurred
    by the variance

        (2^k s)² - s² = s² (4^k - 1)

    >>> ScaleSpace(4, zero_scale=0.5)(torch.rand(1, 3, 9, 9)).shape
    torch.Size([1, 12, 9, 9])
    """

    kernels: Tensor

    def __init__(self, scales: int, zero_scale: float) -> None:
        super().__init__()
        self.scales = scales
        self.zero_scale = zero_scale
        variances = [zero_scale**2 * (BASE ** (2 * k) - 1) for k in range(scales)]
        radius = 4 * math.ceil(math.sqrt(variances[-1]))
        kernels = torch.stack([discrete_gaussian(variance, radius) for variance in variances])
        self.register_buffer("kernels", kernels.to(torch.get_default_dtype()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        channels = x.shape[1]
        radius = self.kernels.shape[1] // 2
        kernels = self.kernels.repeat(channels, 1)[:, None]  # (C * scales, 1, 2 * radius + 1)
        # first along the rows, then along the columns
        h = F.conv2d(x, kernels[..., None, :], padding=(0, radius), groups=channels)
        return F.conv2d(h, kernels[..., None], padding=(radius, 0), groups=len(kernels))

    def extra_repr(self) -> str:
        return f"scales={self.scales}, zero_scale={self.zero_scale}"


def discrete_gaussian(variance: float, radius: int) -> Tensor:
    """Return Lindeberg's discrete Gaussian of variance t, scaled to the sum 1.

        T(n) = exp(-t) I_n(t) = mean over θ of exp(t (cos θ - 1)) cos(n θ),   n = -radius … radius

    Two of them in a row are exactly the one of the summed variances, also for variances far below a
    pixel, where a sampled Gaussian fails.

    >>> discrete_gaussian(0.0, 2).round(decimals=6).abs()
    tensor([0., 0., 1., 0., 0.], dtype=torch.float64)
    """
    # the mean over the angles is the integral to all digits: the integrand is smooth and periodic
    angles = torch.arange(ANGLES, dtype=torch.float64, device="cpu") * (2 * math.pi / ANGLES)
    places = torch.arange(-radius, radius + 1, dtype=torch.float64, device="cpu")
    spectrum = torch.exp(variance * (angles.cos() - 1))  # (angles,)
    waves = (places[:, None] * angles).cos()  # (places, angles)
    kernel = (spectrum * waves).mean(1)  # (places,)
    return kernel / kernel.sum()


class DilatedConv2d(nn.Module):
    """The scale-space correlation: output scale k uses the kernels dilated by 2^k.

    .. math:: h(k, x) = \\sum_{l < extent} \\sum_y w(l, y) f(k + l, x + 2^k y)

    From fields of ``scales`` channels to fields of ``scales - extent + 1``. Each dilation is a call
    of its own: in one call the kernels would be filled up with zeros, at several times the cost.

    Args:
        before: Fields of the input.
        after: Fields of the output.
        kernel_size: Pixels along each side of the kernels, before dilation.
        scales: Scales of the input.
        extent: Scales that are seen at once.
        stride: As in ``nn.Conv2d``.
        near_identity: Start with kernels that pass each field through, instead of with random ones.

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
        near_identity: bool = False,
    ) -> None:
        super().__init__()
        if not 1 <= extent <= scales:
            raise ValueError(f"extent is a number of scales from 1 to {scales}; got {extent}")
        self.scales = scales
        self.extent = extent
        self.stride = stride
        self.weight = nn.Parameter(torch.empty(after, before, extent, kernel_size, kernel_size))
        if near_identity:
            _near_identity_(self.weight)
        else:
            nn.init.normal_(self.weight, std=math.sqrt(2 / self.weight[0].numel()))

    def kernels(self) -> Sequence[Tensor]:
        """Return the undilated kernels, for each output scale (after, before, extent, k, k)."""
        return [self.weight] * (self.scales - self.extent + 1)  # the same at all scales

    def forward(self, x: Tensor) -> Tensor:
        fields = x.unflatten(1, (-1, self.scales))  # (B, before, scales, H, W)
        maps = []
        for k, kernel in enumerate(self.kernels()):
            dilation = BASE**k
            padding = kernel.shape[-1] // 2 * dilation
            seen = fields[:, :, k : k + self.extent].flatten(1, 2)  # (B, before * extent, H, W)
            weight = kernel.flatten(1, 2)  # (after, before * extent, k, k)
            maps.append(F.conv2d(seen, weight, None, self.stride, padding, dilation))
        return torch.stack(maps, 2).flatten(1, 2)  # (B, after * (scales - extent + 1), H, W)

    def extra_repr(self) -> str:
        after, before, extent, size, _ = self.weight.shape
        return (
            f"{before}×{self.scales}, {after}×{self.scales - extent + 1}, kernel_size={size}, "
            f"extent={extent}, stride={self.stride}"
        )


def _block(before: int, after: int, scales: int, extent: int, stride: int, dropout: float) -> Block:
    """Build a block whose first convolution sees ``extent`` scales at once."""
    left = scales - extent + 1
    shortcut: nn.Module | None = None
    if before != after or stride > 1:
        shortcut = DilatedConv2d(before, after, 1, left, stride=stride, near_identity=True)
    if left < scales:
        # the convolution has fewer scales left, and so must what goes around it
        parts: list[nn.Module] = [_FirstScales(scales, left)]
        if shortcut is not None:
            parts.append(shortcut)
        shortcut = nn.Sequential(*parts)
    return Block(
        FieldNorm(before, scales),
        DilatedConv2d(before, after, 3, scales, extent, stride, near_identity=True),
        FieldNorm(after, left),
        DilatedConv2d(after, after, 3, left, near_identity=True),
        shortcut,
        dropout,
    )


class _FirstScales(nn.Module):
    """Drop all but the first ``left`` channels of each field."""

    def __init__(self, scales: int, left: int) -> None:
        super().__init__()
        self.scales = scales
        self.left = left

    def forward(self, x: Tensor) -> Tensor:
        fields = x.unflatten(1, (-1, self.scales))  # (B, fields, scales, H, W)
        return fields[:, :, : self.left].flatten(1, 2)  # (B, fields * left, H, W)

    def extra_repr(self) -> str:
        return f"{self.left} of {self.scales}"


def _near_identity_(weight: Tensor) -> None:
    """Yu and Koltun's start for dilated kernels: input fields pass through, with a little noise.

    With c the greatest common divisor of the numbers of fields, the centre of the kernel is

        w(i, j) = c / after   if ⌊c i / after⌋ = ⌊c j / before⌋
    """
    after, before, _, size, _ = weight.shape
    common = math.gcd(before, after)
    nn.init.uniform_(weight, -0.01, 0.01)
    of_input = torch.arange(before, device=weight.device) * common // before
    of_output = torch.arange(after, device=weight.device) * common // after
    passes = of_output[:, None] == of_input  # (after, before)
    with torch.no_grad():
        centre = weight[..., size // 2, size // 2]  # (after, before, extent)
        centre.copy_(torch.where(passes[..., None], common / after, centre))
