"""One whole toy run, which many tests compare theirs with, and copies of it to spoil."""

import shutil
from pathlib import Path

import pytest

import ien.data
from tests.helpers import toy


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The folder of a finished run that nothing disturbed; not to be changed."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ien.data.DATASETS, "toy", toy.DATASETS["toy"])
        toy.run_in(folder)
    return folder


@pytest.fixture
def copied(finished, tmp_path) -> Path:
    """A finished folder that a test may spoil."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def cut(copied) -> Path:
    """A folder that was cut after its last checkpoint."""
    (copied / "result.json").unlink()
    (copied / "model.safetensors").unlink()
    return copied
