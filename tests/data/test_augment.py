"""What training does to images, against loops over their pixels and Pillow."""

import math

import numpy as np
import pytest
import torch

import ien
from ien.data.augment import cutout, mirror, rescale, resized, rotate, rotate_and_scale, shift
from ien.models.normalize import Normalize

from ..helpers.resampling import keys, linear, nearest, resampled

SIXTEEN = torch.arange(16)


@pytest.mark.parametrize(
    ("made", "group", "mode"),
    [
        (lambda x: rotate(x, 90.0 * SIXTEEN), ien.rotation(4), "bilinear"),
        (lambda x: rotate(x, 45.0 * SIXTEEN - 720), ien.rotation(8), "bilinear"),
        (lambda x: rescale(x, torch.tensor([1, 0.6, 1.5, 2]).repeat(4)), ien.scale([0.6, 1.5, 2]), "bicubic"),
    ],
    ids=["4 rotations", "8 rotations", "scales"],
)
def test_elements_of_a_group_do_what_the_group_does(made, group, mode) -> None:
    x = torch.rand(16, 3, 12, 12)
    expected = group.act(x, SIXTEEN % len(group), mode=mode).clamp(0, 1)
    torch.testing.assert_close(made(x), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", [(7, 7), (6, 9)])
@pytest.mark.parametrize(("mode", "kernel"), [("bilinear", linear), ("bicubic", keys), ("nearest", nearest)])
def test_resampling_equals_a_loop_over_pixels(size, mode, kernel) -> None:
    x = torch.rand(5, 2, *size, dtype=torch.float64)
    degrees = torch.tensor([0.0, 12.3, 133.7, -77.7, 400.1])
    factors = torch.tensor([0.3, 0.55, 1.0, 1.7, 1.9])

    def check(made, degrees, factors, low=-math.inf, high=math.inf) -> None:
        for k, c in np.ndindex(5, 2):
            expected = resampled(x[k, c].numpy(), float(degrees[k]), float(factors[k]), kernel)
            assert np.allclose(made[k, c], expected.clip(low, high), atol=1e-9, rtol=0)

    both = rotate_and_scale(x, degrees, factors, mode)
    check(both, degrees, factors)
    assert (mode == "bicubic") == (float(both.min()) < 0 and float(both.max()) > 1)  # which overshoots
    check(rescale(x, factors, mode), torch.zeros(5), factors, 0, 1)
    if mode == "bilinear":
        check(rotate(x, degrees), degrees, torch.ones(5))


@pytest.mark.parametrize(("before", "size"), [(12, 5), (5, 12), (9, 3), (7, 7)])
def test_resized_is_the_mean_over_fine_pixels(before, size) -> None:
    x = torch.randint(256, (4, 3, before, before), dtype=torch.uint8)
    # on a grid that both sizes divide, areas are counts
    fine = np.kron(x.numpy(), np.ones((size, size)))
    expected = fine.reshape(4, 3, size, before, size, before).mean((3, 5))
    made = resized(x, size)
    assert made.dtype == torch.uint8 and np.array_equal(made.numpy(), expected.round())
    torch.testing.assert_close(resized(x.rot90(1, (2, 3)), size), made.rot90(1, (2, 3)), atol=0, rtol=0)


@pytest.mark.parametrize("factor", [0.4, 0.77, 1.6])
def test_scaling_is_that_of_pillow_but_for_the_constant_of_the_kernel(factor) -> None:
    image = pytest.importorskip("PIL.Image", reason="compares with pillow: pip install 'ien[plots]'")
    y, x = np.mgrid[:28, :28] - 13.5
    upright = np.uint8(200 * (np.abs(np.hypot(x - 1, 0.7 * y) - 6) < 1.5))

    def pillow(offset):
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
    assert not shift(x[:2], torch.tensor([[10**9, 0], [0, -(10**9)]])).any()


def test_mirror_flips_those_that_are_flagged() -> None:
    x, flags = torch.rand(20, 3, 5, 6), torch.rand(20) < 0.5
    result = mirror(x, flags)
    for image, made, flag in zip(x.numpy(), result.numpy(), flags.tolist(), strict=True):
        assert np.array_equal(made, image[:, :, ::-1] if flag else image)
    assert 0 < int(flags.sum()) < 20


@pytest.mark.parametrize("size", [1, 4, 5, 40])
def test_cutout_fills_a_square_that_ends_at_the_border(size) -> None:
    x, mean, std = torch.rand(30, 3, 9, 12), [0.4467, 0.4398, 0.4066], [0.2603, 0.2566, 0.2713]
    centres = torch.stack([torch.randint(9, (30,)), torch.randint(12, (30,))], 1)
    centres[:2] = torch.tensor([[0, 0], [8, 11]])
    result = cutout(x, centres, size, mean)
    for image, made, (row, column) in zip(x, result, centres.tolist(), strict=True):
        expected, top, left = image.clone(), row - size // 2, column - size // 2
        for i in range(max(top, 0), min(top + size, 9)):
            for j in range(max(left, 0), min(left + size, 12)):
                expected[:, i, j] = torch.tensor(mean)
        assert torch.equal(made, expected)
    assert torch.equal(cutout(x, centres, size, torch.tensor(mean)), result)
    # filled with the mean is filled with zeros after normalising
    normalize = Normalize(mean, std)
    assert torch.equal(normalize(result), cutout(normalize(x), centres, size, 0.0))


CALLS = [
    (rotate, torch.zeros(2)),
    (rotate, torch.tensor([10, 20])),
    (rescale, torch.ones(2), "nearest"),
    (rescale, torch.tensor([1, 2])),
    (shift, torch.zeros(2, 2, dtype=torch.int64)),
    (shift, torch.tensor([[1, 2], [0, -3]])),
    (mirror, torch.tensor([False, False])),
    (mirror, torch.tensor([True, False])),
    (cutout, torch.tensor([[1, 2], [3, 4]]), 4, 7),
]


@pytest.mark.parametrize(("function", "values", "others"), [(f, v, others) for f, v, *others in CALLS])
def test_the_dtype_stays_and_nothing_is_drawn_or_written_to(function, values, others) -> None:
    dtypes = [torch.float16, torch.float32, torch.float64]
    if function not in (rotate, rescale):
        dtypes.append(torch.uint8)
    exact, given, state = (9 * torch.rand(2, 3, 8, 8)).floor(), values.clone(), torch.get_rng_state()
    expected = function(exact, values, *others)
    for dtype in dtypes:
        x = exact.to(dtype)
        made = function(x, values, *others)
        torch.testing.assert_close(made, expected.to(dtype), atol=0.01, rtol=0)
        made.zero_()
        assert torch.equal(x, exact.to(dtype)) and torch.equal(values, given)
        assert function(x[:0], values[:0], *others).shape == (0, 3, 8, 8)
    assert torch.equal(torch.get_rng_state(), state)


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
def test_what_does_not_fit_is_told_in_one_line(function, arguments, match) -> None:
    with pytest.raises(ValueError, match=match) as caught:
        function(*arguments)
    assert "\n" not in str(caught.value)
