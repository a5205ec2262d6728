"""Rows of other sizes: named after their size, comparable, and run by one command."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from ien.experiments import config, find
from ien.experiments.size import LABELS, METHODS, SIZE, SIZES_OF_ROWS
from ien.experiments.tables import print_table, table_rows
from ien.training import flat
from tests.helpers.configs import differing
from tests.helpers.shell import invoke

RESULTS = Path(__file__).parents[2] / "results"
WIDTHS = {"w8": 1 / 8, "w4": 1 / 4}


def test_every_method_has_every_size_once() -> None:
    rows = [*(name.removeprefix("size/") for name in find("size/*")), *LABELS.values()]
    assert sorted(rows) == sorted(f"{size}-{method}" for size in SIZES_OF_ROWS for method in METHODS)


@pytest.mark.parametrize("name", find("size/*"))
def test_a_row_has_the_size_in_its_name(name) -> None:
    width, epochs, _ = name.removeprefix("size/").split("-", 2)
    settings = flat(config(name, "small"))
    assert settings["width"] == WIDTHS[width] and settings["epochs"] == int(epochs.removeprefix("e"))
    assert settings["dataset"] == "rot-mnist" and settings["cycle_epochs"] == settings["epochs"] * 4 // 5


@pytest.mark.parametrize("shared", LABELS)
def test_rows_of_rot_mnist_are_what_the_label_says(shared) -> None:
    size, _, method = LABELS[shared].rpartition("e10-")
    twin = config(f"size/w8-e30-{method}", "small")
    changed = differing(config(shared, "small"), twin)
    assert size == "w8-" and changed == {"experiment", "epochs", "cycle_epochs"}


def test_the_papers_accuracies_stand_beside_every_size() -> None:
    printed = {"cnn-aug": 98.4, "e2cnn": 98.8, "ien-beta1": 98.6, "ien-beta0.1": 98.5}
    for line in table_rows("size", RESULTS, "small"):
        method = line["name"].split("-", 2)[2]
        found = line["paper"] and line["paper"]["accuracy"]
        assert found == (pytest.approx(printed[method] / 100) if method in printed else None), line["name"]


def test_the_table_shows_what_is_recorded_so_far() -> None:
    text = io.StringIO()
    print_table("size", RESULTS, "small", Console(file=text, width=120))
    assert "w8-e10-cnn-aug" in text.getvalue() and "w8-e10-tied" in text.getvalue()


@pytest.mark.slow
@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("row", list(SIZE.rows)[-2:])
def test_rows_run(row, tmp_path) -> None:
    given = ("--preset", "smoke", "--data", "embedded", "--threads", "1", "--out", tmp_path)
    invoke("run", f"size/{row}", *given)
    assert (tmp_path / "size" / row / "smoke-seed1-embedded" / "result.json").exists()
