"""How a field of the configuration is declared: default, help text and limits in one place.

Every class of the configuration is a :class:`Section`. It checks the types and limits of its own
fields when it is made, so a configuration that exists is a valid one.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from .._text import printable, short_repr

__all__ = ["Section", "field_types", "is_section", "setting", "wanted"]


WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number such as 0.3 or 1/8",
    str: "text",
}


def setting(default: Any, help: str, low: float = -math.inf, high: float = math.inf) -> Any:
    """Declare a field: its default, the text that ``ien show`` prints beside it, and its limits."""
    return field(default=default, metadata={"help": help, "low": low, "high": high})


@dataclass(frozen=True)
class Section:
    """A frozen dataclass whose fields are checked; subclasses add checks across their fields."""

    def __post_init__(self) -> None:
        kinds = field_types(type(self))
        for each in fields(self):
            value = getattr(self, each.name)
            _check_type(each.name, kinds[each.name], value)
            _check_limits(each.name, value, each.metadata)


def field_types(section: type[Section]) -> dict[str, Any]:
    """Return the type of each field, as an object and not as text."""
    # annotations are texts here, as every file has `from __future__ import annotations`
    kinds = get_type_hints(section)
    return {each.name: kinds[each.name] for each in fields(section)}


def is_section(kind: Any) -> bool:
    """Whether a type is a section of the configuration; ``int | None`` is not even a class."""
    return isinstance(kind, type) and issubclass(kind, Section)


def wanted(kind: Any) -> str:
    """Say in words what a field of this type takes.

    >>> wanted(bool), wanted(int | None), wanted(Literal["adam", "sgd"])
    ('true or false', 'a whole number or none', 'adam or sgd')
    """
    if kind in WORDS:
        return WORDS[kind]
    if get_origin(kind) is Literal:
        *first, last = get_args(kind)
        return f"{', '.join(first)} or {last}"
    if type(None) in get_args(kind):
        return f"{wanted(get_args(kind)[0])} or none"
    return f"a {kind.__name__}"


def _check_type(name: str, kind: Any, value: Any) -> None:
    if get_origin(kind) is Literal:
        fits = isinstance(value, str) and value in get_args(kind)
    elif is_section(kind):
        fits = isinstance(value, kind)
    elif kind is float:
        # 1 is as good as 1.0, and JSON does not tell them apart
        fits = type(value) is float or (type(value) is int and abs(value) <= sys.float_info.max)
    else:
        fits = type(value) in (get_args(kind) or (kind,))  # bool is an int, but not here
    if isinstance(value, str) and value != printable(value):
        raise ValueError(f"{name} must be text without control characters; got {short_repr(value)}")
    if not fits:
        raise ValueError(f"{name} must be {wanted(kind)}; got {short_repr(value)}")


def _check_limits(name: str, value: Any, metadata: Any) -> None:
    low, high = metadata.get("low", -math.inf), metadata.get("high", math.inf)
    if low == -math.inf or value is None:  # has no limits, or is not set
        return
    if low <= value <= high:
        return
    bounds = f"at least {low:g}"
    if high < math.inf:
        bounds = f"{low:g} to {high:g}"
    shown = short_repr(value)
    if isinstance(value, float):
        shown = f"{value:g}"
    raise ValueError(f"{name} must be {bounds}; got {shown}")
