"""Recordings: a video that shows what the tracker saw, at the rate of its source."""

from fractions import Fraction

import numpy as np
import pytest

from ien.tracking.data.clip import Clip
from ien.tracking.recording import record
from ien.tracking.tracker import Tracker
from ien.tracking.trajectory import Step
from ien.tracking.video import footage, write_video
from tests.helpers.blob import Pixels, box, frame

pytest.importorskip("av", reason="videos need av: pip install 'ien[track]'")
pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_recording_shows_what_the_tracker_saw_at_the_same_rate(tmp_path) -> None:
    frames = [frame((60 + 3 * i, 70), 90 * i, size=(128, 160)) for i in range(6)]
    write_video(tmp_path / "in.mp4", frames, 12.5)
    steps: list[Step] = []
    tracker = Tracker(Pixels(), rotations=4)
    found = record(tracker, tmp_path / "in.mp4", tmp_path / "out.mp4", box((60, 70)), steps.append)
    assert found.track.angles.tolist() == [0, 90, 180, 270, 0, 90] == [step.angle for step in steps]
    shown = footage(tmp_path / "out.mp4")
    assert shown.fps == Fraction(25, 2) and shown.count == 6 and found.codec
    for image, plain, (x, y, _, h) in zip(shown, frames, found.track.boxes, strict=True):
        column = image[int(y) + 8 : int(y + h) - 8, round(x)].astype(int)
        assert (column[:, 0] - column[:, 2]).mean() > 80  # yellow, where the frame is grey
        assert np.abs(image[:, -20:].astype(int) - plain[:, -20:]).mean() < 4
    clip = Clip("own box", frames, np.array([box((60, 70))] * 6))
    assert record(Tracker(Pixels()), clip, tmp_path / "clip.mp4").track.boxes.shape == (6, 4)
