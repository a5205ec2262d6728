"""Dataset: a data set's images and labels as tensors, and where they are from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["Dataset", "data_folder", "to_float"]


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Images (N, C, H, W), uint8 or float32 in [0, 1], and labels (N,) int64; they may be memory-mapped."""

    name: str
    source: str
    """Where the images are from: ``original``, ``subset``, ``generated``, ``embedded-5k``."""
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.train_x.shape[1:]))
        dtype = str(self.train_x.dtype).removeprefix("torch.")
        return (
            f"Dataset({self.name}, {self.source}: {len(self.train_x):,} train and {len(self.test_x):,} test "
            f"images {shape} {dtype}, {self.classes} classes)"
        )


def to_float(x: Tensor) -> Tensor:
    """Images as float32 in [0, 1]: bytes are divided by 255, float images are returned as they are.

    >>> to_float(torch.tensor([0, 51, 255], dtype=torch.uint8))
    tensor([0.0000, 0.2000, 1.0000])
    """
    if x.is_floating_point():
        return x
    if x.dtype != torch.uint8:
        raise ValueError(f"images are uint8 or floating point; got {x.dtype}")
    return x.float().div_(255)


def data_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """Where data sets are looked for: ``folder``, else ``$IEN_DATA``, else ``data`` in the current folder."""
    return Path(folder if folder is not None else os.environ.get("IEN_DATA") or "data").expanduser()
