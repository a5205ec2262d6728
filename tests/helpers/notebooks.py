"""Notebooks without Jupyter: the cells of a file, run in order."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any


def code_cells(path: Path) -> list[dict[str, Any]]:
    """The cells of code, with the outputs that were saved."""
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run one cell; return what its last line is worth, as a notebook would show it, or None."""
    tree = ast.parse(source)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    exec(compile(tree, "cell", "exec"), names)
    if last is None:
        return None
    return eval(compile(last, "cell", "eval"), names)
