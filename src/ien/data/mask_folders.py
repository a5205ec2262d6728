"""Mask folders: ``train/images/*.png`` and ``train/masks/*.png`` → images and their masks.

A mask has one value for each pixel, such as 0 and 255; the values that the training masks have,
sorted, are the classes 0, 1, … A value may say that nothing is known of a pixel.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from torch import Tensor

from .._files import generator
from .._text import progress_bar
from ..measuring.image_folder import common_channels, find_images, opened, read_square
from .augment import resized
from .cache import Layout, cached
from .dataset import MIN_IMAGE_SIZE, Dataset, NamedClasses
from .download import published_folder
from .picture_files import digest_of, shuffled, split

__all__ = [
    "IGNORED",
    "NAMED",
    "MaskFolders",
    "cache_name",
    "find",
    "has_masks",
    "mask_folders",
    "place_in",
    "values_of",
]

NAMED = {"nuclei": "dsb2018-nuclei"}
"""Data sets that are found in the data folder → the folder that they are in."""
IGNORED = 255
"""The class of pixels that do not count: nothing is known of them."""
MAX_VALUES = 64
"""More values are no classes: a mask that was saved as JPEG, or numbers of single objects."""

Pairs = tuple[tuple[Path, Path], ...]
"""Image files, each with that of its mask."""


@dataclass(frozen=True)
class MaskFolders:
    """The files of a data set, in the order in which they are loaded."""

    folder: Path
    train: Pairs
    test: Pairs

    def __str__(self) -> str:
        return f"{len(self.train):,} train and {len(self.test):,} test images with masks"


def mask_folders(
    folder: str | os.PathLike[str],
    seed: int = 0,
    image_size: int = 192,
    name: str = "",
    ignore: int | None = None,
    channels: int | None = None,
) -> Dataset:
    """Load the pictures of ``train/images/`` and ``test/images/`` with those of ``masks/``.

    An image and its mask have the same name, up to the ending, and the same size. Without ``test``,
    a fifth is held out, drawn by the seed. Without ``train`` as well, ``images`` and ``masks`` are
    looked for in ``folder`` itself. Of pictures that are not square the middle is taken; images are
    scaled by area, masks take the nearest pixel. They are kept in the cache folder.

    Not for masks that number single objects: each number would become a class.

    Args:
        folder: The folder of the data set.
        seed: Draws what is held out, and the order.
        image_size: Height and width that pictures are scaled to.
        name: What the data set is called; by default the name of the folder.
        ignore: A value of the masks where nothing is known; it becomes class 255, which no loss and
            no score counts.
        channels: 1 or 3, whatever the pictures have; by default 1 if all are grey.

    Returns:
        Images (N, C, H, W), and masks (N, H, W) of bytes in place of labels.

    Raises:
        FileNotFoundError: A folder, or the mask of an image, is missing.
        ValueError: A picture cannot be read, a mask has another size than its image, colours, or a
            value that no training mask has.
    """
    if image_size < MIN_IMAGE_SIZE:
        raise ValueError(f"image_size must be at least {MIN_IMAGE_SIZE}; got {image_size}")
    found = find(folder, seed)
    name = name or found.folder.resolve().name
    pairs = (*found.train, *found.test)
    if channels is None:
        channels = common_channels([image for image, _ in pairs])
    shape = (channels, image_size, image_size)
    # read before anything is cached, so a bad mask is reported every time
    values = values_of([mask for _, mask in found.train], ignore)
    count = len(found.train)

    def make() -> Mapping[str, Tensor]:
        x = torch.empty(len(pairs), *shape, dtype=torch.uint8)
        y = torch.empty(len(pairs), image_size, image_size, dtype=torch.uint8)
        with progress_bar(f"reading {name}", len(pairs)) as advance:
            for i, (image, mask) in enumerate(pairs):
                x[i], y[i] = _read(image, mask, shape, values, ignore)
                advance()
        return {"train_x": x[:count], "train_y": y[:count], "test_x": x[count:], "test_y": y[count:]}

    layout: Layout = {
        "train_x": (torch.uint8, (count, *shape)),
        "train_y": (torch.uint8, (count, image_size, image_size)),
        "test_x": (torch.uint8, (len(found.test), *shape)),
        "test_y": (torch.uint8, (len(found.test), image_size, image_size)),
    }
    about = {"seed": seed, "values": values, "ignore": ignore}
    tensors = cached(cache_name(name, found, seed, image_size), layout, make, about)
    source = "subset" if name in NAMED else "folder"
    names = tuple(f"mask value {value}" for value in values)
    return NamedClasses(name, source, **tensors, classes=len(values), class_names=names)


def has_masks(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder has images and masks, and not a subfolder for each class."""
    folder = Path(folder)
    for place in (folder / "train", folder):
        if (place / "images").is_dir() and (place / "masks").is_dir():
            return True
    return False


def place_in(folder: str | os.PathLike[str], name: str) -> Path:
    """Return where the named data set is looked for; raise an error if it is not there."""
    place = published_folder(folder, NAMED[name])
    if not place.is_dir():
        raise FileNotFoundError(
            f"no {name}: there is no folder {place}: put its pictures into {place / 'train'}/images and "
            f"{place / 'train'}/masks, and into the same folders in {place / 'test'}"
        )
    return place


def find(folder: str | os.PathLike[str], seed: int = 0) -> MaskFolders:
    """List the images with their masks; no picture is opened."""
    folder = Path(folder)
    if folder.is_file():
        raise ValueError(f"{folder} is a file: give the folder that has images and masks")
    if not has_masks(folder):
        raise FileNotFoundError(f"{folder} has no folders images and masks, in train or beside each other")
    if not (folder / "train").is_dir():
        if (folder / "test").is_dir():
            raise FileNotFoundError(f"{folder} has a folder test and no folder train: add it")
        train, test = _split(folder, _pairs(folder), seed)
    elif (folder / "test").is_dir():
        train, test = _pairs(folder / "train"), _pairs(folder / "test")
    else:
        train, test = _split(folder, _pairs(folder / "train"), seed)
    train_order, test_order = _stream("train order", seed), _stream("test order", seed)
    return MaskFolders(folder, shuffled(train, train_order), shuffled(test, test_order))


def cache_name(name: str, found: MaskFolders, seed: int | str, image_size: int | str) -> str:
    """Return the name of the cached file; a seed or size of ``*`` matches any."""
    files = []
    for image, mask in (*found.train, *found.test):
        files += [(image, "image"), (mask, "mask")]
    return f"{name}-masks-seed{seed}-{image_size}px-{digest_of(found.folder, files)}"


def values_of(masks: Sequence[Path], ignore: int | None = None) -> list[int]:
    """Return the values that masks have, sorted, without ``ignore``: those of the classes.

    Raises:
        ValueError: They have one value only, or too many to be classes.
    """
    found: set[int] = set()
    for path in masks:
        found |= set(torch.unique(_mask(path)).tolist())
        if len(found) > MAX_VALUES:
            raise ValueError(
                f"{path} brings the values of the masks to {len(found)}, more than {MAX_VALUES} classes: "
                f"save masks as PNG, which keeps values as they are, with one value for each class"
            )
    values = sorted(found - {ignore})
    if len(values) < 2:
        raise ValueError(
            f"the masks in {masks[0].parent} have one value, {', '.join(map(str, values)) or ignore}, and "
            f"two classes are the fewest: give each class a value of its own, such as 0 and 255"
        )
    return values


def _pairs(folder: Path) -> list[tuple[Path, Path]]:
    """Return each image of a folder with its mask."""
    images = _by_stem(folder / "images")
    masks = _by_stem(folder / "masks")
    for stem, image in images.items():
        if stem not in masks:
            raise FileNotFoundError(f"{image} has no mask: add {folder / 'masks' / stem}.png, or remove it")
    for stem, mask in masks.items():
        if stem not in images:
            raise FileNotFoundError(f"{mask} has no image: add {folder / 'images' / stem}.png, or remove it")
    return [(image, masks[stem]) for stem, image in images.items()]


def _by_stem(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in find_images(folder):
        stem = path.relative_to(folder).with_suffix("").as_posix()
        if stem in found:
            raise ValueError(f"{found[stem]} and {path} have the same name: rename or remove one of them")
        found[stem] = path
    return found


def _split(
    folder: Path, pairs: list[tuple[Path, Path]], seed: int
) -> tuple[list[tuple[Path, Path]], list[tuple[Path, Path]]]:
    """Hold out a fifth, one image at least."""
    if len(pairs) < 2:
        raise ValueError(
            f"{folder} has one image and no folder test: add images, so that one can be held out"
        )
    return split(pairs, _stream("held out", seed))


def _read(
    image: Path, mask: Path, shape: tuple[int, int, int], values: Sequence[int], ignore: int | None
) -> tuple[Tensor, Tensor]:
    """Read an image (C, size, size) and its mask (size, size), whose values become classes."""
    pixels = _mask(mask)  # (H, W)
    with opened(image) as file:
        width, height = file.size
    if tuple(pixels.shape) not in ((height, width), (width, height)):  # the image may be on its side
        raise ValueError(
            f"{mask} is {pixels.shape[0]}×{pixels.shape[1]} and its image {image} {height}×{width}: a "
            f"mask has the size of its image"
        )
    classes = torch.full_like(pixels, IGNORED)
    known = torch.zeros_like(pixels, dtype=torch.bool)
    for label, value in enumerate(values):
        classes[pixels == value] = label
        known |= pixels == value
    if ignore is not None:
        known |= pixels == ignore
    if not known.all():
        strange = int(pixels[~known][0])
        raise ValueError(
            f"{mask} has the value {strange}, which no training mask has (they have "
            f"{', '.join(map(str, values))}): repair it, or say that nothing is known there, "
            f"--ignore {strange}"
        )
    channels, size, _ = shape
    square = read_square(image, channels)  # (C, n, n)
    return resized(square.unsqueeze(0), size).squeeze(0), _nearest(_middle(classes), size)


def _mask(path: Path) -> Tensor:
    """Read a mask, upright, as (H, W) bytes: grey values, or the numbers of a palette."""
    from PIL import ImageOps

    with opened(path) as file:
        if file.mode not in ("1", "L", "P"):
            raise ValueError(f"a mask has one value for each pixel, and its pixels have mode {file.mode}")
        pixels = numpy.array(ImageOps.exif_transpose(file)).astype(numpy.uint8)
    return torch.from_numpy(pixels)


def _middle(pixels: Tensor) -> Tensor:
    """Return the largest square in the middle, as :func:`read_square` takes it."""
    height, width = pixels.shape
    side = min(height, width)
    top = (height - side) // 2
    left = (width - side) // 2
    return pixels[top : top + side, left : left + side]


def _nearest(pixels: Tensor, size: int) -> Tensor:
    """Scale a square mask: each pixel takes the value at its centre, ⌊(i + ½) n / size⌋."""
    n = len(pixels)
    places = (2 * torch.arange(size) + 1) * n // (2 * size)
    return pixels[places][:, places]


def _stream(purpose: str, seed: int) -> torch.Generator:
    return generator("mask-folders", purpose, seed, bits=64)
