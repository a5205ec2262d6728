"""SESN's nets: as large as published, and their maps follow the scale of an image."""

import copy
import math

import pytest
import torch
from torch import nn

import ien
from ien.baselines.sesn_layers import Filters, ScaleConv2d
from ien.baselines.sesn_nets import (
    SCALAR_FILTERS,
    VECTOR_FILTERS,
    WRN_FILTERS,
    sesn_scalar,
    sesn_vector,
    sesn_wrn,
)
from ien.models.cnn3 import MEAN
from tests.helpers.waves import free_filters, scale_error, shift_error, tap_maps, waves

pytestmark = pytest.mark.usefixtures("one_thread")

DIGITS = {"28": (28, False), "28+": (28, True), "56": (56, False), "56+": (56, True)}
SEEDS = pytest.mark.parametrize("seed", [0, 1])


@pytest.mark.parametrize(("size", "plus"), VECTOR_FILTERS)
def test_digit_nets_have_the_parameters_of_the_plain_cnn(size, plus) -> None:
    vector, scalar = sesn_vector(size=size, plus=plus), sesn_scalar(size=size, plus=plus)
    for net in (vector, scalar):
        assert sum(p.numel() for p in net.parameters()) == 494_549
    assert vector.feature_groups.sizes == (len(VECTOR_FILTERS[size, plus].scales),)
    assert scalar.feature_groups.sizes == (1,)


def test_sesn_a_has_the_parameters_of_the_plain_wide_resnet() -> None:
    assert sum(p.numel() for p in sesn_wrn().parameters()) == 10_961_370  # 9 functions for 3×3 pixels


def compared(net, other, pair, step, reach) -> list[float]:
    """Errors of each tap, which the border reaches so far; ``other`` sees the enlarged image."""
    members, errors = net.feature_groups.sizes[0], []
    maps = zip(tap_maps(net.eval(), pair[0]), tap_maps(other.eval(), pair[1]), reach, strict=True)
    for h, h_enlarged, margin in maps:
        errors.append(shift_error(h, h_enlarged, members, step, h.shape[-1] / 2 - margin))
    return errors


def digit_case(name, filters, seed):
    """Images of waves and enlarged ones, the step between them, and how far the border reaches in each tap.

    The waves have 16 to 32 pixels, at least 4 on the maps of the last layers, which have stride 4; a net of
    size 56 doubles the images.
    """
    fewer, step = DIGITS[name][0] // 28, filters.scales[1] / filters.scales[0]
    pair = [MEAN + x[:1] / 10 for x in waves(160 // fewer, [1, step], (16 / fewer, 32 / fewer), seed)]
    first = filters.size // 2
    second = math.ceil(first / 2) + first
    return pair, step, [first, second, math.ceil(second / 2) + first]


def ratios(ours, free) -> list[float]:
    """How many times smaller our errors are than those of free filters."""
    return [b / a for a, b in zip(ours, free, strict=True)]


@SEEDS
@pytest.mark.parametrize("name", DIGITS)
def test_an_enlarged_image_moves_the_maps_of_every_layer_one_scale_up(name, seed) -> None:
    torch.manual_seed(seed)
    net, case = sesn_vector(*DIGITS[name], width=1 / 8), digit_case(name, VECTOR_FILTERS[DIGITS[name]], seed)
    ours, free = (compared(n, n, *case) for n in (net, free_filters(net, ScaleConv2d)))
    assert min(ratios(ours, free)) > 5


def test_the_wide_net_moves_its_maps_less_exactly_the_deeper_they_are() -> None:
    """Its narrowest envelope has 0.9 pixels, and thirteen layers add up what the grid loses; the last stage
    is 5 times better than free filters on the mean over nets, not in each of them."""
    ours, free, step = [], [], WRN_FILTERS.scales[1] / WRN_FILTERS.scales[0]
    for seed in range(3):
        torch.manual_seed(seed)
        net = sesn_wrn(width=1 / 16)
        pair = [(0.44 + x[:1] / 10).expand(-1, 3, -1, -1) for x in waves(193, [1, step], (24, 48), seed)]
        for errors, n in ((ours, net), (free, free_filters(net, ScaleConv2d))):
            errors.append(compared(n, n, pair, step, [15, 18, 20]))
    better = ratios(torch.tensor(ours).mean(0).tolist(), torch.tensor(free).mean(0).tolist())
    assert min(better) > 5 and better == sorted(better, reverse=True)


def only(net, scales) -> nn.Module:
    """The same scalar net with some of its scales."""
    net = copy.deepcopy(net)
    for tap in net.taps:
        conv, _ = pair = net.get_submodule(tap)[0]
        kept, conv.sizes = conv.kernels()[scales], conv.sizes[scales]
        conv.kernels = lambda kernels=kept: kernels
        pair[1] = ien.GroupPool(len(kept))
    return net


@SEEDS
@pytest.mark.parametrize("name", DIGITS)
def test_scalar_maps_grow_with_the_image_over_the_scales_known_on_both_sides(name, seed) -> None:
    """An image's largest scale has no answer one step up, the enlarged one's smallest none below: like pixels
    beyond the border they are left out. With them the nets are hardly better than free ones.

    The narrowest envelope of 56+ has 0.36 pixels, too few for a grid: its last layer misses 5.
    """
    torch.manual_seed(seed)
    net, case = sesn_scalar(*DIGITS[name], width=1 / 8), digit_case(name, SCALAR_FILTERS[DIGITS[name]], seed)
    nets = (net, free_filters(net, ScaleConv2d))
    ours, free = (compared(only(n, slice(None, -1)), only(n, slice(1, None)), *case) for n in nets)
    better = ratios(ours, free)
    assert min(better[:2] if name == "56+" else better) > 5
    whole = compared(net, net, *case)
    assert name == "56+" or all(2 * a < b for a, b in zip(ours, whole, strict=True))


@SEEDS
def test_a_scalar_layer_whose_scales_reach_far_enough_grows_with_the_image(seed) -> None:
    """Two more scales than published, on waves of 6 to 10 pixels: nothing is left out here."""
    torch.manual_seed(seed)
    step = 3 ** (1 / 3)
    filters = Filters(tuple(1.5 * step**k for k in range(6)), 27, mult=1.4)
    conv, pair = ScaleConv2d(1, 16, filters, from_image=True), waves(72, [1, step], (6.3, 10.5), seed)
    errors = []
    for layer in (conv, free_filters(conv, ScaleConv2d)):
        with torch.no_grad():
            h, h_enlarged = (ien.group_pool(layer(x), 6).relu() for x in pair)
        errors.append(scale_error(h, h_enlarged, step, 36 - 13))
    assert 5 * errors[0] < errors[1]
