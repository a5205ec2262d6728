"""The ResNet18 of the Rot-TIM experiments: images of any size in, a score for each class out."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..loss.feature_groups import FeatureGroups, GroupPool, Spec
from .widths import of_largest_size, rounded

__all__ = ["Block", "ResNet18", "resnet18"]

# feature groups of each stage at width 1, by the largest size; 1 is the base net
NUM_GROUPS = {1: (64, 128, 256, 512), 4: (34, 68, 136, 272), 8: (24, 48, 96, 192)}
STRIDES = (1, 2, 2, 2)  # 65 -> 65, 33, 17, 9: all commute with quarter turns


def resnet18(
    feature_groups: Spec = 4, width: float | Fraction = 1, num_classes: int = 100, in_channels: int = 3
) -> ResNet18:
    """A convolution, four stages of two pre-activation blocks, the group pool, the mean over pixels, scores.

    ``width`` is a factor on the paper's feature groups; see :func:`num_groups`.

    >>> net = resnet18("4-2-1", width=1 / 2)
    >>> net.taps, [net.get_submodule(tap)[0].conv2.out_channels for tap in net.taps]
    (('layer1', 'layer2', 'layer3', 'layer4'), [44, 88, 187, 374])
    """
    spec = FeatureGroups.of(feature_groups)
    groups = num_groups(spec, width)
    channels = [spec.channels(n) for n in groups]
    stem = _conv(in_channels, channels[0])
    stages = [
        [_block(before, after, stride), _block(after, after, 1)]
        for (before, after), stride in zip(pairwise([channels[0], *channels]), STRIDES, strict=True)
    ]
    last = nn.BatchNorm2d(channels[-1], momentum=0.9)
    return ResNet18(stem, stages, last, spec, groups[-1], num_classes)


class ResNet18(nn.Module):
    """A stem and four stages, from maps to maps, and what turns the maps of the last into scores.

    An even height or width is first enlarged by one pixel, 64 to 65, since strides of 2 keep quarter turns
    only on odd sizes.
    """

    def __init__(
        self,
        stem: nn.Module,
        stages: Sequence[Sequence[nn.Module]],
        last_norm: nn.Module,
        feature_groups: FeatureGroups,
        num_groups: int,
        num_classes: int,
    ) -> None:
        super().__init__()
        self.feature_groups = feature_groups
        self.taps = ("layer1", "layer2", "layer3", "layer4")
        """The layers that the paper compares: the sums of a stage, in the last after BatchNorm and ReLU."""
        self.stem = stem
        self.layer1, self.layer2, self.layer3 = (nn.Sequential(*blocks) for blocks in stages[:3])
        self.layer4 = nn.Sequential(*stages[3], last_norm, nn.ReLU())
        self.group_pool = GroupPool(feature_groups)
        self.classifier = nn.Linear(num_groups, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(odd_sized(x))
        h = self.layer4(self.layer3(self.layer2(self.layer1(h))))
        return self.classifier(self.group_pool(h).mean((2, 3)))


class Block(nn.Module):
    """Twice BatchNorm, ReLU and convolution, added to the input or to ``shortcut`` of the first ReLU.

    ``dropout`` comes before the second convolution.
    """

    def __init__(
        self,
        norm1: nn.Module,
        conv1: nn.Module,
        norm2: nn.Module,
        conv2: nn.Module,
        shortcut: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm1, self.conv1 = norm1, conv1
        self.norm2, self.conv2 = norm2, conv2
        self.shortcut = shortcut
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        active = torch.relu(self.norm1(x))
        h = torch.relu(self.norm2(self.conv1(active)))
        h = self.conv2(F.dropout(h, self.dropout, self.training) if self.dropout else h)
        return h + (x if self.shortcut is None else self.shortcut(active))


def num_groups(feature_groups: Spec, width: float | Fraction) -> tuple[int, ...]:
    """Feature groups of each stage: the paper's for the largest size times ``width``, in whole units.

    >>> num_groups(4, 1), num_groups("4-2-1", 1)
    ((34, 68, 136, 272), (32, 68, 136, 272))
    """
    return rounded(of_largest_size("resnet18", NUM_GROUPS, feature_groups), feature_groups, width)


def odd_sized(x: Tensor) -> Tensor:
    """``x`` (B, C, H, W) with an even height or width enlarged by one pixel, bilinearly.

    >>> odd_sized(torch.rand(1, 3, 64, 65)).shape
    torch.Size([1, 3, 65, 65])
    """
    height, width = x.shape[-2:]
    if height % 2 and width % 2:
        return x
    return F.interpolate(x, (height | 1, width | 1), mode="bilinear")


def _block(before: int, after: int, stride: int) -> Block:
    """The stride sits on the second convolution."""
    shortcut = None
    if stride > 1 or before != after:
        shortcut = nn.Conv2d(before, after, 1, stride)
    norms = nn.BatchNorm2d(before), nn.BatchNorm2d(after)
    return Block(norms[0], _conv(before, after), norms[1], _conv(after, after, stride), shortcut)


def _conv(before: int, after: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, 3, stride, padding=1)
