"""Pairs of frames: which are drawn, how pictures are cut, and that workers and resuming change nothing."""

from collections import Counter
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

from ien.tracking.data.clip import Clip
from ien.tracking.data.crops import crop, exemplar_side
from ien.tracking.data.frames import Files
from ien.tracking.training.pairs import (
    MAX_SHIFT,
    MAX_STRETCH,
    SEARCH,
    Draw,
    PairBatch,
    Pairs,
    load_batches,
    make_pairs,
)
from ien.training import ALONE, Processes
from tests.helpers import toy_clips

pytestmark = pytest.mark.usefixtures("one_thread")


def clip_of(image: np.ndarray, box: list[float], count: int = 2) -> Clip:
    return Clip("one", [image] * count, np.array([box] * count, np.float64))


def pairs(clips: list[Clip], frames: list[list[int]], count: int, **changes: Any) -> Pairs:
    settings = {"batch_size": 2, "seed": 1, "processes": ALONE} | changes
    return Pairs(clips, [np.array(some) for some in frames], count, **settings)


GREY = clip_of(np.full((40, 40, 3), 128, np.uint8), [10, 10, 12, 12])


# --- what is drawn


def test_an_epoch_takes_every_sequence_once_and_then_again() -> None:
    many = pairs([GREY] * 5, [[0, 1]] * 5, 12)
    orders = [[many.draw(epoch, index).sequence for index in range(12)] for epoch in range(4)]
    for order in orders:
        assert sorted(order[:5]) == sorted(order[5:10]) == [0, 1, 2, 3, 4] and len(set(order[10:])) == 2
    assert len({tuple(order[first : first + 5]) for order in orders for first in (0, 5)}) > 5  # of 120


def test_near_frames_are_drawn_equally_often_and_ranges_are_filled(monkeypatch) -> None:
    frames, apart = [2, 3, 7, 9, 10, 30], 6
    monkeypatch.setattr("ien.tracking.training.pairs.MAX_APART", apart)
    near = [pair for pair in combinations(frames, 2) if pair[1] - pair[0] < apart]
    one = pairs([GREY], [frames], 1500)
    draws = [one.draw(0, index) for index in range(1500)]
    drawn = Counter(draw.frames for draw in draws)
    assert set(drawn) == set(near) and 30 not in {frame for pair in near for frame in pair}
    expected = 1500 / len(near)
    assert max(abs(count - expected) for count in drawn.values()) < 5 * expected**0.5
    for which in (0, 1):
        stretches = [draw.stretches[which] for draw in draws]
        assert 1 - MAX_STRETCH <= min(stretches) < 0.96 and 1.04 < max(stretches) <= 1 + MAX_STRETCH
        for axis in (0, 1):
            shifts = {draw.shifts[which][axis] for draw in draws}
            assert shifts == set(range(-MAX_SHIFT, MAX_SHIFT + 1))
    assert all(draw.stretches[0] != draw.stretches[1] for draw in draws)


def test_a_draw_is_a_function_of_seed_epoch_and_index() -> None:
    one = pairs([GREY] * 3, [list(range(50))] * 3, 30)
    draws = [one.draw(1, index) for index in range(30)]
    torch.manual_seed(9)
    assert [one.draw(1, index) for index in reversed(range(30))] == draws[::-1]
    other, later = replace(one, seed=2), [one.draw(2, index) for index in range(30)]
    assert all(a != b for a, b in zip(draws, later, strict=True))
    assert all(other.draw(1, index) != draw for index, draw in enumerate(draws))


def test_angles_and_colours_fill_their_ranges_and_leave_the_rest_as_it_was() -> None:
    plain, changed = (pairs([GREY], [[0, 1]], 200, **more) for more in ({}, {"turn": True, "colour": 0.4}))
    angles, factors = [], []
    for index in range(200):
        before, after = plain.draw(1, index), changed.draw(1, index)
        assert after._replace(angle=before.angle, colours=before.colours) == before
        angles.append(after.angle)
        factors += [factor for of_picture in after.colours for factor in of_picture]
    assert 0 <= min(angles) < 10 and 350 < max(angles) < 360
    assert 0.6 <= min(factors) < 0.62 and 1.38 < max(factors) <= 1.4


@pytest.mark.parametrize(("count", "batch_size"), [(7, 3), (8, 8), (9, 2), (1, 4)])
def test_batches_are_even_and_take_each_pair_once(count, batch_size) -> None:
    one = pairs([GREY], [[0, 1]], count, batch_size=batch_size)
    batches = [list(one.batch(step)) for step in range(one.steps)]
    assert [index for batch in batches for index in batch] == list(range(count))
    sizes = [len(part) for part in torch.arange(count).tensor_split(one.steps)]
    assert list(map(len, batches)) == sizes and max(sizes) <= batch_size


def squares(name: str, sides: tuple[int, ...]) -> Clip:
    """A clip of grey frames, with square boxes of these sides."""
    boxes = np.array([[20.0, 20, side, side] for side in sides])
    return Clip(name, [np.zeros((200, 200, 3), np.uint8)] * len(sides), boxes)


def test_only_sequences_with_two_fit_near_frames_are_taken(monkeypatch) -> None:
    monkeypatch.setattr("ien.tracking.training.pairs.MAX_APART", 3)
    clips = [squares("0", (30, 5, 30, 30)), squares("1", (5, 30, 5, 5)), squares("2", (30, 5, 5, 30))]
    usual = make_pairs(toy_clips.config(pairs=None), clips, ALONE)
    assert [clip.name for clip in usual.clips] == ["0"] and usual.frames[0].tolist() == [0, 2, 3]
    assert usual.count == 1
    with pytest.raises(ValueError, match=r"none of 1 sequences has two frames less than 3 .*filter=wide"):
        make_pairs(toy_clips.config(), clips[1:2], ALONE)
    monkeypatch.setattr("ien.tracking.training.pairs.MAX_APART", 4)
    wider = make_pairs(toy_clips.config(pairs=None), clips, ALONE)
    assert [clip.name for clip in wider.clips] == ["0", "2"] and wider.count == 2


def test_the_wide_filter_takes_smaller_and_larger_targets() -> None:
    clip = squares("a", (12, 15, 120, 40))
    assert make_pairs(toy_clips.config(), [clip], ALONE).frames[0].tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="filter published"):
        make_pairs(toy_clips.config(filter="published"), [clip], ALONE)


def test_the_first_epochs_show_generated_clips_and_leave_the_others_as_they_were() -> None:
    train = toy_clips.clips().train
    usual = make_pairs(toy_clips.config(pairs=None, epochs=3), train, ALONE)
    settings = {"pairs": None, "epochs": 3, "pretrain_epochs": 2, "pretrain_clips": 5, "data_seed": 3}
    some = make_pairs(toy_clips.config(**settings), train, ALONE)
    generated = some.generated
    assert generated is not None and usual.generated is None
    assert [clip.name for clip in generated.clips] == [f"synthetic-{3100 + k}" for k in range(5)]
    # one of each sequence to train on, in all epochs
    assert (some.count, generated.count, some.steps) == (3, 3, 1)
    for epoch in range(2):
        exemplar, search = generated.pictures(generated.draw(epoch, 0))
        shown = some[epoch, 0]
        assert isinstance(shown, PairBatch)
        assert torch.equal(shown.exemplars[0], exemplar) and torch.equal(shown.searches[0], search)
    later, without = some[2, 0], usual[2, 0]
    assert isinstance(later, PairBatch) and isinstance(without, PairBatch)
    assert equal(later, without)


# --- pictures


def test_pictures_are_cut_out_of_the_published_255() -> None:
    image = np.random.default_rng(0).integers(0, 256, (160, 200, 3), dtype=np.uint8)
    box = [70.5, 60, 30, 24]
    draw = Draw(0, (0, 1), (1.0, 1.0), ((3, -2), (-4, 1)))
    exemplar, search = pairs([clip_of(image, box)], [[0, 1]], 1).pictures(draw)
    side = float(exemplar_side(box)) * 255 / 127
    whole = crop(image, (70.5 + 14.5, 60 + 11.5), [side], 255)[0]
    middle = whole[:, 4:251, 4:251]  # 247
    expected = middle[:, 4 + 1 : 243 + 1, 4 - 4 : 243 - 4]
    assert search.shape == (3, SEARCH, SEARCH)
    torch.testing.assert_close(search, expected, rtol=0, atol=1e-5)
    of_exemplar = middle[:, 4 - 2 : 243 - 2, 4 + 3 : 243 + 3]  # also 239, of which the middle is taken
    torch.testing.assert_close(exemplar, of_exemplar[:, 56:183, 56:183], rtol=0, atol=1e-5)


@pytest.mark.parametrize("stretch", [0.95, 1.0, 1.05])
def test_a_stretch_enlarges_the_picture(stretch) -> None:
    ramp = np.repeat(np.arange(250, dtype=np.uint8)[None, :, None], 250, 0).repeat(3, 2)
    draw = Draw(0, (0, 1), (stretch, stretch), ((2, 0), (-3, 4)))
    exemplar, search = pairs([clip_of(ramp, [100, 110, 20, 20])], [[0, 1]], 1).pictures(draw)
    step = 40 / 127 / stretch  # √((20 + 20)(20 + 20)) pixels of the frame are 127 of the picture
    for picture, shift in ((exemplar, 2), (search, -3)):
        size = picture.shape[-1]
        columns = 109.5 + step * (np.arange(size) - (size - 1) / 2 + shift)
        torch.testing.assert_close(
            picture, torch.from_numpy(columns).float().div(255).expand_as(picture), rtol=0, atol=1e-5
        )


@pytest.mark.parametrize("quarters", [1, 2, 3])
def test_a_pair_that_turns_shows_the_frame_rotated_about_its_middle(quarters) -> None:
    image = np.random.default_rng(0).integers(0, 256, (160, 200, 3), dtype=np.uint8)
    one = pairs([clip_of(image, [70.5, 60, 30, 24])], [[0, 1]], 1)
    upright = Draw(0, (0, 1), (1.0, 1.02), ((3, -2), (-4, 1)))
    turned = one.pictures(upright._replace(angle=90.0 * quarters))
    for picture, before in zip(turned, one.pictures(upright), strict=True):
        torch.testing.assert_close(picture, before.rot90(quarters, (1, 2)), rtol=0, atol=2e-3)


def test_colours_are_multiplied_and_stay_in_range() -> None:
    image = np.random.default_rng(0).integers(0, 256, (160, 200, 3), dtype=np.uint8)
    one = pairs([clip_of(image, [70.5, 60, 30, 24])], [[0, 1]], 1)
    draw = Draw(0, (0, 1), (1.0, 1.0), ((0, 0), (0, 0)))
    plain = one.pictures(draw)
    exemplar, search = one.pictures(draw._replace(colours=((0.5, 1.0, 9.0), (1.0, 1.0, 0.1))))
    torch.testing.assert_close(exemplar[0], 0.5 * plain[0][0])
    torch.testing.assert_close(exemplar[2], (9 * plain[0][2]).clamp(max=1))
    torch.testing.assert_close(search[2], 0.1 * plain[1][2])
    assert torch.equal(exemplar[1], plain[0][1]) and torch.equal(search[:2], plain[1][:2])


# --- loading


def equal(batch: PairBatch, other: PairBatch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(batch, other, strict=True))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on a single core
def test_workers_and_a_resume_show_the_same_pairs() -> None:
    config = toy_clips.config()
    some = make_pairs(config, toy_clips.clips().train, ALONE)
    alone = list(load_batches(some, config, 0, 0))
    assert [len(batch.searches) for batch in alone] == [3, 2, 2] * 2
    assert not equal(alone[1], alone[4])
    helped = list(load_batches(some, toy_clips.config(workers=2), 0, 0))
    resumed = list(load_batches(some, config, 1, 1))
    for others in (helped, resumed):
        assert all(equal(a, b) for a, b in zip(alone[-len(others) :], others, strict=True))
    assert (len(helped), len(resumed)) == (6, 2)


def test_a_resume_decodes_only_what_is_to_come_and_leaves_the_generator() -> None:
    class Counted(list):
        asked = 0

        def __getitem__(self, index):
            self.asked += 1
            return super().__getitem__(index)

    before = torch.get_rng_state()
    frames = Counted([np.full((40, 40, 3), 128, np.uint8)] * 3)
    clip = Clip("a", frames, np.array([[10, 10, 12, 12]] * 3, np.float64))
    assert len(list(load_batches(pairs([clip], [[0, 1, 2]], 7), toy_clips.config(), 1, 2))) == 2
    assert frames.asked == 2 * 3  # the last two batches of 2, 2, 2 and 1 pairs
    assert torch.equal(torch.get_rng_state(), before)


def test_processes_share_a_batch() -> None:
    settings = ([GREY, toy_clips.clips(1).train[0]], [[0, 1], [0, 1, 2]], 3)
    whole = pairs(*settings, batch_size=3)[0, 0]
    parts = [pairs(*settings, batch_size=3, processes=Processes(rank, 2))[0, 0] for rank in range(2)]
    assert [len(part.exemplars) for part in parts] == [1, 2]
    assert equal(whole, PairBatch(*(torch.cat(each) for each in zip(*parts, strict=True))))
    idle = pairs(*settings, batch_size=1, processes=Processes(0, 2))[0, 0]
    assert len(idle.exemplars) == 1  # takes part, and does not count


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_frame_that_cannot_be_read_is_named_in_one_line(tmp_path, workers) -> None:
    pytest.importorskip("PIL", reason="frames are read by pillow: pip install 'ien[track]'")
    (tmp_path / "00000001.jpg").write_bytes(b"no picture")
    files = Files(str(tmp_path), np.array(["00000001.jpg"] * 2))
    clip = Clip("a", files, np.array([[10, 10, 12, 12]] * 2, np.float64))
    message = r"00000001.jpg cannot be read as an image .*replace or remove it"
    with pytest.raises(ValueError, match=message) as caught:
        next(load_batches(pairs([clip], [[0, 1]], 2), toy_clips.config(workers=workers), 0, 0))
    assert "\n" not in str(caught.value)
