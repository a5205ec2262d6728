"""Checkpoints: whole or absent on a full disk, and refused unless this very run could have written them."""

import errno
import json
import math
import os
import pickle
import resource
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from ien._files import digest
from ien.training import checkpoint, loop
from ien.training.network import build
from tests.helpers import toy, toy_clips
from tests.helpers.refused import assert_refused, contents

pytestmark = pytest.mark.usefixtures("toy_data")


def test_checkpoints_from_before_a_field_are_those_of_its_default() -> None:
    older = toy.config().to_json()
    del older["machine"]["checkpoint_minutes"]
    for name in ("target", "slack", "interpolation", "corners"):
        del older["objective"][name]
    expected = digest(json.dumps(older, sort_keys=True).encode())
    assert checkpoint._config_digest(toy.config(), "cpu") == expected
    tracker = toy_clips.config().to_json()
    del tracker["machine"]["checkpoint_minutes"]
    for name in ("target", "slack", "interpolation", "corners"):
        del tracker["objective"][name]
    for name in ("turn", "colour", "pretrain_epochs", "pretrain_clips"):
        del tracker["data"][name]
    for name in ("features", "templates"):
        del tracker["network"][name]
    expected_of_tracker = digest(json.dumps(tracker, sort_keys=True).encode())
    assert checkpoint._config_digest(toy_clips.config(), "cpu") == expected_of_tracker
    for changes in ({"features": 8}, {"templates": 8}, {"turn": True}, {"pretrain_epochs": 1}):
        changed = toy_clips.config(**changes)
        assert checkpoint._config_digest(changed, "cpu") != expected_of_tracker
    for changes in ({"target": 0.1}, {"interpolation": "nearest"}, {"corners": True}):
        assert checkpoint._config_digest(toy.config(**changes), "cpu") != expected


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
            r"last.pt does not fit this run \(model.\S+ must be a tensor .*\): delete it to train",
        ),
        (
            lambda state: state | {"optimizer": {"state": {}, "param_groups": []}},
            "last.pt does not fit this run",
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


# --- what a run could not have saved


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Path:
    """A run that was stopped after half of its second epoch; not to be changed."""
    path = tmp_path_factory.mktemp("stopped")

    def stop(status: loop.Status) -> None:
        if (status.epoch, status.step) == (2, 3):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loop.train(path, toy.task(checkpoint_minutes=EVERY_STEP), stop)
    return path


EVERY_STEP = 1e-9
"""Minutes, fewer than a step takes."""
PLACE = {"epoch": 1, "step": 2}
"""Where it stopped: the checkpoint after the third step comes after its report."""


def first_moments(state: dict[str, Any]) -> dict[str, Any]:
    return state["optimizer"]["state"][0]


def spoil_moments(name: str, change: Callable[[torch.Tensor], object]) -> Callable[[dict[str, Any]], None]:
    def spoil(state: dict[str, Any]) -> None:
        first_moments(state)[name] = change(first_moments(state)[name])

    return spoil


def spoil_group(name: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda state: state["optimizer"]["param_groups"][0].update({name: value})


def with_nan(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone().flatten().index_fill(0, torch.tensor([0]), math.nan).view_as(tensor)


SUMS = torch.full((9,), 5.0, dtype=torch.float64)
IMPOSSIBLE: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "epoch -1": (lambda s: s.update(epoch=-1), r"epoch must be a whole number from 0 to 3; got -1"),
    "epoch 4": (lambda s: s.update(epoch=4), r"epoch must be .* got 4"),
    "epoch NaN": (lambda s: s.update(epoch=math.nan), r"epoch must be .* got nan"),
    "epoch true": (lambda s: s.update(epoch=True), r"epoch must be .* got True"),
    "epoch tensor": (
        lambda s: s.update(epoch=torch.ones(())),
        r"epoch must be .* got a tensor \(\) of float32",
    ),
    "epoch text": (lambda s: s.update(epoch="1"), r"epoch must be .* got a str"),
    "step 6": (lambda s: s.update(step=6), r"step must be a whole number from 0 to 5; got 6"),
    "step -1": (lambda s: s.update(step=-1), r"step must be .* got -1"),
    "step after the end": (lambda s: s.update(epoch=3), r"step must be a whole number from 0 to 0; got 2"),
    "seconds NaN": (lambda s: s.update(seconds=math.nan), r"seconds must be a time; got nan"),
    "seconds -1": (lambda s: s.update(seconds=-1.0), r"seconds must be a time; got -1.0"),
    "no sums": (lambda s: s.update(sums=None), r"sums must be a tensor \(9,\) of float64; got None"),
    "sums too many": (lambda s: s.update(step=0), r"there are sums, but no step of the epoch is done"),
    "sums NaN": (lambda s: s.update(sums=SUMS * math.nan), r"sums is not finite"),
    "sums short": (lambda s: s.update(sums=SUMS[1:]), r"sums must be a tensor \(9,\) .* got a tensor \(8,\)"),
    "sums float32": (lambda s: s.update(sums=SUMS.float()), r"got a tensor \(9,\) of float32"),
    "sums of nothing": (lambda s: s.update(sums=SUMS * 0), r"sums are those of 0 of the 96 items"),
    "config 5": (lambda s: s.update(config=5), r"belongs to another run"),
    "model 5": (lambda s: s.update(model=5), r"model must be a dictionary; got 5"),
    "model lacks a weight": (lambda s: s["model"].popitem(), r"model has other keys than it should: "),
    "model float64": (
        lambda s: s.update(model={name: weight.double() for name, weight in s["model"].items()}),
        r"model.\S+ must be a tensor .* of float32; got a tensor .* of float64",
    ),
    "model NaN": (
        lambda s: s["model"].update({"conv2.0.weight": with_nan(s["model"]["conv2.0.weight"])}),
        r"model.conv2.0.weight is not finite",
    ),
    "optimizer 5": (lambda s: s.update(optimizer=5), r"optimizer must be a dictionary; got 5"),
    "no moments": (
        lambda s: s["optimizer"].update(state={}),
        r"state of parameter 0, .* trained, is missing",
    ),
    "moments of one missing": (lambda s: s["optimizer"]["state"].pop(2), r"parameter 2, .* is missing"),
    "moments of nobody": (
        lambda s: s["optimizer"]["state"].update({99: {}}),
        r"a key of optimizer.state must",
    ),
    "moments a list": (lambda s: s["optimizer"].update(state=[]), r"optimizer.state must be a dictionary"),
    "half the moments": (
        lambda s: first_moments(s).pop("exp_avg"),
        r"optimizer.state.0 has other keys .* exp_avg",
    ),
    "moments short": (
        spoil_moments("exp_avg", lambda m: m.flatten()[:1]),
        r"state.0.exp_avg must be a tensor",
    ),
    "moments broadcast": (spoil_moments("exp_avg_sq", lambda m: m[:1, :1, :1, :1]), r"exp_avg_sq must be"),
    "moments float64": (spoil_moments("exp_avg", torch.Tensor.double), r"exp_avg must be .* got .* float64"),
    "moments sparse": (spoil_moments("exp_avg", torch.Tensor.to_sparse), r"exp_avg must be a tensor"),
    "moments meta": (spoil_moments("exp_avg", lambda m: m.to("meta")), r"exp_avg must be a tensor"),
    "moments NaN": (spoil_moments("exp_avg", with_nan), r"exp_avg is not finite"),
    "moments a number": (spoil_moments("exp_avg", lambda m: 0.0), r"exp_avg must be a tensor .* got 0.0"),
    "steps 0": (spoil_moments("step", lambda m: m * 0), r"state.0.step must be 1 to 8; got 0"),
    "steps 9": (spoil_moments("step", lambda m: m * 0 + 9), r"state.0.step must be 1 to 8; got 9"),
    "steps of a shape": (spoil_moments("step", lambda m: m.expand(4)), r"state.0.step must be a tensor \(\)"),
    "group lacks a key": (
        lambda s: s["optimizer"]["param_groups"][0].pop("eps"),
        r"groups.0 has other keys .*: eps",
    ),
    "group has a key": (spoil_group("hook", 1), r"param_groups.0 has other keys than it should: hook"),
    "group NaN": (spoil_group("weight_decay", math.nan), r"groups.0.weight_decay must be a number; got nan"),
    "group huge": (spoil_group("eps", 10**400), r"groups.0.eps must be a number"),
    "group text": (spoil_group("fused", "yes"), r"groups.0.fused must be True; got a str"),
    "group betas": (spoil_group("betas", (0.9,)), r"groups.0.betas must be 2 values"),
    "multipliers": (
        lambda s: s.update(multipliers={"steps": 1}),
        r"these are multipliers, but this objective",
    ),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_what_this_run_could_not_have_saved_is_refused(stopped, tmp_path, case) -> None:
    spoil, match = IMPOSSIBLE[case]
    path = Path(shutil.copytree(stopped, tmp_path / "run"))
    state = checkpoint.load_checkpoint(path)
    assert {name: state[name] for name in PLACE} == PLACE
    spoil(state)
    torch.save(state, path / "last.pt")
    before = contents(path)
    with pytest.raises(ValueError, match=match) as caught:
        checkpoint.restore(path, toy.task())
    told = str(caught.value)
    assert (
        "\n" not in told and told.startswith(str(path / "last.pt")) and "delete it to train from the" in told
    )
    assert contents(path) == before


@pytest.mark.parametrize("algorithm", ["adam", "sgd"])
def test_moments_get_the_memory_layout_of_their_parameter(tmp_path, algorithm) -> None:
    """A tensor with strides of 0 has the right shape and too little memory for a fused kernel."""
    settings = {"algorithm": algorithm, "epochs": 1, "cycle_epochs": 1, "channels_last": True}
    toy.trained(tmp_path, **settings)
    state = checkpoint.load_checkpoint(tmp_path)
    name = "exp_avg" if algorithm == "adam" else "momentum_buffer"
    for kept in state["optimizer"]["state"].values():
        kept[name] = torch.full((), 0.5).expand(kept[name].shape)
    torch.save(state, tmp_path / "last.pt")
    task = toy.task(**settings)
    checkpoint.restore(tmp_path, task)
    for parameter, kept in task.optimizer.state.items():
        assert kept[name].stride() == parameter.stride() and bool((kept[name] == 0.5).all())
        assert kept[name].untyped_storage().nbytes() >= 4 * parameter.numel()


def test_values_of_groups_are_those_of_the_configuration(stopped) -> None:
    task = toy.task()
    wanted = [dict(group, params=None) for group in task.optimizer.param_groups]
    progress = checkpoint.restore(stopped, task)
    assert (progress.epoch, progress.step) == (1, 2) and progress.sums[-1] == 32
    assert [dict(group, params=None) for group in task.optimizer.param_groups] == wanted


def test_a_parameter_that_never_had_a_gradient_has_no_moments_and_needs_none(tmp_path) -> None:
    settings = {"epochs": 2, "cycle_epochs": 1}
    original = toy.task

    def with_unused(**changes: Any) -> Any:
        task = original(**settings, **changes)
        task.network.register_parameter("unused", torch.nn.Parameter(torch.ones(3)))
        task.optimizer.param_groups[0]["params"].append(task.network.unused)
        return task

    task = with_unused()
    loop.train(tmp_path, task)
    assert task.network.unused not in task.optimizer.state
    again = with_unused()
    assert checkpoint.restore(tmp_path, again).epoch == 2
    toy.assert_same(again.network, task.network)
    state = checkpoint.load_checkpoint(tmp_path)
    state["model"]["unused"] += 1
    torch.save(state, tmp_path / "last.pt")
    with pytest.raises(ValueError, match="which has been trained, is missing"):
        checkpoint.restore(tmp_path, with_unused())


# --- files that are not what they look like


def packed_again(path: Path, compression: int, extra: dict[str, bytes]) -> None:
    """Write the archive once more, compressed or with more in it."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in (members | extra).items():
            archive.writestr(name, content)


def test_a_compressed_checkpoint_is_refused_unread(cut, monkeypatch) -> None:
    packed_again(cut / "last.pt", zipfile.ZIP_DEFLATED, {"last/bomb": bytes(10**7)})
    assert (cut / "last.pt").stat().st_size < 10**6
    monkeypatch.setattr(zipfile.ZipFile, "testzip", Mock(side_effect=AssertionError("was unpacked")))
    assert_refused(cut, r"last.pt is truncated or damaged \(\S+ is compressed\): delete it")


def test_parts_that_overlap_are_refused_unread(cut, monkeypatch) -> None:
    with zipfile.ZipFile(cut / "last.pt") as archive:
        members = archive.infolist()
    largest = max(members, key=lambda member: member.file_size)
    # the list at the end of an archive may name the same bytes many times
    monkeypatch.setattr(zipfile.ZipFile, "infolist", lambda archive: members + [largest] * 50)
    assert_refused(cut, r"last.pt is truncated or damaged \(its parts are larger than the whole\)")


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_checkpoint_must_be_a_regular_file(cut, kind) -> None:
    path = cut / "last.pt"
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(
        ValueError, match=r"last.pt is not a regular file but a pipe, a device or a folder: move"
    ):
        toy.run_in(cut)


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
