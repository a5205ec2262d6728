"""How a tracker searches: the settings published for each backbone."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple

from .._text import nearest

__all__ = ["SETTINGS", "Settings", "settings_for"]


class Settings(NamedTuple):
    """How a tracker searches. The defaults are those published for AlexNetV2.

    A tracker takes them as keywords, ``Tracker(model, scales=5)``; there is no need to make one.

    >>> Settings(scales=5).search
    255
    """

    scales: int = 3
    """Sizes at which the target is looked for; odd, so that one of them is its last size."""
    scale_step: float = 1.0816
    """Ratio of one size to the next."""
    scale_penalty: float = 0.97
    """Factor on the peak of a response at another size than the last."""
    scale_damping: float = 0.59
    """Share of a change in size that is followed at once."""
    window: float = 0.25
    """Weight of the Hann window; the response has the rest."""
    upsample: int = 8
    """Factor by which the response is made finer along each axis."""
    exemplar: int = 127
    """Pixels to a side of the picture of the target."""
    search: int = 255
    """Pixels to a side of the picture in which the target is looked for."""
    context: float = 0.5
    """Border around the target, both sides together, as a share of width plus height."""


SETTINGS = {
    "alexnet-v1": Settings(scale_step=1.0375, scale_penalty=0.9745, window=0.176, upsample=16),
    "alexnet-v2": Settings(),
}
"""Published settings by backbone."""


class _Range(NamedTuple):
    kind: Any
    low: float
    high: float
    needed: str


# generous limits: they catch typing errors, not bad choices
_WHOLE = _Range(Integral, 1, 10_000, "a whole number, 1 or more")
_SHARE = _Range(Real, 0, 1, "a number from 0 to 1")
_RANGES = {
    "scales": _WHOLE,
    "scale_step": _Range(Real, 1 + 1e-9, 2, "a number above 1, at most 2"),
    "scale_penalty": _SHARE,
    "scale_damping": _SHARE,
    "window": _SHARE,
    "upsample": _WHOLE,
    "exemplar": _WHOLE,
    "search": _WHOLE,
    "context": _Range(Real, 0, 10, "a number from 0 to 10"),
}


def settings_for(backbone: str | None, changes: Mapping[str, Any]) -> Settings:
    """Return the published settings of a backbone with some of them changed.

    Args:
        backbone: A name in :data:`SETTINGS`; any other, or None, means AlexNetV2.
        changes: Setting → value.

    Raises:
        ValueError: A setting does not exist, or its value is out of range.

    >>> settings_for("alexnet-v1", {"scales": 1}).window
    0.176
    """
    for name in changes:
        if name not in Settings._fields:
            raise ValueError(f"a tracker has no setting {name!r}; {nearest(name, Settings._fields)}")
    # other backbones have nothing published: V2 is the newer of the two
    settings = SETTINGS.get(backbone or "", Settings())._replace(**changes)

    for name, value in settings._asdict().items():
        allowed = _RANGES[name]
        # to Python, True is a number
        is_number = isinstance(value, allowed.kind) and not isinstance(value, bool)
        if not is_number or not allowed.low <= value <= allowed.high:
            raise ValueError(f"{name} must be {allowed.needed}; got {value!r}")
    if settings.scales % 2 == 0:
        raise ValueError(f"scales must be odd, so that one of them is the last size; got {settings.scales}")
    if settings.search <= settings.exemplar:
        raise ValueError(
            f"search must be larger than exemplar; got {settings.search} and {settings.exemplar}"
        )
    return settings
