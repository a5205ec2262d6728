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
GREY = 0.4310, 0.2632  # the same for images that are not of three colours


def wide_resnet(
    feature_groups: Spec = 1,
    width: float | Fraction = 1,
    num_classes: int = 10,
    in_channels: int = 3,
    dropout: float = 0.3,
) -> WideResNet:
    """A convolution, three stages of two pre-activation blocks, the group pool, the mean over pixels, scores.

    ``width`` is a factor on the 128, 256 and 512 feature groups of the stages; 1/8 is WRN-16-1.

    >>> sum(parameter.numel() for parameter in wide_resnet().parameters())
    10961370
    """
    spec = FeatureGroups.of(feature_groups)
    groups = num_groups(spec, width)
    channels = [spec.channels(n) for n in groups]
    stages = wide_stages(channels, plain_conv, nn.BatchNorm2d, dropout)
    return WideResNet(
        plain_conv(in_channels, channels[0], 3, 1),
        stages,
        nn.BatchNorm2d(channels[-1]),
        spec,
        groups[-1],
        num_classes,
        in_channels,
    )


def wide_stages(
    channels: Sequence[int],
    conv: Callable[[int, int, int, int], nn.Module],
    norm: Callable[[int], nn.Module],
    dropout: float,
) -> list[list[Block]]:
    """Two blocks for each stage; ``conv`` makes a layer of (channels before, after, kernel size, stride)."""

    def block(before: int, after: int, stride: int) -> Block:
        shortcut = None if before == after and stride == 1 else conv(before, after, 1, stride)
        convs = conv(before, after, 3, stride), conv(after, after, 3, 1)
        return Block(norm(before), convs[0], norm(after), convs[1], shortcut, dropout)

    return [
        [block(before, after, stride), *(block(after, after, 1) for _ in range(BLOCKS - 1))]
        for (before, after), stride in zip(pairwise(channels), STRIDES, strict=True)
    ]


class WideResNet(nn.Module):
    """A stem and three stages, from maps to maps, and what turns the maps of the last into scores.

    An even height or width is first enlarged by one pixel, 96 to 97, since strides of 2 keep the centre of an
    image in the centre of the maps only on odd sizes.
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
        """The layers that are compared: the sums of a stage, in the last after BatchNorm and ReLU."""
        colour = in_channels == len(MEAN)
        self.normalize = Normalize(
            MEAN if colour else [GREY[0]] * in_channels, STD if colour else [GREY[1]] * in_channels
        )
        self.stem = stem
        self.layer1, self.layer2 = (nn.Sequential(*blocks) for blocks in stages[:2])
        self.layer3 = nn.Sequential(*stages[2], last_norm, nn.ReLU())
        self.group_pool = GroupPool(feature_groups)
        self.classifier = nn.Linear(num_groups, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(odd_sized(self.normalize(x)))
        h = self.layer3(self.layer2(self.layer1(h)))
        return self.classifier(self.group_pool(h).mean((2, 3)))


def num_groups(feature_groups: Spec, width: float | Fraction) -> tuple[int, ...]:
    """Feature groups of the stem, 16, and of each stage: 128, 256 and 512 times ``width``, in whole units.

    >>> num_groups(3, 1 / 8)
    (16, 16, 32, 64)
    """
    return (*rounded([STEM], feature_groups, 1), *rounded(NUM_GROUPS, feature_groups, width))


def plain_conv(before: int, after: int, kernel: int, stride: int) -> nn.Conv2d:
    """A convolution that starts as published: normal, by the number of its outputs."""
    conv = nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.normal_(conv.weight, std=(2 / (after * kernel**2)) ** 0.5)
    return conv
