"""Built-in equivariance by name: from a name and options to a network that is called like a plain one."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import Any

from torch import nn

from .._text import nearest
from .dss import dss as dss
from .dss import dss_wrn as dss_wrn
from .sesn_nets import sesn_scalar as sesn_scalar
from .sesn_nets import sesn_vector as sesn_vector
from .sesn_nets import sesn_wrn as sesn_wrn
from .ss_cnn import ss_cnn as ss_cnn
from .ss_cnn import ss_cnn_wrn as ss_cnn_wrn
from .steerable_nets import SteerableCNN6 as SteerableCNN6
from .steerable_nets import SteerableResNet18 as SteerableResNet18
from .steerable_nets import SteerableVGG as SteerableVGG
from .steerable_nets import steerable_cnn6 as steerable_cnn6
from .steerable_nets import steerable_resnet18 as steerable_resnet18
from .steerable_nets import steerable_vgg as steerable_vgg

__all__ = [
    "BASELINES",
    "NAMES",
    "SteerableCNN6",
    "SteerableResNet18",
    "SteerableVGG",
    "create",
    "dss",
    "dss_wrn",
    "factory",
    "sesn_scalar",
    "sesn_vector",
    "sesn_wrn",
    "ss_cnn",
    "ss_cnn_wrn",
    "steerable_cnn6",
    "steerable_resnet18",
    "steerable_vgg",
]

BASELINES: dict[str, Callable[..., nn.Module]] = {
    "e2cnn-cnn6": steerable_cnn6,
    "e2cnn-resnet18": steerable_resnet18,
    "e2cnn-vgg": steerable_vgg,
    "sesn-vector": sesn_vector,
    "sesn-scalar": sesn_scalar,
    "dss": dss,
    "ss-cnn": ss_cnn,
    "sesn-wrn": sesn_wrn,
    "dss-wrn": dss_wrn,
    "ss-cnn-wrn": ss_cnn_wrn,
}
NAMES = (*BASELINES, "re-siamfc")


def create(name: str, **options: Any) -> nn.Module:
    """A baseline of :data:`BASELINES`, freshly initialised.

    All take ``width`` and ``in_channels``, all that classify ``num_classes``. The steerable nets
    (``e2cnn-…``, ``re-siamfc``) take a ``group`` (``rot4``, ``rot8``, ``rot4xflip``) and have an ``export()``
    to a plain net; ``re-siamfc`` takes a ``backbone`` too. The nets for scaled digits (``sesn-vector``,
    ``sesn-scalar``, ``dss``, ``ss-cnn``) take the ``size`` at which they see one, 28 or 56.
    """
    return factory(name)(**options)


def factory(name: str) -> Callable[..., nn.Module]:
    """The function that builds the baseline of this name."""
    if name == "re-siamfc":
        return pkgutil.resolve_name("ien.tracking.re_siamfc_network:re_siamfc")
    if name not in BASELINES:
        raise ValueError(f"there is no baseline {name!r}; {nearest(name, NAMES)}")
    return BASELINES[name]
