"""What is given to a score: bad input is told in one line, good input is left as it is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import ien.tracking
from ien.tracking import overlap, score
from tests.tracking.test_score import NAN, boxes


def test_bad_input_is_told_with_what_is_needed() -> None:
    good = boxes(15, 5)
    holed, negative, endless = good.copy(), good.copy(), good.copy()
    holed[3, 1], negative[2, 2], endless[4, 0] = NAN, -1, math.inf
    wrong: dict[str, tuple[Any, ...]] = {
        "predicted has NaN in frame 4: a tracker gives a box for every frame": (holed, good),
        "predicted has 5 frames and truth 4: they must be of the same frames (maybe predicted[:4])": (
            good,
            good[:4],
        ),
        "predicted has 4 frames and truth 5: they must be of the same frames (maybe truth[:4])": (
            good[:4],
            good,
        ),
        "predicted has a negative width or height in frame 3": (negative, good),
        "truth has a negative width or height in frame 3": (good, negative),
        "truth has infinite numbers in frame 5": (good, endless),
        "predicted has shape (5, 3): boxes are rows of x, y, w, h, shape (T, 4)": (good[:, :3], good),
        "predicted has shape (4,): (T, 4) is needed": (good[0], good[0]),
        "truth has shape (1, 5, 4): (T, 4) is needed": (good, good[None]),
        "predicted has shape (0, 4): (T, 4) is needed": (good[:0], good[:0]),
        "predicted are no boxes": (["a box"], good),
        "truth has no frame with a box of some area": (good, np.zeros((5, 4))),
        "angles has 4 frames and truth 5": (good, good, np.zeros(4), np.zeros(5)),
        "true_angles has shape (5, 1): (T,) is needed": (good, good, np.zeros(5), np.zeros((5, 1))),
        "angles has a value that is not finite in frame 2": (good, good, [0, NAN, 0, 0, 0], np.zeros(5)),
        "true_angles has a value that is not finite in frame 1": (good, good, None, [math.inf, 0, 0, 0, 0]),
        "seconds has 6 frames and truth 5": (good, good, None, None, np.ones(6)),
        "seconds must be how long each frame took": (good, good, None, None, np.zeros(5)),
        "seconds must be how long each": (good, good, None, None, [1, 1, -1, 1, 1]),
    }
    for message, arguments in wrong.items():
        with pytest.raises(ValueError) as error:
            score(*arguments)
        assert message in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(ValueError, match="b has shape"):
        overlap(good, good[:, :2])


def test_nothing_given_is_written_to() -> None:
    truth, predicted = boxes(16), boxes(17)
    before = truth.copy(), predicted.copy()
    angles = np.arange(60.0)
    score(predicted, truth, angles, angles + 5)
    assert np.array_equal(truth, before[0]) and np.array_equal(predicted, before[1])
    assert np.array_equal(angles, np.arange(60.0))


def test_the_package_offers_the_functions_themselves() -> None:
    assert ien.tracking.score is score and callable(ien.tracking.overlap)
