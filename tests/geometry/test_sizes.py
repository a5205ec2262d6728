"""The exact sizes are those at which networks with symmetric kernels measure no error."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ien import doctor
from tests.helpers.symmetrised import Fn, conv, measured_exact, net, resize, strided, transposed, unet


def same_padding(x: Tensor) -> Tensor:
    """What TensorFlow pads for a 3×3 convolution of stride 2: more at the far edge."""
    total = [max((-(-n // 2) - 1) * 2 + 3 - n, 0) for n in (x.shape[-1], x.shape[-2])]
    return F.pad(x, (total[0] // 2, total[0] - total[0] // 2, total[1] // 2, total[1] - total[1] // 2))


def exact_at_few_sizes(x: Tensor) -> Tensor:
    return x if x.shape[-1] in (8, 20, 22) else x * torch.arange(x.shape[-1], dtype=x.dtype)


MODELS = {
    "strides": net(conv(7, stride=2, padding=3), nn.MaxPool2d(3, 2, 1), strided()),
    "tf same": net(same_padding, conv(3, stride=2), same_padding, conv(3, stride=2)),
    "unet": unet(),
    "cut": net(transposed(3, 2, 1, 1), lambda x: x[:, :, :-1, :-1]),
    "resize": net(resize(size=24), conv(3, stride=2)),
    "scale": net(resize(scale_factor=1.5, mode="bilinear")),
    "none": net(lambda x: x.roll(1, 3), conv()),
    "pool that repairs": net(transposed(3, 2, 1, 1), nn.MaxPool2d(3, 2), conv(3, stride=2)),
    "few": net(exact_at_few_sizes),
}


@pytest.mark.parametrize("name", MODELS)
def test_exact_sizes_are_those_that_symmetric_kernels_measure(name) -> None:
    model, given_size = MODELS[name], 12
    found = doctor(model, (3, given_size, given_size))
    expected = [n for n in range(6, 25) if measured_exact(model, n)]
    nearest = sorted(expected, key=lambda n: (abs(n - given_size), n))[:8]
    assert found.exact_sizes == tuple(sorted(nearest))
    assert found.exact_sizes == found.grid_sizes or name == "few"
    assert found.exact == (given_size in found.exact_sizes)


def test_the_search_ends_by_a_budget_and_says_what_was_searched(monkeypatch) -> None:
    model = net(*[nn.Sequential(Fn(same_padding), conv(3, stride=2)) for _ in range(3)])
    whole = doctor(model, (3, 40, 40))
    assert whole.exact_sizes == (25, 33, 41, 49, 57, 65, 73) and whole.searched == (20, 80)
    assert "(nearest: 33 below, 41 above; searched 20 to 80)" in str(whole)
    monkeypatch.setattr("ien.geometry.sizes.MAX_OPERATIONS", 200)
    few = doctor(model, (3, 40, 40))
    assert set(few.exact_sizes) < set(whole.exact_sizes) and 20 < few.searched[0] < 40 < few.searched[1] < 80
    assert f"searched {few.searched[0]} to {few.searched[1]}" in str(few)
    monkeypatch.setattr("time.monotonic", lambda: 1e9)
    assert doctor(model, (3, 40, 40)) == few
