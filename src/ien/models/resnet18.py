"""The ResNet18 of the Rot-TIM experiments: images of any size in, a score for each class out."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..loss.feature_groups import FeatureGroups, GroupPool, Spec
from .widths import of_largest_size, rounded

__all__ = ["Block", "ResNet18", "resnet18"]

# feature groups of each stage at width 1, by the largest size; 1 is the base net, 4 and 8 are the
# paper's, and 2, for flip and rot2, has the channels of 4
NUM_GROUPS = {
    1: (64, 128, 256, 512),
    2: (68, 136, 272, 544),
    4: (34, 68, 136, 272),
    8: (24, 48, 96, 192),
}
STRIDES = (1, 2, 2, 2)  # 65 -> 65, 33, 17, 9: all commute with quarter turns


def resnet18(
    feature_groups: Spec = 4, width: float | Fraction = 1, num_classes: int = 100, in_channels: int = 3
) -> ResNet18:
    """Build the paper's ResNet18 for Rot-TIM, with freshly drawn weights.

    A convolution, four stages of two pre-activation blocks, the group pool, the mean over pixels
    and a linear layer. It is not torchvision's net, whose stem halves the image twice, and takes no
    weights of it.

    Args:
        feature_groups: Sizes of the feature groups; the largest must be 1, 4 or 8.
        width: A factor on the paper's feature groups; see :func:`num_groups`.
        num_classes: Scores for each image.
        in_channels: Channels of the images.

    >>> net = resnet18("4-2-1", width=1 / 2)
    >>> net.taps, [net.get_submodule(tap)[0].conv2.out_channels for tap in net.taps]
    (('layer1', 'layer2', 'layer3', 'layer4'), [44, 88, 187, 374])
    """
    spec = FeatureGroups.of(feature_groups)
    groups = num_groups(spec, width)
    before = spec.channels(groups[0])
    stem = _conv(in_channels, before)  # without stride: images of 64 pixels are small enough
    stages = []
    for count, stride in zip(groups, STRIDES, strict=True):
        after = spec.channels(count)
        stages.append([_block(before, after, stride), _block(after, after, 1)])
        before = after
    last_norm = nn.BatchNorm2d(before, momentum=0.9)
    return ResNet18(stem, stages, last_norm, spec, groups[-1], num_classes)


class ResNet18(nn.Module):
    """A stem and four stages from maps to maps, and the layers that turn the last maps into scores.

    An even height or width is first enlarged by one pixel, 64 to 65, since strides of 2 commute
    with quarter turns only on odd sizes. Built by :func:`resnet18`, and with steerable blocks by
    :func:`ien.baselines.steerable_resnet18`.
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
        """The layers that the paper compares: sums of a stage, the last after norm and ReLU."""
        self.stem = stem
        self.layer1 = nn.Sequential(*stages[0])
        self.layer2 = nn.Sequential(*stages[1])
        self.layer3 = nn.Sequential(*stages[2])
        self.layer4 = nn.Sequential(*stages[3], last_norm, nn.ReLU())
        self.group_pool = GroupPool(feature_groups)
        self.classifier = nn.Linear(num_groups, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(odd_sized(x))
        h = self.layer4(self.layer3(self.layer2(self.layer1(h))))
        return self.classifier(self.group_pool(h).mean((2, 3)))


class Block(nn.Module):
    """A pre-activation residual block.

    With a = relu(norm1(x)), it computes

        y = conv2(dropout(relu(norm2(conv1(a))))) + x

    and adds ``shortcut(a)`` instead of x if there is a shortcut.
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
        self.norm1 = norm1
        self.conv1 = conv1
        self.norm2 = norm2
        self.conv2 = conv2
        self.shortcut = shortcut
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        active = torch.relu(self.norm1(x))
        h = torch.relu(self.norm2(self.conv1(active)))
        if self.dropout:  # skipped at 0, so that nothing is drawn
            h = F.dropout(h, self.dropout, self.training)
        h = self.conv2(h)
        if self.shortcut is None:
            return h + x
        return h + self.shortcut(active)


def num_groups(feature_groups: Spec, width: float | Fraction) -> tuple[int, ...]:
    """Return the feature groups of each stage: the paper's for the largest size times ``width``.

    >>> num_groups(4, 1), num_groups("4-2-1", 1)
    ((34, 68, 136, 272), (32, 68, 136, 272))
    """
    return rounded(of_largest_size("resnet18", NUM_GROUPS, feature_groups), feature_groups, width)


def odd_sized(x: Tensor) -> Tensor:
    """Enlarge an even height or width of ``x`` (B, C, H, W) by one pixel, bilinearly.

    >>> odd_sized(torch.rand(1, 3, 64, 65)).shape
    torch.Size([1, 3, 65, 65])
    """
    height, width = x.shape[-2:]
    if height % 2 and width % 2:
        return x
    return F.interpolate(x, (height | 1, width | 1), mode="bilinear")  # n | 1: the next odd number


def _block(before: int, after: int, stride: int) -> Block:
    """Build a block whose stride, if any, is on the second convolution."""
    shortcut = None
    if stride > 1 or before != after:  # otherwise the input itself is added
        shortcut = nn.Conv2d(before, after, 1, stride)
    conv1 = _conv(before, after)
    conv2 = _conv(after, after, stride)
    return Block(nn.BatchNorm2d(before), conv1, nn.BatchNorm2d(after), conv2, shortcut)


def _conv(before: int, after: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, 3, stride, padding=1)
