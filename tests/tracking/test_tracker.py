"""The tracker: finds a target whose place, size and angle are known, by the published rule; stays finite."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ien
from ien.tracking.settings import SETTINGS
from ien.tracking.siamfc_network import siamfc
from ien.tracking.tracker import Tracker, Update
from tests.helpers.blob import SIDE, Net, Pixels, box, frame

pytestmark = pytest.mark.usefixtures("one_thread")

MIDDLE, LAST = 128, 256
"""Of an upsampled response of stride 4: 8 · 32 + 1 places to a side."""


def centre_of(found: np.ndarray) -> np.ndarray:
    return found[:2] + (found[2:] - 1) / 2


def started(rotations: int = 1, **settings: float) -> Tracker:
    tracker = Tracker(Pixels(), rotations, **settings)
    tracker.init(frame(), box())
    return tracker


def answering(monkeypatch: pytest.MonkeyPatch, tracker: Tracker, responses: np.ndarray) -> Update:
    """What the tracker makes of these responses (rotations, scales, 257, 257)."""
    given = torch.from_numpy(responses).float()
    monkeypatch.setattr(tracker, "_responses", lambda target, pictures: given)
    return tracker.update(frame())


def bumps(heights: list[list[float]], row: int = MIDDLE, column: int = MIDDLE) -> np.ndarray:
    """A response for each rotation and scale, low but for a peak of that height."""
    responses = np.full((len(heights), len(heights[0]), LAST + 1, LAST + 1), -2.0)
    responses[:, :, row, column] = heights
    return responses


@pytest.mark.parametrize("moved", [(0, 0), (8, -12), (-44, 20), (52, 52)])
def test_a_target_that_moved_by_whole_places_is_found_exactly(moved: tuple[int, int]) -> None:
    tracker = started(scales=1, window=0)
    found = tracker.update(frame((200 + moved[0], 200 + moved[1])))
    assert found.box.tolist() == pytest.approx((box() + np.array([*moved, 0, 0])).tolist(), abs=1e-9)
    assert found.angle == 0 and 0.5 < found.score <= 1


@pytest.mark.parametrize("moved", [(1.5, -2.5), (-9.5, 3.0), (6.2, 30.7)])
def test_between_places_it_is_found_within_half_a_pixel(moved: tuple[float, float]) -> None:
    found = started(scales=1, window=0).update(frame((200 + moved[0], 200 + moved[1])))
    assert np.abs(centre_of(found.box) - 200 - moved).max() <= 0.5


def test_a_small_target_moves_in_pixels_of_the_frame() -> None:
    tracker = Tracker(Pixels(), scales=1, window=0)
    tracker.init(frame(scale=0.5), box(side=SIDE / 2))
    found = tracker.update(frame((210, 194), scale=0.5))
    assert np.abs(centre_of(found.box) - [210, 194]).max() <= 0.25


def test_a_moving_target_is_followed_with_the_published_settings() -> None:
    tracker = started()
    for i in range(1, 13):
        place = (200 + 5 * i, 200 - 4 * i + i % 3)
        found = tracker.update(frame(place))
        assert np.abs(centre_of(found.box) - place).max() < 2 and found.box[2] == pytest.approx(
            SIDE, rel=0.05
        )


@pytest.mark.parametrize("rate", [1.02, 1 / 1.02])
def test_a_change_of_size_is_followed(rate: float) -> None:
    tracker = started()
    for i in range(1, 26):
        found = tracker.update(frame(scale=rate**i))
        assert found.box[2] == found.box[3] == pytest.approx(SIDE * rate**i, rel=0.12)
        assert np.abs(centre_of(found.box) - 200).max() < 2


def test_a_picture_that_is_turned_by_quarters_has_that_angle() -> None:
    tracker = started(rotations=4)
    for quarters in (1, 2, 3, 0, 2):
        found = tracker.update(np.ascontiguousarray(np.rot90(frame(), quarters)))
        assert found.angle == 90 * quarters
        assert found.box.tolist() == pytest.approx(box().tolist(), abs=0.51)


@pytest.mark.parametrize("rotations", [8, 12])
def test_the_angle_of_a_turned_target_is_found_among_all(rotations: int) -> None:
    tracker = started(rotations)
    for index in (1, 5, 2, 7, 3):
        degrees = index * 360 / rotations
        found = tracker.update(frame((203, 195), degrees))
        assert found.angle == pytest.approx(degrees)
        assert np.abs(centre_of(found.box) - [203, 195]).max() < 1 and found.box[2] == pytest.approx(SIDE)


def test_one_template_loses_a_target_that_turned_and_several_do_not() -> None:
    turned = frame((212, 188), 180)
    assert started(4).update(turned).score > started(1).update(turned).score
    assert np.abs(centre_of(started(4).update(turned).box) - [212, 188]).max() < 2


def test_max_turn_keeps_the_angle_near_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    free, held = started(8), started(8, max_turn=45)
    assert free.update(frame(degrees=180)).angle == 180
    last = 0.0
    for degrees in (180, 180, 180, 180, 0, 270):
        angle = held.update(frame(degrees=degrees)).angle
        assert abs((angle - last + 180) % 360 - 180) <= 45
        last = angle
    around = started(8, max_turn=45)  # from 0° to 315° is one step
    assert answering(monkeypatch, around, bumps([[0, i == 7, 0] for i in range(8)])).angle == 315


@pytest.mark.parametrize(("row", "column"), [(MIDDLE, MIDDLE), (100, 131), (0, LAST)])
def test_places_of_the_response_are_pixels_of_the_frame(
    monkeypatch: pytest.MonkeyPatch, row: int, column: int
) -> None:
    tracker = Tracker(Pixels(), window=0)
    tracker.init(frame(), box(side=30))
    found = answering(monkeypatch, tracker, bumps([[0, 0, 1]], row, column))
    # a place is half a pixel of a search picture, which is 60 · 255 / 127 · 1.0816 pixels of the frame
    pixels = 0.5 * 60 / 127 * 1.0816
    assert centre_of(found.box) == pytest.approx(200 + pixels * np.array([column - 128, row - 128]))
    assert found.box[2] == pytest.approx(30 * (1 + 0.59 * 0.0816))
    assert found.score == pytest.approx(1 / (1 + np.exp(-1)))


def test_another_size_must_be_better_by_the_penalty_and_negative_peaks_do_not_reward_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for heights, grown in [
        ([1.02, 1, 1.03], 0),
        ([1.04, 1, 1.03], -1),
        ([1, 1, 1.04], 1),
        ([-1, -1, -1], 0),
        ([-1, -1, -0.9], 1),
        ([0, 0, 0], 0),
    ]:
        found = answering(monkeypatch, started(), bumps([heights]))
        assert np.sign(round(found.box[2] - SIDE, 6)) == grown


def test_of_equal_angles_the_last_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = started(4)
    assert answering(monkeypatch, tracker, bumps([[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0]])).angle == 180
    assert answering(monkeypatch, tracker, bumps([[1.0, 1, 1]] * 4)).angle == 180


def test_the_window_decides_between_equal_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    responses = bumps([[0, 1, 0]], MIDDLE, MIDDLE + 100)
    responses[0, 1, MIDDLE, MIDDLE - 60] = 1
    found = answering(monkeypatch, started(), responses)
    assert centre_of(found.box) == pytest.approx([200 - 30, 200])
    hann = np.hanning(LAST + 1)[:, None] * np.hanning(LAST + 1)
    relief = responses[0, 1] + 2
    both = 0.75 * relief / relief.sum() + 0.25 * hann / hann.sum()
    assert np.unravel_index(both.argmax(), both.shape) == (MIDDLE, MIDDLE - 60)


def test_sizes_stay_within_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for side, least, most in [
        (63.5, 12.7, 317.5),
        (20.0, 10.0, 100.0),
        (6.0, 6.0, 30.0),
        (300.0, 60.0, 401.0),
        (500.0, 100.0, 500.0),
    ]:
        for heights, limit in (([2, 1, 1], least), ([1, 1, 2], most)):
            tracker = Tracker(Pixels(), scale_step=2)
            tracker.init(frame(), box(side=side))
            for _ in range(8):
                found = answering(monkeypatch, tracker, bumps([heights]))
            assert found.box[2] == pytest.approx(limit)


def test_where_nothing_shows_nothing_changes() -> None:
    flat = np.full((401, 401, 3), 77, np.uint8)
    for rotations in (1, 4):
        for first in (flat, frame()):
            tracker = Tracker(Pixels(), rotations)
            tracker.init(first, box())
            for _ in range(4):
                found = tracker.update(flat)
                assert found.box.tolist() == pytest.approx(box().tolist()) and 0 <= found.score <= 1


def test_a_target_that_leaves_keeps_a_box_in_the_frame() -> None:
    tracker = started(4)
    for i in range(12):
        found = tracker.update(frame((200 + 30 * i, 200 - 10 * i)))
        assert np.isfinite(found.box).all() and np.isfinite(found.score)
        assert (centre_of(found.box) >= 0).all() and (centre_of(found.box) <= 400).all()


EXTREME = [
    (0, 0, 160, 120),
    (-150, -110, 310, 230),
    (10, 10, 0.01, 0.01),
    (155, 115, 30, 30),
    (0, 50, 160, 1),
]


@pytest.mark.parametrize("where", EXTREME)
@pytest.mark.parametrize("rotations", [1, 3])
def test_no_box_and_no_random_network_gives_nan(where: tuple[float, ...], rotations: int) -> None:
    draw = np.random.default_rng(1)
    tracker = Tracker(Net(), rotations, template_rate=0.1)
    tracker.init(draw.integers(0, 256, (120, 160, 3), dtype=np.uint8), where)
    for _ in range(3):
        found = tracker.update(draw.integers(0, 256, (120, 160, 3), dtype=np.uint8))
        centre = centre_of(found.box)
        assert np.isfinite(found.box).all() and (found.box[2:] > 0).all() and 0 <= found.score <= 1
        assert 0 <= centre[0] <= 159 and 0 <= centre[1] <= 119 and 0 <= found.angle < 360


@pytest.mark.parametrize("backbone", ["alexnet-v1", "alexnet-v2"])
def test_both_backbones_track_with_their_published_settings(backbone: str) -> None:
    net = siamfc(backbone, feature_groups=4, width=1 / 16)
    tracker = Tracker(net.train(), rotations=4)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    tracker.init(frame(), box())
    found = tracker.update(frame((204, 200)))
    assert tracker.settings == SETTINGS[backbone] and not net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert np.isfinite(found.box).all() and found.angle in (0, 90, 180, 270)
    assert SETTINGS["alexnet-v1"][:6] == (3, 1.0375, 0.9745, 0.59, 0.176, 16)
    assert SETTINGS["alexnet-v2"][:6] == (3, 1.0816, 0.97, 0.59, 0.25, 8)


def test_a_template_that_is_renewed_knows_how_far_the_target_has_turned() -> None:
    tracker = started(4, template_rate=1.0)
    for quarters in (1, 2, 3, 4, 6):  # after the first, the template shows the target as it was one frame ago
        assert tracker.update(np.ascontiguousarray(np.rot90(frame(), quarters))).angle == 90 * quarters % 360


def test_a_template_that_is_renewed_follows_a_change_of_looks() -> None:
    fixed, renewed = started(), started(template_rate=0.5)
    looks = [frame(), frame(seed=5)]
    for i in range(9):
        mixed = np.round(looks[0] * (1 - i / 8) + looks[1] * (i / 8)).astype(np.uint8)
        first, second = fixed.update(mixed), renewed.update(mixed)
    assert np.abs(centre_of(second.box) - 200).max() < 4 and second.score > first.score


def test_the_same_frames_give_the_same_boxes_and_init_forgets() -> None:
    torch.manual_seed(3)
    tracker = Tracker(Net(), rotations=4)
    runs = []
    for _ in range(2):
        tracker.init(frame(), box())
        runs.append([tracker.update(frame((200 + 3 * i, 200), 10 * i)) for i in range(1, 4)])
    for one, other in zip(*runs, strict=True):
        assert one.box.tolist() == other.box.tolist() and one[1:] == other[1:]


def test_images_and_boxes_are_left_as_they_are_and_results_are_the_callers() -> None:
    image, where = frame().copy(), box()
    tracker = Tracker(Pixels())
    tracker.init(image, where)
    first = tracker.update(image)
    first.box[:] = -1
    assert tracker.update(image).box.tolist() == pytest.approx(box().tolist(), abs=0.51)
    assert (image == frame()).all() and (where == box()).all()


def test_turned_templates_show_the_frame_in_their_corners() -> None:
    seen: list[torch.Tensor] = []

    class Watcher(Pixels):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x)
            return super().forward(x)

    draw = np.random.default_rng(0)
    coarse = draw.integers(60, 256, (41, 41, 3), dtype=np.uint8)
    image = np.kron(coarse, np.ones((10, 10, 1), np.uint8))
    Tracker(Watcher(), rotations=8).init(image, box())
    templates = seen[0]
    assert templates.shape == (8, 3, 127, 127) and float(templates.min()) > 55 / 255  # nothing black came in
    for quarters in range(4):
        assert torch.equal(templates[2 * quarters], templates[0].rot90(quarters, (1, 2)))
    again = ien.rotation(8).act(templates[:1], torch.tensor([1]))[0]
    assert (again - templates[1]).abs()[:, 25:-25, 25:-25].max() < 1e-4
