"""Deep scale-spaces: the blur and the correlation by their formulas, sizes, and the shift of the scales."""

import math

import pytest
import torch
from torch import Tensor, nn

import ien
from ien.baselines.dss import DilatedConv2d, ScaleSpace, discrete_gaussian, dss, dss_wrn
from tests.helpers.waves import free_filters, shift_error, tap_maps, waves

pytestmark = pytest.mark.usefixtures("one_thread")


def settled(net: nn.Module, x: Tensor) -> nn.Module:
    """With BatchNorm's statistics from these images."""
    for layer in net.train().modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.momentum = 1.0
    tap_maps(net, x)
    return net.eval()


def bessel(order: int, t: float) -> float:
    """The modified Bessel function I by its power series."""
    terms = ((t / 2) ** (2 * m + order) / (math.factorial(m) * math.factorial(m + order)) for m in range(60))
    return math.fsum(terms)


@pytest.mark.parametrize("variance", [0.1875, 0.75, 3.75, 15.75])
def test_the_blur_is_the_discrete_gaussian_of_bessel_functions(variance) -> None:
    kernel = discrete_gaussian(variance, 16)
    expected = [math.exp(-variance) * bessel(abs(n), variance) for n in range(-16, 17)]
    expected = torch.tensor(expected, dtype=torch.float64) / math.fsum(expected)
    assert (kernel - expected).abs().max() < 1e-13
    places = torch.arange(-16, 17, dtype=torch.float64)
    assert abs(float((kernel * places**2).sum()) - variance) < 0.02 * variance


def test_each_scale_is_blurred_to_twice_the_deviation_of_the_one_before() -> None:
    lifted = ScaleSpace(4, zero_scale=0.5)(torch.eye(65)[32].view(1, 1, 1, 65) * torch.eye(65)[32][:, None])
    assert lifted.shape == (1, 4, 65, 65)
    for k in range(4):
        row = torch.tensor([math.exp(-(t := 0.25 * (4**k - 1))) * bessel(abs(n), t) for n in range(-32, 33)])
        assert (lifted[0, k] - row * row[:, None]).abs().max() < 1e-5


def test_lifting_treats_channels_alike_and_keeps_the_image_as_first_scale() -> None:
    x = torch.rand(2, 3, 12, 10)
    lifted = ScaleSpace(3, zero_scale=0.25)(x)
    assert (lifted[:, ::3] - x).abs().max() < 1e-6
    for channel in range(3):
        alone = ScaleSpace(3, zero_scale=0.25)(x[:, channel : channel + 1])
        assert (lifted[:, 3 * channel : 3 * channel + 3] - alone).abs().max() < 1e-6


@pytest.mark.parametrize("extent", [1, 2])
def test_the_correlation_equals_its_sum_written_out(extent) -> None:
    scales, size = 3, 7
    conv = DilatedConv2d(2, 2, 3, scales, extent).double().requires_grad_(False)
    x = torch.rand(1, 2 * scales, size, size, dtype=torch.float64)
    out = conv(x)
    assert out.shape == (1, 2 * (scales - extent + 1), size, size)
    taps = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    for field in range(2):
        for k in range(scales - extent + 1):
            for row, column in [(0, 0), (3, 3), (2, 5), (6, 1)]:
                total = 0.0
                for before in range(2):
                    for level in range(extent):
                        for i, j in taps:
                            y, z = row + 2**k * i, column + 2**k * j
                            if 0 <= y < size and 0 <= z < size:
                                weight = conv.weight[field, before, level, i + 1, j + 1]
                                total += float(weight * x[0, before * scales + k + level, y, z])
                found = float(out[0, field * (scales - extent + 1) + k, row, column])
                assert abs(found - total) < 1e-12


@pytest.mark.parametrize("extent", [0, 4])
def test_an_extent_beyond_the_scales_is_refused(extent) -> None:
    with pytest.raises(ValueError, match=f"from 1 to 3; got {extent}"):
        DilatedConv2d(1, 1, 3, scales=3, extent=extent)


def test_a_delta_start_passes_fields_through_and_adds_a_little_noise() -> None:
    weight = DilatedConv2d(4, 6, 3, scales=2, extent=2, near_identity=True).weight.detach()
    expected = torch.zeros(6, 4, 2, 3, 3)
    for b in range(6):
        for a in range(4):
            if math.floor(a * 2 / 4) == math.floor(b * 2 / 6):  # 2 is the common divisor
                expected[b, a, :, 1, 1] = 2 / 6
    noise = weight - expected
    assert 0.005 < noise.abs().max() <= 0.01 and (noise[expected > 0].abs() < 1e-7).all()


def test_parameters_are_those_of_the_plain_net_without_its_190_biases() -> None:
    plain = sum(p.numel() for p in ien.models.create("cnn3").parameters())
    for net in (dss(), dss(size=56, plus=False)):
        assert sum(p.numel() for p in net.parameters()) == plain - (32 + 63 + 95) == 494_359


def test_parameters_of_the_wide_net_add_up() -> None:
    a, b, c, d = 16, 128, 240, 512
    stem, last = 3 * a * 9, 2 * d + d * 10 + 10
    kernels = 9 * (2 * a * b + 3 * b * b + 2 * b * c + 3 * c * c + c * d + 3 * d * d) + a * b + b * c + c * d
    norms = 2 * (a + 3 * b + b + 3 * c + c + 3 * d)
    total = sum(p.numel() for p in dss_wrn().parameters())
    assert total == stem + kernels + norms + last
    assert abs(total / 10_961_370 - 1) < 0.003  # of the plain one


@pytest.mark.parametrize("seed", range(2))
def test_halving_an_image_shifts_the_scales_of_every_tap(seed) -> None:
    """The shortest wave has 24 pixels, 12 in the halved image: 3 of the pixels of the last tap."""
    torch.manual_seed(seed)
    net, size = dss(width=1 / 4), 176
    x, halved = waves(size, [1, 0.5], (24, 48), seed)
    errors = []
    for model in (net, free_filters(net, DilatedConv2d)):
        settled(model, x)
        for k, (h, h_g) in enumerate(zip(tap_maps(model, x), tap_maps(model, halved), strict=True)):
            errors.append(shift_error(h, h_g, 2, 0.5, (size / 2 - (10, 24, 52)[k]) / 2**k))
    assert all(control > 5 * error for error, control in zip(errors[:3], errors[3:], strict=True))


@torch.no_grad()
@pytest.mark.parametrize("seed", range(2))
def test_halving_an_image_shifts_the_scales_where_two_are_seen_at_once(seed) -> None:
    """Four scales, extent 2, on waves of 12 to 24 pixels."""
    torch.manual_seed(seed)
    x, halved = waves(160, [1, 0.5], (12, 24), seed)
    net = nn.Sequential(ScaleSpace(4, zero_scale=0.5), DilatedConv2d(1, 8, 3, scales=4, extent=2))
    found, free = (
        shift_error(model(x).relu(), model(halved).relu(), 3, 0.5, 80 - 24)
        for model in (net, free_filters(net, DilatedConv2d))
    )
    assert free > 5 * found


def test_halving_an_image_shifts_the_scales_of_every_tap_of_the_wide_net() -> None:
    """Waves of 24 to 48 pixels; kernels drawn at random, as near identities would commute with anything."""
    net, size = dss_wrn(width=1 / 8), 225
    for layer in net.modules():
        if isinstance(layer, DilatedConv2d):
            nn.init.kaiming_normal_(layer.weight)
    x, halved = (image[:1] for image in waves(size, [1, 0.5], (24, 48), 0, channels=3))
    errors = []
    for model in (net, free_filters(net, DilatedConv2d)):
        settled(model, x)
        for k, h in enumerate(tap_maps(model, torch.cat([x, halved]))):
            inside = (size / 2 - (40, 54, 82)[k]) / 2**k
            errors.append(shift_error(*h.chunk(2), net.feature_groups[net.taps[k]], 0.5, inside))
    assert all(control > 5 * error for error, control in zip(errors[:3], errors[3:], strict=True))
