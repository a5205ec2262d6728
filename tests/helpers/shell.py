"""Run `ien` as from a shell, in this process, and read what it printed."""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner, Result

from ien.cli.app import app


def invoke(*arguments: str | Path, code: int = 0, columns: int = 100) -> Result:
    """Run `ien` with these arguments in a terminal of this width; it must end with this code."""
    done = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": str(columns)})
    assert done.exit_code == code, (done.output, done.exception)
    return done


def error_of(*arguments: str | Path) -> str:
    """The one line on stderr with which `ien` answers a user error."""
    done = invoke(*arguments, code=2)
    assert re.fullmatch(r"error: [^\n]+\n", done.stderr), done.stderr
    return done.stderr
