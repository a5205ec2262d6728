"""SESN's nets: scale-equivariant twins of the three-convolution net and of WRN-16-8."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from torch import nn

from ..loss.feature_groups import FeatureGroups, GroupPool
from ..models.cnn3 import CNN3
from ..models.cnn3 import num_groups as cnn3_fields
from ..models.wide_resnet import WideResNet, wide_stages
from ..models.wide_resnet import num_groups as wide_fields
from .sesn_layers import Filters, PointwiseConv2d, ScaleConv2d
from .steerable_layers import FieldNorm

__all__ = ["sesn_scalar", "sesn_vector", "sesn_wrn"]

# (size at which the net looks at a digit, whether digits are also scaled in training) → filters
VECTOR_FILTERS = {
    (28, False): Filters((1.5, 2.6, 4.5), 13, mult=1.5),
    (28, True): Filters((1.5, 2.6, 4.5), 15, mult=1.4),
    (56, False): Filters((2.0, 2.52, 3.17, 4.0), 15, mult=1.5),
    (56, True): Filters((1.5, 1.89, 2.38, 3.0), 13, mult=1.4),
}
SCALAR_FILTERS = {
    (28, False): Filters((1.7, 2.45, 3.54, 5.1), 15, mult=1.5),
    (28, True): Filters((1.5, 2.16, 3.12, 4.5), 13, mult=1.4),
    (56, False): Filters((2.0, 2.83, 4.0), 15, mult=1.4),
    (56, True): Filters((1.0, 1.73, 3.0), 17, mult=1.4),
}
WRN_FILTERS = Filters((0.9, 0.9 * 1.41, 0.9 * 1.41**2), 7, effective_size=3)


def sesn_vector(
    size: int = 28,
    plus: bool = True,
    width: float | Fraction = 1,
    num_classes: int = 10,
    in_channels: int = 1,
) -> CNN3:
    """Build the SESN twin of :func:`ien.models.cnn3` with maps at each scale, up to the group pool.

    A feature group is a field: its members are the maps of one filter at each scale, and an image
    enlarged by a step of the scales moves them up by one.

    Args:
        size: 28, or 56 to double the images first.
        plus: Take the scales published for training with scaled digits.
        width: A factor on the 32, 63 and 95 fields.
        num_classes: Scores for each image.
        in_channels: Channels of the images.

    >>> net = sesn_vector()
    >>> str(net.feature_groups), sum(parameter.numel() for parameter in net.parameters())
    ('3', 494549)
    """
    filters = _filters("vector", VECTOR_FILTERS, size, plus)
    scales = len(filters.scales)
    fields = cnn3_fields(1, width)
    convs = [
        ScaleConv2d(in_channels, fields[0], filters, from_image=True, bias=True),
        ScaleConv2d(fields[0], fields[1], filters, bias=True),
        ScaleConv2d(fields[1], fields[2], filters, bias=True),
    ]
    norms = [FieldNorm(fields[0], scales), FieldNorm(fields[1], scales)]
    return CNN3(convs, norms, FeatureGroups.of(scales), fields[-1], num_classes, in_channels, size)


def sesn_scalar(
    size: int = 28,
    plus: bool = True,
    width: float | Fraction = 1,
    num_classes: int = 10,
    in_channels: int = 1,
) -> CNN3:
    """Build the SESN twin of :func:`ien.models.cnn3` with the maximum over scales at every layer.

    Its maps have no scale axis: they grow and shrink with the image as far as the scales reach. On
    most images that is not far: a maximum at an end of the list has no counterpart after scaling.

    Args:
        size: 28, or 56 to double the images first.
        plus: Take the scales published for training with scaled digits.
        width: A factor on the 32, 63 and 95 fields.
        num_classes: Scores for each image.
        in_channels: Channels of the images.
    """
    filters = _filters("scalar", SCALAR_FILTERS, size, plus)
    fields = cnn3_fields(1, width)
    convs = []
    before = in_channels
    for after in fields:
        conv = ScaleConv2d(before, after, filters, from_image=True, bias=True)
        convs.append(nn.Sequential(conv, GroupPool(len(filters.scales))))
        before = after
    norms = [nn.BatchNorm2d(fields[0]), nn.BatchNorm2d(fields[1])]
    return CNN3(convs, norms, FeatureGroups.of(1), fields[-1], num_classes, in_channels, size)


def sesn_wrn(
    width: float | Fraction = 1, num_classes: int = 10, in_channels: int = 3, dropout: float = 0.3
) -> WideResNet:
    """Build SESN-A, the twin of :func:`ien.models.wide_resnet` with maps at three scales.

    As there, the last BatchNorm comes before the maximum over scales; the published code has it
    after.

    Args:
        width: A factor on the 128, 256 and 512 fields of the stages.
        num_classes: Scores for each image.
        in_channels: Channels of the images.
        dropout: The share of values dropped before the second convolution of each block.

    >>> sum(parameter.numel() for parameter in sesn_wrn().parameters())
    10961370
    """
    scales = len(WRN_FILTERS.scales)
    fields = wide_fields(1, width)

    def conv(before: int, after: int, kernel: int, stride: int) -> nn.Module:
        if kernel == 1:
            return PointwiseConv2d(before, after, scales, stride)
        return ScaleConv2d(before, after, WRN_FILTERS, stride=stride)

    def norm(channels: int) -> nn.Module:
        return FieldNorm(channels, scales)

    stem = ScaleConv2d(in_channels, fields[0], WRN_FILTERS, from_image=True)
    stages = wide_stages(fields, conv, norm, dropout)
    groups = FeatureGroups.of(scales)
    net = WideResNet(stem, stages, norm(fields[-1]), groups, fields[-1], num_classes, in_channels)
    # the published initial weights: w ~ N(0, 2 / (after · functions))
    for layer in net.modules():
        if isinstance(layer, ScaleConv2d | PointwiseConv2d):
            after, _, functions = layer.weight.shape
            nn.init.normal_(layer.weight, std=(2 / (after * functions)) ** 0.5)
    return net


def _filters(kind: str, table: Mapping[tuple[int, bool], Filters], size: int, plus: bool) -> Filters:
    if (size, plus) not in table:
        raise ValueError(
            f"SESN {kind} has scales for size 28 or 56, plus True or False; got size={size!r}, plus={plus!r}"
        )
    return table[size, plus]
