"""Rows on data from exact symmetry to none: equal compute, equal networks, and each runs end to end."""

import io
import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

import ien
import ien.data
from ien.data import Dataset
from ien.experiments import config, find
from ien.experiments.printed import TABLES
from ien.experiments.queue import plan, run_all, run_name
from ien.experiments.symmetry import DATA, METHODS, ON_A_TENTH
from ien.experiments.tables import print_table
from ien.training import flat
from ien.training.schedule import epoch_length
from tests.helpers.configs import network

pytestmark = pytest.mark.usefixtures("elsewhere")

NAMES = find("symmetry/*")
COUNTS = {"rot-mnist": 12_000, "eurosat": 2000, "uc-merced": 1260, "pbc-blood-cells": 1200, "neu-steel": 900}
"""Training images there are; 10,000 of the others."""
SHAPES = {"rot-mnist": (1, 28, 28), "neu-steel": (1, 17, 17)}
"""Of the images at smoke; (3, 17, 17) of the others."""


def changed(name: str, other: str, preset: str = "small") -> dict[str, Any]:
    """The fields in which one row differs from another, with their values."""
    ours, theirs = (flat(config(f"symmetry/{each}", preset)) for each in (name, other))
    return {field: ours[field] for field in ours if ours[field] != theirs[field] and field != "experiment"}


def test_every_data_set_has_every_method_and_some_on_a_tenth() -> None:
    expected = []
    for data in DATA:
        rows = [method for method in METHODS if (data, method) != ("digits-flip", "e2cnn")]
        rows += [f"{method}-tenth" for method in ON_A_TENTH]
        expected += [f"symmetry/{data}-{row}" for row in rows]
    assert expected == NAMES


@pytest.mark.parametrize("data", DATA)
def test_rows_of_a_data_set_differ_as_their_names_say(data) -> None:
    cnn = f"{data}-cnn"
    without = {} if data != "neu-steel-rot2xflip" else {"weights_of": ""}
    assert changed(f"{data}-cnn-aug", cnn) == {"transform": True, **without}
    weights = {"average": True, "weights_of": f"symmetry/{data}-cnn-aug"}
    assert changed(f"{data}-cnn-aug-tta", f"{data}-cnn-aug") == weights
    assert changed(f"{data}-tied", cnn) == {"tie": "smooth", **without}
    assert changed(f"{data}-slack", f"{data}-tied") == {"slack": "auto"}
    small = config(f"symmetry/{cnn}", "small")
    halved = {"epochs": small.schedule.epochs // 2, "cycle_epochs": small.schedule.cycle_epochs // 2}
    assert changed(f"{data}-ien-beta0.1", cnn) == {"beta": 0.1, "augment": True, **halved, **without}
    if data != "digits-flip":
        model = f"e2cnn-{small.network.model}"
        assert changed(f"{data}-e2cnn", cnn) == {"model": model, **without}
    fewer = {"subset": COUNTS.get(small.data.dataset, 10_000) // 10}
    schedule = small.schedule
    shorter = {"epochs": 3 * schedule.epochs // 10, "cycle_epochs": 3 * schedule.cycle_epochs // 10}
    assert changed(f"{data}-tied-tenth", f"{data}-tied") == {**fewer, **shorter}


@pytest.mark.parametrize("preset", ["paper", "small", "smoke"])
@pytest.mark.parametrize("tenth", [False, True])
def test_all_rows_on_the_same_images_see_as_many_of_them(preset, tenth) -> None:
    for data in DATA:
        seen = set()
        for name in find(f"symmetry/{data}-*"):
            if name.endswith("-tenth") != tenth:
                continue
            row = config(name, preset)
            count = row.data.train_images or COUNTS.get(row.data.dataset, 10_000)
            views = 2 if row.objective.augment else 1
            _, items = epoch_length(row, count, views)
            seen.add(row.schedule.epochs * items * views)
        assert len(seen) == 1, (data, seen)


def test_the_group_plays_no_part_in_plain_steel_so_it_is_trained_once() -> None:
    for end in ("", "-tenth"):
        right, wrong = f"neu-steel-rot2xflip-cnn{end}", f"neu-steel-rot4-cnn{end}"
        assert changed(right, wrong) == {"group": "rot2xflip", "weights_of": f"symmetry/{wrong}"}


@pytest.mark.parametrize("data", ["digits-flip", "eurosat", "neu-steel-rot4", "rot-tim"])
def test_networks_commute_with_quarter_turns_and_flips_at_their_sizes(data) -> None:
    small, paper = (config(f"symmetry/{data}-cnn", preset) for preset in ("small", "paper"))
    net = network(small)
    shapes = [(1, 28, 28)]
    if small.network.model == "resnet18":
        channels = small.data.channels or 3
        shapes = [(channels, size, size) for size in (small.data.image_size, paper.data.image_size)]
    for shape in shapes:
        found = ien.doctor(net, shape)
        assert found.exact, found


def test_channels_are_about_the_same_whatever_the_feature_groups() -> None:
    widths = {}
    for data in DATA:
        net = network(config(f"symmetry/{data}-cnn", "small"))
        taps: Any = net.taps
        last = [layer for layer in net.get_submodule(taps[-1]).modules() if isinstance(layer, nn.Conv2d)][-1]
        first = next(layer for layer in net.modules() if isinstance(layer, nn.Conv2d))
        widths.setdefault(type(net).__name__, set()).add((first.out_channels, last.out_channels))
    assert widths == {"CNN6": {(16, 64)}, "ResNet18": {(16, 128), (16, 136)}}


def test_every_row_stands_in_the_table_once() -> None:
    patterns = [pattern for part in TABLES["symmetry"].parts for pattern in part.patterns]
    for name in NAMES:
        assert sum(fnmatchcase(name, pattern) for pattern in patterns) == 1, name


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("symmetry")


@pytest.fixture(autouse=True)
def noise(monkeypatch) -> None:
    """Random images in place of real ones."""
    rng = torch.Generator().manual_seed(0)
    for source in DATA.values():
        dataset, classes = source.settings["dataset"], source.settings.get("classes", 10)
        shape = SHAPES.get(dataset, (3, 17, 17))
        x = torch.randint(256, (144, *shape), generator=rng).to(torch.uint8)
        y = torch.arange(144) % classes
        data = Dataset(dataset, "generated", x[:128], y[:128], x[128:], y[128:], classes=classes)
        made = ien.data.Loader(lambda *_, data=data, **__: data, lambda *_, data=data, **__: data)
        monkeypatch.setitem(ien.data.DATASETS, dataset, made)


def finished(name: str, folder: Path) -> dict[str, Any]:
    """The record of a row at the preset smoke, at once where there is one."""
    configs = plan([name], "smoke", [1], ["test_images=8"], machine={"threads": 1})
    run_all(configs, folder, folder / "results", "anywhere", console=Console(file=io.StringIO()))
    return json.loads((folder / run_name(configs[0], "anywhere") / "result.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("method", [*METHODS, "cnn-tenth"])
@pytest.mark.parametrize("data", ["digits-30", "digits-flip", "eurosat", "neu-steel-rot2xflip"])
def test_row_runs_end_to_end(data, method, folder) -> None:
    if (data, method) == ("digits-flip", "e2cnn"):
        pytest.skip("e2cnn has no fields for flips without rotations")
    record = finished(f"symmetry/{data}-{method}", folder)
    epochs = 1 if method == "cnn-tenth" else 2
    assert record["images_seen"] == epochs * (128 if data.startswith("digits") else 16)
    exact = method in ("e2cnn", "tied", "slack")  # two epochs of smoke say too little to let go
    worst = max(layer["relative"] for layer in record["layers"].values())
    assert (worst < 1e-6) == exact
    assert 0 <= record["agreement"] <= 1 and 0 <= record["accuracy_under_group"] <= 1
    if exact or method == "cnn-aug-tta":
        assert record["agreement"] == 1 and record["accuracy_under_group"] == record["accuracy"]


@pytest.mark.slow
def test_the_table_shows_data_sets_one_after_another_with_notes_once(tmp_path) -> None:
    folder = tmp_path  # without the records of other tests
    for row in ("digits-30-cnn", "eurosat-cnn-aug-tta"):
        finished(f"symmetry/{row}", folder)
    console = Console(file=io.StringIO(), width=200, record=True)
    print_table("symmetry", folder, console=console)
    text = console.export_text()
    titles = [
        "Digits within ±30°, rot4: Accuracy and agreement",
        "EuroSAT, rot4xflip: Accuracy and agreement",
    ]
    assert text.index(titles[0]) < text.index(titles[1])
    assert {"digits-30-cnn", "eurosat-cnn-aug", "eurosat-cnn-aug-tta"} <= set(text.split())
    assert text.count("cnn: the network as it is") == 1 and "Relative error" not in text
    # the overview comes first, and what is missing last
    overview, rest = text.split("in brackets the agreement", 1)
    assert overview.startswith("Accuracy % (smoke)") and titles[0] in rest
    assert overview.splitlines()[-2].startswith("eurosat")  # digits-30 has changed settings here
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    assert "cnn (13)," in text[text.index(titles[1]) :]
    assert lines[-1].endswith("ien run 'symmetry/*' --preset small --seeds 1-3 runs them")
