"""SiamFC's network: images in, the features that a tracker correlates out; and the correlation itself."""

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

__all__ = ["BACKBONES", "SiamFC", "respond", "respond_all", "siamfc"]


class Backbone(NamedTuple):
    """What tells one AlexNet of SiamFC from the other."""

    num_groups: tuple[int, ...]
    """Feature groups of each layer at width 1; the plain net has twice as many channels."""
    second_stride: int
    """Of the second max pool; everything before it has stride 4, everything behind it 1."""


BACKBONES = {
    "alexnet-v1": Backbone((48, 128, 192, 192, 128), 2),  # 127 -> 6, 255 -> 22, 239 -> 20
    "alexnet-v2": Backbone((48, 128, 192, 192, 16), 1),  # 127 -> 17, 255 -> 49, 239 -> 45
}
KERNELS, STRIDES = (11, 5, 3, 3, 3), (2, 1, 1, 1, 1)
CONV_GROUPS = (1, 2, 1, 2, 2)  # of the plain net
BRIGHTEST = 255  # the published net sees raw pixels
ADJUST = 0.001  # brings sums over thousands of products into the range of a logistic loss


def siamfc(
    backbone: str = "alexnet-v2",
    feature_groups: Spec = 1,
    width: float | Fraction = 1,
    in_channels: int = 3,
) -> SiamFC:
    """Five convolutions without padding, BatchNorm and ReLU after the first four, and the group pool.

    Feature groups of 1 are the published net, whose second, fourth and fifth convolution have two halves; all
    others have whole convolutions. ``width`` is a factor on the feature groups; see :func:`num_groups`.

    >>> net = siamfc(feature_groups="4-2-1")
    >>> [net.get_submodule(tap)[0].out_channels for tap in net.taps], net.stride
    ([132, 352, 528, 528, 44], 4)
    """
    spec = FeatureGroups.of(feature_groups)
    channels = [in_channels, *map(spec.channels, num_groups(spec, width, backbone))]
    conv_groups = CONV_GROUPS if _is_plain(spec) else (1,) * 5
    layers = zip(pairwise(channels), KERNELS, STRIDES, conv_groups, strict=True)
    *convs, last = [
        nn.Conv2d(before, after, kernel, stride, groups=groups)
        for (before, after), kernel, stride, groups in layers
    ]
    for conv in (*convs, last):
        nn.init.xavier_uniform_(conv.weight)
        nn.init.zeros_(conv.bias)  # type: ignore[arg-type]
    norms = [nn.BatchNorm2d(conv.out_channels, eps=1e-6, momentum=0.05) for conv in convs]
    blocks = [nn.Sequential(conv, norm, nn.ReLU()) for conv, norm in zip(convs, norms, strict=True)]
    blocks.append(nn.Sequential(last))
    return SiamFC(blocks, spec, backbone)


class SiamFC(nn.Module):
    """Five blocks, from maps to maps, between them two max pools: images to features, group-pooled.

    Images (B, 3, H, W) lie in [0, 1]. Exemplars of 127 pixels and searches of 255 (239 in training) commute
    with quarter turns. The names of the weights are those of the published net.
    """

    def __init__(self, blocks: Sequence[nn.Module], feature_groups: FeatureGroups, backbone: str) -> None:
        super().__init__()
        self.feature_groups = feature_groups
        self.backbone = backbone
        second_stride = _backbone(backbone).second_stride
        self.stride = 4 * second_stride
        """Pixels of the image from one place of the features to the next."""
        self.taps = tuple(f"conv{i}" for i in range(1, 6))
        """The layers to compare: after the ReLU, before the pool; the last has no ReLU."""
        self.conv1, self.conv2, self.conv3, self.conv4, self.conv5 = blocks
        self.pool1, self.pool2 = nn.MaxPool2d(3, 2), nn.MaxPool2d(3, second_stride)
        self.group_pool = GroupPool(feature_groups)

    def forward(self, x: Tensor) -> Tensor:
        h = self.pool2(self.conv2(self.pool1(self.conv1(x * BRIGHTEST))))
        return self.group_pool(self.conv5(self.conv4(self.conv3(h))))


def respond(exemplar: Tensor, search: Tensor) -> Tensor:
    """How well each search matches its own exemplar, place by place: their cross-correlation times 0.001.

    Features (B, N, h, w) and (B, N, H, W) give (B, 1, H - h + 1, W - w + 1). A single exemplar serves all
    searches, and a single search all exemplars.

    >>> respond(torch.ones(4, 16, 6, 6), torch.ones(4, 16, 22, 22)).shape
    torch.Size([4, 1, 17, 17])
    """
    _check(exemplar, search)
    count = max(len(exemplar), len(search))
    if {len(exemplar), len(search)} - {1, count}:
        raise ValueError(
            f"respond pairs exemplars with searches, as many of one as of the other or a single one; got "
            f"{len(exemplar)} and {len(search)} (respond_all takes every exemplar with every search)"
        )
    exemplar, search = (h.expand(count, -1, -1, -1) for h in (exemplar, search))
    return _correlate(exemplar, search[None]).transpose(0, 1)


def respond_all(exemplars: Tensor, searches: Tensor) -> Tensor:
    """The responses of every search to every exemplar, such as all scales to all turns of the target.

    Features (T, N, h, w) and (S, N, H, W) give (T, S, H - h + 1, W - w + 1).

    >>> respond_all(torch.ones(4, 16, 6, 6), torch.ones(3, 16, 22, 22)).shape
    torch.Size([4, 3, 17, 17])
    """
    _check(exemplars, searches)
    each = searches[:, None].expand(-1, len(exemplars), -1, -1, -1)
    return _correlate(exemplars, each).transpose(0, 1)


def num_groups(
    feature_groups: Spec, width: float | Fraction, backbone: str = "alexnet-v2"
) -> tuple[int, ...]:
    """Feature groups of each layer: 48, 128, 192, 192 and 16 (V1: 128) times ``width``, in whole units.

    The plain net has twice these, the published channels, so that its halves are whole at every width.

    >>> num_groups(4, 1), num_groups(1, 1, "alexnet-v1"), num_groups(1, 1 / 16)
    ((48, 128, 192, 192, 16), (96, 256, 384, 384, 256), (6, 16, 24, 24, 2))
    """
    spec = FeatureGroups.of(feature_groups)
    groups = rounded(_backbone(backbone).num_groups, spec, width)
    return tuple(2 * n for n in groups) if _is_plain(spec) else groups


def _correlate(exemplars: Tensor, searches: Tensor) -> Tensor:
    """(T, N, h, w) with (S, T, N, H, W) to (S, T, H - h + 1, W - w + 1), a channel at a time, then summed.

    One convolution with T groups of N channels does the same 10 to 20 times slower on a CPU.
    """
    count, channels = exemplars.shape[:2]
    kernels = exemplars.flatten(0, 1).unsqueeze(1)  # (T · N, 1, h, w)
    maps = F.conv2d(searches.flatten(1, 2), kernels, groups=count * channels)  # (S, T · N, H', W')
    return ADJUST * maps.unflatten(1, (count, channels)).sum(2)


def _check(exemplar: Tensor, search: Tensor) -> None:
    given = f"got {tuple(exemplar.shape)} and {tuple(search.shape)}"
    if exemplar.ndim != 4 or search.ndim != 4 or not len(exemplar) or not len(search):
        raise ValueError(f"exemplars and searches are features of shape (B, N, H, W), B at least 1; {given}")
    if exemplar.shape[1] != search.shape[1]:
        raise ValueError(
            f"exemplar and search need equally many channels, as features of one network have; {given}"
        )
    if exemplar.shape[2] > search.shape[2] or exemplar.shape[3] > search.shape[3]:
        raise ValueError(f"the exemplar must fit into the search, whose image is larger; {given}")


def _backbone(name: str) -> Backbone:
    if name not in BACKBONES:
        raise ValueError(f"siamfc has no backbone {name!r}; {nearest(name, BACKBONES)}")
    return BACKBONES[name]


def _is_plain(spec: FeatureGroups) -> bool:
    return spec.sizes == (1,)
