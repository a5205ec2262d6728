"""RE-SiamFC: SiamFC with steerable convolutions, which are equivariant by construction."""

from __future__ import annotations

from fractions import Fraction
from functools import partial

from ..baselines.steerable_basis import E2CNN_DEFAULT
from ..baselines.steerable_layers import Symmetry, steer
from ..baselines.steerable_nets import exported, on_meta
from ..groups.group import Group
from .siamfc_network import SiamFC, siamfc

__all__ = ["ReSiamFC", "re_siamfc"]


def re_siamfc(
    group: str | Group = "rot4",
    backbone: str = "alexnet-v2",
    width: float | Fraction = 1,
    in_channels: int = 3,
    features: int | None = None,
) -> ReSiamFC:
    """Build SiamFC with steerable convolutions and regular fields as its feature groups.

    The fields of RE-SiamFC were never published. Half the channels of the plain network, 48, 128,
    192, 192 and 16 (V1: 128), give ``rot4`` about as many parameters. Other groups have the same
    fields, and more parameters the more elements they have. Features are pooled over a field before
    they are correlated.

    Use :func:`ien.tracking.siamfc` instead where equivariance should be learnt.

    Args:
        group: The rotations it commutes with, such as ``rot4``.
        backbone: ``alexnet-v1`` (stride 8) or ``alexnet-v2`` (stride 4).
        width: Factor on the number of fields.
        in_channels: Channels of the images.
        features: Fields of the last layer, which are correlated; None for those of the width.

    Returns:
        A network in training mode, with an ``export()`` to a plain SiamFC.

    >>> re_siamfc(width=1 / 8).feature_groups
    FeatureGroups.of(4)
    """
    return ReSiamFC(Symmetry.of(group), backbone, width, in_channels, features)


class ReSiamFC(SiamFC):
    """SiamFC with steerable convolutions; BatchNorms share statistics within a field."""

    def __init__(
        self,
        symmetry: Symmetry,
        backbone: str,
        width: float | Fraction,
        in_channels: int,
        features: int | None = None,
    ) -> None:
        plain = partial(siamfc, backbone, symmetry.members, width, in_channels, features)
        net = on_meta(plain)  # its structure, without weights
        steer(net, symmetry, E2CNN_DEFAULT)
        blocks = [net.get_submodule(layer) for layer in net.taps]
        super().__init__(blocks, net.feature_groups, backbone)
        self._plain = plain  # builds the network to export to

    def export(self) -> SiamFC:
        """Return the plain network that computes the same in eval mode, with weights of its own."""
        return exported(self, self._plain)
