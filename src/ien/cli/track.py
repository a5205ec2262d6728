"""The command ``ien track``: its options, and from a tracker and what they say to files and scores."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from ..tracking.data.boxes import Array
from ..tracking.recording import make
from ..tracking.results import scored
from ..tracking.scoring import score
from ..tracking.selecting import select_box
from ..tracking.sources import Source, open_source
from ..tracking.tracker import Tracker
from ..tracking.trajectory import still
from .errors import fail

__all__ = ["Box", "Csv", "Demo", "Fps", "Out", "Run", "Select", "SourcePath", "Start", "Templates", "follow"]

SourcePath = Annotated[
    Path | None,
    typer.Argument(metavar="SOURCE", help="A video, a folder of images, or a sequence folder of OTB."),
]
Run = Annotated[Path | None, typer.Option(metavar="RUN", help="The run folder of a trained tracker.")]
Box = Annotated[
    str | None,
    typer.Option(
        metavar="X,Y,W,H",
        help="Where the target is in the first frame, in pixels; x and y are counted from 0.",
        show_default="of a sequence of OTB its true box",
    ),
]
Select = Annotated[
    bool, typer.Option("--select", help="Draw the box with the mouse, where there is a screen.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", "-o", metavar="FILE.mp4", help="The video.", show_default="tracks/NAME.mp4; of --demo a DIR"
    ),
]
Csv = Annotated[
    Path | None, typer.Option(metavar="FILE.csv", help="The table.", show_default="beside the video")
]
Fps = Annotated[
    float | None, typer.Option(metavar="N", help="Frames a second, for images.", show_default="30")
]
Start = Annotated[int, typer.Option(min=0, metavar="FRAME", help="Where to begin, counted from 0.")]
Templates = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=360,
        metavar="N",
        help="Turns of the target that are looked for.",
        show_default="as the run was tested: those of its group, or 1 for plain SiamFC",
    ),
]
Demo = Annotated[
    bool, typer.Option("--demo", help="Train a small tracker on generated clips and follow one; no data.")
]


def follow(
    tracker: Tracker,
    path: Path,
    box: str | None = None,
    select: bool = False,
    out: Path | None = None,
    csv: Path | None = None,
    fps: float | None = None,
    start: int = 0,
) -> None:
    """Track in what is at ``path``, write the video and the table, and tell where they are."""
    source = open_source(path, fps, start)
    video, table = _places(path, source.frames.name, out, csv)
    given = box is not None or select
    where = _first_box(source, path, box, select, start)
    try:
        made = make(tracker, source.frames, where, video, table, Console(stderr=True), start)
    except KeyboardInterrupt:
        fail("stopped; nothing was written", 130)
    for warning in made.warnings:
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(made.text)
    if source.clip is not None and not given:
        typer.echo(f"scores: {scored(made.track, source.clip, tracker.rotations > 1)}")
        never = score(still(source.clip), source.clip.boxes)
        typer.echo(f"a box that never moves: success {never.success:.3f}, precision {never.precision:.3f}")


def _first_box(source: Source, path: Path, box: str | None, select: bool, start: int) -> Array:
    if box is not None and select:
        raise ValueError("give --box or --select: one of them says where the target is")
    if box is not None:
        return _numbers(box)
    if select:
        return select_box(source.frames.first())
    if source.clip is None:
        rows, columns = source.frames.first().shape[:2]
        raise ValueError(
            f"say where the target is in frame {start} of {path}, which has {columns}×{rows} pixels: "
            f"--box x,y,w,h, or --select to draw it"
        )
    if np.isnan(source.clip.boxes[0]).any():
        raise ValueError(
            f"{path} has no true box in frame {start}: give --box x,y,w,h, --select or another --start"
        )
    return source.clip.boxes[0]


def _numbers(text: str) -> Array:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != 4 or not all(map(math.isfinite, numbers)) or min(numbers[2:]) <= 0:
        raise ValueError(f"--box is x,y,w,h in pixels, w and h above 0, such as 40,25,60,80; got {text!r}")
    return np.array(numbers)


def _places(path: Path, name: str, out: Path | None, csv: Path | None) -> tuple[Path, Path]:
    """Of the video and of the table; none of them is what is read."""
    video = Path("tracks", f"{name}.mp4") if out is None else out.expanduser()
    table = video.with_suffix(".csv") if csv is None else csv.expanduser()
    if table.suffix.lower() != ".csv" or table.is_dir():
        raise ValueError(f"the table is a csv file; got {table}: name it {table.stem or 'track'}.csv")
    if video.exists() and path.expanduser().exists() and video.samefile(path.expanduser()):
        raise ValueError(f"{video} would be written over what is tracked in: give another --out")
    return video, table
