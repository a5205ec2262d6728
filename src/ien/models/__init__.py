"""The networks of the experiments: plain PyTorch modules that take images and return scores.

    widths.py         how many feature groups each layer gets at a given width
    normalize.py      images in [0, 1] → mean 0 and deviation 1, inside the network
    cnn6.py           Rot-MNIST: six convolutions
    resnet18.py       Rot-TIM: four stages of pre-activation blocks
    vgg.py            Rot-TIM: eight convolutions
    cnn3.py           Scale-MNIST: three convolutions
    wide_resnet.py    STL-10: WRN-16-8, built of the blocks of resnet18.py
    unet.py           segmentation: a score for each pixel

Every network has ``taps``, the names of the layers that the loss compares, and ``feature_groups``,
how their channels are grouped. SiamFC, which tracks, lives in ``ien.tracking`` and is built here by
name.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable
from typing import Any

from torch import nn

from .._text import nearest, no_attribute
from ..loss.feature_groups import FeatureGroups, Spec
from .cnn3 import CNN3 as CNN3
from .cnn3 import cnn3 as cnn3
from .cnn6 import CNN6 as CNN6
from .cnn6 import cnn6 as cnn6
from .resnet18 import ResNet18 as ResNet18
from .resnet18 import resnet18 as resnet18
from .unet import UNet as UNet
from .unet import unet as unet
from .vgg import VGG as VGG
from .vgg import vgg as vgg
from .wide_resnet import WideResNet as WideResNet
from .wide_resnet import wide_resnet as wide_resnet

__all__ = [
    "CNN3",
    "CNN6",
    "MODELS",
    "NAMES",
    "SEGMENTERS",
    "VGG",
    "ResNet18",
    "UNet",
    "WideResNet",
    "channel_share",
    "cnn3",
    "cnn6",
    "create",
    "factory",
    "resnet18",
    "unet",
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
"""Name → the function that builds the network, for all networks that classify images."""

SEGMENTERS: dict[str, Callable[..., nn.Module]] = {"unet": unet}
"""Name → the function that builds the network, for those that return scores for each pixel."""

TRACKERS = {"siamfc": "ien.tracking:siamfc"}
"""Name → where its function is: imported when asked for, as ``tracking`` builds on ``models``."""

NAMES = (*MODELS, *SEGMENTERS, *TRACKERS)
"""All names that :func:`create` knows."""


def create(name: str, **options: Any) -> nn.Module:
    """Build a network by name, with freshly drawn weights.

    Args:
        name: ``cnn6``, ``resnet18``, ``vgg``, ``cnn3``, ``wide-resnet``, ``unet`` or ``siamfc``.
        **options: What its function takes: ``feature_groups``, ``width`` and ``in_channels`` for
            all, ``num_classes`` for those that classify images or pixels, ``size`` for ``cnn3``,
            ``dropout`` for ``wide-resnet``, ``backbone`` for ``siamfc``.

    Returns:
        A network in training mode.

    Raises:
        ValueError: There is no such network, or an option is out of range.

    Do not use it if you have a network already: the loss works with any module, unchanged.

    >>> create("cnn6", feature_groups="4-2-1", width=1 / 8).conv1[0].out_channels
    11
    """
    return factory(name)(**options)


def factory(name: str) -> Callable[..., nn.Module]:
    """Return the function that builds the network of this name."""
    if name in MODELS:
        return MODELS[name]
    if name in SEGMENTERS:
        return SEGMENTERS[name]
    if name in TRACKERS:
        return pkgutil.resolve_name(TRACKERS[name])
    raise ValueError(f"there is no model {name!r}; {nearest(name, NAMES)}")


def channel_share(name: str, feature_groups: Spec, width: float = 1) -> float:
    """Compare a mix of feature groups with feature groups that all have its largest size.

    Args:
        name: The network, one of :data:`NAMES`.
        feature_groups: The mix, such as ``"4-2-1"``.
        width: The factor on the paper's feature groups.

    Returns:
        The channels of all layers together with the mix, divided by those with the largest size
        alone.

    >>> round(channel_share("resnet18", "4-2-1"), 3), channel_share("vgg", 4)
    (0.685, 1.0)
    """
    mix = FeatureGroups.of(feature_groups)
    uniform = FeatureGroups.of(mix.sizes[0])
    return _channels(name, mix, width) / _channels(name, uniform, width)


def _channels(name: str, feature_groups: FeatureGroups, width: float) -> int:
    # the file of each network has a num_groups next to the function that builds it
    module: Any = sys.modules[factory(name).__module__]
    total = 0
    for count in module.num_groups(feature_groups, width):
        total += feature_groups.channels(count)
    return total


def __getattr__(name: str) -> Any:
    """Find the networks of trackers here too, although they live in ``ien.tracking``."""
    if name in ("siamfc", "SiamFC"):
        return pkgutil.resolve_name(f"ien.tracking:{name}")
    raise no_attribute(__name__, name, __all__)


def __dir__() -> list[str]:
    return sorted(__all__)
