"""What ``ien data`` knows of data sets: their downloads, and whether they are there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from .._files import file_digest
from ..data import (
    class_folders,
    digits,
    mask_folders,
    mnist,
    rot_mnist,
    rot_tim,
    scale_mnist,
    stl10,
    tiny_imagenet,
)
from ..data.cache import cache_folder
from ..data.download import RemoteFile
from .clips import Line, clip_lines

__all__ = ["ARCHIVES", "DOWNLOADS", "data_sets", "lines_of_all", "mnist_folder", "size_text"]

DOWNLOADS: dict[str, tuple[RemoteFile, ...]] = {
    "mnist": mnist.FILES,
    "tiny-imagenet": (tiny_imagenet.ARCHIVE,),
    "stl10": (stl10.ARCHIVE,),
}
ARCHIVES: dict[str, tuple[str, ModuleType]] = {
    "tiny-imagenet": ("Tiny ImageNet", tiny_imagenet),
    "stl10": ("STL-10", stl10),
}
"""Data sets that are published as one archive: their title, and the module that unpacks them."""


def lines_of_all(folder: Path) -> Iterator[Line]:
    """Say of every data set whether it is in this folder, one line for each of its parts."""
    yield from _mnist_lines(folder)
    yield from _rot_mnist_lines(folder)
    yield from _scale_mnist_lines(folder)
    yield from _tiny_imagenet_lines(folder)
    yield from _stl10_lines(folder)
    yield from _folder_lines(folder, class_folders, "pictures by class")
    yield from _folder_lines(folder, mask_folders, "images and masks")
    yield from clip_lines(folder)
    yield from _embedded_lines()


def data_sets(folder: Path) -> list[dict[str, Any]]:
    """Return the same as a list of data sets, for JSON."""
    found: list[dict[str, Any]] = []
    for name, part, state, ready in lines_of_all(folder):
        if name:  # further lines of a data set have none
            found.append({"name": name, "ready": False, "parts": []})
        found[-1]["ready"] |= ready
        found[-1]["parts"].append({"part": part, "state": state})
    return found


def mnist_folder(folder: Path) -> Path | None:
    """Where the files of MNIST are; None if they are missing."""
    try:
        return mnist.find(folder)
    except FileNotFoundError:
        return None


def size_text(count: int) -> str:
    """Write a number of bytes for people.

    >>> size_text(9_912_422), size_text(4_542)
    ('9.9 MB', '4.5 kB')
    """
    # decimal units, as web pages of data sets have them
    if count >= 1e5:
        return f"{count / 1e6:.1f} MB"
    return f"{count / 1e3:.1f} kB"


def _mnist_lines(folder: Path) -> Iterator[Line]:
    place = mnist_folder(folder) or folder / "mnist"
    states = [_state(file, place / file.name) for file in mnist.FILES]
    found = states.count("found")
    summary = f"{found} of {len(states)} files in {place}"
    if found < len(states):
        summary += f": ien data get mnist --data {folder}"
    total = sum(file.size for file in mnist.FILES)
    yield Line("mnist", size_text(total), summary, found == len(states))
    for file, state in zip(mnist.FILES, states, strict=True):
        yield Line("", file.name, f"{size_text(file.size)}, {state}")


def _rot_mnist_lines(folder: Path) -> Iterator[Line]:
    try:
        original = rot_mnist.find_original(folder)
    except FileNotFoundError as error:
        yield Line("rot-mnist", "original", f"incomplete: {error}")
        return
    if original:
        total = sum(path.stat().st_size for path in original)
        yield Line("rot-mnist", "original", f"{size_text(total)} in {original[0].parent}", True)
    else:
        yield Line("rot-mnist", "original", f"missing: {', '.join(rot_mnist.ORIGINAL)}")
        has_mnist = mnist_folder(folder) is not None
        yield Line("", "generated", _made_from("mnist", has_mnist), has_mnist)
    if not original and mnist_folder(folder) is None:
        return  # what is cached is found by the digest of these files
    pattern = rot_mnist.cache_name(folder, "*")
    cached = sorted(cache_folder().glob(f"{pattern}.safetensors"))
    for path in cached:
        # rot-mnist-original-digest, or rot-mnist-generated-seed0-digest
        parts = path.stem.split("-")
        source = "-".join(parts[2:-1])
        yield Line("", f"cached {source}", size_text(path.stat().st_size))
    if not cached:
        yield Line("", "cached", "nothing made of these files yet")


def _scale_mnist_lines(folder: Path) -> Iterator[Line]:
    has_mnist = mnist_folder(folder) is not None
    for name in (scale_mnist.NAME, scale_mnist.ROTATED):
        yield Line(name, "generated", _made_from("mnist", has_mnist), has_mnist)
        if has_mnist:
            rotated = name == scale_mnist.ROTATED
            yield from _cached_lines(name, scale_mnist.cache_name(folder, "*", rotated))


def _tiny_imagenet_lines(folder: Path) -> Iterator[Line]:
    archive = tiny_imagenet.ARCHIVE
    source = None
    try:
        source = tiny_imagenet.find(folder)
    except (ValueError, OSError) as error:
        yield from _missing_archive_lines("tiny-imagenet", archive, folder, error)
    else:
        yield Line("tiny-imagenet", size_text(archive.size), f"{source} in {source.folder}", True)

    if source is not None:
        yield from _cached_lines("tiny-imagenet", f"tiny-imagenet-*-{rot_tim.digest(source)}")
    # these two are made from it
    for name in ("rot-tim", "r2-tim"):
        yield Line(name, "generated", _made_from("tiny-imagenet", source is not None), source is not None)
        if source is not None:
            yield from _cached_lines(name, f"{name}-*-{rot_tim.digest(source)}")


def _stl10_lines(folder: Path) -> Iterator[Line]:
    archive = stl10.ARCHIVE
    try:
        found = stl10.find(folder)
    except (ValueError, OSError) as error:
        yield from _missing_archive_lines("stl10", archive, folder, error)
        return
    yield Line("stl10", size_text(archive.size), f"{found} in {found.folder}", True)
    yield from _cached_lines("stl10", stl10.cache_name(found, "*"))


def _folder_lines(folder: Path, kind: ModuleType, part: str) -> Iterator[Line]:
    """Look for the data sets that are folders of one kind: class folders, or mask folders."""
    for name in kind.NAMED:
        try:
            found = kind.find(kind.place_in(folder, name))
        except (ValueError, OSError) as error:
            yield Line(name, part, f"missing: {error}")
            continue
        yield Line(name, part, f"{found} in {found.folder}", True)
        yield from _cached_lines(name, kind.cache_name(name, found, "*", "*"))


def _embedded_lines() -> Iterator[Line]:
    if not digits.PATH.is_file():
        where = f"missing: {digits.PATH} should be there, install ien again"
        yield Line("embedded", "5,000 digits", where)
        return
    size = size_text(digits.PATH.stat().st_size)
    yield Line("embedded", "5,000 digits", f"{size}, found: --data embedded", True)


def _missing_archive_lines(name: str, archive: RemoteFile, folder: Path, error: Exception) -> Iterator[Line]:
    """Say why a data set was not found, and whether its archive is there to be unpacked."""
    size = size_text(archive.size)
    # a download may be there and not unpacked, or half of it
    state = _state(archive, folder / archive.name)
    yield Line(name, size, str(error))
    yield Line("", archive.name, f"{size}, {state}")


def _cached_lines(name: str, pattern: str) -> Iterator[Line]:
    for path in sorted(cache_folder().glob(f"{pattern}.safetensors")):
        # name-settings-digest.safetensors
        settings, _, _digest = path.stem.removeprefix(f"{name}-").rpartition("-")
        size = size_text(path.stat().st_size)
        yield Line("", "cached", f"{settings}, {size}")


def _made_from(name: str, is_there: bool) -> str:
    if is_there:
        return f"made from {name}"
    return f"needs {name}"


def _state(file: RemoteFile, path: Path) -> str:
    """Whether a file is there as it was published, or how much of it is."""
    if not path.is_file():
        part = path.with_name(f"{path.name}.part")
        if part.is_file():
            return f"missing, {size_text(part.stat().st_size)} downloaded"
        return "missing"
    size = path.stat().st_size
    # the size first: it is known at once, and the checksum of a large file takes a while
    if size != file.size:
        return f"damaged: {size:,} bytes instead of {file.size:,}"
    if file_digest(path) != file.sha256:
        return f"damaged: its sha256 is not {file.sha256}"
    return "found"
