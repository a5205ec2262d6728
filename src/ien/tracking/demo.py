"""The demo of tracking: from nothing to a trained tracker, and a video in which it follows what turns."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console

from ..experiments.queue import plan, run_all, run_name
from ..training import Stopped, load
from ..training.run_folder import read_config
from . import Score, Track, Tracker, footage, score, track
from .data.clips import Clip
from .data.crops import Image
from .data.sets import HARD
from .data.synthetic import synthetic
from .drawing import annotate, write_strip
from .recording import make
from .results import scored
from .training.config import TrackingConfig
from .training.task import untrained
from .trajectory import still

__all__ = ["EXPERIMENT", "how_to_train", "track_demo", "tracker_of"]

EXPERIMENT = "tracking/ien-siamfc"
SEED = 1_000_000
"""Of the clip: far from those of the clips that runs train on and are tested on."""
FRAMES = 120
SPEED = 1.5
"""The target moves faster than in the clips of a run."""
SHOWN = 6


def tracker_of(run: Path, templates: int | None = None) -> Tracker:
    """The tracker of a run: with as many templates as it was tested with, if none are given."""
    config = _tracking_config(run)
    return Tracker(load(run), templates or config.rotations)


def _tracking_config(run: Path) -> TrackingConfig:
    config = read_config(run)
    if not isinstance(config, TrackingConfig):
        raise ValueError(
            f"{run} is a run of {config.experiment}, and {config.network.model} is not a tracker; "
            f"{how_to_train()}"
        )
    return config


def how_to_train(runs: Path = Path("runs")) -> str:
    """What to do about a missing run: take one that is there, or train one."""
    there = sorted(path.parent for path in runs.glob("tracking/*/*/model.safetensors"))
    known = f"--run {there[0]} is one, and " if there else ""
    return (
        f"{known}ien run {EXPERIMENT} --preset small trains one; "
        f"ien track --demo trains a smaller one, without data"
    )


def track_demo(
    out: Path = Path("runs/track-demo"),
    run: Path | None = None,
    templates: int | None = None,
    console: Console | None = None,
) -> None:
    """Train a small tracker, or take that of ``run``, and let it follow a target that turns and scales."""
    console = console or Console()
    for package in ("av", "PIL"):  # told before the training, not after it
        if importlib.util.find_spec(package) is None:
            name = {"PIL": "pillow"}.get(package, package)
            raise ModuleNotFoundError(
                f'the demo writes a video, which needs {name}: pip install "ien[track]"'
            )
    if run is None:
        console.print(
            f"A small SiamFC learns to follow textured objects in generated clips, with the equivariance "
            f"loss, in minutes. Then it follows one that it has not seen. All is kept in {out}; training is "
            f"not repeated, and goes on where it was stopped.",
            highlight=False,
            markup=False,
        )
        run = _trained(out, console)
    tracker = tracker_of(run, templates)
    before = Tracker(untrained(_tracking_config(run)), tracker.rotations)
    clip = replace(synthetic(SEED, FRAMES, speed=SPEED, **HARD), name="turning")
    video, table = out / "turning.mp4", out / "turning.csv"
    made = make(tracker, footage(clip), clip.boxes[0], video, table, console)
    _say(console, made.text)
    turns = tracker.rotations > 1
    strip = write_strip(out / "turning.png", _pictures(clip, made.track, turns))
    _say(console, f"strip: {strip}, {SHOWN} of the frames: yellow is the tracker's box, white the true one")
    with console.status("the same with the untrained network"):
        unlearnt = track(before, clip)
    scores = {
        "the tracker": scored(made.track, clip, turns),
        "its network, untrained": scored(unlearnt, clip, turns),
        "a box that never moves": score(still(clip), clip.boxes),
    }
    _say(console, _table(scores))


def _trained(out: Path, console: Console) -> Path:
    (config,) = plan([EXPERIMENT], "demo", [1])
    try:
        run_all([config], out, out / "results", console=console)
    except Stopped:  # to resume the run would not end with a video; the same command does
        raise KeyboardInterrupt from None
    return out / run_name(config)


def _pictures(clip: Clip, found: Track, turns: bool) -> list[Image]:
    pictures = []
    for index in np.linspace(0, len(clip) - 1, SHOWN).round().astype(int).tolist():
        truth = annotate(clip.frame(index), clip.boxes[index], colour=(255, 255, 255))
        angle = float(found.angles[index]) if turns else None
        pictures.append(annotate(truth, found.boxes[index], angle, f"frame {index}"))
    return pictures


def _table(scores: dict[str, Score]) -> str:
    lines = [f"{'':22}  success  precision at 20 px  overlap  turned within 45°"]
    for name, one in scores.items():
        within = "–" if one.within_45 is None else f"{one.within_45:.0%}"
        numbers = f"{one.success:7.3f}  {one.precision:18.3f}  {one.mean_overlap:7.3f}"
        lines.append(f"{name:22}  {numbers}  {within:>17}")
    return "\n".join(lines)


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
