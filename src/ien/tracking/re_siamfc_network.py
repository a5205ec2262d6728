"""RE-SiamFC, the steerable twin of SiamFC: a group and a width in, a net that exports to SiamFC out."""

from __future__ import annotations

from fractions import Fraction
from functools import partial

from ..baselines.steerable_layers import E2CNN_DEFAULT, Symmetry, steer
from ..baselines.steerable_nets import exported, on_meta
from ..groups.group import Group
from .siamfc_network import SiamFC, siamfc

__all__ = ["ReSiamFC", "re_siamfc"]


def re_siamfc(
    group: str | Group = "rot4",
    backbone: str = "alexnet-v2",
    width: float | Fraction = 1,
    in_channels: int = 3,
) -> ReSiamFC:
    """SiamFC with steerable convolutions, regular fields as feature groups and whole convolutions.

    RE-SiamFC's own fields were never published. Half the channels of the plain net, 48, 128, 192, 192 and 16
    (V1: 128), give ``rot4`` about its parameters; other groups have the same fields, and more parameters the
    more elements. Features are pooled over a field before they are correlated.
    """
    return ReSiamFC(Symmetry.of(group), backbone, width, in_channels)


class ReSiamFC(SiamFC):
    """A :class:`SiamFC` with steerable convolutions and BatchNorms that share statistics within a field."""

    def __init__(self, symmetry: Symmetry, backbone: str, width: float | Fraction, in_channels: int) -> None:
        plain = partial(siamfc, backbone, symmetry.members, width, in_channels)
        net = on_meta(plain)
        steer(net, symmetry, E2CNN_DEFAULT)
        super().__init__([net.get_submodule(tap) for tap in net.taps], net.feature_groups, backbone)
        self._plain = plain

    def export(self) -> SiamFC:
        """The plain net that computes the same in eval mode, with weights of its own."""
        return exported(self, self._plain)
