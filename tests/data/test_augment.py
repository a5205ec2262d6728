"""What training does to images, against loops over their pixels and Pillow."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import ien
from ien.data.augment import cutout, mirror, rescale, rotate, rotate_and_scale, shift
from ien.models.normalize import Normalize

from ..helpers.resampling import keys, linear, resampled


@pytest.mark.parametrize("n", [4, 8])
def test_rotation_by_elements_of_a_group_is_that_of_the_group(n: int) -> None:
    x, g = torch.rand(2 * n, 3, 9, 9), torch.arange(2 * n) % n
    expected = ien.rotation(n).act(x, g)
    degrees = 360 / n * torch.arange(2 * n)  # the second half goes beyond a full turn
    for angle in (degrees, degrees - 720):
        torch.testing.assert_close(rotate(x, angle), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_scaling_by_elements_of_a_group_is_that_of_the_group(mode) -> None:
    x, g = torch.rand(6, 3, 12, 12), torch.arange(6) % 3
    group, factors = ien.scale([0.6, 1.5]), torch.tensor([1, 0.6, 1.5]).repeat(2)
    expected = group.act(x, g, mode=mode).clamp(0, 1)
    torch.testing.assert_close(rescale(x, factors, mode), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", [(7, 7), (6, 9)])
@pytest.mark.parametrize(("mode", "kernel"), [("bilinear", linear), ("bicubic", keys)])
def test_resampling_equals_a_loop_over_pixels(size: tuple[int, int], mode, kernel) -> None:
    x = torch.rand(5, 2, *size, dtype=torch.float64)
    degrees = torch.tensor([0.0, 12.3, 133.7, -77.7, 400.1])
    factors = torch.tensor([0.3, 0.55, 1.0, 1.7, 2.0])

    def expected(k: int, c: int, degrees: float, factor: float) -> Tensor:
        return torch.from_numpy(resampled(x[k, c].numpy(), degrees, factor, kernel))

    both, scaled = rotate_and_scale(x, degrees, factors, mode), rescale(x, factors, mode)
    for k, c in np.ndindex(5, 2):
        angle, factor = float(degrees[k]), float(factors[k])
        torch.testing.assert_close(both[k, c], expected(k, c, angle, factor), atol=1e-9, rtol=0)
        torch.testing.assert_close(scaled[k, c], expected(k, c, 0, factor).clamp(0, 1), atol=1e-9, rtol=0)
        if mode == "bilinear":
            turned = rotate(x[k : k + 1, c : c + 1], degrees[k : k + 1])[0, 0]
            torch.testing.assert_close(turned, expected(k, c, angle, 1), atol=1e-9, rtol=0)


@pytest.mark.parametrize("function", [rotate, rescale])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_resampling_keeps_the_dtype_and_the_input(function, dtype: torch.dtype) -> None:
    x = torch.rand(2, 1, 5, 5, dtype=dtype)
    before = x.clone()
    assert function(x, torch.tensor([10, 20])).dtype == dtype and torch.equal(x, before)
    assert function(x[:0], torch.ones(0)).shape == (0, 1, 5, 5)


def test_scaling_in_mode_nearest_takes_the_pixel_that_is_there() -> None:
    x = torch.rand(1, 1, 7, 8)
    result = rescale(x, torch.tensor([1.37]), "nearest")
    for i, j in np.ndindex(7, 8):
        row, column = round(3 + (i - 3) / 1.37), round(3.5 + (j - 3.5) / 1.37)
        assert result[0, 0, i, j] == x[0, 0, row, column]


def test_overshoot_is_cut_off_in_scaling_and_left_in_resampling() -> None:
    x = torch.zeros(1, 1, 12, 12)
    x[..., 6:] = 1
    raw = rotate_and_scale(x, torch.zeros(1), torch.tensor([1.6]))
    assert float(raw.min()) < -0.02 and float(raw.max()) > 1.02
    assert torch.equal(rescale(x, torch.tensor([1.6])), raw.clamp(0, 1))


@pytest.mark.parametrize("factor", [0.4, 0.77, 1.6])
def test_scaling_is_that_of_pillow_but_for_the_constant_of_the_kernel(factor: float) -> None:
    image = pytest.importorskip("PIL.Image", reason="compares with pillow: pip install 'ien[plots]'")
    y, x = np.mgrid[:28, :28] - 13.5
    upright = np.uint8(200 * (np.abs(np.hypot(x - 1, 0.7 * y) - 6) < 1.5))

    def pillow(offset: float) -> np.ndarray:
        start = 14 - 14 / factor + offset
        matrix, bicubic = (1 / factor, 0, start, 0, 1 / factor, start), image.Resampling.BICUBIC
        made = image.fromarray(upright).transform((28, 28), image.Transform.AFFINE, matrix, bicubic)
        return np.asarray(made).astype(float)

    for a in (-1.0, -0.75, -0.5):
        expected = resampled(upright, 0, factor, lambda d, a=a: keys(d, a)).clip(0, 255)
        assert (np.abs(pillow(0) - expected).max() <= 1) == (a == -1.0)
    ours = 255 * rescale(torch.from_numpy(upright / 255)[None, None], torch.tensor([factor]))[0, 0].numpy()
    near, half_a_pixel_off = (np.abs(ours - pillow(offset)).mean() for offset in (0, 0.5))
    assert 8 * near < half_a_pixel_off


# shifts, mirror images and squares


def test_shift_is_a_crop_of_the_padded_image() -> None:
    x = torch.rand(40, 3, 9, 11)
    offsets = torch.randint(-12, 13, (40, 2))  # some leave nothing of the image
    offsets[0] = 0
    result = shift(x, offsets)
    for image, moved, (down, right) in zip(x, result, offsets.tolist(), strict=True):
        padded = np.pad(image.numpy(), ((0, 0), (12, 12), (12, 12)))
        expected = padded[:, 12 - down : 21 - down, 12 - right : 23 - right]
        assert np.array_equal(moved.numpy(), expected)
    assert torch.equal(result[0], x[0]) and any(not moved.any() for moved in result)
    far = shift(x[:2], torch.tensor([[10**9, 0], [0, -(10**9)]]))
    assert not far.any()


def test_mirror_flips_those_that_are_flagged() -> None:
    x, flags = torch.rand(20, 3, 5, 6), torch.rand(20) < 0.5
    result = mirror(x, flags)
    for image, made, flag in zip(x.numpy(), result.numpy(), flags.tolist(), strict=True):
        assert np.array_equal(made, image[:, :, ::-1] if flag else image)
    assert 0 < int(flags.sum()) < 20


@pytest.mark.parametrize("size", [1, 4, 5, 40])
def test_cutout_fills_a_square_that_ends_at_the_border(size: int) -> None:
    x, fill = torch.rand(30, 3, 9, 12), [0.4, 0.5, 0.6]
    centres = torch.stack([torch.randint(9, (30,)), torch.randint(12, (30,))], 1)
    centres[:2] = torch.tensor([[0, 0], [8, 11]])
    result = cutout(x, centres, size, fill)
    for image, made, (row, column) in zip(x, result, centres.tolist(), strict=True):
        expected, top, left = image.clone(), row - size // 2, column - size // 2
        for i in range(max(top, 0), min(top + size, 9)):
            for j in range(max(left, 0), min(left + size, 12)):
                expected[:, i, j] = torch.tensor(fill)
        assert torch.equal(made, expected)
    assert torch.equal(cutout(x, centres, size, torch.tensor(fill)), result)


def test_cutout_with_the_mean_is_zeros_after_normalising() -> None:
    x, centres = torch.rand(4, 3, 20, 20), torch.randint(20, (4, 2))
    mean, std = [0.4467, 0.4398, 0.4066], [0.2603, 0.2566, 0.2713]
    before = Normalize(mean, std)(cutout(x, centres, 8, mean))
    assert torch.equal(before, cutout(Normalize(mean, std)(x), centres, 8, 0.0)) and (before == 0).any()


def test_bytes_are_shifted_mirrored_and_cut_out_too() -> None:
    x = torch.randint(256, (2, 1, 6, 6), dtype=torch.uint8)
    where = torch.tensor([[1, 2], [0, -3]])
    assert torch.equal(shift(x, where), shift(x.double(), where).to(torch.uint8))
    assert mirror(x, torch.tensor([True, True])).dtype == cutout(x, where, 2, 7).dtype == torch.uint8


def test_nothing_is_drawn_and_nothing_written_to() -> None:
    x, before = torch.rand(2, 3, 8, 8), torch.get_rng_state()
    copy, pixels, flags = x.clone(), torch.tensor([[1, 2], [3, 4]]), torch.tensor([True, False])
    for made in (
        rescale(x, torch.tensor([1.0, 1.0]), "nearest"),
        rotate(x, torch.zeros(2)),
        shift(x, torch.zeros_like(pixels)),
        mirror(x, ~flags & flags),
        cutout(x, pixels, 4, 0.0),
    ):
        made.zero_()
        assert torch.equal(x, copy)
    assert torch.equal(torch.get_rng_state(), before) and pixels.tolist() == [[1, 2], [3, 4]]


def test_no_images_are_no_images() -> None:
    x, pixels = torch.zeros(0, 3, 8, 8), torch.zeros(0, 2, dtype=torch.int64)
    for made in (shift(x, pixels), mirror(x, torch.zeros(0, dtype=torch.bool)), cutout(x, pixels, 3, 0.0)):
        assert made.shape == x.shape


IMAGES, PIXELS = torch.zeros(2, 3, 8, 8), torch.zeros(2, 2, dtype=torch.int64)
FLOATS = r"floating-point images \(N, C, H, W\) and an? (angle|factor) for each \(N,\); got "


@pytest.mark.parametrize(
    ("function", "arguments", "match"),
    [
        (rotate, [IMAGES.byte(), torch.ones(2)], f"rotate needs {FLOATS}torch.uint8"),
        (rescale, [IMAGES[0], torch.ones(3)], rf"rescale needs {FLOATS}.* \(3, 8, 8\) and factors"),
        (rotate, [IMAGES, torch.ones(3)], rf"{FLOATS}.* and angles \(3,\)"),
        (rescale, [IMAGES, torch.ones(2, 1)], rf"{FLOATS}.* and factors \(2, 1\)"),
        (rescale, [IMAGES, torch.tensor([1.0, 0.0])], r"positive and finite, 0\.5 to halve; got 0"),
        (rescale, [IMAGES, torch.tensor([1.0, -1.0])], "positive and finite, .* got -1"),
        (rescale, [IMAGES, torch.tensor([1.0, math.nan])], "positive and finite, .* got nan"),
        (rescale, [IMAGES, torch.tensor([1.0, math.inf])], "positive and finite, .* got inf"),
        (rescale, [IMAGES, torch.ones(2), "cubic"], "mode is bilinear, bicubic or nearest; got 'cubic'"),
        (shift, [IMAGES, PIXELS.float()], r"in whole rows and columns \(N, 2\); got .*float32"),
        (shift, [IMAGES, PIXELS[0]], "shift needs images .* and an offset"),
        (shift, [IMAGES[0], PIXELS], r"got \(3, 8, 8\)"),
        (mirror, [IMAGES, torch.zeros(2)], r"true or false for each \(N,\); .* torch\.float32 \(2,\)"),
        (mirror, [IMAGES, torch.zeros(3, dtype=torch.bool)], r"torch\.bool \(3,\)"),
        (cutout, [IMAGES, PIXELS.float(), 4, 0.0], "cutout needs images .* and a pixel for each"),
        (cutout, [IMAGES, PIXELS, 4, [0.1, 0.2]], "one value or one for each of 3 channels; got 2"),
        (cutout, [IMAGES, PIXELS, 0, 0.0], "at least 1 pixel; got 0"),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(function, arguments: list, match: str) -> None:
    with pytest.raises(ValueError, match=match) as caught:
        function(*arguments)
    assert "\n" not in str(caught.value)
