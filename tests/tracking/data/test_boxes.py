"""Boxes that rotate: their hulls and corners against closed forms, and what a perfect tracker scores."""

import numpy as np
import pytest

from ien.tracking import Tracker, score
from ien.tracking.data.boxes import centres, hulls, rotated_corners
from ien.tracking.data.clip import Clip
from ien.tracking.data.rot_otb import rotated
from tests.helpers.blob import Pixels

WIDE = np.array([100.0, 80.0, 40.0, 20.0])
"""Two to one, with its centre at 119.5, 89.5."""


@pytest.mark.parametrize(
    ("degrees", "sides"),
    [
        (0, (40, 20)),
        (90, (20, 40)),
        (180, (40, 20)),
        (270, (20, 40)),
        (45, (60 / 2**0.5, 60 / 2**0.5)),
        (-30, (20 * 3**0.5 + 10, 20 + 10 * 3**0.5)),
    ],
)
def test_the_hull_of_a_box_of_two_to_one(degrees, sides) -> None:
    (hull,) = hulls(WIDE[None], np.array([float(degrees)]))
    np.testing.assert_allclose(hull[2:], sides, rtol=1e-14)
    np.testing.assert_allclose(centres(hull), (119.5, 89.5), rtol=1e-14)
    corners = rotated_corners(WIDE, degrees)
    np.testing.assert_allclose(np.ptp(corners, axis=0), sides, rtol=1e-13)  # the hull is that of the corners


@pytest.mark.parametrize("degrees", [0.0, 33.0, 90.0, 200.0])
def test_corners_rotate_counter_clockwise_as_seen(degrees) -> None:
    # complex numbers with y up: the upper left corner first, then clockwise
    upright = np.array([-20 + 10j, 20 + 10j, 20 - 10j, -20 - 10j])
    moved = upright * np.exp(1j * np.deg2rad(degrees))
    expected = np.stack([119.5 + moved.real, 89.5 - moved.imag], 1)
    np.testing.assert_allclose(rotated_corners(WIDE, degrees), expected, atol=1e-12)


def test_a_perfect_tracker_needs_the_hull_on_a_clip_that_rotates() -> None:
    count = 60
    still = Clip("wide", [np.full((200, 260, 3), 90, np.uint8)] * count, np.tile(WIDE, (count, 1)))
    clip = rotated(still)  # 6 degrees a frame: once around
    successes = {}
    for shape in ("upright", "hull"):
        tracker = Tracker(Pixels(), rotations=60, box=shape)
        tracker.init(clip.frame(0), clip.boxes[0])
        target = tracker._target
        boxes = []
        for index in range(count):
            target.centre = centres(clip.boxes[index])
            target.template = index  # its true angle
            found = tracker._update(target, 1.0)
            assert found.angle == clip.angles[index]
            boxes.append(found.box)
        successes[shape] = score(boxes, clip.boxes).success
    assert successes["hull"] > 0.95 and successes["upright"] <= 0.56
