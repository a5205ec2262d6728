"""Names of layers: which are compared, with which weight, and in which feature groups."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import TypeVar

from .._text import nearest
from ..groups.group import Group
from ..groups.members import check_regular
from .feature_groups import FeatureGroups, Spec

__all__ = ["by_name", "check_regular_layers", "per_layer", "weights_of"]

Key = TypeVar("Key", bound=Group | str)


def weights_of(given: Key | Iterable[Key] | Mapping[Key, float], what: str) -> dict[Key, float]:
    """Give every layer or group its weight: a mapping carries weights, anything else has weight 1.

    Args:
        given: One layer or group, several of them, or a mapping to weights.
        what: What the keys are, for error messages.

    >>> weights_of({"a": 0.5, "b": 0}, "layer"), weights_of(["a", "b"], "layer")
    ({'a': 0.5, 'b': 0}, {'a': 1.0, 'b': 1.0})
    """
    if isinstance(given, Mapping):
        weights = dict(given)
    elif isinstance(given, Group | str) or not isinstance(given, Iterable):
        weights = {given: 1.0}
    else:
        keys = list(given)
        weights = dict.fromkeys(keys, 1.0)
        if len(weights) < len(keys):
            raise ValueError(f"each {what} may be named only once; got {', '.join(map(str, keys))}")
    for key, weight in weights.items():
        if not isinstance(weight, Real) or not 0 <= float(weight) < math.inf:
            raise ValueError(
                f"the weight of {what} {str(key)!r} must be a number of at least 0; got {weight!r}"
            )
    return weights


def by_name(feature_groups: Spec | Mapping[str, Spec]) -> dict[str, FeatureGroups]:
    """Map layer names to feature groups; a single one applies to the whole model, ``""``.

    >>> by_name(4), by_name({"conv1": 4, "": "4-2-1"})["conv1"]
    ({'': FeatureGroups.of(4)}, FeatureGroups.of(4))
    """
    if not isinstance(feature_groups, Mapping) or all(isinstance(key, int) for key in feature_groups):
        return {"": FeatureGroups.of(feature_groups)}  # type: ignore[arg-type]
    named = {}
    for name, spec in feature_groups.items():
        if not isinstance(name, str):
            raise TypeError(
                f"feature_groups maps sizes to shares, or layer names to feature groups, but not both; "
                f"got the keys {list(feature_groups)}"
            )
        named[name] = FeatureGroups.of(spec)  # type: ignore[arg-type]
    return named


def per_layer(feature_groups: Spec | Mapping[str, Spec], layers: Iterable[str]) -> dict[str, FeatureGroups]:
    """Give each layer its feature groups.

    Args:
        feature_groups: One for all layers, or a mapping by layer name, with ``""`` for the rest.
        layers: The names of all layers.
    """
    layers = list(layers)
    named = by_name(feature_groups)
    partition = {}
    for layer in layers:
        key = layer if layer in named else ""
        if key not in named:
            raise KeyError(f"feature_groups has no entry for layer {layer!r}; it has {', '.join(named)}")
        partition[layer] = named[key]
    for name in named:
        if layers and name and name not in layers:
            raise KeyError(
                f"feature_groups names {name!r}, which is not a chosen layer; {nearest(name, layers)}"
            )
    return partition


def check_regular_layers(group: Group, feature_groups: Mapping[str, FeatureGroups]) -> None:
    """Raise a ValueError that names the first layer whose members ``group`` cannot permute."""
    for name, spec in feature_groups.items():
        check_regular(group, spec.sizes, name)
