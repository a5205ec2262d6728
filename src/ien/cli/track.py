"""The command ``ien track``: follow a target in a video, and write a video and a table."""

from __future__ import annotations

import math
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .errors import INTERRUPTED, fail
from .options import Quiet, run_folder_of
from .run import resume_hint

if TYPE_CHECKING:
    from rich.console import Console

    from ..tracking.data.boxes import Array
    from ..tracking.data.clips import Clip
    from ..tracking.sources import Source
    from ..tracking.tracker import Tracker
    from ..tracking.trajectory import Track

__all__ = ["track"]

DEMO_FOLDER = Path("runs/track-demo")


class Shape(str, Enum):
    """Of the boxes: :data:`ien.tracking.tracker.BoxShape`."""

    upright = "upright"
    hull = "hull"


def track(
    source: Annotated[
        Path | None,
        typer.Argument(metavar="SOURCE", help="A video, a folder of images, or a sequence folder of OTB."),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(metavar="RUN", callback=run_folder_of, help="The run folder of a trained tracker."),
    ] = None,
    onnx: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="In place of --run, what ien export made of it: onnxruntime runs the network.",
        ),
    ] = None,
    box: Annotated[
        str | None,
        typer.Option(
            metavar="X,Y,W,H",
            help="The target in the first frame, in pixels; x and y are counted from 0.",
            show_default="in a sequence of OTB, its true box",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE.mp4",
            help="The video.",
            show_default="tracks/NAME.mp4; with --demo a folder",
        ),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="The table.", show_default="beside the video")
    ] = None,
    fps: Annotated[
        float | None,
        typer.Option(metavar="N", help="Frames per second, for a folder of images.", show_default="30"),
    ] = None,
    start: Annotated[
        int, typer.Option(min=0, metavar="FRAME", help="The frame to start at, counted from 0.")
    ] = 0,
    templates: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=360,
            metavar="N",
            help="In how many orientations to look for the target.",
            show_default="as the run was tested: the size of its group, or 1 for plain SiamFC",
        ),
    ] = None,
    box_shape: Annotated[
        Shape,
        typer.Option(
            metavar="SHAPE",
            help="upright: the box keeps its shape; hull: the table has the upright box around the rotated "
            "box, and the video shows the rotated one.",
        ),
    ] = Shape.upright,
    demo: Annotated[
        bool,
        typer.Option(
            "--demo", help="Train a small tracker on generated clips and follow one. Needs no data."
        ),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Follow a target through a video; writes a video that shows its box, and a table.

    A sequence folder of OTB has true boxes: tracking starts from the first and is scored.

    Example: ien track --demo

    Example: ien track clip.mp4 --run RUN --box 40,25,60,80

    Example: ien track clip.mp4 --onnx siamfc.onnx --box 40,25,60,80

    Example: ien track data/otb/Crossing --run RUN --out out.mp4
    """
    with resume_hint():
        from ..tracking.demo import how_to_train, tracker_of

        if demo:
            # an option that is silently ignored would mislead
            if source or onnx or box or csv or fps or start or box_shape is not Shape.upright:
                raise ValueError(
                    "--demo makes its own clip: it takes --run, --templates and --out, and no other option"
                )
            _demonstrate(out or DEMO_FOLDER, run, templates)
            return
        if source is None:
            raise ValueError("name a video, a folder of images or a sequence of OTB; or try --demo")
        if onnx is not None and run is not None:
            raise ValueError("--run and --onnx both name a tracker: give one of them")
        if onnx is not None:
            from ..tracking.exported import exported_tracker

            tracker = exported_tracker(onnx, templates, box_shape.value)
        elif run is not None:
            tracker = tracker_of(run, templates, box_shape.value)
        else:
            raise ValueError(f"tracking needs a trained tracker, --run RUN: {how_to_train()}")
        _follow(tracker, source, box, out, csv, fps, start)


def _demonstrate(out: Path, run: Path | None, templates: int | None) -> None:
    """Train a small tracker, or take that of ``run``, and let it follow a target that rotates."""
    from rich.console import Console

    from ..tracking.demo import check_packages, track_demo

    console = Console()
    check_packages()  # before minutes of training, not after them
    if run is None:
        console.print(
            f"A small SiamFC learns to follow textured objects in generated clips, with the equivariance "
            f"loss, in minutes. Then it follows one that it has not seen. Everything is kept in {out}; "
            f"training is not repeated, and continues where it was stopped.",
            highlight=False,
            markup=False,
        )
        run = _trained(out, console)
    track_demo(run, out, templates, console)


def _trained(out: Path, console: Console) -> Path:
    """Train the tracker of the demo, unless it is trained already, and return its run folder."""
    from ..experiments.queue import plan, run_all, run_name
    from ..tracking.demo import EXPERIMENT
    from ..training import Stopped

    (config,) = plan([EXPERIMENT], "demo", [1])
    try:
        run_all([config], out, out / "results", console=console)
    except Stopped:  # `ien resume` would not end with a video; the same command again does
        raise KeyboardInterrupt from None
    return out / run_name(config)


def _follow(
    tracker: Tracker,
    path: Path,
    box: str | None,
    out: Path | None,
    csv: Path | None,
    fps: float | None,
    start: int,
) -> None:
    """Track the target, write the video and the table, and say where they are."""
    from rich.console import Console

    from ..tracking.recording import record_with_table
    from ..tracking.sources import open_source

    source = open_source(path, fps, start)
    # every mistake in the options is reported before the first frame is tracked
    video, table = _output_paths(path, source.frames.name, out, csv)
    first_box = _first_box(source, path, box, start)
    try:
        console = Console(stderr=True)  # progress; standard output is for what was found
        written = record_with_table(tracker, source.frames, first_box, video, table, console, start)
    except KeyboardInterrupt:
        fail("stopped; nothing was written", INTERRUPTED)
    for warning in written.warnings:
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(written.text)

    # the true boxes are those of one target, and the user's box may be around another
    if source.clip is not None and box is None:
        _print_scores(written.track, source.clip, tracker)


def _print_scores(found: Track, clip: Clip, tracker: Tracker) -> None:
    """Print the scores, and beside them those of a box that never moves."""
    from ..tracking.results import scored
    from ..tracking.scoring import score
    from ..tracking.trajectory import still

    typer.echo(f"scores: {scored(found, clip, tracker.rotations > 1)}")
    never = score(still(clip), clip.boxes)
    typer.echo(f"a box that never moves: success {never.success:.3f}, precision {never.precision:.3f}")


def _first_box(source: Source, path: Path, box: str | None, start: int) -> Array:
    """The target in the first frame: as the user says, or its true box."""
    import numpy as np

    if box is not None:
        return np.array(_read_box(box))
    if source.clip is None:
        height, width = source.frames.first().shape[:2]  # so that the user can guess a box
        raise ValueError(
            f"say where the target is in frame {start} of {path} ({width}×{height} pixels): --box x,y,w,h"
        )
    true_box = source.clip.boxes[0]
    if np.isnan(true_box).any():
        raise ValueError(f"{path} has no true box in frame {start}: give --box x,y,w,h or another --start")
    return true_box


def _read_box(text: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    # float() also reads nan and inf
    if len(numbers) != 4 or not all(map(math.isfinite, numbers)) or min(numbers[2:]) <= 0:
        raise ValueError(f"--box is x,y,w,h in pixels, w and h above 0, such as 40,25,60,80; got {text!r}")
    return numbers


def _output_paths(path: Path, name: str, out: Path | None, csv: Path | None) -> tuple[Path, Path]:
    """Where the video and the table go; never over the video that is read."""
    video = Path("tracks", f"{name}.mp4")
    if out is not None:
        video = out.expanduser()
    table = video.with_suffix(".csv")
    if csv is not None:
        table = csv.expanduser()
    if table.suffix.lower() != ".csv" or table.is_dir():
        raise ValueError(f"the table is a csv file; got {table}: name it {table.stem or 'track'}.csv")
    source = path.expanduser()
    if video.exists() and source.exists() and video.samefile(source):
        raise ValueError(f"{video} would overwrite the video that is read: give another --out")
    return video, table
