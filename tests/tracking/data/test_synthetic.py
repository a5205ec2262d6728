"""Synthetic clips: exact boxes and angles, smooth paths, and frames that depend on seed and index alone."""

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest

from ien.tracking.data.clip import Clip, usable
from ien.tracking.data.synthetic import synthetic

SEEDS = range(4)


def without_target(clip: Clip, index: int) -> np.ndarray:
    scene: Any = clip.frames
    return dataclasses.replace(scene, objects=scene.objects[:-1])[index]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_box_is_around_the_pixels_that_the_object_changes(seed) -> None:
    clip = synthetic(seed)
    for i in (0, 7, 23, 59):
        changed = np.abs(clip.frame(i).astype(int) - without_target(clip, i)).max(2)
        y, x = np.nonzero(changed > 8)  # of its textures; a pixel at the border may have the ground's colour
        found = np.array([x.min() - 0.5, y.min() - 0.5, x.max() + 0.5, y.max() + 0.5])
        left, top, w, h = clip.boxes[i]
        box = np.array([left - 0.5, top - 0.5, left + w - 0.5, top + h - 0.5])
        inwards = (found - box) * [1, 1, -1, -1]
        assert inwards.min() > -1.5 and inwards.max() < 3.5


@pytest.mark.parametrize("seed", SEEDS)
def test_the_object_stays_in_the_frame_and_moves_smoothly(seed) -> None:
    clip = synthetic(seed, frames=400)
    middles = clip.boxes[:, :2] + (clip.boxes[:, 2:] - 1) / 2
    steps = np.hypot(*np.diff(middles, axis=0).T)
    assert steps.max() < 16 and steps.max() > 1
    turns = np.diff(clip.angles)
    assert np.abs(turns).max() < 9 and np.abs(clip.angles[-1]) > 360
    assert np.ptp(middles, axis=0).min() > 40  # it goes places


def test_every_frame_of_the_usual_size_is_fit_to_train_on() -> None:
    assert all(usable(synthetic(seed, frames=300)).all() for seed in range(30))


@pytest.mark.parametrize("seed", [3, 4])
def test_the_object_rotates_by_the_angles_counter_clockwise(seed) -> None:
    image = pytest.importorskip("PIL.Image", reason="frames are rotated back by pillow")
    clip = synthetic(seed, scaling=False, distractors=0)

    def core(i, degrees) -> np.ndarray:
        """What is in the middle of the object when pillow has rotated the frame about it."""
        x, y = clip.boxes[i, :2] + clip.boxes[i, 2:] / 2
        places = {"center": (x, y), "translate": (160 - x, 120 - y)}
        frame = image.fromarray(clip.frame(i)).rotate(degrees, image.Resampling.BICUBIC, **places)
        patch = np.asarray(frame)[111:129, 151:169].astype(float)
        return (patch - patch.mean((0, 1))).ravel()  # the texture, and not the colour that all angles share

    first = core(0, 0)
    for i in (5, 11, 20, 37):
        back, wrong = (np.corrcoef(first, core(i, sign * clip.angles[i]))[0, 1] for sign in (-1, 1))
        alike = not 40 < 2 * clip.angles[i] % 360 < 320  # near half a turn both ways are the same
        assert back > 0.95 and (wrong < 0.8 or alike)


def test_without_turning_and_scaling_the_box_only_moves() -> None:
    still = synthetic(1, turning=False, scaling=False)
    assert (still.angles == 0).all() and np.allclose(still.boxes[:, 2:], still.boxes[0, 2:], atol=1e-12)
    scaling = synthetic(1, turning=False)
    aspect = scaling.boxes[:, 2] / scaling.boxes[:, 3]
    assert np.allclose(aspect, aspect[0]) and np.ptp(scaling.boxes[:, 2]) > 3
    assert np.abs(synthetic(1, scaling=False).angles).max() > 90


def test_a_frame_depends_on_seed_and_index_and_not_on_the_length() -> None:
    short, long = synthetic(5, frames=4), synthetic(5, frames=90)
    last = long.frame(3)
    assert (short.frame(3) == last).all() and (short.boxes == long.boxes[:4]).all()
    assert (short.angles == long.angles[:4]).all() and (long.frame(3) == last).all()
    assert (synthetic(6, frames=4).frame(3) != last).mean() > 0.5
    assert (short.frame(2) != last).any()
    kept = pickle.dumps(long)
    assert len(kept) < 20_000 and (pickle.loads(kept).frame(3) == last).all()


def test_distractors_leave_the_target_and_the_ground_as_they_are() -> None:
    none, one, three = (synthetic(2, distractors=count) for count in (0, 1, 3))
    alike = synthetic(2, alike=True)  # of the target's colours, in other waves
    assert all((none.boxes == clip.boxes).all() for clip in (one, three, alike))
    changed = [(none.frame(30) != clip.frame(30)).any(2).sum() for clip in (one, three)]
    assert 200 < changed[0] < 0.2 * 240 * 320 and changed[0] < changed[1]
    other, target = (thing.texture for thing in alike.frames.objects)
    assert (other.base == target.base).all() and (other.colours == target.colours).all()
    assert (other.waves != target.waves).all() and (one.frame(9) != alike.frame(9)).any()


def test_a_faster_target_goes_along_the_same_path() -> None:
    slow, fast = (synthetic(3, 80, turning=False, scaling=False, speed=speed) for speed in (1, 2))
    assert np.allclose(fast.boxes[:40], slow.boxes[::2])
    assert np.allclose(synthetic(3, speed=2).angles, synthetic(3).angles)


@pytest.mark.parametrize("size", [(32, 32), (33, 200), (150, 64), (240, 320)])
def test_frames_of_every_size_hold_their_object(size) -> None:
    for seed in SEEDS:
        clip = synthetic(seed, 150, size)
        frame = clip.frame(149)
        assert frame.shape == (*size, 3) and frame.dtype == np.uint8 and frame.std() > 5
        assert (clip.boxes[:, :2] >= -0.5).all()
        assert (clip.boxes[:, :2] + clip.boxes[:, 2:] <= np.array(size[::-1]) + 0.5).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": -1}, "a seed of 0 or more"),
        ({"frames": 0}, "1 frame or more"),
        ({"size": (16, 200)}, "32 rows and columns or more; got 16×200"),
        ({"distractors": -1}, "0 distractors or more"),
        ({"speed": 0}, "a speed above 0"),
    ],
)
def test_impossible_settings_are_errors(settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        synthetic(**({"seed": 0} | settings))
