"""Result files: what is written is read back, as the toolkit has it, and damage is reported."""

from pathlib import Path

import numpy as np
import pytest

from ien.tracking import results
from ien.tracking.results import read_result, write_result

BOXES = np.array([[0, 0, 30, 40], [12.3456, -3.5, 31.25, 41.0], [199, 99, 0, 0.5]])
SECONDS = np.array([0.25, 0.0125, 0.015])
ANGLES = np.array([0, 270, -22.5])


def test_files_are_those_of_the_toolkit_and_read_back_to_a_thousandth(tmp_path) -> None:
    path = write_result(tmp_path, "Jogging-1", BOXES, SECONDS, ANGLES)
    assert path == tmp_path / "Jogging-1.txt"
    assert path.read_text().splitlines()[1:] == ["13.346,-2.500,31.250,41.000", "200.000,100.000,0.000,0.500"]
    times = tmp_path / "times" / "Jogging-1_time.txt"
    assert times.read_text().splitlines() == ["0.25000000", "0.01250000", "0.01500000"]
    angles = tmp_path / "angles" / "Jogging-1_angle.txt"
    assert angles.read_text().splitlines() == ["0.000", "270.000", "-22.500"]
    # the toolkit's own way to write and to read
    np.savetxt(tmp_path / "theirs.txt", BOXES + np.array([1, 1, 0, 0]), fmt="%.3f", delimiter=",")
    assert (tmp_path / "theirs.txt").read_bytes() == path.read_bytes()
    assert np.array_equal(np.loadtxt(times), SECONDS)
    boxes, seconds, angles = read_result(tmp_path, "Jogging-1")
    assert np.abs(boxes - BOXES).max() <= 5.001e-4
    assert np.array_equal(seconds, SECONDS) and np.array_equal(angles, ANGLES)


def test_earlier_times_and_angles_are_not_kept(tmp_path) -> None:
    write_result(tmp_path, "b.1", BOXES[:2], angles=ANGLES[:2])
    boxes, seconds, angles = read_result(tmp_path, "b.1")
    assert len(boxes) == 2 and seconds is None and np.array_equal(angles, ANGLES[:2])
    write_result(tmp_path, "b.1", BOXES + 1)
    assert read_result(tmp_path, "b.1")[1:] == (None, None)


@pytest.mark.parametrize("between", [",", "\t", " ", ", ", ",\t"])
def test_other_separators_and_line_ends_are_read_too(tmp_path, between) -> None:
    (tmp_path / "a.txt").write_bytes(f"{between.join('1234')}\r\n{between.join('5678')}\r\n\n".encode())
    assert read_result(tmp_path, "a").boxes.tolist() == [[0, 1, 3, 4], [4, 5, 7, 8]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((BOXES[:, :3],), "rows of x, y, w, h"),
        ((BOXES * np.nan,), "without NaN"),
        ((BOXES[:0],), r"\(T, 4\)"),
        ((BOXES[0],), r"\(T, 4\)"),
        ((BOXES, SECONDS[:2]), "the seconds of a must be 3 finite numbers, one for each box"),
        ((BOXES, -SECONDS), r"the seconds of a must be 3 finite numbers.*none negative"),
        ((BOXES, SECONDS + 1, ANGLES * np.nan), r"the angles of a must be 3 .* one for each box$"),
    ],
)
def test_bad_numbers_are_refused_before_anything_is_written(tmp_path, arguments, message) -> None:
    write_result(tmp_path, "a", BOXES, SECONDS)
    with pytest.raises(ValueError, match=message):
        write_result(tmp_path, "a", *arguments)
    assert np.array_equal(read_result(tmp_path, "a").seconds, SECONDS)


def test_a_full_disk_leaves_the_earlier_file(tmp_path, monkeypatch) -> None:
    write_result(tmp_path, "a", BOXES)
    before = (tmp_path / "a.txt").read_bytes()

    def full_disk(path, text) -> int:
        with open(path, "w") as file:
            file.write(text[:7])
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full_disk)
        with pytest.raises(OSError, match=r"a_time\.txt could not be written \(no space left\)"):
            write_result(tmp_path, "a", BOXES + 5, SECONDS + 1)
        with pytest.raises(OSError, match=r"a\.txt could not be written"):
            write_result(tmp_path, "a", BOXES + 5)
    assert (tmp_path / "a.txt").read_bytes() == before
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a.txt"]


def test_boxes_are_written_last(tmp_path, monkeypatch) -> None:
    order, keep = [], results.replace_file
    monkeypatch.setattr(results, "replace_file", lambda path, write: order.append(path) or keep(path, write))
    write_result(tmp_path, "a", BOXES, SECONDS, ANGLES)
    assert [path.name for path in order] == ["a_time.txt", "a_angle.txt", "a.txt"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2,3,4\n1,2,3\n", "{}: line 2 must have 4 numbers; it is '1,2,3'"),
        ("1,2,3,four\n", "{}: line 1 must have 4 numbers; it is '1,2,3,four'"),
        ("1,2,3,4\nnan,2,3,4\n", "{}: line 2 is not finite"),
        ("1,2,3,4\n\n1,2,3,4\n", "{}: line 2 must have 4 numbers; it is ''"),
        ("1,2,-3,4\n", "{} has a negative width or height in frame 1"),
        (" \n", "{} is empty: it needs 4 numbers on each line"),
    ],
)
def test_damage_is_reported_with_file_and_line(tmp_path, text, message) -> None:
    path = tmp_path / "bad.txt"
    path.write_text(text)
    with pytest.raises(ValueError) as error:
        read_result(tmp_path, "bad")
    assert message.format(path) in str(error.value)


def test_missing_files_and_lines_are_reported(tmp_path) -> None:
    for what in ("time", "angle"):
        write_result(tmp_path, "Crossing", BOXES, SECONDS, ANGLES)
        (tmp_path / f"{what}s" / f"Crossing_{what}.txt").write_text("0.1\n0.2\n")
        with pytest.raises(ValueError, match=rf"_{what}\.txt has 2 lines for the 3 boxes of"):
            read_result(tmp_path, "Crossing")
    with pytest.raises(FileNotFoundError, match=r"no result file .*Crosing\.txt; did you mean Crossing\?"):
        read_result(tmp_path, "Crosing")
    with pytest.raises(FileNotFoundError, match="there are none in that folder"):
        read_result(tmp_path / "nowhere", "Crossing")


@pytest.mark.parametrize("name", ["", "..", "../a", "a/b", ".hidden"])
def test_a_name_does_not_lead_out_of_the_folder(tmp_path, name) -> None:
    with pytest.raises(ValueError, match="cannot name a result file"):
        write_result(tmp_path / "inner", name, BOXES)
    assert not list(tmp_path.rglob("*.txt"))
