"""The projection P W = mean over g of ρ_out(g) W ρ_in(g)⁻¹, against loops, and to the bit."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ien
from ien.groups.members import channel_table, member_table, num_channels
from ien.tying.harmonics import harmonics
from ien.tying.projection import Tie, cuts, grouped
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
    tied, distance = Tie(group, *blocks).start(weight)
    torch.testing.assert_close(tied, expected)
    assert distance == pytest.approx(float((weight - expected).norm()))
    random, _ = Tie(group, *blocks).start(weight, random=True)
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
    tied, distance = Tie(parsed, ((n, n),), ((n, n),), smooth=True).start(weight)
    torch.testing.assert_close(tied, expected)
    assert distance == pytest.approx(float((weight - expected).norm()))


def test_kernels_that_cannot_rotate_are_not_smoothed() -> None:
    weight, blocks = torch.randn(4, 4, 1, 3), ((1, 4),)
    rows = Tie(ien.reflection(), blocks, blocks, smooth=True).project(weight)
    torch.testing.assert_close(rows, (weight + weight.flip(-1)) / 2)
    pixels = Tie(R8, blocks, blocks, smooth=True).project(weight[..., :1])
    torch.testing.assert_close(pixels, weight[..., :1])


@pytest.mark.parametrize("smooth", [False, True])
def test_random_kernels_lose_half_their_mean_only_where_they_resample(smooth) -> None:
    def mean_of(kernels: Tensor) -> float:
        return float(kernels.mean((-2, -1)).norm() / kernels.norm())

    weight = torch.randn(32, 24, 5, 5)
    tie = Tie(R8, ((8, 32),), ((8, 24),))
    nearest, distance = tie.start(weight)
    started, same = tie.start(weight, random=True)
    assert distance == same and 0.4 * mean_of(nearest) < mean_of(started) < 0.6 * mean_of(nearest)
    torch.testing.assert_close(tie.project(started), started)
    tie = Tie(R4, ((4, 32),), ((4, 24),), smooth)
    nearest, _ = tie.start(weight)
    started, _ = tie.start(weight, random=True)
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
    nearest = Tie(group, *grouped(conv_groups, blocks, blocks, group)).project(gradient)

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
    tie = Tie(group, ((size, 8),))
    tied, distance = tie.start(values)
    means = values.view(-1, size).mean(1, keepdim=True)
    expected = means.expand(-1, size).reshape(shape)
    torch.testing.assert_close(tied, expected)
    nearest = tie.project(values)
    torch.testing.assert_close(nearest, expected)
    assert abs(distance - float((values - expected).norm())) < 1e-6
    equal = nearest.view(-1, size)
    assert torch.equal(equal, equal[:, :1].expand(-1, size))  # to the bit


@pytest.mark.parametrize("before", [((4, 8),), ((4, 4), (1, 3))], ids=str)
@pytest.mark.parametrize("after", [((4, 8),), ((4, 4), (2, 4))], ids=str)
@pytest.mark.parametrize("group", [R4, R8], ids=str)
def test_only_numbers_per_channel_have_one_dim(group, after, before) -> None:
    tie = Tie(group, after, before)
    weight = torch.rand(8, sum(channels for _, channels in before), 3, 3)
    numbers = tie.numbers(weight)
    assert numbers.ndim > 1
    torch.testing.assert_close(tie.numbers(tie.values(numbers, weight.shape)), numbers)
    assert Tie(group, after).numbers(torch.rand(8)).ndim == 1


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("group", [R4, R8], ids=str)
def test_a_step_on_the_numbers_is_a_projected_step_on_the_weight(group, optimizer) -> None:
    """What the numbers are given is the projected gradient, neither more nor less often."""
    size = len(group)
    tie = Tie(group, ((size, 2 * size),), ((size, size),))
    weight = tie.project(torch.randn(2 * size, size, 3, 3, dtype=torch.float64))
    gradient = torch.randn_like(weight)
    numbers = tie.numbers(weight).requires_grad_()
    (tie.values(numbers, weight.shape) * gradient).sum().backward()
    torch.testing.assert_close(numbers.grad, tie.numbers(gradient))
    if optimizer == "sgd":
        stepped = tie.values(numbers.detach() - 0.1 * numbers.grad, weight.shape)
        torch.testing.assert_close(stepped, weight - 0.1 * tie.project(gradient))
    elif group is R4:  # Adam's first step has the size of the rate in every pixel
        step = tie.values(numbers.detach() - 0.1 * numbers.grad.sign(), weight.shape) - weight
        torch.testing.assert_close(step, -0.1 * tie.project(gradient).sign())


@pytest.mark.parametrize("after", [((1, 3),), ((4, 8),)], ids=["single", "groups"])
@pytest.mark.parametrize("group", [R4, D4], ids=str)
def test_a_convolution_before_a_pixel_shuffle_rotates_sub_pixels(group, after) -> None:
    if group is D4:
        after = tuple((1 if size == 1 else 8, channels) for size, channels in after)
    channels = num_channels(after)
    tie = Tie(group, after, ((1, 2),), shuffle=2)
    weight = tie.project(torch.randn(4 * channels, 2, 3, 3, dtype=torch.float64))
    bias = Tie(group, after, shuffle=2).project(torch.randn(4 * channels, dtype=torch.float64))
    x = torch.randn(1, 2, 6, 6, dtype=torch.float64)

    def upscaled(image: Tensor) -> Tensor:
        return F.pixel_shuffle(F.conv2d(image, weight, bias, padding=1), 2)

    for g, label in enumerate(group.labels):
        expected = moved(upscaled(x), label)[:, channel_table(group, after)[g]]
        torch.testing.assert_close(upscaled(moved(x, label)), expected)


def written_out(weight: Tensor, conv_groups: int) -> Tensor:
    """The weight of a grouped convolution as that of one group, with zeros between."""
    rows, columns = len(weight) // conv_groups, weight.shape[1]
    full = weight.new_zeros(len(weight), columns * conv_groups, *weight.shape[2:])
    for k in range(conv_groups):
        block = weight[k * rows : (k + 1) * rows]
        full[k * rows : (k + 1) * rows, k * columns : (k + 1) * columns] = block
    return full


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize(
    ("group", "conv_groups", "after", "before"),
    [
        ("rot4", 8, ((4, 8),), ((4, 8),)),  # depthwise
        ("rot8", 12, ((8, 8), (2, 4)), ((8, 8), (2, 4))),
        ("rot4", 2, ((4, 8), (2, 4), (1, 4)), ((4, 16),)),
        ("rot4xflip", 2, ((8, 16),), ((8, 32),)),
        ("rot8", 3, ((8, 24),), ((4, 24),)),
    ],
)
def test_conv_groups_are_tied_as_kernels_with_zeros_between(
    group, conv_groups, after, before, smooth
) -> None:
    group = ien.group(group)
    weight = torch.randn(num_channels(after), num_channels(before) // conv_groups, 3, 3, dtype=torch.float64)
    tied = Tie(group, *grouped(conv_groups, after, before, group), smooth).project(weight)
    expected = Tie(group, after, before, smooth).project(written_out(weight, conv_groups))
    torch.testing.assert_close(written_out(tied, conv_groups), expected)
    assert not torch.allclose(tied, weight)


def test_conv_groups_that_cut_feature_groups_cannot_be_tied() -> None:
    several = ((4, 4), (2, 4))
    assert cuts(4, ((4, 8),), ((4, 8),), R4) and not cuts(2, several, several, R4)
    assert grouped(4, ((4, 8),), ((4, 8),), R4) is None
    assert grouped(2, several, several, R4) is None  # of several sizes
