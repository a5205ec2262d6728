"""Records: which files count, what they hold, and what is wrong with a bad one."""

import json
import math
import re
import subprocess
import sys

import pytest

from ien.report import collect, read
from ien.report.records import flat
from tests.helpers.records import content, write_records


def test_a_record_holds_what_the_file_says(tmp_path) -> None:
    made = content(changes={"beta": 0.3}, layers__conv1__per_element={"90°": 0.1, "180°": 0.3})
    (record,) = collect(write_records(tmp_path, made))
    assert record.config["width"] == 0.125 and record.changes == (("beta", "0.3"),)
    assert (record.accuracy, record.macs, record.images_seen) == (made["accuracy"], 12_345_678, 240_000)
    assert record.layers["conv1"].raw == made["layers"]["conv1"]["raw"]
    assert record.layers["conv1"].exact == pytest.approx(0.2) and math.isnan(record.layers["conv1"].between)
    assert record == read(record.path)
    assert flat({"a": 1, "b": {"c": 2, "d": {"e": None}}}) == {"a": 1, "c": 2, "e": None}


def test_only_results_count_in_a_run_folder(tmp_path) -> None:
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
        ('{"format": 1, "config"', "is damaged .* delete it and run its row again"),
        ("\udcff", "is damaged .* delete it"),
        ("[" * 100_000, "is damaged .* delete it"),
        ("[1, 2]", "is not the record of a run .* move it elsewhere"),
        ('{"name": "x"}', "is not the record of a run .* move it elsewhere"),
    ],
    ids=["cut", "bytes", "deep", "list", "other"],
)
def test_a_file_that_is_no_record_is_named_with_the_remedy(tmp_path, text, message) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    for reader, place in ((read, path), (collect, tmp_path)):
        with pytest.raises(ValueError, match=f"^{re.escape(str(path))} .*{message}"):
            reader(place)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"format": 99}, "has format 99 and this version of ien reads format .: update ien"),
        ({"config": {"seed": 1, "group": "rot4"}}, r"is damaged \(it has no experiment\)"),
        ({"config__seed": True}, "seed should be of type int; it is True"),
        ({"data": 3}, "it has no data.name"),
        ({"accuracy": 96.1}, "accuracy should be from 0 to 1; it is 96.1"),
        ({"agreement": 96.1}, "agreement should be from 0 to 1; it is 96.1"),
        ({"layers__conv1": "x"}, "conv1 should be of type dict; it is 'x'"),
        ({"layers__conv1__raw": "x"}, "raw should be a number; it is 'x'"),
        ({"images_seen": "many"}, "images_seen should be a number; it is 'many'"),
        ({"macs": 10**400}, "macs is larger than any number in floating point: 1000"),
        ({"parameters": 10**400}, r"parameters should be from 0 to 2\^63; it is 1000"),
        ({"layers__conv1__per_element": 5}, "per_element should be of type dict; it is 5"),
        ({"config": []}, r"config should be of type dict; it is \[\]"),
        ({"config__group": "rot99999999"}, "a group can have at most 1024 elements; got rot99999999"),
        ({"config__measured": "rot99999999"}, "a group can have at most 1024 elements"),
        ({"config__width": True}, "width should be a number; it is True"),
        ({"config__feature_groups": "many"}, "feature groups are written as"),
        ({"versions": None}, "versions should be of type dict; it is None"),
        ({"machine": [[[[[[]]]]]] * 1000}, r"machine should be of type str; it is \[\[\[\["),
        ({"finished": "yesterday"}, "is damaged .*yesterday"),
        ({"finished": "2026-11-16T02:00:00"}, "finished should name a time zone"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_damaged_record_says_what_is_wrong(tmp_path, fields, message) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(content(**fields)))
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} .*{message}"):
        read(path)


def test_escape_sequences_in_a_record_are_shown_as_text(tmp_path) -> None:
    made = content(machine="\x1b]0;title\x07 and \u202eback", config__note="a\x9bb")
    made["versions"] = {"\x1b[2J": "1"}
    (record,) = collect(write_records(tmp_path, made))
    assert record.machine == r"\x1b]0;title\x07 and \u202eback"
    assert record.config["note"] == r"a\x9bb" and record.versions == {r"\x1b[2J": "1"}


def test_no_records_names_the_folder_and_the_command(tmp_path) -> None:
    command = re.escape("ien run 'rot-mnist/*' --preset small --seeds 1-3")
    write_records(tmp_path, content(config__experiment="other/row"))
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(FileNotFoundError, match=f"{re.escape(str(folder))}: .*{command}"):
            collect(folder, "rot-mnist/*")


@pytest.mark.slow
def test_report_loads_neither_training_code_nor_rich() -> None:
    code = "import sys, ien.report; print([n for n in sys.modules if n.startswith(('ien.training', 'rich'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
