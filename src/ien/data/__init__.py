"""Data sets: from files on disk to tensors."""

from __future__ import annotations

import os

from .._names import nearest
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
        raise ValueError(f"there is no data set {name!r}; {nearest(name, DATASETS)}")
    from_files, from_embedded = DATASETS[name]
    place = data_folder(folder)
    return from_embedded(seed) if str(place) == "embedded" else from_files(place, seed)
