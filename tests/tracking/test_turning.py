"""Overlap by angle against loops over frames, sequences and bins."""

from __future__ import annotations

import numpy as np
import pytest

from ien.tracking import overlap
from ien.tracking.by_angle import Bin, overlap_by_angle
from ien.tracking.data.clips import Clip

IMAGE = np.zeros((8, 8, 3), np.uint8)


def track(seed: int, frames: int, angles: np.ndarray | None) -> tuple[np.ndarray, Clip]:
    """A tracker that drifts off its target, of which some boxes are not known."""
    rng = np.random.default_rng(seed)
    truth = np.column_stack([rng.uniform(0, 100, (frames, 2)), rng.uniform(20, 60, (frames, 2))])
    drift = np.linspace(0, 40, frames)[:, None] * (1, 0, 0, 0)
    predicted = truth + drift + rng.normal(0, 1, (frames, 4))
    truth[5::17] = np.nan
    return np.nan_to_num(predicted, nan=1.0), Clip(f"{seed}", [IMAGE] * frames, truth, angles=angles)


def by_loops(tracks: list[tuple[np.ndarray, Clip]], turned: bool) -> dict[float, tuple[float, int]]:
    """Degrees → mean over frames, then sequences, and how many frames."""
    found: dict[float, list[list[float]]] = {}
    for predicted, clip in tracks:
        own: dict[float, list[float]] = {}
        for k in range(len(clip)):
            value = 1.0 if k == 0 else float(overlap(predicted[k], clip.boxes[k]))
            if not np.isnan(value):
                degrees = abs(clip.angles[k]) if turned else clip.angles[k]  # type: ignore[index]
                place = min(range(-1000, 1000), key=lambda n: (abs(15 * n - degrees), -n))
                own.setdefault(15.0 * (place if turned else place % 24), []).append(value)
        for place, values in own.items():
            found.setdefault(place, []).append(values)
    return {
        place: (sum(sum(v) / len(v) for v in each) / len(each), sum(map(len, each)))
        for place, each in found.items()
    }


def check(bins: list[Bin], expected: dict[float, tuple[float, int]]) -> None:
    assert [one.degrees for one in bins] == sorted(expected)
    for degrees, value, frames in bins:
        assert abs(value - expected[degrees][0]) < 1e-12 and frames == expected[degrees][1]


@pytest.mark.parametrize("rate", [6.0, -6.0, 20.0])
def test_means_are_over_frames_then_sequences_as_far_as_half_of_the_targets_turn(rate: float) -> None:
    lengths = (20, 80, 120, 60)
    tracks = [track(k, frames, rate * np.arange(frames)) for k, frames in enumerate(lengths)]
    found = overlap_by_angle([*tracks, track(9, 30, None), track(10, 30, np.zeros(30))])
    check(found.orientation, by_loops(tracks, False))
    reached = np.floor(abs(rate) * 79 / 15 + 0.5) * 15  # two of four sequences have 80 frames or more
    onward = {place: value for place, value in by_loops(tracks, True).items() if place <= reached}
    check(found.turned, onward)
    assert found.turned[-1].degrees == reached > 360


def test_a_target_that_turns_back_is_where_it_was() -> None:
    angles = np.concatenate([np.arange(0, 90, 5), np.arange(90, -90, -5)])
    tracks = [track(1, len(angles), angles)]
    found = overlap_by_angle(tracks)
    check(found.orientation, by_loops(tracks, False))
    check(found.turned, by_loops(tracks, True))
    assert found.turned[-1].degrees == 90


def test_where_nothing_turns_there_is_nothing() -> None:
    assert overlap_by_angle([track(1, 30, None), track(2, 30, np.full(30, 40.0))]) == ([], [])
