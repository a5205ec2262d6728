"""Versions side by side: differences and errors as loops over numpy arrays give them."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import ien
from ien.exporting.check import compare_versions, difference, run_under_all
from tests.helpers.exports import quarter_turn_error
from tests.helpers.nets import Function

ROT4 = ien.rotation(4)


def compared(versions, images, labels=None, group=ROT4, kinds=("invariant",)):
    ran = {name: (module, run_under_all(module, images, group)) for name, module in versions.items()}
    return compare_versions(ran, images, labels, group, kinds)


def test_views_are_what_the_model_returns_for_each_rotated_image() -> None:
    net = nn.Conv2d(2, 3, 3)
    images = torch.rand(37, 2, 6, 6)  # more than a batch
    found = run_under_all(net, images, ROT4)
    with torch.no_grad():
        for k, (maps,) in enumerate(found):
            torch.testing.assert_close(maps, net(images.rot90(k, (2, 3))))
    assert len(run_under_all(net, images, None)) == 1


def test_the_difference_is_the_largest_over_everything_as_a_share_of_the_largest() -> None:
    expected = [[torch.tensor([[1.0, -4.0]])], [torch.tensor([[2.0, 0.0]])]]
    found = [[torch.tensor([[1.0, -4.0]])], [torch.tensor([[2.0, 0.5]])]]
    assert difference(found, expected) == 0.5 / 4
    assert difference(expected, expected) == 0
    found[1][0][0, 0] = math.nan
    assert math.isnan(difference(found, expected))
    assert difference([[torch.zeros(1, 3)], [torch.zeros(1, 3)]], expected) == math.inf


@pytest.mark.parametrize("maps", [False, True])
def test_errors_are_those_of_a_loop_in_numpy(maps) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU())
    if not maps:
        net += nn.Sequential(nn.Flatten(), nn.Linear(4 * 81, 5))
    images = torch.rand(6, 3, 9, 9)
    errors = compared({"model": net}, images, kinds=["map" if maps else "invariant"])["model"].errors

    def run(x):
        return net(x).detach().numpy()

    for turns, (label, error) in enumerate(errors.items(), start=1):
        assert label == f"{90 * turns}°"
        assert error == pytest.approx(quarter_turn_error(run, images, turns), rel=1e-4) and error > 1e-3


def test_a_version_that_answers_otherwise_shows_in_its_column_alone() -> None:
    scores = Function(lambda x: x.mean((2, 3)))  # of the channels; the same under rotation

    def leaning(x):
        """Favours the class 0 wherever the upper left corner is dark."""
        return scores(x) + torch.where(x[:, :1, 0, 0] < 0.5, 1.0, 0.0) * torch.tensor([1.0, 0, 0])

    images = torch.rand(40, 3, 5, 5)
    labels = scores(images).argmax(1)
    found = compared({"model": scores, "file": Function(leaning)}, images, labels)
    model, file = found["model"], found["file"]
    assert model.difference == 0 and model.same == model.accuracy == model.agreement == 1.0
    assert max(model.errors.values()) < 1e-10 and min(file.errors.values()) > 0.1
    answers = np.stack([leaning(images.rot90(k, (2, 3))).argmax(1).numpy() for k in range(4)])
    assert file.same == file.accuracy == pytest.approx((answers[0] == labels.numpy()).mean())
    assert file.accuracy_under_group == pytest.approx((answers == labels.numpy()).mean())
    assert file.agreement == pytest.approx((answers == answers[0]).all(0).mean())
    assert 0 < file.same < 1 and model.cost == 1.0


def test_classes_are_those_of_images_and_of_pixels_but_not_of_features() -> None:
    images = torch.rand(4, 3, 8, 8)
    for net, kind, same in [
        (nn.Conv2d(3, 2, 1), "map", 1.0),
        (nn.Conv2d(3, 2, 3), "map", None),  # smaller maps are features
        (Function(lambda x: x.mean((1, 2, 3))), "invariant", None),
    ]:
        version = compared({"model": net}, images, kinds=[kind])["model"]
        assert version.same == same and version.accuracy is None


def test_vectors_and_angles_rotate_with_the_image() -> None:
    ramp = torch.linspace(-1, 1, 7)

    def direction(x):
        """From the centre to where it is bright, (B, 2): dx to the right, dy down."""
        weight = x.sum(1)  # (B, H, W)
        return torch.stack([(weight * ramp).sum((1, 2)), (weight * ramp[:, None]).sum((1, 2))], 1)

    def angle(x):
        dx, dy = direction(x).unbind(1)
        return torch.rad2deg(torch.atan2(-dy, dx)) % 360

    images = torch.rand(9, 1, 7, 7)
    for function, kind in [(direction, "vectors"), (angle, "angles")]:
        right = compared({"model": Function(function)}, images, kinds=[kind])["model"]
        wrong = compared({"model": Function(function)}, images, kinds=["invariant"])["model"]
        assert max(right.errors.values()) < 1e-8 and min(wrong.errors.values()) > 0.1


def test_without_a_group_only_differences_are_left() -> None:
    version = compared({"model": nn.Conv2d(1, 2, 3)}, torch.rand(2, 1, 4, 5), group=None, kinds=["map"])
    assert version["model"].errors == {}
