"""The projection P W = mean over g of ρ_out(g) W ρ_in(g)⁻¹, against loops, and to the bit."""

import pytest
import torch
from torch import Tensor, nn

import ien
from ien.groups.members import channel_table, member_table, num_channels
from ien.tying.harmonics import harmonics
from ien.tying.projection import Tie, tied_weight, ungrouped
from tests.helpers.tied import D4, channels_moved, moved

R4, R8 = ien.rotation(4), ien.rotation(8)


@pytest.mark.parametrize(
    ("group", "after", "before"),
    [(R4, 4, 4), (R4, "4-2-1", "4-2-1"), (D4, 8, 1), (D4, 8, 8), (D4, 1, 8)],
    ids=str,
)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_tied_weights_are_the_mean_over_the_group(group, after, before, size) -> None:
    channels = {4: 4, 1: 4, "4-2-1": 11, 8: 8}
    rows, columns = channels[after], channels[before]
    weight = torch.randn(rows, columns, size, size, dtype=torch.float64)
    expected = torch.zeros_like(weight)
    for g, label in enumerate(group.labels):
        out, inner = channels_moved(group, after, rows, g), channels_moved(group, before, columns, g)
        for o in range(rows):
            for i in range(columns):
                expected[o, i] += moved(weight[out[o], inner[i]], label) / len(group)
    blocks = [ien.FeatureGroups.of(spec).blocks(n) for spec, n in ((after, rows), (before, columns))]
    tied, distance = tied_weight(weight, *blocks, group)
    torch.testing.assert_close(tied, expected)
    assert distance == pytest.approx(float((weight - expected).norm()))
    random, _ = tied_weight(weight, *blocks, group, random=True)
    assert float(random.norm()) == pytest.approx(float(weight.norm()))


@pytest.mark.parametrize("group", ["rot4", "rot4xflip", "flip", "rot2"])
def test_smooth_weights_are_the_mean_of_smooth_ones(group) -> None:
    parsed = ien.group(group)
    n = len(parsed)
    weight = torch.randn(n, n, 3, 3, dtype=torch.float64)
    patterns = harmonics(3).flatten(1).T  # (pixels, patterns)
    found = torch.linalg.lstsq(patterns, weight.flatten(2).flatten(0, 1).T, driver="gelsd").solution
    smooth = (patterns @ found).T.reshape(weight.shape)
    expected = torch.zeros_like(weight)
    for i, table in enumerate(member_table(parsed, n)):
        expected += parsed.act(smooth, torch.full((n,), i))[table][:, table] / n
    tied, distance = tied_weight(weight, [(n, n)], [(n, n)], parsed, smooth=True)
    torch.testing.assert_close(tied, expected)
    assert distance == pytest.approx(float((weight - expected).norm()))


def test_kernels_that_cannot_rotate_are_not_smoothed() -> None:
    weight, blocks = torch.randn(4, 4, 1, 3), [(1, 4)]
    rows, _ = tied_weight(weight, blocks, blocks, ien.reflection(), smooth=True)
    torch.testing.assert_close(rows, (weight + weight.flip(-1)) / 2)
    pixels, _ = tied_weight(weight[..., :1], blocks, blocks, R8, smooth=True)
    torch.testing.assert_close(pixels, weight[..., :1])


@pytest.mark.parametrize("smooth", [False, True])
def test_random_kernels_lose_half_their_mean_only_where_they_resample(smooth) -> None:
    def mean_of(kernels: Tensor) -> float:
        return float(kernels.mean((-2, -1)).norm() / kernels.norm())

    weight = torch.randn(32, 24, 5, 5)
    nearest, distance = tied_weight(weight, [(8, 32)], [(8, 24)], R8)
    started, same = tied_weight(weight, [(8, 32)], [(8, 24)], R8, random=True)
    assert distance == same and 0.4 * mean_of(nearest) < mean_of(started) < 0.6 * mean_of(nearest)
    torch.testing.assert_close(tied_weight(started, [(8, 32)], [(8, 24)], R8)[0], started)
    nearest, _ = tied_weight(weight, [(4, 32)], [(4, 24)], R4, smooth=smooth)
    started, _ = tied_weight(weight, [(4, 32)], [(4, 24)], R4, random=True, smooth=smooth)
    assert float(started.norm()) == pytest.approx(float(weight.norm()))
    torch.testing.assert_close(started / started.norm(), nearest / nearest.norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("group", "conv_groups"), [("rot4", 1), ("rot4", 2), ("rot4xflip", 1)])
def test_tied_numbers_are_equal_to_the_bit_in_their_own_precision(group, conv_groups, dtype) -> None:
    group = ien.group(group)
    size = len(group)
    blocks = ((size, 2 * size), (1, 2)) if conv_groups == 1 else ((size, 2 * size),)
    channels = num_channels(blocks)
    gradient = torch.randn(channels, channels // conv_groups, 3, 3, dtype=dtype)
    nearest = Tie(nn.Identity(), "", group, blocks, blocks, conv_groups).project(gradient)

    def under(kernels: Tensor, i: int) -> Tensor:
        rows = channel_table(group, blocks)[i]
        columns = rows[: channels // conv_groups]  # each conv group has inputs of its own
        return group.act(kernels, torch.full((channels,), i))[rows][:, columns]

    assert nearest.dtype == dtype and all(torch.equal(under(nearest, i), nearest) for i in range(size))
    mean = sum(under(gradient.double(), i) for i in range(size)) / size
    assert (nearest.double() - mean).abs().max() < 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("shape", [(8,), (8, 1, 1), (1, 8, 1, 1), (1, 1, 1, 8)])
@pytest.mark.parametrize("group", [R4, R8], ids=str)
def test_numbers_per_channel_may_have_any_shape(group, shape) -> None:
    size = len(group)
    values = torch.rand(shape)
    tie = Tie(nn.Identity(), "", group, ((size, 8),))
    tied, distance = tie.start(values)
    means = values.view(-1, size).mean(1, keepdim=True)
    expected = means.expand(-1, size).reshape(shape)
    torch.testing.assert_close(tied, expected)
    nearest = tie.project(values)
    torch.testing.assert_close(nearest, expected)
    assert abs(distance - float((values - expected).norm())) < 1e-6
    equal = nearest.view(-1, size)
    assert torch.equal(equal, equal[:, :1].expand(-1, size))  # to the bit


def test_equal_steps_keep_equal_numbers_but_not_smooth_ones() -> None:
    conv, blocks = nn.Conv2d(4, 4, 3), ((4, 4),)
    tie = Tie(conv, "weight", R4, blocks, blocks)
    assert tie.stays_tied and Tie(conv, "bias", R8, ((1, 4),), smooth=True).stays_tied
    assert not tie._replace(smooth=True).stays_tied
    assert not tie._replace(group=R8).stays_tied
    assert tie._replace(module=nn.Conv2d(4, 4, 1), smooth=True).stays_tied


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize(
    ("group", "conv_groups", "after", "before"),
    [
        ("rot4", 8, [(4, 8)], [(4, 8)]),  # depthwise
        ("rot8", 12, [(8, 8), (2, 4)], [(8, 8), (2, 4)]),
        ("rot4", 2, [(4, 8), (2, 4), (1, 4)], [(4, 16)]),
        ("rot4xflip", 2, [(8, 16)], [(8, 32)]),
        ("rot8", 3, [(8, 24)], [(4, 24)]),
    ],
)
def test_conv_groups_are_tied_as_kernels_with_zeros_between(
    group, conv_groups, after, before, smooth
) -> None:
    group = ien.group(group)
    weight = torch.randn(num_channels(after), num_channels(before) // conv_groups, 3, 3, dtype=torch.float64)
    *sides, left = ungrouped(conv_groups, after, before, group)
    assert left == 1
    tied, distance = tied_weight(weight, *sides, group, smooth=smooth)
    expected, same = tied_weight(weight, after, before, group, conv_groups, smooth=smooth)
    torch.testing.assert_close(tied, expected)
    assert abs(distance - same) < 1e-9 and distance > 0.1


def test_conv_groups_of_several_sizes_stay_as_they_are() -> None:
    blocks = [(4, 4), (2, 4)]
    assert ungrouped(2, blocks, blocks, R4) == (blocks, blocks, 2)
    assert ungrouped(4, [(4, 8)], [(4, 8)], R4) == ([(4, 8)], [(4, 8)], 4)  # cut: an error elsewhere
    with pytest.raises(ValueError, match=r"its 4 conv groups cut through feature groups.* use groups=1"):
        tied_weight(torch.rand(8, 2, 3, 3), [(4, 8)], [(4, 8)], R4, 4)
