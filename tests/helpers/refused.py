"""Run folders that are refused: one line, and nothing in them is changed."""

from pathlib import Path
from typing import Any

import pytest

from tests.helpers import toy


def contents(path: Path) -> dict[str, bytes]:
    found = {}
    for file in path.iterdir():
        # TensorBoard, where it is installed, has a folder
        if file.name != ".lock" and file.is_file():
            found[file.name] = file.read_bytes()
    return found


def assert_refused(path: Path, match: str, **changes: Any) -> None:
    """One line that names the file, and nothing in the folder is changed."""
    before = contents(path)
    with pytest.raises(ValueError, match=match) as caught:
        toy.run_in(path, **changes)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    assert contents(path) == before
