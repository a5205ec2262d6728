"""Crops: every pixel as a slow loop says, the mean colour outside, and the side of an exemplar."""

import math

import numpy as np
import pytest
import torch

from ien.tracking.data.crops import crop, exemplar_side, mean_colour

pytestmark = pytest.mark.usefixtures("one_thread")


def noise(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, columns, 3), dtype=np.uint8)


def slow_crop(image: np.ndarray, centre: tuple[float, float], side: float, size: int) -> np.ndarray:
    """Pixel by pixel: the mean, under a triangle, of a plane that has the image's mean around the image."""
    rows, columns = image.shape[:2]
    fill = image.reshape(-1, 3).mean(0)
    step = side / size
    reach = max(1.0, step)
    result = np.empty((3, size, size))
    for i in range(size):
        for j in range(size):
            x, y = (c + (k - (size - 1) / 2) * step for c, k in zip(centre, (j, i), strict=True))
            total, weight = np.zeros(3), 0.0
            for v in range(math.floor(y - reach), math.ceil(y + reach) + 1):
                for u in range(math.floor(x - reach), math.ceil(x + reach) + 1):
                    w = max(0.0, 1 - abs(x - u) / reach) * max(0.0, 1 - abs(y - v) / reach)
                    total += w * (image[v, u] if 0 <= v < rows and 0 <= u < columns else fill)
                    weight += w
            result[:, i, j] = total / weight / 255
    return result


@pytest.mark.parametrize(
    ("centre", "side"),
    [
        ((10.0, 7.0), 9.0),  # pixel upon pixel
        ((9.3, 6.6), 4.7),  # enlarged
        ((9.3, 6.6), 13.3),  # shrunk
        ((0.4, 14.2), 11.0),  # over a corner
        ((8.0, 8.0), 70.0),  # shrunk much, with borders all around
        ((-40.0, 5.0), 12.0),  # all outside
        ((10.5, 7.5), 0.01),  # within a pixel
    ],
)
def test_every_pixel_is_what_a_loop_over_pixels_says(centre, side) -> None:
    image = noise(15, 20)
    found = crop(image, centre, [side], 9)[0].double().numpy()
    assert np.abs(found - slow_crop(image, centre, side, 9)).max() < 1e-6


def test_many_crops_at_once_are_each_one_alone() -> None:
    image = noise(30, 40)
    centres, sides = np.array([[5.2, 6.1], [33.0, 2.0], [20.0, 15.5], [-9.0, 50.0]]), [12.0, 40.0, 3.3, 25.0]
    together = crop(image, centres, sides, 11)
    assert together.shape == (4, 3, 11, 11) and together.dtype == torch.float32 and together.is_contiguous()
    for centre, side, found in zip(centres, sides, together, strict=True):
        assert torch.allclose(found, crop(image, centre, [side], 11)[0], atol=1e-6)


@pytest.mark.parametrize("side", [20.25, 51.5, 118.75])
def test_squares_between_pixels_are_as_pillow_resizes_them(side) -> None:
    images = pytest.importorskip("PIL.Image")
    image, centre, size = noise(160, 180), np.array([88.3, 76.9]), 40
    box = (*(centre + 0.5 - side / 2), *(centre + 0.5 + side / 2))  # pillow counts from the pixel's corner
    picture = images.fromarray(image[..., 1].astype(np.float32))
    resized = np.asarray(picture.resize((size, size), images.Resampling.BILINEAR, box=box)) / 255
    found = crop(image, centre, [side], size)[0, 1].numpy()
    assert np.abs(found - resized).max() < 2e-5  # its boxes are float32


def test_outside_is_the_mean_colour_or_the_one_that_is_given() -> None:
    image = noise(20, 30)
    image[..., 0] //= 3
    outside = crop(image, (-100.0, 0.0), [10], 5)[0]
    assert np.allclose(outside.mean((1, 2)), mean_colour(image) / 255, atol=1e-6)
    assert np.allclose(mean_colour(image), image.reshape(-1, 3).mean(0)) and outside.std((1, 2)).max() == 0
    given = crop(image, (-100.0, 0.0), [10], 5, fill=(255, 0, 51))
    assert given[0, :, 2, 2].tolist() == pytest.approx([1, 0, 0.2])


def test_values_stay_between_0_and_1_and_read_only_images_are_taken() -> None:
    image = noise(40, 40)
    image.setflags(write=False)
    flipped = crop(image[:, ::-1], (19.5, 19.5), [60.0], 10)
    assert torch.allclose(flipped, crop(image, (19.5, 19.5), [60.0], 10).flip(3), atol=1e-6)
    huge = crop(image, (15.0, 20.0), [1e9, 1e-9], 9)
    assert bool(huge.isfinite().all()) and 0 <= float(huge.min()) and float(huge.max()) <= 1
    white = crop(np.full((20, 20, 3), 255, np.uint8), (9.7, 3.1), [13.3], 31)
    assert float(white.max()) <= 1 and torch.allclose(white, torch.ones(()), atol=1e-6)


@pytest.mark.parametrize(
    ("w", "h", "side"), [(30, 30, 60), (10, 40, math.sqrt(35 * 65)), (1, 7, math.sqrt(5 * 11))]
)
def test_the_side_of_an_exemplar_has_a_closed_form(w, h, side) -> None:
    assert float(exemplar_side([3, 4, w, h])) == pytest.approx(side)
    assert exemplar_side([[3, 4, w, h]] * 2, context=0).tolist() == pytest.approx([math.sqrt(w * h)] * 2)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((8, 8), np.uint8), "grey"),
        (np.zeros((8, 8, 1), np.uint8), "grey"),
        (np.zeros((8, 8, 4), np.uint8), r"image\[..., :3\]"),
        (np.zeros((8, 8, 3)), "float64"),
        (np.zeros((0, 8, 3), np.uint8), "shape"),
        (np.zeros((3, 8, 8), np.uint8), "shape"),
        (torch.zeros(8, 8, 3), "Tensor"),
    ],
)
def test_other_images_are_refused_with_what_to_do(image, message) -> None:
    with pytest.raises(ValueError, match=message):
        crop(image, (3, 3), [4], 4)
    if message == "grey":  # the remedy that it names
        assert crop(np.repeat(image.reshape(*image.shape[:2], 1), 3, 2), (3, 3), [4], 4).shape == (1, 3, 4, 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sides": 4.0}, "sides"),
        ({"centres": [(3, 3)], "sides": [4.0, 5.0]}, "centres"),
        ({"sides": [0.0]}, "above 0"),
        ({"centres": (3, np.nan)}, "finite"),
        ({"sides": [np.inf]}, "finite"),
        ({"size": 0}, "1 pixel or more; got 0"),
        ({"fill": (0, 0, 300)}, "fill"),
    ],
)
def test_impossible_squares_are_refused(changes, message) -> None:
    with pytest.raises(ValueError, match=message):
        crop(noise(8, 8), **({"centres": (3, 3), "sides": [4.0], "size": 4} | changes))
