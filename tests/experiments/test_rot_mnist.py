"""Rot-MNIST: the rows and their settings are the paper's, and each runs end to end."""

import json
from pathlib import Path

import pytest
import torch

import ien
from ien.data import load, to_float
from ien.experiments import config, find, paper
from ien.experiments.catalogue import CATALOGUE
from ien.training import flat
from tests.helpers.configs import differing, distinct
from tests.helpers.shell import invoke

pytestmark = pytest.mark.usefixtures("elsewhere")

BETAS = {"0.01": 0.01, "0.1": 0.1, "0.5": 0.5, "10": 10.0, "100": 100.0, "1000": 1000.0}
ALL = ["cnn", "cnn-aug", "cnn-aug-tta", "e2cnn", "ien-r4", *(f"ien-r4-beta{beta}" for beta in BETAS)]
ALL += ["het-ien", "equivariant"]

# of the table in the paper's appendix: accuracy, and the powers of ten of L_G from conv1 to conv6
PAPER = {
    "rot-mnist/cnn": (96.3, (0, -1, 0, 0, 0, -1)),
    "rot-mnist/cnn-aug": (98.4, (0, -1, 0, 0, 0, -1)),
    "rot-mnist/e2cnn": (98.8, (-11, -10, -8, -9, -8, -8)),
    "rot-mnist/ien-r4": (98.6, (-7, -6, -5, -5, -5, -4)),
    "rot-mnist/ien-r4-beta0.1": (98.5, (-5, -5, -4, -4, -3, -2)),
    "rot-mnist/ien-r4-beta0.01": (98.6, (-3, -3, -2, -2, -2, -1)),
    "rot-mnist/het-ien": (98.6, (-6, -6, -5, -5, -5, -4)),
}
AS_THE_PAPER = {
    **{"epochs": 90, "cycle_epochs": 70, "shape": "one-cycle", "max_lr": 5e-3, "min_lr": 1e-5},
    **{"weight_decay": 1e-7, "decay_weights_only": False, "batch_size": 64, "width": 1.0, "model": "cnn6"},
    **{"group": "rot4", "samples": 1, "rotate": False, "train_images": None, "test_images": None},
    "test_on": "test",
}
AS_E2CNN = {
    **{"model": "e2cnn-cnn6", "max_lr": 1e-3, "epochs": 30, "shape": "exponential", "decay": 0.8},
    **{"decay_after": 10, "weight_decay": 1e-7, "decay_weights_only": True, "batch_size": 64},
    **{"rotate": True, "augment": False, "beta": 0.0, "width": 1.0},
}


def test_there_is_every_row_of_the_paper_and_every_beta_it_tried() -> None:
    assert find("rot-mnist/*") == [f"rot-mnist/{row}" for row in ALL]
    configs = {row: flat(config(f"rot-mnist/{row}", "paper")) for row in ALL}
    assert {row: settings["beta"] for row, settings in configs.items()} == {
        **dict.fromkeys(ALL, 0.0),
        **{f"ien-r4-beta{text}": beta for text, beta in BETAS.items()},
        **{"ien-r4": 1.0, "het-ien": 1.0},
    }
    mixes = {row: settings["feature_groups"] for row, settings in configs.items()}
    assert mixes == dict.fromkeys(ALL, "4") | {"het-ien": "4-2-1"}
    assert [row for row in ALL if not configs[row]["augment"]] == ["cnn", "e2cnn", "equivariant"]
    assert {name: (row.accuracy, row.exponents) for name, row in paper("rot-mnist").items()} == PAPER


@pytest.mark.parametrize("row", ALL)
def test_the_preset_paper_is_the_papers_text(row) -> None:
    settings = flat(config(f"rot-mnist/{row}", "paper"))
    wanted = AS_E2CNN if row == "e2cnn" else AS_THE_PAPER  # it has the recipe of its authors
    assert {name: settings[name] for name in wanted} == wanted


def test_rows_differ_in_what_they_are_about_and_small_in_size_alone() -> None:
    for row in ALL:
        if row != "e2cnn":
            small, full = (config(f"rot-mnist/{row}", preset) for preset in ("small", "paper"))
            assert differing(small, full) == {"preset", "width", "epochs", "cycle_epochs"}, row
    # the steerable twin is trained like the row it is compared with
    twin, plain = (config(f"rot-mnist/{row}", "small") for row in ("e2cnn", "cnn-aug"))
    assert differing(twin, plain) == {"experiment", "model"}
    for preset in CATALOGUE["rot-mnist"].presets:
        tta, base = (config(f"rot-mnist/{row}", preset) for row in ("cnn-aug-tta", "cnn-aug"))
        assert differing(tta, base) == {"experiment", "weights_of", "average"}


@pytest.fixture(scope="module")
def smoke(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("smoke")


def run_smoke(row: str, smoke: Path) -> str:
    options = ("--preset", "smoke", "--data", "embedded", "--threads", "1", "--out", smoke / "runs")
    return invoke("run", f"rot-mnist/{row}", *options, "--results", smoke / "results", columns=300).output


RUN = [name.split("/")[1] for name in distinct("rot-mnist/*")]


@pytest.mark.slow
@pytest.mark.parametrize("row", RUN)
def test_row_runs_end_to_end(row, smoke) -> None:
    said = run_smoke(row, smoke)
    folder = smoke / "runs" / "rot-mnist" / row / "smoke-seed1-embedded"
    assert f"kept in {folder}, not recorded" in said and not (smoke / "results").exists()
    files = {path.name for path in folder.iterdir() if path.name[0] != "."} - {"tensorboard"}
    trained = {"metrics.jsonl", "last.pt"} if row != "cnn-aug-tta" else set()
    assert files == {"README.md", "config.json", "model.safetensors", "result.json"} | trained
    record = json.loads((folder / "result.json").read_text())
    assert record["config"]["experiment"] == f"rot-mnist/{row}" and record["changes"] == {}
    assert record["data"]["source"] == "embedded-5k"
    assert list(record["layers"]) == [f"conv{i}" for i in range(1, 7)]
    exact = {"e2cnn": 1e-6, "equivariant": 1e-6}.get(row)  # built in, or tied
    assert all((layer["relative"] < (exact or 1e-6)) == bool(exact) for layer in record["layers"].values())
    net = ien.load(folder)
    assert not net.training and net(torch.rand(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.slow
def test_table_of_run_folders_has_every_row(smoke) -> None:
    rows = [row for row in RUN if row != "e2cnn"]
    for row in rows:
        run_smoke(row, smoke)  # at once where it is finished
    table = invoke("table", "rot-mnist", "--results", smoke / "runs", columns=200).output
    shown = [line.split()[0] for line in table.split("Relative error")[1].splitlines() if line.strip()]
    assert [row for row in shown if row in rows] == rows


@pytest.mark.slow
def test_averaging_over_the_group_equals_a_loop_over_quarter_turns() -> None:
    settings = ("width=1/32", "epochs=3", "train_images=1000", "test_images=500")
    given = [part for setting in settings for part in ("--set", setting)]
    invoke("run", "rot-mnist/cnn-aug-tta", "--data", "embedded", "--threads", "1", *given)
    (base,), (run,) = (list(Path("runs/rot-mnist", row).iterdir()) for row in ("cnn-aug", "cnn-aug-tta"))
    of_base, of_run = (json.loads((folder / "result.json").read_text()) for folder in (base, run))
    dataset, net = load("rot-mnist", "embedded"), ien.load(base)
    x, y = to_float(dataset.test_x[:500]), dataset.test_y[:500]
    with torch.no_grad():
        rotated = [net(torch.rot90(x, turns, (2, 3))) for turns in range(4)]
    clean = (rotated[0].argmax(1) == y).double().mean()
    averaged = (sum(scores.softmax(1) for scores in rotated).argmax(1) == y).double().mean()
    # an image on the edge between two classes may fall to either side
    assert of_base["accuracy"] == pytest.approx(float(clean), abs=0.0025)
    assert of_run["accuracy"] == pytest.approx(float(averaged), abs=0.0025)
    assert of_run["accuracy"] == of_run["accuracy_with_copies"] > of_base["accuracy"]
    assert of_run["macs"] == 4 * of_base["macs"] and of_run["parameters"] == of_base["parameters"]
    assert of_run["layers"] == of_base["layers"] and of_run["seconds"] == 0
    assert sorted(path.parent.name for path in Path("results").rglob("*.json")) == ["cnn-aug", "cnn-aug-tta"]
