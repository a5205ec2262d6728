"""Patterns that rotate by any angle, against closed forms and rotated pixels."""

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from ien.groups.similarity import Similarity
from ien.tying.harmonics import harmonics, orthonormal, smoothing


@pytest.mark.parametrize("size", [2, 3, 5, 7])
def test_patterns_rotate_as_pixels_do(size) -> None:
    upright = harmonics(size)
    for quarters in range(4):
        for flip, patterns in enumerate([upright, upright.flip(-1)]):
            rotated = harmonics(size, Similarity(Fraction(quarters, 4), bool(flip)))
            torch.testing.assert_close(rotated, patterns.rot90(quarters, (-2, -1)))


def test_a_rotated_pattern_is_its_closed_form() -> None:
    rotated = harmonics(5, Similarity(Fraction(1, 10)))  # 36°
    for row, y in enumerate(range(2, -3, -1)):
        for column, x in enumerate(range(-2, 3)):
            angle = math.atan2(y, x) - math.radians(36)
            ring = math.exp(-((math.hypot(x, y) - 1) ** 2) / (2 * 0.6**2))
            expected = [ring]
            for q in (1, 2):
                expected += [ring * bool(x or y) * f(q * angle) for f in (math.cos, math.sin)]
            # the outermost ring has 1 + 2 · 2 patterns; then comes the ring of radius 1
            assert rotated[5:10, row, column].tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_smoothing_is_least_squares_and_commutes_with_rotations(size: int) -> None:
    matrix = smoothing(size)
    kernels = torch.randn(6, size, size, dtype=torch.float64)

    def smoothed(kernels: Tensor) -> Tensor:
        return (kernels.flatten(1) @ matrix).view_as(kernels)

    patterns = harmonics(size).flatten(1).T  # (pixels, patterns)
    found = torch.linalg.lstsq(patterns, kernels.flatten(1).T, driver="gelsd").solution
    torch.testing.assert_close(smoothed(kernels), (patterns @ found).T.reshape(kernels.shape))
    torch.testing.assert_close(smoothed(kernels.rot90(1, (1, 2))), smoothed(kernels).rot90(1, (1, 2)))
    torch.testing.assert_close(smoothed(kernels.flip(2)), smoothed(kernels).flip(2))


def test_orthonormal_rows_span_the_same_and_drop_what_depends() -> None:
    rows = torch.randn(3, 7, dtype=torch.float64)
    found = orthonormal(torch.cat([rows, rows.sum(0, keepdim=True)]))
    torch.testing.assert_close(found @ found.T, torch.eye(3, dtype=torch.float64))
    torch.testing.assert_close(rows @ found.T @ found, rows)


@pytest.mark.parametrize("strengths", [(1, 1, 1, 1), (3, 2, 2, 1), (2, 2, 1, 1), (4, 3, 2, 1)])
def test_the_same_space_has_the_same_orthonormal_rows_whatever_its_rows_are(strengths) -> None:
    numbers = torch.Generator().manual_seed(0)
    space = torch.linalg.qr(torch.randn(9, 4, generator=numbers, dtype=torch.float64)).Q.T  # (4, 9)
    rows = torch.tensor(strengths, dtype=torch.float64)[:, None] * space
    expected = orthonormal(rows)
    assert torch.allclose(expected @ expected.T, torch.eye(4, dtype=torch.float64))
    assert torch.allclose(expected.T @ expected, space.T @ space)
    for _ in range(5):
        turn = torch.linalg.qr(torch.randn(4, 4, generator=numbers, dtype=torch.float64)).Q
        # other rows with the same strengths in the same directions, as rounding would choose them
        assert torch.allclose(orthonormal(turn @ rows), expected, atol=1e-9)


def test_no_rows_have_no_orthonormal_ones() -> None:
    assert orthonormal(torch.zeros(3, 5, dtype=torch.float64)).shape == (0, 5)
