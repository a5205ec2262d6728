"""The archives of Tiny ImageNet and STL-10: unpacked whole or not at all, and never elsewhere."""

import io
import os
import signal
import stat
import tarfile
import zipfile
from types import SimpleNamespace

import pytest

from ien.data import stl10, tiny_imagenet

from ..helpers import toy
from ..helpers.tiny import make_stl10, make_tiny_imagenet, tree

pytest.importorskip("PIL", reason="images are written with pillow: pip install 'ien[plots]'")

KINDS = {
    "file": (stat.S_IFREG, tarfile.REGTYPE),
    "folder": (stat.S_IFDIR, tarfile.DIRTYPE),
    "link": (stat.S_IFLNK, tarfile.SYMTYPE),
    "hard link": (stat.S_IFLNK, tarfile.LNKTYPE),
    "device": (stat.S_IFCHR, tarfile.CHRTYPE),
    "pipe": (stat.S_IFIFO, tarfile.FIFOTYPE),
}


def pack_zip(archive, paths, member="", kind="file") -> None:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for name, path in paths.items():
            file.write(path, name)
        if member:
            info = zipfile.ZipInfo(member)
            info.external_attr = (KINDS[kind][0] | 0o777) << 16
            file.writestr(info, "/etc/passwd")


def pack_tar(archive, paths, member="", kind="file") -> None:
    with tarfile.open(archive, "w:gz", compresslevel=1) as file:
        for name, path in paths.items():
            file.add(path, name, recursive=False)
        if paths:
            unlabelled = tarfile.TarInfo("stl10_binary/unlabeled_X.bin")
            unlabelled.size = 50_000
            file.addfile(unlabelled, io.BytesIO(bytes(50_000)))
        if member:
            info = tarfile.TarInfo(member)
            info.type, info.linkname = KINDS[kind][1], "/etc/passwd"
            file.addfile(info)


@pytest.fixture(params=["tiny_imagenet", "stl10"])
def packed(request, tmp_path):
    """A small data set, its archive, and a folder to unpack it into."""
    if request.param == "stl10":
        make_stl10(tmp_path / "data", 2, 1)
        module, name, pack = stl10, "stl10_binary", pack_tar
    else:
        make_tiny_imagenet(tmp_path / "data", 2, 3, 2)
        module, name, pack = tiny_imagenet, "tiny-imagenet-200", pack_zip
    place, archive, target = tmp_path / "data" / name, tmp_path / "archive", tmp_path / "target"
    paths = {str(path.relative_to(place.parent)): path for path in [place, *sorted(place.rglob("*"))]}
    pack(archive, paths)
    target.mkdir()
    return SimpleNamespace(
        module=module, name=name, place=place, paths=paths, pack=pack, archive=archive, target=target
    )


def test_what_is_unpacked_is_what_was_packed(packed) -> None:
    """But for the images of STL-10 that have no label."""
    seen = []
    result = packed.module.unpack(packed.archive, packed.target, lambda *counts: seen.append(counts))
    assert result == packed.target / packed.name and os.listdir(packed.target) == [packed.name]
    assert tree(result) == tree(packed.place)
    assert seen == sorted(seen) and seen[-1][0] == seen[-1][1]
    with pytest.raises(FileExistsError, match=f"{result} already exists: move or delete it"):
        packed.module.unpack(packed.archive, packed.target)


ELSEWHERE = ["/etc/evil", "../evil", "{}/../../evil", "{}/..\\..\\evil", "C:/evil", "{}/C:evil", "{}2/evil"]


@pytest.mark.parametrize(
    ("name", "kind", "match"),
    [
        *((name, "file", "does not lead into") for name in ELSEWHERE),
        ("{}/..", "folder", "does not lead into"),
        *(
            (f"{{}}/{kind}", kind, "is a link or a device")
            for kind in ("link", "hard link", "device", "pipe")
        ),
    ],
)
def test_an_archive_that_leads_elsewhere_leaves_nothing(name, kind, match, packed, tmp_path) -> None:
    packed.pack(packed.archive, packed.paths, name.format(packed.name), kind)
    before = tree(tmp_path)
    with pytest.raises(ValueError, match=f"is refused: .*{match}"):
        packed.module.unpack(packed.archive, packed.target)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("damage", ["middle", "half", "checksum", "end", "page", "empty", "other"])
def test_a_damaged_archive_leaves_nothing(damage, packed) -> None:
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
    match = "is damaged .*: delete it and run this again"
    if damage == "other":
        packed.pack(packed.archive, {})
        match = f"holds no folder {packed.name}: it is not the published"
    else:
        packed.archive.write_bytes(contents[damage])
    with pytest.raises(ValueError, match=match):
        packed.module.unpack(packed.archive, packed.target)
    assert os.listdir(packed.target) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left")])
def test_an_interruption_and_a_full_disk_leave_nothing(error, packed) -> None:
    def fail(done, total) -> None:
        if done > total // 2:
            raise error

    with pytest.raises(type(error)):
        packed.module.unpack(packed.archive, packed.target, fail)
    assert os.listdir(packed.target) == []


def unpack_and_die(name, archive, target) -> None:
    module = {"stl10_binary": stl10, "tiny-imagenet-200": tiny_imagenet}[name]
    module.unpack(archive, target, lambda done, total: os.kill(os.getpid(), signal.SIGKILL))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs a system with SIGKILL")
def test_a_killed_attempt_does_not_pass_for_whole_and_is_cleared_away(packed) -> None:
    target, part = packed.target, f"{packed.name}.part"
    process = toy.start(unpack_and_die, packed.name, packed.archive, target)
    assert toy.finish(process) == -signal.SIGKILL
    assert os.listdir(target) == [part]
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        packed.module.find(target)
    (target / part / "of another archive").write_text("")
    packed.module.unpack(packed.archive, target)
    assert tree(target / packed.name) == tree(packed.place) and os.listdir(target) == [packed.name]


def test_the_archives_are_the_published_ones() -> None:
    tiny, stl = tiny_imagenet.ARCHIVE, stl10.ARCHIVE
    assert (tiny.size, tiny.sha256[:8], len(tiny.sha256)) == (248_100_043, "6198c8ae", 64)
    assert (stl.size, stl.sha256[:8], len(stl.sha256)) == (2_640_397_119, "f31fd992", 64)
    assert tiny.urls == ("https://cs231n.stanford.edu/tiny-imagenet-200.zip",)
    for url in stl.urls:
        assert url.startswith("https://")
        assert url.endswith(".stanford.edu/~acoates/stl10/stl10_binary.tar.gz")
