"""What a path to track in means: a video, a folder of images or a sequence of OTB."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from .data.clip import Clip, Frames
from .data.clips import otb
from .video import Footage, footage

__all__ = ["Source", "open_source"]


class Source(NamedTuple):
    """What to track in."""

    frames: Footage
    clip: Clip | None
    """The same frames with their true boxes, if they are a sequence of OTB."""


def open_source(path: str | os.PathLike[str], fps: float | None = None, start: int = 0) -> Source:
    """Open what is at ``path``; see :func:`ien.tracking.footage`.

    Args:
        path: A video, a folder of images, or a sequence of OTB: a folder with ``img`` and
            ``groundtruth_rect.txt``. If it has two targets, the path must name one, as
            ``Jogging-1``.
        fps: Frame rate of images.
        start: Number of frames to skip.
    """
    place = Path(path).expanduser()
    clip = _sequence(place)  # tried first: such a folder would also do as a folder of images
    if clip is None:
        return Source(footage(place, fps, start), None)
    return Source(footage(clip, fps, start), _without_first(clip, start))


def _sequence(path: Path) -> Clip | None:
    """Return the clip at a path, or None if it is not a sequence of OTB."""
    folder = place = Path(os.path.abspath(path))  # "." has no name of its own
    name, _, number = place.name.rpartition("-")
    if name and number.isdecimal() and not place.exists():
        folder = place.parent / name  # Jogging-1 is the first target in the folder Jogging
    if not (folder / "img").is_dir() or not any(folder.glob("groundtruth_rect*.txt")):
        return None
    clips = otb(folder.parent, [place.name])
    if len(clips) > 1:
        names = " or ".join(str(path.with_name(clip.name)) for clip in clips)
        raise ValueError(f"{path} is a sequence with {len(clips)} targets: name one of them, {names}")
    return clips[0]


def _without_first(clip: Clip, start: int) -> Clip:
    """Return the clip from frame ``start`` on, with angles relative to that frame."""
    if not start:
        return clip
    angles = None
    if clip.angles is not None:
        angles = clip.angles[start:] - clip.angles[start]
    frames = _LaterFrames(clip.frames, start)
    return Clip(clip.name, frames, clip.boxes[start:], clip.visible[start:], angles)


@dataclass(frozen=True, eq=False)
class _LaterFrames:
    """Frames without the first ones."""

    frames: Frames
    start: int

    def __len__(self) -> int:
        return len(self.frames) - self.start

    def __getitem__(self, index: int) -> Any:
        return self.frames[index + self.start]
