"""Kernels that turn by any angle, against e2cnn's, closed forms and turns of pixels."""

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import ien
from ien.groups.members import member_table
from ien.groups.similarity import Similarity
from ien.tying.harmonics import harmonics, orthonormal, smoothing
from ien.tying.projection import Tie, tied_weight


def smooth(kernels: Tensor) -> Tensor:
    """Each kernel as the nearest combination of the functions, by least squares."""
    flat = kernels.double().flatten(2)
    patterns = harmonics(kernels.shape[-1]).flatten(1).T  # (pixels, functions)
    found = torch.linalg.lstsq(patterns, flat.flatten(0, 1).T, driver="gelsd").solution
    return (patterns @ found).T.reshape(kernels.shape)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 7])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("quarters", range(4))
def test_functions_turn_as_pixels_do(size: int, flip: bool, quarters: int) -> None:
    pixels = harmonics(size)
    expected = torch.rot90(pixels.flip(-1) if flip else pixels, quarters, (-2, -1))
    torch.testing.assert_close(harmonics(size, Similarity(Fraction(quarters, 4), flip)), expected)


def test_a_function_between_pixels_is_its_closed_form() -> None:
    turned = harmonics(5, Similarity(Fraction(1, 10)))  # 36°
    for row, y in enumerate(range(2, -3, -1)):
        for column, x in enumerate(range(-2, 3)):
            angle = math.atan2(y, x) - math.radians(36)
            ring = math.exp(-((math.hypot(x, y) - 1) ** 2) / (2 * 0.6**2))
            # the outermost ring has 1 + 2 · 2 functions; then the ring of radius 1 up to frequency 2
            found = turned[5:10, row, column].tolist()
            harmonic = [1, *(bool(x or y) * f(q * angle) for q in (1, 2) for f in (math.cos, math.sin))]
            assert found == pytest.approx([ring * value for value in harmonic], abs=1e-12)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 9, 11])
def test_smoothing_gives_the_nearest_smooth_kernel_and_commutes_with_quarter_turns(size: int) -> None:
    matrix, kernels = (
        smoothing(size, torch.device("cpu"), torch.float64),
        torch.randn(3, 2, size, size).double(),
    )

    def smoothed(kernels: Tensor) -> Tensor:
        return (kernels.flatten(2) @ matrix).view_as(kernels)

    torch.testing.assert_close(smoothed(kernels), smooth(kernels))
    torch.testing.assert_close(smoothed(kernels.rot90(1, (2, 3))), smoothed(kernels).rot90(1, (2, 3)))
    torch.testing.assert_close(smoothed(kernels.flip(3)), smoothed(kernels).flip(3))


@pytest.mark.parametrize(("group", "count"), [("rot4", 4), ("rot8", 8)])
@pytest.mark.parametrize("size", [3, 5, 7])
@pytest.mark.parametrize("from_image", [False, True])
def test_tied_kernels_are_those_of_e2cnn(group: str, count: int, size: int, from_image: bool) -> None:
    pytest.importorskip("e2cnn")
    from ien.baselines.steerable_layers import SteerableConv2d

    theirs = SteerableConv2d(1, 1, size, group, from_image=from_image)
    inner = 1 if from_image else count
    expected = orthonormal(theirs.basis.double())
    unit = torch.eye(count * inner * size * size, dtype=torch.float64)
    blocks = [(count, count)], [(inner, inner)]
    shape = count, inner, size, size
    ours = torch.stack(
        [tied_weight(one.view(shape), *blocks, ien.group(group), smooth=True)[0].flatten() for one in unit]
    )
    assert len(expected) == inner * {3: 6, 5: 11, 7: 18}[size]
    torch.testing.assert_close(ours, expected.T @ expected, atol=1e-5, rtol=0)  # onto the same kernels


@pytest.mark.parametrize("group", ["rot4", "rot4xflip", "flip", "rot2"])
@pytest.mark.parametrize("size", [3, 4])
def test_tied_kernels_are_the_mean_of_turned_smooth_ones(group: str, size: int) -> None:
    parsed = ien.group(group)
    n = len(parsed)
    weight, expected = torch.randn(n, n, size, size, dtype=torch.float64), torch.zeros(())
    for i, table in enumerate(member_table(parsed, n)):
        turned = parsed.act(smooth(weight), torch.full((n,), i))
        expected = expected + turned[table][:, table] / n
    tied, distance = tied_weight(weight, [(n, n)], [(n, n)], parsed, smooth=True)
    torch.testing.assert_close(tied, expected)
    assert distance == pytest.approx(float((weight - expected).norm()))


def test_kernels_that_do_not_turn_are_free() -> None:
    weight, blocks = torch.randn(4, 4, 1, 3), [(1, 4)]
    rows, _ = tied_weight(weight, blocks, blocks, ien.reflection(), smooth=True)
    torch.testing.assert_close(rows, (weight + weight.flip(-1)) / 2)
    pixels, _ = tied_weight(weight[..., :1], blocks, blocks, ien.rotation(8), smooth=True)
    torch.testing.assert_close(pixels, weight[..., :1])


def test_smooth_kernels_survive_being_resampled() -> None:
    def lost(smooth: bool) -> float:
        blocks, eighth = [(4, 16)], torch.ones(16, dtype=torch.int64)
        kernels = tied_weight(weight, blocks, blocks, ien.rotation(4), smooth=smooth)[0]
        there = ien.rotation(8).act(kernels, eighth, mode="bicubic")
        back = ien.rotation(8).act(there, eighth, inverse=True, mode="bicubic")
        return float((back - kernels).norm() / kernels.norm())

    weight = torch.randn(16, 16, 7, 7)
    assert lost(True) < 0.25 < 0.5 < lost(False)


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD])
@pytest.mark.parametrize("group", ["rot4", "rot8"])
def test_steps_leave_kernels_smooth_and_the_network_equivariant(optimizer: type, group: str) -> None:
    n = len(ien.group(group))
    net = nn.Sequential(nn.Conv2d(1, 2 * n, 5), nn.ReLU(), nn.Conv2d(2 * n, n, 3))
    x, descent = torch.rand(8, 1, 13, 13), optimizer(net.parameters(), lr=0.01)
    ien.recommended(net, group, n, x, descent)
    before = net[2].weight.detach().clone()
    for _ in range(10):
        (net(x).mean() - 9).square().backward()
        descent.step()
        descent.zero_grad()
    for conv in (net[0], net[2]):
        weight = conv.weight.detach()
        assert float((weight - smooth(weight)).norm()) < 1e-6 * float(weight.norm())
    assert float((net[2].weight.detach() - before).norm()) > 0.01 * float(before.norm())
    report = ien.measure(net, x, "rot4", ["2"], n, floors=False)
    assert report.layers["2"].relative < 1e-10


@pytest.mark.parametrize(
    "layer",
    [
        nn.ConvTranspose2d(16, 16, 3, padding=1),
        nn.Conv2d(16, 16, 3, padding=1, groups=2),
        nn.Conv2d(16, 16, 3, padding=2, dilation=2),
        nn.Conv2d(16, 16, 4),
    ],
    ids=["transposed", "grouped", "dilated", "even"],
)
def test_layers_of_all_kinds_are_kept_with_smooth_kernels(layer: nn.Module) -> None:
    net = nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), layer)
    net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x, descent = torch.rand(4, 1, 13, 13), torch.optim.Adam(net.parameters(), lr=0.01)
    ien.recommended(net, "rot4", 4, x, descent)
    for _ in range(3):
        (net(x).mean() - 9).square().backward()
        descent.step()
    report = ien.measure(net, x, "rot4", ["2"], 4, floors=False, action="regular")
    assert report.layers["2"].relative < 1e-10


def test_equal_numbers_stay_equal_under_equal_steps_and_smooth_ones_need_putting_back() -> None:
    conv, blocks = nn.Conv2d(4, 4, 3), ((4, 4),)
    tied = Tie(conv, "weight", ien.rotation(4), blocks, blocks)
    assert tied.stays_tied and Tie(conv, "bias", ien.rotation(8), ((1, 4),), smooth=True).stays_tied
    assert not tied._replace(smooth=True).stays_tied
    assert not tied._replace(group=ien.rotation(8)).stays_tied
    assert tied._replace(module=nn.Conv2d(4, 4, 1), smooth=True).stays_tied


def test_trained_weights_stay_free_unless_told_otherwise() -> None:
    def distance(**options: str) -> float:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(1, 4, 5))
        descent = torch.optim.SGD(net.parameters(), lr=0.1)
        objective = ien.recommended(net, "rot4", 4, torch.rand(2, 1, 9, 9), descent, **options)  # type: ignore[arg-type]
        return objective.start.layers["0"].distance

    assert distance(weights="project") == distance(kernels="free") < distance() == distance(kernels="smooth")


def test_an_unknown_kind_of_kernels_is_an_error() -> None:
    with pytest.raises(ValueError, match='kernels must be "free" or "smooth"; got \'round\''):
        ien.start_equivariant(nn.Conv2d(1, 4, 3), "rot4", 4, torch.rand(2, 1, 9, 9), kernels="round")  # type: ignore[arg-type]
