"""Frames: from folders of numbered image files, and text files of numbers beside them, to arrays."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ...measuring.image_folder import SUFFIXES, opened

__all__ = [
    "Files",
    "frame_size",
    "image_names",
    "image_number",
    "miscounted",
    "missing_frame",
    "read_frame",
    "read_numbers",
]

Array = np.ndarray[Any, Any]
StrPath = str | os.PathLike[str]


@dataclass(frozen=True, eq=False)
class Files:
    """Paths, kept as one array of names: a million of them go to workers quickly and take little memory."""

    folder: str
    names: Array

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Path:
        return Path(self.folder, str(self.names[index]))


def read_frame(path: StrPath) -> Array:
    """The image (H, W, 3) uint8 RGB in a file; grey ones get three equal channels."""
    with opened(path, "track") as file:
        return np.array(file.convert("RGB"))


def frame_size(path: StrPath) -> tuple[int, int]:
    """Rows and columns, from the header of an image file."""
    with opened(path, "track") as file:
        return file.height, file.width


def image_names(folder: Path) -> list[str]:
    """The image files in ``folder``, in the order of their numbers: 9999.jpg is before 10000.jpg."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.name.lower().endswith(SUFFIXES)]
    return sorted((name for name in names if name[0] != "."), key=lambda name: (image_number(name, -1), name))


def image_number(name: str, otherwise: int) -> int:
    """The number that is the name of an image file.

    >>> image_number("0042.jpg", 1), image_number("first.jpg", 1)
    (42, 1)
    """
    stem = name.rpartition(".")[0]
    return int(stem) if stem.isdecimal() else otherwise


def missing_frame(folder: Path, names: list[str]) -> Path | None:
    """The first file that the numbers of the others leave out, if one is.

    >>> missing_frame(Path("img"), ["0007.jpg", "0008.jpg", "0010.jpg"]).name
    '0009.jpg'
    """
    for before, after in pairwise(names):
        number = image_number(before, -1)
        if 0 <= number < image_number(after, -1) - 1:
            stem, _, suffix = before.rpartition(".")
            return folder / f"{number + 1:0{len(stem)}d}.{suffix}"
    return None


def miscounted(folder: Path, names: list[str], truth: Path, boxes: int) -> str:
    """What to say of a folder that has not as many frames as there are boxes."""
    gap = missing_frame(folder, names)
    mend = f"put {gap} back" if gap else "put back what is missing, or take out what is too many"
    return f"{truth} has {boxes} boxes for {len(names)} frames in {folder}: {mend}"


def read_numbers(path: Path, columns: int) -> Array:
    """The lines of a text file, ``columns`` numbers each, separated by commas, tabs or spaces, as float64."""
    try:
        lines = path.read_text(encoding="utf-8-sig").rstrip().splitlines()
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no {path}: put it there") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged ({error}): replace it") from None
    rows = [line.replace(",", " ").split() for line in lines]
    if not rows:
        raise ValueError(
            f"{path} is empty: it needs {columns} {'number' if columns == 1 else 'numbers'} a line"
        )
    for number, row in enumerate(rows, 1):
        if len(row) != columns or not all(map(_is_number, row)):
            raise ValueError(
                f"{path}: line {number} is {lines[number - 1].strip()!r}, and {columns} "
                f"{'number is' if columns == 1 else 'numbers are'} needed"
            )
    return np.array(rows, np.float64)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
