"""The WRN-16-8 of the STL-10 experiments: images of any size in, a score for each class out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise

from torch import Tensor, nn

from ..loss.feature_groups import FeatureGroups, GroupPool, Spec
from .normalize import Normalize
from .resnet18 import Block, odd_sized
from .widths import rounded

__all__ = ["WideResNet", "plain_conv", "wide_resnet", "wide_stages"]

STEM, NUM_GROUPS = 16, (128, 256, 512)  # feature groups of the stem, and of each stage at width 1
BLOCKS, STRIDES = 2, (1, 2, 2)  # 97 -> 97, 49, 25
MEAN, STD = (0.4467, 0.4398, 0.4066), (0.2603, 0.2566, 0.2713)  # of the pixels of STL-10
GREY_MEAN, GREY_STD = 0.4310, 0.2632  # the same, for images that do not have three colours


def wide_resnet(
    feature_groups: Spec = 1,
    width: float | Fraction = 1,
    num_classes: int = 10,
    in_channels: int = 3,
    dropout: float = 0.3,
) -> WideResNet:
    """Build WRN-16-8 for STL-10, with freshly drawn weights.

    A convolution, three stages of two pre-activation blocks, the group pool, the mean over pixels
    and a linear layer. It normalises images by the statistics of STL-10: use another net for other
    kinds of images.

    Args:
        feature_groups: Sizes of the feature groups: 1 is the plain net.
        width: A factor on the 128, 256 and 512 feature groups of the stages; 1/8 is WRN-16-1.
        num_classes: Scores for each image.
        in_channels: Channels of the images.
        dropout: The share of values dropped before the second convolution of each block.

    >>> sum(parameter.numel() for parameter in wide_resnet().parameters())
    10961370
    """
    spec = FeatureGroups.of(feature_groups)
    groups = num_groups(spec, width)
    channels = [spec.channels(count) for count in groups]
    # the stages before the stem: the order of the draws is part of a seed's meaning
    stages = wide_stages(channels, plain_conv, nn.BatchNorm2d, dropout)
    stem = plain_conv(in_channels, channels[0], 3, 1)
    last_norm = nn.BatchNorm2d(channels[-1])
    return WideResNet(stem, stages, last_norm, spec, groups[-1], num_classes, in_channels)


def wide_stages(
    channels: Sequence[int],
    conv: Callable[[int, int, int, int], nn.Module],
    norm: Callable[[int], nn.Module],
    dropout: float,
) -> list[list[Block]]:
    """Build the three stages of two blocks, with layers of any kind.

    Args:
        channels: Channels (or fields) of the stem and of each stage.
        conv: ``conv(before, after, kernel_size, stride)`` builds a convolution.
        norm: ``norm(channels)`` builds the layer before each ReLU.
        dropout: The share of values dropped before the second convolution of each block.
    """

    def block(before: int, after: int, stride: int) -> Block:
        shortcut = None
        if before != after or stride > 1:  # otherwise the input itself is added
            shortcut = conv(before, after, 1, stride)
        conv1 = conv(before, after, 3, stride)
        conv2 = conv(after, after, 3, 1)
        return Block(norm(before), conv1, norm(after), conv2, shortcut, dropout)

    stages = []
    for (before, after), stride in zip(pairwise(channels), STRIDES, strict=True):
        blocks = [block(before, after, stride)]
        for _ in range(BLOCKS - 1):
            blocks.append(block(after, after, 1))
        stages.append(blocks)
    return stages


class WideResNet(nn.Module):
    """A stem and three stages, and the layers that turn the last maps into scores.

    An even height or width is first enlarged by one pixel, 96 to 97, since strides of 2 keep the
    centre of an image in the centre of the maps only on odd sizes. Built by :func:`wide_resnet`,
    and with scale-equivariant layers by ``ien.baselines``.
    """

    def __init__(
        self,
        stem: nn.Module,
        stages: Sequence[Sequence[nn.Module]],
        last_norm: nn.Module,
        feature_groups: FeatureGroups,
        num_groups: int,
        num_classes: int,
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        self.feature_groups: FeatureGroups | Mapping[str, int] = feature_groups
        self.taps = ("layer1", "layer2", "layer3")
        """The layers that are compared: sums of a stage, the last after BatchNorm and ReLU."""
        if in_channels == len(MEAN):
            self.normalize = Normalize(MEAN, STD)
        else:
            self.normalize = Normalize([GREY_MEAN] * in_channels, [GREY_STD] * in_channels)
        self.stem = stem
        self.layer1 = nn.Sequential(*stages[0])
        self.layer2 = nn.Sequential(*stages[1])
        self.layer3 = nn.Sequential(*stages[2], last_norm, nn.ReLU())
        self.group_pool = GroupPool(feature_groups)
        self.classifier = nn.Linear(num_groups, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(odd_sized(self.normalize(x)))
        h = self.layer3(self.layer2(self.layer1(h)))
        return self.classifier(self.group_pool(h).mean((2, 3)))


def num_groups(feature_groups: Spec, width: float | Fraction) -> tuple[int, ...]:
    """Return the feature groups of the stem, 16, and of the stages: theirs times ``width``.

    >>> num_groups(3, 1 / 8)
    (16, 16, 32, 64)
    """
    stem = rounded([STEM], feature_groups, 1)
    return (*stem, *rounded(NUM_GROUPS, feature_groups, width))


def plain_conv(before: int, after: int, kernel: int, stride: int) -> nn.Conv2d:
    """Build a convolution with the published initial weights: w ~ N(0, 2 / (after · kernel²))."""
    conv = nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.normal_(conv.weight, std=(2 / (after * kernel**2)) ** 0.5)
    return conv
