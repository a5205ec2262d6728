"""Class folders: a folder of pictures for each class, ``train/<class>/*.jpg``, → tensors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .._files import generator
from .._text import progress_bar
from ..measuring.image_folder import SUFFIXES, common_channels, find_images, read_square
from .augment import resized
from .cache import cached, layout_of
from .dataset import MIN_IMAGE_SIZE, Dataset, NamedClasses
from .download import published_folder
from .picture_files import digest_of, shuffled, split

__all__ = [
    "NAMED",
    "ClassFolders",
    "cache_name",
    "class_folders",
    "eurosat",
    "find",
    "neu_steel",
    "pbc_blood_cells",
    "place_in",
    "uc_merced",
]

NAMED = {"eurosat": 27_000, "uc-merced": 2_100, "pbc-blood-cells": 17_092, "neu-steel": 1_800}
"""Data sets that are found by their name in the data folder, and how many images were published."""

Files = tuple[tuple[Path, int], ...]
"""Picture files, each with its label."""


@dataclass(frozen=True)
class ClassFolders:
    """The picture files of a data set, in the order in which they are loaded."""

    folder: Path
    classes: tuple[str, ...]
    """The names of the classes, sorted; labels count them from 0."""
    train: Files
    test: Files

    def __str__(self) -> str:
        return f"{len(self.classes)} classes, {len(self.train):,} train and {len(self.test):,} test images"


def class_folders(
    folder: str | os.PathLike[str],
    seed: int = 0,
    image_size: int = 64,
    name: str = "",
    channels: int | None = None,
) -> Dataset:
    """Load the pictures of ``train/<class>/`` and ``test/<class>/``, as torchvision's ImageFolder.

    Without ``test``, a fifth of each class is held out, drawn by the seed. Without ``train`` as
    well, the classes are looked for in ``folder`` itself. Files that are not pictures are ignored.
    Of pictures that are not square the middle is taken. Images have one channel if all pictures are
    grey, three otherwise. They are kept in the cache folder, memory-mapped.

    Not for pictures that do not fit into memory: they are scaled down once, and kept as tensors.

    Args:
        folder: The folder of the data set.
        seed: Draws what is held out, and the order, which mixes the classes.
        image_size: Height and width that pictures are scaled to; each pixel is the mean over the
            area that it covers.
        name: What the data set is called; by default the name of the folder.
        channels: 1 or 3, whatever the pictures have.

    Raises:
        FileNotFoundError: A folder, or the pictures of a class, are missing.
        ValueError: There is only one class, a class is tested and never trained on, or a picture
            cannot be read; the message names it.
    """
    if image_size < MIN_IMAGE_SIZE:
        raise ValueError(f"image_size must be at least {MIN_IMAGE_SIZE}; got {image_size}")
    found = find(folder, seed)
    name = name or found.folder.resolve().name
    files = (*found.train, *found.test)
    paths = [path for path, _ in files]
    if channels is None:
        channels = common_channels(paths)
    shape = (channels, image_size, image_size)

    def make() -> Mapping[str, Tensor]:
        images = _read(f"reading {name}", paths, shape)
        labels = torch.tensor([label for _, label in files])
        count = len(found.train)
        return {
            "train_x": images[:count],
            "train_y": labels[:count],
            "test_x": images[count:],
            "test_y": labels[count:],
        }

    layout = layout_of(len(found.train), len(found.test), shape)
    about = {"seed": seed, "classes": found.classes}
    tensors = cached(cache_name(name, found, seed, image_size), layout, make, about)
    return NamedClasses(
        name,
        _source(name, len(files)),
        **tensors,
        classes=len(found.classes),
        class_names=found.classes,
    )


def eurosat(folder: str | os.PathLike[str], seed: int = 0, image_size: int = 64) -> Dataset:
    """Load EuroSAT: satellite tiles of ten kinds of land."""
    return class_folders(place_in(folder, "eurosat"), seed, image_size, "eurosat")


def uc_merced(folder: str | os.PathLike[str], seed: int = 0, image_size: int = 64) -> Dataset:
    """Load UC Merced Land Use: aerial photographs of 21 kinds of places."""
    return class_folders(place_in(folder, "uc-merced"), seed, image_size, "uc-merced")


def pbc_blood_cells(folder: str | os.PathLike[str], seed: int = 0, image_size: int = 64) -> Dataset:
    """Load PBC: blood cells of eight kinds under the microscope."""
    return class_folders(place_in(folder, "pbc-blood-cells"), seed, image_size, "pbc-blood-cells")


def neu_steel(folder: str | os.PathLike[str], seed: int = 0, image_size: int = 64) -> Dataset:
    """Load NEU: six kinds of defects of rolled steel, in grey; rolling has a direction."""
    return class_folders(place_in(folder, "neu-steel"), seed, image_size, "neu-steel")


def place_in(folder: str | os.PathLike[str], name: str) -> Path:
    """Return where the named data set is looked for; raise an error if it is not there."""
    place = published_folder(folder, name)
    if not place.is_dir():
        raise FileNotFoundError(
            f"no {name}: there is no folder {place}: put its pictures into {place / 'train'}/<class>/ and "
            f"{place / 'test'}/<class>/"
        )
    return place


def find(folder: str | os.PathLike[str], seed: int = 0) -> ClassFolders:
    """List the pictures of each class; no picture is opened."""
    folder = Path(folder)
    if folder.is_file():
        raise ValueError(f"{folder} is a file: give the folder that has a subfolder for each class")
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder} with a subfolder for each class")
    train_folder = folder / "train"
    test_folder = folder / "test"
    if not train_folder.is_dir():
        if test_folder.is_dir():
            raise FileNotFoundError(f"{folder} has a folder test and no folder train: add it")
        train_folder = folder
    of_classes = _classes(train_folder)
    if len(of_classes) < 2:
        raise ValueError(
            f"{train_folder} has {_counted(of_classes)}, but two are needed at least: put the pictures of "
            f"each class into a subfolder of its own, {train_folder / '<class>'}/"
        )
    classes = tuple(of_classes)
    train: list[tuple[Path, int]] = []
    test: list[tuple[Path, int]] = []
    if test_folder.is_dir():
        train = _labelled(of_classes, classes)
        test = _labelled(_checked(_classes(test_folder), test_folder, classes), classes)
    else:
        for label, name in enumerate(classes):
            kept, held_out = _split(name, of_classes[name], seed)
            train += [(path, label) for path in kept]
            test += [(path, label) for path in held_out]
    train_order, test_order = _stream("train order", seed), _stream("test order", seed)
    return ClassFolders(folder, classes, shuffled(train, train_order), shuffled(test, test_order))


def cache_name(name: str, found: ClassFolders, seed: int | str, image_size: int | str) -> str:
    """Return the name of the cached file; a seed or size of ``*`` matches any."""
    digest = digest_of(found.folder, (*found.train, *found.test))
    return f"{name}-seed{seed}-{image_size}px-{digest}"


def _classes(folder: Path) -> dict[str, list[Path]]:
    """Return the pictures of each subfolder, sorted."""
    found = {}
    for place in sorted(folder.iterdir()):
        if place.is_dir() and not place.name.startswith("."):
            found[place.name] = find_images(place)
    return found


def _checked(
    of_classes: dict[str, list[Path]], folder: Path, trained: tuple[str, ...]
) -> dict[str, list[Path]]:
    """Raise an error if a class is tested that no image trains."""
    for name in of_classes:
        if name not in trained:
            raise ValueError(
                f"{folder / name} is a class that train has not (it has {', '.join(trained)}): rename it, or "
                f"remove it"
            )
    if not of_classes:
        raise ValueError(f"{folder} has no classes: give it the subfolders of train, or remove it")
    return of_classes


def _labelled(of_classes: dict[str, list[Path]], classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    files = []
    for name, paths in of_classes.items():
        label = classes.index(name)
        files += [(path, label) for path in paths]
    return files


def _split(name: str, paths: list[Path], seed: int) -> tuple[list[Path], list[Path]]:
    """Hold out a fifth of a class, one picture at least, drawn from a stream of its own."""
    if len(paths) < 2:
        raise ValueError(
            f"class {name} has only {paths[0]}, and there is no folder test: add pictures, so that one can "
            f"be held out"
        )
    return split(paths, _stream(f"held out of {name}", seed))


def _read(title: str, paths: list[Path], shape: tuple[int, int, int]) -> Tensor:
    channels, size, _ = shape
    images = torch.empty(len(paths), *shape, dtype=torch.uint8)
    with progress_bar(title, len(paths)) as advance:
        for image, path in zip(images, paths, strict=True):
            square = read_square(path, channels)  # (C, n, n)
            image.copy_(resized(square.unsqueeze(0), size).squeeze(0))
            advance()
    return images


def _source(name: str, count: int) -> str:
    """Say where the images come from; a named data set may be smaller than the published one."""
    if name not in NAMED:
        return "folder"
    if count == NAMED[name]:
        return "original"
    return "subset"


def _counted(of_classes: dict[str, list[Path]]) -> str:
    if not of_classes:
        return f"no class folders with pictures ({', '.join(SUFFIXES)})"
    return f"one class, {next(iter(of_classes))}"


def _stream(purpose: str, seed: int) -> torch.Generator:
    return generator("class-folders", purpose, seed, bits=64)
