"""Downloads: published files and their mirrors → files in a folder, whole and checked."""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PurePosixPath, PureWindowsPath
from urllib import request
from urllib.error import HTTPError, URLError

from .._files import file_digest

__all__ = [
    "RemoteFile",
    "by_hand",
    "check_path",
    "clear_unpacked_part",
    "download",
    "download_all",
    "how_to_get",
    "published_folder",
    "unpacking",
]

TIMEOUT = 20.0
"""Seconds without an answer, or without a byte more, after which the next mirror is tried."""
DAMAGE_ERRORS = (tarfile.TarError, gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)
"""What a damaged archive raises; RuntimeError is zipfile's word for an encrypted member."""

HANDLERS: tuple[Callable[[], request.BaseHandler], ...] = (
    request.ProxyHandler,
    request.HTTPSHandler,
    request.HTTPDefaultErrorHandler,
    request.HTTPRedirectHandler,
    request.HTTPErrorProcessor,
    request.UnknownHandler,
)
"""What follows addresses and redirects, https: only; urllib's own also follow http: and ftp:."""


@dataclass(frozen=True)
class RemoteFile:
    """A published file: what it must be, and where to get it."""

    name: str
    size: int
    """Bytes."""
    sha256: str
    urls: tuple[str, ...]
    """Mirrors, https, in the order in which they are tried."""


def download(
    file: RemoteFile, folder: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None
) -> Path:
    """Download a file into ``folder``, unless it is there.

    A download that is cut short stays as ``<name>.part`` and is continued by the next call. A file
    that is there with another size or SHA-256 is an error, and is left alone.

    Args:
        file: What to download.
        folder: Where to put it; made if there is none.
        progress: Called with the bytes that are done, and with all.

    Returns:
        The path of the file.

    Raises:
        ConnectionError: No mirror gave the file; the message says why, and how to do without.
        ValueError: Another file of that name is there.
        OSError: It cannot be written.
    """

    def report(file: RemoteFile, done: int) -> None:
        if progress:
            progress(done, file.size)

    return download_all([file], folder, report)[0]


def download_all(
    files: Sequence[RemoteFile],
    folder: str | os.PathLike[str],
    progress: Callable[[RemoteFile, int], None] | None = None,
) -> list[Path]:
    """:func:`download` several files, with one error that names all those still missing."""
    folder = Path(folder)
    report = progress or (lambda file, done: None)
    for file in files:
        path = folder / file.name
        if path.exists():
            # never overwritten: it may be the user's own file
            _check(file, path)
            report(file, file.size)
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True)
            problems = _download(file, path, report)
        except OSError as error:
            raise OSError(
                f"cannot write {path} ({error.strerror or error}): {file.size:,} bytes are needed there; "
                f"what was downloaded so far is kept and continued by the next attempt"
            ) from None
        if problems:
            # one message for all, so that a user without a network learns everything at once
            missing = [file for file in files if not (folder / file.name).exists()]
            raise ConnectionError(
                f"cannot download {file.name} ({'; '.join(problems)}): "
                f"try again, or {by_hand(missing, folder)}"
            )
    return [folder / file.name for file in files]


def by_hand(files: Sequence[RemoteFile], folder: Path) -> str:
    """Say what to do without a network."""
    names = [f"{file.name} ({file.size:,} bytes, sha256 {file.sha256})" for file in files]
    listed = ", ".join(names)
    return f"put into {folder}: {listed}"


def how_to_get(name: str, place: Path) -> str:
    """Say how to get what ``ien data get`` calls ``name`` into the folder ``place``."""
    first = " after moving it away" if place.exists() else ""
    folder = place.parent
    return (
        f"Run `ien data get {name} --data {folder}`{first}, or put the published {place.name} into {folder}"
    )


def published_folder(folder: str | os.PathLike[str], name: str) -> Path:
    """Return where the folder ``name`` is: in ``folder``, or ``folder`` itself if so named."""
    folder = Path(folder)
    inside = folder / name
    if folder.name == name and not inside.exists():
        return folder
    return inside


def clear_unpacked_part(place: Path) -> None:
    """Remove what a killed attempt to unpack into ``place`` has left beside it."""
    _clear(_part_of(place))


def _part_of(place: Path) -> Path:
    return place.with_name(f"{place.name}.part")


@contextmanager
def unpacking(archive: Path, place: Path) -> Iterator[Path]:
    """Make a new folder to unpack into, whose subfolder then becomes ``place``.

    An attempt that fails or is interrupted leaves nothing. What a killed one leaves has a fixed
    name, so that the next attempt clears it away: these are gigabytes.

    Yields:
        The folder to unpack into.
    """
    part = _part_of(place)
    if place.exists():
        raise FileExistsError(f"{place} already exists: move or delete it and run this again")
    try:
        _clear(part)
        part.mkdir()
        yield part
        if not (part / place.name).is_dir():
            raise ValueError(f"{archive} holds no folder {place.name}: it is not the published archive")
        os.rename(part / place.name, place)
    except DAMAGE_ERRORS as error:
        raise ValueError(f"{archive} is damaged ({error}): delete it and run this again") from None
    except OSError as error:
        raise OSError(f"cannot unpack {archive} into {place.parent} ({error.strerror or error})") from None
    finally:
        _clear(part)


def check_path(archive: Path, name: str, folder: str) -> None:
    """Refuse an archive with a path that leads elsewhere than into ``folder``, on any system."""
    path = PurePosixPath(name)
    inside = path.parts[:1] == (folder,) and ".." not in path.parts
    # drives, backslashes and NUL mean something on other systems, or to the C library
    plain = not {"\\", ":", "\0"} & set(name) and not PureWindowsPath(name).is_absolute()
    if not inside or not plain:
        raise ValueError(f"{archive} is refused: {name!r} does not lead into {folder}")


class _MirrorFailed(Exception):
    """One mirror did not give the file; says why."""


def _check(file: RemoteFile, path: Path) -> None:
    """Raise an error unless ``path`` is the published file."""
    found = "not a file"
    if path.is_file():
        size = path.stat().st_size
        digest = file_digest(path)
        if (size, digest) == (file.size, file.sha256):
            return
        found = f"{size:,} bytes, sha256 {digest}"
    raise ValueError(
        f"{path} is not the published file ({found}; published: {file.size:,} bytes, sha256 {file.sha256}): "
        f"move or delete it and run this again"
    )


def _download(file: RemoteFile, path: Path, report: Callable[[RemoteFile, int], None]) -> list[str]:
    """Try the mirrors one after the other; return what went wrong with each, nothing on success."""
    part = path.with_name(f"{path.name}.part")
    problems = []
    for url in file.urls:
        # what is continued may be damaged: if so, the same mirror is asked for the whole file
        attempts = 2 if part.exists() else 1
        for _ in range(attempts):
            try:
                _receive(url, file, part, report)
            except _MirrorFailed as error:
                problems.append(f"{url}: {error}")
                break
            if part.stat().st_size == file.size and file_digest(part) == file.sha256:
                os.replace(part, path)
                return []
            part.unlink()
            problems.append(f"{url}: sent another file (wrong sha256)")
    return problems


def _receive(url: str, file: RemoteFile, part: Path, report: Callable[[RemoteFile, int], None]) -> None:
    """Bring ``part`` to its full size from one mirror, continuing where it ends if possible."""
    done = 0
    if part.exists():
        done = part.stat().st_size
    if done == file.size:
        return
    with _open(url, done) as response:
        done = _first_byte(response, done)
        announced = response.headers.get("Content-Length")
        if announced is not None and announced != str(file.size - done):
            raise _MirrorFailed(f"offers {announced} bytes where {file.size - done} are needed")
        mode = "wb"
        if done:
            mode = "ab"  # go on where an earlier attempt was cut short
        with part.open(mode) as out:
            report(file, done)
            for chunk in _chunks(response, file.size - done + 1):  # one more, to notice files that are longer
                out.write(chunk)
                done += len(chunk)
                report(file, min(done, file.size))
            # on the disk before it is renamed: a crash must not leave a file that only looks whole
            out.flush()
            os.fsync(out.fileno())
    if done < file.size:
        raise _MirrorFailed(f"ended after {done:,} of {file.size:,} bytes")


def _first_byte(response: HTTPResponse, asked: int) -> int:
    """Return where the answer starts: at the byte that was asked for, or at 0."""
    content_range = response.headers.get("Content-Range") or ""
    if response.status == 206 and content_range.startswith(f"bytes {asked}-"):
        return asked
    if response.status == 200:
        return 0
    raise _MirrorFailed(f"answered {response.status} to a request for bytes {asked}-")


def _open(url: str, start: int) -> HTTPResponse:
    """Ask a mirror for a file, from byte ``start``."""
    # identity: a server that compresses again would change size and digest
    headers = {"User-Agent": "ien", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        return _opener().open(request.Request(url, headers=headers), timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        if error.code == 416 and start:  # cannot be continued: ask for the whole
            return _open(url, 0)
        raise _MirrorFailed(f"{error.code} {error.reason}") from None
    except URLError as error:
        raise _MirrorFailed(f"{error.reason}") from None
    except (OSError, HTTPException, ValueError) as error:
        raise _MirrorFailed(f"{error or type(error).__name__}") from None


def _opener() -> request.OpenerDirector:
    opener = request.OpenerDirector()
    for handler in HANDLERS:
        opener.add_handler(handler())
    return opener


def _chunks(response: HTTPResponse, limit: int) -> Iterator[bytes]:
    """Yield at most ``limit`` bytes of the body; errors in here are the mirror's."""
    while limit > 0:
        try:
            chunk = response.read(min(limit, 1 << 16))
        except (OSError, HTTPException) as error:
            raise _MirrorFailed(f"{error or type(error).__name__}") from None
        if not chunk:
            return
        limit -= len(chunk)
        yield chunk


def _clear(part: Path) -> None:
    if part.is_symlink() or part.is_file():
        part.unlink()
    elif part.exists():
        shutil.rmtree(part)
