"""Sets of clips, by name: sequences to train trackers on and to test them on; no frame is read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ... import _files
from ..._text import nearest
from ...data.dataset import data_folder
from .clip import Clip
from .clips import got10k, otb
from .frames import Files
from .rot_otb import rotated
from .synthetic import synthetic

__all__ = [
    "GENERATED_COUNTS",
    "HARD_CLIP",
    "MAX_PRETRAINING_CLIPS",
    "PUBLISHED_COUNTS",
    "SETS",
    "Clips",
    "digest",
    "held_out",
    "load_clips",
    "pretraining_clips",
    "with_rotated",
]

SETS = ("got10k", "synthetic-clips")
PUBLISHED_COUNTS = (9_335, 100)
"""Sequences of GOT-10k to train on, and targets of OTB to test on."""
GENERATED_COUNTS = (24, 6)
"""Generated clips to train on and to test on."""
# Seeds of generated clips, counted from 1000 times the seed of the data: those to train on, to
# pre-train on and to test on never meet, whatever the seed of the run.
FIRST_TO_PRETRAIN_ON = 100
FIRST_TO_TEST_ON = 500
MAX_PRETRAINING_CLIPS = FIRST_TO_TEST_ON - FIRST_TO_PRETRAIN_ON
FRAMES = 60
"""Length of a generated clip: once around at 6° a frame."""
HARD_CLIP: dict[str, Any] = {"distractors": 2, "alike": True}
"""Options of a generated clip in which colours alone do not give the target away."""


@dataclass(frozen=True, eq=False, repr=False)
class Clips:
    """Sequences to train on, and sequences to test on, by the name of the test."""

    name: str
    source: str
    """``original``; ``subset`` if there are other numbers than the published; or ``generated``."""
    train: list[Clip]
    tests: dict[str, list[Clip]]
    """The plain sequences first, then the same ones rotated."""

    def __repr__(self) -> str:
        tests = ", ".join(f"{name} {len(clips)}" for name, clips in self.tests.items())
        return f"Clips({self.name}, {self.source}: {len(self.train):,} sequences to train on; tests {tests})"


def load_clips(
    name: str,
    folder: str | os.PathLike[str] | None = None,
    seed: int = 0,
    test_on: Literal["test", "validation"] = "test",
) -> Clips:
    """Load a set of clips by name.

    ``got10k`` is read from ``got10k/train`` (or ``got10k``, ``train`` or the folder itself) in the
    layout of GOT-10k, and tested on ``otb`` in that of OTB, plain and rotated. ``synthetic-clips``
    needs no folder. Its targets do not rotate, except in the rotated test. To read your own
    sequences alone, use :func:`ien.tracking.data.clips.otb`.

    Args:
        name: ``got10k`` or ``synthetic-clips``.
        folder: By default ``$IEN_DATA``, or else ``data`` in the current folder.
        seed: Of generated clips.
        test_on: ``validation`` tests on the last tenth of the training sequences, and needs no
            others.

    >>> load_clips("synthetic-clips")
    Clips(synthetic-clips, generated: 24 sequences to train on; tests clips 6, rot-clips 6)
    """
    if name not in SETS:
        raise ValueError(f"there is no set of clips {name!r}; {nearest(name, SETS)}")
    if name == "synthetic-clips":
        train_count, test_count = GENERATED_COUNTS
        train = _generated(1000 * seed, train_count)
        if test_on == "validation":
            return Clips(name, "generated", *_validation_split(train))
        test = _generated(1000 * seed + FIRST_TO_TEST_ON, test_count)
        return Clips(name, "generated", train, with_rotated("clips", test))

    place = data_folder(folder)
    if str(place) == "embedded":
        raise ValueError(
            "got10k is not embedded: give a folder with got10k/train and otb (synthetic-clips needs none)"
        )
    train = got10k(_find(place, ("got10k/train", "got10k", "train", "."), "list.txt"))
    if test_on == "validation":
        is_whole = len(train) == PUBLISHED_COUNTS[0]
        return Clips(name, _source(is_whole), *_validation_split(train))
    test = otb(_find(place, ("otb", "OTB", "OTB100"), ""))
    is_whole = (len(train), len(test)) == PUBLISHED_COUNTS
    return Clips(name, _source(is_whole), train, with_rotated("otb", test))


def pretraining_clips(seed: int, count: int) -> list[Clip]:
    """Return generated clips to begin training with, before clips of another set take over.

    They are none of the clips that ``synthetic-clips`` of any seed trains or tests on.

    Args:
        seed: Of the data.
        count: How many, up to ``MAX_PRETRAINING_CLIPS``.

    Raises:
        ValueError: There are not as many.

    >>> [clip.name for clip in pretraining_clips(seed=2, count=2)]
    ['synthetic-2100', 'synthetic-2101']
    """
    if not 1 <= count <= MAX_PRETRAINING_CLIPS:
        raise ValueError(f"there are 1 to {MAX_PRETRAINING_CLIPS} clips to pre-train on; got {count}")
    return _generated(1000 * seed + FIRST_TO_PRETRAIN_ON, count)


def held_out(sequences: int) -> int:
    """Return how many training sequences are kept for validation: a tenth.

    >>> held_out(35), held_out(2)
    (4, 1)
    """
    return max(1, round(sequences / 10))


def with_rotated(name: str, clips: list[Clip]) -> dict[str, list[Clip]]:
    """Return a test and the same test with rotated frames, as Rot-OTB is to OTB."""
    return {name: clips, f"rot-{name}": [rotated(clip) for clip in clips]}


def digest(clips: Iterable[Clip]) -> str:
    """Return a digest of names, boxes, and the names and sizes of frame files."""
    parts = []
    for clip in clips:
        parts.append(f"{clip.name} {len(clip)}\n".encode())
        parts.append(clip.boxes.tobytes() + clip.visible.tobytes())
        if isinstance(clip.frames, Files):
            lines = []
            # reading the files would take minutes; a changed one hardly keeps its size
            for index in range(len(clip)):
                path = clip.frames[index]
                lines.append(f"{path.name} {os.path.getsize(path)}\n")
            parts.append("".join(lines).encode())
    return _files.digest(*parts)[:16]


def _source(is_whole: bool) -> str:
    if is_whole:
        return "original"
    return "subset"


def _generated(first_seed: int, count: int) -> list[Clip]:
    clips = []
    for seed in range(first_seed, first_seed + count):
        clips.append(synthetic(seed, FRAMES, turning=False, **HARD_CLIP))
    return clips


def _validation_split(train: list[Clip]) -> tuple[list[Clip], dict[str, list[Clip]]]:
    """Return what is left to train on, and the last tenth as a test."""
    kept = len(train) - held_out(len(train))
    if kept < 1:
        raise ValueError(f"test_on=validation leaves none of {len(train)} sequences to train on")
    for clip in train[kept:]:  # a tracker cannot start without a box
        if np.isnan(clip.boxes[0]).any():
            raise ValueError(
                f"{clip.name} is among the last tenth of the sequences but has no box in its first frame, "
                f"where a tracker starts: move it up in list.txt"
            )
    return train[:kept], with_rotated("validation", train[kept:])


def _find(place: Path, names: tuple[str, ...], inside: str) -> Path:
    for name in names:
        if (place / name / inside).exists():
            return place / name
    raise FileNotFoundError(
        f"there is no {place / names[0]}: the data set got10k needs GOT-10k's sequences in "
        f"{place / 'got10k' / 'train'} (list.txt and a folder for each) to train on, and OTB's in "
        f"{place / 'otb'} to test on; give their folder with --data"
    )
