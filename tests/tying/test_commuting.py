"""Kernels that commute with rotations by any angle: against e2cnn's basis and the group itself."""

import math

import pytest
import torch

import ien
from ien.baselines.steerable_basis import E2CNN_DEFAULT
from ien.groups.members import channel_table, num_channels
from ien.tying.commuting import VECTOR
from ien.tying.harmonics import orthonormal
from ien.tying.projection import Tie
from tests.helpers.e2cnn import expected_basis

BLOCKS = [
    (((8, 16),), ((8, 24),)),
    (((8, 8), (4, 8), (1, 2)), ((1, 3),)),
    (((4, 4), (2, 4)), ((8, 8), (1, 1))),
]


@pytest.mark.parametrize(("group", "count"), [("rot4", 4), ("rot8", 8)])
@pytest.mark.parametrize(("size", "patterns"), [(3, 6), (5, 11), (7, 18)])
@pytest.mark.parametrize("from_image", [False, True])
def test_kernels_that_commute_are_those_of_e2cnn(group, count, size, patterns, from_image) -> None:
    theirs = expected_basis(count, False, size, from_image, E2CNN_DEFAULT)
    theirs = orthonormal(theirs.flatten(1).double())
    inner = 1 if from_image else count
    assert len(theirs) == inner * patterns
    # both project random kernels onto the same space
    for _ in range(4):
        weight = torch.randn(count, inner, size, size, dtype=torch.float64)
        ours = Tie(ien.group(group), ((count, count),), ((inner, inner),), smooth=True).project(weight)
        expected = theirs.T @ (theirs @ weight.flatten())
        torch.testing.assert_close(ours.flatten(), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize(("after", "before"), BLOCKS)
def test_numbers_are_those_of_the_nearest_kernels(after, before, size) -> None:
    values = torch.randn(num_channels(after), num_channels(before), size, size, dtype=torch.float64)
    tie = Tie(ien.rotation(8), after, before, smooth=True)
    nearest, numbers = tie.project(values), tie.numbers(values)
    torch.testing.assert_close(tie.values(numbers, values.shape), nearest)
    torch.testing.assert_close(tie.numbers(nearest), numbers)
    torch.testing.assert_close(tie.project(nearest), nearest)


@pytest.mark.parametrize("group", ["rot4", "rot8", "rot4xflip"])
def test_there_are_as_many_numbers_as_dimensions(group) -> None:
    n = len(ien.group(group))
    after, before = ((n, n), (1, 1)), ((1, 2),)
    tie = Tie(ien.group(group), after, before)
    shape = (n + 1, 2, 3, 3)
    trace = 0.0  # of the projection: the dimension of the space
    for place in range(math.prod(shape)):
        one = torch.zeros(shape, dtype=torch.float64)
        one.view(-1)[place] = 1
        trace += float(tie.project(one).view(-1)[place])
    assert trace == pytest.approx(tie.numbers(torch.zeros(shape)).numel())


def test_coefficients_and_weights_have_the_same_root_mean_square() -> None:
    tie = Tie(ien.rotation(8), ((8, 16),), ((8, 16),), smooth=True)
    weight = tie.project(torch.randn(16, 16, 5, 5, dtype=torch.float64))
    assert float(tie.numbers(weight).square().mean()) == pytest.approx(float(weight.square().mean()))


def test_numbers_under_exact_groups_are_the_pixels_of_the_first_kernels() -> None:
    tie = Tie(ien.rotation(4), ((4, 8),), ((4, 12),))
    weight = tie.project(torch.randn(8, 12, 3, 3))
    assert torch.equal(tie.numbers(weight), weight[::4])


@pytest.mark.parametrize("group", ["rot4", "rot8", "rot4xflip", "flip"])
def test_vectors_rotate_with_the_image(group) -> None:
    parsed = ien.group(group)
    n = len(parsed)
    tie = Tie(parsed, ((VECTOR, 2),), ((n, 2 * n),))
    weight = tie.project(torch.randn(2, 2 * n, dtype=torch.float64))
    h = torch.randn(2 * n, dtype=torch.float64)
    for i, label in enumerate(parsed.labels):
        permuted = h[channel_table(parsed, ((n, 2 * n),))[i]]
        # from the label alone: first the flip, dx to -dx, then the turn, with dy pointing down
        dx, dy = (weight @ h).tolist()
        if label.endswith("flip"):
            dx = -dx
        angle = math.radians(float(label.split("°")[0])) if "°" in label else 0.0
        if label == "vflip":
            angle = math.pi
        expected = [
            math.cos(angle) * dx + math.sin(angle) * dy,
            -math.sin(angle) * dx + math.cos(angle) * dy,
        ]
        torch.testing.assert_close(weight @ permuted, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("group", ["rot2", "rot4", "rot8"])
def test_no_number_but_0_turns_as_a_vector(group) -> None:
    tie = Tie(ien.group(group), ((VECTOR, 2),))
    bias = torch.tensor([1.0, 2.0])
    assert tie.numbers(bias).shape == (0,)
    assert torch.equal(tie.project(bias), torch.zeros(2))


def test_smooth_kernels_survive_being_resampled() -> None:
    def lost(smooth: bool) -> float:
        blocks, eighth = ((4, 16),), torch.ones(16, dtype=torch.int64)
        kernels = Tie(ien.rotation(4), blocks, blocks, smooth).project(weight)
        there = ien.rotation(8).act(kernels, eighth, mode="bicubic")
        back = ien.rotation(8).act(there, eighth, inverse=True, mode="bicubic")
        return float((back - kernels).norm() / kernels.norm())

    weight = torch.randn(16, 16, 7, 7)
    assert lost(True) < 0.25 < 0.5 < lost(False)
