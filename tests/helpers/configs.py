"""Configurations with other values, and the networks that they describe."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import nn

from ien.training import Config, changed, differences, kind_of

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
