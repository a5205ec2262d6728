"""Drawing: boxes, hands and labels on frames, and strips of frames."""

import numpy as np
import pytest

from ien.tracking.data.boxes import hulls, rotated_corners
from ien.tracking.drawing import YELLOW, annotate, write_strip

PIL = pytest.importorskip("PIL.Image", reason="drawing needs pillow: pip install 'ien[track]'")


@pytest.mark.parametrize(("angle", "way"), [(0, (0, -1)), (90, (-1, 0)), (180, (0, 1)), (270, (1, 0))])
def test_the_hand_points_up_rotated_counter_clockwise(angle, way) -> None:
    ground = np.full((121, 161, 3), 90, np.uint8)
    shown = annotate(ground, (50, 30, 61, 61), angle)
    assert (ground == 90).all()
    for x, y in ((0, -1), (-1, 0), (0, 1), (1, 0)):
        point = shown[60 + 20 * y, 80 + 20 * x].tolist()
        assert point == (list(YELLOW) if (x, y) == way else [90, 90, 90])
    assert (annotate(ground, (50, 30, 61, 61))[45:76, 65:96] == 90).all()


@pytest.mark.parametrize(
    "where", [(50, 30, 61, 61), (-20, -20, 50, 50), (150, 100, 60, 60), (0, 0, 1e7, 1e7), (5, 5, 0.1, 0.1)]
)
def test_boxes_and_labels_anywhere_are_drawn_in_the_frame(where) -> None:
    shown = annotate(np.full((121, 161, 3), 90, np.uint8), where, 33, "0.87  33°")
    assert shown.shape == (121, 161, 3) and (shown == YELLOW).all(2).sum() > 20
    with pytest.raises(ValueError, match="finite"):
        annotate(shown, (np.nan, 0, 5, 5))


def test_a_rotated_box_is_drawn_in_place_of_the_upright_one() -> None:
    ground = np.full((121, 161, 3), 90, np.uint8)
    box = np.array([50.0, 50.0, 61.0, 21.0])  # its centre is at 80, 60
    (hull,) = hulls(box[None], np.array([45.0]))
    corners = rotated_corners(box, 45)
    shown = annotate(ground, hull, 45, rotated=corners)
    yellow = (shown == YELLOW).all(2)
    for start, end in zip(corners, np.roll(corners, -1, 0), strict=True):
        for share in (0.1, 0.5, 0.9):  # along every side
            x, y = np.round(start + share * (end - start)).astype(int)
            assert yellow[y - 1 : y + 2, x - 1 : x + 2].any()
    left, top = np.round(hull[:2]).astype(int)
    assert not yellow[top : top + 8, left : left + 8].any()  # nothing in a corner of the hull
    # the hand stays in the box: its tip is 0.42 of the shorter side away
    tip = np.round(np.array([80, 60]) - 0.42 * 21 / 2**0.5).astype(int)
    assert yellow[tip[1] - 1 : tip[1] + 2, tip[0] - 1 : tip[0] + 2].any()
    for away in (np.array([[np.nan, 0]] * 4), np.zeros((3, 2))):
        with pytest.raises(ValueError, match="four finite corners x, y; got"):
            annotate(ground, hull, rotated=away)
    far = annotate(ground, hull, rotated=corners + 1e9)
    assert far.shape == ground.shape


def test_a_strip_shows_frames_row_by_row(tmp_path) -> None:
    frames = [np.full((6, 10, 3), 40 * k, np.uint8) for k in range(5)]
    with PIL.open(write_strip(tmp_path / "new" / "strip.png", frames)) as picture:
        found = np.array(picture)
    assert found.shape == (6 + 4 + 6, 10 + 4 + 10 + 4 + 10, 3)
    assert found[0, ::14].tolist() == [[k] * 3 for k in (0, 40, 80)]
    assert found[10, ::14].tolist() == [[120] * 3, [160] * 3, [255] * 3] and (found[6:10] == 255).all()
