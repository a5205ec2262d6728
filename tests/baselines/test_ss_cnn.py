"""SS-CNN: the filters by their formula, the sizes, and what the scales of a layer see of a scaled image."""

import cmath
import importlib
import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

import ien
from ien.baselines.ss_cnn import (
    CNN3_FILTERS,
    WRN_FILTERS,
    LogRadial,
    ScaleSteerableConv2d,
    log_radial_basis,
    ss_cnn,
    ss_cnn_wrn,
)
from tests.helpers.waves import free_filters, middle, scale_error, waves

pytestmark = pytest.mark.usefixtures("one_thread")

module = importlib.import_module("ien.baselines.ss_cnn")  # its name is also that of the function
LISTS = {"28": CNN3_FILTERS[28], "56": CNN3_FILTERS[56], "wrn": WRN_FILTERS}


def harmonic(filters, order, direction, x, y):
    """The unsteered function at points, written from the definition; 0 outside of its disc."""
    z = torch.complex(x, y)
    k = 2 * math.pi * order / math.log(math.sqrt(2) * (filters.sizes[-1] // 2))
    # twice the angle forgets the sign of the direction
    away = (z / z.abs()).square().mul(cmath.exp(-2j * direction)).angle() / 2
    angular = torch.exp(-(away**2) / (2 * filters.sigma**2))
    value = angular / z.abs() * torch.exp(1j * (k * z.abs().log() + filters.phase))
    return torch.where(z.abs() <= filters.unit / 2, value, 0)


def pixels(filters, size, order, direction):
    """S(u / s) / s², no phase turned: the mean over points of each pixel, rows from the top."""
    s, n = size / filters.unit, module.SAMPLES
    inner = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    means = torch.zeros(size, size, dtype=torch.complex128)
    for row in range(size):
        for column in range(size):
            x, y = torch.meshgrid(column + inner - size / 2, size / 2 - row - inner, indexing="ij")
            means[row, column] = harmonic(filters, order, direction, x / s, y / s).mean() / s**2
    # the centre pixel on a polar grid, which is fine where the function is
    t = ((torch.arange(400, dtype=torch.float64) + 0.5) / 400)[:, None]
    r = t**3  # the way from the centre to the edge, in steps that grow
    angle = (torch.arange(400, dtype=torch.float64) + 0.5) * (2 * math.pi / 400)
    edge = torch.minimum(0.5 / angle.cos().abs(), 0.5 / angle.sin().abs())
    x, y = r * edge * angle.cos(), r * edge * angle.sin()
    values = harmonic(filters, order, direction, x / s, y / s) / s**2 * r * edge**2 * 3 * t**2
    means[size // 2, size // 2] = values.mean() * 2 * math.pi
    return means


@torch.no_grad()
def steering_error(conv, small, large, seed) -> float:
    """Relative error of: the large kernel on an enlarged image = the small one on the image, enlarged."""
    sizes, size = conv.filters.sizes, 64
    factor = sizes[large] / sizes[small]
    x, enlarged = waves(size, [1, factor], (6, 12), seed, conv.weight.shape[1])
    h, h_g = (conv.responses(value).unflatten(1, (-1, len(sizes))) for value in (x, enlarged))
    return scale_error(h[:, :, small], h_g[:, :, large], factor, size / 2 - sizes[-1] // 2)


@torch.no_grad()
def scaling_error(conv, seed) -> tuple[float, float]:
    """Relative error of h(s·x) = s·h(x) for s = 0.7 over valid pixels, and the share of these.

    A pixel is valid when the scale that wins there, on either side, has its counterpart in the range: a
    feature that wins at 5 pixels would win at 3.5 in the smaller image, and no kernel is as small.
    """
    sizes, size, s = torch.tensor(conv.filters.sizes), 64, 0.7
    group, g = ien.scale([s]), torch.tensor([1, 1])
    x, smaller = waves(size, [1, s], (6, 12), seed, conv.weight.shape[1])
    h, h_g = (conv.responses(value).unflatten(1, (-1, len(sizes))).max(2) for value in (x, smaller))
    difference = h_g.values.relu() - group.act_on_features(h.values.relu(), g)
    valid = group.act_on_features((sizes[h.indices] * s > sizes[0] * 0.99).float(), g) > 0.999
    valid &= sizes[h_g.indices] / s < sizes[-1] * 1.01
    inside = size / 2 - sizes[-1] // 2
    squares, valid = (middle(value, inside * s) for value in (difference.square(), valid))
    variance = middle(h.values.relu(), inside).var()
    return float(squares[valid].mean() / variance), float(valid.float().mean())


def test_the_filters_are_the_scaled_function_itself() -> None:
    filters = LogRadial((3, 5, 7), unit=5, orders=(0.5, 2), angles=4)
    assert (filters.sigma, filters.phase) == (math.pi / 16, -math.pi / 4)
    directions = [0, math.pi / 3, 2 * math.pi / 3, math.pi]
    bases = log_radial_basis(filters)
    assert [basis.shape for basis in bases] == [(16, n, n) for n in filters.sizes]
    for f, (order, direction) in enumerate((k, d) for k in filters.orders for d in directions):
        expected = {size: pixels(filters, size, order, direction) for size in filters.sizes}
        norm = math.sqrt(float(expected[5].abs().square().sum()) / 2)
        for basis, size in zip(bases, filters.sizes, strict=True):
            found = torch.complex(basis[2 * f], -basis[2 * f + 1])
            assert (found - expected[size] / norm).abs().max() < 5e-4  # what the polar grid is good for


def published(filters, size, order, direction):
    """The published function of one size, pixel by pixel: its real and imaginary part."""
    largest = filters.sizes[-1]
    half = largest // 2
    k = 2 * math.pi * order / math.log(math.sqrt(2) * half)
    real, imag = torch.zeros(2, largest, largest, dtype=torch.float64)
    for row in range(largest):
        for column in range(largest):
            up, right = half - row, column - half
            r = math.hypot(up, right)
            if r > half:
                continue
            r = r or 1.0
            angle = math.atan2(right, up)
            away = min(abs(angle - direction + turn * math.pi) for turn in (-2, -1, 0, 1, 2))
            height = math.exp(-(away**2) / (2 * filters.sigma**2)) / r
            real[row, column] = height * math.cos(k * math.log(r) + filters.phase)
            imag[row, column] = height * math.sin(k * math.log(r) + filters.phase)
    real, imag = real / real.norm(), imag / imag.norm()
    turned = -k * math.log(size / filters.unit)
    edge = half - size // 2
    cut = slice(edge, edge + size)
    steered_real = math.cos(turned) * real - math.sin(turned) * imag
    steered_imag = math.sin(turned) * real + math.cos(turned) * imag
    return steered_real[cut, cut], steered_imag[cut, cut]


def test_the_published_filters_are_the_published_formula() -> None:
    filters = LogRadial((3, 5, 7), unit=5, orders=(0.5, 2), angles=4, published=True)
    directions = [0, math.pi / 3, 2 * math.pi / 3, math.pi]
    bases = log_radial_basis(filters)
    for f, (order, direction) in enumerate((k, d) for k in filters.orders for d in directions):
        for basis, size in zip(bases, filters.sizes, strict=True):
            real, imag = published(filters, size, order, direction)
            assert torch.allclose(basis[2 * f], real, atol=1e-12)
            assert torch.allclose(basis[2 * f + 1], -imag, atol=1e-12)


def test_published_blocks_of_the_wide_network_see_one_scale() -> None:
    net = ss_cnn_wrn(width=1 / 11, published=True)
    convs = [each for each in net.modules() if isinstance(each, ScaleSteerableConv2d)]
    assert [conv.filters.sizes for conv in convs] == [(3, 5, 7)] + [(3,)] * 12
    assert all(conv.filters.published for conv in convs)


def test_the_first_and_the_last_direction_are_one_and_the_others_differ() -> None:
    basis = log_radial_basis(CNN3_FILTERS[28])[-1].unflatten(0, (3, 9, 2)).flatten(3)
    assert (basis[:, 0] - basis[:, -1]).abs().max() < 1e-12
    distinct = basis[:, :-1].flatten(0, 2)
    assert torch.linalg.matrix_rank(distinct) == len(distinct) == 48


@pytest.mark.parametrize("name", LISTS)
def test_finer_means_over_the_pixels_hardly_change_the_filters(name, monkeypatch) -> None:
    coarse = torch.cat([basis.flatten(1) for basis in log_radial_basis(LISTS[name])], 1)
    monkeypatch.setattr(module, "SAMPLES", 32)
    fine = torch.cat([basis.flatten(1) for basis in log_radial_basis(LISTS[name])], 1)
    assert (coarse - fine).norm() < 0.02 * fine.norm()


def test_parameters_are_the_published_ones_without_those_that_do_nothing() -> None:
    pairs = 1 * 30 + 30 * 60 + 60 * 90
    total = sum(p.numel() for p in ss_cnn().parameters())
    head = 4 * 90 * 256 + 2 * 256 + 256 * 10 + 10
    assert total == 54 * pairs + 2 * (30 + 60 + 90) + head == 486_022
    # never used there: a constant for each pair and a BatchNorm; without effect: biases before a BatchNorm
    assert total + pairs + 2 * 90 + 256 == 493_688
    assert sum(p.numel() for p in ss_cnn(size=56, plus=False).parameters()) == total


def test_parameters_of_the_wide_net_add_up_and_its_layers_have_three_scales() -> None:
    fields, net = (11, 88, 176, 352), ss_cnn_wrn()
    pairs = 3 * 11 + sum(a * b + 3 * b * b for a, b in pairwise(fields))
    shortcuts = sum(a * b for a, b in pairwise(fields))
    norms = 2 * sum(a + 3 * b for a, b in pairwise(fields)) + 2 * 352
    total = sum(p.numel() for p in net.parameters())
    assert total == 18 * pairs + shortcuts + norms + 352 * 10 + 10 == 10_280_522
    assert round((total + pairs) / 1e6, 2) == 10.85  # with the published constants that nothing uses
    convs = [m for m in net.modules() if isinstance(m, ScaleSteerableConv2d)]
    assert len(convs) == 13 and all(conv.filters.sizes == (3, 5, 7) for conv in convs)


def test_a_layer_is_the_largest_of_its_plain_convolutions() -> None:
    conv, x = ScaleSteerableConv2d(2, 3, WRN_FILTERS, stride=2), torch.rand(1, 2, 9, 9)
    each = [F.conv2d(x, kernel, stride=2, padding=kernel.shape[-1] // 2) for kernel in conv.kernels()]
    assert [kernel.shape[-1] for kernel in conv.kernels()] == [3, 5, 7]
    assert torch.equal(conv(x), torch.maximum(torch.maximum(each[0], each[1]), each[2]))
    assert ien.group_pool(conv.responses(x), 3).equal(conv(x))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", LISTS)
def test_each_kernel_sees_of_a_scaled_image_what_another_saw_of_the_image(name, seed) -> None:
    """The paper's theorem, before the maximum, for neighbours and for the ends; waves of 6 to 12 pixels."""
    torch.manual_seed(seed)
    conv = ScaleSteerableConv2d(4, 8, LISTS[name])
    free = free_filters(conv, ScaleSteerableConv2d)
    last = len(conv.filters.sizes) - 1
    for pair in [*pairwise(range(last + 1)), (0, last)]:
        assert steering_error(free, *pair, seed) > 5 * steering_error(conv, *pair, seed)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("size", [28, 56])
def test_the_maximum_scales_where_the_winning_scale_stays_in_range(size, seed) -> None:
    """Each layer gets maps made of waves of 6 to 12 pixels, as many as it takes.

    Over all pixels a layer is hardly better than free filters, and after several layers not at all: the
    range of the kernels, 5 to 13 or 7 to 17 pixels, is short, and the maximum often sits at its end.
    """
    torch.manual_seed(seed)
    net = ss_cnn(size=size, width=1 / 6)
    for tap in net.taps:
        conv = net.get_submodule(tap)[0]
        error, share = scaling_error(conv, seed)
        control, _ = scaling_error(free_filters(conv, ScaleSteerableConv2d), seed)
        assert share > 0.1 and control > 5 * error
