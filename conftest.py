import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny tensors: more threads only wait for each other

import pytest
import torch
from torch import nn

import ien


@pytest.fixture(autouse=True)
def doctest_names(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace.update(torch=torch, nn=nn, ien=ien, rotation=ien.rotation)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left in the user's cache, and the data sets made for one test serve the others."""
    monkeypatch.setenv("IEN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
