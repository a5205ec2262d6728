"""Data sets: from files on disk to tensors."""

from __future__ import annotations

import difflib
import os

from . import rot_mnist
from .dataset import Dataset as Dataset
from .dataset import data_folder as data_folder
from .dataset import to_float as to_float
from .digits import embedded_digits as embedded_digits

DATASETS = {"rot-mnist": (rot_mnist.rot_mnist, rot_mnist.embedded)}
"""Name → how it is read from a folder, and how it is made of the embedded digits."""


def load(name: str, folder: str | os.PathLike[str] | None = None, seed: int = 0) -> Dataset:
    """A data set by name from ``folder``: by default ``$IEN_DATA``, else ``data`` in the current folder.

    ``folder="embedded"`` takes the 5,000 digits that come with the installation. Where a data set is made and
    not read, everything random about it comes from ``seed``.
    """
    if name not in DATASETS:
        close = difflib.get_close_matches(name, DATASETS, n=1, cutoff=0.3)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(f"unknown data set {name!r}{hint}; known: {', '.join(DATASETS)}")
    from_files, from_embedded = DATASETS[name]
    place = data_folder(folder)
    return from_embedded(seed) if str(place) == "embedded" else from_files(place, seed)
