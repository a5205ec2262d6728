"""Models whose weights are parametrized are measured like plain ones with the same weights."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import ien
from tests.helpers.losses import D4, R4, R8, images
from tests.helpers.nets import unsettled
from tests.helpers.parametrized import (
    plain_twin,
    with_pooled_norms,
    with_spectral_norm,
    with_symmetric,
    with_weight_norm,
)

WIDTH = 24


def classifier() -> nn.Sequential:
    """Maps of 9, 5 and 1 pixels for images of 9, and three classes; exact if its kernels are."""
    model = nn.Sequential(
        nn.Sequential(nn.Conv2d(1, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH), nn.ReLU()),
        nn.Conv2d(WIDTH, WIDTH, 3, stride=2, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(WIDTH, 3),
    )
    return unsettled(model).double()


@pytest.mark.parametrize("change", [with_symmetric, with_weight_norm, with_spectral_norm])
@pytest.mark.parametrize("group", [R8, D4], ids=str)
def test_the_report_is_that_of_a_plain_model_with_the_same_weights(change, group) -> None:
    original, x = classifier(), images(6)
    model = change(original)
    before = copy.deepcopy(model.state_dict())
    report = ien.measure(model, x, group, feature_groups=2, batch_size=4)
    assert list(report.layers) == ["0", "1", "2"]
    assert report == ien.measure(plain_twin(model, original), x, group, feature_groups=2, batch_size=4)
    assert parametrize.is_parametrized(model[1], "weight")
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_a_norm_of_another_class_is_measured_under_its_name() -> None:
    model, x = with_pooled_norms(with_symmetric(classifier())), images(6)
    report = ien.measure(model, x, D4, ["0.1", "1"])
    assert list(report.layers) == ["0.1", "1"] and report.layers["1"].relative < 1e-24
    norm = model[0][1]
    repeated = nn.BatchNorm2d(WIDTH).double().eval()
    for name in ("weight", "bias", "running_mean", "running_var"):
        getattr(repeated, name).data = getattr(norm, name).data.repeat_interleave(2)
    model[0][1] = repeated
    assert ien.measure(model, x, D4, ["0.1"]).layers["0.1"].variance == report.layers["0.1"].variance


def test_floors_average_weights_that_are_computed_in_each_pass() -> None:
    original, x = classifier(), images(6, 10)  # a stride that is not exact on 10 pixels
    model = with_weight_norm(original)
    same = plain_twin(model, original)
    averaged = plain_twin(with_symmetric(same), same)
    floor = ien.measure(model, x, R4, ["1"]).layers["1"].floor
    expected = ien.measure(averaged, x, R4, ["1"], floors=False).layers["1"].relative
    assert expected > 1e-3 and floor == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("make", ["by hand", "make_equivariant"])
def test_a_layer_that_was_replaced_shows(make) -> None:
    x, model = images(8), classifier()
    size, action = 1, "pooled"
    if make == "by hand":
        model = with_symmetric(model)
    else:
        ien.make_equivariant(model, "rot4", x)
        size, action = 4, "regular"

    def errors() -> list[float]:
        report = ien.measure(model, x, "rot4", ["0", "1"], size, action=action)
        assert report.output is not None
        return [layer.relative for layer in report.layers.values()] + [report.output.logit_error]

    assert max(errors()) < 1e-20
    model[1] = nn.Conv2d(WIDTH, WIDTH, 3, stride=2, padding=1).double().eval()
    first, second, output = errors()
    assert first < 1e-20 and second > 0.1 and output > 1e-8


def test_a_new_head_of_a_tied_model_shows_in_the_output() -> None:
    x, model = images(8), classifier()
    ien.make_equivariant(model, "rot4", x)
    tied = ien.measure(model, x, "rot4")
    model[4] = nn.Linear(WIDTH, 3).double()
    replaced = ien.measure(model, x, "rot4")
    assert tied.output.logit_error < 1e-20 and replaced.output.logit_error > 1e-8
    scores = [model(view).detach() for view in (x, x.rot90(1, (2, 3)))]
    expected = (scores[1] - scores[0]).square().mean() / scores[0].var(correction=0)
    assert replaced.output.elements["90°"].logit_error == pytest.approx(float(expected), rel=1e-6)
