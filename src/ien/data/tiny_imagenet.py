"""Tiny ImageNet: the published archive → its folder → files by class → pixels."""

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

from .._text import to_install
from ..measuring.image_folder import opened
from .download import RemoteFile, check_path, how_to_get, published_folder, unpacking

__all__ = ["ARCHIVE", "TinyImageNet", "find", "need_pillow", "place_in", "read_images", "unpack"]

FOLDER = "tiny-imagenet-200"
ARCHIVE = RemoteFile(
    f"{FOLDER}.zip",
    248_100_043,
    "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
    ("https://cs231n.stanford.edu/tiny-imagenet-200.zip",),
)
CLASSES, TRAIN, VAL = 200, 500, 50
"""As published: classes, and images of each to train on and to validate with."""
SIZE = 64
"""Pixels along each side of every image."""

Files = Mapping[str, tuple[Path, ...]]
"""Class id → its image files, in order."""


@dataclass(frozen=True)
class TinyImageNet:
    """The image files by class id; every class has equally many."""

    folder: Path
    train: Files
    val: Files

    @property
    def whole(self) -> bool:
        """Whether this is all that was published, and not a part of it."""
        train_counts = set(map(len, self.train.values()))
        val_counts = set(map(len, self.val.values()))
        return len(self.train) == CLASSES and train_counts == {TRAIN} and val_counts == {VAL}

    @property
    def fingerprint(self) -> str:
        """A digest of all file names and the last change to their folders; no file is opened."""
        digest = md5(str(self.folder.resolve()).encode(), usedforsecurity=False)
        for part in (self.train, self.val):
            for name, files in part.items():
                # a replaced file changes the date of its folder, so that no file need be opened
                changed = files[0].parent.stat().st_mtime_ns
                digest.update(f"{name} {len(files)} {changed}\n".encode())
                digest.update("\n".join(file.name for file in files).encode())
        return digest.hexdigest()

    def __str__(self) -> str:
        train = sum(map(len, self.train.values()))
        val = sum(map(len, self.val.values()))
        return f"{len(self.train)} of {CLASSES} classes, {train:,} train and {val:,} val images"


def find(folder: str | os.PathLike[str]) -> TinyImageNet:
    """List the files of ``tiny-imagenet-200`` in ``folder``, or of ``folder`` if it has that name.

    The classes are those of ``wnids.txt`` that have training images, so some of the classes are
    enough. A class that lacks some of its images is an error.
    """
    place = place_in(folder)
    if not place.is_dir():
        raise FileNotFoundError(f"no Tiny ImageNet: there is no folder {place}. {_remedy(place)}")
    needed = ("wnids.txt", "train", "val/images", "val/val_annotations.txt")
    missing = [name for name in needed if not (place / name).exists()]
    if missing:
        raise _incomplete(place, f", without {', '.join(missing)}")
    train = _train_files(place)
    val = _val_files(place, train)
    _check_counts(place, "train", train)
    _check_counts(place, "val", val)
    return TinyImageNet(place, train, val)


def place_in(folder: str | os.PathLike[str]) -> Path:
    """Return where :func:`find` looks."""
    return published_folder(folder, FOLDER)


def need_pillow() -> None:
    """Raise an error that says how to install pillow, if it is not installed."""
    try:
        import PIL  # noqa: F401
    except ModuleNotFoundError:
        command = to_install("plots", "pillow")
        raise ModuleNotFoundError(f"reading Tiny ImageNet needs pillow: {command}") from None


def read_images(paths: Iterable[Path]) -> Tensor:
    """Read the pixels (N, 3, 64, 64) uint8 of these files; grey images get three equal channels."""
    need_pillow()
    images = np.stack([_read(path) for path in paths])  # (N, 64, 64, 3)
    return torch.from_numpy(images).permute(0, 3, 1, 2)


def unpack(
    archive: Path, folder: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None
) -> Path:
    """Unpack the archive into ``folder``, whole or not at all.

    An archive with a path that leads elsewhere, or with a link, is refused before anything is
    written.

    Args:
        archive: The published archive.
        folder: Where its folder is put.
        progress: Called with the number of files that are done, and of all.

    Returns:
        The unpacked folder.
    """
    place = Path(folder) / FOLDER
    with unpacking(archive, place) as part, zipfile.ZipFile(archive) as opened:
        members = opened.infolist()
        # all are checked before one is written
        for member in members:
            _check_member(archive, member)
        for done, member in enumerate(members, 1):
            opened.extract(member, part)
            if progress:
                progress(done, len(members))
    return place


def _train_files(place: Path) -> Files:
    names = {line.strip() for line in _lines(place / "wnids.txt")} - {""}
    found = {}
    for name in sorted(names):
        folder = place / "train" / name / "images"
        if folder.is_dir() and (files := _images(folder)):
            found[name] = files
    if not found:
        raise _incomplete(
            place, f": none of the {len(names)} classes in wnids.txt has images in train/<class>/images"
        )
    return found


def _val_files(place: Path, classes: Iterable[str]) -> Files:
    """Sort the validation images by class, which is on a line with their name."""
    annotations = place / "val" / "val_annotations.txt"
    paths = {path.name: path for path in _images(place / "val" / "images")}
    found: dict[str, list[Path]] = {name: [] for name in classes}
    named: set[str] = set()
    for number, line in enumerate(_lines(annotations), 1):
        file, tab, rest = line.partition("\t")
        name = rest.split("\t")[0]
        if not tab or not name:
            raise _damaged(place, annotations, f"line {number} is not a file, a tab and a class")
        if file in named:
            raise _damaged(place, annotations, f"line {number} names {file} twice")
        named.add(file)
        if name not in found:
            continue  # a class that is not there
        if file not in paths:
            expected = place / "val" / "images" / file
            raise _incomplete(place, f": val_annotations.txt names {file}, but there is no {expected}")
        found[name].append(paths[file])
    unnamed = sorted(paths.keys() - named)
    if unnamed:
        raise ValueError(
            f"{annotations} is incomplete: it does not name {len(unnamed)} of the {len(paths)} files "
            f"in val/images, such as {unnamed[0]}. {_remedy(place)}"
        )
    ordered = {}
    for name, files in found.items():
        ordered[name] = tuple(sorted(files))
    return ordered


def _check_counts(place: Path, part: str, files: Files) -> None:
    """Raise an error if a class has fewer images than others, or none."""
    counts = {name: len(some) for name, some in files.items()}
    smallest = min(counts, key=lambda name: (counts[name], name))
    most = max(counts.values())
    if counts[smallest] < max(most, 1):
        raise ValueError(
            f"Tiny ImageNet in {place} is incomplete: class {smallest} has {counts[smallest]} {part} images, "
            f"others have {most or VAL}. Put the missing ones there, or remove {smallest} from wnids.txt"
        )


def _images(folder: Path) -> tuple[Path, ...]:
    names = []
    for entry in os.scandir(folder):  # much faster than a glob on 10,000 files
        if entry.name.upper().endswith((".JPEG", ".JPG")) and not entry.name.startswith("."):
            names.append(entry.name)
    return tuple(folder / name for name in sorted(names))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged ({error}): replace it") from None


def _read(path: Path) -> np.ndarray[Any, Any]:
    with opened(path) as file:
        pixels = np.asarray(file.convert("RGB"))  # (H, W, 3)
    height, width, _ = pixels.shape
    if (height, width) != (SIZE, SIZE):
        raise ValueError(
            f"{path} has {width}×{height} pixels, but images of Tiny ImageNet have {SIZE}×{SIZE}: replace it"
        )
    return pixels


def _check_member(archive: Path, member: zipfile.ZipInfo) -> None:
    name = member.orig_filename
    check_path(archive, name, FOLDER)
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind not in (0, stat.S_IFDIR, stat.S_IFREG):  # 0: packed on a system without kinds
        raise ValueError(f"{archive} is refused: {name!r} is a link or a device, not a file")


def _incomplete(place: Path, what: str) -> FileNotFoundError:
    return FileNotFoundError(f"Tiny ImageNet in {place} is incomplete{what}. {_remedy(place)}")


def _damaged(place: Path, path: Path, what: str) -> ValueError:
    return ValueError(f"{path} is damaged: {what}. {_remedy(place)}")


def _remedy(place: Path) -> str:
    return how_to_get("tiny-imagenet", place)
