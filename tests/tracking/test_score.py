"""Scores of trackers: against loops in plain Python, closed forms and the GOT-10k toolkit's own numbers."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from ien.tracking import Score, centre_error, overlap, score, summarise
from ien.tracking.scoring import PRECISION_THRESHOLDS, SUCCESS_THRESHOLDS, frame_overlaps

NAN = math.nan
NUMBERS = ("success", "precision", "precision_auc", "normalised_precision", "mean_overlap")


def boxes(seed: int, frames: int = 60, near: np.ndarray | None = None) -> np.ndarray:
    """Random boxes, in quarter pixels so that arithmetic is exact, or a jittered copy of others."""
    rng = np.random.default_rng(seed)
    if near is not None:
        moved = near + rng.integers(-60, 60, near.shape) * rng.choice([0.0, 0.25, 1.0], (len(near), 1))
        return np.concatenate([moved[:, :2], np.maximum(moved[:, 2:], 1)], 1)
    return np.concatenate([rng.integers(0, 800, (frames, 2)), rng.integers(20, 400, (frames, 2))], 1) / 4


def loop_overlap(a: Any, b: Any) -> float:
    """Intersection over union, one pair of boxes, in words of corners."""
    width = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    height = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    return width * height / (a[2] * a[3] + b[2] * b[3] - width * height)


def reference(predicted: Any, truth: Any) -> dict[str, Any]:
    """The protocol written out: OTB's curves with loops over frames and thresholds."""
    predicted, truth = [list(map(float, p)) for p in predicted], [list(map(float, t)) for t in truth]
    predicted[0] = truth[0]
    pairs = [(p, t) for p, t in zip(predicted, truth, strict=True) if t[2] > 0 and t[3] > 0]
    pairs = [(p, t) for p, t in pairs if not any(math.isnan(v) for v in t)]
    overlaps = [loop_overlap(p, t) for p, t in pairs]
    apart = [((p[0] + p[2] / 2) - (t[0] + t[2] / 2), (p[1] + p[3] / 2) - (t[1] + t[3] / 2)) for p, t in pairs]
    errors = [math.sqrt(x * x + y * y) for x, y in apart]
    parts = [
        math.sqrt((x / t[2]) ** 2 + (y / t[3]) ** 2) for (x, y), (_, t) in zip(apart, pairs, strict=True)
    ]
    n = len(pairs)
    success = [sum(o > k / 20 for o in overlaps) / n for k in range(21)]
    precision = [sum(e <= k for e in errors) / n for k in range(51)]
    normalised = [sum(e <= k / 40 for e in parts) / n for k in range(21)]
    return {
        "frames": n,
        "success_curve": success,
        "precision_curve": precision,
        "normalised_curve": normalised,
        "success": sum(success) / 21,
        "precision": precision[20],
        "precision_auc": sum(precision) / 51,
        "normalised_precision": sum((a + b) / 2 for a, b in itertools.pairwise(normalised)) / 20,
        "mean_overlap": sum(overlaps) / n,
        "mean_centre_error": sum(errors) / n,
    }


def assert_is(result: Score, expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        assert np.allclose(getattr(result, name), value, rtol=0, atol=1e-12), name


@pytest.mark.parametrize("seed", range(6))
def test_scores_are_those_of_loops_over_frames_and_thresholds(seed: int) -> None:
    truth = boxes(seed)
    predicted = boxes(seed + 100, near=truth)
    expected = reference(predicted, truth)
    assert_is(score(predicted, truth), expected)
    assert 0.05 < expected["success"] < 0.95 and 0.05 < expected["precision"] < 1  # nothing trivial


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_those_of_the_got10k_toolkit(seed: int) -> None:
    pytest.importorskip("got10k", reason="pip install got10k to compare with its numbers")
    from got10k.experiments import ExperimentOTB
    from got10k.utils.metrics import center_error, rect_iou

    truth = boxes(seed)
    predicted = boxes(seed + 100, near=truth)
    given = predicted.copy()
    given[0] = truth[0]
    experiment = ExperimentOTB.__new__(ExperimentOTB)  # its own __init__ would download OTB
    experiment.nbins_iou, experiment.nbins_ce = 21, 51
    success, precision = experiment._calc_curves(rect_iou(given, truth), center_error(given, truth))
    result = score(predicted, truth)
    assert np.array_equal(result.success_curve, success) and np.array_equal(result.precision_curve, precision)
    assert result.success == np.mean(success) and result.precision == precision[20]
    assert np.abs(overlap(given, truth) - rect_iou(given, truth)).max() < 1e-15
    assert np.abs(centre_error(given, truth) - center_error(given, truth)).max() < 1e-12


# --- closed forms


def test_a_perfect_tracker_scores_20_of_21_and_1_elsewhere() -> None:
    truth = boxes(0) + np.array(
        [0.1, 0.2, 0.3, 0.7]
    )  # not exact in binary: rounding must not lift it above 1
    result = score(truth, truth, 3 * np.arange(60), 3 * np.arange(60) - 720)
    assert result.success == 20 / 21 and result.success_curve == (1.0,) * 20 + (0.0,)
    assert result.precision == result.precision_auc == result.normalised_precision == 1
    assert abs(result.mean_overlap - 1) < 1e-12 and result.mean_centre_error == 0
    assert result.orientation_error == 0 and result.within_45 == 1


def test_a_box_moved_by_half_its_width_overlaps_by_a_third() -> None:
    truth = np.array([[10, 20, 30, 40]] * 3, float)
    moved = truth + np.array([15, 0, 0, 0])
    assert np.array_equal(overlap(moved, truth), [1 / 3] * 3)
    assert np.array_equal(centre_error(moved, truth), [15.0] * 3)
    result = score(moved, truth)
    assert result.frames == 3 and result.mean_overlap == (1 + 2 / 3) / 3  # frame 1 is right
    assert result.success_curve == (1.0,) * 7 + (1 / 3,) * 13 + (0.0,)  # 0.30 < 1/3 < 0.35
    assert result.precision_curve == (1 / 3,) * 15 + (1.0,) * 36 and result.mean_centre_error == 10
    assert result.normalised_curve == (1 / 3,) * 20 + (1.0,)  # half a width is the last threshold


def test_a_box_that_never_moves_is_lost_as_fast_as_the_target_goes() -> None:
    speed, side, frames = 2, 20, 30
    truth = np.array([[speed * t, 0, side, side] for t in range(frames)], float)
    result = score(np.tile(truth[0], (frames, 1)), truth)
    offsets = [speed * t for t in range(frames)]
    assert (
        abs(result.mean_overlap - sum(max(side - d, 0) / (side + min(d, side)) for d in offsets) / frames)
        < 1e-15
    )
    assert result.precision == sum(d <= 20 for d in offsets) / frames == 11 / 30
    assert result.success_curve[0] == sum(d < side for d in offsets) / frames == 10 / 30
    assert result.mean_centre_error == speed * (frames - 1) / 2


def test_thresholds_are_strict_for_overlap_and_inclusive_for_distance() -> None:
    truth = np.array([[0, 0, 20, 10]] * 2, float)
    half = np.array([[0, 0, 20, 10], [0, 0, 10, 10]], float)  # overlap 0.5, centre 5 px away
    result = score(half, truth)
    assert result.success_curve[9] == 1 and result.success_curve[10] == 0.5
    assert result.precision_curve[4] == 0.5 and result.precision_curve[5] == 1
    assert SUCCESS_THRESHOLDS[10] == 0.5 and PRECISION_THRESHOLDS[5] == 5
    for k in range(1, 20):  # an overlap of k/20 is no success at k/20, whatever its last bit
        part = np.array([[0, 0, 20, 10], [0, 0, k, 10]], float)
        assert score(part, truth).success_curve[k] == 0.5 == score(part, truth).success_curve[k - 1] - 0.5


def test_counting_from_0_or_from_1_makes_no_difference() -> None:
    truth = boxes(3)
    predicted = boxes(4, near=truth)
    one = np.array([1, 1, 0, 0])
    assert score(predicted + one, truth + one) == score(predicted, truth)


def test_overlap_is_symmetric_broadcasts_and_knows_no_area() -> None:
    a, b = boxes(5), boxes(6)
    assert np.array_equal(overlap(a, b), overlap(b, a)) and np.array_equal(
        centre_error(a, b), centre_error(b, a)
    )
    table = overlap(a[:, None], b[None])
    assert table.shape == (60, 60)
    assert all(table[i, j] == overlap(a[i], b[j]) for i, j in ((0, 0), (3, 50), (59, 7)))
    assert np.abs(table - [[loop_overlap(p, q) for q in b] for p in a]).max() < 1e-15
    assert overlap([5, 5, 0, 0], [5, 5, 0, 0]) == 0 == overlap([5, 5, 0, 3], [0, 0, 9, 9])
    assert overlap([0, 0, 2, 2], [2, 0, 2, 2]) == 0  # they touch
    assert np.isnan(overlap([NAN] * 4, a)).all() and np.isnan(centre_error(a, [NAN] * 4)).all()
    assert centre_error([0, 0, 1, 1], [3, 4, 1, 1]) == 5


# --- which frames count


def test_the_first_frame_counts_as_correct_whatever_was_predicted() -> None:
    truth = boxes(7)
    predicted = boxes(8, near=truth)
    elsewhere = predicted.copy()
    elsewhere[0] = (900, 900, 1, 1)
    angles = np.arange(60.0)
    assert score(elsewhere, truth) == score(predicted, truth)
    turned = np.concatenate([[180.0], angles[1:]])
    assert score(predicted, truth, turned, angles).orientation_error == 0


@pytest.mark.parametrize("blank", [[NAN] * 4, [0, 0, 0, 0], [30, 40, 0, 10], [3, NAN, 5, 5]])
def test_frames_without_truth_are_left_out(blank: list[float]) -> None:
    truth = boxes(9)
    predicted = boxes(10, near=truth)
    gone = truth.copy()
    gone[[5, 17, 59]] = blank
    rest = np.delete(np.arange(60), [5, 17, 59])
    result = score(predicted, gone, np.arange(60.0), np.zeros(60))
    assert result == score(predicted[rest], truth[rest], rest.astype(float), np.zeros(57))
    assert result.frames == 57
    assert_is(result, reference(predicted, gone))
    each = frame_overlaps(predicted, gone)
    assert np.isnan(each[[5, 17, 59]]).all() and each[0] == 1
    assert np.nanmean(each) == pytest.approx(result.mean_overlap, abs=1e-15)
    gone[0] = blank
    assert score(predicted, gone).frames == 56


# --- orientation and speed


def test_orientation_errors_are_the_shorter_way_round() -> None:
    truth = boxes(11, 6)
    given = [7, 350, 10, 225, 45, -46]
    true = [0, 10, 350, 45, 0, 0]
    result = score(truth, truth, given, true)
    errors = [0, 20, 20, 180, 45, 46]  # the first counts as correct
    assert result.orientation_error == sum(errors) / 6 and result.within_45 == 4 / 6
    turns = 360 * np.arange(-3, 3)
    assert score(truth, truth, given + turns, true) == result
    some = score(truth, truth, given, [0, 10, 350, NAN, 0, 0])
    assert some.orientation_error == (20 + 20 + 45 + 46) / 5
    assert score(truth, truth, given).orientation_error is None
    assert score(truth, truth, None, true).within_45 is None
    assert score(truth, truth, given, [NAN] * 6).orientation_error is None


def test_speed_is_frames_by_seconds() -> None:
    truth = boxes(12, 4)
    assert score(truth, truth, seconds=[0.4, 0.05, 0.0, 0.05]).fps == 8
    assert score(truth, truth).fps is None


# --- several sequences


def test_a_summary_is_the_mean_over_sequences_however_long() -> None:
    parts, expected = {}, []
    for i, frames in enumerate((5, 40, 13)):
        truth = boxes(20 + i, frames)
        predicted = boxes(30 + i, near=truth)
        parts[f"s{i}"] = score(
            predicted, truth, np.full(frames, 10.0 * i), np.zeros(frames), np.full(frames, 0.1)
        )
        expected.append(reference(predicted, truth))
    total = summarise(parts)
    assert total.frames == 58
    for name in (*NUMBERS, "mean_centre_error", "success_curve", "precision_curve", "normalised_curve"):
        assert np.allclose(getattr(total, name), np.mean([e[name] for e in expected], axis=0), atol=1e-12), (
            name
        )
    assert total.orientation_error == pytest.approx((0 + 10 * 39 / 40 + 20 * 12 / 13) / 3)
    assert total.fps == pytest.approx(10)
    assert summarise({"one": parts["s1"]}) == parts["s1"]
    with pytest.raises(
        ValueError, match="fps is known of some sequences and not of s1: score all with it, or none"
    ):
        summarise(parts | {"s1": replace(parts["s1"], fps=None)})
    with pytest.raises(ValueError, match="nothing to summarise"):
        summarise({})


def test_a_score_is_plain_numbers_that_survive_json() -> None:
    truth = boxes(13)
    result = score(boxes(14, near=truth), truth, np.zeros(60), np.ones(60), np.full(60, 0.02))
    assert Score(**json.loads(json.dumps(asdict(result)))) == result
    assert hash(result) == hash(replace(result))
    text = str(result)
    assert f"success {result.success:.3f}, precision {result.precision:.3f} at 20 px" in text
    assert text.endswith("orientation error 1.0° (100.0% within 45°), 50.0 fps")  # 59/60 of a degree
    assert "°" not in str(score(truth, truth)) and "fps" not in str(score(truth, truth))
    with pytest.raises(ValueError, match="success_curve has 3 values: it needs 21"):
        replace(result, success_curve=(1, 1, 1))
