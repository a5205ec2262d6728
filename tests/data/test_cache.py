"""The cache: one file, memory-mapped, made again if it is damaged, and never half-written."""

import os
import signal
from pathlib import Path

import pytest
import torch

import ien.data.mnist
from ien.data import load, rot_tim, scale_mnist, stl10
from ien.data.cache import cache_folder, cached, layout_of
from ien.data.scale_mnist import Sizes

from ..helpers import toy
from ..helpers.tiny import COUNTS, cache_files

LAYOUT = layout_of(5, 3, (1, 2, 2))


def made():
    rng = torch.Generator().manual_seed(0)
    return {key: torch.randint(99, shape, generator=rng).to(dtype) for key, (dtype, shape) in LAYOUT.items()}


def never():
    raise AssertionError("made again although it is in the cache")


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_later_calls_map_the_one_file_and_writing_leaves_it_alone() -> None:
    first, second = cached("name", LAYOUT, made, {"seed": 3}), cached("name", LAYOUT, never, {"seed": 3})
    (path,) = cache_files()
    if Path("/proc/self/maps").exists():
        assert str(path) in Path("/proc/self/maps").read_text()
    assert same(first, made())
    first["train_x"].zero_()
    assert same(second, made()) and same(cached("name", LAYOUT, never, {"seed": 3}), made())


@pytest.mark.parametrize("damage", ["truncated", "longer", "empty", "header", "other tensors", "other about"])
def test_a_damaged_file_is_made_again(damage) -> None:
    from safetensors.torch import save_file

    cached("name", LAYOUT, made)
    (path,) = cache_files()
    good = path.read_bytes()
    path.unlink()
    content = {"truncated": good[:-1], "longer": good + b"x", "empty": b"", "header": b"\xff" * 8 + good[8:]}
    if damage in content:
        path.write_bytes(content[damage])
    elif damage == "other tensors":
        save_file({"train_x": torch.zeros(3)}, path)
    else:
        save_file(made(), path, {"about": "{}"})
    assert same(cached("name", LAYOUT, made), made())
    assert cache_files() == [path] and path.read_bytes() == good


def test_a_wrong_bit_anywhere_is_not_served() -> None:
    cached("name", LAYOUT, made, {"seed": 3})
    (path,) = cache_files()
    good = path.read_bytes()
    for place in range(len(good)):
        path.unlink()  # a new file: the old one is still mapped
        path.write_bytes(good[:place] + bytes([good[place] ^ 4]) + good[place + 1 :])
        assert same(cached("name", LAYOUT, made, {"seed": 3}), made()), place


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_is_refused(kind) -> None:
    cached("name", LAYOUT, made)
    (path,) = cache_files()
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="is not a regular file"):
        cached("name", LAYOUT, never)


def test_what_does_not_fit_its_layout_is_an_error() -> None:
    with pytest.raises(ValueError, match="does not hold what was written to it"):
        cached("name", LAYOUT, lambda: {"train_x": torch.zeros(3)})


def test_a_cache_that_cannot_be_written_names_the_setting(tmp_path, monkeypatch) -> None:
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("IEN_CACHE", str(tmp_path / "taken"))
    with pytest.raises(OSError, match=r"cannot write the cache .*taken.* set IEN_CACHE to a folder"):
        cached("name", LAYOUT, made)


def test_a_full_disk_leaves_nothing_behind(monkeypatch) -> None:
    def full(*_) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device.*IEN_CACHE"):
        cached("name", LAYOUT, made)
    assert cache_files() == []


def test_the_folder_follows_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("IEN_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    monkeypatch.setenv("HOME", "/c")
    assert cache_folder() == Path("/a")
    monkeypatch.setenv("IEN_CACHE", "")
    assert cache_folder() == Path("/b/ien")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/c/.cache/ien")


MIDDLE = {
    "scale-mnist": (1, scale_mnist, "rotate_and_scale"),
    "stl10": (1, stl10, "_labels"),
    "rot-tim": (2, rot_tim, "_make"),
}
SETTINGS = {"scale-mnist": {}, "stl10": {}, "rot-tim": {"classes": 4}}


def build_and_die(folder, cache, name, point) -> None:
    """Make a data set in a child process that kills itself in a call."""
    os.environ["IEN_CACHE"] = str(cache)
    ien.data.mnist.DIGITS, scale_mnist.SIZES, rot_tim.CHUNK = COUNTS, Sizes(40, 10, 60), 5
    number, owner, function = MIDDLE[name] if point == "in the middle" else (1, os, "replace")
    toy.at_call(number, owner, function, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    load(name, folder, **SETTINGS[name])


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs a system with SIGKILL")
@pytest.mark.parametrize("point", ["in the middle", "before it is renamed"])
@pytest.mark.parametrize("name", MIDDLE)
def test_a_killed_build_leaves_nothing_that_passes_for_whole(name, point, full_folder) -> None:
    process = toy.start(build_and_die, full_folder, cache_folder(), name, point)
    assert toy.finish(process) == -signal.SIGKILL
    assert not [path for path in cache_files() if path.suffix == ".safetensors"]
    load(name, full_folder, **SETTINGS[name])
    assert [path.suffix for path in cache_files()].count(".safetensors") == 1
