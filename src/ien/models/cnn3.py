"""The three-convolution net of the Scale-MNIST experiments: digits in, a score for each class out."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from ..loss.feature_groups import FeatureGroups, GroupPool, Spec
from .normalize import Normalize
from .widths import rounded

__all__ = ["CNN3", "cnn3"]

NUM_GROUPS = (32, 63, 95)  # feature groups of each layer at width 1
KERNEL = 7
LAST_POOL = {28: 4, 56: 8}  # to 2×2, by the size at which the net looks at a digit
MEAN, STD = 0.0607, 0.2161  # of the pixels of Scale-MNIST


def cnn3(
    feature_groups: Spec = 1,
    width: float | Fraction = 1,
    num_classes: int = 10,
    in_channels: int = 1,
    size: int = 28,
) -> CNN3:
    """Three 7×7 convolutions, each with ReLU, max-pool and BatchNorm, the group pool, two linear layers.

    ``width`` is a factor on the 32, 63 and 95 feature groups. ``size=56`` doubles 28×28 images first.

    >>> sum(parameter.numel() for parameter in cnn3().parameters())
    494549
    """
    spec = FeatureGroups.of(feature_groups)
    groups = num_groups(spec, width)
    channels = [in_channels, *map(spec.channels, groups)]
    convs = [nn.Conv2d(before, after, KERNEL, padding=KERNEL // 2) for before, after in pairwise(channels)]
    norms = [nn.BatchNorm2d(n) for n in channels[1:3]]
    return CNN3(convs, norms, spec, groups[-1], num_classes, in_channels, size)


class CNN3(nn.Module):
    """Three convolutions and two norms from maps to maps, and what turns the last maps into scores."""

    def __init__(
        self,
        convs: Sequence[nn.Module],
        norms: Sequence[nn.Module],
        feature_groups: FeatureGroups,
        num_groups: int,
        num_classes: int,
        in_channels: int,
        size: int,
    ) -> None:
        super().__init__()
        if size not in LAST_POOL:
            raise ValueError(f"size is 28, or 56 to double the image first; got {size!r}")
        self.size = size
        self.feature_groups = feature_groups
        self.taps = ("conv1", "conv2", "conv3")
        """The layers that are compared: after the ReLU, before the pool."""
        self.normalize = Normalize([MEAN] * in_channels, [STD] * in_channels)
        self.conv1, self.conv2, self.conv3 = (nn.Sequential(conv, nn.ReLU()) for conv in convs)
        self.norm1, self.norm2 = norms
        self.group_pool = GroupPool(feature_groups)
        self.norm3 = nn.BatchNorm2d(num_groups)
        self.classifier = nn.Sequential(
            nn.Linear(4 * num_groups, 256, bias=False),
            nn.BatchNorm1d(256),
            nn.ReLU(),
            nn.Dropout(0.7),
            nn.Linear(256, num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.normalize(x)
        if self.size == 56:
            h = F.interpolate(h, scale_factor=2, mode="nearest")
        h = self.norm1(F.max_pool2d(self.conv1(h), 2))
        h = self.norm2(F.max_pool2d(self.conv2(h), 2))
        h = self.group_pool(self.conv3(h))
        h = self.norm3(F.max_pool2d(h, LAST_POOL[self.size], padding=2))
        return self.classifier(h.flatten(1))


def num_groups(feature_groups: Spec, width: float | Fraction) -> tuple[int, ...]:
    """Feature groups of each layer: 32, 63 and 95 times ``width``, in whole units of the mix.

    >>> num_groups(3, 1), num_groups(3, 1 / 4)
    ((32, 63, 95), (8, 16, 24))
    """
    return rounded(NUM_GROUPS, feature_groups, width)
