"""Where real data are, for the tests that need them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

DATA = Path(os.environ.get("IEN_DATA") or Path(__file__).parents[3] / "shared" / "data")


def needs(name: str) -> pytest.MarkDecorator:
    """Skip a test unless this file or folder is in the data folder."""
    return pytest.mark.skipif(
        not (DATA / name).exists(), reason=f"needs {name} in $IEN_DATA, or in shared/data beside the checkout"
    )
