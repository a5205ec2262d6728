"""Names of layers: which feature groups and weights each gets."""

import pytest

from ien import FeatureGroups
from ien.loss.layers import per_layer

FOUR, MIX = FeatureGroups.of(4), FeatureGroups.of("4-2-1")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (4, {"a": FOUR, "b.c": FOUR}),
        ("4-2-1", {"a": MIX, "b.c": MIX}),
        ({4: 0.5, 2: 0.25, 1: 0.25}, {"a": MIX, "b.c": MIX}),
        (MIX, {"a": MIX, "b.c": MIX}),
        ({"b.c": "4-2-1", "a": 4}, {"a": FOUR, "b.c": MIX}),
        ({"b.c": "4-2-1", "": 4}, {"a": FOUR, "b.c": MIX}),
    ],
)
def test_each_layer_gets_its_own_feature_groups_or_those_of_the_rest(given, expected) -> None:
    result = per_layer(given, iter(["a", "b.c"]))
    assert list(result.items()) == list(expected.items())


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({4: 0.5, "a": 4}, TypeError, r"not both; got the keys \[4, 'a'\]"),
        ({"b": 4, "c": 2}, KeyError, "no entry for layer 'a'; it has b, c"),
        (
            {"a": 4, "stem": 4, "stme": 4},
            KeyError,
            r"'stme', which is not a chosen layer; did you mean stem\?",
        ),
        ({"a": 4, "stem": 4, "zzz": 4}, KeyError, "'zzz', which is not a chosen layer; choose from a, stem"),
        ({"a": "4-4", "stem": 4}, ValueError, "different sizes"),
    ],
)
def test_feature_groups_that_do_not_fit_the_layers_are_errors(given, error, match) -> None:
    with pytest.raises(error, match=match):
        per_layer(given, ["a", "stem"])
