"""Tiny ImageNet: from the published archive to its folder, and from there to files by class and to pixels."""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import md5
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .download import RemoteFile, check_path, unpacking

__all__ = ["ARCHIVE", "TinyImageNet", "find", "need_pillow", "place_in", "read_images", "unpack"]

FOLDER = "tiny-imagenet-200"
ARCHIVE = RemoteFile(
    f"{FOLDER}.zip",
    248_100_043,
    "90528d7ca1a48142e341f4ef8d21d0de",
    ("https://cs231n.stanford.edu/tiny-imagenet-200.zip", "http://cs231n.stanford.edu/tiny-imagenet-200.zip"),
)
CLASSES, TRAIN, VAL = 200, 500, 50
"""As published: classes, and images of each to train on and to validate with."""
SIZE = 64
"""Pixels along each side of every image."""


@dataclass(frozen=True)
class TinyImageNet:
    """The image files by class id, in order; every class has equally many."""

    folder: Path
    train: Mapping[str, tuple[Path, ...]]
    val: Mapping[str, tuple[Path, ...]]

    @property
    def whole(self) -> bool:
        """Is this all that was published, and not a part of it?"""
        counts = [{len(files) for files in part.values()} for part in (self.train, self.val)]
        return len(self.train) == CLASSES and counts == [{TRAIN}, {VAL}]

    @property
    def fingerprint(self) -> str:
        """Of place, names and classes of all files and the last change to their folders; none is opened."""
        digest = md5(str(self.folder.resolve()).encode(), usedforsecurity=False)
        for part in (self.train, self.val):
            for name, files in part.items():
                digest.update(f"{name} {len(files)} {files[0].parent.stat().st_mtime_ns}\n".encode())
                digest.update("\n".join(file.name for file in files).encode())
        return digest.hexdigest()

    def __str__(self) -> str:
        train, val = (sum(map(len, part.values())) for part in (self.train, self.val))
        return f"{len(self.train)} of {CLASSES} classes, {train:,} train and {val:,} val images"


def find(folder: str | os.PathLike[str]) -> TinyImageNet:
    """The files of ``tiny-imagenet-200`` in ``folder``, or of ``folder`` itself if it has that name.

    The classes are those of ``wnids.txt`` that have training images, so that a part of the classes will do.
    A class of which images are missing is an error.
    """
    place = place_in(folder)
    if not place.is_dir():
        raise FileNotFoundError(f"no Tiny ImageNet: there is no folder {place}. {_remedy(place)}")
    needed = ("wnids.txt", "train", "val/images", "val/val_annotations.txt")
    if missing := [name for name in needed if not (place / name).exists()]:
        raise FileNotFoundError(
            f"Tiny ImageNet in {place} is incomplete, without {', '.join(missing)}. {_remedy(place)}"
        )
    train = _train_files(place)
    val = _val_files(place, train)
    for part, files in (("train", train), ("val", val)):
        counts = sorted((len(some), name) for name, some in files.items())
        (fewest, least), (most, _) = counts[0], counts[-1]
        if fewest < max(most, 1):
            raise ValueError(
                f"Tiny ImageNet in {place} is incomplete: class {least} has {fewest} {part} images, others "
                f"have {most or VAL}. Put the missing ones there, or take {least} out of wnids.txt"
            )
    return TinyImageNet(place, train, val)


def place_in(folder: str | os.PathLike[str]) -> Path:
    """Where :func:`find` looks."""
    folder = Path(folder)
    return folder if folder.name == FOLDER and not (folder / FOLDER).exists() else folder / FOLDER


def need_pillow() -> None:
    try:
        import PIL  # noqa: F401
    except ModuleNotFoundError:
        raise ModuleNotFoundError('reading Tiny ImageNet needs pillow: pip install "ien[plots]"') from None


def read_images(paths: Iterable[Path]) -> Tensor:
    """The pixels (N, 3, 64, 64) uint8 of these files; grey images get three equal channels."""
    need_pillow()
    return torch.from_numpy(np.stack([_read(path) for path in paths])).permute(0, 3, 1, 2)


def unpack(
    archive: Path, folder: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None
) -> Path:
    """The archive's folder in ``folder``, there whole or not at all; ``progress(files_done, files_total)``.

    An archive with a path that leads elsewhere, or with a link, is refused before anything is written.
    """
    place = Path(folder) / FOLDER
    with unpacking(archive, place) as part, zipfile.ZipFile(archive) as opened:
        members = opened.infolist()
        for member in members:
            _check_member(archive, member)
        for done, member in enumerate(members, 1):
            opened.extract(member, part)
            if progress:
                progress(done, len(members))
    return place


def _train_files(place: Path) -> dict[str, tuple[Path, ...]]:
    names = sorted({name for line in _lines(place / "wnids.txt") if (name := line.strip())})
    folders = {name: place / "train" / name / "images" for name in names}
    files = {name: _images(folder) for name, folder in folders.items() if folder.is_dir()}
    found = {name: some for name, some in files.items() if some}
    if not found:
        raise FileNotFoundError(
            f"Tiny ImageNet in {place} is incomplete: of {len(names)} classes in wnids.txt none has images "
            f"in train/<class>/images. {_remedy(place)}"
        )
    return found


def _val_files(place: Path, classes: Iterable[str]) -> dict[str, tuple[Path, ...]]:
    listed, there = (
        place / "val" / "val_annotations.txt",
        {p.name: p for p in _images(place / "val" / "images")},
    )
    found: dict[str, list[Path]] = {name: [] for name in classes}
    seen: set[str] = set()
    for number, line in enumerate(_lines(listed), 1):
        file, tab, rest = line.partition("\t")
        name = rest.split("\t")[0]
        if not tab or not name or file in seen:
            trouble = f"names {file} twice" if file in seen else "is not a file, a tab and a class"
            raise ValueError(f"{listed} is damaged: line {number} {trouble}. {_remedy(place)}")
        seen.add(file)
        if name in found and file not in there:
            raise FileNotFoundError(
                f"Tiny ImageNet in {place} is incomplete: val_annotations.txt names {file}, and there is no "
                f"{place / 'val' / 'images' / file}. {_remedy(place)}"
            )
        if name in found:
            found[name].append(there[file])
    if unnamed := sorted(there.keys() - seen):
        raise ValueError(
            f"{listed} is incomplete: of {len(there)} files in val/images it does not name {len(unnamed)}, "
            f"such as {unnamed[0]}. {_remedy(place)}"
        )
    return {name: tuple(sorted(files)) for name, files in found.items()}


def _images(folder: Path) -> tuple[Path, ...]:
    names = sorted(
        entry.name for entry in os.scandir(folder) if entry.name.upper().endswith((".JPEG", ".JPG"))
    )
    return tuple(folder / name for name in names if name[0] != ".")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged ({error}): replace it") from None


def _read(path: Path) -> np.ndarray[Any, Any]:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as file:
            pixels = np.asarray(file.convert("RGB"))
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as an image ({error}): replace it") from None
    if pixels.shape != (SIZE, SIZE, 3):
        raise ValueError(
            f"{path} has {pixels.shape[1]}×{pixels.shape[0]} pixels, "
            f"and those of Tiny ImageNet {SIZE}×{SIZE}: replace it"
        )
    return pixels


def _check_member(archive: Path, member: zipfile.ZipInfo) -> None:
    name = member.orig_filename
    kind = stat.S_IFMT(member.external_attr >> 16)
    check_path(archive, name, FOLDER)
    if kind not in (0, stat.S_IFDIR, stat.S_IFREG):  # 0: made on a system without kinds
        raise ValueError(f"{archive} is refused: {name!r} is a link or a device, not a file")


def _remedy(place: Path) -> str:
    folder = place.parent
    return (
        f"Run `ien data get tiny-imagenet --data {folder}`"
        f"{' after moving it away' if place.exists() else ''}, or put the published {FOLDER} into {folder}"
    )
