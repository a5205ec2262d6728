"""Tables of trackers against the numbers of made-up records; other tables do not notice them."""

import json
import re
import statistics
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from ien.experiments import names, paper
from ien.experiments.tables import print_table, write_page
from ien.report import Part, as_markdown, as_rich, collect, summarise
from ien.tracking.report.tables import Trackers
from tests.helpers.records import content, parse
from tests.helpers.shell import error_of, invoke
from tests.helpers.trackers import ROWS, record

pytestmark = pytest.mark.usefixtures("elsewhere")


def write(folder: Path, *records: dict[str, Any]) -> Path:
    for made in records:
        experiment, seed = made["config"]["experiment"], made["config"]["seed"]
        path = folder / experiment / f"{made['config']['preset']}-seed{seed}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(made))
    return folder


def rows_of(*records: dict[str, Any]) -> list[Any]:
    return summarise(collect(write(Path("results"), *records)), names())


def markdown_of(*records: dict[str, Any]) -> str:
    return as_markdown([Part("", rows_of(*records), kind=Trackers())], paper("tracking"))


def tables_of(*records: dict[str, Any]) -> dict[str, dict[str, dict[str, str]]]:
    """Title → row → column → cell."""
    tables = parse(markdown_of(*records))
    return {title: {line["row"]: line for line in lines} for title, lines in tables.items()}


def notes_of(*records: dict[str, Any]) -> list[str]:
    return [line[2:] for line in markdown_of(*records).splitlines() if line.startswith("- ")]


def test_cells_are_means_and_spreads_over_the_seeds() -> None:
    made = [record("re-siamfc", seed) for seed in (1, 2, 4)]
    tables = tables_of(*made)
    for test, title in (("otb", "OTB"), ("rot-otb", "Rot-OTB")):
        line = tables[f"Success and precision on {title}"]["re-siamfc"]
        for column in ("success", "precision"):
            values = [each["tracking"][test][column] for each in made]
            assert line[column] == f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"
        auc = statistics.fmean(each["tracking"][test]["precision_auc"] for each in made)
        assert line["prec. AUC"] == f"{auc:.3f}" and line["seeds"] == "1–2, 4"
    errors = [each["tracking"]["rot-otb"]["orientation_error"] for each in made]
    assert line["angle error °"] == f"{statistics.fmean(errors):.1f}"
    assert (line["paper succ."], line["paper prec."]) == ("0.35", "0.62")
    cost = tables["Cost of an update"]["re-siamfc"]
    speed = statistics.median(each["images_per_second"] for each in made)
    assert (cost["params"], cost["MACs"], cost["fps"]) == ("487 k", "6.54 G", f"{speed:.1f}")
    layers = tables["Relative error, L_G over variance: lower is better"]["re-siamfc"]
    relative = statistics.fmean(each["layers"]["conv5"]["relative"] for each in made)
    assert layers["conv5"] == f"{relative:.1e}"


def test_speeds_are_shown_of_one_machine_alone() -> None:
    made = [record("re-siamfc", 1), record("siamfc", 1)]
    assert "fps" in tables_of(*made)["Cost of an update"]["siamfc"]
    assert any(note.startswith("fps: updates in a second") for note in notes_of(*made))
    made[1]["machine"] = "Another processor, 1 threads, Linux"
    assert "fps" not in tables_of(*made)["Cost of an update"]["siamfc"]
    assert any("docs/benchmarks.md" in note for note in notes_of(*made))


def test_rows_stand_in_the_papers_order_with_its_figures_and_channels() -> None:
    tables = tables_of(*map(record, ROWS))
    turned = tables["Success and precision on Rot-OTB"]
    assert list(turned) == list(ROWS)
    printed = [f"{line['paper succ.']} {line['paper prec.']}" for line in turned.values()]
    assert printed == ["0.29 0.47", "0.33 0.56", "0.35 0.62", "0.37 0.63", "– –", "– –", "0.37 0.62"]
    shares = {row: line["channels %"] for row, line in tables["Cost of an update"].items()}
    # 48, 128, 192, 192 and 16 feature groups of 4, of 2.75 on average, or twice as many of 1
    assert shares == {**dict.fromkeys(ROWS, "100"), "siamfc": "50", "het-siamfc": "69"}
    assert "paper succ." not in tables["Success and precision on OTB"]["siamfc"]


def test_what_must_be_beaten_is_shown_and_who_does_not_is_named() -> None:
    made = [record("siamfc", 1), record("siamfc", 2), record("ien-siamfc", 1), record("het-siamfc", 1)]
    own = made[1]["tracking"]["otb"]
    made[1]["tracking"]["still"]["otb"]["success"] = own["success"]  # level is not above
    made[3]["tracking"]["untrained"]["rot-otb"] = {"success": 1.0, "precision": 1.0}  # only plain OTB counts
    tables = tables_of(*made)
    plain = tables["Success and precision on OTB"]
    above = {row: line["above both"] for row, line in plain.items()}
    assert above == {"siamfc": "no", "ien-siamfc": "yes", "het-siamfc": "yes"}
    said = [note for note in notes_of(*made) if "is not above" in note]
    still = f"{own['success']:.3f} / 0.250; it has {own['success']:.3f} / {own['precision']:.3f}"
    assert said == [f"siamfc seed 2 on OTB is not above a box that never moves ({still})"]
    lines = tables["What must be beaten: a box that never moves, and each network untrained"]
    assert list(lines) == ["box that never moves", *(f"{row}, untrained" for row in plain)]
    columns = ("OTB success", "OTB precision", "Rot-OTB success", "Rot-OTB precision")
    untrained = [lines["ien-siamfc, untrained"][column] for column in columns]
    assert untrained == ["0.260", "0.310", "0.140", "0.160"]
    assert lines["box that never moves"]["Rot-OTB success"] == "0.110"


def test_hulls_have_a_column_where_a_record_has_them() -> None:
    old = [record("siamfc", 1), record("re-siamfc", 1)]
    before = tables_of(*old)["Success and precision on Rot-OTB"]
    assert "hull succ." not in before["re-siamfc"]
    assert not any(note.startswith("hull succ.") for note in notes_of(*old))
    new = [record("ien-siamfc", seed, tracking__rot_otb__success_hull=0.1 * seed) for seed in (1, 3)]
    tables = tables_of(*old, *new, record("het-siamfc", 1, tracking__rot_otb__success_hull=0.4))
    cells = {row: line["hull succ."] for row, line in tables["Success and precision on Rot-OTB"].items()}
    assert cells == {"siamfc": "–", "re-siamfc": "–", "ien-siamfc": "0.200 ± 0.141", "het-siamfc": "0.400"}
    assert "hull succ." not in tables["Success and precision on OTB"]["ien-siamfc"]
    assert any(note.startswith("hull succ.") for note in notes_of(*new))


def test_angle_errors_on_target_have_a_column_where_a_record_has_them() -> None:
    old = record("re-siamfc", 1)
    assert "held °" not in tables_of(old)["Success and precision on Rot-OTB"]["re-siamfc"]
    new = []
    for seed in (1, 2):
        field = {"tracking__rot_otb__orientation_error_on_target": 10.0 * seed}
        new.append(record("ien-siamfc", seed, **field))
    tables = tables_of(old, *new)
    cells = {row: line["held °"] for row, line in tables["Success and precision on Rot-OTB"].items()}
    assert cells == {"re-siamfc": "–", "ien-siamfc": "15.0"}
    assert "held °" not in tables["Success and precision on OTB"]["ien-siamfc"]
    assert any(note.startswith("held °") for note in notes_of(*new))


def test_presets_stand_side_by_side_in_one_table() -> None:
    made = [record("siamfc", seed) for seed in (1, 2)]
    made[1]["config"]["preset"] = "medium"
    text = markdown_of(*made)
    lines = parse(text)["Success and precision on Rot-OTB"]
    assert [(line["row"], line["preset"]) for line in lines] == [("siamfc", "medium"), ("siamfc", "small")]
    console = Console(width=120, file=StringIO(), record=True)
    print_table("tracking", Path("results"), "medium", console)
    alone = console.export_text()
    assert "on Rot-OTB (medium, subset)" in alone and "small" not in alone


def test_a_subset_is_called_one() -> None:
    notes = "\n".join(notes_of(record()))
    assert "OTB: 5 sequences with 690 frames, a subset: the whole has 100" in notes
    assert "\ntrained on 32 sequences in the layout of GOT-10k, which has 9,335" in notes
    assert "data: got10k, subset: 32 training and 5 test sequences" in notes
    one = {"success": 0.5, "precision": 0.5, "overlap": 0.5, "frames": 10}
    whole = {f"{k}": one for k in range(100)}
    full = record(data__train=9335, data__source="original", tracking__otb__sequences=whole)
    notes = notes_of(full)
    assert "OTB: 100 sequences with 1,000 frames" in notes
    assert not any("not training on GOT-10k" in note for note in notes)


def test_other_tests_have_tables_of_their_own_without_the_papers_figures() -> None:
    made = record("ien-siamfc", tests=("clips", "rot-clips"), data__name="synthetic-clips")
    made["config"]["preset"] = "demo"
    tables = tables_of(record("ien-siamfc"), made)
    tests = ("OTB", "Rot-OTB", "clips", "rot-clips")
    assert list(tables)[:4] == [f"Success and precision on {test}" for test in tests]
    assert "paper succ." not in tables["Success and precision on rot-clips"]["ien-siamfc"]
    assert tables["Success and precision on clips"]["ien-siamfc"]["preset"] == "demo"


@pytest.mark.parametrize("width", [80, 110])
def test_terminal_tables_fit_with_every_number_whole(width) -> None:
    hull = {"tracking__otb__success_hull": 0.31, "tracking__rot_otb__success_hull": 0.32}
    hull["tracking__rot_otb__orientation_error_on_target"] = 14.2
    rows = rows_of(*(record(row, seed, **hull) for row in ("siamfc", "ien-siamfc") for seed in (1, 2, 3)))
    console = Console(width=width, file=StringIO(), record=True)
    console.print(as_rich(Part("", rows, kind=Trackers()), paper("tracking")))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width and "…" not in text and "nan" not in text
    words = set(re.split(r"[\s(),]+", text))
    for lines in parse(as_markdown([Part("", rows, kind=Trackers())], paper("tracking"))).values():
        assert all(set(re.split(r"[\s(),]+", " ".join(line.values()))) <= words for line in lines)


def test_other_tables_are_the_same_with_a_tracker_among_the_records() -> None:
    pytest.importorskip("matplotlib")
    write(Path("results"), content("cnn"), content("ien-r4"))
    Path("results/rot-mnist/reading.md").write_text("It holds.")
    Path("results/tracking").mkdir()
    Path("results/tracking/reading.md").write_text("Where the target is lost.\n")

    def now() -> tuple[str, str, str]:
        console = Console(width=100, file=StringIO(), record=True)
        print_table("rot-mnist", Path("results"), console=console)
        write_page(Path("page.md"), "rot-mnist", Path("results"))
        invoke("plot", "costs", "results", "--out", "costs")
        return console.export_text(), Path("costs.svg").read_text(), Path("page.md").read_text()

    *before, page = now()
    write(Path("results"), record())
    *after, longer = now()
    assert after == before and "tracking" not in page
    assert longer.startswith(page.rstrip()) and "\n## tracking\n" in longer[len(page) - 1 :]
    assert longer.endswith("### Reading\n\nWhere the target is lost.\n")


def test_the_commands_draw_trackers_and_say_what_is_missing() -> None:
    pytest.importorskip("matplotlib")
    rows = ("siamfc", "re-siamfc", "het-siamfc")
    write(Path("results"), *map(record, rows))
    for kind in ("tracking", "turning"):
        done = invoke("plot", kind)
        assert done.stdout.splitlines() == [f"wrote plots/{kind}.png", f"wrote plots/{kind}.svg"]
        text = Path(f"plots/{kind}.svg").read_text()
        assert all(row in text for row in rows)
    invoke("plot", "tracking", "results/tracking/siamfc", "results/tracking/re-siamfc", "--out", "two")
    assert "re-siamfc" in (text := Path("two.svg").read_text()) and "het-siamfc" not in text
    write(Path("others"), content("cnn"))
    for arguments, message in (
        (("costs", "results"), "all records in results are of trackers"),
        (("turning", "nowhere"), "there is no folder nowhere"),
        (("tracking", "--preset", "paper"), "no records of preset 'paper'"),
        (("tracking", "others"), "no records of trackers in others"),
    ):
        assert message in error_of("plot", *arguments)
