"""How well a trained network tracks, and what that costs: from a network and clips to a record's numbers."""

from __future__ import annotations

import copy
import hashlib
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from .._files import replace_file
from .._measure import measure
from ..data.clips import Array, Clip
from ..data.crops import crop, exemplar_side
from ..models.siamfc import respond_all
from ..tracking.results import read_result, write_result
from ..tracking.score import Score, frame_overlaps, score, summarise
from ..tracking.settings import Settings
from ..tracking.tracker import Tracker
from ..tracking.tracks import Track, track
from .config import Config
from .evaluate import layer_errors

__all__ = ["evaluate_tracker", "search_crops", "tracked", "update_cost", "update_speed"]

Tests = Mapping[str, Sequence[Clip]]
CROPS = 64
"""Pictures, about, on which the layers are measured."""
BIN = 15
"""Degrees."""


def evaluate_tracker(
    folder: Path,
    config: Config,
    network: nn.Module,
    untrained: nn.Module,
    tests: Tests,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Scores on every test, beside those of a box that never moves and of the ``untrained`` network.

    Both networks are plain ones. Tracks are kept in ``folder/tracks/<test>`` (of the untrained network in
    ``folder/untrained``), and what is there is not tracked again. ``say`` gets a line for each sequence.
    """
    plain = next(iter(tests))
    tracker = Tracker(network, config.rotations)
    found = tracked(folder / "tracks", tracker, tests, say)
    before = tracked(folder / "untrained", Tracker(untrained, config.rotations), tests, say)
    results: dict[str, Any] = {name: _result(config, clips, found[name]) for name, clips in tests.items()}
    results["still"] = {name: _baseline(clips, _still(clips)) for name, clips in tests.items()}
    results["untrained"] = {name: _baseline(clips, before[name]) for name, clips in tests.items()}
    pictures = search_crops(tests[plain])
    reports = [
        measure(network, pictures, group, network.taps, network.feature_groups, batch_size=8, floors=False)  # type: ignore[arg-type]
        for group in config.measured_groups
    ]
    return {
        "accuracy": None,
        "accuracy_with_copies": None,
        "tracking": results,
        "layers": layer_errors(reports),
        **update_cost(tracker),
        "images_per_second": round(update_speed(tracker, tests[plain][0]), 1),
    }


def tracked(
    folder: Path, tracker: Tracker, tests: Tests, say: Callable[[str], None] = lambda text: None
) -> dict[str, dict[str, Track]]:
    """Test → sequence → track, kept in ``folder``; those that the same weights left there are read.

    Boxes and times are in OTB's format, angles in ``angles/<sequence>_angle.txt``, a line each.
    """
    weights, stamp = _digest(tracker.model), folder / "weights.txt"
    if not stamp.exists() or stamp.read_text() != weights:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        replace_file(stamp, lambda temporary: temporary.write_text(weights))
    found: dict[str, dict[str, Track]] = {name: {} for name in tests}
    for name, clips in tests.items():
        for clip in clips:
            place = folder / name
            if (there := _read(place, clip)) is None:
                _write(place, clip, track(tracker, clip))
                there = _read(place, clip)
                assert there is not None
                result = score(there.boxes, clip.boxes, seconds=there.seconds)
                say(
                    f"{folder.name} {name} {clip.name}: overlap {result.mean_overlap:.3f}, "
                    f"{result.fps or 0:.1f} fps"
                )
            found[name][clip.name] = there
    return found


def search_crops(clips: Sequence[Clip]) -> Tensor:
    """What a tracker that follows perfectly sees in some frames of each clip: (N, 3, 255, 255)."""
    pictures, options = [], Settings()
    for clip in clips:
        known = np.flatnonzero(np.isfinite(clip.boxes[:, 0]))
        some = np.linspace(0, len(known) - 1, min(len(known), max(2, math.ceil(CROPS / len(clips)))))
        for index in known[some.round().astype(int)]:
            box = clip.boxes[index]
            side = exemplar_side(box, options.context) * options.search / options.exemplar
            centre = box[:2] + (box[2:] - 1) / 2
            pictures.append(crop(clip.frame(int(index)), centre, [float(side)], options.search))
    return torch.cat(pictures)


def update_cost(tracker: Tracker) -> dict[str, int]:
    """Parameters, and multiply-accumulates of an update: all sizes, and their responses to all templates.

    Counted on tensors without values: nothing is computed.
    """
    options, model = tracker.settings, copy.deepcopy(tracker.model).to("meta").eval()
    sizes = ((tracker.rotations, options.exemplar), (options.scales, options.search))
    templates, searches = (torch.empty(n, 3, size, size, device="meta") for n, size in sizes)
    with torch.no_grad():
        exemplars = model(templates)
        with FlopCounterMode(display=False) as counter:
            respond_all(exemplars, model(searches))
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "macs": counter.get_total_flops() // 2,
    }


def update_speed(tracker: Tracker, clip: Clip, rounds: int = 20) -> float:
    """Updates per second: the best of many rounds, as other work only ever slows it down."""
    tracker.init(clip.frame(0), clip.boxes[0])
    image, seconds = clip.frame(min(1, len(clip) - 1)), []
    for _ in range(rounds):
        start = time.perf_counter()
        tracker.update(image)
        seconds.append(time.perf_counter() - start)
    return 1 / min(seconds)


def _result(config: Config, clips: Sequence[Clip], tracks: Mapping[str, Track]) -> dict[str, Any]:
    """The scores of a test, as a record has them."""
    scores: dict[str, Score] = {}
    for clip in clips:
        boxes, _, angles, seconds = tracks[clip.name]
        turns = angles if config.rotations > 1 else None  # one template knows no angle
        scores[clip.name] = score(boxes, clip.boxes, turns, clip.angles, seconds)
    total = summarise(scores)
    return {
        "success": total.success,
        "precision": total.precision,
        "precision_auc": total.precision_auc,
        "normalised_precision": total.normalised_precision,
        "overlap": total.mean_overlap,
        "centre_error": total.mean_centre_error,
        "orientation_error": total.orientation_error,
        "fps": total.fps,
        "success_curve": list(total.success_curve),
        "precision_curve": list(total.precision_curve),
        "sequences": {
            name: {
                "success": one.success,
                "precision": one.precision,
                "overlap": one.mean_overlap,
                "frames": one.frames,
            }
            for name, one in scores.items()
        },
        "by_angle": _by_angle(clips, tracks),
    }


def _by_angle(clips: Sequence[Clip], tracks: Mapping[str, Track]) -> list[list[float]] | None:
    """Degrees by which the target is turned, whole turns taken off, the mean overlap around there, frames.

    Means are over frames, then over the sequences that have some; None where no target turns.
    """
    if not any(clip.angles is not None and np.ptp(clip.angles) > 0 for clip in clips):
        return None
    count = 360 // BIN
    total, sequences, frames = np.zeros(count), np.zeros(count), np.zeros(count, int)
    for clip in clips:
        if clip.angles is None:
            continue
        overlaps = frame_overlaps(tracks[clip.name].boxes, clip.boxes)
        known = np.isfinite(overlaps) & np.isfinite(clip.angles)
        bins = np.floor(clip.angles[known] / BIN + 0.5).astype(int) % count
        here = np.bincount(bins, minlength=count)
        total += np.bincount(bins, overlaps[known], count) / np.maximum(here, 1)
        sequences += here > 0
        frames += here
    there = np.flatnonzero(frames).tolist()
    return [[float(BIN * k), float(total[k] / sequences[k]), int(frames[k])] for k in there]


def _baseline(clips: Sequence[Clip], tracks: Mapping[str, Track]) -> dict[str, float]:
    total = summarise({clip.name: score(tracks[clip.name].boxes, clip.boxes) for clip in clips})
    return {"success": total.success, "precision": total.precision}


def _still(clips: Sequence[Clip]) -> dict[str, Track]:
    """Boxes that never move."""
    zeros: dict[str, Array] = {clip.name: np.zeros(len(clip)) for clip in clips}
    return {
        clip.name: Track(np.repeat(clip.boxes[:1], len(clip), 0), *[zeros[clip.name]] * 3) for clip in clips
    }


def _digest(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _angles(folder: Path, clip: Clip) -> Path:
    return folder / "angles" / f"{clip.name}_angle.txt"


def _write(folder: Path, clip: Clip, result: Track) -> None:
    lines = "".join(f"{angle:.3f}\n" for angle in result.angles.tolist())
    path = _angles(folder, clip)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, lambda temporary: temporary.write_text(lines))
    write_result(folder, clip.name, result.boxes, result.seconds)  # last: where it is, all is


def _read(folder: Path, clip: Clip) -> Track | None:
    """What :func:`_write` wrote, if it is of all frames."""
    try:
        boxes, seconds = read_result(folder, clip.name)
        angles = np.array(_angles(folder, clip).read_text().split(), np.float64)
    except (FileNotFoundError, ValueError):
        return None
    if seconds is None or not len(boxes) == len(angles) == len(clip):
        return None
    return Track(boxes, np.ones(len(clip)), angles, seconds)
