"""Clips from folders like those of OTB and GOT-10k, with all that is odd about them."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from ien.data import data_folder
from ien.tracking.data.clips import RANGES, Clip, otb, read_frame

Image = pytest.importorskip("PIL.Image", reason="frames are read by pillow: pip install 'ien[track]'")

REAL = data_folder()
needs_otb = pytest.mark.skipif(not (REAL / "otb").is_dir(), reason="there is no otb/ in IEN_DATA")


def make_frames(folder: Path, numbers: Iterable[int], digits: int = 4, empty: bool = False) -> None:
    """Grey images 12×10, each as bright as its number, or files without content."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        path = folder / f"{number:0{digits}d}.jpg"
        if empty:
            path.touch()
        else:
            Image.fromarray(np.full((10, 12), number, np.uint8)).save(path, quality=95)


def make_otb(folder: Path, text: str, numbers: Iterable[int], empty: bool = True, **files: str) -> Path:
    make_frames(folder / "img", numbers, empty=empty)
    (folder / "groundtruth_rect.txt").write_bytes(text.encode())
    for name, other in files.items():
        (folder / f"{name}.txt").write_text(other)
    return folder


def rows(count: int, start: int = 0) -> str:
    return "".join(f"{start + i + 1},{i + 2},3,4\n" for i in range(count))


# OTB


@pytest.mark.parametrize("separator", [",", "\t", " ", ", ", "   ", ",\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_boxes_are_read_with_every_separator_and_counted_from_0(
    tmp_path: Path, separator: str, end: str
) -> None:
    lines = [separator.join(row) for row in (("6", "1", "3", "4"), ("7.5", "-2", "30", "4.25"))]
    make_otb(tmp_path / "Man", end.join(lines) + 2 * end, [1, 2])
    (clip,) = otb(tmp_path)
    assert clip.name == "Man" and clip.boxes.dtype == np.float64 and clip.angles is None
    assert clip.boxes.tolist() == [[5, 0, 3, 4], [6.5, -3, 30, 4.25]] and clip.visible.all()


def test_a_byte_order_mark_and_a_missing_last_line_end_do_no_harm(tmp_path: Path) -> None:
    make_otb(tmp_path / "Man", "\ufeff6 1 3 4\n7 1 3 4", [1, 2])
    assert otb(tmp_path)[0].boxes[:, 0].tolist() == [5, 6]


def test_frames_are_decoded_when_they_are_asked_for(tmp_path: Path) -> None:
    folder = make_otb(tmp_path / "Man", rows(3), [1, 20, 30], empty=False)
    (folder / "img" / "0030.jpg").write_bytes(b"")
    (clip,) = otb(tmp_path)
    assert len(clip) == 3 and clip.size == (10, 12)
    frame = clip.frame(1)
    assert frame.shape == (10, 12, 3) and frame.dtype == np.uint8 and (frame == 20).all()
    assert (clip.frame(-2) == 20).all() and frame.flags.writeable
    with pytest.raises(IndexError, match="Man has 3 frames; got index 3"):
        clip.frame(3)


def test_frames_follow_their_numbers_and_not_their_letters(tmp_path: Path) -> None:
    make_otb(tmp_path / "Long", rows(4), [9998, 9999, 10000, 10001])
    (tmp_path / "Long" / "img" / ".hidden.jpg").touch()
    (tmp_path / "Long" / "img" / "Thumbs.db").touch()
    (clip,) = otb(tmp_path)
    assert [clip.frames[i].name for i in range(4)] == ["9998.jpg", "9999.jpg", "10000.jpg", "10001.jpg"]


def test_of_more_frames_than_boxes_the_first_are_taken(tmp_path: Path) -> None:
    make_otb(tmp_path / "Man", rows(3), range(11, 17))
    (clip,) = otb(tmp_path)
    assert [clip.frames[i].name for i in range(len(clip))] == ["0011.jpg", "0012.jpg", "0013.jpg"]


@pytest.mark.parametrize(("name", "bounds"), RANGES.items())
@pytest.mark.parametrize("cut", [False, True], ids=["as published", "cut to the range"])
def test_known_ranges_are_the_frames_that_have_boxes(
    tmp_path: Path, name: str, bounds: tuple[int, int], cut: bool
) -> None:
    first, last = bounds
    make_otb(tmp_path / name, rows(last - first + 1), range(first if cut else 1, last + 1 + 7 * (not cut)))
    (clip,) = otb(tmp_path)
    assert len(clip) == last - first + 1
    assert (clip.frames[0].name, clip.frames[len(clip) - 1].name) == (f"{first:04d}.jpg", f"{last:04d}.jpg")


def test_as_many_frames_as_boxes_are_taken_whatever_the_name_and_the_numbers(tmp_path: Path) -> None:
    make_otb(tmp_path / "David", rows(471), range(1, 472))
    assert otb(tmp_path)[0].frames[470].name == "0471.jpg"


def test_two_targets_are_two_clips_of_the_same_frames(tmp_path: Path) -> None:
    folder = make_otb(tmp_path / "Jogging", "", [1, 2, 3], **{"groundtruth_rect.2": rows(3, 50)})
    (folder / "groundtruth_rect.txt").rename(folder / "groundtruth_rect.1.txt")
    (folder / "groundtruth_rect.1.txt").write_text(rows(3, 10))
    make_otb(tmp_path / "Man", rows(1), [1])
    clips = otb(tmp_path)
    assert [clip.name for clip in clips] == ["Jogging-1", "Jogging-2", "Man"]
    assert clips[0].boxes[0, 0] == 10 and clips[1].boxes[0, 0] == 50
    assert clips[0].frames[2] == clips[1].frames[2] == folder / "img" / "0003.jpg"
    assert [clip.name for clip in otb(tmp_path, ["Man", "Jogging"])] == ["Man", "Jogging-1", "Jogging-2"]
    assert [clip.name for clip in otb(tmp_path, "Jogging-2")] == ["Jogging-2"]
    with pytest.raises(ValueError, match=r"no sequence 'Jogging-3'; did you mean Jogging-"):
        otb(tmp_path, ["Jogging-3"])


def test_a_target_without_boxes_is_left_out(tmp_path: Path) -> None:
    make_otb(tmp_path / "Human4", "\n", [1, 2], **{"groundtruth_rect.2": rows(2, 30)})
    (clip,) = otb(tmp_path)
    assert clip.name == "Human4" and clip.boxes[0, 0] == 30


def test_boxes_that_are_nan_or_have_no_area_are_not_known(tmp_path: Path) -> None:
    make_otb(
        tmp_path / "Man", "6,1,3,4\nNaN,NaN,NaN,NaN\n5,5,0,4\n0,0,0,0\n7,nan,3,4\n8,1,3,4\n", range(1, 7)
    )
    (clip,) = otb(tmp_path)
    assert clip.visible.tolist() == [True, False, False, False, False, True]
    assert np.isnan(clip.boxes[1:5]).all() and clip.boxes[5].tolist() == [7, 0, 3, 4]
    assert repr(clip) == "Clip(Man: 6 frames, 4 without a visible target)"


@pytest.mark.parametrize("first", ["nan,nan,nan,nan", "5,5,0,4"])
def test_the_first_box_must_be_known(tmp_path: Path, first: str) -> None:
    make_otb(tmp_path / "Man", f"{first}\n6,1,3,4\n", [1, 2])
    with pytest.raises(ValueError, match=r"groundtruth_rect\.txt: the first box is NaN or has no area"):
        otb(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("6,1,3,4\n6,1,-3,4\n", "line 2 is .* sides that are not negative"),
        ("6,1,3,4\n6,inf,3,4\n", "line 2 is .* finite"),
        ("6,1,3,4\n6,1,3\n", "line 2 is '6,1,3', and 4 numbers are needed"),
        ("6,1,3,4\n\n6,1,3,4\n", "line 2 is '', and 4 numbers are needed"),
        ("6,1,3,4\nsix,1,3,4\n", "line 2 is 'six,1,3,4', and 4 numbers are needed"),
        ("1,2,3,4,5,6,7,8\n", "line 1 is .* 4 numbers are needed"),
        ("", r"groundtruth_rect\.txt is empty"),
    ],
)
def test_a_damaged_file_of_boxes_is_named_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    make_otb(tmp_path / "Man", text, [1, 2, 3])
    with pytest.raises(ValueError, match=message) as raised:
        otb(tmp_path)
    assert str(tmp_path / "Man" / "groundtruth_rect.txt") in str(raised.value)


def test_more_boxes_than_frames_are_an_error_that_names_the_missing_frame(tmp_path: Path) -> None:
    make_otb(tmp_path / "Man", rows(5), [1, 2, 3])
    with pytest.raises(ValueError, match=r"has 5 boxes for 3 frames in .*img: put back what is missing"):
        otb(tmp_path)
    make_frames(tmp_path / "Man" / "img", [5], empty=True)
    with pytest.raises(ValueError, match=r"5 boxes for 4 frames .*: put .*0004\.jpg back"):
        otb(tmp_path)
    make_otb(tmp_path / "Diving", rows(215), [n for n in range(1, 232) if n != 100])
    with pytest.raises(ValueError, match=r"215 boxes for 214 frames .*: put .*0100\.jpg back"):
        otb(tmp_path, ["Diving"])


def test_a_gap_in_frames_that_are_more_than_boxes_is_an_error(tmp_path: Path) -> None:
    make_otb(tmp_path / "Man", rows(4), [1, 2, 4, 5, 6])
    with pytest.raises(ValueError, match=r"0003\.jpg is missing, and no one can tell"):
        otb(tmp_path)


def test_a_missing_or_truncated_image_is_named_with_its_path(tmp_path: Path) -> None:
    folder = make_otb(tmp_path / "Man", rows(3), [1, 2, 3], empty=False)
    (clip,) = otb(tmp_path)
    gone, short, other = (folder / "img" / f"000{k}.jpg" for k in (1, 2, 3))
    gone.unlink()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(short)
    short.write_bytes(short.read_bytes()[:-1500])
    other.write_text("not an image")
    with pytest.raises(FileNotFoundError, match="is missing") as missing:
        clip.frame(0)
    with pytest.raises(ValueError, match="truncated") as truncated:
        clip.frame(1)
    with pytest.raises(ValueError, match="cannot be read as an image") as unknown:
        clip.frame(2)
    for raised, path in ((missing, gone), (truncated, short), (unknown, other)):
        assert str(path) in str(raised.value)


def test_images_of_every_kind_become_rgb(tmp_path: Path) -> None:
    colours = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [51, 51, 51]]], np.uint8)
    for mode in ("RGB", "RGBA", "P"):
        Image.fromarray(colours).convert(mode).save(tmp_path / f"{mode}.png")
        assert (read_frame(tmp_path / f"{mode}.png") == colours).all()
    Image.fromarray(np.full((2, 2), 70000, np.int32)).save(tmp_path / "deep.tif")
    with pytest.raises(ValueError, match="8 bits are needed"):
        read_frame(str(tmp_path / "deep.tif"))


def test_without_pillow_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_otb(tmp_path / "Man", rows(1), [1], empty=False)
    (clip,) = otb(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ModuleNotFoundError, match=r'needs pillow: pip install "ien\[track\]"'):
        clip.frame(0)


def test_a_folder_that_is_not_of_otb_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        otb(tmp_path / "nowhere")
    (tmp_path / "notes").mkdir()
    with pytest.raises(FileNotFoundError, match="they are folders with img/ and groundtruth_rect"):
        otb(tmp_path)
    make_otb(tmp_path / "otb" / "Man", rows(1), [1])
    with pytest.raises(FileNotFoundError, match=r"did you mean .*otb\?"):
        otb(tmp_path)
    (tmp_path / "otb" / "Couple" / "img").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=r"Couple is incomplete: put its groundtruth_rect\.txt there"):
        otb(tmp_path / "otb")
    assert len(otb(tmp_path / "otb", ["Man"])) == 1  # what is not asked for need not be whole
    with pytest.raises(ValueError, match=r"no sequence 'Men'; did you mean Man\?"):
        otb(tmp_path / "otb", ["Men"])


def test_angles_beside_the_boxes_are_read_and_must_be_as_many(tmp_path: Path) -> None:
    folder = make_otb(tmp_path / "Man", rows(2), [1, 2], angles="0\n-6.5\n")
    assert otb(tmp_path)[0].angles.tolist() == [0, -6.5]
    for wrong in ("0\n", "0\nnan\n"):
        (folder / "angles.txt").write_text(wrong)
        with pytest.raises(ValueError, match=r"angles\.txt needs a finite number for each of 2 boxes"):
            otb(tmp_path)


def test_a_clip_pickles_small_and_gives_the_same_frames(tmp_path: Path) -> None:
    make_otb(tmp_path / "Man", rows(200), range(1, 201), empty=False)
    (clip,) = otb(tmp_path)
    kept = pickle.dumps(clip)
    again = pickle.loads(kept)
    assert len(kept) < 200 * 80 and again.name == "Man" and (again.boxes == clip.boxes).all()
    assert (again.frame(150) == clip.frame(150)).all() and (again.frame(150) == 151).all()


# clips


def test_a_clip_of_arrays_that_do_not_fit_is_an_error() -> None:
    frames, boxes = [np.zeros((8, 8, 3), np.uint8)] * 2, np.array([[1.0, 1, 2, 2]] * 2)
    for given, message in (
        (("a", frames, boxes[:1]), r"2 frames need boxes \(2, 4\); got \(1, 4\)"),
        (("a", [], boxes[:0]), r"0 frames need boxes \(T, 4\)"),
        (("a", frames, boxes, np.ones(3, bool)), r"2 frames need visible \(2,\); got \(3,\)"),
        (("a", frames, boxes, None, np.ones(1)), r"2 frames need angles \(2,\); got \(1,\)"),
        (("a", frames, boxes * [1, 1, 0, 1]), r"of frame 0 is neither one with an area nor all NaN"),
        (("a", frames, boxes * [1, np.nan, 1, 1]), "neither one with an area nor all NaN"),
    ):
        with pytest.raises(ValueError, match=message):
            Clip(*given)
    with pytest.raises(ValueError, match=r"frame 0 is \(8, 8\) uint8"):
        Clip("grey", [np.zeros((8, 8), np.uint8)] * 2, boxes).frame(0)


# real data


@needs_otb
def test_the_sequences_of_otb_have_the_published_lengths_and_decode() -> None:
    clips = {clip.name: clip for clip in otb(REAL / "otb")}
    lengths = {"Diving": 215, "Football1": 74, "Crossing": 120, "Surfer": 376, "Skiing": 81, "Man": 134}
    for name in lengths.keys() & clips.keys():
        clip = clips[name]
        assert len(clip) == lengths[name] and clip.visible.all()
        rows_, columns = clip.frame(len(clip) - 1).shape[:2]
        assert (rows_, columns) == clip.size
        assert (clip.boxes[:, :2] >= -1).all() and (clip.boxes[:, 2:] < [columns, rows_]).all()
