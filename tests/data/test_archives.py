"""The archives of Tiny ImageNet and STL-10: unpacked whole or not at all, and never elsewhere."""

from __future__ import annotations

import io
import os
import signal
import stat
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from ien.data import stl10, tiny_imagenet

from ..helpers import toy
from ..helpers.tiny import make_stl10, make_tiny_imagenet, tree

pytest.importorskip("PIL", reason="images are written with pillow: pip install 'ien[plots]'")


class Packed(NamedTuple):
    """A small data set and its archive."""

    module: ModuleType
    place: Path
    archive: Path
    more: dict[str, bytes]
    """What is in the archive only, and unpacked."""


def pack_zip(place: Path, archive: Path) -> None:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in [place, *sorted(place.rglob("*"))]:
            file.write(path, path.relative_to(place.parent))


def pack_tar(place: Path, archive: Path, *more: tarfile.TarInfo) -> None:
    with tarfile.open(archive, "w:gz", compresslevel=1) as file:
        file.add(place, place.name)
        for name, content in (("unlabeled_X.bin", bytes(50_000)), ("fold_indices.txt", b"0 1\n")):
            member = tarfile.TarInfo(f"{place.name}/{name}")
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
        for member in more:
            file.addfile(member, io.BytesIO(bytes(member.size)))


@pytest.fixture(params=["tiny-imagenet", "stl10"])
def packed(request: pytest.FixtureRequest, tmp_path: Path) -> Packed:
    if request.param == "tiny-imagenet":
        place = make_tiny_imagenet(tmp_path / "data")
        pack_zip(place, tmp_path / "archive")
        return Packed(tiny_imagenet, place, tmp_path / "archive", {})
    make_stl10(tmp_path / "data")
    place = tmp_path / "data" / "stl10_binary"
    pack_tar(place, tmp_path / "archive")
    return Packed(stl10, place, tmp_path / "archive", {"fold_indices.txt": b"0 1\n"})  # not the unlabelled


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "target").mkdir()
    return tmp_path / "target"


def test_what_is_unpacked_is_what_was_packed(packed: Packed, target: Path) -> None:
    module, place, archive, more = packed
    seen: list[tuple[int, int]] = []
    assert module.unpack(archive, target, lambda *counts: seen.append(counts)) == target / place.name
    assert tree(target / place.name) == tree(place) | more and os.listdir(target) == [place.name]
    assert seen == sorted(seen) and seen[-1][0] == seen[-1][1]
    with pytest.raises(FileExistsError, match=f"{target / place.name} already exists: move or delete it"):
        module.unpack(archive, target)


LINK = (stat.S_IFLNK | 0o777) << 16
DEVICE = (stat.S_IFCHR | 0o666) << 16
ELSEWHERE = ["/etc/evil", "../evil", "{}/../../evil", "{}/..\\..\\evil", "C:/evil", "{}/C:evil", "{}2/evil"]


@pytest.mark.parametrize(
    ("name", "attributes", "match"),
    [
        *((name, 0, "does not lead into tiny-imagenet-200") for name in ELSEWHERE),
        ("{}/link", LINK, "is a link or a device"),
        ("{}/device", DEVICE, "is a link or a device"),
    ],
)
def test_a_zip_that_leads_elsewhere_is_refused_before_anything_is_written(
    name: str, attributes: int, match: str, tmp_path: Path, target: Path
) -> None:
    archive = tmp_path / "archive"
    pack_zip(make_tiny_imagenet(tmp_path / "data"), archive)
    with zipfile.ZipFile(archive, "a") as file:
        member = zipfile.ZipInfo(name.format("tiny-imagenet-200"))
        member.external_attr = attributes
        file.writestr(member, "/etc/passwd")
    before = tree(tmp_path)
    with pytest.raises(ValueError, match=f"is refused: .*{match}"):
        tiny_imagenet.unpack(archive, target)
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "kind", "match"),
    [
        *((name, tarfile.REGTYPE, "does not lead into stl10_binary") for name in ELSEWHERE),
        ("{}/..", tarfile.DIRTYPE, "does not lead into"),
        ("{}/link", tarfile.SYMTYPE, "is a link or a device"),
        ("{}/link", tarfile.LNKTYPE, "is a link or a device"),
        ("{}/device", tarfile.CHRTYPE, "is a link or a device"),
        ("{}/pipe", tarfile.FIFOTYPE, "is a link or a device"),
    ],
)
def test_a_tar_that_leads_elsewhere_is_refused_and_nothing_of_it_stays(
    name: str, kind: bytes, match: str, tmp_path: Path, target: Path
) -> None:
    member = tarfile.TarInfo(name.format("stl10_binary"))
    member.type, member.linkname = kind, "/etc/passwd"
    make_stl10(tmp_path / "data")
    pack_tar(tmp_path / "data" / "stl10_binary", tmp_path / "archive", member)
    before = tree(tmp_path)
    with pytest.raises(ValueError, match=f"is refused: .*{match}"):
        stl10.unpack(tmp_path / "archive", target)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("damage", ["middle", "half", "checksum", "end", "page", "empty"])
def test_a_damaged_archive_leaves_nothing(damage: str, packed: Packed, target: Path) -> None:
    good = packed.archive.read_bytes()
    middle = len(good) // 2
    contents = {
        "middle": good[:middle] + bytes(200) + good[middle + 200 :],
        "half": good[:middle],
        "checksum": good[:-8] + bytes(8),
        "end": good[:-4],
        "page": b"<html>",
        "empty": b"",
    }
    packed.archive.write_bytes(contents[damage])
    with pytest.raises(ValueError, match=r"is damaged .*: delete it and run this again"):
        packed.module.unpack(packed.archive, target)
    assert os.listdir(target) == []


def test_another_archive_is_refused(packed: Packed, target: Path) -> None:
    if packed.module is stl10:
        with tarfile.open(packed.archive, "w:gz"):
            pass
    else:
        with zipfile.ZipFile(packed.archive, "w"):
            pass
    with pytest.raises(ValueError, match=f"holds no folder {packed.place.name}: it is not the published"):
        packed.module.unpack(packed.archive, target)
    assert os.listdir(target) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left")])
def test_an_interruption_and_a_full_disk_leave_nothing(
    error: BaseException, packed: Packed, target: Path
) -> None:
    def fail(done: int, total: int) -> None:
        if done > total // 2:
            raise error

    with pytest.raises(type(error)):
        packed.module.unpack(packed.archive, target, fail)
    assert os.listdir(target) == []


def unpack_and_die(module: str, archive: Path, target: Path) -> None:
    unpack = stl10.unpack if module == "stl10" else tiny_imagenet.unpack
    unpack(archive, target, lambda done, total: os.kill(os.getpid(), signal.SIGKILL))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs a system with SIGKILL")
def test_a_killed_attempt_does_not_pass_for_whole_and_is_cleared_away(packed: Packed, target: Path) -> None:
    module, place, archive, more = packed
    process = toy.start(unpack_and_die, module.__name__.rpartition(".")[2], archive, target)
    assert toy.finish(process) == -signal.SIGKILL
    assert os.listdir(target) == [f"{place.name}.part"]
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        module.find(target)
    (target / f"{place.name}.part" / "of another archive").write_text("")
    module.unpack(archive, target)
    assert tree(target / place.name) == tree(place) | more and os.listdir(target) == [place.name]
