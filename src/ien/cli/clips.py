"""What ``ien data`` knows of clips: which are there, and turned ones written to disk."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from ..data.progress import progress_bar
from ..tracking.data.clips import Clip, otb
from ..tracking.data.rot_otb import rotated, write
from .errors import one_line_errors

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["clip_lines", "rot_otb"]


def rot_otb(
    source: Annotated[
        Path, typer.Argument(metavar="SRC", help="The folder of OTB's sequences, or a single sequence.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder for those that turn.")],
    rate: Annotated[float, typer.Option(min=0, metavar="N", help="Turns a second.")] = 0.5,
    fps: Annotated[float, typer.Option(metavar="N", help="Frames that are a second.")] = 30,
    direction: Annotated[
        str, typer.Option(metavar="WAY", help="How the frames turn: counter-clockwise or clockwise.")
    ] = "counter-clockwise",
    canvas: Annotated[
        str,
        typer.Option(
            metavar="SIZE", help="diagonal, a square from which nothing is cut off, or same, as the frame."
        ),
    ] = "diagonal",
    box: Annotated[
        str,
        typer.Option(
            metavar="RULE",
            help="hull, upright around the turned box, or ellipse, around the one that fills it.",
        ),
    ] = "hull",
    names: Annotated[
        str | None, typer.Option(metavar="A,B", help="Only these sequences.", show_default="all")
    ] = None,
) -> None:
    """Write OTB's sequences with frames that turn: Rot-OTB, in the same layout, with angles.txt beside.

    Sequences that are there, made with the same options, are left as they are. Training and testing need no
    such files: they turn the frames as they read them.

    Example: ien data rot-otb data/otb data/rot-otb

    Example: ien data rot-otb data/otb slow --rate 0.1 --box ellipse --names Crossing,Couple
    """
    with one_line_errors():
        from rich.progress import MofNCompleteColumn

        options: Any = {"direction": direction, "canvas": canvas, "box": box}
        clips = [rotated(clip, rate, fps, **options) for clip in _sequences(source, names)]
        todo = [clip for clip in clips if not _is_made(clip, out)]  # all are checked before one is written
        with progress_bar(MofNCompleteColumn()) as bar:
            for clip in todo:
                task = bar.add_task(clip.name, total=len(clip))
                write(clip, out, progress=partial(_advance, bar, task))
        frames, there = sum(map(len, todo)), len(clips) - len(todo)
        kept = f"; {_counted(there)} there already" if there else ""
        typer.echo(f"{out}: {_counted(len(todo))} written, {frames:,} frames{kept}")


def clip_lines(folder: Path) -> Iterator[tuple[str, str, str]]:
    """For ``ien data list``: the sequences in the data folder, and what is made of them."""
    place, clips = folder / "otb", []
    try:
        clips = otb(place)
        yield "otb", f"{len(clips)} sequences", f"{sum(map(len, clips)):,} frames in {place}"
    except (ValueError, OSError) as error:
        layout = " (<Name>/img/0001.jpg …, <Name>/groundtruth_rect.txt)" if not place.is_dir() else ""
        yield "otb", "sequences", f"missing or incomplete: {error}{layout}"
    yield "rot-otb", "generated", "made from otb" if clips else "needs otb"
    listed = folder / "got10k" / "train" / "list.txt"
    if listed.is_file():  # the whole has thousands of sequences: they are counted, not read
        count = len(listed.read_text(encoding="utf-8-sig").split())
        yield "got10k", f"{count:,} sequences", f"named in {listed}"
    else:
        yield "got10k", "sequences", f"missing: no {listed} (and <name>/00000001.jpg …, groundtruth.txt)"
    yield "synthetic-clips", "generated", "needs no files"


def _counted(sequences: int) -> str:
    return f"{sequences} sequence{'s' * (sequences != 1)}"


def _advance(bar: Progress, task: TaskID, done: int, total: int) -> None:
    bar.update(task, completed=done)


def _sequences(source: Path, names: str | None) -> list[Clip]:
    chosen = None if names is None else [name.strip() for name in names.split(",")]
    place = source.expanduser().absolute()
    if (place / "img").is_dir() and chosen is None:
        return otb(place.parent, [place.name])
    return otb(source, chosen)


def _is_made(clip: Clip, out: Path) -> bool:
    """Whether the sequence is in ``out``; an error where it is another one of that name."""
    place = out.expanduser() / clip.name
    if not place.exists():
        return False
    try:
        (there,) = otb(place.parent, [clip.name])
        same = there.angles is not None and np.array_equal(there.angles, clip.angles)  # type: ignore[arg-type]
        same = same and np.allclose(there.boxes, clip.boxes, atol=1e-3, equal_nan=True)
    except (ValueError, OSError):
        same = False
    if not same:
        raise FileExistsError(
            f"{place} is there, and was not made with these options: delete it, or write to another folder"
        )
    return True
