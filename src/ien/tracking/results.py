"""Result files: boxes, times and angles as text, as the GOT-10k toolkit has them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .._files import replace_file
from .._text import nearest
from .data.boxes import COUNT_FROM_1, Array, as_boxes
from .data.clip import Clip
from .data.frames import read_numbers
from .scoring import Score, score
from .trajectory import Track

__all__ = ["Result", "read_result", "scored", "write_result"]


class _Column(NamedTuple):
    """A file of numbers beside the file of boxes, one number for each box."""

    folder: str
    ending: str
    """Of the file's name."""
    format: str


# the first is that of the toolkit, and the second, which it does not have, is made to match
SECONDS = _Column("times", "time", ".8f")
ANGLES = _Column("angles", "angle", ".3f")


class Result(NamedTuple):
    """What a tracker returned for one sequence."""

    boxes: Array
    """(T, 4); x and y are counted from 0."""
    seconds: Array | None = None
    """(T,), or None if no times were kept."""
    angles: Array | None = None
    """(T,) degrees, or None if none were kept."""


def scored(found: Result | Track, clip: Clip, use_angles: bool) -> Score:
    """Score a result against the true boxes of its clip.

    Args:
        found: Boxes, seconds and angles.
        clip: The sequence they belong to.
        use_angles: Whether to score the angles as well, which means something if several were
            tried.
    """
    angles = None
    if use_angles:
        angles = found.angles
    return score(found.boxes, clip.boxes, angles, clip.angles, found.seconds)


def write_result(
    folder: str | os.PathLike[str],
    name: str,
    boxes: ArrayLike,
    seconds: ArrayLike | None = None,
    angles: ArrayLike | None = None,
) -> Path:
    """Write the boxes of a sequence as ``<name>.txt``.

    Seconds and angles, if given, go to ``times/<name>_time.txt`` and ``angles/<name>_angle.txt``.

    A line is x,y,w,h with three decimals, x and y counted from 1, as the toolkit reads it; the
    toolkit has no files of angles. Every file is written completely or not at all, the boxes last:
    if they are there, everything is. For a table with scores use :func:`ien.tracking.write_csv`.

    Args:
        folder: Where the files go.
        name: Of the sequence, such as ``Jogging-1``.
        boxes: Rows x, y, w, h, (T, 4), counted from 0.
        seconds: How long each frame took, (T,).
        angles: Degrees, (T,).

    Returns:
        The file of boxes.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = write_result(folder, "Man", [[0, 1, 30, 40]])
    ...     path.read_text(), read_result(folder, "Man").boxes.tolist()
    ('1.000,2.000,30.000,40.000\\n', [[0.0, 1.0, 30.0, 40.0]])
    """
    path = _path(folder, name)
    rows = as_boxes(boxes, "boxes")
    if rows.ndim != 2 or not len(rows) or np.isnan(rows).any():
        raise ValueError(f"the boxes of {name} must be (T, 4) without NaN; got shape {rows.shape}")
    lines = []
    for x, y, width, height in (rows + COUNT_FROM_1).tolist():
        lines.append(f"{x:.3f},{y:.3f},{width:.3f},{height:.3f}\n")
    # everything is checked before anything is written
    time_lines = _lines(f"the seconds of {name}", seconds, SECONDS, len(rows), allow_negative=False)
    angle_lines = _lines(f"the angles of {name}", angles, ANGLES, len(rows))

    path.parent.mkdir(parents=True, exist_ok=True)
    # the boxes last: a reader that finds them finds everything
    _write_column(_column_path(folder, name, SECONDS), time_lines)
    _write_column(_column_path(folder, name, ANGLES), angle_lines)
    _write(path, lines)
    return path


def read_result(folder: str | os.PathLike[str], name: str) -> Result:
    """Read what :func:`write_result`, the toolkit or another tool wrote.

    Numbers may be separated by commas, tabs or spaces.

    Args:
        folder: Where the files are.
        name: Of the sequence.

    Raises:
        FileNotFoundError: There is no such result.
        ValueError: A file is damaged, or has other numbers of lines than there are boxes.
    """
    path = _path(folder, name)
    if not path.exists():
        known = sorted(other.stem for other in Path(folder).glob("*.txt"))
        hint = "there are none in that folder"
        if known:
            hint = nearest(name, known)
        raise FileNotFoundError(f"there is no result file {path}; {hint}")
    lines = _finite_numbers(path, 4)
    boxes = as_boxes(lines, str(path)) - COUNT_FROM_1
    seconds = _read_column(_column_path(folder, name, SECONDS), path, len(boxes))
    angles = _read_column(_column_path(folder, name, ANGLES), path, len(boxes))
    return Result(boxes, seconds, angles)


def _path(folder: str | os.PathLike[str], name: str) -> Path:
    # a name such as ../x would write outside of the folder
    if not name or name != Path(name).name or name.startswith("."):
        raise ValueError(f"{name!r} cannot name a result file: take the sequence's name, such as Jogging-1")
    return Path(folder) / f"{name}.txt"


def _column_path(folder: str | os.PathLike[str], name: str, column: _Column) -> Path:
    return Path(folder) / column.folder / f"{name}_{column.ending}.txt"


def _lines(
    what: str, values: ArrayLike | None, column: _Column, count: int, allow_negative: bool = True
) -> list[str] | None:
    """Return a line for each number, checked; None for no numbers."""
    if values is None:
        return None
    numbers = np.asarray(values, dtype=np.float64)
    needed = f"{count} finite numbers, one for each box"
    if not allow_negative:
        needed += ", none negative"
    wrong = numbers.shape != (count,) or not np.isfinite(numbers).all()
    if wrong or (not allow_negative and (numbers < 0).any()):
        raise ValueError(f"{what} must be {needed}")
    return [f"{value:{column.format}}\n" for value in numbers.tolist()]


def _write_column(path: Path, lines: list[str] | None) -> None:
    if lines is None:
        path.unlink(missing_ok=True)  # it belongs to earlier boxes
        return
    path.parent.mkdir(exist_ok=True)
    _write(path, lines)


def _write(path: Path, lines: list[str]) -> None:
    replace_file(path, lambda temporary: temporary.write_text("".join(lines)))


def _read_column(path: Path, boxes_path: Path, count: int) -> Array | None:
    if not path.exists():
        return None
    values = _finite_numbers(path, 1)[:, 0]
    if len(values) != count:
        raise ValueError(
            f"{path} has {len(values)} lines for the {count} boxes of {boxes_path}: delete it, or track again"
        )
    return values


def _finite_numbers(path: Path, columns: int) -> Array:
    rows = read_numbers(path, columns)
    bad = ~np.isfinite(rows).all(1)
    if bad.any():
        raise ValueError(f"{path}: line {int(bad.argmax()) + 1} is not finite: track the sequence again")
    return rows
