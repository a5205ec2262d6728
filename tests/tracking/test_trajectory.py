"""Tracks: what a tracker returns for each frame, in order, as arrays and as a table."""

import csv
import time

import numpy as np
import pytest

from ien.tracking.data.clip import Clip
from ien.tracking.data.synthetic import synthetic
from ien.tracking.scoring import score
from ien.tracking.tracker import Tracker
from ien.tracking.trajectory import Track, follow, gather, track, write_csv
from tests.helpers.blob import Pixels, box, frame

pytestmark = pytest.mark.usefixtures("one_thread")

PLACES = [(200.0, 200.0), (206.0, 198.0), (211.0, 195.0), (218.0, 190.0)]


CLIP = Clip("blob", [frame(place) for place in PLACES], np.array([box(place) for place in PLACES]))


class Counting:
    """Answers with the number of the frame."""

    def __init__(self) -> None:
        self.given: list[np.ndarray] = []
        self.count = 0

    def init(self, image: np.ndarray, box: np.ndarray) -> None:
        self.given.append(box)

    def update(self, image: np.ndarray) -> tuple[np.ndarray, float, float]:
        self.count += 1
        time.sleep(0.01)
        return np.full(4, float(self.count)), self.count / 10, 10.0 * self.count


def test_a_clip_is_tracked_from_its_first_box_to_its_last_frame() -> None:
    found = track(Tracker(Pixels()), CLIP)
    assert found.boxes.shape == (4, 4) and found.boxes.dtype == np.float64
    assert found.boxes[0].tolist() == box().tolist() and found.scores[0] == 1 and found.angles[0] == 0
    assert np.abs(found.boxes - CLIP.boxes).max() < 3
    assert (found.seconds > 0).all() and (found.scores[1:] > 0.9).all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 8])
def test_a_target_that_rotates_is_followed_better_with_rotated_templates(seed) -> None:
    turning = synthetic(seed, frames=40)
    scores = []
    for rotations in (8, 1):
        found = track(Tracker(Pixels(), rotations), turning)
        scores.append(score(found.boxes, turning.boxes, found.angles, turning.angles, found.seconds))
    several, one = scores
    assert several.mean_overlap > 0.5 and (several.within_45 or 0) > 0.7
    assert one.mean_centre_error > 3 * several.mean_centre_error


def test_rows_are_what_the_tracker_said_and_times_are_its_own() -> None:
    def slow_frames():
        for place in PLACES:
            time.sleep(0.05)
            yield frame(place)

    tracker, told = Counting(), []
    progress = lambda done, total: told.append((done, total))  # noqa: E731
    found = track(tracker, slow_frames(), (1, 2, 3, 4), progress)
    assert found.boxes.tolist() == [[1, 2, 3, 4], [1] * 4, [2] * 4, [3] * 4]
    assert found.scores.tolist() == [1, 0.1, 0.2, 0.3] and found.angles.tolist() == [0, 10, 20, 30]
    assert (found.seconds[1:] >= 0.01).all() and found.seconds[0] < 0.05
    track(tracker, CLIP, [9, 9, 9, 9], progress)  # a given box overrides that of the clip
    assert [given.tolist() for given in tracker.given] == [[1, 2, 3, 4], [9] * 4]
    assert told == [(1, None), (2, None), (3, None), (4, None), (1, 4), (2, 4), (3, 4), (4, 4)]


def test_frames_are_asked_for_one_by_one() -> None:
    frames = iter([frame()] * 5)
    steps = follow(Counting(), frames, box())
    next(steps), next(steps)
    assert len(list(frames)) == 3


def test_errors_say_which_frame_or_what_is_missing() -> None:
    frames = [frame(), frame(), frame(size=(300, 401))]
    unknown = Clip("late", [frame()] * 2, np.array([[np.nan] * 4, box()]))
    for arguments, message in (
        ((Tracker(Pixels()), frames, box()), "frame 3: a frame of 401×300"),
        ((Tracker(Pixels()), frames, (900, 0, 5, 5)), r"frame 1: the box .* outside"),
        ((Tracker(Pixels()), unknown), r"frame 1: .*NaN"),
        ((Counting(), [frame()]), "give box"),
        ((Counting(), [], box()), "at least one"),
    ):
        with pytest.raises(ValueError, match=message):
            track(*arguments)
    with pytest.raises(ValueError, match="at least one"):
        gather([])


def test_a_table_has_a_line_for_each_frame(tmp_path) -> None:
    columns = ([[1, 2, 3, 4], [1.25, -2.5, 3, 4]], [1, 0.123456789], [0, 337.5], [0.5, 0.0125])
    found = Track(*map(np.array, columns))
    path = write_csv(tmp_path / "new" / "track.csv", found)
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["frame", "x", "y", "w", "h", "score", "angle", "seconds"]
    numbers = [[float(value) for value in row.values()] for row in rows]
    assert numbers == [[0, 1, 2, 3, 4, 1, 0, 0.5], [1, 1.25, -2.5, 3, 4, 0.123457, 337.5, 0.0125]]
    later = write_csv(path, found, first=7).read_text().splitlines()
    assert [line.split(",")[0] for line in later] == ["frame", "7", "8"]
