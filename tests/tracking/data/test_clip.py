"""A clip: arrays that must fit, frames on demand, and which frames are fit to train on."""

import pickle
import sys

import numpy as np
import pytest

from ien.tracking.data.clip import Clip, usable
from ien.tracking.data.clips import got10k, otb
from ien.tracking.data.frames import read_frame
from tests.helpers.sequences import REAL, box_lines, make_otb, needs_got10k

Image = pytest.importorskip("PIL.Image", reason="frames are read by pillow: pip install 'ien[track]'")

FRAMES = [np.zeros((8, 8, 3), np.uint8)] * 2
BOXES = np.array([[1.0, 1, 2, 2]] * 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((FRAMES, BOXES[:1]), r"2 frames need boxes \(2, 4\); got \(1, 4\)"),
        (([], BOXES[:0]), r"0 frames need boxes \(T, 4\)"),
        ((FRAMES, BOXES, np.ones(3, bool)), r"2 frames need visible \(2,\); got \(3,\)"),
        ((FRAMES, BOXES, None, np.ones(1)), r"2 frames need angles \(2,\); got \(1,\)"),
        ((FRAMES, BOXES * [1, 1, 0, 1]), "the box of frame 0 must have an area, or be all NaN"),
        ((FRAMES, BOXES * [1, np.nan, 1, 1]), "must have an area, or be all NaN"),
        (([np.zeros((8, 8), np.uint8)] * 2, BOXES), r"frame 0 is \(8, 8\) uint8"),
    ],
)
def test_arrays_that_do_not_fit_are_an_error(given, message) -> None:
    with pytest.raises(ValueError, match=message):
        Clip("a", *given).frame(0)


def test_frames_are_decoded_when_they_are_asked_for(tmp_path, monkeypatch) -> None:
    folder = make_otb(tmp_path / "Man", box_lines(30), range(1, 31), empty=False)
    (folder / "img" / "0030.jpg").write_bytes(b"")
    (clip,) = otb(tmp_path)
    assert len(clip) == 30 and clip.size == (10, 12)
    frame = clip.frame(19)
    assert frame.shape == (10, 12, 3) and frame.dtype == np.uint8 and (frame == 20).all()
    assert (clip.frame(-2) == 29).all() and frame.flags.writeable
    with pytest.raises(IndexError, match="Man has 30 frames; got index 30"):
        clip.frame(30)
    kept = pickle.dumps(clip)  # small, as it is without pixels
    again = pickle.loads(kept)
    assert len(kept) < 3000 and again.name == "Man" and (again.boxes == clip.boxes).all()
    assert (again.frame(15) == clip.frame(15)).all()
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs pillow: pip install"):
        clip.frame(0)


def test_a_missing_or_truncated_image_is_named_with_its_path(tmp_path) -> None:
    folder = make_otb(tmp_path / "Man", box_lines(3), [1, 2, 3], empty=False)
    (clip,) = otb(tmp_path)
    gone, short, other = (folder / "img" / f"000{k}.jpg" for k in (1, 2, 3))
    gone.unlink()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(short)
    short.write_bytes(short.read_bytes()[:-1500])
    other.write_text("not an image")
    for index, path, kind, message in (
        (0, gone, FileNotFoundError, "is missing"),
        (1, short, ValueError, "truncated"),
        (2, other, ValueError, "cannot be read as an image"),
    ):
        with pytest.raises(kind, match=message) as raised:
            clip.frame(index)
        assert str(path) in str(raised.value)


def test_images_of_every_kind_become_rgb(tmp_path) -> None:
    colours = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [51, 51, 51]]], np.uint8)
    for mode in ("RGB", "RGBA", "P"):
        Image.fromarray(colours).convert(mode).save(tmp_path / f"{mode}.png")
        assert (read_frame(tmp_path / f"{mode}.png") == colours).all()
    Image.fromarray(np.full((2, 2), 70000, np.int32)).save(tmp_path / "deep.tif")
    with pytest.raises(ValueError, match="8 bits"):
        read_frame(str(tmp_path / "deep.tif"))


def test_usable_frames_are_those_a_loop_over_the_rules_finds() -> None:
    draw = np.random.default_rng(0)
    boxes = np.concatenate([draw.random((400, 2)) * 100, np.exp(draw.random((400, 2)) * 6 + 1)], 1).round()
    widths, heights = [20, 19.9, 500, 501, 1000, 20, 20, 80, 81], [20, 20, 300, 300, 300, 80, 81, 20, 20]
    edges = np.column_stack([np.zeros((9, 2)), widths, heights])
    boxes = np.concatenate([boxes, edges, np.full((1, 4), np.nan)])
    visible = draw.random(len(boxes)) < 0.9
    visible[400:] = True
    clip = Clip("any", [np.zeros((600, 1500, 3), np.uint8)] * len(boxes), boxes, visible)
    expected = []
    for (_, _, w, h), seen in zip(boxes.tolist(), visible.tolist(), strict=True):
        sides = 20 <= w <= 500 and 20 <= h <= 500
        shares = 0.01 <= w / 1500 <= 0.5 and 0.01 <= h / 600 <= 0.5
        expected.append(seen and sides and shares and 0.25 <= w / h <= 4)
    assert usable(clip).tolist() == expected and 20 < sum(expected) < 380
    assert expected[400:] == [True, False, True, False, False, True, False, True, False, False]
    assert usable(clip, sides=(19, 500))[401] and not usable(clip, shares=(0.01, 0.3))[402]
    assert usable(clip, aspects=(0.1, 4))[406]


@needs_got10k
def test_sequences_to_train_on_have_usable_frames() -> None:
    clips = got10k(REAL / "got10k" / "train")
    assert sum(usable(clip).sum() >= 2 for clip in clips) > len(clips) // 2
