"""Do the data have the symmetry? Against data that are made to have it, or not."""

from __future__ import annotations

import statistics

import pytest
import scipy.stats
import torch
from torch import Tensor

import ien
from ien.tying import folds
from ien.tying.folds import HeldOut
from ien.tying.listening import Evidence
from ien.tying.symmetry import Symmetry


def stripes(count: int, every_way: bool, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images that are brighter at the top or at the bottom, by class; turned by chance if asked for."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (count,), generator=rng)
    images = torch.rand(count, 1, 12, 12, generator=rng)
    images[labels == 0, :, :4] += 0.5
    images[labels == 1, :, 3:9] += 0.5  # in the middle: a tied network can tell them apart
    if every_way:
        images = ien.rotation(4).act(images, torch.randint(4, (count,), generator=rng))
    return images, labels


@pytest.mark.usefixtures("one_thread")
def test_labels_that_depend_on_orientation_are_found_and_no_others() -> None:
    there = ien.symmetry(*stripes(640, every_way=True), "rot4", epochs=4, quick=True)
    assert there.verdict == "exact" and abs(there.certainty) < 2
    assert str(there).startswith("rot4 is a symmetry, as far as 640 images tell")
    broken = ien.symmetry(*stripes(640, every_way=False), "rot4", epochs=4, quick=True)
    assert broken.verdict == "partial or not there" and broken.certainty > 4
    assert "rot4 is no exact symmetry" in str(broken) and 'slack="auto"' in str(broken)
    # bars lie level: mirrored left to right, they are as likely as before
    mirrored = ien.symmetry(*stripes(640, every_way=False), "flip", epochs=4, quick=True)
    assert mirrored.verdict == "exact"
    assert list(broken.layers) == ["conv1", "conv2", "conv3", "conv4"]


@pytest.mark.usefixtures("one_thread")
def test_labels_that_mean_nothing_break_no_symmetry_and_a_seed_repeats() -> None:
    images, labels = stripes(640, every_way=False)
    shuffled = labels[torch.randperm(640)]
    first = ien.symmetry(images, shuffled, "rot4", epochs=2, quick=True)
    assert not first.depends
    assert ien.symmetry(images, shuffled, "rot4", epochs=2, quick=True) == first


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_ordinary_networks_are_better_where_only_orientation_tells_classes_apart(monkeypatch) -> None:
    monkeypatch.setattr(folds, "STEPS", 30)  # enough for bars
    drawn = torch.Generator().manual_seed(1)
    images = torch.rand(640, 1, 12, 12, generator=drawn)
    labels = torch.randint(2, (640,), generator=drawn)
    images[labels == 0, :, 4:8] += 1.0  # level bars, and upright ones: the same to rot4
    images[labels == 1, :, :, 4:8] += 1.0
    result = ien.symmetry(images, labels, "rot4", epochs=2)
    assert result.held_out is not None
    assert statistics.mean(result.held_out.ordinary) > 0.95  # a tied network can only guess
    assert all(0.3 < accuracy < 0.7 for accuracy in result.held_out.tied)
    assert result.verdict == "not there"
    assert "rot4 is not a symmetry of these 640 images" in str(result)


def test_the_interval_is_that_of_a_paired_t_test() -> None:
    tied, ordinary = (0.9, 0.8, 0.85, 0.95, 0.7), (0.8, 0.82, 0.8, 0.9, 0.75)
    low, high = HeldOut(tied, ordinary).interval
    expected = scipy.stats.ttest_rel(tied, ordinary).confidence_interval(0.95)
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-5)


@pytest.mark.parametrize(
    ("certainty", "gain", "verdict"),
    [
        (0.5, 0.0, "exact"),
        (3.0, 0.0, "exact"),
        (6.0, 0.0, "partial"),
        (6.0, 0.1, "partial"),
        (6.0, -0.1, "not there"),
        (0.5, -0.1, "not there"),
    ],
)
def test_the_verdict_follows_from_both_tests(certainty: float, gain: float, verdict: str) -> None:
    heard = Evidence(32, signal=certainty * 0.5, deviation=0.5)
    ordinary = (0.5, 0.5, 0.5, 0.5, 0.5)
    found = HeldOut(tuple(0.5 + gain + spread for spread in (0, 0.001, -0.001, 0, 0)), ordinary)
    result = Symmetry(ien.rotation(4), heard, {"conv1": heard}, found, 700)
    assert result.verdict == verdict
    tied_for_sure = verdict == "exact" and certainty < 2
    assert ("slack" in result.advice) == (not tied_for_sure)
    says_so = str(result).startswith("rot4 is a symmetry, as far as 700 images tell")
    assert says_so == tied_for_sure
    is_open = str(result).startswith("rot4 may be a symmetry: 700 images leave it open")
    assert is_open == (verdict == "exact" and not tied_for_sure)


def test_few_images_do_not_rule_out_what_they_cannot_see() -> None:
    quiet = Evidence(32, 0.0, 1.0)
    found = HeldOut((0.7, 0.8, 0.75, 0.7, 0.8), (0.8, 0.7, 0.75, 0.8, 0.7))
    result = Symmetry(ien.rotation(4), quiet, {"a": quiet}, found, 700)
    assert result.verdict == "exact" and 'slack="auto"' in result.advice
    cost = -100 * found.interval[0]
    assert cost > 10 and f"may cost up to {cost:.1f} points: more images would tell" in str(result)


def test_one_layer_that_depends_on_orientation_is_enough() -> None:
    silent, loud = Evidence(32, 0.1, 1.0), Evidence(32, 5.0, 1.0)
    assert Symmetry(ien.rotation(4), silent, {"a": silent, "b": loud}, None, 700).depends
    assert not Symmetry(ien.rotation(4), silent, {"a": silent, "b": silent}, None, 700).depends


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.rand(640, 12, 12), torch.zeros(640).long(), r"images must be .* \(N, C, H, W\)"),
        (torch.rand(640, 0, 12, 12), torch.zeros(640).long(), r"images must .* got torch.float32 \(640, 0"),
        (torch.rand(640, 1, 12, 12), torch.zeros(3).long(), r"640 whole numbers.*got torch.int64 \(3,\)"),
        (torch.rand(640, 1, 12, 12), torch.zeros(640), "640 whole numbers, .* got torch.float32"),
        (torch.rand(640, 1, 12, 12), [0, 1] * 320, "a tensor of 640 whole numbers, .* got a list$"),
        (torch.rand(640, 1, 12, 12), torch.arange(640) % 2 - 1, "of 0 or more"),
        (torch.rand(640, 1, 12, 12), torch.arange(640), "labels name 640 classes of 640 images"),
        (torch.rand(64, 1, 12, 12), torch.zeros(64).long(), "64 images are too few to tell: use 640"),
        (torch.rand(640, 1, 12, 12), torch.zeros(640).long(), "two classes or more"),
        (torch.full((640, 1, 12, 12), torch.nan), torch.arange(640) % 2, "NaN or infinite"),
    ],
)
def test_bad_input_is_named(images, labels, message) -> None:
    with pytest.raises(ValueError, match=message):
        ien.symmetry(images, labels, "rot4")


def test_elements_that_resample_cannot_be_tested() -> None:
    with pytest.raises(ValueError, match="rot8 has elements other than quarter turns and flips, which"):
        ien.symmetry(*stripes(640, every_way=True), "rot8")


@pytest.mark.parametrize("epochs", [1, 2.5])
def test_one_epoch_is_too_few_and_half_a_one_is_none(epochs) -> None:
    with pytest.raises(ValueError, match=f"epochs must be a whole number, 2 or more; got {epochs}"):
        ien.symmetry(*stripes(640, every_way=True), "rot4", epochs=epochs)


@pytest.mark.usefixtures("one_thread")
def test_only_which_labels_are_equal_counts() -> None:
    images, labels = stripes(640, every_way=True)
    first = ien.symmetry(images, labels, "rot4", epochs=2, quick=True)
    # as many classes as the largest number says would not fit into memory
    assert ien.symmetry(images, labels * 10**12, "rot4", epochs=2, quick=True) == first


def test_networks_that_learned_nothing_are_said_to_say_nothing() -> None:
    quiet = Evidence(32, 0.0, 1.0)
    for accuracy, says in ((0.62, True), (0.8, False)):  # 640 coins are within 0.6 ± 0.04
        found = HeldOut((accuracy,) * 5, (accuracy,) * 5)
        result = Symmetry(ien.rotation(4), quiet, {"a": quiet}, found, 640, most_frequent=0.6)
        assert ("better than naming the most frequent class (60.0%): more images" in str(result)) == says
        assert ("slack" in result.advice) == says
