"""The VGG of the Rot-TIM experiments: images in, 64×64 in the paper, a score for each class out."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from torch import Tensor, nn

from ..loss.feature_groups import FeatureGroups, GroupPool, Spec
from .widths import of_largest_size, rounded

__all__ = ["VGG", "vgg"]

# feature groups of each layer at width 1, by the largest size; 1 is the base net, 4 and 8 are the
# paper's, and 2, for flip and rot2, has the channels of 4
NUM_GROUPS = {
    1: (64, 128, 256, 256, 512, 512, 512, 512),
    2: (72, 144, 288, 288, 576, 576, 576, 576),
    4: (36, 72, 144, 144, 288, 288, 288, 288),
    8: (25, 50, 100, 100, 200, 200, 200, 200),
}
HIDDEN = 1024  # units of the first linear layer, at every width


def vgg(
    feature_groups: Spec = 4, width: float | Fraction = 1, num_classes: int = 100, in_channels: int = 3
) -> VGG:
    """Build the paper's VGG for Rot-TIM, with freshly drawn weights.

    Eight 3×3 convolutions (no bias, BatchNorm, ELU), the group pool, the mean over pixels and two
    linear layers. Not for images whose sides are no multiples of 16: its pools then break quarter
    turns.

    Args:
        feature_groups: Sizes of the feature groups; the largest must be 1, 4 or 8.
        width: A factor on the paper's feature groups; see :func:`num_groups`.
        num_classes: Scores for each image.
        in_channels: Channels of the images.

    >>> [vgg("4-2-1", width=1 / 4).get_submodule(tap)[0].out_channels for tap in ("conv1", "conv8")]
    [22, 198]
    """
    spec = FeatureGroups.of(feature_groups)
    groups = num_groups(spec, width)
    blocks = []
    before = in_channels
    for count in groups:
        after = spec.channels(count)
        conv = nn.Conv2d(before, after, 3, padding=1, bias=False)
        blocks.append(nn.Sequential(conv, nn.BatchNorm2d(after), nn.ELU()))
        before = after
    return VGG(blocks, spec, groups[-1], num_classes)


class VGG(nn.Module):
    """Eight blocks from maps to maps, and the layers that turn the last maps into scores.

    Four max pools halve the maps, 64 to 4: quarter turns are exact on multiples of 16.
    Built by :func:`vgg`, and with steerable blocks by :func:`ien.baselines.steerable_vgg`.
    """

    def __init__(
        self, blocks: Sequence[nn.Module], feature_groups: FeatureGroups, num_groups: int, num_classes: int
    ) -> None:
        super().__init__()
        self.feature_groups = feature_groups
        self.taps = ("conv1", "conv2", "conv3", "conv4", "conv5", "conv6", "conv7", "conv8")
        """The layers that the paper compares: after the ELU, before the pool."""
        self.conv1, self.conv2, self.conv3, self.conv4 = blocks[:4]
        self.conv5, self.conv6, self.conv7, self.conv8 = blocks[4:]
        self.pool1 = nn.MaxPool2d(2)
        self.pool2 = nn.MaxPool2d(2)
        self.pool4 = nn.MaxPool2d(2)
        self.pool6 = nn.MaxPool2d(2)
        self.group_pool = GroupPool(feature_groups)
        self.classifier = nn.Sequential(
            nn.Linear(num_groups, HIDDEN),
            nn.BatchNorm1d(HIDDEN),
            nn.ELU(),
            nn.Dropout(0.5),
            nn.Linear(HIDDEN, num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.pool1(self.conv1(x))
        h = self.pool2(self.conv2(h))
        h = self.pool4(self.conv4(self.conv3(h)))
        h = self.pool6(self.conv6(self.conv5(h)))
        h = self.group_pool(self.conv8(self.conv7(h)))  # (B, groups, 4, 4) from 64×64
        return self.classifier(h.mean((2, 3)))


def num_groups(feature_groups: Spec, width: float | Fraction) -> tuple[int, ...]:
    """Return the feature groups of each layer: the paper's for the largest size times ``width``.

    >>> num_groups("8-4-2", 1)  # in units of 4
    (24, 48, 100, 100, 200, 200, 200, 200)
    """
    return rounded(of_largest_size("vgg", NUM_GROUPS, feature_groups), feature_groups, width)
