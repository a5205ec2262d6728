"""Scale-MNIST and its rotated twin, made from MNIST."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from ien.data import load, scale_mnist, to_float
from ien.data.mnist import mnist
from ien.data.scale_mnist import SIZES, Sizes, generate, stratified

from ..helpers import real
from ..helpers.resampling import keys, resampled
from ..helpers.tiny import source_numbers, tagged_digits

FEW = Sizes(40, 10, 60)
POOLED = [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]  # 70,000 digits
NAMES = ["scale-mnist", "rot-scale-mnist"]


# who is in which part


def largest_remainders(size, counts) -> list[int]:
    shares = [Fraction(size * count, max(sum(counts), 1)) for count in counts]
    whole = [int(share) for share in shares]
    most_left = sorted(range(len(counts)), key=lambda k: (whole[k] - shares[k], k))
    return [n + (k in most_left[: size - sum(whole)]) for k, n in enumerate(whole)]


@pytest.mark.parametrize(
    ("counts", "sizes"),
    [(POOLED, SIZES), ([500] * 10, Sizes(4000, 0, 1000)), ([3, 50, 0, 7, 1], Sizes(20, 10, 31))],
    ids=["mnist", "embedded", "uneven"],
)
def test_parts_are_stratified_exactly_and_share_nothing(counts, sizes) -> None:
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))]
    parts = dict(zip(Sizes._fields, stratified(labels, sizes, 0), strict=True))
    assert [len(part) for part in parts.values()] == list(sizes)
    assert len(torch.cat(list(parts.values())).unique()) == sum(sizes)
    left = list(counts)
    for name in ("test", "train", "validation"):
        found = torch.bincount(labels[parts[name]], minlength=len(counts)).tolist()
        assert found == largest_remainders(getattr(sizes, name), left)
        left = [n - m for n, m in zip(left, found, strict=True)]
        for count, n in zip(counts, found, strict=True):  # and so of all, not only of those left
            assert abs(n - Fraction(getattr(sizes, name) * count, sum(counts))) < 1
    with pytest.raises(ValueError, match=r"1 \+ 2 \+ \d+ different digits cannot be drawn from"):
        stratified(labels, Sizes(1, 2, len(labels) - 2), 0)


def test_seeds_draw_other_digits_in_an_order_that_mixes_the_labels() -> None:
    labels = torch.arange(10).repeat_interleave(torch.tensor(POOLED))
    drawn = [stratified(labels, SIZES, seed) for seed in range(6)]
    assert all(map(torch.equal, drawn[3], stratified(labels, SIZES, 3)))
    orders = [stratified(torch.arange(10), Sizes(10, 0, 0), seed)[0] for seed in (0, 1)]
    assert not torch.equal(*orders)  # of all digits, too
    for k, parts in enumerate(drawn):
        for other in drawn[:k]:  # two draws of 10,000 of 70,000 have 1,429 ± 33 in common
            assert 1250 < len(np.intersect1d(parts[0], other[0])) < 1600
        for part, size in zip(parts, SIZES, strict=True):
            for start in (0, size // 2, size - 200):  # five standard deviations are 0.11
                share = torch.bincount(labels[part[start : start + 200]], minlength=10) / 200
                assert float((share - torch.tensor(POOLED) / 70_000).abs().max()) < 0.11


# the images


@pytest.mark.parametrize("name", NAMES)
def test_validation_images_follow_the_training_images(name, mnist_folder) -> None:
    data = load(name, mnist_folder, seed=2)
    assert str(data) == f"Dataset({name}, generated: 50 train and 60 test images 1×28×28 uint8, 10 classes)"
    _, labels = mnist(mnist_folder)
    numbers = source_numbers(data)
    assert numbers.tolist() == torch.cat(stratified(labels, FEW, 2)).tolist()
    assert torch.equal(torch.cat([data.train_y, data.test_y]), labels[numbers])


def test_images_are_those_of_a_loop_over_pixels_and_the_twin_adds_angles(spied) -> None:
    drawn = spied(scale_mnist, "rotate_and_scale")
    upright = torch.from_numpy(tagged_digits(120, 0))[:, None]
    for rotated in (False, True):
        made = generate(upright, torch.arange(120) % 10, 0, FEW, rotated)
        images, (x, degrees, factors) = torch.cat([made["train_x"], made["test_x"]]), drawn[-1].args
        for k in range(0, 110, 30):
            exact = resampled(x[k, 0].numpy(), float(degrees[k]), float(factors[k]), keys)
            assert np.abs(images[k, 0].numpy() - exact.clip(0, 255)).max() <= 0.5 + 1e-6
    (plain, zeros, same_factors), (digits, angles, factors) = (call.args for call in drawn)
    assert torch.equal(plain, digits) and torch.equal(factors, same_factors)
    assert not zeros.any() and angles.all()


def test_factors_and_angles_are_uniform_and_independent(spied) -> None:
    drawn = spied(scale_mnist, "rotate_and_scale")
    blank = torch.zeros(12_000, 1, 1, 1, dtype=torch.uint8)
    generate(blank, torch.arange(12_000) % 10, 0, Sizes(12_000, 0, 0), True)
    degrees, factors = (torch.cat([call.args[k] for call in drawn]).numpy() for k in (1, 2))
    assert 0.3 <= factors.min() and factors.max() < 1 and 0 <= degrees.min() and degrees.max() < 360
    for values, low, high in ((factors, 0.3, 1), (degrees, 0, 360)):
        assert np.abs(np.histogram(values, 30, (low, high))[0] - 400).max() < 100  # five standard deviations
    assert abs(np.corrcoef(degrees, factors)[0, 1]) < 0.05


@real.needs("mnist")
def test_real_digits_have_the_published_mean_and_deviation() -> None:
    x, y = mnist(real.DATA)
    assert torch.bincount(y).tolist() == POOLED
    made = to_float(generate(x, y, 0, Sizes(4000, 0, 0), False)["train_x"])
    assert abs(float(made.mean()) - 0.0607) < 0.002 and abs(float(made.std()) - 0.2161) < 0.004
