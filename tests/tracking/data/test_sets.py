"""Sets of clips by name: from folders, generated, and what tells one set from another."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ien.tracking.data.clip import Clip, usable
from ien.tracking.data.sets import MAX_PRETRAINING_CLIPS, digest, load_clips, pretraining_clips
from ien.tracking.training.pairs import FILTERS
from tests.helpers.sequences import REAL, box_lines, make_got10k, make_otb, needs_got10k


def make_data(folder: Path, train: str = "got10k/train") -> Path:
    make_got10k(folder / train / "A", box_lines(3), 3)
    make_got10k(folder / train / "B", box_lines(2), 2)
    make_otb(folder / "otb" / "Man", box_lines(4), range(1, 5), empty=False)
    return folder


def named(clips: list[Clip]) -> list[str]:
    return [clip.name for clip in clips]


@pytest.mark.parametrize("train", ["got10k/train", "train", "."])
def test_got10k_is_trained_on_and_otb_tested_on(tmp_path, train) -> None:
    clips = load_clips("got10k", make_data(tmp_path, train))
    assert named(clips.train) == ["A", "B"] and clips.source == "subset"
    assert list(clips.tests) == ["otb", "rot-otb"]
    (plain,), (moved,) = clips.tests.values()
    assert plain.name == moved.name == "Man" and plain.angles is None
    assert moved.angles.tolist() == [0, 6, 12, 18]
    assert repr(clips) == "Clips(got10k, subset: 2 sequences to train on; tests otb 1, rot-otb 1)"


def test_what_is_missing_is_named(tmp_path) -> None:
    needed = r"needs GOT-10k's sequences in \S*got10k/train .* and OTB's in \S*otb to test on"
    with pytest.raises(FileNotFoundError, match=rf"there is no \S*/got10k/train: .*{needed}"):
        load_clips("got10k", tmp_path)
    make_got10k(tmp_path / "got10k" / "train" / "A", box_lines(3), 3)
    with pytest.raises(FileNotFoundError, match=rf"there is no \S*/otb: .*{needed}"):
        load_clips("got10k", tmp_path)
    with pytest.raises(ValueError, match="got10k is not embedded: give a folder"):
        load_clips("got10k", "embedded")
    with pytest.raises(ValueError, match="there is no set of clips 'got'; did you mean got10k"):
        load_clips("got")


def test_validation_holds_out_the_last_tenth_and_needs_no_others(tmp_path) -> None:
    train = tmp_path / "got10k" / "train"
    for k in range(12):
        make_got10k(train / f"{k:02}", box_lines(3), 3)  # and no otb
    clips = load_clips("got10k", tmp_path, test_on="validation")
    assert named(clips.train) == [f"{k:02}" for k in range(11)] and clips.source == "subset"
    assert list(clips.tests) == ["validation", "rot-validation"]
    assert all(named(test) == ["11"] for test in clips.tests.values())
    assert clips.tests["rot-validation"][0].angles[1] == 6
    whole, part = (load_clips("synthetic-clips", test_on=which) for which in ("test", "validation"))
    assert named(whole.train) == named(part.train) + named(part.tests["validation"])

    (train / "11" / "groundtruth.txt").write_text("NaN,NaN,NaN,NaN\n" + box_lines(2))
    with pytest.raises(ValueError, match=r"11 is among the last tenth .* no box in its first frame"):
        load_clips("got10k", tmp_path, test_on="validation")
    (train / "list.txt").write_text("00\n")
    with pytest.raises(ValueError, match="validation leaves none of 1 sequences to train on"):
        load_clips("got10k", tmp_path, test_on="validation")


def test_generated_clips_come_from_their_seed() -> None:
    first, again, other = (load_clips("synthetic-clips", "nowhere", seed) for seed in (0, 0, 1))
    names = [named(clips.train + clips.tests["clips"]) for clips in (first, again, other)]
    assert names[0] == names[1] and len(set(names[0] + names[2])) == 2 * len(names[0])
    a, b = first.train[3], again.train[3]
    assert (a.frame(5) == b.frame(5)).all() and (a.boxes == b.boxes).all()
    plain, moved = first.tests["clips"][0], first.tests["rot-clips"][0]
    assert not plain.angles.any() and moved.angles[-1] == 6 * (len(moved) - 1)
    assert all(usable(clip).sum() > 30 for clip in first.train)  # by the published filter


def test_clips_to_pretrain_on_are_never_trained_or_tested_on() -> None:
    all_names = []
    for seed in (0, 1):
        clips = load_clips("synthetic-clips", "nowhere", seed)
        all_names += named(clips.train + clips.tests["clips"])
        all_names += named(pretraining_clips(seed, MAX_PRETRAINING_CLIPS))
    assert len(set(all_names)) == len(all_names) == 2 * (24 + 6 + 400)
    for count in (0, MAX_PRETRAINING_CLIPS + 1):
        with pytest.raises(ValueError, match=f"1 to 400 clips to pre-train on; got {count}"):
            pretraining_clips(0, count)


def test_a_digest_tells_names_boxes_and_files_apart(tmp_path) -> None:
    clip, other = load_clips("got10k", make_data(tmp_path)).train
    clips = ([clip], [other], [replace(clip, name="C")], [replace(clip, boxes=clip.boxes + 1)], [clip, other])
    before = [digest(some) for some in clips]
    assert len(set(before)) == 5 and digest(load_clips("got10k", tmp_path).train) == before[-1]
    (tmp_path / "got10k/train/A/00000002.jpg").write_bytes(b"not a picture")  # nothing is decoded
    assert digest(load_clips("got10k", tmp_path).train) != before[-1]


@needs_got10k
def test_filters_of_the_real_subset() -> None:
    counts = {}
    for name, bounds in FILTERS.items():
        fit = [int(usable(clip, **bounds).sum()) for clip in load_clips("got10k", REAL).train]
        counts[name] = (sum(fit), int(np.count_nonzero(fit)))
    if len(load_clips("got10k", REAL).train) != 35:
        pytest.skip("this is another subset")
    assert counts == {"published": (1051, 21), "wide": (1882, 32)}
