"""Fields: from the JSON of a record and the names on the way to a value of the kind that it should have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

__all__ = ["number", "numbers", "share", "take"]

T = TypeVar("T")


def take(content: Mapping[str, object], *names: str, kind: type[T]) -> T:
    """What ``names`` lead to.

    >>> take({"data": {"name": "rot-mnist"}}, "data", "name", kind=str)
    'rot-mnist'
    """
    value: object = content
    for name in names:
        if not isinstance(value, Mapping) or name not in value:
            raise ValueError(f"it has no {'.'.join(names)}")
        value = value[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{'.'.join(names)} should be of type {kind.__name__}; it is {value!r}")
    return value


def number(content: Mapping[str, object], *names: str) -> float:
    """A number, NaN where there is none."""
    value = take(content, *names, kind=object)
    if value is None or value != value:
        return math.nan  # one NaN object, so that two readings of one file are equal
    if not isinstance(value, (int, float)):
        raise ValueError(f"{'.'.join(names)} should be a number; it is {value!r}")
    return float(value)


def share(content: Mapping[str, object], *names: str) -> float:
    """A number that is there, from 0 to 1."""
    value = number(content, *names)
    if not 0 <= value <= 1:
        raise ValueError(f"{'.'.join(names)} should be from 0 to 1; it is {value}")
    return value


def numbers(content: Mapping[str, object], *names: str, count: int) -> tuple[float, ...]:
    """So many shares, a curve."""
    values = take(content, *names, kind=list)
    if len(values) != count:
        raise ValueError(f"{'.'.join(names)} should have {count} values; it has {len(values)}")
    return tuple(share({names[-1]: value}, names[-1]) for value in values)
