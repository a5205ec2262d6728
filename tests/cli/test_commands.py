"""How all commands behave: -h, --quiet, --json, files in place of folders, help at 80 columns."""

import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import typer

from ien.cli import app
from ien.experiments import names
from tests.cli.test_app import commands
from tests.helpers.shell import error_of, invoke

pytestmark = pytest.mark.usefixtures("elsewhere")

ALL = commands(typer.main.get_command(app))
JSON_PAGE = (Path(__file__).parents[2] / "docs" / "json.md").read_text()
RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture
def net() -> str:
    """A model in a file, and four photos."""
    image = pytest.importorskip("PIL.Image", reason="images are read by pillow")
    Path("net.py").write_text("from torch import nn\ndef build():\n    return nn.Conv2d(3, 4, 3, stride=2)\n")
    Path("photos").mkdir()
    rng = np.random.default_rng(0)
    for i in range(4):
        pixels = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
        image.fromarray(pixels).save(f"photos/{i}.png")
    return "net.py:build"


def fields_of(value: object) -> set[str]:
    """All names of fields, also of those inside; names of layers, elements and the like left out."""
    found: set[str] = set()
    if isinstance(value, list):
        for part in value:
            found |= fields_of(part)
    if isinstance(value, dict):
        for name, part in value.items():
            if re.fullmatch("[a-z_]{3,}", name):
                found.add(name)
            found |= fields_of(part)
    return found


@pytest.mark.parametrize("name", ["", "plot", "data", *ALL])
def test_help_fits_80_columns_and_breaks_no_example(name) -> None:
    short, long = (invoke(*name.split(), option, columns=80).output for option in ("-h", "--help"))
    assert short == long
    assert max(len(line) for line in long.splitlines()) <= 80
    assert "bool" not in long and "completion" not in long.split("╭")[1]
    # an example is a whole line; a paragraph is filled, so only its last line is short
    lines = [line.strip() for line in long.split("╭")[0].splitlines()]
    for line, following in pairwise(lines):
        if line.startswith("Example: "):
            assert following == "", line
        elif line and following and not re.match(r"(Usage|A first|Your|A trained|The paper)", following):
            assert len(line) + 1 + len(following.split()[0]) > 78, (line, following)


@pytest.mark.parametrize("arguments", ["measure CODE --images photos", "doctor CODE --size 8"])
def test_looking_prints_json_alone_and_its_fields_are_documented(arguments, net) -> None:
    words = arguments.replace("CODE", net).split()
    done = invoke(*words, "--json")
    content = json.loads(done.stdout)
    missing = {field for field in fields_of(content) if f"`{field}`" not in JSON_PAGE}
    assert not missing - {"degrees", "factor"}  # what the name of an element says
    if words[0] == "measure":
        assert "random" in done.stderr and content["group"] == "rot4"
        assert set(content["layers"][""]["elements"]) == {"90°", "180°", "270°"}
    else:
        assert content["exact"] is False and 7 in content["exact_sizes"]


def test_lists_print_json_with_documented_fields() -> None:
    listed = json.loads(invoke("list", "--json").stdout)
    assert [row["name"] for row in listed] == names()
    data = json.loads(invoke("data", "list", "--data", "here", "--json").stdout)
    ready = {found["name"]: found["ready"] for found in data["data_sets"]}
    assert ready["synthetic-clips"] and not ready["mnist"] and not ready["rot-mnist"]
    for content in (listed, data):
        assert all(f"`{field}`" in JSON_PAGE for field in fields_of(content))


@pytest.mark.parametrize("table", ["rot-mnist", "tracking"])
def test_a_table_as_json_has_the_numbers_of_the_records(table) -> None:
    content = json.loads(invoke("table", table, "--results", RESULTS, "--json").stdout)
    assert content["table"] == table
    for row in content["rows"]:
        recorded = [json.loads(Path(run["record"]).read_text()) for run in row["runs"]]
        assert [run["accuracy"] for run in row["runs"]] == [record["accuracy"] for record in recorded]
        if row["accuracy"] is not None:
            assert row["accuracy"] == pytest.approx(np.mean([record["accuracy"] for record in recorded]))
        for run, record in zip(row["runs"], recorded, strict=True):
            assert run["layers"].keys() == record["layers"].keys()
    known = {field for field in fields_of(content) if not re.search(r"conv|layer|[0-9]", field)}
    undocumented = {field for field in known if f"`{field}`" not in JSON_PAGE}
    assert undocumented <= {"otb", "clips", "beta", "width", "epochs"}  # names of tests and of settings


def test_a_record_or_a_folder_stands_for_its_table() -> None:
    record = RESULTS / "rot-mnist" / "ien-r4" / "small-seed1.json"
    done = invoke("table", record, "--json")
    assert done.stderr == f"{record} is a file: using the folder {record.parent}\n"
    rows = json.loads(done.stdout)["rows"]
    assert {row["experiment"] for row in rows} == {"rot-mnist/ien-r4"}
    assert invoke("table", record.parent, "--json").stdout == done.stdout


def test_quiet_prints_errors_only(net) -> None:
    done = invoke("measure", net, "--images", "photos", "--out", "report", "--quiet")
    assert (done.stdout, done.stderr) == ("", "") and Path("report/report.json").exists()
    done = invoke("doctor", net, "--size", 8, "--strict", "-q", code=1)
    assert (done.stdout, done.stderr) == ("", "")
    assert "buidl" in error_of("doctor", "net.py:buidl", "--size", 8, "-q")
    assert "drop one" in error_of("doctor", net, "--size", 8, "-q", "--json")
    limits = ("--random-weights", "--fail-above", 0.001)
    done = invoke("measure", net, "--images", "photos", "-q", *limits, code=1)
    assert done.stdout == "" and done.stderr.startswith("above 0.001")


def test_a_file_stands_for_its_folder_unless_it_is_code(net) -> None:
    done = invoke("measure", net, "--images", "photos/2.png")
    assert "photos/2.png is a file: using the folder photos\n" in done.stderr
    Path("run").mkdir()
    for name in ("config.json", "result.json"):
        Path("run", name).write_text("{}")
    for command in ("report", "measure", "resume", "show", "plot errors"):
        done = invoke(*command.split(), "run/result.json", code=2)
        assert done.stderr.startswith("run/result.json is a file: using the folder run\nerror: "), command
    assert "such as net.py:build" in error_of("measure", "net.py")  # a file, and no run


def test_shells_are_offered_completion(monkeypatch) -> None:
    # the shell is found among the parents of this process, which need not have one
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))
    assert "complete" in invoke("--show-completion", "bash").output
    assert "--install-completion" in invoke("--help").output
