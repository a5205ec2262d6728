"""Files are whole or absent whatever happens, and seeds depend on nothing but their words."""

import hashlib
import multiprocessing
import os
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from ien._files import digest, generator, replace_file, seed_of, whole_or_nothing


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
        assert not temporary.exists() and temporary.name.startswith(".")
        temporary.write_text("new")
        assert before.get("file") == (path.read_text() if path.exists() else None)
    assert contents(tmp_path) == {"file": "new"}


def test_what_a_killed_process_left_is_not_read_again(tmp_path):
    path = tmp_path / "file"
    with whole_or_nothing(path) as temporary:
        temporary.write_text("first")
    temporary.mkdir()
    (temporary / "rest").write_text("of another run with the same process id")
    with whole_or_nothing(path) as again:
        assert again == temporary and not again.exists()
        again.write_text("second")
    assert contents(tmp_path) == {"file": "second"} and list(tmp_path.iterdir()) == [path]


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
