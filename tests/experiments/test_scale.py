"""Scale-MNIST, STL-10, rotated and scaled digits: the rows are the paper's, and each runs end to end."""

import json
import math
from pathlib import Path

import pytest

import ien
from ien.experiments import config, deviations, find, paper
from ien.training import flat
from ien.training.network import objective_of
from tests.helpers.configs import differing, distinct, network
from tests.helpers.shell import invoke
from tests.helpers.tiny import make_stl10

pytestmark = pytest.mark.usefixtures("elsewhere")

ALL = find("scale-mnist/*", "stl10/*", "rot-scale-mnist/*")
ERRORS = {
    **{"scale-mnist/28-ss-cnn": 2.10, "scale-mnist/28-dss": 1.95},
    **{"scale-mnist/28-ss-cnn-published": 2.10, "scale-mnist/56-ss-cnn-published": 1.76},
    "stl10/ss-cnn-published": 25.47,
    **{"scale-mnist/28-sesn-vector": 1.76, "scale-mnist/28-ien": 1.78},
    **{"scale-mnist/56-ss-cnn": 1.76, "scale-mnist/56-dss": 1.57},
    **{"scale-mnist/56-sesn-vector": 1.42, "scale-mnist/56-ien": 1.33},
    **{"stl10/ss-cnn": 25.47, "stl10/dss": 11.28, "stl10/sesn-a": 10.83, "stl10/ien": 10.11},
}
DIGITS = ("cnn", "cnn-aug", "ss-cnn", "ss-cnn-published", "dss", "sesn-scalar", "sesn-vector", "ien")


def test_there_is_every_row_of_the_paper_and_the_fair_comparisons() -> None:
    rows = [f"scale-mnist/{size}-{row}" for size in (28, 56) for row in DIGITS]
    rows += [
        f"stl10/{row}" for row in ("wrn", "cnn-aug", "ss-cnn", "ss-cnn-published", "dss", "sesn-a", "ien")
    ]
    rows += [f"rot-scale-mnist/{row}" for row in ("cnn-aug", "ien-rotation", "ien-scale", "ien-both")]
    rows += [
        f"rot-scale-mnist/cnn6-{row}" for row in ("cnn-aug", "tied", "tied-ien-scale", "slack-ien-scale")
    ]
    assert sorted(ALL) == sorted(rows)
    printed = {**paper("scale-mnist"), **paper("stl10"), **paper("rot-scale-mnist")}
    assert {name: pytest.approx(100 - row.accuracy) for name, row in printed.items()} == ERRORS


@pytest.mark.parametrize("name", ALL)
def test_the_preset_paper_is_the_published_protocol(name) -> None:
    dataset, row = name.split("/")
    settings = flat(config(name, "paper"))
    digits = {
        **{"epochs": 60, "batch_size": 128, "algorithm": "adam", "max_lr": 0.01, "rescale": 2.0},
        **{"shape": "steps", "steps_after": "20,40", "decay": 0.1, "train_images": 10_000, "width": 1.0},
    }
    objects = {
        **{"epochs": 1000, "batch_size": 128, "algorithm": "sgd", "max_lr": 0.1, "weight_decay": 5e-4},
        **{"shape": "steps", "steps_after": "300,400,600,800", "decay": 0.2, "width": 1.0},
        **{"image_size": 96, "shift": 12, "mirror": True, "cutout": 32, "rescale": 1.0},
    }
    wanted = {"scale-mnist": digits, "stl10": objects, "rot-scale-mnist": {**digits, "rescale": 1.0}}[dataset]
    assert {field: settings[field] for field in wanted} == wanted
    twin = "ien" in row or row.endswith(("cnn-aug", "cnn6-tied"))
    assert settings["data_seed"] == (0 if dataset == "stl10" else None)
    assert settings["augment"] == twin and (settings["beta"] > 0) == ("ien" in row)
    told = " ".join(deviations(name))
    assert ("the factors" in told and "beta" in told) == ("ien" in row)
    said = {"sesn-wrn": "before the maximum", "dss": "after the maximum", "ss-cnn": "factor 1 / s"}
    assert {model for model in said if said[model] in told} == said.keys() & {settings["model"]}


def test_the_twin_has_a_feature_group_of_all_scales_of_sesn() -> None:
    for size in (28, 56):
        configs = (config(f"scale-mnist/{size}-{row}", "paper") for row in ("ien", "sesn-vector"))
        ours, theirs = map(network, configs)
        assert ours.feature_groups == theirs.feature_groups
        assert ours.norm3.num_features == theirs.norm3.num_features == 95


def test_the_augmented_network_is_the_twin_without_the_loss() -> None:
    for prefix in ("scale-mnist/28-", "scale-mnist/56-", "stl10/"):
        ours, other = (config(f"{prefix}{row}", "small") for row in ("ien", "cnn-aug"))
        assert differing(ours, other) == {"experiment", "beta"}


def test_rows_about_two_groups_see_three_views_and_differ_in_their_loss() -> None:
    rows = find("rot-scale-mnist/*")
    first, *others = (config(row, "small") for row in rows)
    fields = set().union(*(differing(first, other) for other in others))
    assert fields == {
        "experiment",
        "group",
        "samples",
        "beta",
        "normalize",
        "model",
        "measured",
        "tie",
        "tie_group",
        "slack",
    }
    for row in rows:
        settings = config(row, "smoke")
        assert objective_of(settings, network(settings)).views == 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("scale")
    make_stl10(folder, train=64, test=32)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", distinct("scale-mnist/*", "stl10/*", "rot-scale-mnist/*"))
def test_every_row_runs(name, folder) -> None:
    digits = "mnist" in name
    data, suffix = ("embedded", "-embedded") if digits else (folder, "")
    invoke("run", name, "--preset", "smoke", "--data", data, "--threads", "1", "--out", folder / "runs")
    run = folder / "runs" / name / f"smoke-seed1{suffix}"
    record = json.loads((run / "result.json").read_text())
    assert record["data"]["name"] == name.split("/")[0]
    assert record["data"]["source"] == ("embedded-5k" if digits else "subset")
    net = ien.load(run)
    assert set(record["layers"]) == set(net.taps) and not net.training
    # two epochs on a few images teach nothing: the errors are numbers, not small ones
    assert all(0 <= layer["raw"] < math.inf for layer in record["layers"].values())


@pytest.mark.slow
def test_the_table_shows_error_rates_beside_the_papers(folder) -> None:
    for name in ("scale-mnist/28-ien", "scale-mnist/28-cnn", "rot-scale-mnist/ien-both"):
        test_every_row_runs(name, folder)  # at once where it is finished
    text = " ".join(invoke("table", "scale", "--results", folder / "runs").output.split())
    digits, both = text.split("Rotated and scaled digits", 1)
    assert "Scale-MNIST 28×28: Error rate and cost" in digits and "1.78" in digits
    record = json.loads((folder / "runs/scale-mnist/28-ien/smoke-seed1-embedded/result.json").read_text())
    assert f"{100 - 100 * record['accuracy']:.2f}" in digits
    for part in ("quarter turns and flips alone", "the other elements alone, which resample"):
        assert part in both and part not in digits
