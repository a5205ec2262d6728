"""The command ``ien``: what its help teaches, and what it imports."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer

import ien
from ien.cli import app
from ien.experiments.printed import TABLES
from tests.helpers.shell import error_of, invoke

pytestmark = pytest.mark.usefixtures("elsewhere")

PANELS = {
    "Your model": ["doctor", "measure", "report", "train", "adapt", "export", "symmetry"],
    "Demo": ["demo"],
    "The paper": ["list", "show", "run", "resume", "status", "table", "track", "plot", "data"],
}


def commands(command, words=""):
    """Every command by its words: ``measure``, ``plot features``."""
    inner = getattr(command, "commands", {})
    found = [name for word, one in inner.items() for name in commands(one, f"{words}{word} ")]
    return found or [words.strip()]


def test_commands_stand_in_three_panels() -> None:
    parts = re.split(r"╭─ ([\w ]+?) ─+╮", invoke("--help").output)
    panels = dict(zip(parts[1::2], parts[2::2], strict=True))
    for title, names in PANELS.items():
        assert re.findall(r"^│ (\w+) ", panels[title], flags=re.MULTILINE) == names


def test_without_a_command_the_help_is_shown_and_version_is_the_packages() -> None:
    assert "ien demo" in invoke(code=2).output
    assert invoke("--version").output == f"ien {ien.__version__}\n"


@pytest.mark.parametrize("name", commands(typer.main.get_command(app)))
def test_the_help_of_a_command_teaches_by_example(name: str) -> None:
    text = " ".join(invoke(*name.split(), "--help").output.split())
    assert f"Example: ien {name} " in text


def test_the_help_names_defaults_and_tables() -> None:
    run = " ".join(re.sub("[│╭╮╰╯─]", " ", invoke("run", "--help", columns=200).output).split())
    for fragment in ("--threads", "torch's", "$IEN_DATA, else ./data", "embedded", "smoke leave no record"):
        assert fragment in run, fragment
    assert "IEN_DATA" not in invoke("resume", "--help").output  # a run knows where its data are
    *first, last = TABLES
    assert f"The table: {', '.join(first)} or {last}." in invoke("table", "--help", columns=200).output


@pytest.mark.slow
def test_a_process_of_its_own_ends_with_the_same_line_and_code() -> None:
    done = subprocess.run([sys.executable, "-m", "ien", "table", "x"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", error_of("table", "x"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    ["--help", "measure net.py:build --images photos --group rot4", "doctor net.py:build --size 9"],
)
def test_looking_at_a_model_imports_no_training_and_no_data(arguments) -> None:
    image = pytest.importorskip("PIL.Image", reason="images are read by pillow")
    Path("net.py").write_text("from torch import nn\ndef build():\n    return nn.Conv2d(3, 4, 3)\n")
    Path("photos").mkdir()
    for name in "ab":
        image.fromarray(np.full((9, 9, 3), ord(name), dtype=np.uint8)).save(f"photos/{name}.png")
    code = f"""if True:
        import atexit, json, runpy, sys
        atexit.register(lambda: open("modules.json", "w").write(json.dumps(sorted(sys.modules))))
        sys.argv = ["ien", *{arguments.split()!r}]
        runpy.run_module("ien", run_name="__main__")"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    modules = json.loads(Path("modules.json").read_text())
    folders = {name.split(".")[1] for name in modules if name.startswith("ien.")}
    assert "cli" in folders
    assert ("torch" in modules) == (arguments != "--help")
    assert not folders & {"training", "data", "baselines", "tracking", "models", "experiments", "report"}
