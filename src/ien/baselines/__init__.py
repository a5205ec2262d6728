"""The networks we compare with: equivariant by construction, and called like the plain ones.

    steerable_basis.py     the kernels that commute with rotations and flips, in closed form
    steerable_layers.py    layers that learn combinations of these kernels
    steerable_nets.py      the steerable twins of cnn6, resnet18 and vgg
    sesn_layers.py         SESN: convolutions with the same kernels at several scales
    sesn_nets.py           the SESN twins of cnn3 and wide_resnet
    dss.py                 deep scale-spaces: dilated kernels over blurred images
    ss_cnn.py              scale-steerable filters, with the maximum over scales after each layer

The steerable twin of SiamFC, which tracks, lives in ``ien.tracking`` and is built here by name.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from functools import partial
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
    # with the kernels of the published code
    "ss-cnn-published": partial(ss_cnn, published=True),
    "ss-cnn-wrn-published": partial(ss_cnn_wrn, published=True),
}
"""Name → the function that builds the network, for all baselines that classify images."""

TRACKERS = {"re-siamfc": "ien.tracking:re_siamfc"}
"""Name → where its function is: imported when asked for, as ``tracking`` builds on this."""

NAMES = (*BASELINES, *TRACKERS)
"""All names that :func:`create` knows."""


def create(name: str, **options: Any) -> nn.Module:
    """Build a baseline by name, with freshly drawn weights.

    Args:
        name: ``e2cnn-cnn6``, ``sesn-vector``, ``dss-wrn`` and so on; see :data:`NAMES`.
        **options: What its function takes: ``width`` and ``in_channels`` for all, ``num_classes``
            for those that classify, a ``group`` (``rot4``, ``rot8``, ``rot4xflip``) for the
            steerable ones (``e2cnn-…`` and ``re-siamfc``), a ``backbone`` for ``re-siamfc``, and
            for the nets for scaled digits (``sesn-vector``, ``sesn-scalar``, ``dss``, ``ss-cnn``)
            the ``size``, 28 or 56, at which they look at a digit.

    Returns:
        A network in training mode. Steerable ones have an ``export()`` to a plain network.

    Raises:
        ValueError: There is no such baseline, or an option is out of range.

    To make a network of your own equivariant, do not start from these: use
    ``ien.make_equivariant``, or the loss.

    >>> create("dss", width=1 / 4).taps
    ('conv1', 'conv2', 'conv3')
    """
    return factory(name)(**options)


def factory(name: str) -> Callable[..., nn.Module]:
    """Return the function that builds the baseline of this name."""
    if name in BASELINES:
        return BASELINES[name]
    if name in TRACKERS:
        return pkgutil.resolve_name(TRACKERS[name])
    raise ValueError(f"there is no baseline {name!r}; {nearest(name, NAMES)}")


def __getattr__(name: str) -> Any:
    """Find the networks of trackers here too, although they live in ``ien.tracking``."""
    if name in ("re_siamfc", "ReSiamFC"):
        return pkgutil.resolve_name(f"ien.tracking:{name}")
    raise AttributeError(f"module 'ien.baselines' has no attribute {name!r}")
