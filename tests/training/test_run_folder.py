"""The run folder: what is refused and what then stays as it was, and what comes out of it again."""

import errno
import json
import os
import pickle
import resource
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

import ien
import ien.data
from ien.training import checkpoint
from ien.training import run_folder as folder
from ien.training.network import build
from tests.helpers import toy

pytestmark = pytest.mark.usefixtures("toy_data")


@pytest.fixture
def copied(finished, tmp_path) -> Path:
    """A finished folder that a test may spoil."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def cut(copied) -> Path:
    """A folder that was cut after its last checkpoint."""
    (copied / "result.json").unlink()
    (copied / "model.safetensors").unlink()
    return copied


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name != ".lock"}


def assert_refused(path: Path, match: str, **changes: Any) -> None:
    """One line that names the file, and nothing in the folder is changed."""
    before = contents(path)
    with pytest.raises(ValueError, match=match) as caught:
        toy.run_in(path, **changes)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    assert contents(path) == before


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
    data = dict.fromkeys(("folder", "name", "source", "train", "test", "digest"))
    config = folder.create(tmp_path, toy.config(device="auto", threads=None), data)
    assert config.machine.threads == 1 and config.machine.device in ("cpu", "cuda", "mps")
    assert folder.read_config(tmp_path) == config
    again = folder.create(tmp_path, toy.config(device="auto", threads=None), folder.read_data(tmp_path))
    assert again == config


def test_a_folder_with_other_files_is_refused(tmp_path) -> None:
    (tmp_path / "thesis.tex").write_text("dear")
    assert_refused(tmp_path, "exists and is not a run folder .*: choose another --out")


@pytest.mark.parametrize("device", ["gpu", "cuda:77", "meta:x"])
def test_a_device_that_is_not_there_is_refused_before_anything_is_written(tmp_path, device) -> None:
    with pytest.raises(ValueError, match=f"device '{device}' cannot be used here .*; use cpu"):
        toy.run_in(tmp_path / "run", device=device)
    assert contents(tmp_path / "run") == {}


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


# --- last.pt and metrics.jsonl


@pytest.mark.parametrize("share", [0, 0.3, 0.999])
def test_a_truncated_checkpoint_is_refused(cut, share) -> None:
    path = cut / "last.pt"
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    assert_refused(cut, r"last.pt is truncated or damaged .*: delete it to train from the start, or restore")


def test_a_checkpoint_with_a_wrong_bit_is_refused(cut) -> None:
    path = cut / "last.pt"
    content = bytearray(path.read_bytes())
    weights = checkpoint.load_checkpoint(cut)["model"]["conv3.0.weight"]
    content[content.index(weights.numpy().tobytes()[:64])] ^= 1
    path.write_bytes(content)
    assert_refused(cut, r"last.pt is truncated or damaged \(wrong checksum")


class Payload:
    """Unpickling it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("packed", [True, False], ids=["as torch.save packs it", "bare"])
def test_code_in_a_checkpoint_is_refused_and_not_executed(cut, tmp_path, packed) -> None:
    proof, path = tmp_path / "executed", cut / "last.pt"
    state = checkpoint.load_checkpoint(cut)
    pickle.loads(pickle.dumps(Payload(proof)))
    proof.rmdir()  # it would have worked
    if packed:
        torch.save(state | {"extra": Payload(proof)}, path)
    else:
        path.write_bytes(pickle.dumps(Payload(proof)))
    what = "something other than tensors and numbers, and was not loaded" if packed else "damaged"
    assert_refused(cut, f"last.pt .*{what}.*: delete it to train from the start")
    assert not proof.exists()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda state: {"weights": torch.ones(2)}, "last.pt is not a checkpoint of ien: delete it"),
        (lambda state: [1, 2], "last.pt is not a checkpoint of ien: delete it"),
        (lambda state: torch.ones(3), "last.pt is not a checkpoint of ien: delete it"),
        (
            lambda state: state | {"model": build(toy.config(width=1 / 8)).state_dict()},
            r"last.pt does not fit this network \(.*\): delete it to train from the start",
        ),
        (
            lambda state: state | {"optimizer": {"state": {}, "param_groups": []}},
            "last.pt does not fit this network",
        ),
    ],
    ids=["weights", "list", "tensor", "other network", "other optimizer"],
)
def test_a_file_of_something_else_is_no_checkpoint(cut, change, match) -> None:
    torch.save(change(checkpoint.load_checkpoint(cut)), cut / "last.pt")
    assert_refused(cut, match)


def test_the_checkpoint_of_another_run_is_refused(cut, tmp_path) -> None:
    other = tmp_path / "other"
    toy.trained(other, seed=2, epochs=1, cycle_epochs=1)
    shutil.copy(other / "last.pt", cut)
    assert_refused(cut, "last.pt belongs to another run: restore the right one, or delete it")


def test_missing_lines_of_metrics_are_noticed(cut) -> None:
    path = cut / "metrics.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    assert_refused(cut, r"metrics.jsonl has 1 lines for the 3 epochs of last.pt: restore it, or start")


def test_the_advice_to_delete_the_checkpoint_works(cut, finished) -> None:
    (cut / "last.pt").unlink()
    toy.run_in(cut)
    assert (cut / "metrics.jsonl").read_bytes() == (finished / "metrics.jsonl").read_bytes()


# --- a full disk


FULL = OSError(errno.ENOSPC, "No space left on device")
FULL_FOR_TORCH = RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")


@pytest.mark.parametrize(
    ("what", "failure"), [("os.replace", FULL), ("torch.save", FULL_FOR_TORCH)], ids=["replace", "save"]
)
def test_a_full_disk_leaves_the_old_checkpoint(cut, monkeypatch, what, failure) -> None:
    before = contents(cut)
    monkeypatch.setattr(what, Mock(side_effect=failure))
    with pytest.raises(OSError, match=r"last.pt could not be written \(.*\); the earlier one, if any, is un"):
        checkpoint.save_checkpoint(cut, {"epoch": 4})
    assert contents(cut) == before and checkpoint.load_checkpoint(cut)["epoch"] == 3


def train_on_a_small_disk(path: Path) -> None:
    """Files may grow to 40 kB, less than a checkpoint, from the second one on."""
    limit = (40_000, 40_000)
    toy.at_call(2, checkpoint, "save_checkpoint", lambda *a: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    try:
        toy.train(path)
    except OSError as error:
        (path.parent / "error.txt").write_text(str(error))


@pytest.mark.slow
def test_a_write_that_really_fails_leaves_the_old_checkpoint(tmp_path, finished) -> None:
    path = tmp_path / "run"
    assert toy.finish(toy.start(train_on_a_small_disk, path)) == 0
    assert "last.pt could not be written" in (tmp_path / "error.txt").read_text()
    assert checkpoint.load_checkpoint(path)["epoch"] == 1
    toy.run_in(path)
    assert (path / "metrics.jsonl").read_bytes() == (finished / "metrics.jsonl").read_bytes()


# --- what comes out again


def test_a_damaged_result_names_the_remedy_which_works(copied, finished) -> None:
    (copied / "result.json").write_text('{"accuracy": ')
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


def test_weights_of_another_network_are_refused(copied) -> None:
    folder.save_weights(copied, build(toy.config(width=1 / 8)))
    match = r"model.safetensors does not fit the network of config.json"
    with pytest.raises(ValueError, match=match) as caught:
        ien.load(copied)
    assert "\n" not in str(caught.value)
