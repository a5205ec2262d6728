"""All experiments by name: patterns, presets, and what is said about names that do not exist."""

import json
from pathlib import Path

import pytest

from ien.experiments import PRESETS, config, deviations, find, names, paper
from ien.experiments.catalogue import CATALOGUE
from ien.training import MACHINE, flat
from ien.training.task import config_from_json

RESULTS = Path(__file__).parents[2] / "results"


def test_names_and_patterns_are_found_once_and_in_the_order_asked() -> None:
    assert find("rot-mnist/het-ien", "rot-mnist/*ien", "rot-mnist/cnn*") == [
        f"rot-mnist/{row}" for row in ("het-ien", "cnn", "cnn-aug", "cnn-aug-tta")
    ]
    assert find("*") == names()


def test_a_table_in_place_of_its_experiments_is_named() -> None:
    with pytest.raises(ValueError, match=r"'rot-mnist'; for all \d+ of that table write 'rot-mnist/\*'"):
        find("rot-mnist")


@pytest.mark.parametrize(
    ("name", "preset", "match"),
    [
        ("ien-r4-beta0.2", "small", r"no experiment 'ien-r4-beta0\.2'; did you mean rot-mnist/ien-r4-beta"),
        ("zzz", "small", "no experiment 'zzz'; choose from rot-mnist/cnn, "),
        ("rot-mnist/*", "small", "is a pattern; name one experiment, such as rot-mnist/cnn"),
        ("rot-mnist/cnn", "smal", "no preset 'smal'; choose from paper, small, demo, smoke"),
        (
            "rot-mnist/cnn",
            "medium",
            "rot-mnist has no preset 'medium'; choose from paper, small, demo, smoke",
        ),
        ("tracking/siamfc", "midi", "no preset 'midi'; choose from paper, medium, small, demo, smoke"),
    ],
)
def test_a_name_that_is_none_says_the_nearest(name, preset, match) -> None:
    with pytest.raises(ValueError, match=match):
        config(name, preset)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_row_has_a_configuration_that_survives_json(preset) -> None:
    for name in names():
        if preset not in CATALOGUE[name.split("/")[0]].presets:
            continue
        settings = config(name, preset)
        assert (settings.experiment, settings.preset) == (name, preset)
        assert config_from_json(json.loads(json.dumps(settings.to_json()))) == settings


def test_only_tracking_has_a_preset_medium() -> None:
    assert [name for name, table in CATALOGUE.items() if "medium" in table.presets] == ["tracking"]
    for table in CATALOGUE.values():
        assert set(PRESETS) - set(table.presets) <= {"medium"}


def test_every_row_says_how_it_deviates_and_the_paper_has_no_other_rows() -> None:
    assert all(deviations(name) for name in names())
    for table in CATALOGUE:
        assert set(paper(table)) <= set(names())


def test_recorded_runs_are_those_of_the_rows_of_today() -> None:
    """A field that a record lacks has the value of its time; the queue would skip every one of them."""
    paths = sorted(RESULTS.rglob("*.json"))
    assert len(paths) > 50
    for path in paths:
        record = json.loads(path.read_text())
        found = flat(config_from_json(record["config"]))
        wanted = {**flat(config(found["experiment"], found["preset"])), **record["changes"]}
        different = {name for name in wanted if wanted[name] != found[name]}
        assert different <= {"seed", *MACHINE}, path
