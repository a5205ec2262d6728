"""The error of one layer against loops over valid pixels, and what it does not depend on."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import ien
from tests.helpers.losses import R4, R8


def test_the_loss_is_the_mean_of_means_over_valid_pixels() -> None:
    h, h_g = torch.rand(2, 6, 3, 7, 7, dtype=torch.float64)
    g = torch.tensor([1, 4, 2, 7, 0, 1])
    moved, valid = R8.act(h, g), R8.valid(h, g)
    each = []
    for i in range(6):
        pixels = [(r, c) for r in range(7) for c in range(7) if valid[i, 0, r, c]]
        each.append(
            np.mean([(h_g[i, k, r, c] - moved[i, k, r, c]) ** 2 for r, c in pixels for k in range(3)])
        )
    assert abs(float(ien.equivariance_loss(h, h_g, R8, g)) - np.mean(each)) < 1e-14
    relative = ien.equivariance_loss(h, h_g, R8, g, normalize=True)
    assert abs(float(relative) - np.mean(each) / np.var(h.numpy())) < 1e-14


def nearest_loop(image: np.ndarray, degrees: float) -> np.ndarray:
    """A square map (H, W) rotated counter-clockwise about its centre, each pixel the nearest one, else 0."""
    size = len(image)
    middle = (size - 1) / 2
    cos, sin = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    result = np.zeros_like(image)
    for row in range(size):
        for column in range(size):
            x, y = column - middle, middle - row  # y points up
            from_x, from_y = cos * x + sin * y, cos * y - sin * x  # rotated back
            from_row, from_column = round(middle - from_y), round(middle + from_x)
            if 0 <= from_row < size and 0 <= from_column < size:
                result[row, column] = image[from_row, from_column]
    return result


def test_nearest_with_corners_is_a_mean_over_all_pixels_of_a_loop() -> None:
    # an odd side: no pixel lies halfway between two others
    h, h_g = torch.rand(2, 8, 3, 7, 7, dtype=torch.float64)
    g = torch.tensor([1, 4, 2, 7, 0, 5, 3, 6])
    squares = []
    for i, element in enumerate(g.tolist()):
        for k in range(3):
            moved = nearest_loop(h[i, k].numpy(), 45 * element)
            squares.append((h_g[i, k].numpy() - moved) ** 2)
    options = {"interpolation": "nearest", "corners": True}
    loss = ien.equivariance_loss(h, h_g, R8, g, **options)
    assert abs(float(loss) - np.mean(squares)) < 1e-14
    relative = ien.equivariance_loss(h, h_g, R8, g, normalize=True, **options)
    assert abs(float(relative) - np.mean(squares) / np.var(h.numpy())) < 1e-14


def test_nearest_on_valid_pixels_and_bilinear_with_corners_are_the_two_in_between() -> None:
    h, h_g = torch.rand(2, 3, 2, 7, 7, dtype=torch.float64)
    g = torch.tensor([1, 3, 7])
    valid = R8.valid(h, g)[:, 0].numpy()  # (3, 7, 7)
    assert 0 < valid.mean() < 1
    each = []
    for i, element in enumerate(g.tolist()):
        moved = np.stack([nearest_loop(h[i, k].numpy(), 45 * element) for k in range(2)])
        each.append(np.mean((h_g[i].numpy() - moved)[:, valid[i]] ** 2))
    nearest = ien.equivariance_loss(h, h_g, R8, g, interpolation="nearest")
    assert abs(float(nearest) - np.mean(each)) < 1e-14
    corners = ien.equivariance_loss(h, h_g, R8, g, corners=True)
    torch.testing.assert_close(corners, (h_g - R8.act(h, g)).square().mean(), rtol=1e-14, atol=0)


@pytest.mark.parametrize("size", [6, 7])
def test_quarter_turns_are_the_same_with_every_interpolation_and_have_no_corners(size) -> None:
    h, h_g = torch.rand(2, 4, 3, size, size)
    g = torch.tensor([1, 2, 3, 0])
    expected = ien.equivariance_loss(h, h_g, R4, g)
    for interpolation in ("bilinear", "nearest"):
        for corners in (False, True):
            options = {"interpolation": interpolation, "corners": corners}
            assert torch.equal(ien.equivariance_loss(h, h_g, R4, g, **options), expected)
            # the quarter turns of a group that also resamples
            assert torch.equal(ien.equivariance_loss(h, h_g, R8, 2 * g, **options), expected)


@pytest.mark.parametrize("interpolation", ["bicubic", "linear", None])
def test_an_unknown_interpolation_says_which_there_are(interpolation) -> None:
    h, g = torch.rand(1, 4, 5, 5), torch.tensor([1])
    match = f"interpolation must be bilinear or nearest; got {interpolation!r}"
    with pytest.raises(ValueError, match=match):
        ien.equivariance_loss(h, h, R8, g, interpolation=interpolation)
    with pytest.raises(ValueError, match=match):
        ien.EquivarianceLoss(R8, ["1"], 4, interpolation=interpolation)


def test_only_pixels_known_on_both_sides_count() -> None:
    group, g = ien.scale([2, 0.5]), torch.tensor([1])
    h, h_g = torch.rand(2, 1, 2, 9, 9, dtype=torch.float64)
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


def test_only_the_normalized_loss_does_not_change_with_the_scale_of_the_maps() -> None:
    h, h_g = torch.rand(2, 4, 3, 6, 6, dtype=torch.float64)
    g, factor = torch.tensor([1, 1, 2, 3]), torch.tensor(0.01, dtype=torch.float64, requires_grad=True)

    def scaled(normalize):
        loss = ien.equivariance_loss(factor * h, factor * h_g, R4, g, normalize=normalize)
        return loss, float(torch.autograd.grad(loss, factor, retain_graph=True)[0])

    loss, slope = scaled(True)
    torch.testing.assert_close(loss, ien.equivariance_loss(h, h_g, R4, g, normalize=True))
    assert abs(slope) < 1e-12 and scaled(False)[1] > 0.001
    assert float(ien.equivariance_loss(h * 0, h * 0, R4, g, normalize=True)) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"action": "regular", "feature_groups": 4}], ids=len)
def test_half_precision_maps_are_compared_in_float32(dtype, options) -> None:
    h, h_g = torch.rand(2, 4, 4, 7, 7).to(dtype)
    g = torch.tensor([1, 3, 5, 2])
    half = ien.equivariance_loss(h, h_g, R8, g, **options)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, ien.equivariance_loss(h.float(), h_g.float(), R8, g, **options))


@pytest.mark.parametrize(
    ("h", "h_g", "g", "match"),
    [
        (torch.rand(1, 1, 5, 5), torch.rand(1, 1, 5, 5), [9], "rot8 has elements 0 to 7"),
        (torch.rand(1, 1, 5, 5), torch.rand(1, 1, 5, 5), [1.0], "integer tensor"),
        (torch.rand(0, 1, 5, 5), torch.rand(0, 1, 5, 5), [1], "no images"),
        (torch.rand(1, 2, 4, 4), torch.rand(1, 2, 5, 5), [1], r"got \(1, 2, 4, 4\) and \(1, 2, 5, 5\)"),
    ],
)
def test_bad_arguments_of_the_function_say_what_was_needed(h, h_g, g, match) -> None:
    with pytest.raises(ValueError, match=match):
        ien.equivariance_loss(h, h_g, "rot8", torch.tensor(g))


def test_nan_where_nothing_is_compared_does_not_matter() -> None:
    h, h_g, g = torch.rand(1, 1, 9, 9), torch.rand(1, 1, 9, 9), torch.tensor([1])
    expected = ien.equivariance_loss(h, h_g, R8, g)
    h_g[..., 0, 0] = float("nan")  # a corner: unknown after 45°
    assert torch.equal(ien.equivariance_loss(h, h_g, R8, g), expected)
