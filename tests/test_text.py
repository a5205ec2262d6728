"""Texts for people: every number is readable, every table lines up, bars appear on terminals only."""

import importlib.metadata
import io
import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from rich.console import Console

import ien
from ien._text import (
    columns,
    markdown_table,
    nearest,
    number,
    printable,
    progress_bar,
    short_count,
    to_install,
)

CELLS = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=8)
TABLES = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.lists(CELLS, min_size=width, max_size=width), min_size=1, max_size=4)
)


@given(st.floats(-1e300, 1e300))
def test_a_number_keeps_two_digits_and_its_sign_and_is_a_dash_if_missing(value):
    assume(value == 0 or abs(value) > 1e-300)
    assert float(number(value)) == pytest.approx(value, rel=0.051)
    assert len(number(value)) <= 9
    assert number(None) == number(math.nan) == "–"


@given(st.integers(0, 10**15))
def test_a_short_count_keeps_three_digits_and_changes_the_unit_in_time(count):
    digits, _, unit = short_count(count).partition(" ")
    assert float(digits) * 1000 ** " kMGT".index(unit or " ") == pytest.approx(count, rel=0.0051)
    assert len(digits) <= 5
    assert [short_count(n) for n in (999, 999.6, 999_600, math.inf)] == ["999", "1 k", "1 M", "–"]


@given(TABLES)
def test_columns_line_up_and_markdown_cells_cannot_break_the_table(rows):
    lines = columns(rows)
    assert len({len(line) for line in lines}) == 1
    expected = []
    for row in rows:
        words = " ".join(row).split()
        expected.append([printable(word) for word in words])
    assert [line.split() for line in lines] == expected
    lines = markdown_table(rows).splitlines()
    assert len(lines) == len(rows) + 1
    for line in lines:
        assert line.replace(r"\|", "").count("|") == len(rows[0]) + 1
        assert "<" not in line and ">" not in line


def test_near_names_come_first_and_all_names_else():
    names = ["resnet18", "cnn6", "cnn3"]
    assert nearest("resnet", names) == "did you mean resnet18?"
    assert nearest("cnn", names) == "did you mean cnn6, cnn3?"
    assert nearest("zzz", names) == "choose from resnet18, cnn6, cnn3"


def drawn(terminal, unit="items", total=4):
    """What a bar of four steps leaves on a screen, control characters included."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=terminal, width=100, color_system=None)
    with progress_bar("measuring [x]", total, unit, console) as advance:
        for step in range(4):
            advance(state=f"[step] {step}")
    return screen.getvalue()


def test_a_bar_shows_title_count_and_state_on_a_terminal_alone(capsys):
    text = drawn(terminal=True)
    assert "measuring [x]" in text and "4/4" in text and "[step] 3" in text  # not taken for markup
    assert text.endswith("\x1b[2K")  # and is gone at the end
    assert "4/4 bytes" in drawn(True, "bytes") and "4/?" in drawn(True, total=None)
    assert drawn(terminal=False) == ""
    with progress_bar("measuring", 2) as advance:  # standard error is no terminal here
        advance()
    assert capsys.readouterr() == ("", "")


def test_a_log_gets_a_line_now_and_then(monkeypatch):
    clock = iter(range(0, 1000, 25))  # each look at it takes 25 seconds
    monkeypatch.setattr("ien._text.time", SimpleNamespace(monotonic=lambda: next(clock)))
    log = io.StringIO()
    console = Console(file=log, width=20)
    with progress_bar("learning [x]", 9, console=console, lines=True) as advance:
        for step in range(9):
            advance(state=f"loss {step}.50")
    assert log.getvalue().splitlines() == [
        "learning [x] 3/9 loss 2.50",
        "learning [x] 6/9 loss 5.50",
        "learning [x] 9/9 loss 8.50",
    ]


def test_a_bar_is_taken_down_after_an_error():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    with pytest.raises(KeyError), progress_bar("measuring", 4, console=console):
        raise KeyError
    assert screen.getvalue().endswith("\x1b[2K")
    assert "\x1b[?25h" in screen.getvalue()  # the cursor is back


ROOT = Path(ien.__file__).parents[2]


@pytest.fixture
def installed_from(monkeypatch):
    """Pretend that ``ien`` was installed in a certain way, as pip notes it in direct_url.json."""

    class Distribution:
        def __init__(self, origin):
            self.origin = origin

        def read_text(self, name):
            assert name == "direct_url.json"
            return self.origin and json.dumps(self.origin)

    def pretend(origin):
        monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Distribution(origin))

    return pretend


def test_a_checkout_is_installed_again_with_the_extra_from_wherever_one_is(installed_from, monkeypatch):
    installed_from({"url": ROOT.as_uri(), "dir_info": {"editable": True}})
    monkeypatch.chdir(ROOT)
    assert to_install("plots", "matplotlib") == 'pip install -e ".[plots]"'
    monkeypatch.chdir(ROOT.parent)
    assert to_install("plots", "matplotlib") == f'pip install -e "{ROOT}[plots]"'


@pytest.mark.parametrize(
    "origin",
    [
        None,
        {"url": "file:///tmp/ien-0.1.0-py3-none-any.whl", "archive_info": {}},
        {"url": ROOT.as_uri(), "dir_info": {}},  # pip install .
        {"url": "file:///of/another/checkout", "dir_info": {"editable": True}},
    ],
)
def test_any_other_installation_needs_the_packages_themselves(installed_from, origin):
    installed_from(origin)
    assert to_install("track", "av", "pillow") == "pip install av pillow"


def test_without_metadata_the_packages_are_named_too(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    assert to_install("plots", "matplotlib") == "pip install matplotlib"


def test_no_message_names_an_extra_on_an_index_where_the_package_is_not():
    for path in Path(ien.__file__).parent.rglob("*.py"):
        if path.name != "_text.py":  # which explains it
            assert not re.search(r"pip install \S*ien\[", path.read_text()), path


def test_extras_that_messages_name_exist():
    text = (ROOT / "pyproject.toml").read_text()
    named = set()
    for path in Path(ien.__file__).parent.rglob("*.py"):
        named |= set(re.findall(r"""to_install\(["'](\w+)["']""", path.read_text()))
    assert named >= {"plots", "track", "lightning"}
    for extra in named:
        assert re.search(rf"^{extra} = \[", text, re.MULTILINE), extra
