"""Data sets: from files on disk to tensors.

    dataset.py          what a data set is, and where data are looked for
    cache.py            tensors that take long to make, kept as memory-mapped files
    download.py         published files and archives → files in a folder, checked
    augment.py          images and drawn numbers → rotated, scaled, shifted, cut-out images
    digits.py           the 5,000 digits that come with the installation
    mnist.py            the published files of MNIST
    rot_mnist.py        Rot-MNIST: the original, or made from MNIST
    scale_mnist.py      Scale-MNIST and Rot-Scale-MNIST, made from MNIST
    tiny_imagenet.py    the published folder of Tiny ImageNet
    rot_tim.py          Tiny ImageNet upright; Rot-TIM and R2-TIM, made from it
    stl10.py            the published folder of STL-10
    picture_files.py    which pictures are held out, and in which order they come
    class_folders.py    a folder of pictures for each class: EuroSAT, UC Merced and others
    mask_folders.py     a folder of images and one of masks, to segment

Clips for tracking are in ``ien.tracking.data``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from .._text import nearest, no_attribute
from . import class_folders, rot_mnist, rot_tim, scale_mnist, stl10
from .dataset import Dataset as Dataset
from .dataset import data_folder as data_folder
from .dataset import to_float as to_float
from .digits import embedded_digits as embedded_digits

__all__ = ["DATASETS", "Dataset", "Loader", "data_folder", "embedded_digits", "load", "to_float"]


class Loader(NamedTuple):
    """How a data set is loaded."""

    from_folder: Callable[..., Dataset]
    """Takes a folder, a seed and the settings."""
    from_digits: Callable[..., Dataset] | None
    """Makes it from the embedded digits, a seed and the settings; None if that is not possible."""
    settings: tuple[str, ...] = ()
    """What it takes besides a seed."""
    download: str = ""
    """What ``ien data get`` calls the files that it needs; empty if it cannot download them."""


DATASETS = {
    "rot-mnist": Loader(rot_mnist.rot_mnist, rot_mnist.embedded, ("max_angle",)),
    "tiny-imagenet": Loader(rot_tim.upright_tim, None, ("classes", "image_size"), "tiny-imagenet"),
    "rot-tim": Loader(rot_tim.rot_tim, None, ("classes", "image_size"), "tiny-imagenet"),
    "r2-tim": Loader(rot_tim.r2_tim, None, ("classes", "image_size"), "tiny-imagenet"),
    "scale-mnist": Loader(scale_mnist.scale_mnist, scale_mnist.embedded),
    "rot-scale-mnist": Loader(scale_mnist.rot_scale_mnist, scale_mnist.embedded_rotated),
    "stl10": Loader(stl10.stl10, None, ("image_size",), "stl10"),
    "eurosat": Loader(class_folders.eurosat, None, ("image_size",)),
    "uc-merced": Loader(class_folders.uc_merced, None, ("image_size",)),
    "pbc-blood-cells": Loader(class_folders.pbc_blood_cells, None, ("image_size",)),
    "neu-steel": Loader(class_folders.neu_steel, None, ("image_size",)),
}
"""The data sets of images, by name."""

CLIP_SETS = ("got10k", "synthetic-clips")
"""Names of the sets of clips, which ``ien.tracking`` loads."""


def load(name: str, folder: str | os.PathLike[str] | None = None, seed: int = 0, **settings: Any) -> Dataset:
    """Load a data set of images by name.

    Args:
        name: ``rot-mnist``, ``tiny-imagenet``, ``rot-tim``, ``r2-tim``, ``scale-mnist``,
            ``rot-scale-mnist``, ``stl10``, ``eurosat``, ``uc-merced``, ``pbc-blood-cells`` or
            ``neu-steel``.
        folder: Where its files are; by default ``$IEN_DATA``, else ``data`` in the current folder.
            ``"embedded"`` makes it from the 5,000 digits that come with the installation.
        seed: Decides everything random about a data set that is made and not read.
        **settings: ``max_angle`` for ``rot-mnist``, ``classes`` and ``image_size`` for
            ``tiny-imagenet``, ``rot-tim`` and ``r2-tim``, ``image_size`` for ``stl10`` and for
            folders of pictures.

    Returns:
        Images and labels to train and to test. Large ones are memory-mapped, not read.

    Raises:
        ValueError: There is no such data set or setting, or a file is damaged.
        FileNotFoundError: Files are missing; the message says how to get them.

    Not needed for your own images: the loss and ``ien.measure`` take any tensors.

    >>> load("rot-mnist", "embedded")
    Dataset(rot-mnist, embedded-5k: 4,000 train and 1,000 test images 1×28×28 uint8, 10 classes)
    """
    if name in CLIP_SETS:
        raise ValueError(
            f"{name} holds clips, not images: ien.tracking.data.sets.load_clips({name!r}) loads them"
        )
    if name not in DATASETS:
        raise ValueError(f"there is no data set {name!r}; {nearest(name, [*DATASETS, *CLIP_SETS])}")
    loader = DATASETS[name]
    for setting in settings:
        if not loader.settings:
            raise ValueError(f"{name} takes no setting {setting!r}; it takes none")
        if setting not in loader.settings:
            raise ValueError(f"{name} takes no setting {setting!r}; {nearest(setting, loader.settings)}")
    place = data_folder(folder)
    if str(place) != "embedded":
        return loader.from_folder(place, seed, **settings)
    if loader.from_digits is None:
        needed = f"folder with the files that `ien data get {loader.download}` downloads"
        if not loader.download:
            needed = f"data folder with the pictures of {name}"
        raise ValueError(f"{name} cannot be made from the embedded digits: give a {needed}")
    return loader.from_digits(seed, **settings)


def __getattr__(name: str) -> Any:
    raise no_attribute(__name__, name, __all__)


def __dir__() -> list[str]:
    return sorted(__all__)
