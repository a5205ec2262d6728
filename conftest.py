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
