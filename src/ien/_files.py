"""Files that are written whole or not at all and read with care, and generators by seed alone."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch import Tensor

__all__ = [
    "check_regular",
    "digest",
    "file_digest",
    "generator",
    "read_bounded",
    "replace_file",
    "seed_of",
    "seeded",
    "whole_or_nothing",
    "workplace",
    "write_tensors",
]

MAX_BYTES = 64 << 20
"""Of a file that is read whole, such as a configuration or a record: far more than ien writes."""

WORKPLACE = re.compile(
    r"\.ien-(?P<machine>[0-9a-f]{8})-(?P<process>[0-9]{1,9})-(?P<birth>\w+)-[0-9a-f]{8}\.part"
)
"""The name of a folder in which a process is writing a file."""


@contextmanager
def whole_or_nothing(path: Path) -> Iterator[Path]:
    """Write a file or folder under a temporary name, and rename it if the block succeeds.

    The temporary name is in a hidden folder that only this call knows, so several processes may
    write the same file at once, and each puts a whole one in place. Whatever happens, nothing
    half-written is left behind; what a killed process could not clear away is cleared by the next
    one that writes into the same folder. A file may be read by whom the umask says, whatever wrote
    it.

    Yields:
        The temporary path, which does not exist yet.
    """
    # a folder, since writers make temporary files of their own: safetensors does
    with workplace(path.parent) as place:
        temporary = place / path.name
        yield temporary
        if temporary.is_file():
            _give_usual_mode(temporary)
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)


@contextmanager
def workplace(folder: Path, mode: int = 0o777) -> Iterator[Path]:
    """A hidden folder inside ``folder`` for this block alone, which is removed at its end.

    If the process is killed, the next one that works in ``folder`` removes it. Not for what should
    outlast the block: move that out of it first.

    Args:
        folder: Where to make it.
        mode: Who may look into it, as the umask allows: 0o700 for the owner alone.

    Yields:
        The new folder.

    Raises:
        OSError: It cannot be made there.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as outer:
    ...     with workplace(Path(outer)) as place:
    ...         (place / "half.txt").write_text("half")
    ...     sorted(Path(outer).iterdir())
    4
    []
    """
    _remove_leftovers(folder)
    place = folder / f".ien-{_owner()}-{uuid.uuid4().hex[:8]}.part"
    place.mkdir(mode)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


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


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """:func:`replace_file` by a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    # safetensors refuses tensors in other memory layouts, such as channels_last
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}

    def write(temporary: Path) -> None:
        try:
            save_file(contiguous, temporary, metadata)
        except SafetensorError as error:  # a full disk, an unwritable folder
            raise OSError(str(error)) from error

    replace_file(path, write)


def check_regular(path: Path) -> None:
    """Refuse a pipe, which would be waited for without end, a device or a folder.

    Raises:
        ValueError: ``path`` is one of these.
        OSError: There is no such file, or it may not be looked at.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path} is not a regular file but a pipe, a device or a folder: move it away")


def read_bounded(path: Path, limit: int = MAX_BYTES) -> bytes:
    """Read a regular file, which may have at most ``limit`` bytes."""
    check_regular(path)
    with open(path, "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"{path} has more than {limit:,} bytes, which ien never writes there: move it away")
    return content


def digest(*parts: bytes) -> str:
    """Return the SHA-256 of all parts, one after the other, as hexadecimal digits."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a regular file, as hexadecimal digits."""
    check_regular(path)
    total = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            total.update(chunk)
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


def _sync_folder(folder: Path) -> None:
    """Ask that a rename in this folder outlasts a loss of power."""
    if os.name == "nt":  # Windows does not open folders
        return
    # the file is in place whatever happens here, and some network drives do not know this call
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove_leftovers(folder: Path) -> None:
    """Remove what processes that are dead have left half-written in a folder."""
    for leftover in folder.glob(".ien-*.part"):
        named = WORKPLACE.fullmatch(leftover.name)
        # a process of another machine or container cannot be seen from here
        if named and named["machine"] == _machine() and _is_dead(int(named["process"]), named["birth"]):
            shutil.rmtree(leftover, ignore_errors=True)


def _owner() -> str:
    """Name this process as no other one is named, before or after it: machine, number, birth."""
    process = os.getpid()
    return f"{_machine()}-{process}-{_birth(process)}"


def _machine() -> str:
    """Name this machine, or the container: processes are numbered in each of them by itself."""
    numbered_in = ""
    with suppress(OSError):  # Linux only
        numbered_in = os.readlink("/proc/self/ns/pid")
    return digest(f"{platform.node()} {numbered_in}".encode())[:8]


def _birth(process: int) -> str:
    """Return when a process began, in clock ticks since the machine started, if that is known."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:  # not on Linux, or another user's
        return "unknown"
    # the name of the program comes second, in brackets, and may hold anything
    return text.rpartition(")")[2].split()[19]


def _is_dead(process: int, birth: str) -> bool:
    """Whether a process has ended; another may have its number by now."""
    if os.name == "nt":
        return False  # os.kill would end it
    try:
        os.kill(process, 0)  # sends nothing
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # it is there, and belongs to someone else
    return _birth(process) not in (birth, "unknown")
