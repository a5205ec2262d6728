"""A table with the classes of images: a line ``file,class_index``, then a line for each image."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

__all__ = ["Labelled", "read_labels"]

MAX_DIGITS = 9
"""Of the number of a class: more are a typing error."""


class Labelled(NamedTuple):
    """The images that have labels."""

    paths: list[Path]
    classes: list[int]
    note: str
    """How many have labels, in one line."""


def read_labels(file: Path, folder: Path, paths: list[Path]) -> Labelled:
    """Find the class of each image in a table.

    Args:
        file: The table. It names images by their paths in the folder, or by their file names alone
            where only one image has that name.
        folder: The folder of the images.
        paths: The images.

    Raises:
        FileNotFoundError: There is no such table.
        ValueError: It is no table of labels, names none of the images, or more than one by a line,
            or has two classes for an image.
    """
    by_path = {}
    by_name: dict[str, list[str]] = {}
    for path in paths:
        relative = path.relative_to(folder).as_posix()
        by_path[relative] = path
        by_name.setdefault(path.name, []).append(relative)

    found: dict[str, tuple[int, int]] = {}  # path in the folder -> class, line
    unknown: list[str] = []
    for line, (name, number) in _rows(file).items():
        matches = [name] if name in by_path else by_name.get(name, [])
        if not matches:
            unknown.append(name)
            continue
        if len(matches) > 1:
            raise ValueError(
                f"line {line} of {file}: {name} may be {matches[0]} or {matches[1]}: write its path in "
                f"{folder}"
            )
        (relative,) = matches
        earlier, earlier_line = found.setdefault(relative, (number, line))
        if earlier != number:
            raise ValueError(
                f"{file} has two classes for {relative}: {earlier} in line {earlier_line}, {number} in line "
                f"{line}: remove one"
            )
    if not found:
        raise ValueError(f"{file} names none of the {len(paths)} images, such as {next(iter(by_path))}")

    note = f"{file} has labels for {len(found)} of the {len(paths)} images"
    if len(found) < len(paths):
        note += ", and the table is of these"
    if unknown:
        note += f"; names without an image: {len(unknown)}, such as {unknown[0]}"
    labelled = [relative for relative in by_path if relative in found]
    return Labelled([by_path[name] for name in labelled], [found[name][0] for name in labelled], note)


def _rows(file: Path) -> dict[int, tuple[str, int]]:
    """Return what each line says, by its number: an image and its class."""
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file} with labels")
    try:
        with open(file, newline="", encoding="utf-8-sig") as lines:
            rows = list(csv.DictReader(lines))
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{file} cannot be read as a table ({error}): save it as CSV in UTF-8") from None
    if not rows or "file" not in rows[0] or "class_index" not in rows[0]:
        raise ValueError(f"{file} should begin with the line 'file,class_index'")
    found = {}
    for line, row in enumerate(rows, start=2):
        text = (row["class_index"] or "").strip()
        if not text.isdecimal() or len(text) > MAX_DIGITS:
            raise ValueError(f"line {line} of {file} should name a class by its number from 0; got {text!r}")
        found[line] = ((row["file"] or "").strip().removeprefix("./"), int(text))
    return found
