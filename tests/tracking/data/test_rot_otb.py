"""Rotated clips: where pixels and boxes come to lie, and what is written and read again."""

import pickle
from typing import Any

import numpy as np
import pytest

from ien.tracking.data.boxes import upright_sides
from ien.tracking.data.clip import Clip
from ien.tracking.data.clips import otb
from ien.tracking.data.rot_otb import rotated, write

Image = pytest.importorskip("PIL.Image", reason="frames are written by pillow: pip install 'ien[track]'")

SIZES = [(24, 32), (25, 33), (24, 33), (25, 32), (40, 17), (31, 31)]


def noise(size: tuple[int, int], frames: int = 8, box: Any = (3.0, 2.0, 9.0, 6.0)) -> Clip:
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    return Clip("Still", [image] * frames, np.tile(np.array(box, float), (frames, 1)))


def box_around(box: np.ndarray, degrees: float, centre: complex) -> np.ndarray:
    """The upright box around the corners of a box, each rotated about ``centre``."""
    x, y, w, h = box
    left, top, right, bottom = x - 0.5, y - 0.5, x + w - 0.5, y + h - 0.5  # the borders of its pixels
    points = np.array([complex(a, -b) for a in (left, right) for b in (top, bottom)])  # y grows upwards
    moved = (points - centre.conjugate()) * np.exp(1j * np.deg2rad(degrees)) + centre.conjugate()
    x, y = moved.real.min() + 0.5, -moved.imag.max() + 0.5
    return np.array([x, y, np.ptp(moved.real), np.ptp(moved.imag)])


# --- boxes


def test_boxes_are_those_around_rotated_corners() -> None:
    draw = np.random.default_rng(1)
    boxes = np.concatenate([60 + 80 * draw.random((20, 2)), 3 + 40 * draw.random((20, 2))], 1)
    moved = rotated(Clip("any", [np.zeros((240, 320, 3), np.uint8)] * 20, boxes), 0.8, 25)
    on_canvas = np.array([40, 80, 0, 0])  # of 400 pixels
    for i, box in enumerate(boxes):
        expected = box_around(box + on_canvas, 360 * 0.8 * i / 25, 199.5 + 199.5j)
        assert np.abs(moved.boxes[i] - expected).max() < 1e-6


def test_the_sides_around_an_ellipse_are_those_around_its_points() -> None:
    degrees = np.linspace(-400, 400, 161)
    sides = np.tile([30.0, 12.0], (161, 1))
    around = np.linspace(0, 2 * np.pi, 20_001)
    points = 15 * np.cos(around) + 6j * np.sin(around)
    moved = points * np.exp(1j * np.deg2rad(degrees))[:, None]
    expected = np.stack([np.ptp(moved.real, axis=1), np.ptp(moved.imag, axis=1)], 1)
    assert np.abs(upright_sides(sides, degrees, ellipse=True) - expected).max() < 1e-6
    assert (upright_sides(sides, degrees, ellipse=True) <= upright_sides(sides, degrees) + 1e-9).all()


@pytest.mark.parametrize("size", SIZES)
def test_nothing_leaves_the_diagonal_canvas_which_is_as_small_as_can_be(size) -> None:
    rows, columns = size
    clip = rotated(noise(size, 90, (0, 0, columns, rows)), 1 / 12)  # by 1° a frame
    side = clip.size[0]
    assert clip.size == (side, side) and np.hypot(*size) - 1 <= side <= np.hypot(*size) + 3
    assert (clip.boxes[:, :2] > -1e-9).all() and (clip.boxes[:, :2] + clip.boxes[:, 2:] < side + 1e-9).all()
    assert rotated(noise((240, 320))).size == (400, 400)


def test_a_target_out_of_sight_unknown_or_hidden_stays_so() -> None:
    clip = rotated(noise((20, 60), 2, (70, 7, 6, 6)), 7.5)
    assert clip.size == (64, 64) and np.isnan(clip.boxes).all() and not clip.visible.any()
    boxes = np.array([[1.0, 2, 3, 4], [np.nan] * 4, [1, 2, 3, 4]])
    clip = rotated(Clip("any", noise((20, 20), 3).frames, boxes, np.array([True, True, False])))
    assert np.isnan(clip.boxes).all(1).tolist() == [False, True, False]
    assert clip.visible.tolist() == [True, False, False]


def test_angles_are_as_given_and_add_to_those_of_the_clip() -> None:
    clip = noise((24, 32), 61)
    turning = Clip("t", clip.frames, clip.boxes, angles=np.arange(61.0))
    for one, degrees in ((rotated(clip), 6), (rotated(clip, 0.25, 10), 9), (rotated(turning), 7)):
        assert one.angles.tolist() == [degrees * i for i in range(61)]
    assert (rotated(clip, 0).angles == 0).all()


# --- pixels


@pytest.mark.parametrize("size", SIZES)
def test_quarter_turns_only_move_pixels(size) -> None:
    clip = noise(size, 6)
    moved = rotated(clip, 7.5)
    upright, fill = moved.frame(0), np.round(clip.frame(0).reshape(-1, 3).mean(0))
    x, y = (moved.boxes[0, :2] - clip.boxes[0, :2]).astype(int)
    shown = (slice(y, y + size[0]), slice(x, x + size[1]))
    assert (upright[shown] == clip.frame(0)).all()
    around = np.ones(upright.shape[:2], bool)
    around[shown] = False
    assert (upright[around] == fill).all() and around.any()
    for i in range(6):
        assert (moved.frame(i) == np.rot90(upright, i)).all()
        left, top, w, h = moved.boxes[i].astype(int)
        patch = np.rot90(clip.frame(0)[2:8, 3:12], i)
        assert (moved.frame(i)[top : top + h, left : left + w] == patch).all()


@pytest.mark.parametrize("size", [(48, 64), (47, 64)])
def test_other_angles_are_bilinear_as_in_pillow(size) -> None:
    moved = rotated(noise(size, 20), 0.7, 30)
    upright = moved.frame(0).astype(np.float32)
    fill = upright[0, 0].tolist()
    for i in (1, 7, 19):
        for channel in range(3):
            reference = Image.fromarray(upright[..., channel]).rotate(
                360 * 0.7 * i / 30, Image.Resampling.BILINEAR, fillcolor=fill[channel]
            )
            difference = moved.frame(i)[..., channel] - np.asarray(reference)
            # 0.5 from rounding to bytes, the rest from grids in single precision
            assert np.abs(difference).max() < 0.51 and abs(difference.mean()) < 0.02


class Watched(list):
    """Frames that count how many were asked for, and are interrupted at the fourth if they should be."""

    asked, fails = 0, False

    def __getitem__(self, index: Any) -> Any:
        self.asked += 1
        if self.fails and index == 3:
            raise KeyboardInterrupt
        return super().__getitem__(index)


def test_frames_are_made_when_they_are_asked_for_and_the_clip_pickles() -> None:
    plain = noise((24, 32), 40)
    frames = Watched(plain.frames)
    moved = rotated(Clip("Noise", frames, plain.boxes))
    before = frames.asked
    moved.frame(11)
    assert before <= 2 and frames.asked == before + 1  # the size of the first frame, and one frame
    again = pickle.loads(pickle.dumps(rotated(plain)))
    assert (again.frame(11) == moved.frame(11)).all() and (again.boxes == moved.boxes).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"turns_per_second": -1}, "turns_per_second must be 0 or more"),
        ({"turns_per_second": np.nan}, "turns_per_second must be 0 or more"),
        ({"fps": 0}, "fps above 0"),
        ({}, "Mixed: frame 1 has 20×30 pixels and the first 30×20"),
    ],
)
def test_impossible_settings_and_frames_of_another_size_are_errors(settings, message) -> None:
    frames = [np.zeros((20, 30, 3), np.uint8), np.zeros((30, 20, 3), np.uint8)]
    with pytest.raises(ValueError, match=message):
        rotated(Clip("Mixed", frames, np.array([[1.0, 2, 3, 4]] * 2)), **settings).frame(1)


# --- files


@pytest.mark.parametrize(("suffix", "close"), [(".png", 0), (".jpg", 12)])
def test_a_written_clip_is_read_back_with_its_angles(tmp_path, suffix, close) -> None:
    smooth = np.tile(np.linspace(0, 255, 32), (24, 1)).astype(np.uint8)[..., None].repeat(3, 2)
    boxes = np.array([[3.3, 2.7, 9, 6]] * 4)
    boxes[2] = np.nan
    moved = rotated(Clip("David", [smooth] * 4, boxes), 0.31, 29)
    told: list[tuple[int, int]] = []
    place = write(moved, tmp_path / "rot-otb", suffix, lambda done, total: told.append((done, total)))
    assert place == tmp_path / "rot-otb" / "David" and told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    names = sorted(path.name for path in (place / "img").iterdir())
    assert names == [f"000{k}{suffix}" for k in (1, 2, 3, 4)]
    first = (place / "groundtruth_rect.txt").read_text().splitlines()[0].split(",")
    assert np.abs(np.array(first, float) - moved.boxes[0] - [1, 1, 0, 0]).max() < 1e-4
    (again,) = otb(tmp_path / "rot-otb")
    assert again.name == "David" and (again.angles == moved.angles).all()
    assert np.nanmax(np.abs(again.boxes - moved.boxes)) < 6e-5
    assert again.visible.tolist() == moved.visible.tolist() == [True, True, False, True]
    for i in range(4):
        assert np.abs(again.frame(i).astype(int) - moved.frame(i)).max() <= close
    with pytest.raises(FileExistsError, match="David exists already"):
        write(moved, tmp_path / "rot-otb")


def test_an_interrupted_writing_leaves_no_sequence(tmp_path) -> None:
    plain = noise((24, 32), 6)
    frames = Watched(plain.frames)
    frames.fails = True
    with pytest.raises(KeyboardInterrupt):
        write(Clip("Still", frames, plain.boxes), tmp_path)
    assert list(tmp_path.iterdir()) == []
    write(plain, tmp_path)
    assert otb(tmp_path)[0].angles is None and not (tmp_path / "Still" / "angles.txt").exists()


@pytest.mark.parametrize("name", ["../up", "a/b", "..", ""])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path, name) -> None:
    clip = noise((24, 32), 1)
    with pytest.raises(ValueError, match="must be usable as the name of a folder"):
        write(Clip(name, clip.frames, clip.boxes), tmp_path / "in")
    assert list(tmp_path.iterdir()) == []
