"""Clips from folders like those of GOT-10k, and which of their frames are fit to train on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ien.tracking.data.clips import Clip, got10k, usable

from .test_clips import REAL, make_frames, rows

needs_got10k = pytest.mark.skipif(not (REAL / "got10k").is_dir(), reason="there is no got10k/ in IEN_DATA")


def make_got10k(folder: Path, boxes: str, count: int, **labels: list[int]) -> Path:
    make_frames(folder, range(1, count + 1), digits=8)
    (folder / "groundtruth.txt").write_text(boxes)
    for name, values in labels.items():
        (folder / f"{name}.label").write_text("".join(f"{v}\n" for v in values))
    with (folder.parent / "list.txt").open("a") as listed:
        listed.write(f"{folder.name}\n")
    return folder.parent


def test_labels_say_where_the_target_is_visible(tmp_path: Path) -> None:
    cover, absence = [8, 2, 3, 8, 8, 1, 0, 8], [0, 0, 0, 1, 0, 0, 0, 0]
    boxes = "".join(f"{i}.5,2,30,40\n" for i in range(1, 5)) + "nan,nan,nan,nan\n" + rows(3)
    make_got10k(tmp_path / "A", boxes, 8, cover=cover, absence=absence, cut_by_image=[0, 1] * 4)
    make_got10k(tmp_path / "B", rows(3), 3, cover=[1, 2, 3])
    make_got10k(tmp_path / "C", rows(2), 2)
    a, b, c = got10k(tmp_path)
    known = [True] * 4 + [False] + [True] * 3
    expected = [
        k and not gone and eighths > max(1, 0.3 * 8)
        for k, gone, eighths in zip(known, absence, cover, strict=True)
    ]
    assert a.visible.tolist() == expected == [True, False, True, False, False, False, False, True]
    assert a.boxes[0].tolist() == [0.5, 1, 30, 40] and np.isnan(a.boxes[4]).all() and a.angles is None
    assert b.visible.tolist() == [False, True, True] and c.visible.all()
    assert [clip.name for clip in (a, b, c)] == ["A", "B", "C"] and (b.frame(2) == 3).all()


def test_of_the_test_part_only_the_first_box_is_known(tmp_path: Path) -> None:
    (clip,) = got10k(make_got10k(tmp_path / "A", rows(1), 4))
    assert clip.visible.tolist() == [True, False, False, False] and np.isnan(clip.boxes[1:]).all()


def test_got10k_counts_that_differ_are_errors(tmp_path: Path) -> None:
    for name, boxes, labels, message in (
        ("a", 5, {}, "5 boxes for 4 frames"),
        ("b", 3, {}, "3 boxes for 4 frames"),
        ("c", 1, {"cover": [8]}, "1 boxes for 4 frames"),
        ("d", 4, {"absence": [0] * 3}, "absence.label has 3 labels for 4 frames"),
        ("e", 4, {"cut_by_image": [0] * 5}, "cut_by_image.label has 5 labels for 4 frames"),
    ):
        with pytest.raises(ValueError, match=message):
            got10k(make_got10k(tmp_path / name / "A", rows(boxes), 4, **labels))


def test_a_list_that_does_not_fit_the_folder_is_told_so(tmp_path: Path) -> None:
    make_got10k(tmp_path / "train" / "A", rows(2), 2)
    with pytest.raises(FileNotFoundError, match=r"there is no .*list\.txt: did you mean .*train\?"):
        got10k(tmp_path)
    for listed, message in (("A\nB\n", "names B, and there is no folder"), ("A\nA\n", "names A twice")):
        (tmp_path / "train" / "list.txt").write_text(listed)
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            got10k(tmp_path / "train")
    (tmp_path / "train" / "list.txt").write_text("A\n")
    (tmp_path / "train" / "A" / "groundtruth.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"there is no .*groundtruth\.txt"):
        got10k(tmp_path / "train")


def test_usable_frames_are_those_a_loop_over_the_rules_finds() -> None:
    draw = np.random.default_rng(0)
    boxes = np.concatenate([draw.random((400, 2)) * 100, np.exp(draw.random((400, 2)) * 6 + 1)], 1).round()
    edges = [
        (20, 20),
        (19.9, 20),
        (500, 300),
        (501, 300),
        (1000, 300),
        (20, 80),
        (20, 81),
        (80, 20),
        (81, 20),
    ]
    boxes = np.concatenate([boxes, [[0, 0, *side] for side in edges], np.full((1, 4), np.nan)])
    visible = draw.random(len(boxes)) < 0.9
    visible[400:] = True
    clip = Clip("any", [np.zeros((600, 1500, 3), np.uint8)] * len(boxes), boxes, visible)
    expected = [
        seen
        and all(20 <= side <= 500 and 0.01 <= side / whole <= 0.5 for side, whole in ((w, 1500), (h, 600)))
        and 0.25 <= w / h <= 4
        for (_, _, w, h), seen in zip(boxes.tolist(), visible.tolist(), strict=True)
    ]
    assert usable(clip).tolist() == expected and 20 < sum(expected) < 380
    assert expected[400:] == [True, False, True, False, False, True, False, True, False, False]
    assert usable(clip, sides=(19, 500))[401] and not usable(clip, shares=(0.01, 0.3))[402]
    assert usable(clip, aspects=(0.1, 4))[406]


@needs_got10k
def test_sequences_to_train_on_have_usable_frames() -> None:
    clips = got10k(REAL / "got10k" / "train")
    assert sum(usable(clip).sum() >= 2 for clip in clips) > len(clips) // 2
