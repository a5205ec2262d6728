"""Settings of trackers: from the name of a backbone to how its tracker searches, as published."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple

from .._text import nearest

__all__ = ["SETTINGS", "Settings", "settings_for"]


class Settings(NamedTuple):
    """How a tracker searches. The defaults are those published for AlexNetV2."""

    scales: int = 3
    """Sizes at which the target is looked for, an odd number."""
    scale_step: float = 1.0816
    """The ratio of one size to the next."""
    scale_penalty: float = 0.97
    """What the peak of a response at another size counts."""
    scale_damping: float = 0.59
    """The share of a change in size that is followed at once."""
    window: float = 0.25
    """The weight of the Hann window against that of the response."""
    upsample: int = 8
    """Places, to a side, for each one of the response."""
    template_rate: float = 0.0
    """The weight of the target as it looks now in its template; 0 keeps that of the first frame."""
    exemplar: int = 127
    """Pixels of the picture of the target, and"""
    search: int = 255
    """of the one in which it is looked for."""
    context: float = 0.5
    """What is around the target in its picture, as a part of the sum of its sides, on both sides together."""


SETTINGS = {
    "alexnet-v1": Settings(scale_step=1.0375, scale_penalty=0.9745, window=0.176, upsample=16),
    "alexnet-v2": Settings(),
}
"""Published settings by backbone. For V2 a template rate of 0.01 is published too; RE-SiamFC's templates,
and those of V1, are made once, and so are ours."""


def settings_for(backbone: str | None, changes: Mapping[str, Any]) -> Settings:
    """The published settings of a backbone, V2's where it is not known, with ``changes``, checked.

    >>> settings_for("alexnet-v1", {"scales": 1}).window
    0.176
    """
    for name in changes:
        if name not in Settings._fields:
            raise ValueError(f"a tracker has no setting {name!r}; {nearest(name, Settings._fields)}")
    settings = SETTINGS.get(backbone or "", Settings())._replace(**changes)
    for name, value in settings._asdict().items():
        kind, low, high, needed = _RANGES[name]
        if not isinstance(value, kind) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"{name} is {needed}; got {value!r}")
    if settings.scales % 2 == 0 or settings.search <= settings.exemplar:
        raise ValueError(
            f"scales is odd, so that one is the last size, and search is larger than exemplar; got "
            f"{settings.scales}, {settings.search} and {settings.exemplar}"
        )
    return settings


_WHOLE = (Integral, 1, 10_000, "a whole number of 1 or more")
_SHARE = (Real, 0, 1, "a number of 0 to 1")
_RANGES: dict[str, tuple[Any, float, float, str]] = {
    **dict.fromkeys(("scales", "upsample", "exemplar", "search"), _WHOLE),
    **dict.fromkeys(("scale_penalty", "scale_damping", "window", "template_rate"), _SHARE),
    "scale_step": (Real, 1 + 1e-9, 2, "a number above 1, up to 2"),
    "context": (Real, 0, 10, "a number of 0 to 10"),
}
