"""Folders of clips like those of OTB and GOT-10k, with all that is odd about them."""

import numpy as np
import pytest

from ien.tracking.data.clips import ANNOTATED_RANGES, Clip, got10k, otb
from tests.helpers.sequences import REAL, box_lines, make_got10k, make_otb, needs_otb

pytest.importorskip("PIL", reason="frames are read by pillow: pip install 'ien[track]'")


def files(clip: Clip) -> list[str]:
    return [clip.frames[i].name for i in range(len(clip))]


# --- OTB


@pytest.mark.parametrize("separator", [",", "\t", " ", ", ", "   ", ",\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_boxes_are_read_with_every_separator_and_counted_from_0(tmp_path, separator, end) -> None:
    lines = [separator.join(row) for row in (("6", "1", "3", "4"), ("7.5", "-2", "30", "4.25"))]
    make_otb(tmp_path / "Man", end.join(lines) + 2 * end, [1, 2])
    make_otb(tmp_path / "Mark", "\ufeff" + end.join(lines), [1, 2])  # and no last line end
    for clip, name in zip(otb(tmp_path), ("Man", "Mark"), strict=True):
        assert clip.name == name and clip.boxes.dtype == np.float64 and clip.angles is None
        assert clip.boxes.tolist() == [[5, 0, 3, 4], [6.5, -3, 30, 4.25]] and clip.visible.all()


def test_frames_follow_their_numbers_and_not_their_letters(tmp_path) -> None:
    make_otb(tmp_path / "Long", box_lines(4), [9998, 9999, 10000, 10001])
    (tmp_path / "Long" / "img" / ".hidden.jpg").touch()
    (tmp_path / "Long" / "img" / "Thumbs.db").touch()
    assert files(otb(tmp_path)[0]) == ["9998.jpg", "9999.jpg", "10000.jpg", "10001.jpg"]


@pytest.mark.parametrize(
    ("name", "numbers", "first", "last"),
    [
        *((name, range(1, last + 8), first, last) for name, (first, last) in ANNOTATED_RANGES.items()),
        *((name, range(first, last + 1), first, last) for name, (first, last) in ANNOTATED_RANGES.items()),
        ("Man", range(11, 17), 11, 13),  # the first of more frames than boxes
        ("David", range(1, 472), 1, 471),  # as many as boxes, whatever their numbers
    ],
)
def test_the_frames_taken_are_those_that_have_boxes(tmp_path, name, numbers, first, last) -> None:
    make_otb(tmp_path / name, box_lines(last - first + 1), numbers)
    assert files(otb(tmp_path)[0]) == [f"{number:04d}.jpg" for number in range(first, last + 1)]


def test_two_targets_are_two_clips_of_the_same_frames(tmp_path) -> None:
    folder = make_otb(tmp_path / "Jogging", "", [1, 2, 3], **{"groundtruth_rect.2": box_lines(3, 50)})
    (folder / "groundtruth_rect.txt").rename(folder / "groundtruth_rect.1.txt")
    (folder / "groundtruth_rect.1.txt").write_text(box_lines(3, 10))
    make_otb(tmp_path / "Man", box_lines(1), [1])
    clips = otb(tmp_path)
    assert [clip.name for clip in clips] == ["Jogging-1", "Jogging-2", "Man"]
    assert clips[0].boxes[0, 0] == 10 and clips[1].boxes[0, 0] == 50
    assert clips[0].frames[2] == clips[1].frames[2] == folder / "img" / "0003.jpg"
    assert [clip.name for clip in otb(tmp_path, ["Man", "Jogging"])] == ["Man", "Jogging-1", "Jogging-2"]
    assert [clip.name for clip in otb(tmp_path, "Jogging-2")] == ["Jogging-2"]
    with pytest.raises(ValueError, match=r"no sequence 'Jogging-3'; did you mean Jogging-"):
        otb(tmp_path, ["Jogging-3"])


def test_what_has_no_boxes_is_left_out_and_what_has_no_area_is_not_known(tmp_path) -> None:
    text = "6,1,3,4\nNaN,NaN,NaN,NaN\n5,5,0,4\n0,0,0,0\n7,nan,3,4\n8,1,3,4\n"
    make_otb(tmp_path / "Human4", "\n", range(1, 7), **{"groundtruth_rect.2": text})
    (clip,) = otb(tmp_path)
    assert clip.visible.tolist() == [True, False, False, False, False, True]
    assert np.isnan(clip.boxes[1:5]).all() and clip.boxes[5].tolist() == [7, 0, 3, 4]
    assert repr(clip) == "Clip(Human4: 6 frames, 4 without a visible target)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("6,1,3,4\n6,1,-3,4\n", "line 2 is .* no negative side"),
        ("6,1,3,4\n6,inf,3,4\n", "line 2 is .* finite"),
        ("6,1,3,4\n6,1,3\n", "line 2 must have 4 numbers; it is '6,1,3'"),
        ("6,1,3,4\n\n6,1,3,4\n", "line 2 must have 4 numbers; it is ''"),
        ("6,1,3,4\nsix,1,3,4\n", "line 2 must have 4 numbers; it is 'six,1,3,4'"),
        ("1,2,3,4,5,6,7,8\n", "line 1 must have 4 numbers"),
        ("", "is empty: it needs 4 numbers on each line"),
        ("nan,nan,nan,nan\n6,1,3,4\n", "starts from the first box, but it is NaN or has no area"),
        ("5,5,0,4\n6,1,3,4\n", "starts from the first box, but it is NaN or has no area"),
    ],
)
def test_a_damaged_file_of_boxes_is_named_with_the_line(tmp_path, text, message) -> None:
    make_otb(tmp_path / "Man", text, [1, 2, 3])
    with pytest.raises(ValueError, match=message) as raised:
        otb(tmp_path)
    assert str(tmp_path / "Man" / "groundtruth_rect.txt") in str(raised.value)


@pytest.mark.parametrize(
    ("name", "boxes", "numbers", "message"),
    [
        ("Man", 5, [1, 2, 3], r"has 5 boxes for 3 frames in .*img: put back what is missing"),
        ("Man", 5, [1, 2, 3, 5], r"5 boxes for 4 frames .*: put .*0004\.jpg back"),
        ("Diving", 215, {*range(1, 232)} - {100}, r"215 boxes for 214 frames .*: put .*0100\.jpg back"),
        ("Gap", 4, [1, 2, 4, 5, 6], r"0003\.jpg is missing, so it is unclear"),
    ],
)
def test_missing_frames_are_named(tmp_path, name, boxes, numbers, message) -> None:
    make_otb(tmp_path / name, box_lines(boxes), numbers)
    with pytest.raises(ValueError, match=message):
        otb(tmp_path)


def test_a_folder_that_is_not_of_otb_is_an_error_with_a_hint(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        otb(tmp_path / "nowhere")
    (tmp_path / "notes").mkdir()
    with pytest.raises(FileNotFoundError, match="they are folders with img/ and groundtruth_rect"):
        otb(tmp_path)
    make_otb(tmp_path / "otb" / "Man", box_lines(1), [1])
    with pytest.raises(FileNotFoundError, match=r"did you mean .*otb\?"):
        otb(tmp_path)
    (tmp_path / "otb" / "Couple" / "img").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=r"Couple is incomplete: put its groundtruth_rect\.txt there"):
        otb(tmp_path / "otb")
    assert len(otb(tmp_path / "otb", ["Man"])) == 1  # what is not asked for need not be complete
    with pytest.raises(ValueError, match=r"no sequence 'Men'; did you mean Man\?"):
        otb(tmp_path / "otb", ["Men"])


def test_angles_beside_the_boxes_are_read_and_must_be_as_many(tmp_path) -> None:
    folder = make_otb(tmp_path / "Man", box_lines(2), [1, 2], angles="0\n-6.5\n")
    assert otb(tmp_path)[0].angles.tolist() == [0, -6.5]
    for wrong in ("0\n", "0\nnan\n"):
        (folder / "angles.txt").write_text(wrong)
        with pytest.raises(ValueError, match=r"angles\.txt needs a finite number for each of 2 boxes"):
            otb(tmp_path)


@needs_otb
def test_the_sequences_of_otb_have_the_published_lengths_and_decode() -> None:
    clips = {clip.name: clip for clip in otb(REAL / "otb")}
    lengths = {"Diving": 215, "Football1": 74, "Crossing": 120, "Surfer": 376, "Skiing": 81, "Man": 134}
    for name in lengths.keys() & clips.keys():
        clip = clips[name]
        assert len(clip) == lengths[name] and clip.visible.all()
        rows, columns = clip.frame(len(clip) - 1).shape[:2]
        assert (rows, columns) == clip.size
        assert (clip.boxes[:, :2] >= -1).all() and (clip.boxes[:, 2:] < [columns, rows]).all()


# --- GOT-10k


def test_labels_say_where_the_target_is_visible(tmp_path) -> None:
    cover, absence = [8, 2, 3, 8, 8, 1, 0, 8], [0, 0, 0, 1, 0, 0, 0, 0]
    boxes = "".join(f"{i}.5,2,30,40\n" for i in range(1, 5)) + "nan,nan,nan,nan\n" + box_lines(3)
    make_got10k(tmp_path / "A", boxes, 8, cover=cover, absence=absence, cut_by_image=[0, 1] * 4)
    make_got10k(tmp_path / "B", box_lines(3), 3, cover=[1, 2, 3])
    make_got10k(tmp_path / "C", box_lines(2), 2)
    make_got10k(tmp_path / "of the test split", box_lines(1), 4)
    a, b, c, first = got10k(tmp_path)
    expected = []
    for k, (gone, eighths) in enumerate(zip(absence, cover, strict=True)):
        expected.append(k != 4 and not gone and eighths > max(1, 0.3 * 8))
    assert a.visible.tolist() == expected == [True, False, True, False, False, False, False, True]
    assert a.boxes[0].tolist() == [0.5, 1, 30, 40] and np.isnan(a.boxes[4]).all() and a.angles is None
    assert b.visible.tolist() == [False, True, True] and (b.frame(2) == 3).all()
    assert c.visible.all() and [clip.name for clip in (a, b, c)] == ["A", "B", "C"]
    assert first.visible.tolist() == [True, False, False, False] and np.isnan(first.boxes[1:]).all()


@pytest.mark.parametrize(
    ("boxes", "labels", "message"),
    [
        (5, {}, "5 boxes for 4 frames"),
        (3, {}, "3 boxes for 4 frames"),
        (1, {"cover": [8]}, "1 boxes for 4 frames"),
        (4, {"absence": [0] * 3}, "absence.label has 3 labels for 4 frames"),
        (4, {"cut_by_image": [0] * 5}, "cut_by_image.label has 5 labels for 4 frames"),
    ],
)
def test_got10k_counts_that_differ_are_errors(tmp_path, boxes, labels, message) -> None:
    with pytest.raises(ValueError, match=message):
        got10k(make_got10k(tmp_path / "A", box_lines(boxes), 4, **labels))


def test_a_list_that_does_not_fit_the_folder_is_an_error(tmp_path) -> None:
    train = make_got10k(tmp_path / "train" / "A", box_lines(2), 2)
    with pytest.raises(FileNotFoundError, match=r"there is no .*list\.txt: did you mean .*train\?"):
        got10k(tmp_path)
    for listed, message in (
        ("A\nB\n", "names B, but there is no folder"),
        ("A\nA\n", "names A twice"),
        ("\n", "names no sequence"),
    ):
        (train / "list.txt").write_text(listed)
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            got10k(train)
    (train / "list.txt").write_bytes(b"A\n\xff\xfe\n")
    with pytest.raises(ValueError, match=r"list\.txt is damaged \(.*utf-8.*\): replace it"):
        got10k(train)
    (train / "list.txt").write_text("A\n")
    (train / "A" / "groundtruth.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"there is no .*groundtruth\.txt"):
        got10k(train)
