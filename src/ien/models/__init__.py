"""Models by name: from a name and options to a plain network, with the widths of the paper's tables."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import Any

from torch import nn

from .._text import nearest
from ..loss.feature_groups import FeatureGroups, Spec
from . import cnn3 as _cnn3
from . import cnn6 as _cnn6
from . import resnet18 as _resnet18
from . import vgg as _vgg
from . import wide_resnet as _wide_resnet
from .cnn3 import CNN3 as CNN3
from .cnn3 import cnn3 as cnn3
from .cnn6 import CNN6 as CNN6
from .cnn6 import cnn6 as cnn6
from .resnet18 import ResNet18 as ResNet18
from .resnet18 import resnet18 as resnet18
from .vgg import VGG as VGG
from .vgg import vgg as vgg
from .wide_resnet import WideResNet as WideResNet
from .wide_resnet import wide_resnet as wide_resnet

__all__ = [
    "CNN3",
    "CNN6",
    "MODELS",
    "NAMES",
    "VGG",
    "ResNet18",
    "WideResNet",
    "channel_share",
    "cnn3",
    "cnn6",
    "create",
    "factory",
    "resnet18",
    "vgg",
    "wide_resnet",
]

MODELS: dict[str, Callable[..., nn.Module]] = {
    "cnn6": cnn6,
    "resnet18": resnet18,
    "vgg": vgg,
    "cnn3": cnn3,
    "wide-resnet": wide_resnet,
}
_TRACKERS = "ien.tracking.siamfc_network"
"""Where siamfc is: loaded when it is asked for."""
NAMES = (*MODELS, "siamfc")
_NUM_GROUPS = {
    "cnn6": _cnn6.num_groups,
    "resnet18": _resnet18.num_groups,
    "vgg": _vgg.num_groups,
    "cnn3": _cnn3.num_groups,
    "wide-resnet": _wide_resnet.num_groups,
}


def create(name: str, **options: Any) -> nn.Module:
    """A model of :data:`MODELS`, freshly initialised.

    >>> create("cnn6", feature_groups="4-2-1", width=1 / 8).conv1[0].out_channels
    11
    """
    return factory(name)(**options)


def factory(name: str) -> Callable[..., nn.Module]:
    """The function that builds the model of this name."""
    if name == "siamfc":
        return pkgutil.resolve_name(f"{_TRACKERS}:siamfc")
    if name not in MODELS:
        raise ValueError(f"there is no model {name!r}; {nearest(name, NAMES)}")
    return MODELS[name]


def channel_share(name: str, feature_groups: Spec, width: float = 1) -> float:
    """Channels of a model, all layers together, relative to feature groups that all have the largest size.

    >>> round(channel_share("resnet18", "4-2-1"), 3), channel_share("vgg", 4)
    (0.685, 1.0)
    """
    spec = FeatureGroups.of(feature_groups)
    whole = FeatureGroups.of(spec.sizes[0])
    later = name == "siamfc"
    num_groups = pkgutil.resolve_name(f"{_TRACKERS}:num_groups") if later else _NUM_GROUPS[name]
    channels = [sum(map(mix.channels, num_groups(mix, width))) for mix in (spec, whole)]
    return channels[0] / channels[1]
