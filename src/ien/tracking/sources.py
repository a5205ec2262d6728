"""Sources: from the path of a video, a folder of images or a sequence of OTB to frames, and true boxes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from .data.clips import Clip, Frames, otb
from .video import Footage, footage

__all__ = ["Source", "open_source"]


class Source(NamedTuple):
    """What is to be tracked in."""

    frames: Footage
    clip: Clip | None
    """The same frames with their boxes, where they are a sequence of OTB."""


def open_source(path: str | os.PathLike[str], fps: float | None = None, start: int = 0) -> Source:
    """The frames at ``path`` from ``start`` on, counted from 0; see :func:`ien.tracking.footage`.

    A folder with ``img`` and ``groundtruth_rect.txt`` is a sequence of OTB, whose true boxes are read too. Of
    one with two targets the path names one: ``Jogging-1``.
    """
    place = Path(path).expanduser()
    clip = _sequence(place)
    frames = footage(place if clip is None else clip, fps, start)
    return Source(frames, None if clip is None else _since(clip, start))


def _sequence(path: Path) -> Clip | None:
    place = Path(os.path.abspath(path))
    name, dash, number = place.name.rpartition("-")
    folder = place.parent / name if dash and number.isdecimal() and not place.exists() else place
    if not (folder / "img").is_dir() or not any(folder.glob("groundtruth_rect*.txt")):
        return None
    clips = otb(folder.parent, [place.name])
    if len(clips) > 1:
        names = " or ".join(str(path.with_name(clip.name)) for clip in clips)
        raise ValueError(f"{path} is a sequence with {len(clips)} targets: name one of them, {names}")
    return clips[0]


def _since(clip: Clip, start: int) -> Clip:
    if not start:
        return clip
    angles = None if clip.angles is None else clip.angles[start:] - clip.angles[start]
    return Clip(clip.name, _Later(clip.frames, start), clip.boxes[start:], clip.visible[start:], angles)


@dataclass(frozen=True, eq=False)
class _Later:
    """Frames without the first ones."""

    frames: Frames
    start: int

    def __len__(self) -> int:
        return len(self.frames) - self.start

    def __getitem__(self, index: int) -> Any:
        return self.frames[index + self.start]
