"""Images come in as a tensor or in batches; what cannot be measured is named at once."""

import weakref

import numpy as np
import pytest
import torch
from torch import nn

import ien
from ien.measuring.inputs import number_of_batches
from tests.helpers.losses import R4, R8, images, net
from tests.helpers.nets import Function, classifier


def infinite_at_zero(x):
    """Harmless on the images until a rotation fills a corner with zeros."""
    return x + x.abs().amin((2, 3), keepdim=True).log()


def then(function):
    """A model whose layer '1' returns what the function makes of images, in four channels."""
    return nn.Sequential(nn.Identity(), Function(lambda x: function(x).repeat(1, 4, 1, 1)))


WIDER = nn.Sequential(*net(), nn.Flatten(), nn.Linear(7, 2).double())
TYPES = [
    ({"model": lambda x: x}, r"must be a torch\.nn\.Module; got a function"),
    ({"images": np.zeros((2, 1, 9, 9))}, r"got a numpy array .*torch\.from_numpy"),
    ({"images": 3}, r"a tensor \(N, C, H, W\) or an iterable of batches; got an int"),
    ({"images": [{"image": images(2)}]}, "a tuple whose first entry is one; got a dict"),
    ({"images": [()]}, "a tuple whose first entry is one; got a tuple"),
    ({"labels": [0, 1]}, r"labels must be an integer tensor \(N,\).*got a list"),
    ({"labels": torch.zeros(2)}, r"an integer tensor .*got torch\.float32"),
]
VALUES = [
    ({"batch_size": 0}, "batch_size must be at least 1; got 0"),
    ({"images": torch.rand(1, 9, 9)}, r"shape \(N, C, H, W\); got \(1, 9, 9\)"),
    ({"images": [torch.rand(1, 9, 9)]}, r"shape \(N, C, H, W\); got \(1, 9, 9\)"),
    ({"images": torch.full((2, 1, 9, 9), torch.nan)}, "images contain NaN"),
    ({"images": [images(2, 9), images(2, 10)]}, "same size; got 1×9×9 and 1×10×10"),
    (
        {"images": images(2).repeat(1, 3, 1, 1)},
        r"on images 3×9×9 of torch\.float64 .*1 channels.*--size CxHxW",
    ),
    ({"model": WIDER}, "fails on images 1×9×9 .*shapes"),
    ({"images": []}, "at least two images.*got none"),
    ({"images": torch.zeros(0, 1, 9, 9)}, "at least two images.*got none"),
    ({"images": images(1)}, "at least two images, better a hundred.*got one"),
    ({"model": then(lambda x: x * torch.nan)}, "layer '1' returned NaN or infinite values, so"),
    ({"model": then(infinite_at_zero), "group": R8}, "layer '1' returned .* for images under '45°'"),
    ({"layers": []}, "at least one layer"),
    ({"feature_groups": {"1": 5}}, "layer '1': 8 channels cannot be split into feature groups 5"),
    ({"group": ien.rotation(1)}, "only the identity, so there is nothing to measure"),
    ({"action": "both"}, "both"),
]
PAIR = nn.Sequential(*net(), Function(lambda h: (h, h)))
LABELS = [
    (classifier(5), torch.zeros(1).long(), r"one label per image; got \(2, 5\) and labels \(1,\)"),
    (classifier(5), torch.zeros(3).long(), "one entry per image; got 3 labels for 2 images"),
    (classifier(5), torch.zeros(2, 1).long(), r"got \(2, 5\) and labels \(2, 1\)"),
    (classifier(5), torch.full((2,), 5), "labels must be 0 to 4 for scores of 5 classes; got 5 to 5"),
    (classifier(1), torch.full((2,), 2), "labels must be 0 to 1 for scores of 2 classes; got 2 to 2"),
    (net(), torch.zeros(2).long(), r"returns \(B, classes\), and one label per image; got \(2, 8, "),
    (PAIR, torch.zeros(2).long(), "got a tuple and labels"),
]
CHOSEN = {"layers": None, "feature_groups": 1}
VALUES += [({"model": model, "labels": labels} | CHOSEN, match) for model, labels, match in LABELS]
MISTAKES = [(TypeError, *row) for row in TYPES] + [(ValueError, *row) for row in VALUES]


@pytest.mark.parametrize(("error", "change", "match"), MISTAKES)
def test_bad_input_says_what_was_given_and_needed(error, change, match) -> None:
    arguments = {"model": net(), "images": images(2), "group": R4, "layers": ["1"], "feature_groups": 4}
    with pytest.raises(error, match=match):
        ien.measure(**arguments | change)


def test_a_map_too_small_for_every_element_is_named_with_the_first_batch() -> None:
    def batches():
        yield images(2)
        pytest.fail("a second batch was asked for")

    model = nn.Sequential(*net(), nn.AdaptiveAvgPool2d(2))
    with pytest.raises(ValueError, match=r"2×2 map of layer '4' is too small for scale0\.5.*milder group"):
        ien.measure(model, batches(), "scale0.5,0.9", ["3", "4"])


def test_images_are_held_one_batch_at_a_time() -> None:
    references, most_alive = [], 0

    def batches():
        nonlocal most_alive
        for _ in range(6):
            x = images(3)
            references.append(weakref.ref(x))
            yield x
            del x
            most_alive = max(most_alive, sum(reference() is not None for reference in references))

    report = ien.measure(net(), batches(), R4, ["1"], 4)
    assert report.images == 18 and most_alive <= 2


def test_batches_are_counted_and_progress_goes_to_stderr_and_changes_nothing(capsys) -> None:
    assert number_of_batches(images(7), 3) == 3
    assert number_of_batches([images(3), images(4)], 64) == 2
    assert number_of_batches(iter([images(3)]), 64) is None
    model, x = net(), images(4)
    assert ien.measure(model, x, R4, ["1"], 4, progress=True) == ien.measure(model, x, R4, ["1"], 4)
    assert capsys.readouterr().out == ""
