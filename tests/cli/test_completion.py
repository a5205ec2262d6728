"""What a shell offers when TAB is pressed."""

import pytest
from typer.testing import CliRunner

from ien.cli import app
from ien.experiments import PRESETS, names
from ien.experiments.printed import TABLES


def offered(line: str) -> list[str]:
    """What bash is given for a line whose last word is being typed, as its own script asks for it."""
    words = line.split(" ")
    asked = {"_IEN_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = CliRunner().invoke(app, prog_name="ien", env=asked)
    assert done.exit_code == 0, done.output
    return done.stdout.split()


@pytest.mark.parametrize("command", ["run", "show"])
def test_experiments_are_offered_by_name(command: str) -> None:
    assert offered(f"ien {command} rot-mnist/het-i") == ["rot-mnist/het-ien"]
    assert offered(f"ien {command} ") == list(names())
    assert offered(f"ien {command} nothing-like-it") == []


def test_tables_and_presets_are_offered() -> None:
    assert offered("ien table ") == list(TABLES)
    assert offered("ien table rot") == [name for name in TABLES if name.startswith("rot")]
    for command in ("run", "show", "table", "plot costs"):
        assert offered(f"ien {command} --preset ") == list(PRESETS)
        assert offered(f"ien {command} --preset sm") == ["small", "smoke"]
