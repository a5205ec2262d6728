"""Models by name: from a name and options to a plain network, with the widths of the paper's tables."""

from __future__ import annotations

import difflib
from typing import Any

from torch import nn

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
        close = difflib.get_close_matches(name, MODELS, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(f"there is no model {name!r}{hint}; there are: {', '.join(MODELS)}")
    return MODELS[name](**options)
