"""Data sets: from files on disk to tensors."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from .._text import nearest
from . import rot_mnist, rot_tim, scale_mnist, stl10
from .dataset import Dataset as Dataset
from .dataset import data_folder as data_folder
from .dataset import to_float as to_float
from .digits import embedded_digits as embedded_digits

DATASETS: dict[str, tuple[Callable[..., Dataset], Callable[[int], Dataset] | None]] = {
    "rot-mnist": (rot_mnist.rot_mnist, rot_mnist.embedded),
    "rot-tim": (rot_tim.rot_tim, None),
    "r2-tim": (rot_tim.r2_tim, None),
    "scale-mnist": (scale_mnist.scale_mnist, scale_mnist.embedded),
    "rot-scale-mnist": (scale_mnist.rot_scale_mnist, scale_mnist.embedded_rotated),
    "stl10": (stl10.stl10, None),
}
"""Name → how it is read from a folder, and how it is made of the embedded digits, if it can be."""

SETTINGS: dict[str, tuple[str, ...]] = {
    "rot-mnist": (),
    "rot-tim": ("classes", "image_size", "mask"),
    "r2-tim": ("classes", "image_size", "mask"),
    "scale-mnist": (),
    "rot-scale-mnist": (),
    "stl10": ("image_size",),
}
"""Name → the settings that it takes, besides a seed."""


def load(name: str, folder: str | os.PathLike[str] | None = None, seed: int = 0, **settings: Any) -> Dataset:
    """A data set by name from ``folder``: by default ``$IEN_DATA``, else ``data`` in the current folder.

    ``folder="embedded"`` takes the 5,000 digits that come with the installation. Where a data set is made and
    not read, everything random about it comes from ``seed``. The ``settings`` are those that it takes:
    ``classes``, ``image_size`` and ``mask`` for ``rot-tim`` and ``r2-tim``, ``image_size`` for ``stl10``.
    """
    if name not in DATASETS:
        raise ValueError(f"there is no data set {name!r}; {nearest(name, DATASETS)}")
    known = SETTINGS.get(name, ())
    for setting in settings:
        if setting not in known:
            meant = nearest(setting, known) if known else "it takes none"
            raise ValueError(f"{name} takes no setting {setting!r}; {meant}")
    from_files, from_embedded = DATASETS[name]
    place = data_folder(folder)
    if str(place) != "embedded":
        return from_files(place, seed, **settings)
    if from_embedded is None:
        title, download = ("STL-10", "stl10") if name == "stl10" else ("Tiny ImageNet", "tiny-imagenet")
        raise ValueError(
            f"{name} is not made of the embedded digits: give a folder with {title}, "
            f"which `ien data get {download}` downloads"
        )
    return from_embedded(seed)
