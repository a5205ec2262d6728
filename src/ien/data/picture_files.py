"""Files of pictures: which are held out to test, in which order they come, and their digest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import md5
from pathlib import Path
from typing import TypeVar

import torch

__all__ = ["digest_of", "shuffled", "split"]

TEST_SHARE = 5
"""Without a folder ``test``, one in five is held out to test."""
RECIPE = 1
"""Part of the digest: raise it when the same sources give other tensors."""

T = TypeVar("T")


def split(files: Sequence[T], draws: torch.Generator) -> tuple[list[T], list[T]]:
    """Return the files that train and those that are held out, a fifth and one at least, in order.

    >>> split("abcdefghij", torch.Generator().manual_seed(0))
    (['a', 'c', 'd', 'f', 'g', 'h', 'i', 'j'], ['b', 'e'])
    """
    order = torch.randperm(len(files), generator=draws).tolist()
    count = max(1, len(files) // TEST_SHARE)
    held_out = [files[k] for k in sorted(order[:count])]
    kept = [files[k] for k in sorted(order[count:])]
    return kept, held_out


def shuffled(files: Sequence[T], draws: torch.Generator) -> tuple[T, ...]:
    """Return the files in an order that is drawn."""
    order = torch.randperm(len(files), generator=draws).tolist()
    return tuple(files[k] for k in order)


def digest_of(folder: Path, files: Iterable[tuple[Path, object]]) -> str:
    """Return a digest of names, sizes and times of files, each with what it is: a label, say.

    No file is opened, since opening all of them at every start would take long.
    """
    digest = md5(f"{RECIPE}".encode(), usedforsecurity=False)
    # in order of the names, since the seed decides on the order and on which are held out
    for path, label in sorted(files):
        state = path.stat()
        where = path.relative_to(folder).as_posix()
        digest.update(f"{where} {label} {state.st_size} {state.st_mtime_ns}\n".encode())
    return digest.hexdigest()
