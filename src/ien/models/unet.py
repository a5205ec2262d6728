"""A small U-Net: images in, a score for each class and pixel out.

    x ── level 1 ─────────────────────────── join ── level 7 ── head      H × W
           └ pool ── level 2 ─────── join ── level 6 ┘ up                 H/2 × W/2
                       └ pool ── …    …  ┘ up                             H/4 × W/4, H/8 × W/8

Quarter turns and flips are exact if the sides are multiples of 8: each 2×2 pool then covers the map
without a rest, and each 2×2 transposed convolution writes the pixels that its pool read.
"""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor, nn

from ..loss.feature_groups import FeatureGroups, Spec
from .widths import of_largest_size, rounded

__all__ = ["UNet", "unet"]

# feature groups of each level on the way down at width 1, by the largest size; 1 is the base net
NUM_GROUPS = {1: (32, 64, 128, 256), 2: (16, 32, 64, 128), 4: (8, 16, 32, 64), 8: (6, 12, 24, 48)}
DIVISOR = 8  # of the sides of images: three pools halve them


def unet(
    feature_groups: Spec = 4, width: float | Fraction = 1, num_classes: int = 2, in_channels: int = 3
) -> UNet:
    """Build a small U-Net that segments images, with freshly drawn weights.

    Seven levels of two 3×3 convolutions (no bias, BatchNorm, ReLU): three on the way down, each
    followed by a 2×2 max pool, one at the bottom, and three on the way up, each after a 2×2
    transposed convolution and joined to the maps of the same size on the way down. A 1×1
    convolution gives the scores.

    Do not use it for images whose sides are no multiples of 8: it refuses them.

    Args:
        feature_groups: Sizes of the feature groups; the largest must be 1, 4 or 8. They set the
            number of channels, and what a loss compares. Take 4 to tie weights under ``rot4``, and
            8 under ``rot8`` and ``rot4xflip``.
        width: A factor on the channels of the levels: 32, 64, 128 and 256 for sizes 1 and 4, and
            48, 96, 192 and 384 for size 8.
        num_classes: Scores for each pixel.
        in_channels: Channels of the images.

    >>> unet(width=1 / 8, num_classes=5)(torch.rand(2, 3, 24, 16)).shape
    torch.Size([2, 5, 24, 16])
    """
    spec = FeatureGroups.of(feature_groups)
    channels = tuple(spec.channels(count) for count in num_groups(spec, width))
    return UNet(channels, spec, num_classes, in_channels)


class UNet(nn.Module):
    """Three levels down, one at the bottom, three up, and the layer that turns maps into scores.

    Built by :func:`unet`.
    """

    def __init__(
        self, channels: tuple[int, ...], feature_groups: FeatureGroups, num_classes: int, in_channels: int
    ) -> None:
        super().__init__()
        first, second, third, bottom = channels
        self.feature_groups = feature_groups
        self.taps = ("level1", "level2", "level3", "level4", "level5", "level6", "level7")
        """The layers that a loss compares: the end of each level."""
        self.level1 = _level(in_channels, first)
        self.level2 = _level(first, second)
        self.level3 = _level(second, third)
        self.level4 = _level(third, bottom)
        self.pool = nn.MaxPool2d(2)
        self.up5 = nn.ConvTranspose2d(bottom, third, 2, stride=2)
        self.up6 = nn.ConvTranspose2d(third, second, 2, stride=2)
        self.up7 = nn.ConvTranspose2d(second, first, 2, stride=2)
        self.level5 = _level(2 * third, third)
        self.level6 = _level(2 * second, second)
        self.level7 = _level(2 * first, first)
        self.head = nn.Conv2d(first, num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        if height % DIVISOR or width % DIVISOR:
            larger = f"{-(-height // DIVISOR) * DIVISOR}×{-(-width // DIVISOR) * DIVISOR}"
            raise ValueError(
                f"the U-Net takes images whose sides are multiples of {DIVISOR}; got {height}×{width}: pad "
                f"them to {larger}, or crop them"
            )
        h1 = self.level1(x)  # (B, first, H, W)
        h2 = self.level2(self.pool(h1))  # (B, second, H/2, W/2)
        h3 = self.level3(self.pool(h2))  # (B, third, H/4, W/4)
        h4 = self.level4(self.pool(h3))  # (B, bottom, H/8, W/8)
        h = self.level5(torch.cat([h3, self.up5(h4)], 1))  # (B, third, H/4, W/4)
        h = self.level6(torch.cat([h2, self.up6(h)], 1))  # (B, second, H/2, W/2)
        h = self.level7(torch.cat([h1, self.up7(h)], 1))  # (B, first, H, W)
        return self.head(h)  # (B, num_classes, H, W)


def num_groups(feature_groups: Spec, width: float | Fraction) -> tuple[int, ...]:
    """Return the feature groups of each level on the way down, from the top to the bottom.

    >>> num_groups(4, 1 / 2)
    (4, 8, 16, 32)
    """
    return rounded(of_largest_size("unet", NUM_GROUPS, feature_groups), feature_groups, width)


def _level(before: int, after: int) -> nn.Sequential:
    """Two 3×3 convolutions that keep the size of the maps."""
    layers: list[nn.Module] = []
    for inputs in (before, after):
        layers += [nn.Conv2d(inputs, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers)
