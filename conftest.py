import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny tensors: more threads only wait for each other

import pytest
import torch
from torch import nn

import ien
import ien.data


@pytest.fixture(autouse=True)
def doctest_names(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace.update(torch=torch, nn=nn, ien=ien, rotation=ien.rotation)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left in the user's cache, and data sets made for a test serve others of its process."""
    monkeypatch.setenv("IEN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def toy_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """The data set of ``tests.helpers.toy``, by name."""
    from tests.helpers import toy

    monkeypatch.setitem(ien.data.DATASETS, "toy", toy.DATASETS["toy"])
    torch.set_num_threads(1)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs and results go to a folder of the test; --threads stays inside it too."""
    threads = torch.get_num_threads()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IEN_DATA", raising=False)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Nets this small gain nothing from a second thread, and lose much when the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
