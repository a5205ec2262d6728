"""Files that are written whole or not at all, and generators that depend on their seed alone."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

__all__ = ["digest", "generator", "replace_file", "seed_of", "seeded", "whole_or_nothing"]


@contextmanager
def whole_or_nothing(path: Path) -> Iterator[Path]:
    """Write a file or folder under a temporary name, and rename it if the block succeeds.

    The temporary name is hidden and unique to this process, so several may write the same file at
    once, and each puts a whole one in place. Whatever happens, nothing half-written is left
    behind. A file may be read by whom the umask says, whatever wrote it.

    Yields:
        The temporary path, which does not exist yet.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    _remove(temporary)
    try:
        yield temporary
        if temporary.is_file():
            _give_usual_mode(temporary)
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        _remove(temporary)


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` make a new file under a temporary name, which then replaces ``path``.

    Raises:
        OSError: It could not be written, for example because the disk is full. ``path`` is as
            before.
    """
    try:
        with whole_or_nothing(path) as temporary:
            write(temporary)
    except (OSError, RuntimeError) as error:  # torch.save reports a full disk as a RuntimeError
        raise OSError(
            f"{path} could not be written ({error}); the earlier one, if any, is untouched"
        ) from error


def digest(*parts: bytes) -> str:
    """Return the SHA-256 of all parts, one after the other, as hexadecimal digits."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()


def seed_of(*words: object, bits: int = 63) -> int:
    """Return a seed that depends on the words alone: a seed, a purpose, an epoch, a step …

    >>> seed_of(1, "order", 0) == seed_of(1, "order", 0)
    True
    >>> seed_of(1, "order", 0) == seed_of(1, "order", 1)
    False
    """
    text = " ".join(map(str, words))
    key = hashlib.sha256(text.encode()).digest()[:8]
    return int.from_bytes(key, "big") >> (64 - bits)


def generator(*words: object, bits: int = 63) -> torch.Generator:
    """Return a generator on the CPU seeded with :func:`seed_of` the words."""
    return seeded(seed_of(*words, bits=bits))


def seeded(seed: int) -> torch.Generator:
    """Return a generator on the CPU with this seed."""
    return torch.Generator("cpu").manual_seed(seed)


def _give_usual_mode(path: Path) -> None:
    """Give a file the permissions that any new file in its folder has."""
    # safetensors writes files that only their owner can read
    usual = path.with_name(f"{path.name}.mode")
    usual.touch()
    shutil.copymode(usual, path)
    usual.unlink()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
