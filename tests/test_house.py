"""The shape of the package: folders list their files in reading order, and imports only go up the list."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ien

PACKAGE = Path(ien.__file__).parent
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path.name not in ("__init__.py", "__main__.py")]
FOLDERS = [path.parent for path in sorted(PACKAGE.rglob("__init__.py"))]
LATER = {
    ("measuring/report.py", "report/page/measured"),
    ("measuring/report.py", "report/plots/angles"),
    ("measuring/report.py", "report/plots/errors"),
    ("tying/tied.py", "report/plots/slack"),
}
"""What may reach for a later folder, inside a function: a report of measure() writes a page and plots,
and a tied model a plot."""


def listed(folder: Path) -> list[str]:
    """The entries of a folder's docstring, in order: ``name.py`` or ``name/``, each on a line."""
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()), clean=False) or ""
    names = []
    for line in text.splitlines():
        found = re.match(r" *(\w+)(?:\.py|/) {2,}\S", line)
        if found:
            names.append(found[1])
    return names


def imported(path: Path) -> set[Path]:
    """The modules and packages of ``ien`` that a file imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = path.parents[node.level - 1]
            module = base.joinpath(*node.module.split(".")) if node.module else base
            for alias in node.names:
                inside = module / alias.name
                is_module = inside.is_dir() or inside.with_suffix(".py").exists()
                found.add(inside if is_module else module)
    return found


def test_the_top_level_fits_on_one_screen() -> None:
    entries = [path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"]
    assert len(entries) <= 24, sorted(entries)  # the lines of a terminal


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(PACKAGE.parent)))
def test_a_folder_lists_what_it_holds(folder: Path) -> None:
    inside = set()
    for path in folder.iterdir():
        if path.suffix == ".py" and path.stem not in ("__init__", "__main__"):
            inside.add(path.stem)
        elif (path / "__init__.py").exists():
            inside.add(path.name)
    names = listed(folder)
    assert len(names) == len(set(names)) and set(names) == inside


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_imports_only_what_is_listed_before_it(path: Path) -> None:
    here = path.relative_to(PACKAGE).with_suffix("").parts
    for target in imported(path):
        there = target.relative_to(PACKAGE).parts
        if not there or (str(path.relative_to(PACKAGE)), "/".join(there)) in LATER:
            continue
        level = 0
        while level < min(len(here), len(there)) and here[level] == there[level]:
            level += 1
        assert level < len(there), f"{'/'.join(here)} imports the folder that it is in"
        order = listed(PACKAGE.joinpath(*here[:level]))
        assert order.index(there[level]) < order.index(here[level]), f"{'/'.join(here)} <- {'/'.join(there)}"


@pytest.mark.parametrize("folder", ["groups", "loss"])
def test_the_method_needs_torch_and_nothing_else(folder: str) -> None:
    allowed = {*sys.stdlib_module_names, "torch"}
    for path in (PACKAGE / folder).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= allowed, path
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                assert str(node.module).split(".")[0] in allowed, path


def test_only_tracking_asks_whether_something_tracks() -> None:
    question = re.compile(r"\.tracks\b|\bClips\b|\bTrackingTask\b|== ?\"track\"")
    for path in FILES:
        if path.relative_to(PACKAGE).parts[0] != "tracking":
            assert not question.findall(path.read_text()), path


def in_new_process(code: str) -> object:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_public_names_are_the_checked_in_list() -> None:
    names = in_new_process("import ien, json; print(json.dumps(sorted(n for n in dir(ien) if n[0] != '_')))")
    assert names == json.loads((Path(__file__).parent / "public_names.json").read_text())


def test_using_every_name_of_the_method_loads_torch_and_numpy_and_nothing_else() -> None:
    code = """if True:
        import json, sys, torch, numpy
        before = set(sys.modules)
        import ien
        for path, names in ien._MODULES.items():
            if not path.startswith((".training", ".exporting")):
                assert all(hasattr(ien, name) for name in names)
        new = {name.split(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
        print(json.dumps(sorted(new)))"""
    assert in_new_process(code) == ["ien"]


def test_names_load_when_they_are_used_and_all_of_them_can_be() -> None:
    code = """if True:
        import ien, json, sys
        before = "torch" in sys.modules
        print(json.dumps([before, [name for name in ien.__all__ if not hasattr(ien, name)]]))"""
    assert in_new_process(code) == [False, []]


def test_version_is_that_of_the_installed_package() -> None:
    from importlib.metadata import version

    assert version("ien") == ien.__version__


def test_citation_and_changelog_name_the_version() -> None:
    root = Path(__file__).parents[1]
    assert f"\nversion: {ien.__version__}\n" in (root / "CITATION.cff").read_text()
    assert f"\n## {ien.__version__}\n" in (root / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("name", ["adapt", "export", "measure", "doctor", "group", "load", "capture"])
def test_no_folder_has_the_name_of_a_public_function(name: str) -> None:
    assert not (PACKAGE / name).exists()
