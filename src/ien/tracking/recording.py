"""Live: from a tracker and a source to a video and a table, with a line that shows how it goes."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from numpy.typing import ArrayLike
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .trajectory import Step, Track, TrackerLike, write_csv
from .video import Footage, record

__all__ = ["Made", "make"]


class Made(NamedTuple):
    """What :func:`make` made, besides its two files."""

    track: Track
    text: str
    """What there is to tell: the speed and the files, a line each."""
    warnings: tuple[str, ...]
    """Such as that the video ends early."""


def make(
    tracker: TrackerLike,
    frames: Footage,
    box: ArrayLike,
    video: Path,
    table: Path,
    console: Console,
    start: int = 0,
) -> Made:
    """Track through frames, of which the first has the number ``start``, and write the video and the table.

    On a terminal a line shows the frame, the speed of the tracker, its score and, if it has several
    templates, the angle.
    """
    table.parent.mkdir(parents=True, exist_ok=True)  # what would stop it at the end is told at once
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with _line(console, frames, getattr(tracker, "rotations", 1) > 1) as watch:
            track, codec = record(tracker, frames, video, box, watch=watch)
    seconds, count = time.perf_counter() - began, len(track.boxes)
    write_csv(table, track, start)
    lines = [
        f"{frames.name}: {count} {'frame' if count == 1 else 'frames'} in {seconds:.1f} s, "
        f"{count / seconds:.1f} fps; the tracker alone {count / track.seconds.sum():.1f} fps",
        f"video: {video}, {codec}",
        f"table: {table}, with the box, score, angle and seconds of each frame",
    ]
    return Made(track, "\n".join(lines), tuple(dict.fromkeys(str(each.message) for each in caught)))


@contextmanager
def _line(console: Console, frames: Footage, turns: bool) -> Iterator[Callable[[Step], None]]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(frames.name, total=frames.count, state="")
        done, seconds = 0, 0.0

        def watch(step: Step) -> None:
            nonlocal done, seconds
            done, seconds = done + 1, seconds + step.seconds
            angle = f"  angle {step.angle:3.0f}°" if turns else ""
            state = f"{done / seconds:.1f} fps  score {step.score:.2f}{angle}"
            progress.update(task, completed=done, state=state)

        yield watch
