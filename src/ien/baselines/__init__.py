"""Built-in equivariance by name: from a name and options to a network that is called like a plain one."""

from __future__ import annotations

from typing import Any

from torch import nn

from .._names import nearest
from .steerable import SteerableCNN6 as SteerableCNN6
from .steerable import steerable_cnn6 as steerable_cnn6

__all__ = ["BASELINES", "SteerableCNN6", "create", "steerable_cnn6"]

BASELINES = {"e2cnn-cnn6": steerable_cnn6}


def create(name: str, **options: Any) -> nn.Module:
    """A baseline of :data:`BASELINES`, freshly initialised; its ``export()`` is a plain net."""
    if name not in BASELINES:
        raise ValueError(f"there is no baseline {name!r}; {nearest(name, BASELINES)}")
    return BASELINES[name](**options)
