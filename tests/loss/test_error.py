"""The error of one layer against loops over valid pixels, and what it does not depend on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import ien
from tests.helpers.losses import R4, R8


def test_the_loss_is_the_mean_of_means_over_valid_pixels() -> None:
    h, h_g = torch.rand(6, 3, 7, 7, dtype=torch.float64), torch.rand(6, 3, 7, 7, dtype=torch.float64)
    g = torch.tensor([1, 4, 2, 7, 0, 1])
    moved, valid = R8.act(h, g), R8.valid(h, g)
    assert valid is not None
    each = []
    for i in range(6):
        values = [
            float(h_g[i, c, row, column] - moved[i, c, row, column]) ** 2
            for row in range(7)
            for column in range(7)
            if valid[i, 0, row, column]
            for c in range(3)
        ]
        each.append(np.mean(values))
    assert abs(float(ien.equivariance_loss(h, h_g, R8, g)) - np.mean(each)) < 1e-14
    relative = ien.equivariance_loss(h, h_g, R8, g, normalize=True)
    assert abs(float(relative) - np.mean(each) / np.var(h.numpy())) < 1e-14


def test_only_pixels_known_on_both_sides_count() -> None:
    group, g = ien.scale([2, 0.5]), torch.tensor([1])
    h, h_g = torch.rand(1, 2, 9, 9, dtype=torch.float64), torch.rand(1, 2, 9, 9, dtype=torch.float64)
    stays = F.pad(torch.ones(5, 5, dtype=torch.bool), [2] * 4)  # the middle, from edge to edge when enlarged
    enlarged = ien.equivariance_loss(h, h_g, group, g)
    assert torch.equal(enlarged, ien.equivariance_loss(h.masked_fill(~stays, 9), h_g, group, g))
    assert group.valid(h, g) is None
    for pixel in ((0, 0), (4, 4), (8, 3)):  # every pixel of the enlarged map counts
        changed = h_g.clone()
        changed[0, 0][pixel] += 1
        assert not torch.equal(enlarged, ien.equivariance_loss(h, changed, group, g))
    shrunk = ien.equivariance_loss(h, h_g, group, g + 1)
    assert torch.equal(shrunk, ien.equivariance_loss(h, h_g.masked_fill(~stays, 9), group, g + 1))
    assert torch.equal(group.valid(h, g + 1)[0, 0], stays)


def test_normalized_loss_does_not_change_with_the_scale_of_the_features() -> None:
    h, h_g, g = torch.rand(4, 3, 6, 6), torch.rand(4, 3, 6, 6), torch.tensor([1, 1, 2, 3])
    small = ien.equivariance_loss(h / 100, h_g / 100, R4, g, normalize=True)
    torch.testing.assert_close(small, ien.equivariance_loss(h, h_g, R4, g, normalize=True))
    assert float(ien.equivariance_loss(h * 0, h * 0, R4, g, normalize=True)) == 0


def test_shrinking_the_features_lowers_the_loss_but_not_the_normalized_one() -> None:
    h, h_g = torch.rand(2, 4, 3, 6, 6, dtype=torch.float64)
    g, factor = torch.tensor([1, 1, 2, 3]), torch.ones((), dtype=torch.float64, requires_grad=True)

    def slope(normalize: bool) -> float:
        loss = ien.equivariance_loss(factor * h, factor * h_g, R4, g, normalize=normalize)
        return float(torch.autograd.grad(loss, factor)[0])

    assert abs(slope(True)) < 1e-14 and slope(False) > 0.1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_maps_are_compared_in_float32(dtype) -> None:
    h, h_g, g = torch.rand(4, 2, 7, 7), torch.rand(4, 2, 7, 7), torch.tensor([1, 3, 5, 2])
    half = ien.equivariance_loss(h.to(dtype), h_g.to(dtype), R8, g)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, ien.equivariance_loss(h.to(dtype).float(), h_g.to(dtype).float(), R8, g))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"g": torch.tensor([9])}, "rot8 has elements 0 to 7"),
        ({"g": torch.tensor([1.0])}, "integer tensor"),
        ({"h": torch.zeros(0, 1, 5, 5), "h_g": torch.zeros(0, 1, 5, 5)}, "no images"),
    ],
)
def test_bad_arguments_of_the_function_say_what_was_needed(change, match) -> None:
    arguments = {
        "h": torch.rand(1, 1, 5, 5),
        "h_g": torch.rand(1, 1, 5, 5),
        "group": "rot8",
        "g": torch.tensor([1]),
    }
    with pytest.raises(ValueError, match=match):
        ien.equivariance_loss(**arguments | change)


def test_nan_where_nothing_is_compared_does_not_matter() -> None:
    h, h_g, g = torch.rand(1, 1, 9, 9), torch.rand(1, 1, 9, 9), torch.tensor([1])
    expected = ien.equivariance_loss(h, h_g, R8, g)
    h_g[..., 0, 0] = float("nan")  # a corner: unknown after 45°
    assert torch.equal(ien.equivariance_loss(h, h_g, R8, g), expected)
