"""Steerable twins of the models: same blocks and channels, exactly equivariant.

For quarter turns and flips they are exact; for the rotations between as exact as the pixels allow.
Training them takes longer than training a plain net, since kernels are expanded in every pass.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import TypeVar

import torch
from torch import nn

from ..groups.group import Group
from ..models.cnn6 import CNN6, cnn6
from ..models.cnn6 import num_groups as cnn6_fields
from ..models.resnet18 import ResNet18, resnet18
from ..models.resnet18 import num_groups as resnet18_fields
from ..models.vgg import VGG, vgg
from ..models.vgg import num_groups as vgg_fields
from .steerable_basis import E2CNN_DEFAULT, E2CNN_WIDE
from .steerable_layers import FieldNorm, SteerableConv2d, Symmetry, steer

__all__ = [
    "SteerableCNN6",
    "SteerableResNet18",
    "SteerableVGG",
    "exported",
    "on_meta",
    "steerable_cnn6",
    "steerable_resnet18",
    "steerable_vgg",
]

Net = TypeVar("Net", bound=nn.Module)


def steerable_cnn6(
    group: str | Group = "rot4", width: float | Fraction = 1, num_classes: int = 10, in_channels: int = 1
) -> SteerableCNN6:
    """Build the steerable twin of :func:`ien.models.cnn6`, whose feature groups are the fields.

    Args:
        group: ``rot4``, ``rot8``, ``rot4xflip`` or the like.
        width: A factor on the paper's feature groups.
        num_classes: Scores for each image.
        in_channels: Channels of the images.
    """
    return SteerableCNN6(Symmetry.of(group), width, num_classes, in_channels)


def steerable_resnet18(
    group: str | Group = "rot4", width: float | Fraction = 1, num_classes: int = 100, in_channels: int = 3
) -> SteerableResNet18:
    """Build the steerable twin of :func:`ien.models.resnet18`.

    Its kernels have 8 functions for each 3×3 filter, which is what the paper's widths are matched
    with: at width 1 it has as many parameters as the base net.

    Args:
        group: ``rot4``, ``rot8``, ``rot4xflip`` or the like.
        width: A factor on the paper's feature groups.
        num_classes: Scores for each image.
        in_channels: Channels of the images.
    """
    return SteerableResNet18(Symmetry.of(group), width, num_classes, in_channels)


def steerable_vgg(
    group: str | Group = "rot4", width: float | Fraction = 1, num_classes: int = 100, in_channels: int = 3
) -> SteerableVGG:
    """Build the steerable twin of :func:`ien.models.vgg`, with 6 functions for each 3×3 filter.

    Args:
        group: ``rot4``, ``rot8``, ``rot4xflip`` or the like.
        width: A factor on the paper's feature groups.
        num_classes: Scores for each image.
        in_channels: Channels of the images.
    """
    return SteerableVGG(Symmetry.of(group), width, num_classes, in_channels)


class SteerableCNN6(CNN6):
    """A :class:`CNN6` with steerable convolutions and a BatchNorm for whole fields."""

    def __init__(
        self, symmetry: Symmetry, width: float | Fraction, num_classes: int, in_channels: int
    ) -> None:
        plain = partial(cnn6, symmetry.members, width, num_classes, in_channels)
        net = on_meta(plain)
        steer(net, symmetry, E2CNN_DEFAULT)
        blocks = [net.get_submodule(tap) for tap in net.taps]
        fields = cnn6_fields(symmetry.members, width)[-1]
        super().__init__(blocks, net.feature_groups, fields, num_classes)
        self._plain = plain

    def export(self) -> CNN6:
        """Return the plain net that computes the same in eval mode, with weights of its own."""
        return exported(self, self._plain)


class SteerableResNet18(ResNet18):
    """A :class:`ResNet18` with steerable convolutions and a BatchNorm for whole fields."""

    def __init__(
        self, symmetry: Symmetry, width: float | Fraction, num_classes: int, in_channels: int
    ) -> None:
        plain = partial(resnet18, symmetry.members, width, num_classes, in_channels)
        net = on_meta(plain)
        steer(net, symmetry, E2CNN_WIDE)
        *last_blocks, last_norm, _ = net.layer4  # without the ReLU, which the base class adds
        stages = [list(net.layer1), list(net.layer2), list(net.layer3), last_blocks]
        fields = resnet18_fields(symmetry.members, width)[-1]
        super().__init__(net.stem, stages, last_norm, net.feature_groups, fields, num_classes)
        self._plain = plain

    def export(self) -> ResNet18:
        """Return the plain net that computes the same in eval mode, with weights of its own."""
        return exported(self, self._plain)


class SteerableVGG(VGG):
    """A :class:`VGG` with steerable convolutions and a BatchNorm for whole fields."""

    def __init__(
        self, symmetry: Symmetry, width: float | Fraction, num_classes: int, in_channels: int
    ) -> None:
        plain = partial(vgg, symmetry.members, width, num_classes, in_channels)
        net = on_meta(plain)
        steer(net, symmetry, E2CNN_DEFAULT)
        blocks = [net.get_submodule(tap) for tap in net.taps]
        fields = vgg_fields(symmetry.members, width)[-1]
        super().__init__(blocks, net.feature_groups, fields, num_classes)
        self._plain = plain

    def export(self) -> VGG:
        """Return the plain net that computes the same in eval mode, with weights of its own."""
        return exported(self, self._plain)


def exported(twin: nn.Module, plain: Callable[[], Net]) -> Net:
    """Build the net that ``plain`` makes, with the weights of its steerable ``twin``."""
    state = {}
    with torch.no_grad():
        for name, value in twin.state_dict().items():
            state[name] = value.clone()
        for name, layer in twin.named_modules():
            if not isinstance(layer, SteerableConv2d | FieldNorm):
                continue
            # fields become channels: the names and sizes of the plain layer take their place
            for key in layer.state_dict():
                del state[f"{name}.{key}"]
            for key, value in layer.plain_state().items():
                state[f"{name}.{key}"] = value
    net = on_meta(plain)
    net.load_state_dict(state, assign=True)
    return net.eval()


def on_meta(plain: Callable[[], Net]) -> Net:
    """Build the net that ``plain`` makes without drawing weights, which will be replaced."""
    with torch.device("meta"):
        return plain()
