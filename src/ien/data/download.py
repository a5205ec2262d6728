"""Fetch: from published files and their mirrors to files in a folder, whole or not there."""

from __future__ import annotations

import gzip
import hashlib
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

__all__ = ["RemoteFile", "by_hand", "check_path", "download", "download_all", "md5", "unpacking"]

TIMEOUT = 20.0
"""Seconds without an answer, or without a byte more, after which the next mirror is tried."""


@dataclass(frozen=True)
class RemoteFile:
    """A published file: what it must be, and where it can be had."""

    name: str
    size: int
    """Bytes."""
    md5: str
    urls: tuple[str, ...]
    """Mirrors, http or https, in the order in which they are tried."""


def download(
    file: RemoteFile, folder: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None
) -> Path:
    """The file in ``folder``, downloaded unless it is there; ``progress(bytes_done, bytes_total)``.

    A download cut short stays as ``<name>.part`` and is continued by the next call. A file that is there with
    another size or md5 is an error, and is left alone.
    """
    report = progress or (lambda done, total: None)
    return download_all([file], folder, lambda file, done: report(done, file.size))[0]


def download_all(
    files: Sequence[RemoteFile],
    folder: str | os.PathLike[str],
    progress: Callable[[RemoteFile, int], None] | None = None,
) -> list[Path]:
    """:func:`download` for several files, with one error that names all those still missing."""
    folder = Path(folder)
    report = progress or (lambda file, done: None)
    for file in files:
        path = folder / file.name
        if path.exists():
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
            missing = [f for f in files if not (folder / f.name).exists()]
            raise ConnectionError(
                f"cannot download {file.name} ({'; '.join(problems)}): "
                f"try again, or {by_hand(missing, folder)}"
            )
    return [folder / file.name for file in files]


def by_hand(files: Sequence[RemoteFile], folder: Path) -> str:
    """What someone without a network has to do."""
    listed = ", ".join(f"{file.name} ({file.size:,} bytes, md5 {file.md5})" for file in files)
    return f"put into {folder}: {listed}"


def md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def unpacking(archive: Path, place: Path) -> Iterator[Path]:
    """A new folder to unpack into; the folder of the name of ``place`` in it is put there at the end.

    An attempt that fails or is interrupted leaves nothing; what one leaves that was killed is cleared away by
    the next.
    """
    part = place.with_name(f"{place.name}.part")
    if place.exists():
        raise FileExistsError(f"{place} is there already: move or delete it and run this again")
    try:
        _clear(part)
        part.mkdir()
        yield part
        if not (part / place.name).is_dir():
            raise ValueError(f"{archive} holds no folder {place.name}: it is not the published archive")
        os.rename(part / place.name, place)
    except _DAMAGED as error:
        raise ValueError(f"{archive} is damaged ({error}): delete it and run this again") from None
    except OSError as error:
        raise OSError(f"cannot unpack {archive} into {place.parent} ({error.strerror or error})") from None
    finally:
        _clear(part)


def check_path(archive: Path, name: str, folder: str) -> None:
    """Refuse an archive with a path that leads elsewhere than into ``folder``, on whatever system."""
    path = PurePosixPath(name)
    inside = path.parts[:1] == (folder,) and ".." not in path.parts
    plain = not {"\\", ":", "\0"} & set(name) and not PureWindowsPath(name).is_absolute()
    if not inside or not plain:
        raise ValueError(f"{archive} is refused: {name!r} does not lead into {folder}")


# RuntimeError: zipfile's word for an encrypted member
_DAMAGED = (tarfile.TarError, gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)


class _MirrorFailed(Exception):
    """One mirror did not give the file; says why."""


def _check(file: RemoteFile, path: Path) -> None:
    size = path.stat().st_size if path.is_file() else -1
    if size == file.size and md5(path) == file.md5:
        return
    found = f"{size:,} bytes, md5 {md5(path)}" if size >= 0 else "not a file"
    raise ValueError(
        f"{path} is not the published file ({found}; published: {file.size:,} bytes, md5 {file.md5}): "
        f"move or delete it and run this again"
    )


def _download(file: RemoteFile, path: Path, report: Callable[[RemoteFile, int], None]) -> list[str]:
    """Try the mirrors in turn until the file is there; what went wrong with each, empty on success."""
    part = path.with_name(f"{path.name}.part")
    problems = []
    for url in file.urls:
        # what is continued may be damaged: if so, the same mirror is asked for the whole file
        for _ in range(2 if part.exists() else 1):
            try:
                _receive(url, file, part, report)
            except _MirrorFailed as error:
                problems.append(f"{url}: {error}")
                break
            if part.stat().st_size == file.size and md5(part) == file.md5:
                os.replace(part, path)
                return []
            part.unlink()
            problems.append(f"{url}: sent another file (wrong md5)")
    return problems


def _receive(url: str, file: RemoteFile, part: Path, report: Callable[[RemoteFile, int], None]) -> None:
    """Bring ``part`` to its full size from one mirror, from where it ends if that can be."""
    done = part.stat().st_size if part.exists() else 0
    if done == file.size:
        return
    with _open(url, done) as response:
        if response.status == 206 and _starts_at(response, done):
            kept = done
        elif response.status == 200:
            kept = 0
        else:
            raise _MirrorFailed(f"answered {response.status} to a request for bytes {done}-")
        announced = response.headers.get("Content-Length")
        if announced is not None and announced != str(file.size - kept):
            raise _MirrorFailed(f"offers {announced} bytes where {file.size - kept} are needed")
        with part.open("ab" if kept else "wb") as out:
            done = kept
            report(file, done)
            for chunk in _chunks(response, file.size - done + 1):
                out.write(chunk)
                done += len(chunk)
                report(file, min(done, file.size))
            out.flush()
            os.fsync(out.fileno())
    if done < file.size:
        raise _MirrorFailed(f"ended after {done:,} of {file.size:,} bytes")


def _open(url: str, start: int) -> HTTPResponse:
    headers = {"User-Agent": "ien", "Accept-Encoding": "identity"}
    ranged = {"Range": f"bytes={start}-"} if start else {}
    try:
        return _opener().open(request.Request(url, headers=headers | ranged), timeout=TIMEOUT)
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
    # the default opener also follows file: and ftp: addresses, redirects to ftp: included
    opener = request.OpenerDirector()
    for handler in (
        request.ProxyHandler,
        request.HTTPHandler,
        request.HTTPSHandler,
        request.HTTPDefaultErrorHandler,
        request.HTTPRedirectHandler,
        request.HTTPErrorProcessor,
        request.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener


def _starts_at(response: HTTPResponse, start: int) -> bool:
    return (response.headers.get("Content-Range") or "").startswith(f"bytes {start}-")


def _chunks(response: HTTPResponse, limit: int) -> Iterator[bytes]:
    """The body, at most ``limit`` bytes; errors in here are the mirror's, those of the reader the disk's."""
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
