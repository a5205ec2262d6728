"""Tracks: from a tracker and frames to a box, a score, an angle and a time for each, and these as a file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from .._files import replace_file
from .data.boxes import Array, as_boxes
from .data.clips import Clip
from .data.crops import Image

__all__ = ["Step", "Track", "TrackerLike", "follow", "gather", "still", "track", "write_csv"]


class TrackerLike(Protocol):
    """What can be followed with; images are (H, W, 3) uint8 RGB and boxes x, y, w, h counted from 0."""

    def init(self, image: Image, box: Array) -> object: ...

    def update(self, image: Image) -> tuple[Any, Any, Any]:
        """Box, score and angle."""


class Step(NamedTuple):
    """One frame, and where the target is in it."""

    image: Image
    box: Array
    """(4,): x, y, w, h, counted from 0."""
    score: float
    angle: float
    seconds: float
    """What the tracker took, without the reading of the frame."""


class Track(NamedTuple):
    """Where a tracker saw the target in T frames. The first is as it was given: score 1, angle 0."""

    boxes: Array
    """(T, 4)."""
    scores: Array
    """(T,)."""
    angles: Array
    """(T,) degrees."""
    seconds: Array
    """(T,)."""


def follow(
    tracker: TrackerLike, frames: Clip | Iterable[Image], box: ArrayLike | None = None
) -> Iterator[Step]:
    """Frame by frame, as they are asked for: nothing is kept, so that a video may be of any length.

    ``box`` is where the target is in the first frame; of a clip it is known.
    """
    if isinstance(frames, Clip):
        box = frames.boxes[0] if box is None else box
        frames = map(frames.frame, range(len(frames)))
    if box is None:
        raise ValueError("give box=(x, y, w, h), where the target is in the first frame")
    found = False
    for index, image in enumerate(frames):
        start = time.perf_counter()
        try:
            if not found:
                tracker.init(image, as_boxes(box, "box"))
                here, score, angle = as_boxes(box, "box"), 1.0, 0.0
            else:
                here, score, angle = tracker.update(image)
        except ValueError as error:
            raise ValueError(f"frame {index + 1}: {error}") from error
        found = True
        yield Step(image, here, score, angle, time.perf_counter() - start)
    if not found:
        raise ValueError("there is no frame to track in: give at least one")


def track(
    tracker: TrackerLike,
    frames: Clip | Iterable[Image],
    box: ArrayLike | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> Track:
    """Follow the target through all frames, those of a clip or any others (H, W, 3) uint8.

    ``progress(frames_done, frames_total)`` is called after each; the total is None where it is not known.
    """
    total = len(frames) if isinstance(frames, Clip | Sized) else None
    rows: list[tuple[Array, float, float, float]] = []
    for step in follow(tracker, frames, box):
        rows.append(step[1:])  # frames would fill the memory
        if progress:
            progress(len(rows), total)
    return gather(rows)


def gather(rows: Iterable[tuple[Array, float, float, float]]) -> Track:
    """Arrays of what steps hold besides their images: box, score, angle and seconds."""
    columns = list(zip(*rows, strict=True))
    if not columns:
        raise ValueError("there are no steps to gather: follow at least one frame")
    boxes, scores, angles, seconds = (np.array(column, np.float64) for column in columns)
    return Track(boxes, scores, angles, seconds)


def still(clip: Clip) -> Array:
    """The boxes (T, 4) of a tracker that never moves, which any other has to beat."""
    return np.repeat(clip.boxes[:1], len(clip), 0)


def write_csv(path: str | os.PathLike[str], track: Track, first: int = 0) -> Path:
    """A line for each frame: its number, box, score, angle and seconds; all are counted from 0.

    ``first`` is the number of the first frame. The file is written whole or not at all.
    """
    lines = ["frame,x,y,w,h,score,angle,seconds"]
    columns = (track.scores.tolist(), track.angles.tolist(), track.seconds.tolist())
    for index, (box, *rest) in enumerate(zip(track.boxes.tolist(), *columns, strict=True), first):
        score, angle, seconds = rest
        numbers = ",".join(f"{value:.3f}" for value in box)
        lines.append(f"{index},{numbers},{score:.6f},{angle:.3f},{seconds:.6f}")
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    replace_file(place, lambda temporary: temporary.write_text("\n".join(lines) + "\n"))
    return place
