"""The three-convolution net of Scale-MNIST: digits in, a score for each class out."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import torch.nn.functional as F
from torch import Tensor, nn

from ..loss.feature_groups import FeatureGroups, GroupPool, Spec
from .normalize import Normalize
from .widths import rounded

__all__ = ["CNN3", "cnn3"]

NUM_GROUPS = (32, 63, 95)  # feature groups of each layer at width 1
KERNEL = 7
LAST_POOL = {28: 4, 56: 8}  # size at which the net looks at a digit → the pool that leaves 2×2 pixels
MEAN, STD = 0.0607, 0.2161  # of the pixels of Scale-MNIST


def cnn3(
    feature_groups: Spec = 1,
    width: float | Fraction = 1,
    num_classes: int = 10,
    in_channels: int = 1,
    size: int = 28,
) -> CNN3:
    """Build the net for Scale-MNIST, with freshly drawn weights.

    Three 7×7 convolutions, each with ReLU, max-pool and BatchNorm, the group pool and two linear
    layers. It takes 28×28 images only.

    Args:
        feature_groups: Sizes of the feature groups: 1 is the plain net.
        width: A factor on the 32, 63 and 95 feature groups.
        num_classes: Scores for each image.
        in_channels: Channels of the images.
        size: 28, or 56 to double the images first, so that small digits are seen in more detail.

    >>> sum(parameter.numel() for parameter in cnn3().parameters())
    494549
    """
    spec = FeatureGroups.of(feature_groups)
    groups = num_groups(spec, width)
    convs = []
    before = in_channels
    for count in groups:
        after = spec.channels(count)
        convs.append(nn.Conv2d(before, after, KERNEL, padding=KERNEL // 2))
        before = after
    norms = [nn.BatchNorm2d(spec.channels(count)) for count in groups[:2]]
    return CNN3(convs, norms, spec, groups[-1], num_classes, in_channels, size)


class CNN3(nn.Module):
    """Three convolutions and two norms, and the layers that turn the last maps into scores.

    Built by :func:`cnn3`, and with scale-equivariant layers by ``ien.baselines``.
    """

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
        conv1, conv2, conv3 = convs
        self.size = size
        self.feature_groups = feature_groups
        self.taps = ("conv1", "conv2", "conv3")
        """The layers that are compared: after the ReLU, before the pool."""
        self.normalize = Normalize([MEAN] * in_channels, [STD] * in_channels)
        self.conv1 = nn.Sequential(conv1, nn.ReLU())
        self.conv2 = nn.Sequential(conv2, nn.ReLU())
        self.conv3 = nn.Sequential(conv3, nn.ReLU())
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
        h = self.norm3(F.max_pool2d(h, LAST_POOL[self.size], padding=2))  # (B, groups, 2, 2)
        return self.classifier(h.flatten(1))


def num_groups(feature_groups: Spec, width: float | Fraction) -> tuple[int, ...]:
    """Return the feature groups of each layer: 32, 63 and 95 times ``width``, in whole units.

    >>> num_groups(3, 1), num_groups(3, 1 / 4)
    ((32, 63, 95), (8, 16, 24))
    """
    return rounded(NUM_GROUPS, feature_groups, width)
