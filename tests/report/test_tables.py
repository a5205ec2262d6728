"""Tables against the numbers of made-up records: what is printed, on a terminal and as Markdown."""

import math
import re
import statistics
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ien.experiments.tables import write_page
from ien.report import PaperRow, Part, Row, as_markdown, as_rich, collect, summarise
from ien.report.tables.agreement import Agreement
from ien.training.evaluate import REGULAR_IMAGES
from tests.helpers.records import LAYERS, content, parse, write_records

PAPER = {
    "rot-mnist/cnn": PaperRow(96.3, (0, -1, 0, 0, 0, -1)),
    "rot-mnist/e2cnn": PaperRow(98.8, (-11, -10, -8, -9, -8, -8)),
    "rot-mnist/ien-r4": PaperRow(98.6, (-7, -6, -5, -5, -5, -4)),
}
ORDER = ["rot-mnist/cnn", "rot-mnist/cnn-aug", "rot-mnist/e2cnn", "rot-mnist/ien-r4"]


def rows_of(folder: Path, *records: dict[str, Any]) -> list[Row]:
    return summarise(collect(write_records(folder / "results", *records)), ORDER)


def markdown_of(rows: list[Row]) -> str:
    return as_markdown([Part("", rows)], PAPER)


def notes_of(rows: list[Row]) -> list[str]:
    return [line[2:] for line in markdown_of(rows).splitlines() if line.startswith("- ")]


def table_of(rows: list[Row], start: str) -> list[dict[str, str]]:
    (table,) = [lines for name, lines in parse(markdown_of(rows)).items() if name.startswith(start)]
    return table


def printed(rows: list[Row], width: int = 100) -> str:
    console = Console(width=width, file=StringIO(), record=True)
    console.print(as_rich(Part("", rows), PAPER, width))
    return console.export_text()


def test_cells_are_means_and_spreads_beside_the_papers(tmp_path) -> None:
    names = ["cnn", "cnn-aug", "ien-r4"]
    rows = rows_of(tmp_path, *[content(name, seed) for name in names for seed in (1, 2, 3)])
    costs = table_of(rows, "Accuracy")
    assert [line["row"] for line in costs] == names
    for line, row in zip(costs, rows, strict=True):
        accuracies = [100 * record.accuracy for record in row.records]
        spread = f"{statistics.mean(accuracies):.2f} ± {statistics.stdev(accuracies):.2f}"
        assert (line["accuracy %"], line["with copies %"]) == (spread, f"{row.accuracy_with_copies:.2f}")
        assert (line["params"], line["MACs"], line["training images seen"]) == ("174 k", "12.3 M", "240 k")
        assert (line["preset"], line["data"], line["seeds"]) == ("small", "generated", "1–3")
        assert line["images/s"] == f"{row.images_per_second:,.0f}"
    assert [line["paper %"] for line in costs] == ["96.3", "–", "98.6"]
    for start, which in (("Equivariance loss", "raw"), ("Relative error", "relative")):
        lines = [line for line in table_of(rows, start) if line["row"] != "in the paper"]
        for line, row in zip(lines, rows, strict=True):
            assert [line[name] for name in LAYERS] == [f"{getattr(row.layer(n), which):.1e}" for n in LAYERS]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_terminal_tables_fit_with_every_number_whole(tmp_path, width) -> None:
    wide = {"data__source": "embedded-5k", "parameters": 2_695_000, "macs": 999_600_000}
    rows = rows_of(
        tmp_path,
        *[content("e2cnn", seed) for seed in (1, 2, 3, 7)],
        content("ien-r4-beta1000", images_per_second=123456.0, accuracy=1.0, **wide),
        content("ien-r4", changes={"beta": 0.3, "epochs": 5}, data__tested_on="validation"),
    )
    text = printed(rows, width)
    assert max(map(len, text.splitlines())) <= width and "…" not in text
    words = set(re.split(r"[\s(),]+", text))
    for lines in parse(markdown_of(rows)).values():
        for line in lines:
            assert set(re.split(r"[\s(),]+", " ".join(line.values()))) <= words


def test_errors_per_channel_have_a_table_where_a_record_has_them(tmp_path) -> None:
    known = [content("e2cnn", seed) for seed in (1, 2)]
    for k, record in enumerate(known):
        for i, name in enumerate(LAYERS):
            record["layers"][name]["relative_regular"] = (k + 1) * 10.0 ** (i - 5)
    rows = rows_of(tmp_path, content("cnn"), *known)
    cnn, e2cnn = table_of(rows, "Relative error per channel (regular)")
    assert [cnn[name] for name in LAYERS] == ["–"] * 6
    assert [e2cnn[name] for name in LAYERS] == [f"{1.5 * 10.0 ** (i - 5):.1e}" for i in range(6)]
    note = f"permuted by the element, instead of their maximum; on the first {REGULAR_IMAGES:,} test images"
    assert note in markdown_of(rows) and "per channel" not in markdown_of(rows[:1])


def test_speeds_are_shown_of_rows_on_the_commonest_machine(tmp_path) -> None:
    other = content("cnn", machine="Another processor, 1 threads, Linux")
    rows = rows_of(tmp_path, content("cnn-aug"), other, content("ien-r4"))
    cells = {line["row"]: line["images/s"] != "–" for line in table_of(rows, "Accuracy")}
    assert cells == {"cnn-aug": True, "cnn": False, "ien-r4": True}
    (alone,) = table_of([row for row in rows if row.label == "cnn"], "Accuracy")
    assert alone["images/s"] != "–"


def test_seeds_that_saw_different_numbers_of_images_show_both(tmp_path) -> None:
    rows = rows_of(tmp_path, content(seed=1, images_seen=1000), content(seed=2, images_seen=2000))
    assert table_of(rows, "Accuracy")[0]["training images seen"] == "1 k / 2 k"


def test_the_papers_exponents_stand_under_the_row_they_belong_to(tmp_path) -> None:
    rows = rows_of(tmp_path, content("cnn-aug"), content("e2cnn"), content("ien-r4", changes={"beta": 0.3}))
    lines = table_of(rows, "Equivariance loss")
    assert [line["row"] for line in lines] == ["cnn-aug", "e2cnn", "in the paper", "ien-r4 (beta=0.3)"]
    assert [lines[2][name] for name in LAYERS] == ["10⁻¹¹", "10⁻¹⁰", "10⁻⁸", "10⁻⁹", "10⁻⁸", "10⁻⁸"]
    assert table_of(rows, "Accuracy")[2]["paper %"] == "–"


def test_bars_in_labels_do_not_break_the_table(tmp_path) -> None:
    (row,) = rows_of(tmp_path, content(changes={"layers": ["conv1", "conv|2"]}))
    assert table_of([row], "Accuracy")[0]["row"] == row.label.replace("|", r"\|")
    assert 'layers=["conv1",' in printed([row], width=200)


@pytest.mark.parametrize("missing", [None, math.nan])
def test_a_value_that_was_not_measured_is_a_dash(tmp_path, missing) -> None:
    blank = content(layers__conv2__relative=missing, accuracy_with_copies=missing, images_per_second=missing)
    rows = rows_of(tmp_path, blank)
    (line,) = table_of(rows, "Relative")
    assert [line[name] == "–" for name in LAYERS] == [False, True, False, False, False, False]
    (line,) = table_of(rows, "Accuracy")
    assert line["with copies %"] == line["images/s"] == "–"
    assert not re.search(r"\bnan\b", printed(rows) + markdown_of(rows))


def test_agreement_stands_beside_accuracy_and_older_records_have_a_dash(tmp_path) -> None:
    records = []
    for seed in (1, 2):
        measured = {"agreement": 0.5 + seed / 10, "accuracy_under_group": 0.25, "seconds": 100.0 * seed}
        records.append({**content("cnn", seed), **measured})
    rows = rows_of(tmp_path, *records, content("ien-r4", 1))
    new, old = parse(as_markdown([Part("", rows, (), kind=Agreement())], {}))["Accuracy and agreement"]
    assert (new["agreement %"], new["under group %"]) == ("65.0 ± 7.1", "25.00 ± 0.00")
    assert new["training s"] == "100" and new["MACs"] == "12.3 M" and new["seeds"] == "1–2"
    worst = [max(layer["relative"] for layer in record["layers"].values()) for record in records]
    assert new["worst error"] == f"{statistics.mean(worst):.1e}"
    assert old["agreement %"] == old["under group %"] == "–" and old["training s"] == "201"
    assert "Relative error" not in as_markdown([Part("", rows, (), kind=Agreement())], {})


def test_notes_say_once_what_all_share_and_name_who_differs(tmp_path) -> None:
    rows = rows_of(
        tmp_path,
        content("cnn", 1),
        content("ien-r4", 1),
        content("ien-r4", 1, finished="2026-11-17T00:00:00+00:00"),
        content("ien-r4", 2, commit=None, config__epochs=12, config__transform=False, config__cutout=3),
        content("e2cnn", 1, trained_parameters=25_000),
    )
    notes = notes_of(rows)
    assert "transform" not in content()["config"] and "differ in transform" not in str(notes)  # its default
    assert "ien-r4: its runs differ in cutout (0, 3)" in notes
    assert "commit: abc1234 (cnn, e2cnn, ien-r4 seed 1); unknown (ien-r4 seed 2)" in notes
    assert "data: rot-mnist, generated: 12,000 training and 50,000 test images" in notes
    assert "versions: ien 0.1.0, numpy 2.4.0, python 3.11.7, torch 2.13.0+cpu" in notes
    assert f"machine: {content()['machine']}" in notes
    assert "ien-r4: its runs differ in epochs (10, 12)" in notes
    assert "ien-r4: seed 1 was recorded more than once; the newest record counts" in notes
    assert "e2cnn: 25 k parameters are trained" in notes


@pytest.mark.parametrize("count", [20, 21])
def test_notes_of_many_rows_list_what_they_have_and_not_who_has_it(tmp_path, count) -> None:
    records = []
    for k in range(count):
        records.append(content(f"row-{k}", 1, commit="abc1234" if k < 15 else "def5678"))
    (commits,) = (note for note in notes_of(rows_of(tmp_path, *records)) if note.startswith("commit: "))
    assert ("row-16" in commits) == (count == 20)
    if count == 21:
        assert commits == "commit: abc1234; def5678 (the record of a run says which is its own)"


def test_notes_say_that_remainders_are_among_the_parameters_trained(tmp_path) -> None:
    rows = rows_of(tmp_path, content("cnn", 1, trained_parameters=213_562) | {"slack": {"conv1.0": 0.01}})
    assert "cnn: 214 k parameters are trained, free remainders counted" in notes_of(rows)


def test_page_has_a_section_for_each_table_and_its_reading(tmp_path) -> None:
    write_records(tmp_path / "rot-mnist" / "small", content("cnn"), content("ien-r4", accuracy=0.11))
    resnet = {"experiment": "rot-tim/resnet18-r8-ien-beta0.1", "group": "rot8", "feature_groups": "8"}
    het = {"experiment": "rot-tim/resnet18-r8-4-2-1-cnn-aug", "group": "rot8", "feature_groups": "8-4-2-1"}
    for k, changed in enumerate((resnet, het)):
        other = content(seed=k + 1)
        other["config"] |= changed | {"model": "resnet18", "width": 1.0}
        for layer in other["layers"].values():
            layer["per_element"] = {"45°": 0.5, "90°": 0.25, "135°": 0.7, "180°": 0.05}
        write_records(tmp_path / "rot-tim", other)
    (tmp_path / "rot-mnist" / "reading.md").write_text("\nIt did not hold.\n")
    write_page(tmp_path / "page.md", "rot-mnist", tmp_path)
    text = (tmp_path / "page.md").read_text()
    headings = [line for line in text.splitlines() if line.startswith("#") and not line.startswith("### ")]
    assert headings == ["# Results", "## rot-mnist", "## rot-tim", "## het"]
    first, second, third = re.split("## rot-tim|## het", text)
    assert first.rstrip().endswith("### Reading\n\nIt did not hold.") and "### Reading" not in second
    assert "`ien table`" in text and "| 11.00 |" in first and "| resnet18-r8-ien-beta0.1 |" in second
    assert "8-4-2-1" not in second and "channels %" not in second
    shares = [line["channels %"] for line in parse(third)["ResNet18: Accuracy and cost"]]
    assert shares == ["100", "67"]  # 43 of 64
    exact = parse(second)["ResNet18: Relative error of quarter turns and flips alone"]
    between = parse(second)["ResNet18: Relative error of the other elements alone, which resample"]
    assert exact[0]["conv1"] == "1.5e-01" and between[0]["conv1"] == "6.0e-01"
    assert "which resample" not in first
    assert "the base net 11.22 M" in second and "base net" not in first and "VGG" not in text
    assert "\n\n\n" not in text and text.endswith("\n") and not text.endswith("\n\n")


def test_markup_in_a_record_is_text_in_the_notes_of_a_page(tmp_path) -> None:
    record = content("cnn", 1) | {"machine": "<img src=x>", "commit": "<b>"}
    notes = "\n".join(notes_of(rows_of(tmp_path, record)))
    assert "&lt;img src=x&gt;" in notes and "&lt;b&gt;" in notes and "<" not in notes
