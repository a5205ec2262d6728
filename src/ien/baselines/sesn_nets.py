"""SESN's nets: a size or a width in, scale-equivariant twins of the three-layer CNN and of WRN-16-8 out."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise

from torch import nn

from ..loss.feature_groups import FeatureGroups, GroupPool
from ..models.cnn3 import CNN3
from ..models.cnn3 import num_groups as cnn3_fields
from ..models.wide_resnet import WideResNet, wide_stages
from ..models.wide_resnet import num_groups as wide_fields
from .sesn_layers import Filters, PointwiseConv2d, ScaleConv2d
from .steerable_layers import FieldNorm

__all__ = ["sesn_scalar", "sesn_vector", "sesn_wrn"]

# by the size at which the net looks at a digit, and whether digits are also scaled in training
VECTOR = {
    (28, False): Filters((1.5, 2.6, 4.5), 13, mult=1.5),
    (28, True): Filters((1.5, 2.6, 4.5), 15, mult=1.4),
    (56, False): Filters((2.0, 2.52, 3.17, 4.0), 15, mult=1.5),
    (56, True): Filters((1.5, 1.89, 2.38, 3.0), 13, mult=1.4),
}
SCALAR = {
    (28, False): Filters((1.7, 2.45, 3.54, 5.1), 15, mult=1.5),
    (28, True): Filters((1.5, 2.16, 3.12, 4.5), 13, mult=1.4),
    (56, False): Filters((2.0, 2.83, 4.0), 15, mult=1.4),
    (56, True): Filters((1.0, 1.73, 3.0), 17, mult=1.4),
}
WIDE = Filters((0.9, 0.9 * 1.41, 0.9 * 1.41**2), 7, effective_size=3)


def sesn_vector(
    size: int = 28,
    plus: bool = True,
    width: float | Fraction = 1,
    num_classes: int = 10,
    in_channels: int = 1,
) -> CNN3:
    """The SESN twin of :func:`ien.models.cnn3` with maps at each scale; the group pool ends the scales.

    ``plus`` takes the scales published for training with scaled digits. A feature group is a field: its
    members are the maps of one filter at each scale, and an image enlarged by a step of the scales moves them
    up by one.

    >>> net = sesn_vector()
    >>> str(net.feature_groups), sum(parameter.numel() for parameter in net.parameters())
    ('3', 494549)
    """
    filters = _filters("vector", VECTOR, size, plus)
    scales, fields = len(filters.scales), cnn3_fields(1, width)
    convs = [
        ScaleConv2d(before, after, filters, from_image=first, bias=True)
        for first, (before, after) in zip((True, False, False), pairwise([in_channels, *fields]), strict=True)
    ]
    norms = [FieldNorm(n, scales) for n in fields[:2]]
    return CNN3(convs, norms, FeatureGroups.of(scales), fields[-1], num_classes, in_channels, size)


def sesn_scalar(
    size: int = 28,
    plus: bool = True,
    width: float | Fraction = 1,
    num_classes: int = 10,
    in_channels: int = 1,
) -> CNN3:
    """The SESN twin of :func:`ien.models.cnn3` that takes the maximum over scales after each convolution.

    Its maps have no scale axis: they grow and shrink with the image as far as the scales reach, which on
    most images is not far: where the maximum lies at an end of the list it has no counterpart.
    """
    filters = _filters("scalar", SCALAR, size, plus)
    fields = cnn3_fields(1, width)
    convs = [
        nn.Sequential(
            ScaleConv2d(before, after, filters, from_image=True, bias=True), GroupPool(len(filters.scales))
        )
        for before, after in pairwise([in_channels, *fields])
    ]
    norms = [nn.BatchNorm2d(n) for n in fields[:2]]
    return CNN3(convs, norms, FeatureGroups.of(1), fields[-1], num_classes, in_channels, size)


def sesn_wrn(
    width: float | Fraction = 1, num_classes: int = 10, in_channels: int = 3, dropout: float = 0.3
) -> WideResNet:
    """SESN-A, the twin of :func:`ien.models.wide_resnet` with maps at three scales throughout.

    As there the last BatchNorm comes before the maximum over scales; the published code has it after.

    >>> sum(parameter.numel() for parameter in sesn_wrn().parameters())
    10961370
    """
    scales, fields = len(WIDE.scales), wide_fields(1, width)

    def conv(before: int, after: int, kernel: int, stride: int) -> nn.Module:
        if kernel == 1:
            return PointwiseConv2d(before, after, scales, stride)
        return ScaleConv2d(before, after, WIDE, stride=stride)

    def norm(n: int) -> nn.Module:
        return FieldNorm(n, scales)

    stem = ScaleConv2d(in_channels, fields[0], WIDE, from_image=True)
    stages = wide_stages(fields, conv, norm, dropout)
    net = WideResNet(
        stem, stages, norm(fields[-1]), FeatureGroups.of(scales), fields[-1], num_classes, in_channels
    )
    for layer in net.modules():
        if isinstance(layer, ScaleConv2d | PointwiseConv2d):
            after, _, functions = layer.weight.shape
            nn.init.normal_(layer.weight, std=(2 / (after * functions)) ** 0.5)  # as published
    return net


def _filters(kind: str, table: Mapping[tuple[int, bool], Filters], size: int, plus: bool) -> Filters:
    if (size, plus) not in table:
        raise ValueError(
            f"SESN {kind} has scales for size 28 or 56, plus True or False; got size={size!r}, plus={plus!r}"
        )
    return table[size, plus]
