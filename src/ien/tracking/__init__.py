"""Tracking: a network and a first box in, a box for every frame out, and how well they follow the truth."""

import importlib as _importlib
from typing import Any as _Any

_PUBLIC = {
    "as_got10k": "got10k",
    "Score": "score",
    "centre_error": "score",
    "overlap": "score",
    "score": "score",
    "summarise": "score",
    "Settings": "settings",
    "Tracker": "tracker",
    "Update": "tracker",
    "Track": "tracks",
    "follow": "tracks",
    "track": "tracks",
    "write_csv": "tracks",
    "footage": "video",
    "record": "video",
}


def __getattr__(name: str) -> _Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'ien.tracking' has no attribute {name!r}")
    value = getattr(_importlib.import_module(f".{_PUBLIC[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_PUBLIC)
