"""Result files: from boxes, times and angles to text files as the GOT-10k toolkit has them, and back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .._files import replace_file
from .._text import nearest
from .data.boxes import Array, as_boxes
from .data.clips import Clip
from .data.frames import read_numbers
from .scoring import Score, score
from .trajectory import Track

__all__ = ["Result", "read_result", "scored", "write_result"]

BESIDE = {"seconds": ("times", "time", ".8f"), "angles": ("angles", "angle", ".3f")}
"""What may be kept beside boxes → its folder, the end of the file's name, and how a number is written."""


class Result(NamedTuple):
    """What a tracker gave for one sequence."""

    boxes: Array
    """(T, 4), counted from 0."""
    seconds: Array | None = None
    """(T,), or None where no times were kept."""
    angles: Array | None = None
    """(T,) degrees, likewise."""


def scored(found: Result | Track, clip: Clip, turns: bool) -> Score:
    """How well it follows the clip's boxes, and its angles if the tracker ``turns`` its template."""
    return score(found.boxes, clip.boxes, found.angles if turns else None, clip.angles, found.seconds)


def write_result(
    folder: str | os.PathLike[str],
    name: str,
    boxes: ArrayLike,
    seconds: ArrayLike | None = None,
    angles: ArrayLike | None = None,
) -> Path:
    """Write ``<name>.txt`` and, if given, ``times/<name>_time.txt`` and ``angles/<name>_angle.txt``.

    A line is x,y,w,h with x and y counted from 1 and three decimals, as the toolkit reads it; it has no files
    of angles. A file is written whole or not at all, and the boxes last: where they are, all is.
    """
    path = _path(folder, name)
    rows = as_boxes(boxes, "boxes")
    if rows.ndim != 2 or not len(rows) or np.isnan(rows).any():
        raise ValueError(f"the boxes of {name} must be (T, 4) without NaN, to be written; got {rows.shape}")
    text = "".join(f"{x + 1:.3f},{y + 1:.3f},{w:.3f},{h:.3f}\n" for x, y, w, h in rows.tolist())
    columns = {
        what: None if values is None else _column(name, what, values, len(rows))
        for what, values in (("seconds", seconds), ("angles", angles))
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    for what, column in columns.items():
        if column is None:
            _beside(folder, name, what).unlink(missing_ok=True)  # that of earlier boxes
        else:
            _beside(folder, name, what).parent.mkdir(exist_ok=True)
            _write(_beside(folder, name, what), column)
    _write(path, text)
    return path


def read_result(folder: str | os.PathLike[str], name: str) -> Result:
    """What :func:`write_result`, the toolkit or, with tabs or spaces between numbers, others wrote."""
    path = _path(folder, name)
    if not path.exists():
        known = sorted(other.stem for other in Path(folder).glob("*.txt"))
        hint = nearest(name, known) if known else "there are none in that folder"
        raise FileNotFoundError(f"there is no result file {path}; {hint}")
    boxes = as_boxes(_numbers(path, 4), str(path)) - (1, 1, 0, 0)
    columns = {
        what: _numbers(beside, 1)[:, 0] for what in BESIDE if (beside := _beside(folder, name, what)).exists()
    }
    for what, values in columns.items():
        if len(values) != len(boxes):
            raise ValueError(
                f"{_beside(folder, name, what)} has {len(values)} {BESIDE[what][0]} for the {len(boxes)} "
                f"boxes of {path}: delete it or track again"
            )
    return Result(boxes, **columns)


def _path(folder: str | os.PathLike[str], name: str) -> Path:
    if not name or name != Path(name).name or name[0] == ".":
        raise ValueError(f"{name!r} cannot name a result file: take the sequence's name, such as Jogging-1")
    return Path(folder) / f"{name}.txt"


def _beside(folder: str | os.PathLike[str], name: str, what: str) -> Path:
    place, end, _ = BESIDE[what]
    return Path(folder) / place / f"{name}_{end}.txt"


def _column(name: str, what: str, values: ArrayLike, count: int) -> str:
    """A line for each number, checked."""
    each = np.asarray(values, dtype=np.float64)
    positive = what == "seconds"
    if each.shape != (count,) or not np.isfinite(each).all() or (positive and (each < 0).any()):
        also = ", none negative" if positive else ""
        raise ValueError(f"the {what} of {name} must be {count} finite numbers, one for each box{also}")
    form = BESIDE[what][2]
    return "".join(f"{value:{form}}\n" for value in each.tolist())


def _write(path: Path, text: str) -> None:
    replace_file(path, lambda temporary: temporary.write_text(text))


def _numbers(path: Path, columns: int) -> Array:
    rows = read_numbers(path, columns)
    if not np.isfinite(rows).all():
        line = int((~np.isfinite(rows)).any(1).argmax()) + 1
        raise ValueError(f"{path}: line {line} has a number that is not finite: track the sequence again")
    return rows
