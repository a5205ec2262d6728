"""MNIST: from the four published idx files to images and labels."""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from .._files import file_digest
from .download import RemoteFile

__all__ = ["FILES", "digests", "find", "mnist", "read_idx"]

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)


def _published(name: str, size: int, sha256: str) -> RemoteFile:
    urls = tuple(mirror + name for mirror in MIRRORS)
    return RemoteFile(name, size, sha256, urls)


FILES = (
    _published(
        "train-images-idx3-ubyte.gz",
        9_912_422,
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    ),
    _published(
        "train-labels-idx1-ubyte.gz",
        28_881,
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    _published(
        "t10k-images-idx3-ubyte.gz",
        1_648_877,
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    ),
    _published(
        "t10k-labels-idx1-ubyte.gz",
        4_542,
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
)
DIGITS = {
    "train": (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
    "t10k": (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
}
"""How many images of each digit: other data sets are published under the same file names."""
MAX_LISTED_NAMES = 6
"""Names of other files that an error message lists."""


def mnist(folder: str | os.PathLike[str]) -> tuple[Tensor, Tensor]:
    """Read images (70000, 1, 28, 28) uint8 and labels (70000,) int64, those to train on first."""
    place = find(folder)
    images, labels = [], []
    for part, counts in DIGITS.items():
        x, y = _read_part(place, part, counts)
        images.append(x)
        labels.append(y)
    return torch.cat(images), torch.cat(labels)


def find(folder: str | os.PathLike[str]) -> Path:
    """Return the folder that holds the four files: ``mnist`` in ``folder``, or ``folder`` itself.

    Raises:
        FileNotFoundError: Some are missing; the message names them and says how to get them.
    """
    folder = Path(folder)
    missing = {}
    for place in (folder / "mnist", folder):
        missing[place] = [file.name for file in FILES if not (place / file.name).is_file()]
        if not missing[place]:
            return place
    place = min(missing, key=lambda place: len(missing[place]))
    names = ", ".join(missing[place])
    if len(missing[place]) < len(FILES):
        trouble = f"MNIST in {place} is incomplete, without {names}"
    else:
        trouble = f"no MNIST in {folder}: {_contents(folder)}"
    raise FileNotFoundError(
        f"{trouble}. Run `ien data get mnist --data {folder}`, or put {names} into {place}, "
        f"or use the 5,000 digits that come with the installation: --data embedded"
    )


def digests(folder: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of all four files in a row, to name what is made from them."""
    place = find(folder)
    return "".join(file_digest(place / file.name) for file in FILES)


def read_idx(path: str | os.PathLike[str], shape: tuple[int, ...]) -> Tensor:
    """Read an idx file, plain or ``.gz``, as a uint8 tensor; it must have exactly this shape."""
    path = Path(path)
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            return _parse(file, shape)
    except (ValueError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _damaged(path, f"{error}") from None


def _parse(file: IO[bytes] | gzip.GzipFile, shape: tuple[int, ...]) -> Tensor:
    """Parse a magic number and one size for each axis, big-endian 32 bits, and then the bytes."""
    magic = 0x0800 + len(shape)  # 08: unsigned bytes; the last byte: the number of axes
    length = 4 + 4 * len(shape)
    header = file.read(length).ljust(length, b"\0")
    found, *sizes = struct.unpack(f">{1 + len(shape)}I", header)
    if found != magic:
        raise ValueError(f"it starts with 0x{found:08x} instead of 0x{magic:08x}")
    if tuple(sizes) != shape:
        raise ValueError(f"its header says {_product(sizes)} values instead of {_product(shape)}")
    total = math.prod(shape)
    body = file.read(total + 1)  # one more, to notice files that are longer
    if len(body) < total:
        raise ValueError("it holds fewer values than its header says")
    if len(body) > total:
        raise ValueError("it holds more values than its header says")
    values = np.frombuffer(bytearray(body), np.uint8)  # a copy, since torch wants to write to it
    return torch.from_numpy(values.reshape(shape))


def _read_part(place: Path, part: str, counts: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    total = sum(counts)
    path = place / f"{part}-labels-idx1-ubyte.gz"
    labels = read_idx(path, (total,)).long()
    # the labels first: they tell at once whether these files are MNIST's at all
    largest = int(labels.max())
    if largest >= len(counts):
        raise _damaged(path, f"it holds the label {largest}, but digits only go up to {len(counts) - 1}")
    found = tuple(torch.bincount(labels, minlength=len(counts)).tolist())
    if found != counts:
        raise _damaged(path, f"it belongs to another data set: {found} images of each class, not {counts}")
    images = read_idx(place / f"{part}-images-idx3-ubyte.gz", (total, 28, 28))
    return images.unsqueeze(1), labels  # (N, 1, 28, 28) and (N,)


def _damaged(path: Path, trouble: str) -> ValueError:
    return ValueError(
        f"{path} is damaged or not from MNIST ({trouble}): "
        f"delete it and run `ien data get mnist`, or replace it"
    )


def _product(sizes: Sequence[int]) -> str:
    return "×".join(map(str, sizes))


def _contents(folder: Path) -> str:
    """Say what there is instead of MNIST."""
    if not folder.exists():
        return "the folder does not exist"
    if not folder.is_dir():
        return "this is not a folder"
    names = sorted(path.name for path in folder.iterdir())
    if not names:
        return "it is empty"
    listed = ", ".join(names[:MAX_LISTED_NAMES])
    if len(names) > MAX_LISTED_NAMES:
        listed += ", …"
    return f"it holds {listed}"
