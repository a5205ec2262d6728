"""Models by name: from a name and options to a plain network, with the widths of the paper's tables."""

from __future__ import annotations

from typing import Any

from torch import nn

from .._names import nearest
from .cnn6 import CNN6 as CNN6
from .cnn6 import cnn6 as cnn6

__all__ = ["CNN6", "MODELS", "cnn6", "create"]

MODELS = {"cnn6": cnn6}


def create(name: str, **options: Any) -> nn.Module:
    """A model of :data:`MODELS`, freshly initialised.

    >>> create("cnn6", feature_groups="4-2-1", width=1 / 8).conv1[0].out_channels
    11
    """
    if name not in MODELS:
        raise ValueError(f"there is no model {name!r}; {nearest(name, MODELS)}")
    return MODELS[name](**options)
