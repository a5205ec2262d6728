"""Frames on disk: numbered image files, and text files with a line of numbers for each."""

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
    "count_error",
    "frame_size",
    "image_names",
    "image_number",
    "missing_frame",
    "read_frame",
    "read_lines",
    "read_numbers",
]

Array = np.ndarray[Any, Any]
StrPath = str | os.PathLike[str]


@dataclass(frozen=True, eq=False)
class Files:
    """Paths in a folder, held as one array of names: a million are cheap to send to workers."""

    folder: str
    names: Array

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Path:
        return Path(self.folder, str(self.names[index]))


def read_frame(path: StrPath) -> Array:
    """Read an image file as (H, W, 3) uint8 RGB; a grey image gets three equal channels."""
    with opened(path, "track") as file:
        return np.array(file.convert("RGB"))


def frame_size(path: StrPath) -> tuple[int, int]:
    """Return the rows and columns of an image file, from its header."""
    with opened(path, "track") as file:
        return file.height, file.width


def image_names(folder: Path) -> list[str]:
    """List the image files of a folder in the order of their numbers: 9999.jpg, 10000.jpg."""
    names = []
    # scandir and not glob: a sequence may have thousands of frames, and there are thousands of them
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.lower().endswith(SUFFIXES) and not entry.name.startswith("."):
                names.append(entry.name)
    return sorted(names, key=lambda name: (image_number(name, -1), name))


def image_number(name: str, otherwise: int) -> int:
    """Return the number in the name of an image file, or ``otherwise`` if the name is not a number.

    >>> image_number("0042.jpg", 1), image_number("first.jpg", 1)
    (42, 1)
    """
    stem = name.rpartition(".")[0]
    if stem.isdecimal():
        return int(stem)
    return otherwise


def missing_frame(folder: Path, names: list[str]) -> Path | None:
    """Return the path of the first file missing from a numbered series, or None if it has no gap.

    >>> missing_frame(Path("img"), ["0007.jpg", "0008.jpg", "0010.jpg"]).name
    '0009.jpg'
    """
    for before, after in pairwise(names):
        number = image_number(before, -1)
        # -1 stands for a name that is not a number: such a series can have no gap
        if 0 <= number < image_number(after, -1) - 1:
            stem, _, suffix = before.rpartition(".")
            return folder / f"{number + 1:0{len(stem)}d}.{suffix}"
    return None


def count_error(folder: Path, names: list[str], truth: Path, boxes: int) -> str:
    """Write the error for a folder with a different number of frames than of boxes."""
    gap = missing_frame(folder, names)
    if gap:
        remedy = f"put {gap} back"
    else:
        remedy = "put back what is missing, or remove what is too many"
    return f"{truth} has {boxes} boxes for {len(names)} frames in {folder}: {remedy}"


def read_lines(path: Path) -> list[str]:
    """Read the lines of a text file, without empty ones at its end.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is not text.
    """
    try:
        # some tools write a byte order mark
        return path.read_text(encoding="utf-8-sig").rstrip().splitlines()
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no {path}: put it there") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged ({error}): replace it") from None


def read_numbers(path: Path, columns: int) -> Array:
    """Read a text file with ``columns`` numbers on each line, separated by commas, tabs or spaces.

    Returns:
        (lines, columns) float64.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is empty or damaged, or a line has something else.
    """
    lines = read_lines(path)
    needed = f"{columns} numbers"
    if columns == 1:
        needed = "1 number"
    if not lines:  # OTB itself has such a file
        raise ValueError(f"{path} is empty: it needs {needed} on each line")
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = list(map(float, line.replace(",", " ").split()))
        except ValueError:
            row = []  # reported below, like a line that is too short
        if len(row) != columns:
            raise ValueError(f"{path}: line {number} must have {needed}; it is {line.strip()!r}")
        rows.append(row)
    return np.array(rows, np.float64)
