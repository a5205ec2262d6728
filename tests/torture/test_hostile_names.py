"""Markup, escape sequences and paths in names: shown as they are written, in pages and in tables."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import ien.data
from ien.experiments.tables import write_page as write_tables
from tests.helpers import toy, toy_runs
from tests.torture.child import Outcome, call, ien_command
from tests.torture.readers import make_experiment
from tests.torture.tally import Tally

NAMES = {
    "a script": "<script>alert(1)</script>",
    "an attribute": '"><img src=x onerror=alert(1)>',
    "an end of the data": "</script><svg onload=alert(1)>",
    "a template": "{{ 7 * 7 }}{% raw %}",
    "an entity": "&lt;b&gt;&#x27;",
    "Markdown": "[x](javascript:alert(1)) | `y` | **z**",
    "rich markup": "[red]x[/red][link=file:///etc/passwd]y[/link]",
    "an escape sequence": "\x1b]0;owned\x07\x1b[2J",
    "a reversed direction": "\u202egnp.exe",
    "a path": "..%2f..%2fetc",
}
FIELDS = ("machine", "commit")
"""Fields of a record that pages and tables show as they are."""
MARKUP = ("<script>alert", "<img src=x", "<svg onload")
"""What no page may have; a terminal shows it as it is."""
CONTROLS = ("\x1b", "\x07", "\u202e")
"""What no terminal may get; a page does nothing with it."""


def write_toy_page(run: str) -> None:
    ien.data.DATASETS |= toy.DATASETS
    toy_runs.write_page([Path(run)], Path("page.html"), images=2, maps=1)


def write_table_page() -> None:
    write_tables(Path("tables.md"), "rot-mnist", Path("records"))


def make_toy_run() -> None:
    toy_runs.train(Path("run"))


def make_record() -> None:
    make_experiment(Path.cwd())


def with_name(path: Path, name: str) -> None:
    """Put a hostile name into a record."""
    record = json.loads(path.read_text())
    for field in FIELDS:
        record[field] = name
    record["versions"] = {name: name}
    path.write_text(json.dumps(record))


def shown(place: Path) -> Tally:
    """Write hostile names into run folders and records, and look at everything that shows them."""
    tally = Tally("hostile names in pages and tables")
    toys, records = place / "toys", place / "records"
    for folder, function in ((toys, make_toy_run), (records, make_record)):
        folder.mkdir()
        made = call(function, folder=folder)
        assert made.code == 0, made
    harmless = page_of(toys / "run", place / "harmless", "run")
    for number, (kind, name) in enumerate(NAMES.items()):
        work = place / f"page{number}"
        # a slash would be another folder
        tally.add(f"{kind} in a page", problem_of_page(toys / "run", work, name.replace("/", "∕"), harmless))
        tally.add(f"{kind} in a table", problem_of_tables(records / "run", place / f"table{number}", name))
    return tally


def page_of(run: Path, work: Path, folder: str) -> str | Outcome:
    """The page of a copy of the run in a folder of this name, whose record has it too; or how it failed."""
    work.mkdir()
    copy = work / folder
    shutil.copytree(run, copy)
    with_name(copy / "result.json", folder)
    ended = call(write_toy_page, folder, folder=work)
    if ended.code != 0:
        return ended
    return (work / "page.html").read_text()


def problem_of_page(run: Path, work: Path, name: str, harmless: str | Outcome) -> str | None:
    page = page_of(run, work, name)
    if isinstance(page, Outcome):
        return None if page.refused else str(page)
    assert isinstance(harmless, str)
    found = [text for text in MARKUP if text in page]
    if found:
        return f"has {found}"
    tags = [tag for tag, _ in toy_runs.Page(page).elements]
    if tags != [tag for tag, _ in toy_runs.Page(harmless).elements]:
        return "has other elements than with a harmless name"
    return None


def problem_of_tables(run: Path, work: Path, name: str) -> str | None:
    (work / "records").mkdir(parents=True)
    shutil.copy(run / "result.json", work / "records")
    with_name(work / "records" / "result.json", name)
    printed = call(ien_command, "table", "rot-mnist", "--results", "records", folder=work)
    if printed.code != 0 and not printed.refused:
        return str(printed)
    found = [text for text in CONTROLS if text in printed.output]
    written = call(write_table_page, folder=work)
    if written.code == 0:
        page = (work / "tables.md").read_text()
        found += [text for text in MARKUP if text in page]
    elif not printed.refused:
        return str(written)
    if found:
        return f"has {found}"
    return None


@pytest.mark.slow
def test_hostile_names_are_shown_as_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in set(NAMES) - {"a script", "an escape sequence"}:
        monkeypatch.delitem(NAMES, kind)
    shown(tmp_path).check(at_least=2 * len(NAMES))
