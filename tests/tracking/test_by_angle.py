"""Overlap by angle against loops over frames, sequences and bins."""

import numpy as np
import pytest

from ien.tracking import overlap
from ien.tracking.by_angle import Bin, overlap_by_angle
from ien.tracking.data.clip import Clip

IMAGE = np.zeros((8, 8, 3), np.uint8)
Prediction = tuple[np.ndarray, Clip]


def drifting(seed: int, frames: int, angles: np.ndarray | None) -> Prediction:
    """A tracker that drifts off its target; some true boxes are not known."""
    rng = np.random.default_rng(seed)
    truth = np.column_stack([rng.uniform(0, 100, (frames, 2)), rng.uniform(20, 60, (frames, 2))])
    drift = np.linspace(0, 40, frames)[:, None] * (1, 0, 0, 0)
    predicted = truth + drift + rng.normal(0, 1, (frames, 4))
    truth[5::17] = np.nan
    return np.nan_to_num(predicted, nan=1.0), Clip(f"{seed}", [IMAGE] * frames, truth, angles=angles)


def by_loops(predictions: list[Prediction], since_first: bool) -> dict[float, tuple[float, int]]:
    """Degrees → mean over frames, then sequences, and how many frames."""
    found: dict[float, list[list[float]]] = {}
    for predicted, clip in predictions:
        own: dict[float, list[float]] = {}
        for k in range(len(clip)):
            value = 1.0 if k == 0 else float(overlap(predicted[k], clip.boxes[k]))
            if np.isnan(value):
                continue
            degrees = abs(clip.angles[k]) if since_first else clip.angles[k]
            index = min(range(-1000, 1000), key=lambda n: (abs(15 * n - degrees), -n))
            own.setdefault(15.0 * (index if since_first else index % 24), []).append(value)
        for degrees, values in own.items():
            found.setdefault(degrees, []).append(values)
    result = {}
    for degrees, each in found.items():
        result[degrees] = (sum(sum(v) / len(v) for v in each) / len(each), sum(map(len, each)))
    return result


def check(bins: list[Bin], expected: dict[float, tuple[float, int]]) -> None:
    assert [one.degrees for one in bins] == sorted(expected)
    for degrees, value, frames in bins:
        assert abs(value - expected[degrees][0]) < 1e-12 and frames == expected[degrees][1]


@pytest.mark.parametrize("rate", [6.0, -20.0])
def test_means_are_over_frames_then_sequences_as_far_as_half_of_them_get(rate) -> None:
    lengths = (20, 80, 120, 60)
    rotating = [drifting(k, frames, rate * np.arange(frames)) for k, frames in enumerate(lengths)]
    found = overlap_by_angle([*rotating, drifting(9, 30, None), drifting(10, 30, np.zeros(30))])
    check(found.orientation, by_loops(rotating, False))
    reached = np.floor(abs(rate) * 79 / 15 + 0.5) * 15  # two of four sequences have 80 frames or more
    onward = {degrees: value for degrees, value in by_loops(rotating, True).items() if degrees <= reached}
    check(found.turned, onward)
    assert found.turned[-1].degrees == reached > 360


def test_a_target_that_rotates_back_is_where_it_was() -> None:
    angles = np.concatenate([np.arange(0, 90, 5), np.arange(90, -90, -5)])
    rotating = [drifting(1, len(angles), angles)]
    found = overlap_by_angle(rotating)
    check(found.orientation, by_loops(rotating, False))
    check(found.turned, by_loops(rotating, True))
    assert found.turned[-1].degrees == 90


def test_where_nothing_rotates_there_are_no_bins() -> None:
    assert overlap_by_angle([drifting(1, 30, None), drifting(2, 30, np.full(30, 40.0))]) == ([], [])
