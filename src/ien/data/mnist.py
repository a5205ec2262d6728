"""MNIST: from the four published idx files to images and labels."""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from .download import RemoteFile

__all__ = ["FILES", "find", "mnist", "read_idx"]

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
FILES = tuple(
    RemoteFile(name, size, md5, tuple(mirror + name for mirror in MIRRORS))
    for name, size, md5 in [
        ("train-images-idx3-ubyte.gz", 9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        ("train-labels-idx1-ubyte.gz", 28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
        ("t10k-images-idx3-ubyte.gz", 1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
        ("t10k-labels-idx1-ubyte.gz", 4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
    ]
)
DIGITS = {
    "train": (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
    "t10k": (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
}
"""How many images of each digit: other data sets are published under the same file names."""


def mnist(folder: str | os.PathLike[str]) -> tuple[Tensor, Tensor]:
    """Images (70000, 1, 28, 28) uint8 and labels (70000,) int64, the 60,000 for training first."""
    place = find(folder)
    parts = [_read_part(place, part, counts) for part, counts in DIGITS.items()]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def find(folder: str | os.PathLike[str]) -> Path:
    """The folder that holds the four files: ``mnist`` in ``folder``, or ``folder`` itself."""
    folder = Path(folder)
    places = (folder / "mnist", folder)
    missing = {place: [f.name for f in FILES if not (place / f.name).is_file()] for place in places}
    for place in places:
        if not missing[place]:
            return place
    place = min(places, key=lambda place: len(missing[place]))
    if 0 < len(missing[place]) < len(FILES):
        trouble = f"MNIST in {place} is incomplete, without {', '.join(missing[place])}"
    else:
        trouble = f"no MNIST in {folder}: {_contents(folder)}"
    raise FileNotFoundError(
        f"{trouble}. Run `ien data get mnist --data {folder}`, or put {', '.join(missing[place])} "
        f"into {place}, or use the 5,000 digits that come with the installation: --data embedded"
    )


def read_idx(path: str | os.PathLike[str], shape: tuple[int, ...]) -> Tensor:
    """The bytes of an idx file, plain or ``.gz``, as a uint8 tensor; it must hold exactly this shape."""
    path = Path(path)
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            return _parse(file, shape)
    except (ValueError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _bad(path, f"{error}") from None


def _parse(file: IO[bytes] | gzip.GzipFile, shape: tuple[int, ...]) -> Tensor:
    magic = 0x0800 + len(shape)  # 08: unsigned bytes
    header = file.read(4 + 4 * len(shape))
    found, *sizes = struct.unpack(f">{1 + len(shape)}I", header.ljust(4 + 4 * len(shape), b"\0"))
    if found != magic:
        raise ValueError(f"it starts with 0x{found:08x}, and should with 0x{magic:08x}")
    if tuple(sizes) != shape:
        raise ValueError(f"it announces {_product(sizes)} values, and should {_product(shape)}")
    total = math.prod(shape)
    body = file.read(total + 1)
    if len(body) != total:
        raise ValueError(f"it holds {'more' if len(body) > total else 'fewer'} values than it announces")
    return torch.from_numpy(np.frombuffer(bytearray(body), np.uint8).reshape(shape))


def _read_part(place: Path, part: str, counts: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    count = sum(counts)
    path = place / f"{part}-labels-idx1-ubyte.gz"
    labels = read_idx(path, (count,)).long()
    if int(labels.max()) >= len(counts):
        raise _bad(path, f"it holds the label {int(labels.max())}, and digits go up to {len(counts) - 1}")
    if (found := tuple(torch.bincount(labels, minlength=len(counts)).tolist())) != counts:
        raise _bad(path, f"it is of another data set: images of each class {found}, in MNIST {counts}")
    images = read_idx(place / f"{part}-images-idx3-ubyte.gz", (count, 28, 28))
    return images.unsqueeze(1), labels


def _bad(path: Path, trouble: str) -> ValueError:
    return ValueError(
        f"{path} is damaged or not of MNIST ({trouble}): "
        f"delete it and run `ien data get mnist`, or replace it"
    )


def _product(sizes: tuple[int, ...] | list[int]) -> str:
    return "×".join(map(str, sizes))


def _contents(folder: Path) -> str:
    if not folder.exists():
        return "the folder does not exist"
    if not folder.is_dir():
        return "this is not a folder"
    names = sorted(path.name for path in folder.iterdir())
    return f"it holds {', '.join(names[:6])}{', …' if len(names) > 6 else ''}" if names else "it is empty"
