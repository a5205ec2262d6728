"""Kernels that commute with rotations by any angle: against e2cnn's basis and the group itself."""

import pytest
import torch
from torch import nn

import ien
from ien.groups.members import num_channels
from ien.tying.harmonics import orthonormal
from ien.tying.projection import Tie, tied_weight

BLOCKS = [
    (((8, 16),), ((8, 24),)),
    (((8, 8), (4, 8), (1, 2)), ((1, 3),)),
    (((4, 4), (2, 4)), ((8, 8), (1, 1))),
]


@pytest.mark.parametrize(("group", "count"), [("rot4", 4), ("rot8", 8)])
@pytest.mark.parametrize(("size", "patterns"), [(3, 6), (5, 11), (7, 18)])
@pytest.mark.parametrize("from_image", [False, True])
def test_kernels_that_commute_are_those_of_e2cnn(group, count, size, patterns, from_image) -> None:
    pytest.importorskip("e2cnn")
    from ien.baselines.steerable_layers import SteerableConv2d

    theirs = orthonormal(SteerableConv2d(1, 1, size, group, from_image=from_image).basis.double())
    inner = 1 if from_image else count
    assert len(theirs) == inner * patterns
    # both project random kernels onto the same space
    for _ in range(4):
        weight = torch.randn(count, inner, size, size, dtype=torch.float64)
        ours, _ = tied_weight(weight, [(count, count)], [(inner, inner)], ien.group(group), smooth=True)
        expected = theirs.T @ (theirs @ weight.flatten())
        torch.testing.assert_close(ours.flatten(), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize(("after", "before"), BLOCKS)
def test_coefficients_are_those_of_the_nearest_kernels(after, before, size) -> None:
    values = torch.randn(num_channels(after), num_channels(before), size, size, dtype=torch.float64)
    conv = nn.Conv2d(values.shape[1], values.shape[0], size)
    tie = Tie(conv, "weight", ien.rotation(8), after, before, smooth=True)
    nearest, coefficients = tie.project(values), tie.to_coefficients(values)
    torch.testing.assert_close(tie.from_coefficients(coefficients), nearest)
    torch.testing.assert_close(tie.to_coefficients(nearest), coefficients)
    torch.testing.assert_close(tie.project(nearest), nearest)


def test_there_are_as_many_coefficients_as_dimensions() -> None:
    after, before = ((4, 4), (1, 1)), ((2, 2), (1, 1))
    tie = Tie(nn.Conv2d(3, 5, 3), "weight", ien.rotation(8), after, before, smooth=True)
    trace = 0.0  # of the projection: the dimension of the space
    for place in range(5 * 3 * 9):
        one = torch.zeros(5, 3, 3, 3, dtype=torch.float64)
        one.view(-1)[place] = 1
        trace += float(tie.project(one).view(-1)[place])
    coefficients = tie.to_coefficients(torch.randn(5, 3, 3, 3, dtype=torch.float64))
    assert abs(trace - int((coefficients.abs() > 1e-12).sum())) < 1e-6


def test_coefficients_and_weights_have_the_same_root_mean_square() -> None:
    tie = Tie(nn.Conv2d(16, 16, 5), "weight", ien.rotation(8), ((8, 16),), ((8, 16),), smooth=True)
    weight = tie.project(torch.randn(16, 16, 5, 5, dtype=torch.float64))
    coefficients = tie.to_coefficients(weight)
    used = coefficients[coefficients != 0]
    assert float(used.square().mean()) == pytest.approx(float(weight.square().mean()))


def test_smooth_kernels_survive_being_resampled() -> None:
    def lost(smooth: bool) -> float:
        blocks, eighth = [(4, 16)], torch.ones(16, dtype=torch.int64)
        kernels = tied_weight(weight, blocks, blocks, ien.rotation(4), smooth=smooth)[0]
        there = ien.rotation(8).act(kernels, eighth, mode="bicubic")
        back = ien.rotation(8).act(there, eighth, inverse=True, mode="bicubic")
        return float((back - kernels).norm() / kernels.norm())

    weight = torch.randn(16, 16, 7, 7)
    assert lost(True) < 0.25 < 0.5 < lost(False)
