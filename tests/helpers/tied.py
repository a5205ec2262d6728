"""Rotated maps and permuted members from labels alone, independent of the library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ien

D4 = ien.rotation(4) * ien.reflection()


def moved(x: Tensor, label: str) -> Tensor:
    """An image (…, n, n) under an element, from its label alone."""
    label = label.replace("vflip", "180° flip").replace("identity", "")
    if "flip" in label:
        x = x.flip(-1)
    quarters = int(label.split("°")[0]) // 90 if "°" in label else 0
    return x.rot90(quarters, (-2, -1))


def member_moved(group: ien.Group, size: int, g: int, m: int) -> int:
    """The member that element ``g`` moves to place ``m``: by counting, or found with pictures."""
    if size < len(group) or group == ien.rotation(4):
        return (m - g) % size
    picture = torch.arange(9.0).view(3, 3)
    made = [moved(picture, label) for label in group.labels]
    return next(j for j in range(size) if torch.equal(moved(made[j], group.labels[g]), made[m]))


def channels_moved(group: ien.Group, feature_groups: object, channels: int, g: int) -> list[int]:
    """The channel that element ``g`` moves to each place."""
    table, first = [], 0
    for size, count in ien.FeatureGroups.of(feature_groups).blocks(channels):  # type: ignore[arg-type]
        for start in range(first, first + count, size):
            table += [start + member_moved(group, size, g, m) for m in range(size)]
        first += count
    return table


def regular_error(net: nn.Module, x: Tensor, feature_groups: object) -> float:
    """Relative error of all channels under 90°, permuted and rotated one by one."""
    with torch.no_grad():
        h, h_g = net(x), net(x.rot90(1, (-2, -1)))
    expected = h.rot90(1, (-2, -1))[:, channels_moved(ien.rotation(4), feature_groups, h.shape[1], 1)]
    return float((h_g - expected).square().mean() / h.var())


class Net(nn.Module):
    """A module from what it is made of, and a function of it and its input."""

    def __init__(self, function: Callable[[Any, Any], Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


def conv(before: int, after: int, kernel: int = 3, **settings: Any) -> nn.Conv2d:
    """A convolution that keeps the size of maps, unless another padding is asked for."""
    return nn.Conv2d(before, after, kernel, **{"padding": kernel // 2, **settings})


def residual() -> nn.Module:
    """A stem, a block whose shortcut is a convolution, and a head that returns maps."""
    return Net(
        lambda net, x: net.head(
            F.relu_(net.norm(net.b(F.relu_(net.a(net.stem(x)))) + net.short(net.stem(x))))
        ),
        stem=conv(3, 8),
        a=conv(8, 8),
        b=conv(8, 16),
        short=conv(8, 16, 1),
        norm=nn.BatchNorm2d(16),
        head=conv(16, 4, 1),
    )
