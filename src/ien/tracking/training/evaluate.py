"""How well a trained network tracks, and what that costs: from a network and clips to a record's numbers."""

from __future__ import annotations

import copy
import hashlib
import math
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ..._files import replace_file
from ...measuring.measure import measure
from ...training.evaluate import layer_errors
from ..by_angle import overlap_by_angle
from ..data.boxes import Array
from ..data.clip import Clip
from ..data.crops import crop, exemplar_side
from ..results import Result, read_result, scored, write_result
from ..scoring import score, summarise
from ..settings import Settings
from ..siamfc_network import respond_all
from ..tracker import Tracker
from ..trajectory import still, track
from .config import TrackingConfig

__all__ = ["evaluate_tracker", "search_crops", "tracked", "update_cost", "update_speed"]

Tests = Mapping[str, Sequence[Clip]]
CROPS = 64
"""Pictures, about, on which the layers are measured."""


def evaluate_tracker(
    folder: Path,
    config: TrackingConfig,
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
    results: dict[str, Any] = {name: _scores(config, clips, found[name]) for name, clips in tests.items()}
    results["still"] = {name: _baseline(clips, map(still, clips)) for name, clips in tests.items()}
    results["untrained"] = {
        name: _baseline(clips, (before[name][clip.name].boxes for clip in clips))
        for name, clips in tests.items()
    }
    pictures = search_crops(tests[plain])
    reports = [
        measure(network, pictures, group, network.taps, network.feature_groups, batch_size=8, floors=False)  # type: ignore[arg-type]
        for group in config.objective.measured_groups
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
) -> dict[str, dict[str, Result]]:
    """Test → sequence → boxes, times and angles, kept in ``folder``; what the same weights left is read."""
    weights, stamp = _digest(tracker.model), folder / "weights.txt"
    if not stamp.exists() or stamp.read_text() != weights:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        replace_file(stamp, lambda temporary: temporary.write_text(weights))
    found: dict[str, dict[str, Result]] = {name: {} for name in tests}
    for name, clips in tests.items():
        for clip in clips:
            result = _kept(folder / name, clip)
            if result is None:
                new = track(tracker, clip)
                write_result(folder / name, clip.name, new.boxes, new.seconds, new.angles)
                result = read_result(folder / name, clip.name)  # rounded, as the next one to ask gets it
                one = score(result.boxes, clip.boxes, seconds=result.seconds)
                say(f"{folder.name} {name} {clip.name}: overlap {one.mean_overlap:.3f}, {one.fps:.1f} fps")
            found[name][clip.name] = result
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


def _scores(config: TrackingConfig, clips: Sequence[Clip], results: Mapping[str, Result]) -> dict[str, Any]:
    """The scores of a test, as a record has them."""
    scores = {clip.name: scored(results[clip.name], clip, config.rotations > 1) for clip in clips}
    total = summarise(scores)
    orientation, turned = overlap_by_angle((results[clip.name].boxes, clip) for clip in clips)
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
        "by_orientation": list(map(list, orientation)) or None,
        "by_angle": list(map(list, turned)) or None,
    }


def _baseline(clips: Sequence[Clip], boxes: Iterable[Array]) -> dict[str, float]:
    total = summarise({clip.name: score(own, clip.boxes) for clip, own in zip(clips, boxes, strict=True)})
    return {"success": total.success, "precision": total.precision}


def _kept(folder: Path, clip: Clip) -> Result | None:
    """What was written of the clip, if it is of all frames."""
    try:
        result = read_result(folder, clip.name)
    except (FileNotFoundError, ValueError):
        return None
    whole = result.seconds is not None and result.angles is not None and len(result.boxes) == len(clip)
    return result if whole else None


def _digest(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
