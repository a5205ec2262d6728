"""The run folder: what is refused and what then stays as it was, and what comes out of it again."""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

import ien
import ien.data
from ien.training import ALONE, run
from ien.training import run_folder as folder
from ien.training.classify import CLASSIFY
from ien.training.loop import train
from ien.training.network import build
from tests.helpers import toy

pytestmark = pytest.mark.usefixtures("toy_data")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("finished") / "run"
    assert toy.finish(toy.start(toy.train, path)) == 0
    return path


@pytest.fixture
def cut(finished: Path, tmp_path: Path) -> Path:
    """A folder that was cut after its last checkpoint."""
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    (path / "result.json").unlink()
    (path / "model.safetensors").unlink()
    return path


def go_on(path: Path, **changes: Any) -> dict[str, Any]:
    return run(path, toy.config(**changes), "embedded", console=Console(file=io.StringIO()))


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name != ".lock"}


def assert_refused(path: Path, match: str, **changes: Any) -> None:
    """One line that names the file, and nothing in the folder is changed."""
    before = contents(path)
    with pytest.raises(ValueError, match=match) as caught:
        go_on(path, **changes)
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
def test_a_folder_of_another_run_is_refused(cut: Path, changes: dict[str, Any], match: str) -> None:
    assert_refused(cut, match, **changes)


def test_what_is_left_open_is_taken_from_the_folder(cut: Path) -> None:
    config = folder.create(cut, toy.config(device="auto", threads=None), folder.read_data(cut))
    assert config == toy.config()


def test_what_is_left_open_is_settled_in_a_new_folder(tmp_path: Path) -> None:
    data = dict.fromkeys(("folder", "name", "source", "train", "test", "digest"))
    config = folder.create(tmp_path, toy.config(device="auto", threads=None), data)
    assert config.machine.threads == 1 and config.machine.device in ("cpu", "cuda", "mps")
    assert folder.read_config(tmp_path) == config


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("dear")
    assert_refused(tmp_path, "exists and is not a run folder .*: choose another --out")


@pytest.mark.parametrize("device", ["gpu", "cuda:77", "meta:x"])
def test_a_device_that_is_not_there_is_refused_before_anything_is_written(
    tmp_path: Path, device: str
) -> None:
    with pytest.raises(ValueError, match=f"device '{device}' cannot be used here .*; use cpu"):
        go_on(tmp_path / "run", device=device)
    assert contents(tmp_path / "run") == {}


def test_one_process_at_a_time_holds_a_folder(cut: Path) -> None:
    with folder.lock(cut):
        assert_refused(cut, "is in use by another process: wait for it, or stop it")
    assert go_on(cut)["config"]["seed"] == 1


def test_other_data_under_the_same_name_are_refused(cut: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_damaged_configuration_is_refused(cut: Path, spoil: Callable[[str], str], match: str) -> None:
    path = cut / "config.json"
    path.write_text(spoil(path.read_text()))
    assert_refused(cut, match)
    with pytest.raises(ValueError, match=r"config.json is not the configuration of a run .*: restore it"):
        ien.load(cut)


def test_a_folder_without_configuration_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"is not a run folder: it has no config.json"):
        ien.load(tmp_path)


# --- last.pt and metrics.jsonl


@pytest.mark.parametrize("share", [0, 0.01, 0.3, 0.9, 0.999])
def test_a_truncated_checkpoint_is_refused(cut: Path, share: float) -> None:
    path = cut / "last.pt"
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    assert_refused(cut, r"last.pt is truncated or damaged .*: delete it to train from the start, or restore")


def test_a_checkpoint_with_a_wrong_bit_is_refused(cut: Path) -> None:
    path = cut / "last.pt"
    content = bytearray(path.read_bytes())
    weights = folder.load_checkpoint(cut)["model"]["conv3.0.weight"]  # type: ignore[index]
    place = content.index(weights.numpy().tobytes()[:64])
    content[place] ^= 1
    path.write_bytes(content)
    assert_refused(cut, r"last.pt is truncated or damaged \(wrong checksum")


class Payload:
    """Unpickling it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("packed", [True, False], ids=["as torch.save packs it", "bare"])
def test_code_in_a_checkpoint_is_refused_and_not_executed(cut: Path, tmp_path: Path, packed: bool) -> None:
    proof, path = tmp_path / "executed", cut / "last.pt"
    state = folder.load_checkpoint(cut)
    assert state is not None
    pickle.loads(pickle.dumps(Payload(proof)))
    proof.rmdir()  # it would have worked
    if packed:
        torch.save(state | {"extra": Payload(proof)}, path)
    else:
        path.write_bytes(pickle.dumps(Payload(proof)))
    what = "something other than tensors and numbers, and was not loaded" if packed else "damaged"
    assert_refused(cut, f"last.pt .*{what}.*: delete it to train from the start")
    assert not proof.exists()


@pytest.mark.parametrize("content", [{"weights": torch.ones(2)}, [1, 2], torch.ones(3)])
def test_a_file_of_something_else_is_no_checkpoint(cut: Path, content: object) -> None:
    torch.save(content, cut / "last.pt")
    assert_refused(cut, "last.pt is not a checkpoint of ien: delete it")


def test_the_checkpoint_of_another_run_is_refused(cut: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    train(other, CLASSIFY.prepare(toy.config(seed=2, epochs=1, cycle_epochs=1), toy.dataset(), ALONE))
    shutil.copy(other / "last.pt", cut)
    assert_refused(cut, "last.pt belongs to another run: restore the right one, or delete it")


def test_the_checkpoint_of_another_network_is_refused(cut: Path) -> None:
    state = folder.load_checkpoint(cut)
    assert state is not None
    torch.save(state | {"model": build(toy.config(width=1 / 8)).state_dict()}, cut / "last.pt")
    assert_refused(cut, r"last.pt does not fit this network \(.*\): delete it to train from the start")
    torch.save(state | {"optimizer": {"state": {}, "param_groups": []}}, cut / "last.pt")
    assert_refused(cut, "last.pt does not fit this network")


def test_missing_lines_of_metrics_are_noticed(cut: Path) -> None:
    path = cut / "metrics.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    assert_refused(cut, r"metrics.jsonl has 1 lines for the 3 epochs of last.pt: restore it, or start")


def test_the_advice_to_delete_the_checkpoint_works(cut: Path, finished: Path) -> None:
    (cut / "last.pt").unlink()
    go_on(cut)
    assert (cut / "metrics.jsonl").read_bytes() == (finished / "metrics.jsonl").read_bytes()


# --- a full disk


def full(*arguments: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def full_for_torch(*arguments: object) -> None:
    raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")


@pytest.mark.parametrize(
    ("owner", "name", "failure"),
    [(os, "replace", full), (torch, "save", full_for_torch)],
    ids=["replace", "save"],
)
def test_a_full_disk_leaves_the_old_checkpoint(
    cut: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, failure: Callable[..., None]
) -> None:
    before, names = (cut / "last.pt").read_bytes(), set(contents(cut))
    monkeypatch.setattr(owner, name, failure)
    with pytest.raises(OSError, match=r"last.pt could not be written \(.*\); the earlier one, if any, is un"):
        folder.save_checkpoint(cut, {"epoch": 4})
    assert (cut / "last.pt").read_bytes() == before and set(contents(cut)) == names
    assert folder.load_checkpoint(cut)["epoch"] == 3  # type: ignore[index]


def train_on_a_small_disk(path: Path, changes: dict[str, Any]) -> None:
    """Files may grow to 40 kB, less than a checkpoint, from the second one on."""
    limit = (40_000, 40_000)
    toy.at_call(2, folder, "save_checkpoint", lambda *a: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    try:
        toy.train(path, "", changes)
    except OSError as error:
        (path.parent / "error.txt").write_text(str(error))


def test_a_write_that_really_fails_leaves_the_old_checkpoint(tmp_path: Path, finished: Path) -> None:
    path = tmp_path / "run"
    assert toy.finish(toy.start(train_on_a_small_disk, path, {})) == 0
    assert "last.pt could not be written" in (tmp_path / "error.txt").read_text()
    state = folder.load_checkpoint(path)
    assert state is not None and state["epoch"] == 1
    go_on(path)
    assert (path / "metrics.jsonl").read_bytes() == (finished / "metrics.jsonl").read_bytes()


# --- what comes out again


def test_a_finished_run_is_not_repeated(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["ien.training.run"], "train", full)
    assert go_on(finished) == json.loads((finished / "result.json").read_text())


def test_a_damaged_result_names_the_remedy_which_works(finished: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    (path / "result.json").write_text('{"accuracy": ')
    assert_refused(path, r"result.json is damaged \(.*\): delete it and run ien resume")
    (path / "result.json").unlink()
    assert go_on(path)["accuracy"] == json.loads((finished / "result.json").read_text())["accuracy"]


def test_load_gives_the_trained_network_as_a_plain_module(finished: Path) -> None:
    network, *_ = train(finished, CLASSIFY.prepare(toy.config(), toy.dataset(), ALONE))  # is trained already
    model = ien.load(finished)
    assert isinstance(model, nn.Module) and not any(module.training for module in model.modules())
    x = torch.rand(5, 1, 28, 28)
    assert torch.equal(model(x), network.eval()(x))
    assert torch.equal(ien.load(str(finished))(x), model(x))


@pytest.mark.parametrize("share", [0, 0.001, 0.5])
def test_damaged_weights_name_the_remedy_which_works(finished: Path, tmp_path: Path, share: float) -> None:
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    weights = path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ValueError, match=r"model.safetensors is damaged .*: delete it and run ien resume"):
        ien.load(path)
    weights.unlink()
    with pytest.raises(FileNotFoundError, match="holds no trained model yet: finish it with ien resume"):
        ien.load(path)
    go_on(path)
    assert weights.read_bytes() == whole


def test_weights_of_another_network_are_refused(finished: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    folder.save_weights(path, build(toy.config(width=1 / 8)))
    with pytest.raises(
        ValueError, match=r"model.safetensors does not fit the network of config.json"
    ) as caught:
        ien.load(path)
    assert "\n" not in str(caught.value)


def test_a_steerable_run_loads_as_a_plain_net_without_its_library(tmp_path: Path) -> None:
    pytest.importorskip("e2cnn", reason='needs pip install "ien[steerable]"')
    config = toy.config(model="e2cnn-cnn6", beta=0.0, epochs=1, cycle_epochs=1)
    record = run(tmp_path / "run", config, "embedded", console=Console(file=io.StringIO()))
    network, *_ = train(tmp_path / "run", CLASSIFY.prepare(config, toy.dataset(), ALONE))
    x = torch.rand(4, 1, 28, 28)
    code = (
        "import sys, torch, ien\n"
        "x = torch.load(sys.argv[2], weights_only=True)\n"
        "torch.save(ien.load(sys.argv[1])(x), sys.argv[2])\n"
        "print([name for name in sys.modules if name.startswith('e2cnn')])"
    )
    torch.save(x, tmp_path / "x.pt")
    command = [sys.executable, "-c", code, str(tmp_path / "run"), str(tmp_path / "x.pt")]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert printed == "[]\n"
    output = torch.load(tmp_path / "x.pt", weights_only=True)
    torch.testing.assert_close(output, network.eval()(x).detach(), rtol=1e-4, atol=1e-5)
    assert record["trained_parameters"] < record["parameters"]
    assert max(layer["relative"] for layer in record["layers"].values()) < 1e-9
