"""How well a trained network tracks, how equivariant it is, and what an update costs."""

from __future__ import annotations

import copy
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

from ..._files import digest, replace_file
from ...measuring.measure import measure
from ...training.evaluate import layer_errors
from ..by_angle import overlap_by_angle
from ..data.boxes import Array, centres, hulls
from ..data.clip import Clip
from ..data.crops import crop, exemplar_side
from ..results import Result, read_result, scored, write_result
from ..scoring import PRECISION_THRESHOLDS, angle_between, centre_error, score, summarise
from ..settings import Settings
from ..siamfc_network import respond_all
from ..tracker import Tracker
from ..trajectory import still, track
from .config import TrackingConfig

__all__ = ["evaluate_tracker", "search_crops", "track_tests", "update_cost", "update_speed"]

Tests = Mapping[str, Sequence[Clip]]
"""Name of a test → its clips."""
Results = dict[str, dict[str, Result]]
"""Name of a test → name of a clip → boxes, times and angles."""
Say = Callable[[str], None]
ON_TARGET = PRECISION_THRESHOLDS[20]
"""Pixels that a tracker may be off its target: those at which the precision is read off."""
NUM_CROPS = 64
"""About how many pictures the equivariance errors are measured on."""


def evaluate_tracker(
    folder: Path,
    config: TrackingConfig,
    network: nn.Module,
    untrained: nn.Module,
    tests: Tests,
    say: Say,
) -> dict[str, Any]:
    """Return scores, equivariance errors and costs, as a record has them.

    The scores of a box that never moves and of the untrained network stand beside those of the
    network. What was tracked already, with the same weights, is not tracked again.

    Args:
        folder: The run folder; boxes are kept in ``tracks/<test>`` and ``untrained/<test>`` in it.
        config: Of the run.
        network: The trained network, a plain one.
        untrained: The network that the run started from, a plain one.
        tests: The plain clips first.
        say: Called with a line for each sequence.
    """
    tracker = Tracker(network, config.rotations)
    found = track_tests(folder / "tracks", tracker, tests, say)
    before = track_tests(folder / "untrained", Tracker(untrained, config.rotations), tests, say)
    results: dict[str, Any] = {}
    results_of_still = {}
    results_of_untrained = {}
    for name, clips in tests.items():
        results[name] = _scores(config, clips, found[name])
        results_of_still[name] = _baseline(clips, [still(clip) for clip in clips])
        boxes_before = [before[name][clip.name].boxes for clip in clips]
        results_of_untrained[name] = _baseline(clips, boxes_before)
    results["still"] = results_of_still
    results["untrained"] = results_of_untrained

    plain_clips = next(iter(tests.values()))
    pictures = search_crops(plain_clips)
    taps: Any = (network.taps, network.feature_groups)
    reports = []
    for group in config.objective.measured_groups:
        reports.append(measure(network, pictures, group, *taps, batch_size=8, floors=False))
    return {
        "accuracy": None,  # a record has these fields, whatever the task
        "accuracy_with_copies": None,
        "tracking": results,
        "layers": layer_errors(reports),
        **update_cost(tracker),
        "images_per_second": round(update_speed(tracker, plain_clips[0]), 1),
    }


def track_tests(folder: Path, tracker: Tracker, tests: Tests, say: Say) -> Results:
    """Track through the clips of all tests, and keep the boxes in ``folder``.

    What the same weights left there is read instead.
    """
    # testing takes long, and may be stopped: a stamp tells whose boxes are in the folder
    weights = _digest_of(tracker.model)
    stamp = folder / "weights.txt"
    if not stamp.exists() or stamp.read_text() != weights:
        if folder.exists():
            shutil.rmtree(folder)  # boxes of other weights
        folder.mkdir(parents=True)
        replace_file(stamp, lambda temporary: temporary.write_text(weights))

    found: Results = {}
    for name, clips in tests.items():
        found[name] = {}
        for clip in clips:
            result = _kept_result(folder / name, clip)
            if result is None:
                new = track(tracker, clip)
                write_result(folder / name, clip.name, new.boxes, new.seconds, new.angles)
                result = read_result(folder / name, clip.name)  # rounded, as it is read the next time
                one = score(result.boxes, clip.boxes, seconds=result.seconds)
                say(f"{folder.name} {name} {clip.name}: overlap {one.mean_overlap:.3f}, {one.fps:.1f} fps")
            found[name][clip.name] = result
    return found


def search_crops(clips: Sequence[Clip]) -> Tensor:
    """Return what a perfect tracker would see in some frames of each clip: (N, 3, 255, 255)."""
    options = Settings()
    per_clip = max(2, math.ceil(NUM_CROPS / len(clips)))
    pictures = []
    for clip in clips:
        known = np.flatnonzero(np.isfinite(clip.boxes[:, 0]))
        # evenly spread from the first to the last
        count = min(len(known), per_clip)
        spread = np.linspace(0, len(known) - 1, count).round().astype(int)
        for index in known[spread].tolist():
            box = clip.boxes[index]
            side = exemplar_side(box, options.context) * options.search / options.exemplar
            image = clip.frame(index)
            pictures.append(crop(image, centres(box), [float(side)], options.search))
    return torch.cat(pictures)


def update_cost(tracker: Tracker) -> dict[str, int]:
    """Return the parameters, and the multiply-accumulates of an update.

    An update is the features of all sizes of the search picture, and their responses to all
    templates. It runs on tensors without values, so nothing is computed.
    """
    options = tracker.settings
    model = copy.deepcopy(tracker.model).to("meta").eval()
    templates = torch.empty(tracker.rotations, 3, options.exemplar, options.exemplar, device="meta")
    searches = torch.empty(options.scales, 3, options.search, options.search, device="meta")
    with torch.no_grad():
        exemplars = model(templates)  # once per clip, so not part of an update
        with FlopCounterMode(display=False) as counter:
            respond_all(exemplars, model(searches))
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "macs": counter.get_total_flops() // 2,  # a multiply-accumulate is two operations
    }


def update_speed(tracker: Tracker, clip: Clip, rounds: int = 20) -> float:
    """Return updates per second, the best of many rounds: other work only ever slows it down."""
    tracker.init(clip.frame(0), clip.boxes[0])  # the templates are not part of an update
    image = clip.frame(min(1, len(clip) - 1))
    fastest = math.inf
    for _ in range(rounds):
        start = time.perf_counter()
        tracker.update(image)
        fastest = min(fastest, time.perf_counter() - start)
    return 1 / fastest


def _scores(config: TrackingConfig, clips: Sequence[Clip], results: Mapping[str, Result]) -> dict[str, Any]:
    """Return the scores of a test, as a record has them."""
    scores = {}
    sequences = {}
    predictions = []
    for clip in clips:
        result = results[clip.name]
        one = scored(result, clip, use_angles=config.rotations > 1)
        scores[clip.name] = one
        sequences[clip.name] = {
            "success": one.success,
            "precision": one.precision,
            "overlap": one.mean_overlap,
            "frames": one.frames,
        }
        predictions.append((result.boxes, clip))
    total = summarise(scores)
    by_angle = overlap_by_angle(predictions)
    hull_scores = {}
    error_on_target = None
    if config.rotations > 1:
        hull_scores = _hull_scores(clips, results)
        error_on_target = _orientation_error_on_target(clips, results)
    return {
        "success": total.success,
        "precision": total.precision,
        **hull_scores,
        "precision_auc": total.precision_auc,
        "normalised_precision": total.normalised_precision,
        "overlap": total.mean_overlap,
        "centre_error": total.mean_centre_error,
        "orientation_error": total.orientation_error,
        "orientation_error_on_target": error_on_target,
        "fps": total.fps,
        "success_curve": list(total.success_curve),
        "precision_curve": list(total.precision_curve),
        "sequences": sequences,
        "by_orientation": list(map(list, by_angle.orientation)) or None,
        "by_angle": list(map(list, by_angle.turned)) or None,
    }


def _hull_scores(clips: Sequence[Clip], results: Mapping[str, Result]) -> dict[str, float]:
    """Return the scores of ``Tracker(box="hull")``, whose boxes follow from those at 0° and angles.

    Centres are the same, so precision is too.
    """
    boxes = []
    for clip in clips:
        result = results[clip.name]
        assert result.angles is not None  # track_tests keeps them
        boxes.append(hulls(result.boxes, result.angles))
    reached = _baseline(clips, boxes)
    return {"success_hull": reached["success"], "precision_hull": reached["precision"]}


def _orientation_error_on_target(clips: Sequence[Clip], results: Mapping[str, Result]) -> float | None:
    """Return the mean angle between predicted and true orientation while the target is held.

    Over frames whose centre is at most 20 pixels off, without the first, which is given; then over
    the sequences that have such frames. None if there are none.
    """
    means = []
    for clip in clips:
        result = results[clip.name]
        assert result.angles is not None  # track_tests keeps them
        if clip.angles is None:
            continue
        # where a true box or angle is not known, the comparison with NaN is False
        on_target = centre_error(result.boxes, clip.boxes) <= ON_TARGET
        on_target &= ~np.isnan(clip.angles)
        on_target[0] = False
        if on_target.any():
            means.append(angle_between(result.angles, clip.angles)[on_target].mean())
    if not means:
        return None
    return float(np.mean(means))


def _baseline(clips: Sequence[Clip], boxes: Sequence[Array]) -> dict[str, float]:
    scores = {}
    for clip, own in zip(clips, boxes, strict=True):
        scores[clip.name] = score(own, clip.boxes)
    total = summarise(scores)
    return {"success": total.success, "precision": total.precision}


def _kept_result(folder: Path, clip: Clip) -> Result | None:
    """Return what was kept of the clip, if it has all frames."""
    try:
        result = read_result(folder, clip.name)
    except (FileNotFoundError, ValueError):
        return None  # missing or damaged: it is tracked again
    if result.seconds is None or result.angles is None or len(result.boxes) != len(clip):
        return None
    return result


def _digest_of(model: nn.Module) -> str:
    parts = []
    for name, tensor in model.state_dict().items():
        values = tensor.cpu().contiguous().numpy()
        parts.append(name.encode() + values.tobytes())
    return digest(*parts)
