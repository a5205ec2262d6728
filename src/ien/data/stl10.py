"""STL-10: the published archive → its folder, and the binary files there → images and labels."""

from __future__ import annotations

import gzip
import os
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import md5
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .augment import resized
from .cache import cached, layout_of
from .dataset import Dataset, check_image_size
from .download import RemoteFile, check_path, how_to_get, published_folder, unpacking

__all__ = ["ARCHIVE", "STL10", "cache_name", "find", "place_in", "stl10", "unpack"]

FOLDER = "stl10_binary"
ARCHIVE = RemoteFile(
    f"{FOLDER}.tar.gz",
    2_640_397_119,
    # as TensorFlow Datasets has it
    "f31fd99273a1acb8609c8db427cebb1de3f71de77758cdc0e22956e1289b9866",
    (
        "https://cs.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
        "https://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
    ),
)
TRAIN, TEST = 5_000, 8_000
"""Labelled images, as published."""
CLASSES, SIZE = 10, 96
"""Classes, which the files number from 1, and pixels along each side of every image."""
BYTES_PER_IMAGE = 3 * SIZE * SIZE
FILES = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin")
UNLABELED = "unlabeled_X.bin"
"""100,000 images without labels, 2.8 GB, that nothing here uses: they stay in the archive."""
RECIPE = 1
"""Part of the name of a cached file: raise it when the same sources give other tensors."""
CHUNK = 100
"""Images that are scaled at once."""


@dataclass(frozen=True)
class STL10:
    """A folder whose files fit together, and how many images they hold."""

    folder: Path
    train: int
    test: int

    @property
    def whole(self) -> bool:
        """Whether this is all that was published with labels, and not a part of it."""
        return (self.train, self.test) == (TRAIN, TEST)

    def __str__(self) -> str:
        text = f"{self.train:,} train and {self.test:,} test images"
        if not self.whole:
            text += f" (published: {TRAIN:,} and {TEST:,})"
        return text


def stl10(folder: str | os.PathLike[str], seed: int = 0, image_size: int = SIZE) -> Dataset:
    """Load the labelled images of STL-10, with labels from 0.

    They are in the order of the files, which mixes the classes. The source is ``original``, or
    ``subset`` where the files hold other numbers of images than the
    published ones. Kept in the cache folder, row after row, memory-mapped.

    Args:
        folder: Where ``stl10_binary`` is.
        seed: Ignored: nothing is random, but every data set takes a seed.
        image_size: Below 96, each pixel is the mean over the area that it covers.
    """
    check_image_size(image_size, SIZE, "STL-10")
    found = find(folder)

    def make() -> Mapping[str, Tensor]:
        place = found.folder
        return {
            "train_x": _images(place / "train_X.bin", image_size),
            "train_y": _labels(place / "train_y.bin"),
            "test_x": _images(place / "test_X.bin", image_size),
            "test_y": _labels(place / "test_y.bin"),
        }

    source = "original" if found.whole else "subset"
    layout = layout_of(found.train, found.test, (3, image_size, image_size))
    tensors = cached(cache_name(found, image_size), layout, make)
    return Dataset("stl10", source, **tensors, classes=CLASSES)


def find(folder: str | os.PathLike[str]) -> STL10:
    """Check ``stl10_binary`` in ``folder``, or ``folder`` itself if it has that name.

    Any number of images is fine. Sizes and labels are checked, pixels are not read.
    """
    place = place_in(folder)
    if not place.is_dir():
        raise FileNotFoundError(f"no STL-10: there is no folder {place}. {_remedy(place)}")
    missing = [name for name in FILES if not (place / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"STL-10 in {place} is incomplete, without {', '.join(missing)}. {_remedy(place)}"
        )
    return STL10(place, _count(place, "train"), _count(place, "test"))


def place_in(folder: str | os.PathLike[str]) -> Path:
    """Return where :func:`find` looks."""
    return published_folder(folder, FOLDER)


def cache_name(found: STL10, image_size: int | str) -> str:
    """Return the name of the cached file, by the size (``*`` matches any) and the files."""
    digest = md5(f"{RECIPE} {found.folder.resolve()}".encode(), usedforsecurity=False)
    for part in ("train", "test"):
        state = (found.folder / f"{part}_X.bin").stat()  # too large to be read at every start
        digest.update(f"{state.st_size} {state.st_mtime_ns}".encode())
        digest.update((found.folder / f"{part}_y.bin").read_bytes())
    return f"stl10-{image_size}px-{digest.hexdigest()}"


def unpack(
    archive: Path, folder: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None
) -> Path:
    """Unpack the archive into ``folder``, whole or not at all, without the unlabelled images.

    An archive with a path that leads elsewhere, or with a link, is refused, and nothing of it
    stays.

    Args:
        archive: The published archive.
        folder: Where its folder is put.
        progress: Called with the bytes of the archive that are read, and with all.

    Returns:
        The unpacked folder.
    """
    report = progress or (lambda done, total: None)
    place = Path(folder) / FOLDER
    total = archive.stat().st_size
    with (
        unpacking(archive, place) as part,
        archive.open("rb") as file,
        gzip.GzipFile(fileobj=file) as stream,
        tarfile.open(fileobj=stream, mode="r|") as opened,
    ):
        for member in opened:
            check_path(archive, member.name, FOLDER)
            if not (member.isfile() or member.isdir()):
                raise ValueError(f"{archive} is refused: {member.name!r} is a link or a device, not a file")
            target = part / PurePosixPath(member.name)
            if member.isdir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            content: Any = opened.extractfile(member)
            if target.name == UNLABELED:
                continue  # 2.8 GB that nothing uses
            with target.open("wb") as out:
                while chunk := content.read(1 << 20):
                    out.write(chunk)
                    report(file.tell(), total)
        while stream.read(1 << 20):  # to the checksum at its end
            pass
        report(total, total)
    return place


def _count(place: Path, part: str) -> int:
    """Return the number of images of one part, after checking that its two files fit together."""
    images = place / f"{part}_X.bin"
    size = images.stat().st_size
    count, rest = divmod(size, BYTES_PER_IMAGE)
    if rest or not count:
        raise ValueError(
            f"{images} is damaged: {size:,} bytes are {count:,} images of {BYTES_PER_IMAGE:,} bytes and "
            f"{rest:,} bytes more. {_remedy(place)}"
        )
    path = place / f"{part}_y.bin"
    labels = np.fromfile(path, np.uint8)
    if len(labels) != count:
        raise ValueError(
            f"{images} holds {count:,} images but {path.name} {len(labels):,} labels: they do not belong "
            f"together. {_remedy(place)}"
        )
    wrong = np.flatnonzero((labels < 1) | (labels > CLASSES))
    if len(wrong):
        first = wrong[0]
        raise ValueError(
            f"{path} is damaged: image {first + 1} has the label {labels[first]}, but labels go from 1 to "
            f"{CLASSES}. {_remedy(place)}"
        )
    return count


def _labels(path: Path) -> Tensor:
    labels = np.fromfile(path, np.uint8).astype(np.int64)
    return torch.from_numpy(labels - 1)


def _images(path: Path, size: int) -> Tensor:
    """Read images (N, 3, size, size), each pixel the mean over the area that it covers."""
    # the files have one column after another, like Matlab
    columns_first = np.memmap(path, np.uint8, "r").reshape(-1, 3, SIZE, SIZE)
    images = torch.empty(len(columns_first), 3, size, size, dtype=torch.uint8)
    for start in range(0, len(images), CHUNK):
        stop = start + CHUNK
        x = torch.from_numpy(columns_first[start:stop].copy()).transpose(2, 3)  # (n, 3, 96, 96)
        images[start:stop] = resized(x, size)
    return images


def _remedy(place: Path) -> str:
    return how_to_get("stl10", place)
