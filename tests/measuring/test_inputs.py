"""Images come in as a tensor or in batches; what cannot be measured is named at once."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ien
from ien.measuring.inputs import number_of_batches
from tests.helpers.losses import R4, images, net


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"model": lambda x: x}, TypeError, r"must be a torch\.nn\.Module; got a function"),
        ({"images": np.zeros((2, 1, 9, 9))}, TypeError, r"got a ndarray .*torch\.from_numpy"),
        ({"images": 3}, TypeError, r"a tensor \(N, C, H, W\) or an iterable of batches; got a int"),
        ({"images": [{"image": images(2)}]}, TypeError, "a tuple whose first entry is one; got a dict"),
        ({"images": [()]}, TypeError, "a tuple whose first entry is one; got a tuple"),
        ({"labels": [0, 1]}, TypeError, r"labels must be an integer tensor \(N,\).*got a list"),
        ({"labels": torch.zeros(2)}, TypeError, r"an integer tensor .*got torch\.float32"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1; got 0"),
        ({"images": torch.rand(1, 9, 9)}, ValueError, r"shape \(N, C, H, W\); got \(1, 9, 9\)"),
        ({"images": [torch.rand(1, 9, 9)]}, ValueError, r"shape \(N, C, H, W\); got \(1, 9, 9\)"),
        ({"images": torch.full((2, 1, 9, 9), torch.nan)}, ValueError, "images contain NaN"),
        ({"images": [images(2, 9), images(2, 10)]}, ValueError, "same size; got 1×9×9 and 1×10×10"),
        (
            {"images": images(2).repeat(1, 3, 1, 1)},
            ValueError,
            r"fails on images 3×9×9 of torch\.float64 \(RuntimeError.*1 channels.*--size CxHxW",
        ),
        (
            {"model": nn.Sequential(*net(), nn.Flatten(), nn.Linear(7, 2).double())},
            ValueError,
            "fails on images 1×9×9 .*shapes",
        ),
    ],
)
def test_bad_input_says_what_was_given_and_needed(change, error, match) -> None:
    arguments = {"model": net(), "images": images(2), "group": R4, "layers": ["1"], "feature_groups": 4}
    with pytest.raises(error, match=match):
        ien.measure(**arguments | change)


def test_images_are_held_one_batch_at_a_time() -> None:
    references: list[weakref.ref[Tensor]] = []
    most_alive = 0

    def batches() -> Iterator[Tensor]:
        nonlocal most_alive
        for _ in range(6):
            x = images(3)
            references.append(weakref.ref(x))
            yield x
            del x
            most_alive = max(most_alive, sum(reference() is not None for reference in references))

    report = ien.measure(net(), batches(), R4, ["1"], 4)
    assert report.images == 18 and most_alive <= 2


def test_batches_are_counted_where_that_is_possible() -> None:
    assert number_of_batches(images(7), 3) == 3
    assert number_of_batches([images(3), images(4)], 64) == 2
    assert number_of_batches(iter([images(3)]), 64) is None


def test_progress_is_not_printed_on_stdout_and_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    model, x = net(), images(4)
    assert ien.measure(model, x, R4, ["1"], 4, progress=True) == ien.measure(model, x, R4, ["1"], 4)
    assert capsys.readouterr().out == ""
