"""The study: its rows are every combination once, at equal compute, and each runs end to end."""

import io
import json
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

import ien
import ien.data
from ien import FeatureGroups
from ien.data import Dataset
from ien.experiments import config, deviations, find
from ien.experiments.describe import describe_run
from ien.experiments.printed import TABLES
from ien.experiments.queue import plan, run_all, run_name
from ien.experiments.rows import EQUIVARIANT
from ien.experiments.study import LABELS, ROWS_AT_2X
from ien.experiments.tables import print_table
from ien.training import ALONE, flat
from ien.training.classify import ClassifyTask
from ien.training.images import images
from ien.training.network import objective_of
from tests.helpers.configs import distinct, network

pytestmark = pytest.mark.usefixtures("elsewhere")

RESULTS = Path(__file__).parents[2] / "results"
ROWS = [name.removeprefix("study/") for name in find("study/*")]
STEERABLE = [row for row in ROWS if "e2cnn" in row]
BESIDE = ("flip", "n500", "n2000", "tied", "free")
GRID = [row for row in ROWS if not row.startswith(BESIDE) and row[-2:] != "2x"]
NAMES = [*LABELS, *(f"study/{row}" for row in ROWS)]
HALF = [name for name in NAMES if name.endswith(("equivariant", "free"))]
"""Rows without copies, which have half of the compute."""
HALF_OF = {"study/equivariant-2x": "rot-mnist/equivariant", "study/free-2x": "study/free"}
COMPARED = [name for name in NAMES if name not in [*HALF, *(f"study/{row}-2x" for row in ROWS_AT_2X)]]
"""All rows that are to have equal compute."""


def compute(name: str, preset: str, count: int, *settings: str) -> tuple[int, int]:
    """Steps of a row on so many training images, and the views that its network sees in them."""
    (planned,) = plan([name], preset, [1], settings)
    x = torch.zeros(count, 1, 1, 1, dtype=torch.uint8)
    data = Dataset("rot-mnist", "generated", x, x.flatten(), x, x.flatten(), classes=10)
    (x, y), _ = images(planned, data)
    network: Any = SimpleNamespace(taps=[], feature_groups=FeatureGroups.of(planned.network.feature_groups))
    optimizer: Any = None
    objective, all_ = objective_of(planned, network), torch.arange(len(x))
    task = ClassifyTask(planned, network, network, objective, optimizer, x, y, x, ALONE, all_)
    return planned.schedule.epochs * task.steps, planned.schedule.epochs * task.items * task.views


def changed(name: str, other: str, preset: str = "small") -> dict[str, Any]:
    """The fields in which one row differs from another, with their values."""
    ours, theirs = (flat(config(each, preset)) for each in (name, other))
    return {field: ours[field] for field in ours if ours[field] != theirs[field] and field != "experiment"}


def test_the_grid_is_every_combination_once() -> None:
    places = {f"study/{row}": row for row in GRID}
    places |= {name: label.split(" = ")[0] for name, label in LABELS.items() if " = " in label}
    found = []
    for name, place in places.items():
        c = config(name, "small").objective
        found.append((c.action if c.beta else "", c.tie, c.orbits, c.beta))
        *action, first, samples, beta = place.split("-")
        assert c.tie == {"random": "never", "start": "start"}[first] and c.orbits == (samples == "all")
        assert f"beta{c.beta:g}" == beta and action == [c.action] * bool(c.beta)
        assert changed(name, "rot-mnist/cnn-aug").keys() <= {"action", "tie", "orbits", "beta"}
    without = product([""], ["never", "start"], [False, True], [0.0])
    with_loss = product(["pooled", "regular"], ["never", "start"], [False, True], [0.1, 1.0])
    assert sorted(found) == sorted([*without, *with_loss]) and len(found) == 20
    assert sorted(label.split(" = ")[-1] for label in LABELS.values()) == sorted(
        ["cnn-aug", "cnn-aug-tta", "e2cnn", "ien-r4", "ien-r4-beta0.1", "equivariant"]
    )


def test_what_stands_beside_the_grid() -> None:
    assert changed("study/tied", "study/start-1-beta0") == {"tie": "free"}
    assert changed("study/cnn-aug-2x", "rot-mnist/cnn-aug") == {"epochs": 20, "cycle_epochs": 16}
    assert any("twice the compute" in text for text in deviations("study/cnn-aug-2x"))
    assert changed("study/free", "study/tied") == {"augment": False}
    assert changed("rot-mnist/equivariant", "study/free") == {"tie": "smooth"}
    for longer in ("study/equivariant-2x", "study/free-2x"):
        assert changed(longer, HALF_OF[longer]) == {"epochs": 20, "cycle_epochs": 16}
    longer = {"augment": False, "epochs": 20, "cycle_epochs": 16}
    assert changed("study/e2cnn-alone-2x", "rot-mnist/e2cnn") == longer
    slower = {"epochs": 60, "decay_after": 19, "decay": 0.8**0.5}
    assert changed("study/e2cnn-alone-2x", "rot-mnist/e2cnn", "paper") == slower
    r8 = "rot-tim/resnet18-r8-equivariant"
    assert changed(f"{r8}-2x", r8) == {"epochs": 24, "cycle_epochs": 20}
    assert config(f"{r8}-2x", "paper").schedule.epochs == 180
    alone = {"augment": False, "transform": True, "epochs": 24, "cycle_epochs": 20}
    for row in ("rot-tim/resnet18-r8-e2cnn", "rot-tim/resnet18-r8-cnn-aug"):
        assert changed(f"{row}-alone-2x", row) == alone
    assert config(r8, "small").objective.transform
    assert not config(f"{r8}-loss", "small").objective.transform
    told = {text.split(":")[0][:12] for text in deviations(f"{r8}-2x")}
    assert {"tied", "equivariant", "rows with 2x"} <= told


def test_rows_called_equivariant_have_the_same_settings_everywhere() -> None:
    names = ["rot-mnist/equivariant", *(f"study/{row}" for row in ROWS if row.endswith("-equivariant"))]
    assert len(names) == 4
    for name in [*names, "rot-tim/resnet18-r8-equivariant"]:
        settings = flat(config(name, "small"))
        assert {field: settings[field] for field in EQUIVARIANT} == EQUIVARIANT, name


@pytest.mark.parametrize(
    ("preset", "count", "settings", "expected"),
    [
        ("small", 12_000, [], (1880, 240_000)),
        ("small", 12_000, ["test_on=validation"], (1570, 200_000)),
        ("small", 12_000, ["batch_size=100"], (1200, 240_000)),
        ("small", 12_000, ["epochs=3", "test_on=validation"], (471, 60_000)),
        ("small", 4000, [], (630, 80_000)),
        ("demo", 4000, [], (1000, 64_000)),
        ("smoke", 4000, [], (8, 512)),
    ],
)
def test_all_rows_have_as_many_steps_and_images_seen(preset, count, settings, expected) -> None:
    found = {name: compute(name, preset, count, *settings) for name in COMPARED}
    assert set(found.values()) == {expected}, found
    assert {compute(name, preset, count, *settings) for name in HALF} == {(expected[0], expected[1] // 2)}


def test_twice_the_compute_is_twice_and_the_papers_size_too() -> None:
    assert compute("study/cnn-aug-2x", "small", 12_000) == (3760, 480_000)
    assert compute("study/equivariant-2x", "small", 12_000) == (3760, 240_000)
    usual = [name for name in COMPARED if not name.endswith("e2cnn")]  # there it has a recipe of its own
    assert {compute(name, "paper", 12_000) for name in usual} == {(16_920, 2_160_000)}


def test_recorded_runs_saw_as_many_images_as_the_study_says() -> None:
    for name in NAMES:
        for path in (RESULTS / name).glob("small-seed?.json"):
            record = json.loads(path.read_text())
            expected = 480_000 if name == "study/cnn-aug-2x" else 240_000
            assert record["images_seen"] == (120_000 if name in HALF else expected), path


def test_the_wrong_group_has_one_network_with_the_channels_of_the_right_one() -> None:
    flips = [row for row in ROWS if row.startswith("flip-")]
    nets = [network(config(name, "small")) for name in ["rot-mnist/cnn-aug", *(f"study/{r}" for r in flips)]]
    channels = [[block[0].out_channels for block in list(net.children())[:6]] for net in nets]
    assert len(flips) == 4 and channels == [[16, 24, 32, 32, 48, 64]] * 5
    assert len({sum(weight.numel() for weight in net.parameters()) for net in nets[1:]}) == 1
    for row in flips:
        base = row.removeprefix("flip-")
        fields = {"group", "feature_groups", "width"}
        table = "study" if base == "free" else "rot-mnist"
        assert changed(f"study/{row}", f"{table}/{base}").keys() == fields


def test_rows_on_fewer_images_differ_in_these_alone() -> None:
    for row in (row for row in ROWS if row.startswith("n")):
        count, _, base = row.partition("-")
        table = "study" if base == "free" else "rot-mnist"
        for preset in ("small", "paper"):
            assert changed(f"study/{row}", f"{table}/{base}", preset) == {"subset": int(count[1:])}
        assert any("drawn by the seed" in text for text in deviations(f"study/{row}"))


def test_every_row_stands_in_the_table_once() -> None:
    patterns = [pattern for part in TABLES["study"].parts for pattern in part.patterns]
    for name in NAMES:
        assert sum(fnmatchcase(name, pattern) for pattern in patterns) == 1, name


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("study")


@pytest.fixture(autouse=True)
def noise(monkeypatch) -> None:
    """Random images in place of digits, which take longer to read than to train on."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randint(256, (144, 1, 28, 28), generator=rng).to(torch.uint8), torch.arange(144) % 10
    data = Dataset("rot-mnist", "embedded-5k", x[:128], y[:128], x[128:], y[128:], classes=10)
    monkeypatch.setitem(ien.data.DATASETS, "rot-mnist", ien.data.Loader(lambda *_: data, lambda *_: data))


def finished(name: str, folder: Path) -> Path:
    """The run folder of a row at the preset smoke, at once where there is one."""
    configs = plan([name], "smoke", [1], ["test_images=16"], machine={"threads": 1})
    run_all(configs, folder, folder / "results", "embedded", console=Console(file=io.StringIO()))
    return folder / run_name(configs[0], "embedded")


@pytest.mark.slow
@pytest.mark.parametrize("row", [name.split("/")[1] for name in distinct("study/*")])
def test_row_runs_end_to_end(row, folder) -> None:
    run = finished(f"study/{row}", folder)
    record = json.loads((run / "result.json").read_text())
    views = 1 if {"equivariant", "free", "alone"} & set(row.split("-")) else 2
    assert record["images_seen"] == 256 * views * (2 if row.endswith("-2x") else 1)
    assert record["data"]["train"] == {"n500": 32, "n2000": 64}.get(row.split("-")[0], 128)
    assert list(record["layers"]) == [f"conv{i}" for i in range(1, 7)]
    for kind in ("relative", "relative_regular"):
        errors = [layer[kind] for layer in record["layers"].values()]
        if row in STEERABLE or {"equivariant", "free", "tied"} & set(row.split("-")):
            assert max(errors) < 1e-6
        elif "regular-start-all" in row:
            assert max(errors) < 1e-2
        elif "start" not in row:
            assert max(errors) > 0.05
    assert not ien.load(run).training
    if row == "n500-equivariant":
        shown = describe_run(run)
        assert "32 images to train on" in shown and "8 steps, 256 images seen" in shown
        assert "fewer than 10,378 parameters trained (tied)" in shown
        assert record["trained_parameters"] < record["parameters"] / 3 and record["parameters"] == 10_378


@pytest.mark.slow
def test_the_table_shows_rows_of_rot_mnist_by_their_places(folder) -> None:
    for name in ("rot-mnist/cnn-aug-tta", "study/cnn-aug-2x"):  # the first trains rot-mnist/cnn-aug
        finished(name, folder)
    rows = [row for row in ROWS if (folder / "study" / row).exists()]
    console = Console(file=io.StringIO(), width=250, record=True)
    print_table("study", folder, console=console)
    text = console.export_text()
    assert {*rows, "cnn-aug-tta"} <= set(text.split())
    assert "All digits: Accuracy and cost (smoke, embedded-5k)" in text
    assert "All digits: Relative error per channel (regular): lower is better" in text
    lines = [line.split() for line in text.splitlines() if line.startswith(" random-1-beta0 = cnn-aug ")]
    assert lines[0][-2] == "512"  # images seen, before images/s
    assert "rows with 2x are trained for twice as many epochs" in " ".join(text.split())
