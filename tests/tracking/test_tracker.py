"""The tracker finds a target of known place, size and angle by the published rule, and stays finite."""

import numpy as np
import pytest
import torch
from torch import nn

import ien
from ien.tracking.data.boxes import centres
from ien.tracking.settings import SETTINGS, Settings, settings_for
from ien.tracking.siamfc_network import siamfc
from ien.tracking.tracker import Tracker, Update
from tests.helpers.blob import SIDE, Net, Pixels, box, frame

pytestmark = pytest.mark.usefixtures("one_thread")

MIDDLE, LAST = 128, 256
"""Of an upsampled response of stride 4: 8 · 32 + 1 positions to a side."""


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


@pytest.mark.parametrize(
    ("place", "moved", "scale", "within"),
    [
        ((200, 200), (8, -12), 1, 1e-9),
        ((200, 200), (-44, 20), 1, 1e-9),
        ((200, 200), (6.2, 30.7), 1, 0.5),
        ((200, 200), (10, -6), 0.5, 0.25),
        ((2, 398), (0, 0), 1, 2),  # the border cuts it
    ],
)
def test_a_place_is_found_exactly_or_within_half_a_pixel(place, moved, scale, within) -> None:
    tracker = Tracker(Pixels(), scales=1, window=0)
    tracker.init(frame(place, scale=scale), box(place, SIDE * scale))
    found = tracker.update(frame((place[0] + moved[0], place[1] + moved[1]), scale=scale))
    assert np.abs(found.box - box(place, SIDE * scale) - [*moved, 0, 0]).max() <= within
    assert found.angle == 0 and 0.5 < found.score <= 1


def test_a_moving_target_is_followed_with_the_published_settings() -> None:
    tracker = started()
    for i in range(1, 13):
        place = (200 + 5 * i, 200 - 4 * i + i % 3)
        found = tracker.update(frame(place))
        assert np.abs(centres(found.box) - place).max() < 2
        assert found.box[2] == pytest.approx(SIDE, rel=0.05)


@pytest.mark.parametrize("rate", [1.02, 1 / 1.02])
def test_a_change_of_size_is_followed(rate) -> None:
    tracker = started()
    for i in range(1, 26):
        found = tracker.update(frame(scale=rate**i))
        assert found.box[2] == found.box[3] == pytest.approx(SIDE * rate**i, rel=0.12)
        assert np.abs(centres(found.box) - 200).max() < 2


def test_a_frame_rotated_by_quarter_turns_has_that_angle() -> None:
    tracker = started(rotations=4)
    for quarters in (1, 2, 3, 0, 2):
        found = tracker.update(np.ascontiguousarray(np.rot90(frame(), quarters)))
        assert found.angle == 90 * quarters
        assert found.box.tolist() == pytest.approx(box().tolist(), abs=0.51)


@pytest.mark.parametrize("rotations", [8, 12])
def test_the_angle_of_a_rotated_target_is_found_among_all(rotations) -> None:
    tracker = started(rotations)
    for index in (1, 5, 2, 7):
        degrees = index * 360 / rotations
        found = tracker.update(frame((203, 195), degrees))
        assert found.angle == pytest.approx(degrees)
        assert np.abs(centres(found.box) - [203, 195]).max() < 1 and found.box[2] == pytest.approx(SIDE)


@pytest.mark.parametrize(("row", "column"), [(MIDDLE, MIDDLE), (100, 131), (0, LAST)])
def test_positions_of_the_response_are_pixels_of_the_frame(monkeypatch, row, column) -> None:
    tracker = Tracker(Pixels(), window=0)
    tracker.init(frame(), box(side=30))
    found = answering(monkeypatch, tracker, bumps([[0, 0, 1]], row, column))
    # half a pixel of a search picture, which is 60 · 255 / 127 · 1.0816 pixels of the frame
    pixels = 0.5 * 60 / 127 * 1.0816
    assert centres(found.box) == pytest.approx(200 + pixels * np.array([column - 128, row - 128]))
    assert found.box[2] == pytest.approx(30 * (1 + 0.59 * 0.0816))
    assert found.score == pytest.approx(1 / (1 + np.exp(-1)))


@pytest.mark.parametrize(
    ("grown", "heights"),
    [(0, [1.02, 1, 1.03]), (-1, [1.04, 1, 1.03]), (1, [1, 1, 1.04]), (0, [-1, -1, -1]), (1, [-1, -1, -0.9])],
)
def test_another_size_must_be_better_by_the_penalty(monkeypatch, grown, heights) -> None:
    found = answering(monkeypatch, started(), bumps([heights]))
    assert np.sign(round(found.box[2] - SIDE, 6)) == grown


def test_among_equal_angles_the_last_one_stays(monkeypatch) -> None:
    tracker = started(4)
    assert answering(monkeypatch, tracker, bumps([[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0]])).angle == 180
    assert answering(monkeypatch, tracker, bumps([[1.0, 1, 1]] * 4)).angle == 180


@pytest.mark.parametrize(("template", "sides"), [(0, (60, 30)), (2, (30, 60)), (1, (90 / 2**0.5,) * 2)])
def test_a_hull_follows_the_angle_and_an_upright_box_does_not(monkeypatch, template, sides) -> None:
    heights = np.full((8, 3), 1.0)
    heights[template, 1] = 2.0
    for shape in ("upright", "hull"):
        tracker = Tracker(Pixels(), 8, shape)
        tracker.init(frame(), (170, 185, 60, 30))
        found = answering(monkeypatch, tracker, bumps(heights.tolist()))
        expected = sides if shape == "hull" else (60, 30)
        np.testing.assert_allclose(found.box[2:], expected, rtol=1e-12)
        np.testing.assert_allclose(centres(found.box), (199.5, 199.5), rtol=1e-12)
        np.testing.assert_allclose(np.ptp(found.corners, axis=0), sides, rtol=1e-12)
        unpacked, score, angle = found
        assert unpacked is found.box and (score, angle) == (found.score, 45 * template)


def test_the_centre_of_a_hull_stays_in_the_frame(monkeypatch) -> None:
    tracker = Tracker(Pixels(), 4, "hull", window=0)
    tracker.init(frame(), (0, 10, 40, 20))
    for _ in range(5):
        found = answering(
            monkeypatch, tracker, bumps([[1.0] * 3, [1.0, 2.0, 1.0], [1.0] * 3, [1.0] * 3], 0, 0)
        )
    assert found.angle == 90 and found.box[2:].tolist() == [20, 40]
    assert centres(found.box).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("rotations", "shape", "message"),
    [
        (4, "tight", "box must be upright or hull; got 'tight'"),
        (1, "hull", 'this tracker tries a single one: give rotations=4 .*--templates 4.*, or box="upright"'),
    ],
)
def test_a_shape_of_boxes_that_cannot_be_is_refused(rotations, shape, message) -> None:
    with pytest.raises(ValueError, match=message):
        Tracker(Pixels(), rotations, shape)


def test_the_window_decides_between_equal_peaks(monkeypatch) -> None:
    responses = bumps([[0, 1, 0]], MIDDLE, MIDDLE + 100)
    responses[0, 1, MIDDLE, MIDDLE - 60] = 1
    found = answering(monkeypatch, started(), responses)
    assert centres(found.box) == pytest.approx([200 - 30, 200])
    hann = np.hanning(LAST + 1)[:, None] * np.hanning(LAST + 1)
    relief = responses[0, 1] + 2
    combined = 0.75 * relief / relief.sum() + 0.25 * hann / hann.sum()
    assert np.unravel_index(combined.argmax(), combined.shape) == (MIDDLE, MIDDLE - 60)


@pytest.mark.parametrize(
    ("side", "smallest", "largest"),
    [(63.5, 12.7, 317.5), (20, 10, 100), (6, 6, 30), (300, 60, 401), (500, 100, 500)],
)
def test_sizes_stay_within_the_limits(monkeypatch, side, smallest, largest) -> None:
    for heights, limit in (([2, 1, 1], smallest), ([1, 1, 2], largest)):
        tracker = Tracker(Pixels(), scale_step=2)
        tracker.init(frame(), box(side=side))
        for _ in range(8):
            found = answering(monkeypatch, tracker, bumps([heights]))
        assert found.box[2] == pytest.approx(limit)


@pytest.mark.parametrize("rotations", [1, 4])
def test_where_nothing_shows_nothing_changes(rotations) -> None:
    flat = np.full((401, 401, 3), 77, np.uint8)
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
        assert (centres(found.box) >= 0).all() and (centres(found.box) <= 400).all()


@pytest.mark.parametrize(
    "where",
    [(0, 0, 160, 120), (-150, -110, 310, 230), (10, 10, 0.01, 0.01), (155, 115, 30, 30), (0, 50, 160, 1)],
)
def test_no_box_and_no_random_network_gives_nan(where) -> None:
    draw = np.random.default_rng(1)
    frames = draw.integers(0, 256, (3, 120, 160, 3), dtype=np.uint8)
    tracker = Tracker(Net(), rotations=3)
    tracker.init(frames[0], where)
    for image in frames[1:]:
        found = tracker.update(image)
        x, y = centres(found.box)
        assert np.isfinite(found.box).all() and (found.box[2:] > 0).all() and 0 <= found.score <= 1
        assert 0 <= x <= 159 and 0 <= y <= 119 and 0 <= found.angle < 360


@pytest.mark.parametrize(
    ("backbone", "published"),
    [("alexnet-v1", (3, 1.0375, 0.9745, 0.59, 0.176, 16)), ("alexnet-v2", (3, 1.0816, 0.97, 0.59, 0.25, 8))],
)
def test_both_backbones_track_with_their_published_settings(backbone, published) -> None:
    net = siamfc(backbone, feature_groups=4, width=1 / 16)
    tracker = Tracker(net.train(), rotations=4)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    tracker.init(frame(), box())
    found = tracker.update(frame((204, 200)))
    assert tracker.settings == SETTINGS[backbone] and SETTINGS[backbone][:6] == published
    assert Tracker(net, window=0.3).settings == SETTINGS[backbone]._replace(window=0.3)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not net.training and np.isfinite(found.box).all() and found.angle in (0, 90, 180, 270)
    assert settings_for(None, {}) == settings_for("own", {}) == Settings()


def test_init_forgets_inputs_stay_and_results_are_the_callers() -> None:
    image, where = frame().copy(), box()
    tracker = Tracker(Net(), rotations=4)
    runs = []
    for _ in range(2):
        tracker.init(image, where)
        runs.append([tracker.update(frame((200 + 3 * i, 200), 10 * i)) for i in range(1, 4)])
    for one, other in zip(*runs, strict=True):
        assert one.box.tolist() == other.box.tolist() and one[1:] == other[1:]
    assert (image == frame()).all() and (where == box()).all()
    tracker = started()
    tracker.update(image).box[:] = -1
    assert tracker.update(image).box.tolist() == pytest.approx(box().tolist(), abs=0.51)
    assert (image == frame()).all()


def watched(model: nn.Module) -> list[tuple[torch.Tensor, bool, bool]]:
    """What the model is given from now on, whether in inference mode, and whether to train."""
    seen = []
    model.register_forward_pre_hook(
        lambda module, inputs: seen.append((inputs[0], torch.is_inference_mode_enabled(), module.training))
    )
    return seen


def test_rotated_templates_show_the_frame_in_their_corners() -> None:
    coarse = np.random.default_rng(0).integers(60, 256, (41, 41, 3), dtype=np.uint8)
    model = Net()
    seen = watched(model)
    Tracker(model, rotations=8).init(np.kron(coarse, np.ones((10, 10, 1), np.uint8)), box())
    ((templates, *_),) = seen
    assert templates.shape == (8, 3, 127, 127) and float(templates.min()) > 55 / 255  # nothing black came in
    for quarters in range(4):
        assert torch.equal(templates[2 * quarters], templates[0].rot90(quarters, (1, 2)))
    again = ien.rotation(8).act(templates[:1], torch.tensor([1]))[0]
    assert (again - templates[1]).abs()[:, 25:-25, 25:-25].max() < 1e-4


def test_networks_run_without_gradients_and_spoil_none_of_others() -> None:
    tracker = started(rotations=3)
    seen = watched(tracker.model)
    tracker.init(frame(), box())
    tracker.update(frame())
    assert [modes for _, *modes in seen] == [[True, False]] * 2
    side = 127 + 2 * 28  # of the picture that the tracker rotated
    weight = torch.ones(1, requires_grad=True)
    ien.rotation(3).act(weight * torch.rand(2, 3, side, side), torch.tensor([1, 2])).sum().backward()
    assert weight.grad is not None


# --- what is refused


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ((500, 10, 20, 20), "lies outside the frame of 401×401"),
        ((-30, 10, 30, 20), "outside"),
        ((10, 10, 20, 0), "with an area"),
        ((10, 10, -5, 20), "negative"),
        ((np.nan, 10, 20, 20), "NaN"),
        ((10, 10, 20, np.inf), "infinite"),
        ((10, 10, 20), "x, y, w, h"),
        ([(10, 10, 20, 20)], "one box"),
        ("10,10,20,20", "x, y, w, h"),
        ((0, 0, 900, 20), "twice"),
    ],
)
def test_boxes_that_hold_no_target_are_refused(where, message) -> None:
    tracker = started()
    with pytest.raises(ValueError, match=message):
        tracker.init(frame(), where)
    with pytest.raises(RuntimeError, match=r"init\(image, box\)"):  # the earlier target is not taken for it
        tracker.update(frame())


def test_frames_of_another_kind_are_refused_and_the_target_is_kept() -> None:
    tracker = started()
    with pytest.raises(ValueError, match="399×401 pixels came after a first one of 401×401"):
        tracker.update(frame(size=(401, 399)))
    with pytest.raises(ValueError, match="float32"):
        tracker.update(frame().astype(np.float32))
    assert np.isfinite(tracker.update(frame()).box).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scale_stepp": 1.1}, "did you mean scale_step"),
        ({"scales": 2}, "odd"),
        ({"scales": 3.0}, "whole"),
        ({"scales": 0}, "1 or more"),
        ({"window": 1.5}, "0 to 1"),
        ({"window": float("nan")}, "0 to 1"),
        ({"scale_step": 1.0}, "above 1"),
        ({"scale_penalty": "much"}, "0 to 1"),
        ({"exemplar": 255}, "larger than exemplar"),
        ({"search": 257}, "multiple of 8"),
        ({"rotations": 0}, "1 or more"),
        ({"rotations": 2.5}, "1 or more"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        Tracker(Pixels(), **settings)


def test_a_model_with_no_stride_or_a_wrong_one_is_refused(monkeypatch) -> None:
    with pytest.raises(ValueError, match=r"siamfc.*Identity.stride is None"):
        Tracker(nn.Identity())
    monkeypatch.setattr(Pixels, "stride", 8)
    with pytest.raises(ValueError, match="should be 17×17; it is 33×33"):
        started().update(frame())


def test_damaged_weights_and_overflows_are_errors_and_not_a_nan_box() -> None:
    class Huge(Pixels):
        def forward(self, x):
            return 1e25 * super().forward(x)

    net = Net()
    damaged, overflowing = Tracker(net), Tracker(Huge(), rotations=4)
    for tracker in (damaged, overflowing):
        tracker.init(frame(), box())
    with torch.no_grad():
        net.layers[0].weight[0, 0, 0, 0] = float("nan")
    for tracker in (damaged, overflowing):
        with pytest.raises(ValueError, match="not finite"):
            tracker.update(frame())
    with pytest.raises(ValueError, match="not finite"):
        damaged.init(frame(), box())
