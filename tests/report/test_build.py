"""The page of runs without a browser: its numbers, its size, what it escapes and what it refuses."""

import base64
import json
import os
import re
import shutil
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from torch import nn

pytest.importorskip("matplotlib", reason='the page needs pip install "ien[plots]"')

import ien
from ien.geometry.doctor import doctor
from ien.report.opened import open_runs
from ien.report.page import build
from ien.report.page.explorer import explore
from ien.report.page.parts import MAX_BYTES, Geometry, Plot, examine
from ien.report.page.sweeps import sweeps_of
from tests.helpers.toy_runs import MEASURED, Page, train, write_page

HOSTILE = """</script><img src=x onerror=alert(1)>"'&lt;${1}"""
pytestmark = pytest.mark.usefixtures("toy_data")


@pytest.fixture(scope="module")
def path(runs, tmp_path_factory) -> Path:
    return write_page(runs, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def page(path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def few(opened_runs):
    """Two opened runs and a small exploration of them."""
    two = opened_runs[:2]
    return two, explore(two, [dict.fromkeys(run.layers, 1.0) for run in two], images=2, maps=2)


NOT_EXAMINED = Geometry(None, "not examined")


def rendered(opened, exploration, geometry=NOT_EXAMINED, plots=()) -> Page:
    return Page(build._page(opened, [geometry] * len(opened), plots, exploration))


# --- the numbers


def test_the_table_holds_the_numbers_of_the_results_in_full(runs, page) -> None:
    expected = []
    for folder in runs:
        result = json.loads((folder / "result.json").read_text())
        names = ("accuracy", "accuracy_with_copies", "parameters", "macs", "images_per_second")
        expected += [result[name] for name in names]
        expected += [layer["relative"] for layer in result["layers"].values()]
    cells = [cell for cell in page.named("td") if "data-value" in cell]
    assert [float(cell["data-value"] or "nan") for cell in cells] == expected


def test_sections_plots_and_settings_are_there(page) -> None:
    assert page.text.count(f"Relative error over 71 rotations of the first {MEASURED} test images") == 1
    assert page.text.count(f"scalings of the first {MEASURED} test images") == 1
    for shown in page.data["runs"]:
        assert shown["name"] in page.text and re.fullmatch("#[0-9A-F]{6}", shown["colour"])
    assert sum(row.get("class") == "differs" for row in page.named("tr")) == 3
    assert len(page.named("img")) == 6
    for image in page.named("img"):
        kind, _, content = str(image["src"]).partition(",")
        assert kind == "data:image/svg+xml;base64" and b"</svg>" in base64.b64decode(content)
        assert image["alt"]


def test_settings_that_differ_have_a_value_for_each_run_and_the_others_one(opened_runs) -> None:
    different, equal = build._settings(opened_runs)
    assert {name for name, _ in different} == {"group", "augment", "beta"}
    assert dict(different)["beta"] == ["1.0", "0.0", "1.0"]
    assert dict(equal)["epochs"] == ["1"]
    assert {len(values) for _, values in equal} == {1}


def test_runs_that_only_scale_are_measured_over_factors(runs, tmp_path) -> None:
    told: list[str] = []
    path = tmp_path / "new" / "page.html"
    write_page(runs[2:], path, images=1, maps=1, measured=4, progress=told.append)
    found = Page(path.read_text(encoding="utf-8"))
    (sweep,) = found.data["sweeps"]
    assert sweep["kind"] == "scale" and sweep["marks"] == [1, 1.25] and sweep["values"][-1] == 1.25
    assert told[0].endswith(f"at {len(sweep['values'])} factors") and told[-1] == "drawing"
    assert f"over {len(sweep['values']) - 1} scalings of the first 4 test images" in found.text
    assert "from ×0.8 to ×1.25" in found.text and "each angle" not in found.text
    assert len(found.data["runs"]) == len(found.data["images"]) == 1


def test_runs_that_segment_have_dice_in_all_and_under_every_element(segment_runs, tmp_path) -> None:
    path = write_page(segment_runs, tmp_path / "report.html", images=2, maps=1)
    page = Page(path.read_text(encoding="utf-8"))
    expected, per_element = [], []
    for folder in segment_runs:
        result = json.loads((folder / "result.json").read_text())
        names = ("dice", "dice_under_group", "consistency", "parameters", "macs", "images_per_second")
        expected += [result[name] for name in names]
        expected += [layer["relative"] for layer in result["layers"].values()]
        per_element += result["dice_per_element"].items()
    cells = [cell for cell in page.named("td") if "data-value" in cell]
    of_elements = [cell for cell in cells if "data-element" in cell]
    assert [float(c["data-value"] or "nan") for c in cells if "data-element" not in c] == expected
    assert [(c["data-element"], float(c["data-value"])) for c in of_elements] == per_element
    assert "Dice under every element" in page.text and "with copies" not in page.text
    assert "Every operation commutes with quarter turns" in page.text  # the doctor has looked at it
    assert len(page.named("img")) == 3  # the cost is not drawn: these runs have no accuracy
    # the tied network is the better one of the headline
    consistency = json.loads((segment_runs[1] / "result.json").read_text())["consistency"]
    assert re.search(rf"has a Dice of 1; [^;]*tied[^;]* has {consistency:.3f} and", page.text)


# --- the file


def test_it_is_one_file_that_names_nothing_outside(path, page) -> None:
    assert path.stat().st_size <= MAX_BYTES and os.listdir(path.parent) == ["report.html"]
    assert "://" not in path.read_text(encoding="utf-8")
    for _, attributes in page.elements:
        for name in ("src", "href"):
            assert re.match(r"#|data:", attributes.get(name) or "#"), attributes
    (policy,) = [m["content"] for m in page.named("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None and policy.startswith("default-src 'none'; img-src data:") and "*" not in policy


def test_every_id_occurs_once_and_every_reference_is_met(page) -> None:
    ids = Counter(attributes["id"] for _, attributes in page.elements if "id" in attributes)
    assert {name for name, count in ids.items() if count > 1} == set()
    links = {str(a["href"])[1:] for _, a in page.elements if str(a.get("href", "")).startswith("#")}
    labels = {name for _, a in page.elements for key in ("for", "aria-labelledby") if (name := a.get(key))}
    assert links | labels <= set(ids)


def test_a_page_that_would_be_too_large_holds_less_and_says_so(few, monkeypatch) -> None:
    assert "To keep the file small" not in rendered(*few).text
    size = len(build._page(few[0], [NOT_EXAMINED] * 2, [], few[1]).encode())
    monkeypatch.setattr("ien.report.page.parts.MAX_BYTES", size - 1000)
    less = rendered(*few)
    assert "To keep the file small it holds 1 of 2 maps of each layer" in less.text
    assert [len(layer["maps"]) for layer in less.data["runs"][0]["layers"]] == [1] * 6
    monkeypatch.setattr("ien.report.page.parts.MAX_BYTES", 50_000)
    with pytest.raises(ValueError, match=r"page of 2 runs has at least [\d,]+ bytes, and 50,000 are allowed"):
        rendered(*few)


# --- text from files


def with_text(text, opened, exploration) -> Page:
    """A page of two runs, one of which has this text wherever a file can have some."""
    run, other = opened
    layers = {f"{text}{name}": layer for name, layer in run.record.layers.items()}
    changes: dict[str, Any] = {"machine": text, "commit": text, "data": text, "versions": {text: text}}
    config = dict(run.record.config) | {"experiment": text}
    record = replace(run.record, layers=layers, config=config, **changes)
    changed = replace(run, name=text, record=record, folder=Path("runs") / text)
    named = [shown | {"name": text} for shown in exploration.content["runs"]]
    exploration = replace(exploration, content=exploration.content | {"runs": named})
    return rendered([changed, other], exploration, Geometry(None, text), (Plot(text, text, "data:,"),))


def test_hostile_text_stays_text(few) -> None:
    found, harmless = with_text(HOSTILE, *few), with_text("harmless", *few)
    assert [tag for tag, _ in found.elements] == [tag for tag, _ in harmless.elements]
    assert [list(attributes) for _, attributes in found.elements] == [list(a) for _, a in harmless.elements]
    assert found.data["runs"][0]["name"] == HOSTILE and "<" not in found.scripts[0]
    assert found.text.count(HOSTILE) == harmless.text.count("harmless") >= 14


def test_hostile_names_stay_text_in_the_plots(few) -> None:
    opened = [replace(few[0][0], name=HOSTILE), few[0][1]]
    (sweep,) = sweeps_of([ien.group("rot4")])
    reports = {}
    for run in opened:
        measured = (run.model, run.images, "rot8", run.layers, run.feature_groups)
        reports[run.name] = ien.measure(*measured, labels=run.labels)
    for plot in build._plots(opened, [(sweep, reports)]):
        found = Page(base64.b64decode(plot.address.partition(",")[2]).decode())
        assert not {"script", "img"} & {tag for tag, _ in found.elements}


# --- what the doctor says


def test_findings_are_shown_once_for_runs_that_share_them(few) -> None:
    strided = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1))
    flat = nn.Sequential(*strided, nn.Flatten(), nn.Linear(4 * 14 * 14, 2))
    plain = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1))
    verdicts = [doctor(net, (1, 28, 28)) for net in (strided, flat, plain)]
    texts = [rendered(*few, Geometry(verdict)).text for verdict in verdicts]
    for finding in verdicts[0].findings:
        assert texts[0].count(f"Why: {finding.reason}") == 1 and f"Remedy: {finding.remedy}" in texts[0]
    assert f"network is exact: {', '.join(map(str, verdicts[0].exact_sizes))}." in texts[0]
    low, high = verdicts[1].searched
    assert f"No input size from {low} to {high} repairs all of it" in texts[1]
    assert "Every operation commutes with quarter turns" in texts[2] and "not exact" not in texts[2]
    for text, verdict in zip(texts, verdicts, strict=True):
        assert " ".join(str(verdict).split()) in text


def test_a_network_that_cannot_be_examined_is_said_to_be(opened_runs, monkeypatch) -> None:
    def fail(model: nn.Module, size: tuple[int, int, int]) -> None:
        raise ValueError(f"cannot follow it at {size}")

    monkeypatch.setattr("ien.geometry.doctor.doctor", fail)
    assert examine(opened_runs[0]) == Geometry(None, "cannot follow it at (1, 28, 28)")


# --- runs side by side


def test_folders_that_are_no_finished_runs_are_refused(runs, tmp_path) -> None:
    shutil.copytree(runs[0], tmp_path / "begun")
    (tmp_path / "begun" / "result.json").unlink()
    (tmp_path / "empty").mkdir()
    twice = runs[0].parent / "cnn" / ".." / runs[0].name
    for folders, kind, match in (
        ([], ValueError, "name at least one run folder"),
        ([tmp_path / "empty"], FileNotFoundError, "is not a run folder"),
        ([runs[0], tmp_path / "begun"], ValueError, "is not finished: go on with ien resume"),
        ([runs[0], twice], ValueError, "was given twice: name each run once"),
    ):
        with pytest.raises(kind, match=match):
            write_page(folders, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_runs_on_different_images_are_refused(runs, tmp_path) -> None:
    other = train(tmp_path / "other", data_seed=5, test_images=7)
    assert len(open_runs([other])[0].images) == 7
    with pytest.raises(ValueError, match=r"tested on different images.*random toy.*write one page for each"):
        write_page([runs[0], other], tmp_path / "report.html")


def test_runs_tested_on_fewer_of_the_same_images_are_shown_on_those(opened_runs) -> None:
    first, second = opened_runs[:2]
    fewer = replace(second, images=second.images[:7], labels=second.labels[:7])
    opened = build._with_equal_images([first, fewer])
    assert [len(run.images) for run in opened] == [len(run.labels) for run in opened] == [7, 7]


def test_a_run_that_neither_classifies_nor_segments_is_refused(opened_runs) -> None:
    with pytest.raises(ValueError, match="neither classifies nor segments, as this page needs"):
        build._with_equal_images([replace(opened_runs[0], labels=None)])


def test_runs_that_classify_and_runs_that_segment_are_not_mixed(runs, segment_runs, tmp_path) -> None:
    with pytest.raises(ValueError, match=r"tested on different images.*discs"):
        write_page([segment_runs[0], runs[0]], tmp_path / "report.html")


def test_runs_with_one_name_are_told_apart_by_their_folders(runs, tmp_path) -> None:
    copy, twin = tmp_path / "copy", tmp_path / "twin" / runs[0].name
    for folder in (copy, twin):
        shutil.copytree(runs[0], folder)
    names = [run.name for run in open_runs([runs[0], copy], count=2)]
    assert names == [f"ien-r4 smoke seed 1 ({name})" for name in (runs[0].name, "copy")]
    names = [run.name for run in open_runs([runs[0], twin], count=2)]
    assert names == [f"ien-r4 smoke seed 1 ({folder})" for folder in (runs[0], twin)]


# --- writing


def test_a_full_disk_keeps_the_earlier_file(runs, tmp_path, monkeypatch) -> None:
    path = tmp_path / "report.html"
    path.write_text("earlier")
    monkeypatch.setattr(build, "_plots", lambda *arguments: [])
    monkeypatch.setattr(Path, "write_bytes", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError, match=r"report.html could not be written .*No space left"):
        write_page(runs[:1], path, images=1, measured=2)
    assert path.read_text() == "earlier" and os.listdir(tmp_path) == ["report.html"]


def test_a_folder_in_place_of_a_file_or_no_matplotlib_is_refused(runs, tmp_path, monkeypatch) -> None:
    with pytest.raises(ValueError, match=r"is a folder: name the file to write, such as .*report.html"):
        write_page(runs, tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs matplotlib: pip install"):
        write_page(runs, tmp_path / "report.html")
