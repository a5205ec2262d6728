"""SiamFC: the network that maps images to features, and the cross-correlation that compares them.

The response of a search image x to an exemplar z is

    response = 0.001 · (φ(z) ⋆ φ(x)),

where φ is the network and ⋆ slides the features of z over those of x.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from .._text import nearest
from ..loss.feature_groups import FeatureGroups, GroupPool, Spec
from ..models.widths import rounded

__all__ = ["BACKBONES", "SiamFC", "num_groups", "respond", "respond_all", "siamfc"]


class Backbone(NamedTuple):
    """What the two AlexNets of SiamFC do not have in common."""

    num_groups: tuple[int, ...]
    """Feature groups of each layer at width 1; the plain network has twice as many channels."""
    second_stride: int
    """Stride of the second max pool; all layers before it have stride 4 together."""


BACKBONES = {
    "alexnet-v1": Backbone((48, 128, 192, 192, 128), 2),  # 127 -> 6, 255 -> 22, 239 -> 20
    "alexnet-v2": Backbone((48, 128, 192, 192, 16), 1),  # 127 -> 17, 255 -> 49, 239 -> 45
}
KERNEL_SIZES = (11, 5, 3, 3, 3)
STRIDES = (2, 1, 1, 1, 1)
CONV_GROUPS = (1, 2, 1, 2, 2)
"""``Conv2d(groups=…)`` of the plain network; with feature groups, all of them are 1."""
PIXEL_RANGE = 255
"""The published network is fed raw pixels; our images lie in [0, 1]."""
RESPONSE_SCALE = 0.001
"""Brings sums over thousands of products into the range of a logistic loss."""


def siamfc(
    backbone: str = "alexnet-v2",
    feature_groups: Spec = 1,
    width: float | Fraction = 1,
    in_channels: int = 3,
    features: int | None = None,
) -> SiamFC:
    """Build SiamFC: five convolutions without padding, and a group pool.

    The first four convolutions are followed by BatchNorm and ReLU.

    With feature groups of size 1 this is the published network, whose second, fourth and fifth
    convolutions are split in two halves. With any other feature groups all convolutions are whole.

    Do not use it to classify: it returns features, which :func:`respond` correlates.

    Args:
        backbone: ``alexnet-v1`` (stride 8) or ``alexnet-v2`` (stride 4).
        feature_groups: Size of the feature groups, or a mix such as ``"4-2-1"``.
        width: Factor on the number of feature groups; see :func:`num_groups`.
        in_channels: Channels of the images.
        features: Channels of its output, which are correlated; None for those of the width, of
            which networks with feature groups have half as many as the plain one.

    Returns:
        A network in training mode: images (B, C, H, W) in [0, 1] → pooled features.

    >>> net = siamfc(feature_groups="4-2-1")
    >>> [net.get_submodule(layer)[0].out_channels for layer in net.taps], net.stride
    ([132, 352, 528, 528, 44], 4)
    """
    spec = FeatureGroups.of(feature_groups)
    channels = [in_channels]
    for count in num_groups(spec, width, backbone, features):
        channels.append(spec.channels(count))
    conv_groups = CONV_GROUPS
    if not _is_plain(spec):
        conv_groups = (1, 1, 1, 1, 1)  # a half must not cut a feature group

    convs = []
    for i, (before, after) in enumerate(pairwise(channels)):
        kernel, stride = KERNEL_SIZES[i], STRIDES[i]
        convs.append(nn.Conv2d(before, after, kernel, stride, groups=conv_groups[i]))
    # as published: SiamFC trains from scratch, and not from ImageNet's weights
    for conv in convs:
        nn.init.xavier_uniform_(conv.weight)
        nn.init.zeros_(conv.bias)  # type: ignore[arg-type]

    blocks = []
    for conv in convs[:-1]:
        norm = nn.BatchNorm2d(conv.out_channels, eps=1e-6, momentum=0.05)
        blocks.append(nn.Sequential(conv, norm, nn.ReLU()))
    blocks.append(nn.Sequential(convs[-1]))
    return SiamFC(blocks, spec, backbone)


class SiamFC(nn.Module):
    """The network: images (B, 3, H, W) in [0, 1] to group-pooled features.

    Two max pools follow the first two of its five blocks. Exemplars of 127 pixels and search images
    of 255 (239 in training) are sizes at which the network can commute with quarter turns. Its
    weights have the names of the published network.

    Args:
        blocks: The five blocks, from maps to maps.
        feature_groups: Feature groups of every block.
        backbone: A name in :data:`BACKBONES`.
    """

    def __init__(self, blocks: Sequence[nn.Module], feature_groups: FeatureGroups, backbone: str) -> None:
        super().__init__()
        second_stride = _backbone(backbone).second_stride
        self.feature_groups = feature_groups
        self.backbone = backbone
        self.stride = 4 * second_stride
        """Pixels of the image from one position of the features to the next."""
        self.taps = ("conv1", "conv2", "conv3", "conv4", "conv5")
        """The layers to compare: after the ReLU and before the pool; the last one has no ReLU."""
        self.conv1, self.conv2, self.conv3, self.conv4, self.conv5 = blocks
        self.pool1 = nn.MaxPool2d(3, 2)
        self.pool2 = nn.MaxPool2d(3, second_stride)
        self.group_pool = GroupPool(feature_groups)

    def forward(self, x: Tensor) -> Tensor:
        h = self.pool1(self.conv1(x * PIXEL_RANGE))
        h = self.pool2(self.conv2(h))
        h = self.conv5(self.conv4(self.conv3(h)))
        return self.group_pool(h)


def respond(exemplar: Tensor, search: Tensor) -> Tensor:
    """Correlate each search image with its own exemplar: how well they match, position by position.

    A single exemplar serves all search images, and a single search image all exemplars. For every
    exemplar with every search image use :func:`respond_all`.

    Args:
        exemplar: Features (B, N, h, w), or (1, N, h, w).
        search: Features (B, N, H, W), or (1, N, H, W).

    Returns:
        (B, 1, H - h + 1, W - w + 1), the cross-correlation times 0.001.

    >>> respond(torch.ones(4, 16, 6, 6), torch.ones(4, 16, 22, 22)).shape
    torch.Size([4, 1, 17, 17])
    """
    _check_features(exemplar, search)
    count = max(len(exemplar), len(search))
    if len(exemplar) not in (1, count) or len(search) not in (1, count):
        raise ValueError(
            f"respond needs as many exemplars as search images, or a single one of either; got "
            f"{len(exemplar)} and {len(search)} (respond_all takes every exemplar with every search image)"
        )
    exemplar = exemplar.expand(count, -1, -1, -1)
    search = search.expand(count, -1, -1, -1)
    responses = _correlate(exemplar, search[None])  # (1, B, H', W')
    return responses.transpose(0, 1)  # (B, 1, H', W')


def respond_all(exemplars: Tensor, searches: Tensor) -> Tensor:
    """Correlate every search image with every exemplar, such as all sizes with all templates.

    For pairs, one exemplar to one search image, use :func:`respond`.

    Args:
        exemplars: Features (T, N, h, w).
        searches: Features (S, N, H, W).

    Returns:
        (T, S, H - h + 1, W - w + 1), the cross-correlations times 0.001.

    >>> respond_all(torch.ones(4, 16, 6, 6), torch.ones(3, 16, 22, 22)).shape
    torch.Size([4, 3, 17, 17])
    """
    _check_features(exemplars, searches)
    for_each = searches[:, None].expand(-1, len(exemplars), -1, -1, -1)  # (S, T, N, H, W)
    responses = _correlate(exemplars, for_each)  # (S, T, H', W')
    return responses.transpose(0, 1)  # (T, S, H', W')


def num_groups(
    feature_groups: Spec,
    width: float | Fraction,
    backbone: str = "alexnet-v2",
    features: int | None = None,
) -> tuple[int, ...]:
    """Return how many feature groups each layer has.

    They are 48, 128, 192, 192 and 16 (V1: 128), times ``width`` and rounded.

    The plain network has twice as many, the published channels; its split convolutions need even
    numbers.

    Args:
        feature_groups: Size of the feature groups, or a mix, whose unit the numbers are rounded to.
        width: Factor on the numbers.
        backbone: A name in :data:`BACKBONES`.
        features: Feature groups of the last layer, whatever the width.

    Raises:
        ValueError: The last layer cannot have that many.

    >>> num_groups(4, 1), num_groups(1, 1, "alexnet-v1"), num_groups(1, 1 / 16)
    ((48, 128, 192, 192, 16), (96, 256, 384, 384, 256), (6, 16, 24, 24, 2))
    """
    spec = FeatureGroups.of(feature_groups)
    counts = rounded(_backbone(backbone).num_groups, spec, width)
    unit = spec.unit
    if _is_plain(spec):
        counts = tuple(2 * count for count in counts)
        unit = 2
    if features is None:
        return counts
    if features < 1 or features % unit:
        below = features - features % unit
        nearest_counts = f"{below} or {below + unit}" if below > 0 else f"{unit}"
        raise ValueError(
            f"features must be a multiple of {unit} with feature groups {spec}; got {features} "
            f"(nearest: {nearest_counts})"
        )
    return (*counts[:-1], features)


def _correlate(exemplars: Tensor, searches: Tensor) -> Tensor:
    """Correlate (T, N, h, w) with (S, T, N, H, W) to (S, T, H - h + 1, W - w + 1).

    A depthwise convolution followed by a sum over channels: one convolution with T groups of N
    channels computes the same, 10 to 20 times slower on a CPU.
    """
    count, channels = exemplars.shape[:2]
    kernels = exemplars.flatten(0, 1).unsqueeze(1)  # (T · N, 1, h, w)
    stacked = searches.flatten(1, 2)  # (S, T · N, H, W)
    maps = F.conv2d(stacked, kernels, groups=count * channels)  # (S, T · N, H', W')
    maps = maps.unflatten(1, (count, channels))  # (S, T, N, H', W')
    return RESPONSE_SCALE * maps.sum(2)


def _check_features(exemplar: Tensor, search: Tensor) -> None:
    given = f"got {tuple(exemplar.shape)} and {tuple(search.shape)}"
    if exemplar.ndim != 4 or search.ndim != 4 or not len(exemplar) or not len(search):
        raise ValueError(f"exemplars and search images must be features (B, N, H, W), B at least 1; {given}")
    if exemplar.shape[1] != search.shape[1]:
        raise ValueError(
            f"exemplar and search image must have equally many channels, from one network; {given}"
        )
    *_, height, width = search.shape
    if exemplar.shape[2] > height or exemplar.shape[3] > width:
        raise ValueError(f"the exemplar must fit inside the search image, whose picture is larger; {given}")


def _backbone(name: str) -> Backbone:
    if name not in BACKBONES:
        raise ValueError(f"siamfc has no backbone {name!r}; {nearest(name, BACKBONES)}")
    return BACKBONES[name]


def _is_plain(spec: FeatureGroups) -> bool:
    return spec.sizes == (1,)
