"""Colours: one for each method, and different ones in one figure."""

import pytest

from ien.experiments import names
from ien.report.palette import COLOURS, METHODS, colour_of, colours_of, method_of


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("rot-mnist/cnn", "CNN"),
        ("cnn-aug small seed 1", "CNN-aug"),
        ("vgg-r8-4-2-1-het-ien", "Het-IEN"),
        ("ien-r4-beta0.1 (epochs=3)", "IEN"),
        ("study/n500-e2cnn", "E2CNN"),
        ("resnet18-r8-equivariant-2x", "equivariant"),
        ("study/n500-free", "equivariant"),
        ("study/tied", "equivariant"),
        ("symmetry/digits-flip-cnn", "CNN"),
        ("neu-steel-rot2xflip-slack-tenth", "slack"),
        ("symmetry/rot-tim-tied", "equivariant"),
        ("study/regular-start-all-beta1", None),  # not tied in training
        ("28-ss-cnn", "SS-CNN"),
        ("tracking/re-siamfc", "E2CNN"),
        ("het-siamfc", "Het-IEN"),
        ("alien", None),
    ],
)
def test_names_tell_the_method(name, method) -> None:
    assert method_of(name) == method
    assert colour_of(name) == METHODS.get(method or "", COLOURS["black"])


def test_every_row_of_the_paper_has_a_method() -> None:
    assert [name for name in names() if method_of(name) is None and not name.startswith("study/")] == []


def test_colours_in_one_figure_differ_and_the_first_of_a_method_is_its_own() -> None:
    given = ["ien-r4", "ien-r8", "cnn", "mine", "yours", "ien-r2"]
    colours = colours_of(given)
    assert len(set(colours)) == len(given)
    assert colours[0] == METHODS["IEN"] and colours[2] == METHODS["CNN"]
    assert len(colours_of(["ien"] * 9)) == 9  # more than there are shades


def test_methods_have_different_colours() -> None:
    assert len(set(METHODS.values())) == len(METHODS)
