"""Every test of data has a data folder and a cache of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..helpers.tiny import COUNTS, make_mnist


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("IEN_DATA", raising=False)


@pytest.fixture
def mnist_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with a small MNIST of 120 tagged images; labels as ``COUNTS`` says, in order."""
    monkeypatch.setattr("ien.data.mnist.DIGITS", COUNTS)
    make_mnist(tmp_path / "data", COUNTS)
    return tmp_path / "data"
