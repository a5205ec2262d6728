"""A track, the trajectory of a target: a box, a score, an angle and a time for each frame."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from .._files import replace_file
from .data.boxes import Array, as_boxes, rotated_corners
from .data.clip import Clip
from .data.crops import Image

__all__ = ["Step", "Track", "TrackerLike", "follow", "gather", "still", "track", "write_csv"]


class TrackerLike(Protocol):
    """Anything that tracks; images are (H, W, 3) uint8 RGB and boxes x, y, w, h counted from 0."""

    def init(self, image: Image, box: Array) -> object: ...

    def update(self, image: Image) -> tuple[Any, Any, Any]:
        """Return the box, the score and the angle; it may have ``corners`` (4, 2) as well."""


class Step(NamedTuple):
    """One frame, and where the target is in it."""

    image: Image
    box: Array
    """(4,): x, y, w, h; x and y are counted from 0."""
    score: float
    angle: float
    seconds: float
    """How long the tracker took, without reading the frame."""
    corners: Array | None = None
    """(4, 2): those of the rotated box; None if the tracker does not say."""


class Track(NamedTuple):
    """Where a tracker saw the target in T frames; the first is as given: score 1, angle 0."""

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
    """Follow the target frame by frame, as steps are asked for.

    Nothing is kept, so a video may be endless. For all frames at once use :func:`track`.

    Args:
        tracker: Such as :class:`ien.tracking.Tracker`.
        frames: A clip, or images (H, W, 3) uint8.
        box: Where the target is in the first frame; a clip knows it.

    Yields:
        The frame, and the box, score, angle, seconds and corners of the target in it.

    Raises:
        ValueError: There is no frame or no box, or the tracker refuses a frame, whose number is
            given.

    >>> from ien.tracking.data.synthetic import synthetic
    >>> tracker = ien.tracking.Tracker(ien.tracking.siamfc(width=1 / 16))
    >>> [step.image.shape for step in follow(tracker, synthetic(0, frames=2))]
    [(240, 320, 3), (240, 320, 3)]
    """
    if isinstance(frames, Clip):
        if box is None:
            box = frames.boxes[0]
        frames = map(frames.frame, range(len(frames)))  # read one by one
    if box is None:
        raise ValueError("give box=(x, y, w, h), where the target is in the first frame")
    index = -1  # stays so if there is no frame
    for index, image in enumerate(frames):
        start = time.perf_counter()  # the frame is read already
        try:
            if index == 0:
                first_box = as_boxes(box, "box")
                tracker.init(image, first_box)
                found: tuple[Any, Any, Any] = (first_box, 1.0, 0.0)
                corners: Array | None = rotated_corners(first_box, 0)
            else:
                found = tracker.update(image)
                corners = getattr(found, "corners", None)
        except ValueError as error:
            raise ValueError(f"frame {index + 1}: {error}") from error
        yield Step(image, *found, time.perf_counter() - start, corners)
    if index < 0:
        raise ValueError("there is no frame to track in: give at least one")


def track(
    tracker: TrackerLike,
    frames: Clip | Iterable[Image],
    box: ArrayLike | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> Track:
    """Follow the target through all frames.

    For a live video, or one of which nothing should be kept, use :func:`follow`.

    Args:
        tracker: Such as :class:`ien.tracking.Tracker`.
        frames: A clip, or images (H, W, 3) uint8.
        box: Where the target is in the first frame; a clip knows it.
        progress: Called as ``progress(frames_done, frames_total)`` after each frame; the total is
            None if it is not known.

    Returns:
        Boxes, scores, angles and seconds of all frames.

    >>> from ien.tracking.data.synthetic import synthetic
    >>> tracker = ien.tracking.Tracker(ien.tracking.siamfc(width=1 / 16))
    >>> track(tracker, synthetic(0, frames=3)).boxes.shape
    (3, 4)
    """
    total = None
    if isinstance(frames, Clip | Sized):
        total = len(frames)
    steps = []
    for step in follow(tracker, frames, box):
        steps.append(step._replace(image=None))  # type: ignore[arg-type]  # frames would fill the memory
        if progress:
            progress(len(steps), total)
    return gather(steps)


def gather(steps: Sequence[Step]) -> Track:
    """Join steps to arrays; their images are not used."""
    if not steps:
        raise ValueError("there are no steps to gather: follow at least one frame")
    _, boxes, scores, angles, seconds, _ = zip(*steps, strict=True)
    return Track(
        boxes=np.array(boxes, np.float64),
        scores=np.array(scores, np.float64),
        angles=np.array(angles, np.float64),
        seconds=np.array(seconds, np.float64),
    )


def still(clip: Clip) -> Array:
    """Return the boxes (T, 4) of a tracker that never moves, which any other should beat."""
    return np.repeat(clip.boxes[:1], len(clip), 0)


def write_csv(path: str | os.PathLike[str], track: Track, first: int = 0) -> Path:
    """Write a line for each frame: its number, counted from 0, box, score, angle and seconds.

    For files that other tools read, use :func:`ien.tracking.results.write_result`.

    Args:
        path: The file; it is written completely or not at all.
        track: What :func:`track` returns.
        first: Number of the first frame.

    Returns:
        The path of the file.

    >>> import tempfile
    >>> found = Track(np.ones((1, 4)), np.ones(1), np.zeros(1), np.ones(1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_csv(f"{folder}/a.csv", found).read_text().splitlines()[1]
    '0,1.000,1.000,1.000,1.000,1.000000,0.000,1.000000'
    """
    lines = ["frame,x,y,w,h,score,angle,seconds\n"]
    for index in range(len(track.boxes)):
        x, y, width, height = track.boxes[index]
        score, angle = track.scores[index], track.angles[index]
        seconds = track.seconds[index]
        line = f"{first + index},{x:.3f},{y:.3f},{width:.3f},{height:.3f}"
        lines.append(f"{line},{score:.6f},{angle:.3f},{seconds:.6f}\n")
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    replace_file(place, lambda temporary: temporary.write_text("".join(lines)))
    return place
