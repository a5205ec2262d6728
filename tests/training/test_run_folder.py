"""The run folder: what is refused and what then stays as it was, and what comes out of it again."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import ien
import ien.data
import ien.training
from ien.training import checkpoint, loop
from ien.training import run_folder as folder
from ien.training.network import build
from tests.helpers import toy
from tests.helpers.refused import assert_refused, contents

pytestmark = pytest.mark.usefixtures("toy_data")


# --- the folder as a whole


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"beta": 0.5}, r"holds another run \(beta 1.0, now 0.5\): choose another --out"),
        ({"seed": 2, "threads": 2}, r"\(seed 1, now 2, threads 1, now 2\)"),
    ],
)
def test_a_folder_of_another_run_is_refused(cut, changes, match) -> None:
    assert_refused(cut, match, **changes)


def test_what_is_left_open_is_settled_in_a_new_folder_and_then_taken_from_it(tmp_path) -> None:
    data = {"folder": "d", "name": "digits", "source": "toy", "train": 1, "test": 1, "digest": "0"}
    config = folder.create(tmp_path, toy.config(device="auto", threads=None), data)
    assert config.machine.threads == 1 and config.machine.device in ("cpu", "cuda", "mps")
    assert folder.read_config(tmp_path) == config
    again = folder.create(tmp_path, toy.config(device="auto", threads=None), folder.read_data(tmp_path))
    assert again == config


def test_a_folder_with_other_files_is_refused(tmp_path) -> None:
    (tmp_path / "thesis.tex").write_text("dear")
    assert_refused(tmp_path, "exists and is not a run folder .*: choose another --out")


@pytest.mark.parametrize("device", ["gpu", "cuda:77"])
def test_a_device_that_is_not_there_is_refused_before_anything_is_written(tmp_path, device) -> None:
    with pytest.raises(ValueError, match=f"device '{device}' cannot be used here .*; use cpu"):
        toy.run_in(tmp_path / "run", device=device)
    assert not (tmp_path / "run").exists()


def begin_on_a_gpu(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a folder say that its run was begun on a GPU, where there is none."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = path / "config.json"
    text = config.read_text()
    assert '"device": "cpu"' in text
    config.write_text(text.replace('"device": "cpu"', '"device": "cuda:77"'))


def test_a_run_of_a_gpu_that_is_not_here_names_the_command_that_works(cut, finished, monkeypatch) -> None:
    begin_on_a_gpu(cut, monkeypatch)
    (cut / "last.pt").unlink()
    told = r"was begun on cuda:77, which cannot be used here: go on with ien resume \S+ --device cpu, or"
    assert_refused(cut, told, device="auto")
    record = toy.run_in(cut, device="cpu")
    assert record["begun_on"] == "cuda:77" and record["config"]["machine"]["device"] == "cpu"
    assert folder.begun_on(cut) == "cuda:77" and folder.read_config(cut).machine.device == "cpu"
    assert (cut / "metrics.jsonl").read_bytes() == (finished / "metrics.jsonl").read_bytes()


def test_a_run_that_moved_goes_on_from_its_checkpoint_and_back(tmp_path, monkeypatch) -> None:
    data = {"folder": "d", "name": "digits", "source": "toy", "train": 1, "test": 1, "digest": "0"}
    folder.create(tmp_path, toy.config(), data)
    begin_on_a_gpu(tmp_path, monkeypatch)
    monkeypatch.setattr(folder, "_device", lambda name: name)  # there is one for a while
    gpu = folder.create(tmp_path, toy.config(device="auto"), data)
    assert gpu.machine.device == "cuda:77" and folder.begun_on(tmp_path) is None
    before, _ = checkpoint._config_digests(tmp_path, gpu)
    cpu = folder.create(tmp_path, toy.config(device="cpu"), data)
    assert cpu.machine.device == "cpu" and checkpoint._config_digests(tmp_path, cpu)[0] == before
    # and from then on without being told
    assert folder.create(tmp_path, toy.config(device="auto"), data) == cpu
    assert folder.create(tmp_path, toy.config(device="cuda:77"), data) == gpu
    assert folder.begun_on(tmp_path) == "cuda:77"


@pytest.mark.parametrize(
    "name", ["config.json", "metrics.jsonl", "result.json", "model.safetensors", ".lock"]
)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_pipes_and_devices_are_refused(copied, name, kind) -> None:
    if name in ("metrics.jsonl", ".lock"):
        (copied / "result.json").unlink()
    path = copied / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(
        ValueError, match=rf"{name} is not a regular file but a pipe, a device or a folder: move"
    ):
        if name in ("config.json", "model.safetensors"):
            ien.load(copied)
        else:
            toy.run_in(copied)


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "result.json"])
def test_huge_files_are_refused_before_they_are_read(copied, name) -> None:
    if name == "metrics.jsonl":
        (copied / "result.json").unlink()
    with open(copied / name, "r+b") as file:
        file.truncate(10**10)  # sparse: takes no space
    with pytest.raises(ValueError, match=rf"{name} has more than 67,108,864 bytes"):
        if name == "config.json":
            ien.load(copied)
        else:
            toy.run_in(copied)


@pytest.mark.parametrize("name", ["config.json", "last.pt", "result.json", "model.safetensors"])
def test_a_file_that_may_not_be_read_is_never_to_be_deleted(copied, name, monkeypatch) -> None:
    if name == "last.pt":
        (copied / "result.json").unlink()
    open_file = open

    def deny(path, *arguments, **options):
        if Path(str(path)).name == name:
            raise PermissionError(13, "Permission denied", str(path))
        return open_file(path, *arguments, **options)

    monkeypatch.setattr("builtins.open", deny)
    monkeypatch.setattr("io.open", deny)
    with pytest.raises(PermissionError, match=name) as caught:
        if name == "last.pt":
            toy.run_in(copied)
        else:
            ien.load(copied)
    assert "delete" not in str(caught.value)


def test_leftovers_of_killed_processes_are_cleared_by_whoever_has_the_lock(cut) -> None:
    (cut / ".ien-00000000-1-1-0123abcd.part").mkdir()  # of another machine
    (cut / ".ien-00000000-1-1-0123abcd.part" / "last.pt").write_text("half of")
    (cut / ".last.pt.123.part").write_text("of an older version")
    (cut / ".tmpXy12Zw").write_text("of safetensors")
    with folder.lock(cut):
        assert {path.name for path in cut.glob(".*")} == {".lock"}
        assert contents(cut).keys() == {"README.md", "config.json", "last.pt", "metrics.jsonl"}


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee documentation"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: not enough memory: you tried"
        ),
        RuntimeError(
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 5 bytes"
        ),
        RuntimeError("could not create a primitive"),
    ],
    ids=["python", "gpu", "cpu", "cpu, posix", "convolution"],
)
def test_out_of_memory_is_one_line_and_loses_nothing(tmp_path, finished, error, monkeypatch) -> None:
    path = tmp_path / "run"

    def spend(*arguments: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(loop, "take_step", loop.take_step)  # put back afterwards
        toy.at_call(9, loop, "take_step", spend)
        with pytest.raises(ien.training.OutOfMemory) as caught:
            toy.run_in(path)
    told = str(caught.value)
    assert "\n" not in told and told.startswith("out of memory (")
    assert told.endswith(
        f"use a batch_size below 16, as in --set batch_size=8, or gradient accumulation in a loop of your "
        f"own; {path} keeps what was saved before"
    )
    toy.run_in(path)
    assert (path / "metrics.jsonl").read_bytes() == (finished / "metrics.jsonl").read_bytes()


def test_one_process_at_a_time_holds_a_folder(cut) -> None:
    with folder.lock(cut):
        assert_refused(cut, "is in use by another process: wait for it, or stop it")
    assert toy.run_in(cut)["config"]["seed"] == 1


def test_other_data_under_the_same_name_are_refused(cut, monkeypatch) -> None:
    other = toy.dataset(seed=1)
    loader = ien.data.Loader(lambda path, seed: other, lambda seed: other)
    monkeypatch.setitem(ien.data.DATASETS, "toy", loader)
    assert_refused(cut, r"was begun on other data \(random from embedded, now random from embedded\)")


# --- config.json


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda content: "", "Expecting value"),
        (lambda content: content[: len(content) // 2], "config.json is not the configuration of a run"),
        (lambda content: "[]", "config.json is not the configuration of a run"),
        (lambda content: '{"config": {}}', "no format"),
        (lambda content: content.replace('"beta"', '"betta"'), "unknown field objective.betta"),
        (lambda content: content.replace('"beta": 1.0', '"beta": -1'), "beta must be 0 to"),
        (lambda content: content.replace('"beta": 1.0', '"beta": "1"'), "beta must be a number"),
        (lambda content: content.replace('"digest"', '"digits"'), "no digest of the data"),
        (lambda content: content.replace('"folder": "embedded"', '"folder": 5'), "folder of the data is 5"),
        (lambda content: content.replace('"versions"', '"version"'), "no versions"),
        (lambda content: "[" * 100_000, "nested too deeply"),
    ],
)
def test_a_damaged_configuration_is_refused(cut, spoil, match) -> None:
    path = cut / "config.json"
    path.write_text(spoil(path.read_text()))
    assert_refused(cut, match)
    with pytest.raises(ValueError, match=r"config.json is not the configuration of a run .*: restore it"):
        ien.load(cut)


def test_a_folder_of_another_version_says_so_in_one_line(cut) -> None:
    path = cut / "config.json"
    path.write_text(path.read_text().replace(f'"format": {folder.FORMAT}', '"format": 2'))
    said = (
        r"^\S+config.json has format 2 and this version of ien reads 3: finish it with the version that .*$"
    )
    assert_refused(cut, said)
    with pytest.raises(ValueError, match=said):
        ien.load(cut)


def test_a_folder_without_configuration_cannot_be_loaded(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match=r"is not a run folder: it has no config.json"):
        ien.load(tmp_path)


# --- metrics.jsonl


def test_missing_lines_of_metrics_are_noticed(cut) -> None:
    path = cut / "metrics.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    assert_refused(cut, r"metrics.jsonl has 1 lines for the 3 epochs of last.pt: restore it, or start")


@pytest.mark.parametrize("line", ["[" * 100_000, "[]", "{", "5"], ids=["brackets", "list", "cut", "number"])
def test_a_damaged_line_of_metrics_is_named(tmp_path, line) -> None:
    (tmp_path / "metrics.jsonl").write_text(f'{{"epoch": 1}}\n{line}\n')
    with pytest.raises(ValueError, match=r"metrics.jsonl: line 2 is damaged \(.*\): restore the file"):
        folder.read_metrics(tmp_path)


def test_a_disk_that_is_full_for_metrics_is_named(tmp_path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"metrics.jsonl could not be written \(.*No space left on device\)"):
        folder.append_metrics(tmp_path, {"epoch": 1})


def test_the_advice_to_delete_the_checkpoint_works(cut, finished) -> None:
    (cut / "last.pt").unlink()
    toy.run_in(cut)
    assert (cut / "metrics.jsonl").read_bytes() == (finished / "metrics.jsonl").read_bytes()


# --- what comes out again


@pytest.mark.parametrize("text", ['{"accuracy": ', "[" * 100_000], ids=["cut", "brackets"])
def test_a_damaged_result_names_the_remedy_which_works(copied, finished, text) -> None:
    (copied / "result.json").write_text(text)
    assert_refused(copied, r"result.json is damaged \(.*\): delete it and run ien resume")
    (copied / "result.json").unlink()
    assert toy.run_in(copied)["accuracy"] == json.loads((finished / "result.json").read_text())["accuracy"]


@pytest.mark.parametrize("share", [0, 0.5])
def test_damaged_weights_name_the_remedy_which_works(copied, share) -> None:
    weights = copied / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ValueError, match=r"model.safetensors is damaged .*: delete it and run ien resume"):
        ien.load(copied)
    weights.unlink()
    with pytest.raises(FileNotFoundError, match="holds no trained model yet: finish it with ien resume"):
        ien.load(copied)
    toy.run_in(copied)
    assert weights.read_bytes() == whole


def without_digest(path: Path) -> None:
    """Make a record like those from before weights had a digest."""
    record = json.loads((path / "result.json").read_text())
    assert len(record.pop("weights_sha256")) == 64
    (path / "result.json").write_text(json.dumps(record))


def test_a_wrong_bit_in_the_weights_is_noticed_and_the_remedy_works(copied) -> None:
    weights = copied / "model.safetensors"
    whole = weights.read_bytes()
    for place in (20, len(whole) // 2, len(whole) - 1):  # in the header, and in numbers
        spoilt = bytearray(whole)
        spoilt[place] ^= 1
        weights.write_bytes(spoilt)
        with pytest.raises(
            ValueError, match=r"damaged \(its SHA-256 is not .* in result.json\): delete it and"
        ):
            ien.load(copied)
    weights.unlink()
    toy.run_in(copied)
    assert weights.read_bytes() == whole
    ien.load(copied)


def test_weights_of_older_records_load_without_a_digest(copied) -> None:
    without_digest(copied)
    network = ien.load(copied)
    for name, weight in load_file(copied / "model.safetensors").items():
        assert torch.equal(network.state_dict()[name], weight)


def test_weights_of_another_network_are_refused(copied) -> None:
    without_digest(copied)
    folder.save_weights(copied, build(toy.config(width=1 / 8)))
    match = r"model.safetensors does not fit the network of config.json"
    with pytest.raises(ValueError, match=match) as caught:
        ien.load(copied)
    assert "\n" not in str(caught.value)
