"""The archive of STL-10: downloaded, checked, unpacked whole or not at all."""

from __future__ import annotations

import io
import os
import signal
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from ien.cli import data as commands
from ien.cli import data_sets
from ien.data import load, stl10
from ien.data.stl10 import ARCHIVE, find, unpack

from ..helpers import toy
from ..helpers.mirror import mirror
from ..helpers.tiny import make_stl10


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("IEN_CACHE", str(tmp_path / "cache"))
    make_stl10(tmp_path / "data")
    return tmp_path / "data"


def pack(place: Path, archive: Path, *more: tarfile.TarInfo) -> Path:
    with tarfile.open(archive, "w:gz", compresslevel=1) as file:
        file.add(place, place.name)
        for name, content in (("unlabeled_X.bin", bytes(50_000)), ("fold_indices.txt", b"0 1\n")):
            member = tarfile.TarInfo(f"{place.name}/{name}")
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
        for member in more:
            file.addfile(member, io.BytesIO(bytes(member.size)))
    return archive


def tree(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "target").mkdir()
    return tmp_path / "target"


def test_unpacked_archive_is_what_was_packed_without_the_unlabeled_images(folder: Path, target: Path) -> None:
    place = folder / "stl10_binary"
    archive, seen = pack(place, folder / "a.tar.gz"), []
    assert unpack(archive, target, lambda *counts: seen.append(counts)) == target / place.name
    assert tree(target / place.name) == {**tree(place), "fold_indices.txt": b"0 1\n"}
    assert os.listdir(target) == [place.name]
    assert seen == sorted(seen) and seen[-1] == (archive.stat().st_size,) * 2
    with pytest.raises(FileExistsError, match="is there already"):
        unpack(archive, target)


@pytest.mark.parametrize(
    ("name", "kind", "match"),
    [
        ("/etc/evil", tarfile.REGTYPE, "does not lead into"),
        ("../evil", tarfile.REGTYPE, "does not lead into"),
        ("stl10_binary/../../evil", tarfile.REGTYPE, "does not lead into"),
        ("stl10_binary/..", tarfile.DIRTYPE, "does not lead into"),
        ("stl10_binary/..\\..\\evil", tarfile.REGTYPE, "does not lead into"),
        ("C:/evil", tarfile.REGTYPE, "does not lead into"),
        ("stl10_binary/C:evil", tarfile.REGTYPE, "does not lead into"),
        ("stl10_binary2/evil", tarfile.REGTYPE, "does not lead into"),
        ("stl10_binary/link", tarfile.SYMTYPE, "is a link or a device"),
        ("stl10_binary/link", tarfile.LNKTYPE, "is a link or a device"),
        ("stl10_binary/device", tarfile.CHRTYPE, "is a link or a device"),
        ("stl10_binary/pipe", tarfile.FIFOTYPE, "is a link or a device"),
    ],
)
def test_archive_that_leads_elsewhere_is_refused_and_nothing_of_it_stays(
    name: str, kind: bytes, match: str, folder: Path, target: Path
) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, "/etc/passwd"
    archive = pack(folder / "stl10_binary", folder / "a.tar.gz", member)
    before = tree(folder.parent)
    with pytest.raises(ValueError, match=f"is refused: .*{match}"):
        unpack(archive, target)
    assert tree(folder.parent) == before and os.listdir(target) == []


def test_damaged_archive_leaves_nothing(folder: Path, target: Path) -> None:
    archive = pack(folder / "stl10_binary", folder / "a.tar.gz")
    good = archive.read_bytes()
    middle = len(good) // 2
    for content in (
        good[:middle] + bytes(200) + good[middle + 200 :],
        good[:middle],
        good[:-8] + bytes(8),  # the checksum
        good[:-4],
        b"<html>",
        b"",
    ):
        archive.write_bytes(content)
        with pytest.raises(ValueError, match=r"is damaged .*: delete it and run this again"):
            unpack(archive, target)
        assert os.listdir(target) == []
    with tarfile.open(archive, "w:gz"):
        pass
    with pytest.raises(ValueError, match="holds no folder stl10_binary"):
        unpack(archive, target)
    assert os.listdir(target) == []


def unpack_and_die(archive: Path, target: Path) -> None:
    unpack(archive, target, lambda done, total: os.kill(os.getpid(), signal.SIGKILL))


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs a system with SIGKILL")
def test_killed_unpacking_is_not_taken_for_whole_and_made_up_for(folder: Path, target: Path) -> None:
    archive = pack(folder / "stl10_binary", folder / "a.tar.gz")
    assert toy.finish(toy.start(unpack_and_die, archive, target)) == -signal.SIGKILL
    assert os.listdir(target) == ["stl10_binary.part"]
    with pytest.raises(FileNotFoundError, match="no STL-10"):
        find(target)
    unpack(archive, target)
    assert os.listdir(target) == ["stl10_binary"] and find(target).train == 7


def test_interrupted_unpacking_and_a_full_disk_leave_nothing(folder: Path, target: Path) -> None:
    archive = pack(folder / "stl10_binary", folder / "a.tar.gz")
    for error, expected in (
        (KeyboardInterrupt(), KeyboardInterrupt),
        (OSError(28, "No space left"), OSError),
    ):

        def fail(done: int, total: int, error: BaseException = error) -> None:
            raise error

        with pytest.raises(expected):
            unpack(archive, target, fail)
        assert os.listdir(target) == []


@pytest.fixture
def asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A server that has the packed folder as the published archive; what was asked of it."""
    served = folder / "served"
    served.mkdir()
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(stl10, "TRAIN", 7)
    monkeypatch.setattr(stl10, "TEST", 5)
    with mirror(pack(folder / "stl10_binary", served / ARCHIVE.name)) as (file, asked):
        monkeypatch.setitem(data_sets.DOWNLOADS, "stl10", (file,))
        monkeypatch.setattr(stl10, "ARCHIVE", file)
        yield asked


def command(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(commands.app, list(arguments))
    return done.exit_code, done.stdout, done.stderr


def test_command_downloads_and_unpacks_once(asked: list[str], folder: Path, target: Path) -> None:
    code, out, err = command("get", "stl10", "--data", str(target))
    last = f"stl10: 7 train and 5 test images in {target / 'stl10_binary'}"
    assert (code, err) == (0, "") and out.splitlines()[-1] == last
    assert sorted(os.listdir(target)) == ["stl10_binary", ARCHIVE.name]
    assert torch.equal(load("stl10", target).train_x, load("stl10", folder).train_x)
    assert command("get", "stl10", "--data", str(target)) == (0, last + "\n", "") and len(asked) == 1
    (target / ARCHIVE.name).write_bytes(b"another file")
    os.rename(target / "stl10_binary", target / "gone")
    code, _, err = command("get", "stl10", "--data", str(target))
    assert code == 2 and "is not the published file" in err and len(asked) == 1


def test_command_leaves_a_part_of_the_images_alone(
    asked: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stl10, "TRAIN", 5000)
    before = tree(folder)
    code, out, err = command("get", "stl10", "--data", str(folder))
    assert (code, out) == (2, "") and "is only a part of STL-10 (7 train and 5 test images (published" in err
    assert tree(folder) == before and asked == []


def test_published_archive_has_the_published_name_and_digest() -> None:
    assert ARCHIVE.size == 2_640_397_119 and ARCHIVE.md5 == "91f7769df0f17e558f3565bffb0c7dfb"
    assert all(url.endswith(".stanford.edu/~acoates/stl10/stl10_binary.tar.gz") for url in ARCHIVE.urls)
