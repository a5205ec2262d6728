"""Changes that a user makes to a configuration: ``--set field=value`` texts to values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal, TypeVar, get_args, get_origin

from .config import Config, Entry, changed, entries, locate
from .fields import wanted
from .sections import MAX_COUNT, Schedule

__all__ = ["change", "stretched"]

C = TypeVar("C", bound=Config)

# ien run has arguments for the first two, and torchrun sets the third
COMMAND_FIELDS = ("experiment", "preset", "processes")
BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def change(config: C, settings: Sequence[str]) -> C:
    """Return ``config`` with ``field=value`` texts applied, as in ``--set beta=0.3``.

    Fields are named as in :func:`~ien.training.config.locate`. Another number of epochs stretches
    the schedule, unless its own fields are set too.

    >>> change(Config("rot-mnist/ien-r4", "paper"), ["beta=0.3", "network.width=1/8"]).network.width
    0.125
    """
    # all at once: some values are valid only together
    values: dict[str, Any] = {}
    known = entries(type(config))
    for setting in settings:
        name, equals, text = map(str.strip, setting.partition("="))
        if not equals:
            raise ValueError(f"a setting is written field=value, such as beta=0.3; got {setting!r}")
        entry = locate(known, name)
        if entry.name in COMMAND_FIELDS:
            raise ValueError(f"{name} cannot be set: the command chooses it (see ien run --help)")
        if entry.name in values:
            raise ValueError(f"{entry.name} is set twice; leave one of them out")
        values[entry.name] = _parse(entry, text)
    if "epochs" in values:
        shape = values.get("shape", config.schedule.shape)
        # what is set by hand comes last and wins
        values = stretched(config.schedule, shape, values["epochs"]) | values
    return changed(config, values)


def stretched(schedule: Schedule, shape: str, epochs: int) -> dict[str, Any]:
    """Return the fields that give a schedule of this shape another length and the same form."""
    # no epochs at all, or too many, are an error of the configuration
    factor = min(max(1, epochs), MAX_COUNT) / schedule.epochs
    if shape == "one-cycle":
        return {"cycle_epochs": max(1, round(schedule.cycle_epochs * factor))}
    if shape == "steps":
        places = [max(1, round(epoch * factor)) for epoch in schedule.step_epochs]
        # steps that fall together become one
        return {"steps_after": ",".join(map(str, dict.fromkeys(places)))}
    # decay_after - 1 is the last epoch whose exponent is 0: the place that is stretched
    last_flat = round((schedule.decay_after - 1) * factor)
    fields: dict[str, Any] = {"decay_after": max(0, 1 + last_flat)}
    if schedule.shape == shape:  # otherwise its decay was not chosen for these epochs
        fields["decay"] = schedule.decay ** (1 / factor)
    return fields


def _parse(entry: Entry, text: str) -> Any:
    if get_origin(entry.kind) is Literal or entry.kind is str:
        return text
    options = get_args(entry.kind) or (entry.kind,)
    if type(None) in options and text.lower() == "none":
        return None
    try:
        if bool in options:
            return BOOLEANS[text.lower()]
        if int in options:
            return int(text)
        return _finite(text)
    except (ValueError, KeyError, ZeroDivisionError, OverflowError):
        hint = ""
        if (entry.name, text) == ("samples", "all"):
            hint = " (orbits=true shows images under all elements)"
        raise ValueError(f"{entry.name} must be {wanted(entry.kind)}; got {text!r}{hint}") from None


def _finite(text: str) -> float:
    """Read a number or a fraction, 0.3 or 1/8."""
    if "/" in text:
        return float(Fraction(text))
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not finite")
    return value
