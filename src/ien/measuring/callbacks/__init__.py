"""Measure a model every few epochs while a trainer trains it, and log the numbers.

    every_epoch.py     when it is time, and the images of each process
    lightning.py       LightningCallback
    hugging_face.py    HuggingFaceCallback, for the Trainer of transformers

Each is loaded when it is first used: ``ien.callbacks.LightningCallback(images, "rot4")``.
"""

from importlib import import_module
from typing import Any

from ..._text import nearest

__all__ = ["HuggingFaceCallback", "LightningCallback"]

_FILES = {"HuggingFaceCallback": ".hugging_face", "LightningCallback": ".lightning"}


def __getattr__(name: str) -> Any:
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; {nearest(name, _FILES)}")
    return getattr(import_module(_FILES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
