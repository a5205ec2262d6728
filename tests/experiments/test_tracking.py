"""The rows of the tracking table: the settings are the published ones, and each runs end to end."""

import itertools
import json
from pathlib import Path

import pytest
import torch

import ien
from ien.experiments import PRESETS, config, deviations, find, paper
from ien.experiments.queue import _read_record, plan, run_name
from ien.tracking.data import sets as tracking_sets
from ien.tracking.siamfc_network import SiamFC
from ien.tracking.training.task import TRACK_TARGETS
from ien.training import flat
from ien.training.schedule import learning_rate
from tests.helpers.configs import differing, distinct, network
from tests.helpers.shell import error_of, invoke
from tests.helpers.trackers import record

pytestmark = pytest.mark.usefixtures("elsewhere")

ALL = [f"tracking/{row}" for row in ("siamfc", "cnn4-siamfc", "re-siamfc", "ien-siamfc")]
ALL += [f"tracking/{row}" for row in ("ien-siamfc-beta0.01", "ien-siamfc-beta1", "het-siamfc")]
ALL += [f"tracking/{row}-siamfc" for row in ("equivariant", "slack", "het-equivariant")]
ONE_VIEW = ("siamfc", "re-siamfc", "equivariant-siamfc", "slack-siamfc", "het-equivariant-siamfc")
FEATURE_GROUPS = {"siamfc": "1", "het-siamfc": "4-2-1", "het-equivariant-siamfc": "4-2-1"}
# of the paper's table: success and precision on Rot-OTB
PAPER = {
    "tracking/siamfc": (0.29, 0.47),
    "tracking/cnn4-siamfc": (0.33, 0.56),
    "tracking/re-siamfc": (0.35, 0.62),
    "tracking/ien-siamfc": (0.37, 0.63),
    "tracking/het-siamfc": (0.37, 0.62),
}
BETAS = {"tracking/ien-siamfc": 0.1, "tracking/ien-siamfc-beta0.01": 0.01, "tracking/ien-siamfc-beta1": 1.0}


def test_there_is_every_row_of_the_paper_with_its_figures_and_every_beta() -> None:
    assert find("tracking/*") == ALL
    assert {name: (row.success, row.precision) for name, row in paper("tracking").items()} == PAPER
    assert {name: config(name, "paper").objective.beta for name in ALL} == {
        **dict.fromkeys(ALL, 0.0),
        **BETAS,
        "tracking/het-siamfc": 0.1,
    }
    lines = {line.split()[0]: line.split() for line in invoke("list").output.splitlines() if "/" in line}
    assert lines["tracking/het-siamfc"] == "tracking/het-siamfc siamfc 0.1 0.37 / 0.62".split()
    assert lines["tracking/ien-siamfc-beta1"][-1] == "–"


@pytest.mark.parametrize("name", ALL)
def test_the_preset_paper_is_the_published_protocol(name) -> None:
    settings = flat(config(name, "paper"))
    wanted = {
        **{"dataset": "got10k", "filter": "published", "pairs": None, "width": 1.0},
        **{"epochs": 50, "batch_size": 8, "algorithm": "momentum", "weight_decay": 5e-4},
        **{"decay_weights_only": False, "backbone": "alexnet-v2", "group": "rot4", "samples": 1},
        **{"train_images": None, "test_images": None, "test_on": "test"},
        "model": "re-siamfc" if name == "tracking/re-siamfc" else "siamfc",
        "augment": name.removeprefix("tracking/") not in ONE_VIEW,
        "feature_groups": FEATURE_GROUPS.get(name.removeprefix("tracking/"), "4"),
    }
    assert {field: settings[field] for field in wanted} == wanted
    assert config(name, "paper").rotations == (1 if name == "tracking/siamfc" else 4)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_learning_rate_falls_from_1e_2_to_1e_5(preset) -> None:
    settings = config("tracking/ien-siamfc", preset)
    rates = [learning_rate(settings, 7 * epoch + 3, 7) for epoch in range(settings.schedule.epochs)]
    generated = settings.data.pretrain_epochs  # before it falls
    falling = settings.schedule.epochs - generated
    factor = 1e-3 ** (1 / falling)
    assert rates == pytest.approx([1e-2] * generated + [1e-2 * factor**epoch for epoch in range(falling)])
    assert rates[-1] * factor == pytest.approx(1e-5)
    assert bool(generated) == (preset == "medium")


def test_small_differs_from_paper_in_size_only_and_rows_as_they_say() -> None:
    size = {"preset", "width", "epochs", "decay", "pairs", "filter"}
    for name in ALL:
        assert differing(config(name, "small"), config(name, "paper")) == size
    fields = {
        "cnn4-siamfc": {"experiment", "beta"},
        "het-siamfc": {"experiment", "feature_groups"},
        "re-siamfc": {"experiment", "model", "augment", "beta"},
        "siamfc": {"experiment", "feature_groups", "augment", "beta"},
        "equivariant-siamfc": {"experiment", "tie", "augment", "beta"},
        "slack-siamfc": {"experiment", "tie", "slack", "augment", "beta"},
        "het-equivariant-siamfc": {"experiment", "tie", "feature_groups", "augment", "beta"},
    }
    for row, preset in itertools.product(fields, PRESETS):
        ours, other = (config(f"tracking/{name}", preset) for name in ("ien-siamfc", row))
        expected = fields[row]
        if (row, preset) == ("siamfc", "medium"):
            expected = expected | {"templates"}  # it knows no angle
        assert differing(ours, other) == expected, (row, preset)


def test_medium_trains_every_row_on_the_same_pairs_and_correlates_as_many_channels() -> None:
    x = torch.rand(1, 3, 127, 127)
    small = config("tracking/ien-siamfc", "small")
    for name in ALL:
        settings = config(name, "medium")
        assert network(settings)(x).shape[1] == 8
        assert settings.rotations == (1 if name == "tracking/siamfc" else 8)
        assert settings.data.turn and settings.data.colour == 0.2 and settings.data.pretrain_epochs == 8
        # more pairs and epochs than small, of GOT-10k alone too
        of_got10k = settings.schedule.epochs - settings.data.pretrain_epochs
        assert settings.schedule.epochs > small.schedule.epochs
        assert of_got10k * settings.data.pairs > small.schedule.epochs * small.data.pairs
    shown = " ".join(invoke("show", "tracking/equivariant-siamfc", "--preset", "medium").output.split())
    assert "3 sizes × 8 templates" in shown
    assert "840 steps, 6,720 pairs seen (1 for each pair), those of the first 8 epochs from" in shown
    for change in ("turn true instead of false", "pretrain_epochs 8 instead of 0", "features 8 instead of"):
        assert change in shown
    refused = error_of("run", "tracking/siamfc", "rot-mnist/cnn", "--preset", "medium")
    assert "rot-mnist has no preset 'medium'; choose from paper, small, demo, smoke" in refused


def test_features_gives_every_row_the_channels_that_it_correlates() -> None:
    x = torch.rand(1, 3, 127, 127)
    natural, equal = {}, {}
    for name in ALL:
        (plain,) = plan([name], "small", [1])
        (changed,) = plan([name], "small", [1], ["features=8"])
        assert run_name(changed) == f"{name}/small-seed1-features8"  # not mixed with records of other widths
        natural[name] = network(plain)(x).shape[1]
        equal[name] = network(changed)(x).shape[1]
    assert natural == {**dict.fromkeys(ALL, 4), "tracking/siamfc": 8}
    assert equal == dict.fromkeys(ALL, 8)
    told = [name for name in ALL if any("--set features=8" in text for text in deviations(name))]
    assert told == [name for name in ALL if name != "tracking/siamfc"]


@pytest.mark.parametrize(
    ("row", "features", "match"),
    [
        ("het-siamfc", 6, r"multiple of 4 with feature groups 4-2-1; got 6 \(nearest: 4 or 8\)"),
        ("siamfc", 7, r"multiple of 2 with feature groups 1; got 7 \(nearest: 6 or 8\)"),
        ("siamfc", 1, r"got 1 \(nearest: 2\)"),
        ("ien-siamfc", 0, "features must be 1 to"),
    ],
)
def test_features_that_cannot_be_are_refused(row, features, match) -> None:
    with pytest.raises(ValueError, match=match):
        plan([f"tracking/{row}"], "small", [1], [f"features={features}"])


def test_records_from_before_features_are_recognised() -> None:
    results = Path(__file__).parents[2] / "results"
    for name in ("tracking/siamfc", "tracking/ien-siamfc", "tracking/re-siamfc"):
        content = json.loads((results / name / "small-seed1.json").read_text())
        assert "features" not in content["config"]["network"]
        (planned,) = plan([name], "small", [1])
        path = Path("results", name, "small-seed1.json")
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(content))
        assert _read_record(path, planned, None) is not None
        (changed,) = plan([name], "small", [1], ["features=8"])
        with pytest.raises(ValueError, match="features None, now 8"):
            _read_record(path, changed, None)


def test_the_mix_has_its_share_of_the_channels_at_small() -> None:
    nets = [network(config(f"tracking/{row}-siamfc", "small")) for row in ("ien", "het")]
    channels = [[net.get_submodule(tap)[0].out_channels for tap in net.taps] for net in nets]
    assert [int(16 * few / many) for many, few in zip(*channels, strict=True)] == [11] * 5


def test_what_the_sources_do_not_say_is_told() -> None:
    for name in ALL:
        told = " ".join(deviations(name))
        assert "siamfc-pytorch" in told and "AlexNetV2" in told and "half a turn per second" in told
        assert ("templates in all quarter turns" in told) == (name != "tracking/siamfc")
        assert ("fields are not published" in told) == (name == "tracking/re-siamfc")
        assert ("which beta" in told) == (name == "tracking/het-siamfc")
        assert ("does not say for CNN4" in told) == (name == "tracking/cnn4-siamfc")


def test_the_parameters_that_the_deviations_name_are_counted() -> None:
    told = " ".join(deviations("tracking/re-siamfc"))
    for row in ("siamfc", "re-siamfc"):
        net = network(config(f"tracking/{row}", "paper"))
        assert f"{sum(p.numel() for p in net.parameters()) / 1e6:.2f} M" in told


def test_show_tells_the_cost_of_an_update_and_the_pairs() -> None:
    text = invoke("show", "tracking/het-siamfc", "--preset", "paper").output
    assert max(map(len, text.splitlines())) <= 100
    assert "channels of the layers: 132, 352, 528, 528, 44" in text
    assert "multiply-accumulates for an update, 3 sizes × 4 templates" in text
    # 9,335 sequences, 8 at a time, 50 times, and each with a turned copy
    wanted = "58,350 steps, 933,500 pairs seen (2 for each pair), one of each of 9,335 sequences"
    assert wanted in " ".join(text.split())
    small = invoke("show", "tracking/siamfc", "--set", "pairs=80", "--set", "epochs=3").output
    assert "30 steps, 240 pairs seen (1 for each pair)\n" in small and "3 sizes × 1 template\n" in small
    assert "pairs 80 instead of none" in small and "prints no numbers" not in small


def test_names_of_runs_do_not_depend_on_digits_or_on_workers(monkeypatch) -> None:
    (planned,) = plan(["tracking/siamfc"], "demo", [2], ["workers=0"])
    monkeypatch.setenv("IEN_DATA", "embedded")
    assert run_name(planned) == "tracking/siamfc/demo-seed2"


def test_what_a_run_reached_is_told_in_its_own_terms() -> None:
    made = record()
    otb, rot = (made["tracking"][test] for test in ("otb", "rot-otb"))
    assert TRACK_TARGETS.outcome(made) == (
        f"success / precision {otb['success']:.3f} / {otb['precision']:.3f} on otb, "
        f"{rot['success']:.3f} / {rot['precision']:.3f} on rot-otb"
    )


@pytest.fixture
def short(monkeypatch) -> None:
    """Generated clips of few frames."""
    monkeypatch.setattr(tracking_sets, "FRAMES", 6)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("smoke")


@pytest.mark.slow
@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("name", distinct("tracking/*"))
def test_every_row_runs(name, smoke) -> None:
    options = ("--preset", "smoke", "--threads", "1", "--out", smoke / "runs")
    done = invoke("run", name, *options, "--set", "workers=0", columns=300)
    run = smoke / "runs" / name / "smoke-seed1"
    made = json.loads((run / "result.json").read_text())
    assert f"{TRACK_TARGETS.outcome(made)}\n  kept in {run}, not recorded" in done.output
    assert made["data"]["source"] == "generated" and made["accuracy"] is None
    net = ien.load(run)
    assert isinstance(net, SiamFC) and not net.training and set(made["layers"]) == set(net.taps)
    assert net(torch.rand(1, 3, 127, 127)).shape[2:] == (17, 17)


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_medium_runs_end_to_end_on_generated_clips(tmp_path) -> None:
    """Its machinery at the size of smoke: both phases, then the test with eight templates."""
    cut = ("dataset=synthetic-clips", "width=1/32", "pairs=4", "batch_size=2", "epochs=2", "workers=0")
    cut += ("pretrain_epochs=1", "pretrain_clips=3", "train_images=2", "test_images=1")
    settings = [word for text in cut for word in ("--set", text)]
    options = ("--preset", "medium", "--threads", "1", "--out", tmp_path / "runs", "--results", tmp_path)
    invoke("run", "tracking/equivariant-siamfc", *options, *settings, columns=300)
    (path,) = (tmp_path / "tracking").rglob("*.json")
    made = json.loads(path.read_text())
    rotated = made["tracking"]["rot-clips"]
    assert 0 <= rotated["orientation_error"] <= 180 and 0 <= rotated["success_hull"] <= 1
    (run,) = (tmp_path / "runs" / "tracking" / "equivariant-siamfc").iterdir()
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["learning_rate"] for line in lines] == [0.01, 0.01]
    angles = (run / "tracks" / "rot-clips" / "angles").glob("*.txt")
    found = {float(angle) for each in angles for angle in each.read_text().split()}
    assert all(angle % 45 == 0 for angle in found)


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_a_run_is_shown_measured_and_drawn_and_report_refuses_it(smoke) -> None:
    pytest.importorskip("matplotlib")
    test_every_row_runs("tracking/ien-siamfc", smoke)  # at once where it is finished
    run = smoke / "runs/tracking/ien-siamfc/smoke-seed1"
    made = json.loads((run / "result.json").read_text())
    shown = invoke("show", run, columns=300).output
    assert f"UTC, {TRACK_TARGETS.outcome(made)}\n" in shown and "2 sequences to train on" in shown
    measured = invoke("measure", run, "--number", "4").output
    assert "conv5" in measured and "accuracy" not in measured
    for kind in ("tracking", "turning"):
        invoke("plot", kind, run, "--out", kind)
        assert "ien-siamfc" in Path(f"{kind}.svg").read_text()
    assert "neither classifies nor segments, as this page needs" in error_of("report", run)
    table = invoke("table", "tracking", "--results", smoke / "runs").output
    assert "Success and precision on rot-clips (smoke, generated)" in table
