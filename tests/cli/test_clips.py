"""``ien data rot-otb`` and what ``ien data list`` says of clips."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from ien.tracking.data.clips import otb
from ien.tracking.data.rot_otb import rotated, write
from ien.tracking.data.synthetic import synthetic
from tests.helpers.shell import error_of, invoke

pytest.importorskip("PIL", reason="frames need pillow: pip install 'ien[track]'")
pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture
def sequences() -> Path:
    """Two short sequences, One and Two, in data/otb."""
    for seed, name in enumerate(("One", "Two")):
        clip = synthetic(seed, frames=3, size=(40, 60), turning=False)
        place = write(clip, "data/otb")
        (place / "angles.txt").unlink()  # as in OTB itself
        place.rename(f"data/otb/{name}")
    return Path("data/otb")


def test_help_teaches_by_example() -> None:
    text = " ".join(invoke("data", "rot-otb", "--help").output.split())
    assert "Example: ien data rot-otb data/otb data/rot-otb" in text
    assert "Rot-OTB" in invoke("data", "--help").output


def test_all_sequences_are_written_turned_and_left_alone_the_second_time(sequences: Path) -> None:
    done = invoke("data", "rot-otb", sequences, "out")
    assert done.stdout == "out: 2 sequences written, 6 frames\n"
    for plain, found in zip(otb(sequences), otb("out"), strict=True):
        expected = rotated(plain)
        assert found.name == plain.name and found.angles is not None
        assert found.angles.tolist() == [0, 6, 12]
        assert np.abs(found.boxes - expected.boxes).max() < 1e-3 and found.size == expected.size == (74, 74)
        difference = found.frame(2).astype(int) - expected.frame(2)
        assert np.abs(difference).mean() < 4  # JPEG
    files = {path: path.stat().st_mtime_ns for path in Path("out").rglob("*")}
    shutil.rmtree("out/Two")
    done = invoke("data", "rot-otb", sequences, "out")
    assert done.stdout == "out: 1 sequence written, 3 frames; 1 sequence there already\n"
    assert all(path.stat().st_mtime_ns == files[path] for path in Path("out/One").rglob("*"))


def test_options_are_those_of_the_maker_and_a_sequence_may_be_named(sequences: Path) -> None:
    options = ("--rate", "0.25", "--fps", "10", "--direction", "clockwise", "--box", "ellipse")
    invoke("data", "rot-otb", sequences, "named", *options, "--canvas", "same", "--names", "Two")
    invoke("data", "rot-otb", sequences / "Two", "single", *options, "--canvas", "same")
    plain = otb(sequences, ["Two"])[0]
    expected = rotated(plain, 0.25, 10, "clockwise", "same", box="ellipse")
    for folder in ("named", "single"):
        (found,) = otb(folder)
        assert found.angles is not None and found.angles.tolist() == [0, -9, -18]
        assert np.abs(found.boxes - expected.boxes).max() < 1e-3 and found.size == plain.size


def test_what_is_there_with_other_options_stops_it_before_anything_is_written(sequences: Path) -> None:
    invoke("data", "rot-otb", sequences, "out", "--names", "Two", "--rate", "0.25")
    message = error_of("data", "rot-otb", sequences, "out")
    assert "out/Two is there, and was not made with these options" in message
    assert [path.name for path in Path("out").iterdir()] == ["Two"]
    (Path("out/Two/angles.txt")).unlink()
    assert "was not made with these" in error_of("data", "rot-otb", sequences, "out", "--rate", "0.25")


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (("nowhere", "out"), "there is no folder nowhere"),
        (("data", "out"), "holds no sequences of OTB: did you mean data/otb?"),
        (("data/otb", "out", "--names", "Ones"), "no sequence 'Ones'; did you mean One"),
        (("data/otb", "out", "--direction", "left"), "direction is one of counter-clockwise, clockwise"),
        (("data/otb", "out", "--box", "hul"), "did you mean hull"),
        (("data/otb", "out", "--canvas", "big"), "canvas is one of diagonal, same"),
        (("data/otb", "out", "--fps", "0"), "fps above 0"),
        (("data/otb", "data/otb"), "data/otb/One is there, and was not made with these options"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_mistake_is_one_line_and_writes_nothing(
    sequences: Path, arguments: tuple[str, ...], fragment: str
) -> None:
    assert fragment in error_of("data", "rot-otb", *arguments)
    assert not Path("out").exists()


def test_list_tells_which_clips_are_there_and_how_they_are_laid_out(sequences: Path) -> None:
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
