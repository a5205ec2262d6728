"""The symmetry study at a glance: every cell against the JSON of the records, with marks for few seeds."""

import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest

from ien.experiments import find
from ien.experiments.overview import missing_methods, overview, overview_text, study_table
from ien.experiments.symmetry import DATA, METHODS
from ien.report import collect, summarise
from tests.helpers.records import content, write_records

ROOT = Path(__file__).parents[2]


def recorded(name: str, seed: int, accuracy: float, agreement: float, **changed) -> dict:
    record = content(seed=seed, accuracy=accuracy, **changed) | {"agreement": agreement}
    record["config"]["experiment"] = f"symmetry/{name}"
    return record


def cells_of(text: str, title: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {title} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


@pytest.mark.parametrize("data", DATA)
def test_every_cell_of_the_committed_table_is_that_of_the_files(data) -> None:
    cells = cells_of(study_table(ROOT / "results").partition("With a tenth")[0], DATA[data].title)
    for method, cell in zip(METHODS, cells, strict=True):
        files = list((ROOT / "results" / "symmetry" / f"{data}-{method}").glob("small-seed?.json"))
        if not files:
            assert cell == "–"
            continue
        records = [json.loads(path.read_text()) for path in files]
        accuracies = [100 * record["accuracy"] for record in records]
        numbers = [float(number) for number in re.findall(r"[\d.]+", cell)]
        expected = [np.mean(accuracies)]
        if len(files) > 1:
            expected.append(np.std(accuracies, ddof=1))
        expected.append(100 * np.mean([record["agreement"] for record in records]))
        assert numbers[:-1] == pytest.approx(expected[:-1], abs=0.0051)
        assert numbers[-1] == pytest.approx(expected[-1], abs=0.51)
        assert ("†" in cell, "‡" in cell) == (len(files) == 1, len(files) == 2)


def test_changed_runs_other_sizes_and_tenths_stay_out(tmp_path) -> None:
    records = [recorded("eurosat-cnn", seed, 0.5 + seed / 10, 0.75) for seed in (1, 2)]
    records.append(recorded("eurosat-tied", 1, 0.7, 1.0))
    records.append(recorded("eurosat-slack", 1, 0.9, 1.0, changes={"epochs": 5}))
    records.append(recorded("eurosat-e2cnn", 1, 0.9, 1.0, data__tested_on="validation"))
    records.append(recorded("eurosat-cnn-tenth", 1, 0.25, 0.4))
    rows = summarise(collect(write_records(tmp_path, *records)))
    (line,) = overview(rows, "small")
    assert line.data == "eurosat" and set(line.rows) == {"cnn", "tied"}
    assert overview(rows, "paper") == []
    first, second = study_table(tmp_path).split("With a tenth of the training images")
    assert cells_of(first, "EuroSAT, rot4xflip") == ["65.00 ± 7.07‡ (75)", "70.00† (100)"]
    assert cells_of(second, "EuroSAT, rot4xflip") == ["25.00† (40)"]
    counts = missing_methods(rows)
    assert counts["cnn"] == len(DATA) - 1 and counts["cnn-tenth"] == len(DATA) - 1
    assert counts["slack"] == len(DATA)  # the changed run does not count
    assert sum(counts.values()) == len(find("symmetry/*")) - 3


def test_the_overview_of_all_records_fits_80_columns_a_line_for_each_data_set() -> None:
    lines = overview_text(overview(summarise(collect(ROOT / "results", "symmetry/*")), "small"))
    assert max(map(len, lines)) <= 80
    names = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert names == list(DATA)


def test_the_script_replaces_what_is_between_its_marks_alone() -> None:
    spec = importlib.util.spec_from_file_location("results_script", ROOT / "docs" / "results.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    text = f"before\n{script.START}\n\nold\n\n{script.END}\nafter <!-- end -->\n"
    once = script.with_table(text, "new\n")
    assert once == f"before\n{script.START}\n\nnew\n\n{script.END}\nafter <!-- end -->\n"
    assert script.with_table(once, "new\n") == once
