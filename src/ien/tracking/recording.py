"""Recordings: track through a video, and write a video that shows it and a table of the boxes."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from numpy.typing import ArrayLike
from rich.console import Console

from .._text import progress_bar
from .data.clip import Clip
from .data.crops import Image
from .drawing import annotate
from .trajectory import Step, Track, TrackerLike, follow, gather, write_csv
from .video import Footage, footage, write_video

__all__ = ["Recording", "Written", "record", "record_with_table"]


class Recording(NamedTuple):
    """What :func:`record` returns."""

    track: Track
    codec: str
    """Of the video it wrote, such as ``H.264 (libx264)``."""


class Written(NamedTuple):
    """What :func:`record_with_table` returns, besides its two files."""

    track: Track
    text: str
    """The speed and the files, a line each."""
    warnings: tuple[str, ...]
    """Such as that the video ends early."""


def record(
    tracker: TrackerLike,
    source: Footage | Clip | str | os.PathLike[str],
    path: str | os.PathLike[str],
    box: ArrayLike | None = None,
    watch: Callable[[Step], None] | None = None,
) -> Recording:
    """Track through a video, a folder or a clip, and write a video that shows it.

    Frames are read, tracked, drawn and written one by one, at the same frame rate. A label shows
    the score and, if the tracker tries several rotations, a hand in the box shows the angle. The
    rotated box is drawn for a tracker with ``box="hull"``. For the boxes alone use :func:`track`.

    Args:
        tracker: Such as :class:`ien.tracking.Tracker`.
        source: What :func:`footage` opens, or returned.
        path: The video to write, which ends in ``.mp4``.
        box: Where the target is in the first frame; a clip knows it.
        watch: Called with the step of each frame, after it was written.

    Returns:
        The track, and the codec of the video.

    Raises:
        ValueError: There is no box, or the tracker refuses a frame.
        ModuleNotFoundError: Videos need the packages of ``ien[track]``.
    """
    if isinstance(source, Clip) and box is None:
        box = source.boxes[0]
    if isinstance(source, Footage):
        frames = source
    else:
        frames = footage(source)
    shows_angle = _tries_rotations(tracker)
    shows_rotated = getattr(tracker, "box", "upright") == "hull"
    steps: list[Step] = []

    def drawn() -> Iterator[Image]:
        for step in follow(tracker, frames, box):
            label, angle = f"{step.score:.2f}", None
            if shows_angle:
                label, angle = f"{label}  {step.angle:.0f}°", step.angle
            rotated = None
            if shows_rotated:
                rotated = step.corners
            yield annotate(step.image, step.box, angle, label, rotated=rotated)
            steps.append(step._replace(image=None))  # type: ignore[arg-type]  # frames would fill the memory
            if watch:
                watch(step)

    # the encoder asks for the frames, one by one, and so drives the tracker
    codec = write_video(path, drawn(), frames.fps)
    return Recording(gather(steps), codec)


def record_with_table(
    tracker: TrackerLike,
    frames: Footage,
    box: ArrayLike,
    video: Path,
    table: Path,
    console: Console,
    start: int = 0,
) -> Written:
    """Track through frames, write the video and the table, and show the progress on a terminal.

    Args:
        tracker: Such as :class:`ien.tracking.Tracker`.
        frames: What to track in.
        box: Where the target is in the first of them.
        video: The video to write.
        table: The table to write, as :func:`write_csv` does.
        console: Where to show the frame, the speed of the tracker, the score and the angle.
        start: Number of the first frame, for the table.
    """
    table.parent.mkdir(parents=True, exist_ok=True)  # what would fail at the end should fail at once
    shows_angle = _tries_rotations(tracker)
    began = time.perf_counter()
    done, tracker_seconds = 0, 0.0
    with (
        warnings.catch_warnings(record=True) as caught,
        progress_bar(frames.name, frames.count, console=console) as advance,
    ):
        warnings.simplefilter("always")  # they are returned, as they would break the progress line

        def watch(step: Step) -> None:
            nonlocal done, tracker_seconds
            done += 1
            tracker_seconds += step.seconds
            state = f"{done / tracker_seconds:.1f} fps  score {step.score:.2f}"
            if shows_angle:
                state += f"  angle {step.angle:3.0f}°"
            advance(state=state)

        track, codec = record(tracker, frames, video, box, watch)
    seconds = time.perf_counter() - began
    write_csv(table, track, start)

    count = len(track.boxes)
    counted = f"{count} frames"
    if count == 1:
        counted = "1 frame"
    text = (
        f"{frames.name}: {counted} in {seconds:.1f} s, {count / seconds:.1f} fps; "
        f"the tracker alone {count / track.seconds.sum():.1f} fps\n"
        f"video: {video}, {codec}\n"
        f"table: {table}, with the box, score, angle and seconds of each frame"
    )
    messages = dict.fromkeys(str(each.message) for each in caught)  # each once, in order
    return Written(track, text, tuple(messages))


def _tries_rotations(tracker: TrackerLike) -> bool:
    return getattr(tracker, "rotations", 1) > 1
