"""Floors against nets with averaged kernels, maps transformed by hand, and nets that reach them."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import ien
from ien.measuring.floors import symmetric_kernels
from tests.helpers.losses import D4, R8, images, net, symmetrised
from tests.helpers.nets import Function
from tests.helpers.parametrized import Symmetric
from tests.helpers.tied import Net


def strided():
    """Exact on odd sizes only."""
    torch.manual_seed(3)
    convs = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU()]
    return nn.Sequential(*convs).double()


@pytest.mark.parametrize(("size", "exact"), [(9, True), (10, False)])
def test_a_symmetrised_net_measures_its_grid_floor(size, exact) -> None:
    layer = ien.measure(symmetrised(strided()), images(4, size), D4, ["3"], 4).layers["3"]
    assert (layer.relative < 1e-20) == (layer.floor < 1e-20) == exact
    for element in layer.elements.values():
        assert abs(element.floor - element.relative) < 1e-12


def test_the_grid_floor_is_that_of_the_net_with_averaged_kernels() -> None:
    x = images(5, 10)
    floors = ien.measure(strided(), x, R8, ["1", "3"], 4, batch_size=2).layers
    twin = ien.measure(symmetrised(strided()), x, R8, ["1", "3"], 4, floors=False).layers
    for name, layer in floors.items():
        for label, element in layer.elements.items():
            assert twin[name].elements[label].floor is None
            if element.exact:
                assert abs(element.floor - twin[name].elements[label].relative) < 1e-12
    assert twin["3"].floor is None and twin["3"].elements["90°"].relative > 0.01


def test_a_part_of_a_kernel_has_an_average_of_its_own() -> None:
    """It starts at the address of the whole, which has been averaged before."""
    kernel = nn.Parameter(torch.randn(4, 4, 3, 3).double())
    x = images(2).repeat(1, 4, 1, 1)
    with torch.no_grad(), symmetric_kernels():
        whole = nn.functional.conv2d(x, kernel)
        part = nn.functional.conv2d(x[:, :2], kernel[:3, :2])
        turned = nn.functional.conv2d(x, kernel.transpose(0, 1))
    averaged = Symmetric()(kernel.detach())
    np.testing.assert_allclose(whole, nn.functional.conv2d(x, averaged), atol=1e-14)
    np.testing.assert_allclose(part, nn.functional.conv2d(x[:, :2], averaged[:3, :2]), atol=1e-14)
    np.testing.assert_allclose(turned, nn.functional.conv2d(x, averaged.transpose(0, 1)), atol=1e-14)


def test_symmetric_kernels_average_every_convolution_and_touch_none() -> None:
    """Convolutions as functions and transposed ones, over kernels that are parameters."""
    kernel, up = nn.Parameter(torch.randn(4, 1, 3, 3)), nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1)
    model = Net(
        lambda net, x: net.up(nn.functional.conv2d(x, net.a, stride=2, padding=1).relu()), a=kernel, up=up
    ).double()
    averaged, x = copy.deepcopy(model), images(3, 9)
    before = copy.deepcopy(model.state_dict())
    for kernel in (averaged.a, averaged.up.weight):
        views = [torch.rot90(k, n, (-2, -1)) for k in (kernel.data, kernel.data.flip(-1)) for n in range(4)]
        kernel.data = torch.stack(views).mean(0)
    with torch.no_grad():
        with symmetric_kernels():
            inside = model(x)
        np.testing.assert_allclose(inside, averaged(x), atol=1e-14)
        assert float((model(x) - inside).abs().max()) > 0.01
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_symmetric_kernels_reach_compiled_layers() -> None:
    model, x = strided(), images(3, 9)
    with torch.no_grad(), symmetric_kernels():
        expected = model(x)
    model[2].compile(backend="eager")
    with torch.no_grad():
        model(x)
        with symmetric_kernels():
            assert torch.equal(model(x), expected)


def test_the_resampling_floor_is_the_cost_of_there_and_back() -> None:
    model, x, group = net(), images(4, 12), R8 * ien.scale([0.8])
    elements = ien.measure(model, x, group, ["3"], 4).layers["3"].elements
    h = ien.group_pool(model(x), 4).detach()
    ones = torch.ones(1, 1, *h.shape[2:], dtype=torch.float64)
    for i, label in enumerate(group.labels):
        if label not in elements or elements[label].exact:
            continue
        g, errors = torch.tensor([i]), []
        known = group.act((group.act(ones, g) > 1 - 1e-6).double(), g, inverse=True)[0, 0] > 1 - 1e-6
        for one in h:
            back = group.act(group.act(one[None], g), g, inverse=True)
            errors.append(float((back - one)[..., known].square().mean()))
        np.testing.assert_allclose(elements[label].floor, np.mean(errors) / h.numpy().var(), rtol=1e-9)


def smooth(n, size):
    """Noise whose details are a few pixels wide, of variance 1."""
    kernel = torch.exp(-torch.arange(-6, 7).double().square() / 4.5).view(1, 1, 1, -1)
    x = torch.randn(n, 1, size + 12, size + 12, dtype=torch.float64)
    x = nn.functional.conv2d(nn.functional.conv2d(x, kernel), kernel.transpose(2, 3))
    return x / x.std()


@pytest.mark.parametrize("size", [15, 16])
def test_a_pointwise_net_is_within_the_floor_at_every_factor(size) -> None:
    group = ien.scale([0.35, 0.5, 0.7, 0.9, 1.1, 1.2, 1.5, 2, 3])
    # equivariant but for resampling, which does not commute with functions that are not linear
    pointwise = Function(lambda x: torch.cat([x.relu(), (2 * x).sin()], 1))
    x = smooth(20, size)
    elements = ien.measure(pointwise, x, group).layers[""].elements
    angle = ien.measure(pointwise, x, R8).layers[""].elements["45°"]
    for element in elements.values():
        assert element.relative < element.floor < 1
    for factor in (1.5, 2.0, 3.0):  # which would lead from pixels to pixels and back, at no cost
        element = elements[f"×{factor:g}"]
        assert element.floor == elements["×1.2"].floor and element.factor == factor
        assert 0.3 < element.floor / angle.floor < 3
    shrunk = [element.floor for element in elements.values() if element.factor < 1]
    assert shrunk == sorted(shrunk, reverse=True)  # the smaller, the more detail is lost


def blobs(x):
    """How strong blobs of nine sizes are: over all sizes, the maximum follows an image that is scaled."""
    row = torch.arange(-14, 15).double()
    square = row.view(-1, 1) ** 2 + row**2
    maps = []
    for k in range(9):
        sigma = 0.8 * 2 ** (k / 4)
        gauss = torch.exp(-square / (2 * sigma**2))
        kernel = (square / sigma**2 - 2) * gauss / gauss.sum()
        maps.append(nn.functional.conv2d(x, (kernel - kernel.mean())[None, None], padding=14).abs())
    return torch.cat(maps, 1)


def test_the_ruler_tells_a_layer_that_follows_scale_from_one_of_fixed_size() -> None:
    x, group = smooth(3, 33), ien.scale([0.5, 0.7, 0.85])
    follows, fixed = (ien.measure(Function(blobs), x, group, [""], size).layers[""] for size in (9, 1))
    for label, element in follows.elements.items():
        assert element.relative < 1.5 * element.floor
        assert fixed.elements[label].relative > 2 * element.relative


def test_a_centre_alone_and_custom_transformations_have_no_floor() -> None:
    model, x = nn.Sequential(nn.Conv2d(1, 4, 7)).double(), images(3)  # 3×3 maps
    elements = ien.measure(model, x, R8 * ien.scale([0.7, 3]), ["0"], 4).layers["0"].elements
    for label in ("45°", "×0.7", "×3"):
        assert elements[label].relative > 0 and np.isnan(elements[label].floor)
    pooled = ien.measure(nn.Sequential(nn.Conv2d(1, 4, 9)).double(), x, "scale0.7", ["0"], 4).layers["0"]
    assert pooled.size == (1, 1) and pooled.floor == 0  # nothing to resample
    group = ien.custom("negative", {"invert": lambda z: 1 - z}, "identity")
    layer = ien.measure(model, x, group, ["0"], 4).layers["0"]
    element = layer.elements["invert"]
    assert layer.floor is None and element.floor is None and not element.exact
