"""What a data set is: images and labels as tensors, and where they come from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["Dataset", "NamedClasses", "check_image_size", "data_folder", "to_float"]

MIN_IMAGE_SIZE = 8
"""Pixels along each side, below which nothing can be recognised."""


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Images (N, C, H, W), uint8 or float32 in [0, 1], and labels (N,) int64, to train and test."""

    name: str
    source: str
    """Where the images come from: ``original``, ``subset``, ``generated``, ``embedded-5k``."""
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.train_x.shape[1:]))
        dtype = str(self.train_x.dtype).removeprefix("torch.")
        counts = f"{len(self.train_x):,} train and {len(self.test_x):,} test images"
        return f"Dataset({self.name}, {self.source}: {counts} {shape} {dtype}, {self.classes} classes)"


@dataclass(frozen=True, eq=False, repr=False)
class NamedClasses(Dataset):
    """A data set whose classes have names; in place of labels there may be masks (N, H, W)."""

    class_names: tuple[str, ...]
    """In the order of the labels."""


def to_float(x: Tensor) -> Tensor:
    """Convert images of bytes to float32 in [0, 1]; return float images as they are.

    >>> to_float(torch.tensor([0, 51, 255], dtype=torch.uint8))
    tensor([0.0000, 0.2000, 1.0000])
    """
    if x.is_floating_point():
        return x
    if x.dtype != torch.uint8:
        raise ValueError(f"images are uint8 or floating point; got {x.dtype}")
    return x.float().div_(255)


def data_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """Return where data are looked for: ``folder``, else ``$IEN_DATA``, else ``data``."""
    if folder is None:
        folder = os.environ.get("IEN_DATA") or "data"
    return Path(folder).expanduser()


def check_image_size(size: int, largest: int, title: str) -> None:
    """Raise an error if images of ``largest`` pixels cannot be scaled to ``size``."""
    if not MIN_IMAGE_SIZE <= size <= largest:
        nearest = min(max(size, MIN_IMAGE_SIZE), largest)
        raise ValueError(
            f"image_size must be {MIN_IMAGE_SIZE} to {largest}, the size of {title}; got {size}: "
            f"use --set image_size={nearest}"
        )
