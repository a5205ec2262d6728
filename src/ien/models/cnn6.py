"""The six-convolution net of Rot-MNIST: 28×28 images in, a score for each class out."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from torch import Tensor, nn

from ..loss.feature_groups import FeatureGroups, GroupPool, Spec
from .widths import rounded

__all__ = ["CNN6", "cnn6"]

NUM_GROUPS = (32, 48, 64, 64, 96, 128)  # feature groups of each layer at width 1
KERNELS = (7, 5, 5, 5, 5, 5)
PADDINGS = (1, 2, 2, 2, 2, 0)  # 28 -> 24, 24, pool 12, 12, pool 6, 2: all commute with quarter turns


def cnn6(
    feature_groups: Spec = 4, width: float | Fraction = 1, num_classes: int = 10, in_channels: int = 1
) -> CNN6:
    """Build the paper's net for Rot-MNIST, with freshly drawn weights.

    Six convolutions (no bias, BatchNorm, ELU), the group pool, the mean over pixels and two linear
    layers. Other image sizes than 28×28 work, but not all of them commute with quarter turns:
    ``ien.doctor`` tells.

    Args:
        feature_groups: Sizes of the feature groups: 4, or a mix such as ``"4-2-1"``.
        width: A factor on the paper's feature groups, 32, 48, 64, 64, 96 and 128; see
            :func:`num_groups`.
        num_classes: Scores for each image.
        in_channels: Channels of the images.

    >>> [cnn6("4-2-1").get_submodule(tap)[0].out_channels for tap in ("conv1", "conv6")]
    [88, 352]
    """
    spec = FeatureGroups.of(feature_groups)
    groups = num_groups(spec, width)
    blocks = []
    before = in_channels
    for count, kernel, padding in zip(groups, KERNELS, PADDINGS, strict=True):
        after = spec.channels(count)
        conv = nn.Conv2d(before, after, kernel, padding=padding, bias=False)
        blocks.append(nn.Sequential(conv, nn.BatchNorm2d(after), nn.ELU()))
        before = after
    # drawn after all layers are built: the order of the draws is part of a seed's meaning
    for block in blocks:
        nn.init.xavier_uniform_(block[0].weight)  # type: ignore[arg-type]
    return CNN6(blocks, spec, groups[-1], num_classes)


class CNN6(nn.Module):
    """Six blocks from maps to maps, and the layers that turn the last maps into scores.

    Built by :func:`cnn6`, and with steerable blocks by :func:`ien.baselines.steerable_cnn6`.
    """

    def __init__(
        self, blocks: Sequence[nn.Module], feature_groups: FeatureGroups, num_groups: int, num_classes: int
    ) -> None:
        super().__init__()
        self.feature_groups = feature_groups
        self.taps = ("conv1", "conv2", "conv3", "conv4", "conv5", "conv6")
        """The layers that the paper compares: after the ELU, before the pool."""
        self.conv1, self.conv2, self.conv3, self.conv4, self.conv5, self.conv6 = blocks
        self.pool2 = nn.MaxPool2d(2)
        self.pool4 = nn.MaxPool2d(2)
        self.group_pool = GroupPool(feature_groups)
        self.classifier = nn.Sequential(
            nn.Linear(num_groups, num_groups),
            nn.BatchNorm1d(num_groups),
            nn.ELU(),
            nn.Linear(num_groups, num_classes),
        )
        for layer in self.classifier:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.constant_(layer.bias, 0.01)

    def forward(self, x: Tensor) -> Tensor:
        h = self.pool2(self.conv2(self.conv1(x)))
        h = self.pool4(self.conv4(self.conv3(h)))
        h = self.group_pool(self.conv6(self.conv5(h)))  # (B, groups, 2, 2) from 28×28
        return self.classifier(h.mean((2, 3)))


def num_groups(feature_groups: Spec, width: float | Fraction) -> tuple[int, ...]:
    """Return the feature groups of each layer: the paper's times ``width``, in whole units.

    >>> num_groups(4, 1 / 8), num_groups("4-2-1", 1 / 8)  # 6 lies between 4 and 8
    ((4, 6, 8, 8, 12, 16), (4, 4, 8, 8, 12, 16))
    """
    return rounded(NUM_GROUPS, feature_groups, width)
