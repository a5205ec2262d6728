"""The study: its rows are every combination once, at equal compute, and each runs end to end."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path

import pytest
import torch
from rich.console import Console

import ien
import ien.data
from ien.data import Dataset
from ien.experiments import config, deviations, find
from ien.experiments.queue import plan, run_all, run_name
from ien.experiments.tables import TABLES, print_table
from ien.training.schedule import epoch_length, items_in, total_steps
from ien.training.setup import network_of

pytestmark = pytest.mark.usefixtures("elsewhere")

ROWS = [name.removeprefix("study/") for name in find("study/*")]
STEERABLE = [row for row in ROWS if row.endswith("e2cnn")]
BESIDE = ["cnn-aug-average", "cnn-aug-2x", "e2cnn"]
GRID = [row for row in ROWS if not row.startswith(("flip", "n500", "n2000")) and row not in BESIDE]


def seen(row: str, preset: str = "small", images: int = 12_000) -> tuple[int, int]:
    """Steps of a row, and the pictures that its network sees in them."""
    settings = config(f"study/{row}", preset)
    (group,) = settings.groups
    views = len(group) if settings.orbits else 2
    steps, items = epoch_length(settings, settings.train_images or images, views)
    return total_steps(settings, steps), items_in(total_steps(settings, steps), steps, items) * views


def test_the_grid_is_every_combination_once() -> None:
    rows = [config(f"study/{row}", "small") for row in GRID]
    found = [(c.action if c.beta else "", c.start, c.orbits, c.beta) for c in rows]
    without = product([""], ["random", "equivariant"], [False, True], [0.0])
    with_loss = product(["pooled", "regular"], ["random", "equivariant"], [False, True], [0.1, 1.0])
    assert sorted(found) == sorted([*without, *with_loss]) and len(found) == 20
    for row, settings in zip(GRID, rows, strict=True):
        if row == "cnn-aug":
            continue
        *action, start, samples, beta = row.split("-")
        assert settings.start == start and settings.orbits == (samples == "all")
        assert f"beta{settings.beta:g}" == beta and action == [settings.action] * bool(settings.beta)


def test_rows_differ_in_what_their_names_say() -> None:
    base = asdict(config("study/cnn-aug", "small"))
    for row in GRID:
        settings = asdict(config(f"study/{row}", "small"))
        changed = {name for name in settings if settings[name] != base[name]}
        assert changed <= {"experiment", "action", "start", "orbits", "beta"}
    twin = asdict(config("rot-mnist/cnn-aug", "small"))
    assert {name for name in base if base[name] != twin[name]} == {"experiment"}
    best = asdict(config("study/regular-equivariant-all-beta1", "small"))
    demo = asdict(config("rot-mnist/recommended", "small"))
    assert {name for name in best if best[name] != demo[name]} == {"experiment"}


def test_all_rows_see_as_many_pictures_in_as_many_steps() -> None:
    usual = {row: seen(row) for row in ROWS if row not in ("cnn-aug-average", "cnn-aug-2x")}
    whole = {value for row, value in usual.items() if not row.startswith("n")}
    assert whole == {(1880, 240_000)}
    for count in ("n500", "n2000"):  # batches of an epoch are equal, and so a little smaller
        (fewer,) = {value for row, value in usual.items() if row.startswith(count)}
        assert fewer[0] == 1880 and 0.97 < fewer[1] / 240_000 < 1
    assert seen("cnn-aug-2x") == (3760, 480_000)
    assert {seen(row, "paper") for row in GRID} == {(16_920, 2_160_000)}
    assert {seen(row, "demo", 4000) for row in GRID} == {(1000, 64_000)}


def test_the_wrong_group_has_the_same_channels() -> None:
    nets = [
        network_of(config(f"study/{row}", "small"))
        for row in ("cnn-aug", "flip-cnn-aug", "flip-regular-equivariant-all-beta1")
    ]
    channels = [[block[0].out_channels for block in list(net.children())[:6]] for net in nets]
    assert channels[0] == channels[1] == channels[2] == [16, 24, 32, 32, 48, 64]


def test_fewer_images_are_the_first_of_all() -> None:
    for row in (row for row in ROWS if row.startswith("n")):
        count, _, base = row.partition("-")
        fewer, whole = (asdict(config(f"study/{name}", "small")) for name in (row, base))
        changed = {name: fewer[name] for name in fewer if fewer[name] != whole[name]}
        assert changed.pop("experiment") == f"study/{row}"
        assert changed == {"train_images": int(count[1:]), "steps": 1880}


def test_every_row_stands_in_the_table_once() -> None:
    patterns = [pattern for part in TABLES["study"].parts for pattern in part.patterns]
    for row in ROWS:
        assert sum(fnmatchcase(f"study/{row}", pattern) for pattern in patterns) == 1, row
        assert deviations(f"study/{row}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("study")


@pytest.fixture(autouse=True)
def noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random images in place of digits, which take longer to read than to train on."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randint(256, (144, 1, 28, 28), generator=rng).to(torch.uint8), torch.arange(144) % 10
    data = Dataset("rot-mnist", "embedded-5k", x[:128], y[:128], x[128:], y[128:], classes=10)
    monkeypatch.setitem(ien.data.DATASETS, "rot-mnist", (lambda *_: data, lambda *_: data))


def finished(row: str, folder: Path) -> Path:
    """The run folder of a row at the preset smoke, at once where there is one."""
    if row in STEERABLE:
        pytest.importorskip("e2cnn", reason="the steerable baseline: pip install 'ien[steerable]'")
    configs = plan([f"study/{row}"], "smoke", [1], ["test_images=16"], machine={"threads": 1})
    run_all(configs, folder, folder / "results", "embedded", console=Console(file=io.StringIO()))
    return folder / run_name(configs[0], "embedded")


@pytest.mark.parametrize("row", ROWS)
def test_row_runs_end_to_end(row: str, folder: Path) -> None:
    run = finished(row, folder)
    record = json.loads((run / "result.json").read_text())
    assert record["images_seen"] == (1024 if row == "cnn-aug-2x" else 512)
    assert list(record["layers"]) == [f"conv{i}" for i in range(1, 7)]
    errors = [layer["relative"] for layer in record["layers"].values()]
    if row in STEERABLE or "regular-equivariant-all" in row:
        assert max(errors) < 1e-2
    elif "equivariant" not in row:
        assert max(errors) > 0.05
    assert not ien.load(run).training


def test_the_table_shows_all_of_them(folder: Path) -> None:
    rows = [row for row in ROWS if (folder / "study" / row).exists()]
    console = Console(file=io.StringIO(), width=200, record=True)
    if "cnn-aug" not in rows:
        finished("cnn-aug", folder)
    print_table("study", folder, console=console)
    text = console.export_text()
    assert set(rows) <= set(text.split()) and "All digits: Accuracy and cost (smoke, embedded-5k)" in text
    (line,) = (line for line in text.splitlines() if line.split()[:1] == ["cnn-aug"] and " k " in line)
    assert line.split()[-2] == "512"  # images seen, before images/s
