"""Weights: from one thing, several, or a mapping that weighs them, to a mapping with checked weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

__all__ = ["weights_of"]


def weights_of(given: Any, what: str, single: type | tuple[type, ...] = str) -> dict[Any, float]:
    """A mapping as it is; of an iterable each, and what is a ``single`` one by itself, with weight 1.

    >>> weights_of({"a": 0.5, "b": 0}, "layer"), weights_of(["a", "b"], "layer"), weights_of("a", "layer")
    ({'a': 0.5, 'b': 0}, {'a': 1.0, 'b': 1.0}, {'a': 1.0})
    """
    if isinstance(given, Mapping):
        weights = dict(given)
    elif isinstance(given, single) or not isinstance(given, Iterable):
        weights = {given: 1.0}
    else:
        given = list(given)
        weights = dict.fromkeys(given, 1.0)
        if len(weights) < len(given):
            raise ValueError(f"every {what} can be given once; got {', '.join(map(str, given))}")
    for key, weight in weights.items():
        if not isinstance(weight, Real) or not 0 <= float(weight) < math.inf:
            raise ValueError(
                f"the weight of {what} {str(key)!r} must be a number of at least 0; got {weight!r}"
            )
    return weights
