"""Scores of trackers: against loops in plain Python, closed forms and the GOT-10k toolkit."""

import itertools
import json
import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from ien.tracking import Score, centre_error, overlap, score, summarise
from ien.tracking.scoring import PRECISION_THRESHOLDS, SUCCESS_THRESHOLDS, angle_between, frame_overlaps

NAN = math.nan


def boxes(seed: int, frames: int = 60) -> np.ndarray:
    """Random boxes, in quarter pixels so that arithmetic is exact."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.integers(0, 800, (frames, 2)), rng.integers(20, 400, (frames, 2))], 1) / 4


def predicted_and_true(seed: int, frames: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Random boxes, and the same moved a little."""
    rng, truth = np.random.default_rng(seed + 100), boxes(seed, frames)
    moved = truth + rng.integers(-60, 60, truth.shape) * rng.choice([0.0, 0.25, 1.0], (frames, 1))
    return np.concatenate([moved[:, :2], np.maximum(moved[:, 2:], 1)], 1), truth


def loop_overlap(a: Any, b: Any) -> float:
    """Intersection over union of two boxes, from their corners."""
    width = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    height = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    return width * height / (a[2] * a[3] + b[2] * b[3] - width * height)


def reference(predicted: Any, truth: Any) -> dict[str, Any]:
    """The protocol written out: OTB's curves with loops over frames and thresholds."""
    overlaps, errors, parts = [], [], []
    for i, (p, t) in enumerate(zip(predicted.tolist(), truth.tolist(), strict=True)):
        p = p if i else t  # the first frame is given
        if any(math.isnan(value) for value in t) or t[2] <= 0 or t[3] <= 0:
            continue
        x, y = (p[0] + p[2] / 2) - (t[0] + t[2] / 2), (p[1] + p[3] / 2) - (t[1] + t[3] / 2)
        overlaps.append(loop_overlap(p, t))
        errors.append(math.sqrt(x * x + y * y))
        parts.append(math.sqrt((x / t[2]) ** 2 + (y / t[3]) ** 2))
    n = len(overlaps)
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


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_those_of_loops_and_nothing_given_is_changed(seed) -> None:
    predicted, truth = predicted_and_true(seed)
    expected = reference(predicted, truth)
    angles = np.arange(60.0)
    result = score(predicted, truth, angles, angles + 5)
    assert_is(result, expected)
    assert 0.05 < expected["success"] < 0.95 and 0.05 < expected["precision"] < 1  # nothing trivial
    assert all(map(np.array_equal, (predicted, truth), predicted_and_true(seed)))
    assert np.array_equal(angles, np.arange(60.0))
    one = np.array([1, 1, 0, 0])  # counting pixels from 0 or from 1 makes no difference
    assert score(predicted + one, truth + one, angles, angles + 5) == result


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_those_of_the_got10k_toolkit(seed) -> None:
    pytest.importorskip("got10k", reason="pip install got10k to compare with its numbers")
    from got10k.experiments import ExperimentOTB
    from got10k.utils.metrics import center_error, rect_iou

    predicted, truth = predicted_and_true(seed)
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
    truth = boxes(0) + np.array([0.1, 0.2, 0.3, 0.7])  # inexact in binary: rounding must not lift it above 1
    result = score(truth, truth, 3 * np.arange(60), 3 * np.arange(60) - 720)
    assert result.success == 20 / 21 and result.success_curve == (1.0,) * 20 + (0.0,)
    ones = (result.precision, result.precision_auc, result.normalised_precision, result.within_45)
    assert ones == (1, 1, 1, 1) and abs(result.mean_overlap - 1) < 1e-12
    assert result.orientation_error == result.mean_centre_error == 0


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


def test_success_is_strict_and_precision_is_not() -> None:
    truth = np.array([[0, 0, 20, 10]] * 2, float)
    result = score(np.array([[0, 0, 20, 10], [0, 0, 10, 10]], float), truth)  # overlap 0.5, 5 px away
    assert result.success_curve[9] == 1 and result.success_curve[10] == 0.5
    assert result.precision_curve[4] == 0.5 and result.precision_curve[5] == 1
    assert SUCCESS_THRESHOLDS[10] == 0.5 and PRECISION_THRESHOLDS[5] == 5
    for k in range(1, 20):  # an overlap of k/20 is no success at k/20, whatever its last bit
        curve = score(np.array([[0, 0, 20, 10], [0, 0, k, 10]], float), truth).success_curve
        assert curve[k] == 0.5 and curve[k - 1] == 1


def test_overlap_is_symmetric_broadcasts_and_knows_no_area() -> None:
    a, b = boxes(5), boxes(6)
    assert np.array_equal(overlap(a, b), overlap(b, a))
    assert np.array_equal(centre_error(a, b), centre_error(b, a))
    table = overlap(a[:, None], b[None])
    assert np.abs(table - [[loop_overlap(p, q) for q in b] for p in a]).max() < 1e-15
    assert table[3, 50] == overlap(a[3], b[50])
    assert overlap([5, 5, 0, 0], [5, 5, 0, 0]) == 0 == overlap([5, 5, 0, 3], [0, 0, 9, 9])
    assert overlap([0, 0, 2, 2], [2, 0, 2, 2]) == 0  # they touch
    assert np.isnan(overlap([NAN] * 4, a)).all() and np.isnan(centre_error(a, [NAN] * 4)).all()
    assert centre_error([0, 0, 1, 1], [3, 4, 1, 1]) == 5


# --- which frames count


def test_the_first_frame_counts_as_correct_whatever_was_predicted() -> None:
    predicted, truth = predicted_and_true(7)
    angles, elsewhere, turned = np.arange(60.0), predicted.copy(), np.arange(60.0)
    elsewhere[0], turned[0] = (900, 900, 1, 1), 180
    assert score(elsewhere, truth, turned, angles) == score(predicted, truth, angles, angles)


@pytest.mark.parametrize("blank", [[NAN] * 4, [0, 0, 0, 0], [30, 40, 0, 10], [3, NAN, 5, 5]])
def test_frames_without_truth_are_left_out(blank) -> None:
    predicted, truth = predicted_and_true(9)
    gone, rest = truth.copy(), np.delete(np.arange(60), [5, 17, 59])
    gone[[5, 17, 59]] = blank
    result = score(predicted, gone, np.arange(60.0), np.zeros(60))
    assert result == score(predicted[rest], truth[rest], rest.astype(float), np.zeros(57))
    assert_is(result, reference(predicted, gone))
    each = frame_overlaps(predicted, gone)
    assert np.isnan(each[[5, 17, 59]]).all() and each[0] == 1
    assert np.nanmean(each) == pytest.approx(result.mean_overlap, abs=1e-15)
    gone[0] = blank
    assert score(predicted, gone).frames == 56 == result.frames - 1


# --- orientation, speed, several sequences


def test_an_angle_between_orientations_is_that_of_their_directions() -> None:
    a, b = np.random.default_rng(0).uniform(-1000, 1000, (2, 50))
    toward = [np.stack([np.cos(np.radians(each)), np.sin(np.radians(each))]) for each in (a, b)]
    expected = np.degrees(np.arccos(np.clip((toward[0] * toward[1]).sum(0), -1, 1)))
    assert np.allclose(angle_between(a, b), expected, atol=1e-4)
    assert np.isnan(angle_between([NAN], [3.0])).all()


def test_orientation_errors_go_the_shorter_way_round() -> None:
    truth = boxes(11, 6)
    given, true = [7, 350, 10, 225, 45, -46], [0, 10, 350, 45, 0, 0]
    result = score(truth, truth, given, true)
    errors = [0, 20, 20, 180, 45, 46]  # the first counts as correct
    assert result.orientation_error == sum(errors) / 6 and result.within_45 == 4 / 6
    assert score(truth, truth, given + 360 * np.arange(-3, 3), true) == result
    some = score(truth, truth, given, [0, 10, 350, NAN, 0, 0])
    assert some.orientation_error == (20 + 20 + 45 + 46) / 5
    assert score(truth, truth, given).orientation_error is None
    assert score(truth, truth, None, true).within_45 is None
    assert score(truth, truth, given, [NAN] * 6).orientation_error is None
    assert score(truth, truth, seconds=[0.4, 0.05, 0.0, 0.05, 0.2, 0.05]).fps == 8 and result.fps is None


def test_a_summary_is_the_mean_over_sequences_however_long() -> None:
    parts, expected = {}, []
    for i, frames in enumerate((5, 40, 13)):
        predicted, truth = predicted_and_true(20 + i, frames)
        more = np.full(frames, 10.0 * i), np.zeros(frames), np.full(frames, 0.1)
        parts[f"s{i}"] = score(predicted, truth, *more)
        expected.append(reference(predicted, truth))
    total = summarise(parts)
    means = {name: np.mean([one[name] for one in expected], axis=0) for name in expected[0]}
    assert_is(total, means | {"frames": 58, "fps": 10})
    assert total.orientation_error == pytest.approx((0 + 10 * 39 / 40 + 20 * 12 / 13) / 3)
    assert summarise({"one": parts["s1"]}) == parts["s1"]
    with pytest.raises(ValueError, match="fps is known for some sequences but not for s1: score all"):
        summarise(parts | {"s1": replace(parts["s1"], fps=None)})
    with pytest.raises(ValueError, match="nothing to summarise"):
        summarise({})


def test_a_score_is_plain_numbers_that_survive_json() -> None:
    predicted, truth = predicted_and_true(13)
    result = score(predicted, truth, np.zeros(60), np.ones(60), np.full(60, 0.02))
    assert Score(**json.loads(json.dumps(asdict(result)))) == result
    assert hash(result) == hash(replace(result))
    text = str(result)
    assert f"success {result.success:.3f}, precision {result.precision:.3f} at 20 px" in text
    assert text.endswith("orientation error 1.0° (100.0% within 45°), 50.0 fps")  # 59/60 of a degree
    assert "°" not in str(score(truth, truth)) and "fps" not in str(score(truth, truth))
    with pytest.raises(ValueError, match="success_curve needs 21 values; got 3"):
        replace(result, success_curve=(1, 1, 1))


# --- input

GOOD = boxes(15, 5)


def changed(row: int, column: int, value: float) -> np.ndarray:
    copy = GOOD.copy()
    copy[row, column] = value
    return copy


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("predicted has NaN in frame 4: a tracker gives a box for every frame", (changed(3, 1, NAN), GOOD)),
        ("predicted has 5 frames and truth 4: .* (maybe predicted[:4])", (GOOD, GOOD[:4])),
        ("predicted has 4 frames and truth 5: .* (maybe truth[:4])", (GOOD[:4], GOOD)),
        ("predicted has a negative width or height in frame 3", (changed(2, 2, -1), GOOD)),
        ("truth has a negative width or height in frame 3", (GOOD, changed(2, 2, -1))),
        ("truth has infinite numbers in frame 5", (GOOD, changed(4, 0, math.inf))),
        ("predicted has shape (5, 3): boxes are rows of x, y, w, h, shape (T, 4)", (GOOD[:, :3], GOOD)),
        ("predicted must be (T, 4), a row for each frame; got shape (4,)", (GOOD[0], GOOD[0])),
        ("truth must be (T, 4), a row for each frame; got shape (1, 5, 4)", (GOOD, GOOD[None])),
        ("predicted must be (T, 4), a row for each frame; got shape (0, 4)", (GOOD[:0], GOOD[:0])),
        ("predicted must be boxes", (["a box"], GOOD)),
        ("truth has no frame with a box that has an area", (GOOD, np.zeros((5, 4)))),
        ("angles has 4 frames and truth 5", (GOOD, GOOD, np.zeros(4), np.zeros(5))),
        ("true_angles must be (T,), .* got shape (5, 1)", (GOOD, GOOD, np.zeros(5), np.zeros((5, 1)))),
        ("angles has a value that is not finite in frame 2", (GOOD, GOOD, [0, NAN, 0, 0, 0], np.zeros(5))),
        ("true_angles has a value that is not finite in frame 1", (GOOD, GOOD, None, [math.inf] * 5)),
        ("seconds has 6 frames and truth 5", (GOOD, GOOD, None, None, np.ones(6))),
        ("seconds must say how long each frame took", (GOOD, GOOD, None, None, np.zeros(5))),
        ("seconds must say how long each", (GOOD, GOOD, None, None, [1, 1, -1, 1, 1])),
    ],
)
def test_bad_input_is_one_line_with_what_is_needed(message, arguments) -> None:
    with pytest.raises(ValueError) as error:
        score(*arguments)
    start, _, end = message.partition(".* ")
    assert start in str(error.value) and end in str(error.value) and "\n" not in str(error.value)
