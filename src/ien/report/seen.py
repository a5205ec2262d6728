"""Seen: from the record of a run to how many images its network saw in training, copies counted."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .fields import number, take

__all__ = ["images_seen"]


def images_seen(content: Mapping[str, object]) -> float:
    """As recorded; of older records, which did not know orbits, what their configuration says.

    >>> old = {"config": {"epochs": 10, "augment": True, "samples": 1, "group": "rot4"}}
    >>> images_seen(old | {"data": {"train": 12_000}})
    240000
    """
    if content.get("images_seen") is not None:
        return number(content, "images_seen")
    config = take(content, "config", kind=dict)
    if content.get("tracking") or not {"epochs", "augment", "samples", "group"} <= set(config):
        return math.nan
    groups = take(config, "group", kind=str).split("+")
    copies = take(config, "samples", kind=int) * len(groups) if config["augment"] else 0
    return take(config, "epochs", kind=int) * take(content, "data", "train", kind=int) * (1 + copies)
