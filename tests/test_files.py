"""Files are whole or absent whatever happens, and seeds depend on nothing but their words."""

import hashlib
import multiprocessing
import os
import random
import resource
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from ien import _files
from ien._files import (
    check_regular,
    digest,
    file_digest,
    generator,
    read_bounded,
    replace_file,
    seed_of,
    whole_or_nothing,
    write_tensors,
)

ROOT = Path(__file__).parents[1]


def contents(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def failing(error):
    """A writer that fails half way."""

    def write(path):
        path.write_text("half of")
        raise error

    return write


@pytest.mark.parametrize("before", [{}, {"file": "old"}])
@pytest.mark.parametrize("error", [OSError("disk full"), ValueError("no"), KeyboardInterrupt()], ids=repr)
def test_a_file_is_replaced_only_when_it_is_complete(tmp_path, before, error):
    path = tmp_path / "file"
    for name, text in before.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(type(error)), whole_or_nothing(path) as temporary:
        failing(error)(temporary)
    assert contents(tmp_path) == before
    with whole_or_nothing(path) as temporary:
        assert not temporary.exists() and temporary.parent.name.startswith(".")
        temporary.write_text("new")
        assert before.get("file") == (path.read_text() if path.exists() else None)
    assert contents(tmp_path) == {"file": "new"}


def workplace(folder, process, birth, machine=None):
    """What a killed writer leaves: its folder with half a file, and a temporary one of its library."""
    place = folder / f".ien-{machine or _files._machine()}-{process}-{birth}-0123abcd.part"
    place.mkdir()
    (place / "file").write_text("half of")
    (place / ".tmpXy12Zw").write_text("half of")
    return place


def ended_process():
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def test_the_next_writer_removes_what_dead_processes_left_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    ended = workplace(tmp_path, ended_process(), "1")
    # this process has the number by now, but began at another time
    replaced = workplace(tmp_path, os.getpid(), "1")
    alive = workplace(tmp_path, os.getpid(), _files._birth(os.getpid()))
    elsewhere = workplace(tmp_path, ended_process(), "2", machine="0" * 8)
    others = []
    for name in (
        ".ien-notes.part",
        ".ien-00000000-x-1-0123abcd.part",
        f".ien-{_files._machine()}-{10**12}-1-0123abcd.part",
    ):
        others.append(tmp_path / name)
        others[-1].write_text("someone's")
    with whole_or_nothing(path) as temporary:
        assert not ended.exists() and not replaced.exists()
        temporary.write_text("new")
    assert set(tmp_path.iterdir()) == {path, alive, elsewhere, *others}


def write_and_die(path):
    """A writer that is killed when all is written and nothing is renamed."""
    with whole_or_nothing(path) as temporary:
        save_file({"w": torch.zeros(1000)}, temporary)
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_killed_writers_leave_at_most_one_file_however_often(tmp_path):
    context = multiprocessing.get_context("spawn")
    for _ in range(3):
        writer = context.Process(target=write_and_die, args=(tmp_path / "weights",))
        writer.start()
        writer.join()
        assert writer.exitcode == -signal.SIGKILL
        assert len(list(tmp_path.iterdir())) == 1
    write_tensors(tmp_path / "weights", {"w": torch.zeros(2)})
    assert list(tmp_path.iterdir()) == [tmp_path / "weights"]


def test_a_rename_is_followed_by_a_sync_of_its_folder(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace

    def sync(descriptor):
        calls.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def rename(*arguments):
        calls.append("rename")
        replace(*arguments)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", rename)
    replace_file(tmp_path / "file", lambda temporary: temporary.write_text("new"))
    assert calls == ["file", "rename", "folder"]


def fill_the_disk(path):
    """Files may grow to 10 kB here, less than the weights need."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    try:
        write_tensors(path, {"w": torch.zeros(100_000)})
    except OSError as error:
        print(error)


@pytest.mark.slow
def test_tensors_that_do_not_fit_on_the_disk_are_one_line_and_leave_nothing(tmp_path):
    path = tmp_path / "weights"
    path.write_text("old")
    code = f"from tests.test_files import *; from pathlib import Path; fill_the_disk(Path({str(path)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 1, done.stderr
    assert (
        f"{path} could not be written" in done.stdout
        and "the earlier one, if any, is untouched" in done.stdout
    )
    assert contents(tmp_path) == {"weights": "old"} and list(tmp_path.iterdir()) == [path]


def test_tensors_come_back_and_a_folder_that_takes_none_is_named(tmp_path):
    tensors = {"w": torch.rand(3, 4).T, "n": torch.tensor(5)}  # the first in another layout
    write_tensors(tmp_path / "weights", tensors, {"about": "it"})
    found = load_file(tmp_path / "weights")
    assert found.keys() == tensors.keys() and all(torch.equal(found[name], tensors[name]) for name in found)
    with pytest.raises(OSError, match="nowhere/weights could not be written"):
        write_tensors(tmp_path / "nowhere" / "weights", tensors)


# --- read with care


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize("read", [check_regular, read_bounded, file_digest])
def test_only_regular_files_are_read(tmp_path, kind, read):
    path = tmp_path / "file"
    {"pipe": os.mkfifo, "device": lambda p: p.symlink_to("/dev/zero"), "folder": os.mkdir}[kind](path)
    with pytest.raises(
        ValueError, match=r"file is not a regular file but a pipe, a device or a folder: move"
    ):
        read(path)


def test_a_file_is_read_up_to_its_limit(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_bounded(path, 5) == b"12345"
    with pytest.raises(ValueError, match=r"file has more than 4 bytes"):
        read_bounded(path, 4)


@given(st.binary(max_size=50), st.integers(1, 3))
def test_the_digest_of_a_file_is_that_of_its_bytes(content, times):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file")
        path.write_bytes(content * (times << 16))  # up to several chunks
        assert file_digest(path) == hashlib.sha256(content * (times << 16)).hexdigest()


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    def fill(texts, error=None):
        with whole_or_nothing(tmp_path / "folder") as folder:
            folder.mkdir()
            for name, text in texts.items():
                (folder / name).write_text(text)
            if error is not None:
                raise error

    with pytest.raises(ValueError):
        fill({"0": "a"}, ValueError())
    assert list(tmp_path.iterdir()) == []
    fill({"0": "a", "1": "b"})
    with pytest.raises(OSError):  # a folder that is there already is not mixed with the new one
        fill({"2": "c"})
    assert contents(tmp_path) == {"folder/0": "a", "folder/1": "b"}
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]


def write_many_times(path, letter):
    for _ in range(30):
        with whole_or_nothing(path) as temporary, open(temporary, "w") as file:
            for _ in range(100):
                file.write(letter * 100)


@pytest.mark.slow
def test_two_processes_may_write_the_same_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("a" * 10_000)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_many_times, args=(path, letter)) for letter in "ab"]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert path.read_text() in ("a" * 10_000, "b" * 10_000)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "error", [OSError("disk full"), RuntimeError("PytorchStreamWriter failed")], ids=repr
)
def test_replace_file_names_the_file_and_hides_no_mistake_of_the_writer(tmp_path, error):
    path = tmp_path / "last.pt"
    path.write_text("old")
    with pytest.raises(OSError, match=rf"last\.pt could not be written \({error}\); the earlier one"):
        replace_file(path, failing(error))
    with pytest.raises(TypeError, match="not JSON"):
        replace_file(path, failing(TypeError("not JSON")))
    with pytest.raises(OSError, match="could not be written"):
        replace_file(tmp_path / "nowhere" / "file", lambda temporary: temporary.write_text("new"))
    assert contents(tmp_path) == {"last.pt": "old"}
    replace_file(path, lambda temporary: temporary.write_text("new"))
    assert contents(tmp_path) == {"last.pt": "new"}


@given(st.lists(st.binary(max_size=20), max_size=4))
def test_digest_is_that_of_all_parts_together(parts):
    assert digest(*parts) == hashlib.sha256(b"".join(parts)).hexdigest()


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o002, 0o077], ids=oct)
def test_files_can_be_read_by_whom_the_umask_says(tmp_path, umask):
    def private(path):
        path.write_text("weights")
        path.chmod(0o600)

    def weights(path):
        save_file({"w": torch.zeros(2)}, path)

    before = os.umask(umask)
    try:
        for name, write in (
            ("private", private),
            ("weights", weights),
            ("state", lambda p: torch.save(1, p)),
        ):
            replace_file(tmp_path / name, write)
            assert (tmp_path / name).stat().st_mode & 0o777 == 0o666 & ~umask
    finally:
        os.umask(before)
    assert len(list(tmp_path.iterdir())) == 3


WORDS = st.lists(st.one_of(st.integers(0, 10**6), st.sampled_from(["order", "noise", "weights"])), max_size=4)


@given(WORDS, st.sampled_from([16, 32, 63, 64]))
def test_seeds_depend_on_the_words_alone_and_fit_the_bits(words, bits):
    seed = seed_of(*words, bits=bits)
    assert seed == seed_of(*words, bits=bits) == seed_of(*words, bits=64) >> (64 - bits)
    assert 0 <= seed < 2**bits


def test_different_words_have_different_seeds():
    places = [(s, purpose, e) for s in range(20) for purpose in ("order", "noise") for e in range(50)]
    places += [(*place, step) for place in places for step in (0, 1)]
    seeds = {seed_of(*place) for place in places}
    assert len(seeds) == len(places) and 2**62 < max(seeds) < 2**63
    assert seed_of(1, "order", 0) == 7895824605151247553  # or recorded runs could not be repeated


def test_generators_repeat_and_leave_the_global_ones_alone():
    first = torch.rand(4, generator=generator(1, "order", 0))
    torch.manual_seed(5)
    random.seed(5)
    state, python = torch.get_rng_state(), random.getstate()
    assert torch.equal(first, torch.rand(4, generator=generator(1, "order", 0)))
    assert not torch.equal(first, torch.rand(4, generator=generator(1, "order", 1)))
    assert torch.equal(torch.get_rng_state(), state) and random.getstate() == python
