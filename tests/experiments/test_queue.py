"""The queue: names of runs, what is skipped or made again, and that no record is taken for another's."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import Result

from ien.experiments import config, queue
from ien.experiments.queue import plan, run_name
from ien.training import Config, Diverged
from tests.helpers import shell

pytestmark = pytest.mark.usefixtures("elsewhere")

TINY = ["--preset", "small", "--data", "embedded", "--threads", "1"]
TINY += [*("--set", "width=1/32", "--set", "epochs=1", "--set", "train_images=64", "--set", "test_images=50")]
TINY_NAME = "small-seed1-train_images64-test_images50-width0.03125-epochs1-cycle_epochs1-embedded"
RECORD = Path("results/rot-mnist/cnn", f"{TINY_NAME}.json")


def run(*arguments: str, code: int = 0) -> Result:
    """``ien run`` with tiny settings."""
    return shell.invoke("run", *arguments, *TINY, code=code, columns=200)


def test_a_plan_goes_through_the_rows_seed_by_seed() -> None:
    rows = ["rot-mnist/cnn", "rot-mnist/ien-r4"]
    configs = plan(rows, "small", [1, 3], ["epochs=5"], machine={"threads": 1})
    assert [(c.row, c.seed) for c in configs] == [("cnn", 1), ("ien-r4", 1), ("cnn", 3), ("ien-r4", 3)]
    schedules = {(c.schedule.epochs, c.schedule.cycle_epochs, c.machine.threads) for c in configs}
    assert schedules == {(5, 4, 1)}


@pytest.mark.parametrize(
    ("setting", "match"),
    [
        ("beta=0.3", r"rot-mnist/cnn: beta 0\.3 needs augment=true"),
        ("bta=0.3", "rot-mnist/cnn: there is no field 'bta'; did you mean beta"),
        ("seed=3", "seed cannot be set: give --seed or --seeds"),
        ("weights_of=rot-mnist/cnn", "weights_of cannot be set: it is what the row is"),
    ],
)
def test_a_setting_that_makes_no_sense_says_why(setting, match) -> None:
    with pytest.raises(ValueError, match=match):
        plan(["rot-mnist/cnn", "rot-mnist/ien-r4"], "small", [1], [setting])


def test_every_run_has_a_name_of_its_own(monkeypatch) -> None:
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
    monkeypatch.setenv("IEN_DATA", "embedded")
    assert run_name(config("rot-mnist/cnn", "smoke")) == "rot-mnist/cnn/smoke-seed1-embedded"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Where two rows have been run."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run("rot-mnist/cnn", "rot-mnist/cnn-aug")
    return folder


@pytest.fixture
def again(made):
    """A copy of that in the working directory, with the bytes of the first record."""
    shutil.copytree(made, ".", dirs_exist_ok=True)
    return RECORD.read_bytes()


def test_a_recorded_row_is_skipped_but_for_another_configuration(again) -> None:
    shutil.rmtree("runs")
    done = run("rot-mnist/cnn", "rot-mnist/cnn-aug", "--set", "channels_last=true")  # the same run
    assert f"recorded in {RECORD}" in done.output and not Path("runs").exists()

    content = json.loads(RECORD.read_text())
    content["config"]["optimizer"]["weight_decay"] = 1e-5
    RECORD.write_text(json.dumps(content))
    before = RECORD.read_bytes()
    said = run("rot-mnist/cnn", code=2).stderr
    assert said.startswith(f"error: {RECORD} is the record of another configuration (weight_decay 1e-05, now")
    assert "): move it away, or choose another --results" in said
    assert RECORD.read_bytes() == before and not Path("runs").exists()


def test_a_record_from_before_a_setting_is_that_of_its_default() -> None:
    name = "rot-tim/resnet18-r8-ien-beta0.1"
    path = Path(__file__).parents[2] / "results" / name / "small-seed1.json"
    assert "interpolation" not in json.loads(path.read_text())["config"]["objective"]
    Path("results", name).mkdir(parents=True)
    shutil.copy(path, Path("results", name))
    (planned,) = plan([name], "small", [1])
    assert queue.is_recorded(planned, Path("results"))
    (changed,) = plan([name], "small", [1], ["interpolation=nearest", "corners=true"])
    assert run_name(changed) == f"{name}/small-seed1-interpolationnearest-cornersTrue"
    assert not queue.is_recorded(changed, Path("results"))
    shutil.copy(path, Path("results", f"{run_name(changed)}.json"))
    match = r"another configuration \(interpolation 'bilinear', now 'nearest', corners False, now True\)"
    with pytest.raises(ValueError, match=match):
        queue.is_recorded(changed, Path("results"))


def test_a_single_run_is_made_again_where_only_its_record_is_left(again) -> None:
    shutil.rmtree("runs")
    run("rot-mnist/cnn")
    (result,) = Path("runs").rglob("result.json")
    assert json.loads(result.read_text())["accuracy"] == json.loads(again)["accuracy"]
    assert RECORD.read_bytes() == again


def test_weights_are_trained_again_where_only_their_record_is_left(again) -> None:
    record = Path("results/rot-mnist/cnn-aug", RECORD.name)
    record.write_text(record.read_text().replace('"seconds": ', '"seconds": 1000'))
    before = record.read_bytes()
    shutil.rmtree("runs")
    assert "rot-mnist/cnn-aug small seed 1 epoch 1/1" in run("rot-mnist/cnn-aug-tta").output
    assert Path("results/rot-mnist/cnn-aug-tta", RECORD.name).exists()
    assert record.read_bytes() == before
    assert "epoch 1/1" not in run("rot-mnist/cnn-aug*").output


def test_a_record_of_other_digits_in_the_place_of_a_run_is_an_error(again) -> None:
    RECORD.rename(RECORD.with_name(RECORD.name.replace("-embedded", "")))
    files = ["." if word == "embedded" else word for word in TINY]
    assert "(data embedded-5k, now generated)" in shell.error_of("run", "rot-mnist/cnn", *files)


def test_a_finished_folder_of_another_configuration_is_an_error(again) -> None:
    shutil.rmtree("results")
    path = Path("runs/rot-mnist/cnn", TINY_NAME, "result.json")
    path.write_text(path.read_text().replace('"batch_size": 64', '"batch_size": 32'))
    said = run("rot-mnist/cnn", code=2).stderr
    assert f"{path} is the record of another configuration (batch_size 32, now 64)" in said
    assert "another --out" in said and not Path("results").exists()


def test_a_record_that_got_lost_is_made_from_the_finished_folder(again) -> None:
    RECORD.unlink()
    done = run("rot-mnist/cnn")
    assert RECORD.read_bytes() == again and "epoch 1/1" not in done.output


def test_a_run_that_diverges_does_not_keep_the_others_from_running(monkeypatch) -> None:
    run_one = queue.run

    def diverging(folder: Path, config: Config, *arguments: object) -> dict[str, object]:
        if config.row == "cnn":
            raise Diverged("the task loss became nan")
        return run_one(folder, config, *arguments)

    monkeypatch.setattr(queue, "run", diverging)
    done = run("rot-mnist/cnn", "rot-mnist/cnn-aug", code=1)
    assert "1/2 rot-mnist/cnn/" in done.output and ": the task loss became nan" in done.output
    assert done.stderr.startswith("error: 1 of 2 runs diverged")
    assert [path.parent.name for path in Path("results").rglob("*.json")] == ["cnn-aug"]


def test_a_changed_row_has_a_name_a_record_and_a_label_of_its_own() -> None:
    run("rot-mnist/ien-r4", "--set", "beta=0.3")
    run("rot-mnist/ien-r4")
    with_beta = TINY_NAME.replace("-epochs1", "-beta0.3-epochs1")
    assert {path.stem for path in Path("results").rglob("*.json")} == {TINY_NAME, with_beta}
    record = json.loads(Path("results/rot-mnist/ien-r4", f"{with_beta}.json").read_text())
    assert record["changes"]["beta"] == record["config"]["objective"]["beta"] == 0.3
    table = shell.invoke("table", "rot-mnist", columns=200).output
    assert "(beta=0.3, cycle_epochs=1, epochs=1," in table and "(cycle_epochs=1, epochs=1," in table
