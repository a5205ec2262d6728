"""Steerable twins of the models: a group and a width in, nets that export to the plain ones out."""

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
from .steerable_layers import DEFAULT, WIDE, FieldNorm, SteerableConv2d, Symmetry, steer

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
    """The E2CNN twin of :func:`ien.models.cnn6`: same blocks and channels, regular fields as feature groups.

    Exact for quarter turns and flips; for the rotations between them as exact as the pixels allow.
    """
    return SteerableCNN6(Symmetry.of(group), width, num_classes, in_channels)


def steerable_resnet18(
    group: str | Group = "rot4", width: float | Fraction = 1, num_classes: int = 100, in_channels: int = 3
) -> SteerableResNet18:
    """The E2CNN twin of :func:`ien.models.resnet18`, with the parameters of the base net at width 1.

    Its kernels have 8 functions for each 3×3 filter, which is what the paper's widths are matched with.
    """
    return SteerableResNet18(Symmetry.of(group), width, num_classes, in_channels)


def steerable_vgg(
    group: str | Group = "rot4", width: float | Fraction = 1, num_classes: int = 100, in_channels: int = 3
) -> SteerableVGG:
    """The E2CNN twin of :func:`ien.models.vgg`, with e2cnn's own 6 functions for each 3×3 filter."""
    return SteerableVGG(Symmetry.of(group), width, num_classes, in_channels)


class SteerableCNN6(CNN6):
    """A :class:`CNN6` with steerable convolutions and BatchNorms that share statistics within a field."""

    def __init__(
        self, symmetry: Symmetry, width: float | Fraction, num_classes: int, in_channels: int
    ) -> None:
        plain = partial(cnn6, symmetry.members, width, num_classes, in_channels)
        net = on_meta(plain)
        steer(net, symmetry, DEFAULT)
        fields = cnn6_fields(symmetry.members, width)[-1]
        super().__init__(
            [net.get_submodule(tap) for tap in net.taps], net.feature_groups, fields, num_classes
        )
        self._plain = plain

    def export(self) -> CNN6:
        """The plain net that computes the same in eval mode, with weights of its own."""
        return exported(self, self._plain)


class SteerableResNet18(ResNet18):
    """A :class:`ResNet18` with steerable convolutions and BatchNorms that share statistics within a field."""

    def __init__(
        self, symmetry: Symmetry, width: float | Fraction, num_classes: int, in_channels: int
    ) -> None:
        plain = partial(resnet18, symmetry.members, width, num_classes, in_channels)
        net = on_meta(plain)
        steer(net, symmetry, WIDE)
        *last_blocks, last_norm, _ = net.layer4
        stages = [*map(list, (net.layer1, net.layer2, net.layer3)), last_blocks]
        fields = resnet18_fields(symmetry.members, width)[-1]
        super().__init__(net.stem, stages, last_norm, net.feature_groups, fields, num_classes)
        self._plain = plain

    def export(self) -> ResNet18:
        """The plain net that computes the same in eval mode, with weights of its own."""
        return exported(self, self._plain)


class SteerableVGG(VGG):
    """A :class:`VGG` with steerable convolutions and BatchNorms that share statistics within a field."""

    def __init__(
        self, symmetry: Symmetry, width: float | Fraction, num_classes: int, in_channels: int
    ) -> None:
        plain = partial(vgg, symmetry.members, width, num_classes, in_channels)
        net = on_meta(plain)
        steer(net, symmetry, DEFAULT)
        fields = vgg_fields(symmetry.members, width)[-1]
        super().__init__(
            [net.get_submodule(tap) for tap in net.taps], net.feature_groups, fields, num_classes
        )
        self._plain = plain

    def export(self) -> VGG:
        """The plain net that computes the same in eval mode, with weights of its own."""
        return exported(self, self._plain)


def exported(twin: nn.Module, plain: Callable[[], Net]) -> Net:
    """The net that ``plain`` makes, with the weights of its steerable ``twin``, in eval mode."""
    with torch.no_grad():
        state = {name: value.clone() for name, value in twin.state_dict().items()}
        for name, layer in twin.named_modules():
            if isinstance(layer, SteerableConv2d | FieldNorm):
                for key in layer.state_dict():
                    del state[f"{name}.{key}"]
                state |= {f"{name}.{key}": value for key, value in layer.plain_state().items()}
    net = on_meta(plain)
    net.load_state_dict(state, assign=True)
    return net.eval()


def on_meta(plain: Callable[[], Net]) -> Net:
    """The net that ``plain`` makes, without weights: those it would draw are replaced at once."""
    with torch.device("meta"):
        return plain()
