"""What ``ien data`` knows of clips: which are there, and how rotating ones are written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .._text import progress_bar
from ..tracking.data.clips import Clip, otb
from ..tracking.data.frames import read_lines
from ..tracking.data.rot_otb import rotated, write

__all__ = ["Line", "clip_lines", "write_rotating"]


class Line(NamedTuple):
    """What ``ien data list`` says of a part of a data set."""

    name: str
    """The data set; empty in its further lines."""
    part: str
    state: str
    ready: bool = False
    """Whether the data set can be used, because of this part."""


def write_rotating(source: Path, out: Path, rate: float, fps: float, names: str | None) -> str:
    """Write sequences of OTB with rotating frames; those that are there already are left alone.

    Args:
        source: The folder of OTB's sequences, or a single sequence.
        out: The folder to write to.
        rate: Full turns per second.
        fps: Frames per second.
        names: The sequences to write, with commas between them; None for all.

    Returns:
        One line that says what was written.

    Raises:
        FileExistsError: A sequence is there and was made with other options. Nothing is written.
    """
    clips = []
    missing = []
    for clip in _sequences(source, names):
        rotating = rotated(clip, rate, fps)
        clips.append(rotating)
        if not _is_written(rotating, out):
            missing.append(rotating)

    # all are checked by now, so an error comes before the first file
    frames = sum(map(len, missing))
    with progress_bar("writing", frames) as advance:
        for clip in missing:
            write(clip, out, progress=lambda done, total: advance(1))

    text = f"{out}: {_count(len(missing))} written, {frames:,} frames"
    kept = len(clips) - len(missing)
    if kept:
        text += f"; {_count(kept)} there already"
    return text


def clip_lines(folder: Path) -> Iterator[Line]:
    """Say which sequences are in the data folder: a name, how many there are, and where."""
    place = folder / "otb"
    clips = []
    try:
        clips = otb(place)
    except (ValueError, OSError) as error:
        layout = ""
        if not place.is_dir():
            layout = " (<Name>/img/0001.jpg …, <Name>/groundtruth_rect.txt)"
        yield Line("otb", "sequences", f"missing or incomplete: {error}{layout}")
        yield Line("rot-otb", "generated", "needs otb")
    else:
        frames = sum(map(len, clips))
        yield Line("otb", f"{len(clips)} sequences", f"{frames:,} frames in {place}", True)
        yield Line("rot-otb", "generated", "made from otb", True)

    listed = folder / "got10k" / "train" / "list.txt"
    if listed.is_file():  # it has thousands of sequences: they are counted, not read
        try:
            count = len(read_lines(listed))
            yield Line("got10k", f"{count:,} sequences", f"named in {listed}", True)
        except ValueError as error:
            yield Line("got10k", "sequences", str(error))
    else:
        yield Line(
            "got10k", "sequences", f"missing: no {listed} (and <name>/00000001.jpg …, groundtruth.txt)"
        )
    yield Line("synthetic-clips", "generated", "needs no files", True)


def _sequences(source: Path, names: str | None) -> list[Clip]:
    if names is not None:
        return otb(source, [name.strip() for name in names.split(",")])
    place = source.expanduser().absolute()  # "." has no name
    if (place / "img").is_dir():  # a single sequence
        return otb(place.parent, [place.name])
    return otb(source)


def _is_written(clip: Clip, out: Path) -> bool:
    """Whether this very sequence is in ``out``; another one of its name is an error."""
    place = out.expanduser() / clip.name
    if not place.exists():
        return False
    try:
        (found,) = otb(place.parent, [clip.name])
    except (ValueError, OSError):
        is_same = False
    else:
        is_same = _is_same(found, clip)
    if not is_same:
        raise FileExistsError(
            f"{place} is there already and was made with other options: delete it, or write to another folder"
        )
    return True


def _is_same(found: Clip, clip: Clip) -> bool:
    # angles and boxes tell rate and speed apart; comparing all frames would take minutes
    if found.angles is None or clip.angles is None:
        return False
    if not np.array_equal(found.angles, clip.angles):
        return False
    return np.allclose(found.boxes, clip.boxes, atol=1e-3, equal_nan=True)  # files round boxes


def _count(sequences: int) -> str:
    if sequences == 1:
        return "1 sequence"
    return f"{sequences} sequences"
