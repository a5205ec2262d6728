"""The demo of ``ien track``: a trained tracker follows a generated target that rotates."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console

from .._text import to_install
from ..training import load
from ..training.run_folder import read_config
from .data.clip import Clip
from .data.crops import Image
from .data.sets import HARD_CLIP
from .data.synthetic import synthetic
from .drawing import WHITE, annotate, write_strip
from .recording import record_with_table
from .results import scored
from .scoring import Score, score
from .tracker import BoxShape, Tracker
from .training.config import TrackingConfig
from .training.task import untrained
from .trajectory import Track, still, track
from .video import footage

__all__ = ["EXPERIMENT", "check_packages", "how_to_train", "track_demo", "tracker_of"]

EXPERIMENT = "tracking/ien-siamfc"
"""The experiment that the demo trains, at its preset ``demo``."""
CLIP_SEED = 1_000_000
"""Far from the seeds of the clips that runs train on and are tested on."""
CLIP_FRAMES = 120
CLIP_SPEED = 1.5
"""The target moves faster than in the clips of a run."""
STRIP_FRAMES = 6


def tracker_of(run: Path, templates: int | None = None, box: BoxShape = "upright") -> Tracker:
    """Return the tracker of a run folder.

    Args:
        run: The folder of a run that trained a tracker.
        templates: Number of rotations to try; by default as many as the run was tested with.
        box: The shape of the boxes it returns.
    """
    config = _tracking_config(run)
    return Tracker(load(run), templates or config.rotations, box)


def _tracking_config(run: Path) -> TrackingConfig:
    config = read_config(run)
    if not isinstance(config, TrackingConfig):
        raise ValueError(
            f"{run} is a run of {config.experiment}, and {config.network.model} is not a tracker; "
            f"{how_to_train()}"
        )
    return config


def how_to_train(runs: Path = Path("runs")) -> str:
    """Say where to get a trained tracker: a run that exists, or the commands that train one."""
    known = ""
    for weights in sorted(runs.glob("tracking/*/*/model.safetensors")):
        known = f"--run {weights.parent} is one, and "
        break
    return (
        f"{known}ien run {EXPERIMENT} --preset small trains one; "
        f"ien track --demo trains a smaller one, without data"
    )


def check_packages() -> None:
    """Raise an error if a package that writes the video is missing, before anything is trained."""
    for module, package in (("av", "av"), ("PIL", "pillow")):
        if importlib.util.find_spec(module) is None:
            command = to_install("track", "av", "pillow")
            raise ModuleNotFoundError(f"the demo writes a video, which needs {package}: {command}")


def track_demo(run: Path, out: Path, templates: int | None, console: Console) -> None:
    """Let the tracker of a run follow a target that rotates and scales, and print how well it does.

    Writes ``turning.mp4``, ``turning.csv`` and ``turning.png`` to ``out``.

    Args:
        run: The folder of the run.
        out: Where the files go.
        templates: Number of rotations to try; by default as many as the run was tested with.
        console: Where to print.
    """
    tracker = tracker_of(run, templates)
    use_angles = tracker.rotations > 1
    clip = synthetic(CLIP_SEED, CLIP_FRAMES, speed=CLIP_SPEED, **HARD_CLIP)
    clip = replace(clip, name="turning")
    written = record_with_table(
        tracker, footage(clip), clip.boxes[0], out / "turning.mp4", out / "turning.csv", console
    )
    _print(console, written.text)
    strip = write_strip(out / "turning.png", _pictures(clip, written.track, use_angles))
    _print(
        console,
        f"strip: {strip}, {STRIP_FRAMES} of the frames: yellow is the tracker's box, white the true one",
    )
    # what the network can do before it learns anything: some targets are easy
    with console.status("the same with the untrained network"):
        network = untrained(_tracking_config(run))
        before = track(Tracker(network, tracker.rotations), clip)
    scores = {
        "the tracker": scored(written.track, clip, use_angles),
        "its network, untrained": scored(before, clip, use_angles),
        "a box that never moves": score(still(clip), clip.boxes),
    }
    _print(console, _table(scores))


def _pictures(clip: Clip, found: Track, show_angle: bool) -> list[Image]:
    """Return some of the frames with the true box and the tracker's."""
    pictures = []
    for index in np.linspace(0, len(clip) - 1, STRIP_FRAMES).round().astype(int).tolist():
        # the true box first, so that the tracker's lies on top
        picture = annotate(clip.frame(index), clip.boxes[index], colour=WHITE)
        angle = None
        if show_angle:
            angle = float(found.angles[index])
        pictures.append(annotate(picture, found.boxes[index], angle, f"frame {index}"))
    return pictures


def _table(scores: dict[str, Score]) -> str:
    lines = [f"{'':22}  success  precision at 20 px  overlap  angle within 45°"]
    for name, one in scores.items():
        within = "–"  # angles mean nothing for a tracker that tries one rotation only
        if one.within_45 is not None:
            within = f"{one.within_45:.0%}"
        numbers = f"{one.success:7.3f}  {one.precision:18.3f}  {one.mean_overlap:7.3f}"
        lines.append(f"{name:22}  {numbers}  {within:>16}")
    return "\n".join(lines)


def _print(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
