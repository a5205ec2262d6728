"""``ien data rot-otb``, and what ``ien data list`` says of clips; tests/data has the image data sets."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from ien.tracking.data.clips import otb
from ien.tracking.data.rot_otb import rotated, write
from ien.tracking.data.synthetic import synthetic
from tests.helpers.shell import error_of, invoke

pytest.importorskip("PIL", reason="frames need pillow: pip install 'ien[track]'")

ROT_OTB = ("data", "rot-otb", "data/otb")


@pytest.fixture(autouse=True)
def sequences(elsewhere):
    """Two short sequences, One and Two, in data/otb."""
    for seed, name in enumerate(("One", "Two")):
        place = write(synthetic(seed, frames=3, size=(40, 60), turning=False), "data/otb")
        (place / "angles.txt").unlink()  # as in OTB itself
        place.rename(f"data/otb/{name}")


def assert_rotated(found, plain, angles, *rate):
    expected = rotated(plain, *rate)
    assert found.name == plain.name and found.angles.tolist() == angles
    assert np.abs(found.boxes - expected.boxes).max() < 1e-3 and found.size == expected.size == (74, 74)
    difference = found.frame(2).astype(int) - expected.frame(2)
    assert np.abs(difference).mean() < 4  # JPEG


def test_sequences_are_written_rotating_and_left_alone_the_second_time() -> None:
    assert invoke(*ROT_OTB, "out").stdout == "out: 2 sequences written, 6 frames\n"
    for plain, found in zip(otb("data/otb"), otb("out"), strict=True):
        assert_rotated(found, plain, [0, 6, 12])
    times = {path: path.stat().st_mtime_ns for path in Path("out/One").rglob("*")}
    shutil.rmtree("out/Two")
    second = invoke(*ROT_OTB, "out").stdout
    assert second == "out: 1 sequence written, 3 frames; 1 sequence there already\n"
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())


@pytest.mark.parametrize("source", ["data/otb out --names Two", "data/otb/Two out"])
def test_a_sequence_may_be_named_and_rotate_at_another_rate(source) -> None:
    invoke("data", "rot-otb", *source.split(), "--rate", "0.25", "--fps", "10")
    (found,) = otb("out")
    assert_rotated(found, otb("data/otb", ["Two"])[0], [0, 9, 18], 0.25, 10)


def test_a_sequence_made_with_other_options_stops_it_before_writing() -> None:
    invoke(*ROT_OTB, "out", "--names", "Two", "--rate", "0.25")
    assert "out/Two is there already and was made with other options" in error_of(*ROT_OTB, "out")
    assert [path.name for path in Path("out").iterdir()] == ["Two"]
    Path("out/Two/angles.txt").unlink()
    assert "was made with other options" in error_of(*ROT_OTB, "out", "--rate", "0.25")


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        ("nowhere out", "there is no folder nowhere"),
        ("data out", "did you mean data/otb?"),
        ("data/otb out --names Ones", "no sequence 'Ones'; did you mean One"),
        ("data/otb out --fps 0", "fps above 0"),
        ("data/otb data/otb", "data/otb/One is there already and was made with other options"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(arguments, fragment) -> None:
    assert fragment in error_of("data", "rot-otb", *arguments.split())
    assert not Path("out").exists()


def test_list_tells_which_clips_are_there_and_how_they_are_laid_out() -> None:
    def listed(folder: str) -> str:
        return " ".join(invoke("data", "list", "--data", folder, columns=400).stdout.split())

    text = listed("data")
    assert "otb 2 sequences 6 frames in data/otb" in text and "rot-otb generated made from otb" in text
    assert "no data/got10k/train/list.txt" in text and "synthetic-clips generated needs no files" in text
    Path("data/got10k/train").mkdir(parents=True)
    Path("data/got10k/train/list.txt").write_text("a\nb\nc\n")
    assert "got10k 3 sequences named in data/got10k/train/list.txt" in listed("data")
    Path("data/otb/One/groundtruth_rect.txt").write_text("1,2,3\n")
    assert "missing or incomplete: data/otb/One/groundtruth_rect.txt: line 1" in listed("data")
    assert "rot-otb generated needs otb" in listed("none") and "<Name>/groundtruth_rect.txt" in listed("none")
