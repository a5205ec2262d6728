"""SESN's layers: the basis is the closed form, the convolutions are the grouped ones written out."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.polynomial.hermite_e import hermeval

from ien.baselines.sesn_layers import Filters, PointwiseConv2d, ScaleConv2d, hermite_basis
from ien.baselines.sesn_nets import SCALAR_FILTERS, VECTOR_FILTERS, WRN_FILTERS

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("filters", [WRN_FILTERS, *VECTOR_FILTERS.values(), *SCALAR_FILTERS.values()])
def test_the_basis_is_hermite_polynomials_under_a_gaussian(filters) -> None:
    up_to_four = [(n, m) for n in range(5) for m in range(5) if n + m <= 4]
    if filters.mult is None:
        functions = [(n, m, 1.0) for n in range(3) for m in range(3)]
    else:
        functions = [(n, m, filters.mult**-k) for k in range(4) for n, m in up_to_four][:49]
    norms = None
    for scale, found in zip(filters.scales, hermite_basis(filters), strict=True):
        size = int(filters.size * scale / filters.scales[-1]) // 2 * 2 + 1
        y, x = np.mgrid[-(size // 2) : size // 2 + 1, -(size // 2) : size // 2 + 1]
        expected = np.empty((len(functions), size, size))
        for k, (n, m, factor) in enumerate(functions):
            s = scale * factor
            polynomial = hermeval(x / s, [0] * n + [1]) * hermeval(y / s, [0] * m + [1])
            expected[k] = polynomial * np.exp(-(x**2 + y**2) / (2 * s**2)) / s**2
        norms = np.sqrt((expected**2).sum((1, 2), keepdims=True)) if norms is None else norms
        np.testing.assert_allclose(found.numpy(), expected / norms, rtol=1e-9, atol=1e-12)


def test_published_weights_mean_the_same_kernels() -> None:
    # SESN's code counts the order across the columns slowly, and the order down the rows fast
    conv = ScaleConv2d(1, 1, Filters((1.0, 2.0), 9, 3), from_image=True)
    for k, (across, down) in enumerate((n, m) for n in range(3) for m in range(3)):
        with torch.no_grad():
            conv.weight.zero_()[0, 0, k] = 1
        for kernel in conv.kernels():
            # He_n is even or odd as n is
            assert torch.allclose(kernel.flip(3), (-1) ** across * kernel, atol=1e-6)
            assert torch.allclose(kernel.flip(2), (-1) ** down * kernel, atol=1e-6)
            assert kernel.abs().max() > 0.01


@pytest.mark.parametrize("mult", [None, 1.4])
def test_at_twice_the_scale_a_function_is_twice_as_wide_with_one_integral(mult) -> None:
    small, large = hermite_basis(Filters((1.5, 3.0), 13, mult=mult))
    assert torch.allclose(large[:, ::2, ::2], small / 4, atol=1e-12)


@pytest.mark.parametrize(("before", "from_image", "stride"), [(4, False, 1), (4, False, 2), (12, True, 1)])
def test_a_convolution_is_the_grouped_one_with_small_kernels_padded(before, from_image, stride) -> None:
    filters, x = Filters((1.0, 1.5, 2.5), 9, 3), torch.rand(2, 4 * 3, 12, 13)
    conv = ScaleConv2d(before, 5, filters, from_image=from_image, stride=stride, bias=True)
    conv.bias.data.uniform_(-1, 1)
    padded = [F.pad(kernel, [(9 - kernel.shape[-1]) // 2] * 4) for kernel in conv.kernels()]
    scale_first = x.repeat(1, 3, 1, 1) if from_image else torch.cat([x[:, s::3] for s in range(3)], 1)
    out = F.conv2d(scale_first, torch.cat(padded), conv.bias.repeat(3), stride, 4, groups=3)
    expected = torch.stack([out[:, f::5] for f in range(5)], 1).flatten(1, 2)  # field first
    assert torch.allclose(conv(x), expected, atol=1e-5)


def test_a_pointwise_convolution_is_the_same_matrix_at_each_scale_and_pixel() -> None:
    conv, x = PointwiseConv2d(4, 5, scales=3, stride=2), torch.rand(2, 12, 7, 6)
    expected = torch.einsum("oi,bishw->boshw", conv.weight[..., 0], x.view(2, 4, 3, 7, 6))
    assert torch.allclose(conv(x), expected[..., ::2, ::2].flatten(1, 2), atol=1e-6)


@pytest.mark.parametrize(
    ("filters", "match"),
    [
        *(
            (Filters(scales, 7), "positive and ascending")
            for scales in ((), (2.0, 1.0), (1.0, 1.0), (0.0, 1.0), (1.0, math.inf), (math.nan,))
        ),
        (Filters((1.0, 2.0), 8), "odd size, at least 3 pixels at the smallest scale"),
        (Filters((1.0, 2.0), 1), "odd size, at least 3 pixels at the smallest scale"),
        (Filters((1.0, 2.0), 7, mult=1.0), "mult shrinks the envelope, so it is above 1"),
    ],
)
def test_filters_that_cannot_be_sampled_are_refused(filters, match) -> None:
    with pytest.raises(ValueError, match=match):
        ScaleConv2d(1, 1, filters)
