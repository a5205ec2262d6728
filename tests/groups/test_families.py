"""The groups a user names: text forms, labels, own functions, and errors that help."""

import math

import numpy as np
import pytest
import torch
from torch import tensor

from ien import custom, group, reflection, rotation, scale
from tests.helpers.groups import D4, FLIP, GROUPS, HIDE, VFLIP, assert_near, assert_same, each
from tests.helpers.pixels import turn


@each("n", range(1, 13))
def test_rotations_are_powers_of_a_generator_of_order_n(n):
    assert len(rotation(n)) == n and len(rotation(n) * FLIP) == 2 * n
    closed_form = torch.from_numpy(np.stack([turn(360 * k / n) for k in range(n + 1)]))
    assert_near(rotation(n).matrices, closed_form[:n], 1e-14)
    generator = rotation(n).matrices[1 % n]
    assert_near(torch.stack([generator.matrix_power(k) for k in range(n + 1)]), closed_form, 1e-12)


@each("moving", [*GROUPS, scale([2]), scale([1e-7, 1e20, 0.1]), scale([0.7]) * D4, rotation(4) * rotation(8)])
def test_text_form_reads_back(moving):
    again = group(str(moving))
    assert (again, str(again)) == (moving, str(moving))
    assert group(moving) is moving


TEXTS = {
    "r8": (rotation(8), "rot8"),
    " R4R ": (D4, "rot4xflip"),
    "C4": (rotation(4), "rot4"),
    "c12": (rotation(12), "rot12"),
    "D4": (D4, "rot4xflip"),
    "d8": (rotation(8) * FLIP, "rot8xflip"),
    "D1": (FLIP, "flip"),
    "D2": (rotation(2) * FLIP, "rot2xflip"),
    "p4": (rotation(4), "rot4"),
    " P4M ": (D4, "rot4xflip"),
    "p6m": (rotation(6) * FLIP, "rot6xflip"),
    "C4xflip": (D4, "rot4xflip"),
    "r4xscale0.5": (rotation(4) * scale([0.5]), "rot4xscale0.5"),
    "scale0.70,1,0.84,0.7": (scale([0.7, 0.84]), "scale0.7,0.84"),
}


@each("text", TEXTS)
def test_text_names_the_group(text):
    assert (group(text), str(group(text))) == TEXTS[text]


LABELS = [
    (rotation(8), ("identity", "45°", "90°", "135°", "180°", "225°", "270°", "315°")),
    (D4, ("identity", "flip", "90°", "90° flip", "180°", "vflip", "270°", "270° flip")),
    (VFLIP, ("identity", "vflip")),
    (rotation(2) * scale([0.7]), ("identity", "×0.7", "180°", "180° ×0.7")),
    (rotation(2) * HIDE, ("identity", "hide left", "180°", "180° hide left")),
    (HIDE * rotation(2), ("identity", "180°", "hide left", "hide left 180°")),
]


@each("moving, labels", LABELS)
def test_labels_and_repr_are_readable(moving, labels):
    assert moving.labels == labels and len(moving) == len(labels)
    assert repr(moving) == f"<Group {moving}: {', '.join(labels)}>"
    assert repr(rotation(360)) == "<Group rot360: identity, 1°, 2°, 3°, 4°, …, 359°>"


MISTAKES = [
    (lambda: group("rota8"), "cannot read group 'rota8'.*did you mean rot8"),
    (lambda: group("flop"), "did you mean flip"),
    (lambda: group("rot4xscale"), "'rot4xscale': 'scale' is none of .*scale<factor>"),
    (lambda: group("rot4*flip"), "join them with x, as in rot4xflip"),
    (lambda: group("rot4x"), "'rot4x': name .* on each side of an x, as in rot4xflip"),
    (lambda: group(""), "cannot read group ''"),
    (lambda: group("rot0"), "at least 1"),
    (lambda: group("D0"), "at least 1"),
    (lambda: group("p5"), r"'p5' is none of .*\(C4, D4, p4 and p4m work too\)"),
    (lambda: group("D4r"), "'d4r' is none of"),
    (lambda: group("scale0.7.1"), r"cannot read group 'scale0\.7\.1': .*0\.7\.1"),
    (lambda: group("scale-1"), "cannot read group 'scale-1'.*positive"),
    (lambda: scale([0.7, 0]), r"positive numbers such as 0\.7, .*got 0\.0 among \[0\.7, 0\.0\]"),
    (lambda: scale([1e-300]), "from 1e-30 to 1e30; got 1e-300"),
    (lambda: scale([-0.5]), "positive"),
    (lambda: scale([math.nan]), "positive.*got nan"),
    (lambda: scale([math.inf]), "positive.*got inf"),
    (lambda: scale([1, 1.0]), r"a factor other than 1 .*got \[1\.0, 1\.0\]"),
    (lambda: scale([]), r"a factor other than 1 .*got \[\]"),
    (lambda: rotation(0), "at least 1; got 0"),
    (lambda: rotation(99_999_999), "at most 1024 elements; got rot99999999"),
    (lambda: group("C" + "9" * 400), r"at most 1024 elements; got rot999.*\.\.\."),
    (lambda: rotation(33) * rotation(32), "at most 1024 elements; rot33 times rot32 has 33 × 32"),
    (lambda: scale([1 + k / 5000 for k in range(2000)]), "at most 1024 elements; got 1999 scale factors"),
    (lambda: group("flipx" * 100_000), "such as rot4xflip; got 500000 characters"),
    (lambda: rotation(2.5), r"whole number.*got 2\.5"),
    (lambda: reflection("diagonal"), "'horizontal'.*'vertical'; got 'diagonal'"),
    (lambda: custom("c", {}, "same"), "'c' needs at least one action"),
    (lambda: custom("c", {"a": torch.neg, "b": torch.neg}, {"a": "same"}), r"\['a', 'b'\].*\['a'\]"),
    (lambda: custom("c", {"a": torch.neg}, {"a": "same", "z": "same"}), r"\['a'\].*\['a', 'z'\]"),
    (lambda: custom("c", {"a": torch.neg}, "sane"), "'a'.*'identity', 'same' or a function; got.*'sane'"),
    (lambda: custom("c", {"a": 3}, "identity"), "'a'.*must be a function.*got 3"),
]


@each("make, fragment", MISTAKES)
def test_wrong_arguments_get_an_error_that_helps(make, fragment):
    with pytest.raises(ValueError, match=fragment):
        make()


DECLARED = [("identity", torch.clone), ("same", torch.neg), ({"negate": "identity"}, torch.clone)]
DECLARED += [({"negate": "same"}, torch.neg), ({"negate": torch.exp}, torch.exp)]


@each("feature_actions, on_features", DECLARED)
def test_custom_acts_on_images_and_as_declared_on_features(feature_actions, on_features):
    negative = custom("negative", {"negate": torch.neg}, feature_actions)
    x, g = torch.randn(4, 2, 3, 5), tensor([1, 0, 1, 0])
    chosen = g.bool().view(-1, 1, 1, 1)
    assert_same(negative.act(x, g), torch.where(chosen, -x, x))
    assert_same(negative.act_on_features(x, g), torch.where(chosen, on_features(x), x))


def test_custom_has_no_inverse_and_no_matrix():
    x, product = torch.rand(1, 1, 4, 4), rotation(4) * HIDE
    with pytest.raises(TypeError, match="feature_actions"):  # nor a default for features
        custom("negative", {"negate": torch.neg})
    with pytest.raises(ValueError, match=r"'90° hide left' .*black box.*no inverse"):
        product.act(x, tensor([3]), inverse=True)
    with pytest.raises(ValueError, match=r"'hide left' .*no matrix"):
        _ = product.matrices
    assert_same(product.act(x, tensor([2]), inverse=True), torch.rot90(x, -1, (-2, -1)))


@each("action, got", [(lambda x: x[..., :2], r"\(1, 2, 4, 2\)"), (lambda x: None, "NoneType")])
def test_custom_action_must_keep_the_shape(action, got):
    with pytest.raises(ValueError, match=rf"'crop' must keep the shape \(1, 2, 4, 4\); it returned {got}"):
        custom("c", {"crop": action}, "same").act(torch.rand(2, 2, 4, 4), tensor([0, 1]))


def test_one_function_in_place_of_named_ones_is_named() -> None:
    with pytest.raises(TypeError, match=r"a dict of functions by name, .*; got a function"):
        custom("blur", lambda x: x, feature_actions="identity")  # type: ignore[arg-type]
