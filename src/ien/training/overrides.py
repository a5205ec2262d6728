"""Settings: the changes that a user makes to the fields of a configuration by name, and what these are."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Sequence
from dataclasses import fields, replace
from fractions import Fraction
from typing import Any, Literal, get_args, get_origin

from .._text import nearest
from .checks import wanted
from .config import Config, field_types

__all__ = ["change", "differences", "field_help"]


def change(config: Config, settings: Sequence[str]) -> Config:
    """``config`` with ``field=value`` texts applied, as in ``--set beta=0.3 --set epochs=5``.

    >>> change(Config("rot-mnist/ien-r4", "paper"), ["beta=0.3", "width=1/8"]).width
    0.125
    """
    kinds = field_types()
    new: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = (part.strip() for part in setting.partition("="))
        if not equals:
            raise ValueError(f"a setting is written field=value, as in beta=0.3; got {setting!r}")
        if name not in kinds:
            raise ValueError(f"there is no field {name!r}; {nearest(name, kinds)}")
        if name in ("experiment", "preset", "processes"):
            raise ValueError(f"{name} cannot be set: it is chosen by the command (see ien run --help)")
        new[name] = _parse(name, kinds[name], text)
    if "epochs" in new:
        new = _stretched(config, new.get("schedule", config.schedule), new["epochs"]) | new
    return replace(config, **new)


def _stretched(config: Config, schedule: str, epochs: int) -> dict[str, Any]:
    """What gives a run of so many epochs the schedule of ``config``, shorter or longer, in its own shape."""
    factor = max(1, epochs) / config.epochs  # none at all is an error of the configuration
    shape: dict[str, Any] = {}
    if schedule == "one-cycle":
        shape["cycle_epochs"] = max(1, round(config.cycle_epochs * factor))
    elif schedule == "steps":
        places = (max(1, round(epoch * factor)) for epoch in config.step_epochs)
        shape["steps_after"] = ",".join(map(str, dict.fromkeys(places)))  # of two that fall together one
    else:
        shape["decay_after"] = max(0, 1 + round((config.decay_after - 1) * factor))
        if config.schedule == schedule:  # or its factor is not one that was chosen for these epochs
            shape["decay"] = config.decay ** (1 / factor)
    return shape


def differences(config: Config, other: Config) -> dict[str, tuple[Any, Any]]:
    """Field → its value here and there, for the fields that differ."""
    pairs = {
        field.name: (getattr(config, field.name), getattr(other, field.name)) for field in fields(Config)
    }
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def field_help() -> dict[str, str]:
    """Field → the text under it in the class."""
    (tree,) = ast.parse(inspect.getsource(Config)).body
    assert isinstance(tree, ast.ClassDef)
    texts = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(field.target, ast.Name) and isinstance(text.value, ast.Constant)
            texts[field.target.id] = " ".join(str(text.value.value).split())
    return texts


def _parse(name: str, kind: Any, text: str) -> Any:
    if get_origin(kind) is Literal or kind is str:
        return text
    options = get_args(kind) or (kind,)
    if type(None) in options and text.lower() == "none":
        return None
    try:
        if bool in options:
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[
                text.lower()
            ]
        if int in options:
            return int(text)
        return float(Fraction(text)) if "/" in text else _finite(text)
    except (ValueError, KeyError, ZeroDivisionError):
        hint = " (orbits=true shows images under all elements)" if (name, text) == ("samples", "all") else ""
        raise ValueError(f"{name} must be {wanted(kind)}; got {text!r}{hint}") from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError
    return value
