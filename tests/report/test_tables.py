"""Tables against the numbers of fabricated records: what is averaged, what is kept apart, what is printed."""

from __future__ import annotations

import copy
import json
import math
import re
import statistics
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from ien.experiments.tables import write_page
from ien.report import PaperRow, Part, as_rich, collect, read, summarise
from ien.report import as_markdown as markdown_of
from ien.training.evaluate import REGULAR_IMAGES

LAYERS = [f"conv{i}" for i in range(1, 7)]
PAPER = {
    "rot-mnist/cnn": PaperRow(96.3, (0, -1, 0, 0, 0, -1)),
    "rot-mnist/e2cnn": PaperRow(98.8, (-11, -10, -8, -9, -8, -8)),
    "rot-mnist/ien-r4": PaperRow(98.6, (-7, -6, -5, -5, -5, -4)),
}
ORDER = ["rot-mnist/cnn", "rot-mnist/cnn-aug", "rot-mnist/e2cnn", "rot-mnist/ien-r4"]


def content(row: str = "ien-r4", seed: int = 1, **fields: Any) -> dict[str, Any]:
    """A record as the engine writes it; ``data__source`` reaches inside."""
    rng = np.random.default_rng([seed, *row.encode()])
    record: dict[str, Any] = {
        "format": 2,
        "config": {
            **{
                "task": "classify",
                "experiment": f"rot-mnist/{row}",
                "preset": "small",
                "seed": seed,
                "epochs": 10,
            },
            **{"group": "rot4", "model": "cnn6", "feature_groups": "4", "width": 0.125},
        },
        "changes": {},
        "data": {
            "name": "rot-mnist",
            "source": "generated",
            "train": 12000,
            "test": 50000,
            "tested_on": "test",
        },
        "versions": {"ien": "0.1.0", "torch": "2.13.0+cpu", "numpy": "2.4.0", "python": "3.11.7"},
        "machine": "A processor of some maker, model 1234 @ 2.00 GHz, 2 threads, Linux",
        "commit": "abc1234",
        "finished": f"2026-11-16T02:00:{seed % 60:02}+00:00",
        "seconds": 201.3,
        "images_seen": None,
        "accuracy": float(rng.uniform(0.9, 1)),
        "accuracy_with_copies": float(rng.uniform(0.9, 1)),
        "layers": {
            name: {"raw": float(10 ** rng.uniform(-9, 0)), "relative": float(10 ** rng.uniform(-9, 0))}
            for name in LAYERS
        },
        "parameters": 174_000,
        "trained_parameters": 174_000,
        "macs": 12_345_678,
        "images_per_second": float(rng.uniform(5000, 7000)),
    }
    for name, value in fields.items():
        inside = record
        *parents, last = name.split("__")
        for parent in parents:
            inside = inside[parent]
        inside[last] = value
    return record


def as_markdown(rows: list[Any], paper: dict[str, PaperRow]) -> str:
    return markdown_of([Part("", rows)], paper)


def write(folder: Path, *records: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    start = len(list(folder.iterdir()))
    for i, record in enumerate(records, start):
        (folder / f"{i:03}.json").write_text(json.dumps(record))
    return folder


def rows_of(tmp_path: Path, *records: dict[str, Any]) -> list[Any]:
    return summarise(collect(write(tmp_path / "results", *records)), ORDER)


def parse(markdown: str) -> dict[str, list[dict[str, str]]]:
    """The tables of a Markdown text, by heading, a dict for each line."""
    tables = {}
    for part in re.split(r"^### ", markdown, flags=re.MULTILINE)[1:]:
        heading, *lines = part.splitlines()
        cells = [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines if line[:1] == "|"]
        if cells:
            assert all(len(line) == len(cells[0]) for line in cells)
            tables[heading] = [dict(zip(cells[0], line, strict=True)) for line in cells[2:]]
    return tables


def printed(rows: list[Any], width: int = 100) -> str:
    console = Console(width=width, file=StringIO(), record=True)
    console.print(as_rich(Part("", rows), PAPER, width))
    return console.export_text()


def table_of(rows: list[Any], start: str) -> list[dict[str, str]]:
    (table,) = [lines for name, lines in parse(as_markdown(rows, PAPER)).items() if name.startswith(start)]
    return table


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_every_column_is_shown_whole_beside_the_names_of_the_rows(tmp_path: Path, width: int) -> None:
    rows = rows_of(tmp_path, *(content(seed=seed) for seed in (1, 2, 3)))
    text = printed(rows, width)
    assert max(map(len, text.splitlines())) <= width
    for line in table_of(rows, "Accuracy"):
        shown = [found for found in text.splitlines() if line["row"] in found.split()]
        cells = [cell for name, cell in line.items() if name not in ("preset", "data")]  # in the title
        assert all(any(cell in found for found in shown) for cell in cells)


def test_mean_and_spread_are_those_of_numpy(tmp_path: Path) -> None:
    records = [content(seed=seed) for seed in (1, 2, 3, 5)]
    (row,) = rows_of(tmp_path, *records)
    accuracy = 100 * np.array([record["accuracy"] for record in records])
    mean, spread = row.accuracy
    assert abs(mean - accuracy.mean()) < 1e-12 and abs(spread - accuracy.std(ddof=1)) < 1e-12
    copies = np.mean([100 * record["accuracy_with_copies"] for record in records])
    assert abs(row.accuracy_with_copies - copies) < 1e-12
    assert row.images_per_second == np.median([record["images_per_second"] for record in records])
    for name in LAYERS:
        for which in ("raw", "relative"):
            mean = np.mean([record["layers"][name][which] for record in records])
            assert abs(getattr(row.layer(name), which) - mean) <= 1e-15 * mean
    assert row.seeds == "1–3, 5"


def test_errors_of_members_one_by_one_have_a_table_where_any_record_has_them(tmp_path: Path) -> None:
    known = [content("e2cnn", seed) for seed in (1, 2)]
    for k, record in enumerate(known):
        for i, name in enumerate(LAYERS):
            record["layers"][name]["relative_regular"] = (k + 1) * 10.0 ** (i - 5)
    rows = rows_of(tmp_path, content("cnn"), *known)
    cnn, e2cnn = table_of(rows, "Relative error, members one by one")
    assert [cnn[name] for name in LAYERS] == ["–"] * 6
    assert [e2cnn[name] for name in LAYERS] == [f"{1.5 * 10.0 ** (i - 5):.1e}" for i in range(6)]
    note = f"permuted by the element, instead of their maximum; on the first {REGULAR_IMAGES:,} test images"
    assert note in as_markdown(rows, PAPER)
    without = as_markdown(rows[:1], PAPER)
    assert "one by one" not in without and "Relative error" in without


def test_markdown_holds_the_same_numbers(tmp_path: Path) -> None:
    names = ["cnn", "cnn-aug", "ien-r4"]
    rows = rows_of(tmp_path, *[content(name, seed) for name in names for seed in (1, 2, 3)])
    markdown = as_markdown(rows, PAPER)
    costs = table_of(rows, "Accuracy")
    assert [line["row"] for line in costs] == names
    for line, row in zip(costs, rows, strict=True):
        mean, spread = map(float, line["accuracy %"].split(" ± "))
        accuracies = [100 * record.accuracy for record in row.records]
        assert abs(mean - statistics.mean(accuracies)) <= 0.00501
        assert abs(spread - statistics.stdev(accuracies)) <= 0.00501
        assert abs(float(line["with copies %"]) - row.accuracy_with_copies) <= 0.00501
        assert (line["params"], line["MACs"], line["seeds"]) == ("174 k", "12.3 M", "1–3")
        assert (line["preset"], line["data"]) == ("small", "generated")
        assert abs(float(line["images/s"].replace(",", "")) - row.images_per_second) <= 0.501
    assert [line["paper %"] for line in costs] == ["96.3", "–", "98.6"]
    for start, which in (("Equivariance loss", "raw"), ("Relative error", "relative")):
        lines = [line for line in table_of(rows, start) if line["row"] != "in the paper"]
        for line, row in zip(lines, rows, strict=True):
            for name in LAYERS:
                value = getattr(row.layer(name), which)
                assert abs(float(line[name]) - value) <= 0.0501 * 10 ** math.floor(math.log10(value))
    assert "**" not in markdown


def test_speeds_are_shown_of_rows_on_the_machine_that_most_are_from(tmp_path: Path) -> None:
    other = content("cnn", machine="Another processor, 1 threads, Linux")
    rows = rows_of(tmp_path, content("cnn-aug"), other, content("ien-r4"))
    cells = {line["row"]: line["images/s"] for line in table_of(rows, "Accuracy")}
    assert cells == {
        "cnn-aug": f"{rows[1].images_per_second:,.0f}",
        "cnn": "–",
        "ien-r4": f"{rows[2].images_per_second:,.0f}",
    }
    (alone,) = table_of([row for row in rows if row.label == "cnn"], "Accuracy")
    assert alone["images/s"] != "–"


def test_images_seen_are_those_of_the_record_or_of_an_older_configuration(tmp_path: Path) -> None:
    older = {"config__augment": True, "config__samples": 2, "config__group": "rot4+flip"}
    rows = rows_of(
        tmp_path,
        content("cnn", images_seen=240_640),
        content("cnn-aug", **older),
        content("e2cnn", **{**older, "config__augment": False}),
        content("ien-r4"),  # fields are missing
        content("other", seed=1, images_seen=1000),
        content("other", seed=2, images_seen=2000),
    )
    seen = {line["row"]: line["training images seen"] for line in table_of(rows, "Accuracy")}
    assert seen == {"cnn": "241 k", "cnn-aug": "600 k", "e2cnn": "120 k", "ien-r4": "–", "other": "1 k / 2 k"}
    bad = json.dumps(content(images_seen="many"))
    (tmp_path / "bad.json").write_text(bad)
    with pytest.raises(ValueError, match="images_seen should be a number; it is 'many'"):
        read(tmp_path / "bad.json")


def test_the_papers_exponents_stand_under_the_row_they_belong_to(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, content("cnn-aug"), content("e2cnn"), content("ien-r4", changes={"beta": 0.3}))
    lines = table_of(rows, "Equivariance loss")
    assert [line["row"] for line in lines] == ["cnn-aug", "e2cnn", "in the paper", "ien-r4 (beta=0.3)"]
    assert [lines[2][name] for name in LAYERS] == ["10⁻¹¹", "10⁻¹⁰", "10⁻⁸", "10⁻⁹", "10⁻⁸", "10⁻⁸"]
    assert table_of(rows, "Accuracy")[2]["paper %"] == "–"


def test_rows_follow_the_order_and_unknown_ones_come_last(tmp_path: Path) -> None:
    names = ["zeta", "ien-r4", "another", "cnn", "e2cnn", "cnn-aug"]
    rows = rows_of(tmp_path, *map(content, names))
    assert [row.label for row in rows] == ["cnn", "cnn-aug", "e2cnn", "ien-r4", "another", "zeta"]


@pytest.mark.parametrize(
    ("other", "visible"),
    [
        ({"data__source": "embedded-5k"}, "embedded-5k"),
        ({"data__tested_on": "validation"}, "generated, validation"),
        ({"config__preset": "smoke"}, "smoke"),
        ({"changes": {"beta": 0.3}}, "ien-r4 (beta=0.3)"),
    ],
    ids=["source", "tested_on", "preset", "changes"],
)
def test_what_differs_in_kind_is_never_pooled(tmp_path: Path, other: dict[str, Any], visible: str) -> None:
    rows = rows_of(tmp_path, content(seed=1), content(seed=2), content(seed=3, **other))
    assert sorted(row.seeds for row in rows) == ["1–2", "3"]
    for start in ("Accuracy", "Equivariance", "Relative"):
        lines = [line for line in table_of(rows, start) if line["row"] != "in the paper"]
        kinds = [(line["row"], line["preset"], line["data"]) for line in lines]
        assert len(set(kinds)) == 2 and sum(visible in kind for kind in kinds) == 1
    assert printed(rows).count(visible) >= 3


def test_changes_are_part_of_the_label(tmp_path: Path) -> None:
    changes = {"schedule": "exponential", "beta": 0.3, "layers": ["conv1", "conv|2"]}
    (row,) = rows_of(tmp_path, content(changes=changes))
    assert row.label == 'ien-r4 (beta=0.3, layers=["conv1", "conv|2"], schedule=exponential)'
    assert table_of([row], "Accuracy")[0]["row"] == row.label.replace("|", r"\|")
    assert 'layers=["conv1",' in printed([row], width=200)


def test_one_seed_has_no_spread(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, content())
    assert row.accuracy[1] is None
    (line,) = table_of([row], "Accuracy")
    assert abs(float(line["accuracy %"]) - 100 * content()["accuracy"]) <= 0.00501


@pytest.mark.parametrize("missing", [None, math.nan])
def test_a_value_that_was_not_measured_is_a_dash(tmp_path: Path, missing: float | None) -> None:
    blank = content(
        seed=2, layers__conv2__relative=missing, accuracy_with_copies=missing, images_per_second=missing
    )
    del blank["layers"]["conv6"]
    rows = rows_of(tmp_path, content(seed=1), blank)
    (line,) = table_of(rows, "Relative")
    assert [line[name] == "–" for name in LAYERS] == [False, True, False, False, False, True]
    (line,) = table_of(rows, "Accuracy")
    assert line["with copies %"] == "–"
    assert line["images/s"] == f"{content(seed=1)['images_per_second']:,.0f}"
    assert not re.search(r"\bnan\b", printed(rows) + as_markdown(rows, PAPER))


def test_the_newest_record_of_a_seed_counts_and_a_note_says_so(tmp_path: Path) -> None:
    new = content(seed=2, accuracy=0.5, finished="2026-11-17T00:00:00+02:00")
    old = content(seed=2, accuracy=0.9, finished="2026-11-16T21:59:59+00:00")
    (row,) = rows_of(tmp_path, new, old, content(seed=1, accuracy=0.7))
    assert [record.accuracy for record in row.records] == [0.7, 0.5]
    assert "ien-r4: seed 2 was recorded more than once; the newest record counts" in as_markdown([row], PAPER)


def test_a_copy_of_a_record_is_not_a_second_one(tmp_path: Path) -> None:
    record = content(layers__conv1__raw=math.nan)
    (row,) = rows_of(tmp_path, record, copy.deepcopy(record))
    assert len(row.records) == 1 and "more than once" not in as_markdown([row], PAPER)


def test_notes_say_once_what_all_share_and_name_who_differs(tmp_path: Path) -> None:
    rows = rows_of(
        tmp_path,
        content("cnn", 1),
        content("ien-r4", 1),
        content("ien-r4", 2, commit=None, config__epochs=12),
        content("e2cnn", 1, trained_parameters=25_000),
    )
    notes = [line[2:] for line in as_markdown(rows, PAPER).splitlines() if line.startswith("- ")]
    assert "commit: abc1234 (cnn, e2cnn, ien-r4 seed 1); unknown (ien-r4 seed 2)" in notes
    assert "data: rot-mnist, generated: 12,000 training and 50,000 test images" in notes
    assert "versions: ien 0.1.0, numpy 2.4.0, python 3.11.7, torch 2.13.0+cpu" in notes
    assert f"machine: {content()['machine']}" in notes
    assert "ien-r4: its runs differ in epochs (10, 12)" in notes
    assert "e2cnn: 25 k parameters are trained" in notes


@pytest.mark.parametrize("width", [80, 100, 120])
def test_terminal_tables_fit_with_every_number_whole(tmp_path: Path, width: int) -> None:
    wide = {"data__source": "embedded-5k", "parameters": 2_695_000, "macs": 999_600_000}
    rows = rows_of(
        tmp_path,
        *[content("e2cnn", seed) for seed in (1, 2, 3, 7)],
        content("ien-r4-beta1000", images_per_second=123456.0, accuracy=1.0, **wide),
        content("ien-r4", changes={"beta": 0.3, "epochs": 5}, data__tested_on="validation"),
    )
    assert [line["MACs"] for line in table_of(rows, "Accuracy")] == ["12.3 M", "12.3 M", "1 G"]
    text = printed(rows, width)
    assert max(map(len, text.splitlines())) <= width and "…" not in text
    words = set(re.split(r"[\s(),]+", text))
    for lines in parse(as_markdown(rows, PAPER)).values():
        for line in lines:
            assert set(re.split(r"[\s(),]+", " ".join(line.values()))) <= words


def test_only_results_count_in_a_run_folder(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    for name, text in {"config.json": "{}", "extra.json": "[", "result.json": json.dumps(content())}.items():
        (run / name).write_text(text)
    unfinished = tmp_path / "runs" / "two"
    unfinished.mkdir()
    (unfinished / "config.json").write_text("{}")
    (tmp_path / "runs" / ".half.json").write_text("{")
    assert [record.path for record in collect(tmp_path)] == [run / "result.json"]
    assert collect(run) == collect(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": 2, "config"', "is damaged .* delete it and run its row again"),
        ("\udcff", "is damaged .* delete it"),
        ("[" * 100_000, "is damaged .* delete it"),
        ("[1, 2]", "is not the record of a run .* move it elsewhere"),
        ('{"name": "x"}', "is not the record of a run .* move it elsewhere"),
        (json.dumps(content(format=2)), "has format 2 and this version of ien reads format 1: update ien"),
        (json.dumps(content(config={"seed": 1})), r"is damaged \(it has no experiment\)"),
        (json.dumps(content(config__seed=True)), "seed should be of type int; it is True"),
        (json.dumps(content(data=3)), "it has no data.name"),
        (json.dumps(content(accuracy=96.1)), "accuracies should be from 0 to 1; they are 96.1 and"),
        (json.dumps(content(accuracy=None)), "accuracies should be from 0 to 1; they are nan and"),
        (json.dumps(content(layers__conv1="x")), "it has no conv1.raw"),
        (json.dumps(content(layers__conv1__raw="x")), "conv1.raw should be a number; it is 'x'"),
        (json.dumps(content(finished="yesterday")), "is damaged .*yesterday"),
        (json.dumps(content(finished="2026-11-16T02:00:00")), "finished should name a time zone"),
    ],
    ids=range(15),
)
def test_a_bad_file_is_named_with_the_remedy(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} .*{message}"):
        read(path)
    with pytest.raises(ValueError, match=re.escape(str(path))):
        collect(tmp_path)


def test_no_records_names_the_folder_and_the_command(tmp_path: Path) -> None:
    command = re.escape("ien run 'rot-mnist/*' --preset small --seeds 1-3")
    write(tmp_path, content() | {"config": content()["config"] | {"experiment": "other/row"}})
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(FileNotFoundError, match=f"{re.escape(str(folder))}: .*{command}"):
            collect(folder, "rot-mnist/*")


def test_page_has_a_section_for_each_table_and_its_reading(tmp_path: Path) -> None:
    write(tmp_path / "rot-mnist" / "small", content("cnn"), content("ien-r4", accuracy=0.11))
    resnet = {"experiment": "rot-tim/resnet18-r8-ien-beta0.1", "group": "rot8", "feature_groups": "8"}
    het = {"experiment": "rot-tim/resnet18-r8-4-2-1-het-ien", "group": "rot8", "feature_groups": "8-4-2-1"}
    for k, changed in enumerate((resnet, het)):
        other = content(seed=k + 1) | {
            "config": content()["config"] | changed | {"model": "resnet18", "width": 1.0}
        }
        for layer in other["layers"].values():
            layer["per_element"] = {"45°": 0.5, "90°": 0.25, "135°": 0.7, "180°": 0.05}
        write(tmp_path / "rot-tim", other)
    (tmp_path / "rot-mnist" / "reading.md").write_text("\nIt did not hold.\n")
    write_page(tmp_path / "page.md", "rot-mnist", tmp_path)
    text = (tmp_path / "page.md").read_text()
    headings = [line for line in text.splitlines() if line.startswith("#") and not line.startswith("### ")]
    assert headings == ["# Results", "## rot-mnist", "## rot-tim", "## het"]
    first, second, third = re.split("## rot-tim|## het", text)
    assert first.rstrip().endswith("### Reading\n\nIt did not hold.") and "### Reading" not in second
    assert "`ien table`" in text and "| 11.00 |" in first and "| resnet18-r8-ien-beta0.1 |" in second
    assert "het-ien" not in second and "channels %" not in second
    shares = [line["channels %"] for line in parse(third)["ResNet18: Accuracy and cost"]]
    assert shares == ["100", "67"]  # 43 of 64
    exact = parse(second)["ResNet18: Relative error of quarter turns and flips alone"]
    between = parse(second)["ResNet18: Relative error of the other elements alone, which resample"]
    assert exact[0]["conv1"] == "1.5e-01" and between[0]["conv1"] == "6.0e-01"
    assert "which resample" not in first
    assert "the base net 11.22 M" in second and "base net" not in first and "VGG" not in text
    assert "\n\n\n" not in text and text.endswith("\n") and not text.endswith("\n\n")


def test_report_loads_neither_training_code_nor_rich() -> None:
    code = "import sys, ien.report; print([n for n in sys.modules if n.startswith(('ien.training', 'rich'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
