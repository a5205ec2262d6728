"""Configurations with other values, and the networks that they describe."""

from typing import Any, TypeVar

from torch import nn

from ien import experiments
from ien.training import Config, changed, differences, flat, kind_of

C = TypeVar("C", bound=Config)


def with_values(config: C, **values: Any) -> C:
    """``config`` with other values for some of its fields."""
    return changed(config, values)


def network(config: Config) -> nn.Module:
    """The network of a configuration, with random weights."""
    return kind_of(config).network(config)


def differing(config: Config, other: Config) -> set[str]:
    """The names of the fields in which two configurations differ."""
    return set(differences(config, other))


def distinct(*patterns: str) -> list[str]:
    """The rows of these patterns; of those that differ only in the size of ``beta``, the first."""
    found: dict[str, str] = {}
    for name in experiments.find(*patterns):
        values = flat(experiments.config(name, "smoke"))
        kind = values | {"experiment": name.split("/")[0], "beta": values["beta"] > 0}
        found.setdefault(str(kind), name)
    return list(found.values())
