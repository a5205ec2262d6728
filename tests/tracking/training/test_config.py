"""Configurations of trackers: what they refuse, and in how many rotations they look for a target."""

import pytest

from ien.training import change
from tests.helpers import toy_clips


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"dataset": "rot-mnist"}, "a tracker is trained on clips, got10k or synthetic-clips; got rot-mnist"),
        ({"model": "cnn6"}, "there is no model 'cnn6'; choose from siamfc, re-siamfc"),
        ({"backbone": "alexnet"}, "there is no backbone 'alexnet'; did you mean alexnet-v"),
        ({"rotate": True, "cutout": 3}, "rotate and cutout would do nothing"),
        ({"average": True}, "average would do nothing: .* leave it out"),
        ({"orbits": True}, "orbits would do nothing"),
        ({"subset": 2}, "subset would do nothing"),
        ({"workers": -1}, "workers must be 0 to 4096; got -1"),
        ({"filter": "none"}, "filter must be published or wide; got 'none'"),
        ({"model": "re-siamfc", "feature_groups": "1"}, "re-siamfc under rot4 needs feature groups of 4"),
        (
            {"pretrain_epochs": 2},
            r"pretrain_epochs \(2\) must leave some of the 2 epochs .*pretrain_epochs=1",
        ),
        ({"pretrain_epochs": -1}, "pretrain_epochs must be 0 to"),
        ({"pretrain_clips": 401}, "pretrain_clips must be 2 to 400; got 401"),
        ({"templates": 0}, "templates must be 1 to"),
    ],
)
def test_settings_that_no_tracker_has_are_refused(changes, match) -> None:
    with pytest.raises(ValueError, match=match):
        toy_clips.config(**changes)


@pytest.mark.parametrize(
    ("group", "feature_groups", "rotations"),
    [("rot4", "1", 1), ("rot4", "4", 4), ("rot4", "4-2-1", 4), ("rot8", "8", 8), ("rot4xflip", "8", 4)],
)
def test_rotations_are_those_of_the_group(group, feature_groups, rotations) -> None:
    assert toy_clips.config(group=group, feature_groups=feature_groups).rotations == rotations


@pytest.mark.parametrize("feature_groups", ["1", "4"])
def test_templates_win_over_the_group(feature_groups) -> None:
    assert toy_clips.config(feature_groups=feature_groups, templates=8).rotations == 8


def test_the_steerable_tracker_is_exported_to_the_plain_one() -> None:
    config = toy_clips.config(model="re-siamfc", beta=0.0)
    assert config.network.steerable and config.network.plain_model == "siamfc"
    assert change(config, ["pairs=none", "workers=none"]).data.pairs is None
