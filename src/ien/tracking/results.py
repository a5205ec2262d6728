"""Result files: from boxes and times to text files as the GOT-10k toolkit has them for OTB, and back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .._files import replace_file
from .._names import nearest
from ..data.boxes import Array, as_boxes

__all__ = ["Result", "read_result", "read_results", "write_result"]


class Result(NamedTuple):
    """What a tracker gave for one sequence."""

    boxes: Array
    """(T, 4), counted from 0."""
    seconds: Array | None
    """(T,), or None where no times were kept."""


def write_result(
    folder: str | os.PathLike[str], name: str, boxes: ArrayLike, seconds: ArrayLike | None = None
) -> Path:
    """Write ``<name>.txt`` and, with ``seconds``, ``times/<name>_time.txt`` into a tracker's ``folder``.

    A line is x,y,w,h with x and y counted from 1 and three decimals, as the toolkit reads it. A file is
    written whole or not at all, and the boxes last: where they are, their times are too.
    """
    path, times = _paths(folder, name)
    rows = as_boxes(boxes, "boxes")
    if rows.ndim != 2 or not len(rows) or np.isnan(rows).any():
        raise ValueError(f"the boxes of {name} must be (T, 4) without NaN, to be written; got {rows.shape}")
    text = "".join(f"{x + 1:.3f},{y + 1:.3f},{w:.3f},{h:.3f}\n" for x, y, w, h in rows.tolist())
    path.parent.mkdir(parents=True, exist_ok=True)
    if seconds is None:
        times.unlink(missing_ok=True)  # those of earlier boxes
    else:
        each = np.asarray(seconds, dtype=np.float64)
        if each.shape != rows.shape[:1] or not np.isfinite(each).all() or (each < 0).any():
            raise ValueError(
                f"the seconds of {name} must be {len(rows)} finite numbers, one for each box, none negative"
            )
        times.parent.mkdir(exist_ok=True)
        lines = "".join(f"{s:.8f}\n" for s in each.tolist())
        replace_file(times, lambda temporary: temporary.write_text(lines))
    replace_file(path, lambda temporary: temporary.write_text(text))
    return path


def read_result(folder: str | os.PathLike[str], name: str) -> Result:
    """What :func:`write_result`, the toolkit or, with tabs or spaces between numbers, others wrote."""
    path, times = _paths(folder, name)
    if not path.exists():
        known = sorted(other.stem for other in Path(folder).glob("*.txt"))
        hint = nearest(name, known) if known else "there are none in that folder"
        raise FileNotFoundError(f"there is no result file {path}; {hint}")
    boxes = as_boxes(_numbers(path, 4), str(path)) - (1, 1, 0, 0)
    if not times.exists():
        return Result(boxes, None)
    seconds = _numbers(times, 1)[:, 0]
    if len(seconds) != len(boxes):
        raise ValueError(
            f"{times} has {len(seconds)} times for the {len(boxes)} boxes of {path}: delete it or track again"
        )
    return Result(boxes, seconds)


def read_results(folder: str | os.PathLike[str]) -> dict[str, Result]:
    """Name → result of every sequence in a tracker's folder."""
    names = sorted(path.stem for path in Path(folder).glob("*.txt") if path.name[0] != ".")
    if not names:
        raise FileNotFoundError(f"{folder} holds no result files: they are named <sequence>.txt")
    return {name: read_result(folder, name) for name in names}


def _paths(folder: str | os.PathLike[str], name: str) -> tuple[Path, Path]:
    if not name or name != Path(name).name or name[0] == ".":
        raise ValueError(f"{name!r} cannot name a result file: take the sequence's name, such as Jogging-1")
    return Path(folder) / f"{name}.txt", Path(folder) / "times" / f"{name}_time.txt"


def _numbers(path: Path, columns: int) -> Array:
    """The numbers of a text file, one row a line; empty lines at its end do not count."""
    rows = []
    for i, line in enumerate(path.read_text().rstrip().splitlines(), start=1):
        try:
            row = [float(word) for word in line.replace(",", " ").split()]
        except ValueError:
            row = []
        if len(row) != columns or not np.isfinite(row).all():
            needed = "x,y,w,h" if columns == 4 else "a number"
            raise ValueError(f"line {i} of {path} is {line[:60]!r}: {needed} is needed")
        rows.append(row)
    if not rows:
        raise ValueError(f"{path} is empty: track the sequence again")
    return np.asarray(rows)
