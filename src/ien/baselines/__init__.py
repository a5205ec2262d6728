"""Built-in equivariance by name: from a name and options to a network that is called like a plain one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from .._names import nearest
from .steerable_nets import SteerableCNN6 as SteerableCNN6
from .steerable_nets import SteerableResNet18 as SteerableResNet18
from .steerable_nets import SteerableVGG as SteerableVGG
from .steerable_nets import steerable_cnn6 as steerable_cnn6
from .steerable_nets import steerable_resnet18 as steerable_resnet18
from .steerable_nets import steerable_vgg as steerable_vgg

__all__ = [
    "BASELINES",
    "SteerableCNN6",
    "SteerableResNet18",
    "SteerableVGG",
    "create",
    "steerable_cnn6",
    "steerable_resnet18",
    "steerable_vgg",
]

BASELINES: dict[str, Callable[..., nn.Module]] = {
    "e2cnn-cnn6": steerable_cnn6,
    "e2cnn-resnet18": steerable_resnet18,
    "e2cnn-vgg": steerable_vgg,
}


def create(name: str, **options: Any) -> nn.Module:
    """A baseline of :data:`BASELINES`, freshly initialised; its ``export()`` is a plain net.

    All take ``group`` (``rot4``, ``rot8``, ``rot4xflip``), ``width``, ``num_classes`` and ``in_channels``.
    """
    if name not in BASELINES:
        raise ValueError(f"there is no baseline {name!r}; {nearest(name, BASELINES)}")
    return BASELINES[name](**options)
