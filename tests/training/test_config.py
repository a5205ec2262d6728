"""The configuration of a run: what it refuses, and that nothing is lost on the way to JSON and back."""

import json
from dataclasses import FrozenInstanceError

import pytest

from ien.tracking.training.config import TrackingConfig
from ien.training import Config, changed, differences, entries, flat
from ien.training.task import KINDS, config_from_json, kind_named, kind_of

CONFIG = Config("rot-mnist/ien-r4", "paper")


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"seed": None}, r"seed must be a whole number; got None"),
        ({"seed": True}, r"seed must be a whole number; got True"),
        ({"epochs": "3"}, r"epochs must be a whole number; got '3'"),
        ({"augment": "no"}, r"augment must be true or false; got 'no'"),
        ({"threads": 1.5}, r"threads must be a whole number or none; got 1.5"),
        ({"beta": float("nan")}, r"beta must be 0 to 1e\+09; got nan"),
        ({"group": 4}, r"group must be text; got 4"),
        ({"objective.beta": "1"}, r"beta must be a number such as 0.3 or 1/8; got '1'"),
        ({"betta": 1.0}, r"there is no field 'betta'; did you mean beta"),
        ({"network.beta": 1.0}, r"there is no field 'network.beta'; did you mean objective.beta"),
        ({"rotate.beta": 1.0}, r"there is no field 'rotate.beta'"),
    ],
)
def test_fields_are_checked_however_they_are_given(values, match) -> None:
    with pytest.raises(ValueError, match=match):
        changed(CONFIG, values)
    with pytest.raises(ValueError, match=match):
        Config.of("rot-mnist/ien-r4", "paper", **values)


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_has_one_name_and_a_help_text(kind) -> None:
    config = kind_named(kind).config
    known = entries(config)
    assert list(flat(config("a/b", "small"))) == list(known)
    assert kind_of(config("a/b", "small")) is kind_named(kind)
    for name, entry in known.items():
        assert entry.name == name and "\n" not in entry.help
        assert entry.help or name in ("experiment", "preset")


def test_json_loses_no_bit_and_fields_that_it_lacks_keep_their_default() -> None:
    config = changed(CONFIG, {"width": 1 / 3, "beta": 0.1})
    assert config_from_json(json.loads(json.dumps(config.to_json()))) == config
    content = {"task": "tracking", "experiment": "a/b", "preset": "small", "data": {"pairs": 3}}
    assert config_from_json(content) == TrackingConfig.of("a/b", "small", pairs=3)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ({"betta": 1}, r"unknown field betta; did you mean data"),
        ({"objective": {"betta": 1}}, r"unknown field objective.betta; did you mean beta"),
        ({"objective": 3}, r"objective must be a section with fields of its own; got 3"),
        ({"objective": {"beta": "1"}}, r"beta must be a number"),
        ({"seed": 10**400}, r"seed must be 0 to 9.22337e\+18; got 1000"),
        ({"objective": {"beta": 10**400}}, r"beta must be a number such as 0.3 or 1/8; got 1000"),
        ({"objective": {"action": []}}, r"action must be pooled or regular; got \[\]"),
        ({"data": []}, r"data must be a section with fields of its own; got \[\]"),
        ({"data": {"dataset": 5}}, r"dataset must be text; got 5"),
        ({"task": []}, r"there is no task \[\]"),
        ({"task": "guess"}, r"there is no task 'guess'; choose from classify, folder, segment, tracking"),
    ],
)
def test_json_that_is_no_configuration_is_refused(content, match) -> None:
    with pytest.raises(ValueError, match=match):
        config_from_json({"task": "classify", "experiment": "a/b", "preset": "small", **content})


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ([], r"config must be a section with fields of its own; got \[\]"),
        ("x", r"config must be a section .*; got 'x'"),
        (None, r"config must be a section .*; got None"),
        ({"task": "classify"}, r"no experiment"),
        ({"task": "classify", "experiment": "a/b"}, r"no preset"),
    ],
)
def test_what_is_no_section_at_all_is_refused(content, match) -> None:
    with pytest.raises(ValueError, match=match):
        config_from_json(content)


def test_differences_name_both_values() -> None:
    other = changed(CONFIG, {"beta": 0.0, "seed": 2})
    assert differences(CONFIG, other) == {"seed": (1, 2), "beta": (1.0, 0.0)}
    assert differences(CONFIG, CONFIG) == {}


def test_a_configuration_is_frozen_and_a_section_one_of_its_own_kind() -> None:
    with pytest.raises(ValueError, match=r"data must be a Data; got Network\("):
        Config("rot-mnist/ien-r4", "paper", data=CONFIG.network)
    with pytest.raises(FrozenInstanceError):
        CONFIG.objective.beta = 2.0
