"""Sets of clips to train and test trackers: from a name and a folder to sequences, none of them decoded."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..._text import nearest
from ...data.dataset import data_folder
from .clips import Clip, got10k, otb
from .frames import Files
from .rot_otb import rotated
from .synthetic import synthetic

__all__ = ["SETS", "Clips", "digest", "held_out", "load_clips", "turned"]

SETS = ("got10k", "synthetic-clips")
PUBLISHED = (9_335, 100)
"""Sequences of GOT-10k to train on, and targets in OTB."""
SYNTHETIC = (24, 6)
"""Generated clips to train on and to test on."""
FRAMES = 60
"""Of a generated clip: at 6° a frame once around."""
HARD: dict[str, Any] = {"distractors": 2, "alike": True}
"""Of a generated clip: colours alone must not tell its target, or there is little to learn."""


@dataclass(frozen=True, eq=False, repr=False)
class Clips:
    """Sequences to train on, and those to test on, by the name of the test."""

    name: str
    source: str
    """``original``, ``subset`` where there are other numbers than the published, or ``generated``."""
    train: list[Clip]
    tests: dict[str, list[Clip]]
    """The plain ones first, and then the same ones rotated."""

    def __repr__(self) -> str:
        tests = ", ".join(f"{name} {len(clips)}" for name, clips in self.tests.items())
        return f"Clips({self.name}, {self.source}: {len(self.train):,} sequences to train on; tests {tests})"


def load_clips(
    name: str,
    folder: str | os.PathLike[str] | None = None,
    seed: int = 0,
    test_on: Literal["test", "validation"] = "test",
) -> Clips:
    """A set of clips by name from ``folder``: by default ``$IEN_DATA``, else ``data`` in the current folder.

    ``got10k`` is read from ``got10k/train`` (or ``got10k``, ``train`` or the folder itself) in the layout of
    GOT-10k, and tested on ``otb`` in that of OTB, plain and rotated. ``synthetic-clips`` needs no folder: all
    is drawn from ``seed``. Its targets do not turn, but in the rotated test they do.

    ``test_on="validation"`` tests on the last tenth of the sequences to train on, and needs no others.

    >>> load_clips("synthetic-clips")
    Clips(synthetic-clips, generated: 24 sequences to train on; tests clips 6, rot-clips 6)
    """
    if name not in SETS:
        raise ValueError(f"there is no set of clips {name!r}; {nearest(name, SETS)}")
    if name == "synthetic-clips":
        train, test = (
            [synthetic(1000 * seed + first + k, FRAMES, turning=False, **HARD) for k in range(count)]
            for first, count in zip((0, 500), SYNTHETIC, strict=True)
        )
        if test_on == "validation":
            return Clips(name, "generated", *_split(train))
        return Clips(name, "generated", train, turned("clips", test))
    place = data_folder(folder)
    if str(place) == "embedded":
        raise ValueError(
            "got10k is not embedded: give a folder with got10k/train and otb (synthetic-clips needs none)"
        )
    train = got10k(_find(place, ("got10k/train", "got10k", "train", "."), "list.txt"))
    if test_on == "validation":
        return Clips(name, "original" if len(train) == PUBLISHED[0] else "subset", *_split(train))
    test = otb(_find(place, ("otb", "OTB", "OTB100"), ""))
    source = "original" if (len(train), len(test)) == PUBLISHED else "subset"
    return Clips(name, source, train, turned("otb", test))


def held_out(sequences: int) -> int:
    """How many of the sequences to train on are left for validation: a tenth.

    >>> held_out(35), held_out(2)
    (4, 1)
    """
    return max(1, round(sequences / 10))


def turned(name: str, clips: list[Clip]) -> dict[str, list[Clip]]:
    """A test and the same with rotated frames, as Rot-OTB is to OTB."""
    return {name: clips, f"rot-{name}": [rotated(clip) for clip in clips]}


def digest(clips: Iterable[Clip]) -> str:
    """Of names, boxes, and the names and sizes of the files that hold the frames; nothing is decoded."""
    total = hashlib.sha256()
    for clip in clips:
        total.update(f"{clip.name} {len(clip)}\n".encode())
        total.update(clip.boxes.tobytes() + clip.visible.tobytes())
        if isinstance(clip.frames, Files):
            for path in map(clip.frames.__getitem__, range(len(clip))):
                total.update(f"{path.name} {os.path.getsize(path)}\n".encode())
    return total.hexdigest()[:16]


def _split(train: list[Clip]) -> tuple[list[Clip], dict[str, list[Clip]]]:
    kept = len(train) - held_out(len(train))
    if kept < 1:
        raise ValueError(f"test_on=validation leaves none of {len(train)} sequences to train on")
    for clip in train[kept:]:
        if np.isnan(clip.boxes[0]).any():
            raise ValueError(
                f"{clip.name} is among the last tenth of the sequences, and has no box in its first frame, "
                f"where a tracker starts: move it up in list.txt"
            )
    return train[:kept], turned("validation", train[kept:])


def _find(place: Path, names: tuple[str, ...], inside: str) -> Path:
    for name in names:
        if (place / name / inside).exists():
            return place / name
    raise FileNotFoundError(
        f"there is no {place / names[0]}: the data set got10k needs GOT-10k's sequences in "
        f"{place / 'got10k' / 'train'} (list.txt and a folder for each) to train on, and OTB's in "
        f"{place / 'otb'} to test on; give their folder with --data"
    )
