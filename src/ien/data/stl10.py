"""STL-10: from the published archive to its folder, and from the binary files there to images and labels."""

from __future__ import annotations

import gzip
import os
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import md5
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from torch import Tensor

from .cache import cached
from .dataset import Dataset
from .download import RemoteFile, check_path, unpacking

__all__ = ["ARCHIVE", "STL10", "cache_name", "find", "place_in", "stl10", "unpack"]

FOLDER = "stl10_binary"
ARCHIVE = RemoteFile(
    f"{FOLDER}.tar.gz",
    2_640_397_119,
    "91f7769df0f17e558f3565bffb0c7dfb",
    (
        "https://cs.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
        "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
    ),
)
TRAIN, TEST = 5_000, 8_000
"""Labelled images, as published."""
CLASSES, SIZE = 10, 96
"""Classes, which the files number from 1, and pixels along each side of every image."""
BYTES = 3 * SIZE * SIZE
UNLABELED = "unlabeled_X.bin"
"""100,000 images without labels, 2.8 GB, that nothing here uses: they stay in the archive."""
RECIPE = 1
"""Part of the name of a cached file: to be raised when the same sources give other tensors."""
CHUNK = 100


@dataclass(frozen=True)
class STL10:
    """A folder whose files fit together, and how many images they hold."""

    folder: Path
    train: int
    test: int

    @property
    def whole(self) -> bool:
        """Is this all that was published with labels, and not a part of it?"""
        return (self.train, self.test) == (TRAIN, TEST)

    def __str__(self) -> str:
        part = "" if self.whole else f" (published: {TRAIN:,} and {TEST:,})"
        return f"{self.train:,} train and {self.test:,} test images{part}"


def stl10(folder: str | os.PathLike[str], seed: int = 0, image_size: int = SIZE) -> Dataset:
    """The labelled images of STL-10 in the order of the files, which mixes the classes; labels from 0.

    Source ``original``, or ``subset`` where the files hold other numbers of images than the published ones.
    ``image_size`` below 96 makes each pixel the mean of the area that it covers. Nothing is random: ``seed``
    is there because every data set takes one. Kept in the cache folder, row after row, memory-mapped.
    """
    if not 8 <= image_size <= SIZE:
        raise ValueError(
            f"image_size must be 8 to {SIZE}, the size of STL-10; got {image_size}: "
            f"take --set image_size={min(max(image_size, 8), SIZE)}"
        )
    found = find(folder)
    counts = {"train": found.train, "test": found.test}
    layout: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for part, count in counts.items():
        layout[f"{part}_x"] = (torch.uint8, (count, 3, image_size, image_size))
        layout[f"{part}_y"] = (torch.int64, (count,))

    def make() -> Mapping[str, Tensor]:
        return {
            **{f"{part}_x": _images(found.folder / f"{part}_X.bin", image_size) for part in counts},
            **{f"{part}_y": _labels(found.folder / f"{part}_y.bin") for part in counts},
        }

    tensors = cached(cache_name(found, image_size), layout, make)
    return Dataset("stl10", "original" if found.whole else "subset", **tensors, classes=CLASSES)


def find(folder: str | os.PathLike[str]) -> STL10:
    """What ``stl10_binary`` in ``folder`` holds, or ``folder`` itself if it has that name.

    Any number of images will do. Sizes and labels are checked, pixels are not read.
    """
    place = place_in(folder)
    if not place.is_dir():
        raise FileNotFoundError(f"no STL-10: there is no folder {place}. {_remedy(place)}")
    paths = {name: place / name for part in ("train", "test") for name in (f"{part}_X.bin", f"{part}_y.bin")}
    if missing := [name for name, path in paths.items() if not path.is_file()]:
        raise FileNotFoundError(
            f"STL-10 in {place} is incomplete, without {', '.join(missing)}. {_remedy(place)}"
        )
    return STL10(place, *(_rows(place, part) for part in ("train", "test")))


def place_in(folder: str | os.PathLike[str]) -> Path:
    """Where :func:`find` looks."""
    folder = Path(folder)
    return folder if folder.name == FOLDER and not (folder / FOLDER).exists() else folder / FOLDER


def cache_name(found: STL10, image_size: int | str) -> str:
    """Size (``*`` to match any) and a digest of the files: others never meet an old cache."""
    digest = md5(f"{RECIPE} {found.folder.resolve()}".encode(), usedforsecurity=False)
    for part in ("train", "test"):
        state = (found.folder / f"{part}_X.bin").stat()  # too large to be read at every start
        digest.update(f"{state.st_size} {state.st_mtime_ns}".encode())
        digest.update((found.folder / f"{part}_y.bin").read_bytes())
    return f"stl10-{image_size}px-{digest.hexdigest()}"


def unpack(
    archive: Path, folder: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None
) -> Path:
    """The archive's folder in ``folder``, there whole or not at all; ``progress(bytes_read, bytes_total)``.

    The images without labels stay in the archive. One with a path that leads elsewhere, or with a link, is
    refused, and nothing of it stays.
    """
    place, total = Path(folder) / FOLDER, archive.stat().st_size
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
            path = PurePosixPath(member.name)
            (part / (path if member.isdir() else path.parent)).mkdir(parents=True, exist_ok=True)
            content = opened.extractfile(member)
            if content is None or path.name == UNLABELED:
                continue
            with (part / path).open("wb") as out:
                while chunk := content.read(1 << 20):
                    out.write(chunk)
                    if progress:
                        progress(file.tell(), total)
        while stream.read(1 << 20):  # to the checksum at its end
            pass
        if progress:
            progress(total, total)
    return place


def _rows(place: Path, part: str) -> int:
    path = place / f"{part}_X.bin"
    size, labels = path.stat().st_size, np.fromfile(place / f"{part}_y.bin", np.uint8)
    rows, rest = divmod(size, BYTES)
    if rest or not rows:
        raise ValueError(
            f"{path} is damaged: {size:,} bytes are {rows:,} images of {BYTES:,} and {rest:,} bytes more. "
            f"{_remedy(place)}"
        )
    if len(labels) != rows:
        raise ValueError(
            f"{path} holds {rows:,} images and {part}_y.bin {len(labels):,} labels: they are not of one set. "
            f"{_remedy(place)}"
        )
    if len(wrong := np.flatnonzero((labels < 1) | (labels > CLASSES))):
        raise ValueError(
            f"{place / f'{part}_y.bin'} is damaged: image {wrong[0] + 1} has the label {labels[wrong[0]]}, "
            f"and they go from 1 to {CLASSES}. {_remedy(place)}"
        )
    return rows


def _labels(path: Path) -> Tensor:
    return torch.from_numpy(np.fromfile(path, np.uint8).astype(np.int64) - 1)


def _images(path: Path, size: int) -> Tensor:
    columns_first = np.memmap(path, np.uint8, "r").reshape(-1, 3, SIZE, SIZE)
    made = torch.empty(len(columns_first), 3, size, size, dtype=torch.uint8)
    area = _area(size)
    for start in range(0, len(made), CHUNK):
        x = torch.from_numpy(columns_first[start : start + CHUNK].copy()).transpose(2, 3)
        # whole numbers up to the division: a half is a half on every machine
        scaled = x if size == SIZE else (area @ x.double() @ area.T).div_(SIZE * SIZE).round_()
        made[start : start + CHUNK] = scaled.to(torch.uint8)
    return made


def _area(size: int) -> Tensor:
    """How much of each pixel (96) lies in each of ``size`` equal parts of a side, in 1/96 of a part."""
    part, pixel = SIZE * torch.arange(size).view(-1, 1), size * torch.arange(SIZE)
    both = torch.minimum(part + SIZE, pixel + size) - torch.maximum(part, pixel)
    return both.clamp_(min=0).double()


def _remedy(place: Path) -> str:
    folder = place.parent
    return (
        f"Run `ien data get stl10 --data {folder}`"
        f"{' after moving it away' if place.exists() else ''}, or put the published {FOLDER} into {folder}"
    )
