"""One run from start to end: its record, its network, and what is said on the way."""

import io
import json
import subprocess
import sys
from unittest.mock import Mock

import pytest
import torch
from rich.console import Console
from torch import nn

import ien
from ien.training import Stopped, checkpoint, run, run_folder
from ien.training.network import build
from ien.tying.tied import count_parameters
from tests.helpers import toy
from tests.helpers.toy import run_in

pytestmark = pytest.mark.usefixtures("toy_data")

SHORT = {"epochs": 1, "cycle_epochs": 1}


def test_the_record_says_how_it_came_about(tmp_path) -> None:
    config = toy.config(augment=False, beta=0.0, **SHORT)
    record = run(tmp_path, config, "embedded", changes={"beta": 0.0}, console=Console(file=io.StringIO()))
    assert record == json.loads((tmp_path / "result.json").read_text())
    counts = {"train": 96, "test": 40, "tested_on": "test"}
    assert record["data"] == {"name": "toy", "source": "random", **counts}
    assert record["changes"] == {"beta": 0.0} and record["config"] == config.to_json()
    assert record["versions"].keys() == {"ien", "torch", "numpy", "python"}
    assert ", 1 threads, " in record["machine"] and record["trained_parameters"] == record["parameters"]
    assert 0 <= record["accuracy"] <= 1 and record["images_per_second"] > 0
    assert record["images_seen"] == 96 and run_folder.read_metrics(tmp_path)[0]["terms"] == {}


def test_a_tied_run_keeps_plain_weights_and_a_checkpoint_of_what_trains(tmp_path) -> None:
    record = run_in(tmp_path, beta=0.0, augment=False, tie="smooth", **SHORT)
    never = build(toy.config())
    weights = run_folder.load_weights(tmp_path)
    assert {name: weight.shape for name, weight in weights.items()} == {
        name: weight.shape for name, weight in never.state_dict().items()
    }
    trained = checkpoint.load_checkpoint(tmp_path)["model"]
    assert any(".original" in name for name in trained)
    assert record["parameters"] == count_parameters(never) > 3 * record["trained_parameters"]
    network = ien.load(tmp_path)
    assert [type(module) for module in network.modules()] == [type(module) for module in never.modules()]
    x = torch.rand(4, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    for turns in (1, 2, 3):
        torch.testing.assert_close(network(x.rot90(turns, (2, 3))), network(x), rtol=1e-4, atol=1e-5)
    # without its weights a run is not finished: they are made again, from the checkpoint
    kept = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").unlink()
    run_in(tmp_path, beta=0.0, augment=False, tie="smooth", **SHORT)
    assert (tmp_path / "model.safetensors").read_bytes() == kept


def test_a_row_of_averaged_predictions_tests_the_weights_of_another_run(tmp_path) -> None:
    settings = {"orbits": True, "beta": 0.0, **SHORT}
    first = run_in(tmp_path / "base", **settings)
    config = toy.config(**settings, average=True, weights_of="rot-mnist/cnn-aug")
    torch.set_num_threads(2)
    console = Console(file=io.StringIO())
    second = run(tmp_path / "average", config, "embedded", weights=tmp_path / "base", console=console)
    assert torch.get_num_threads() == 1  # as the configuration says
    assert second["macs"] == 4 * first["macs"] and second["layers"] == first["layers"]
    assert second["images_seen"] == first["images_seen"] == 6 * 32
    assert run_folder.read_metrics(tmp_path / "base")[0]["terms"] == {}
    assert not (tmp_path / "average" / "last.pt").exists() and second["seconds"] == 0
    x = torch.rand(2, 1, 28, 28)
    assert torch.equal(ien.load(tmp_path / "average")(x), ien.load(tmp_path / "base")(x))


def test_a_finished_run_is_not_repeated_and_loads_as_a_plain_module(finished, monkeypatch) -> None:
    network = toy.trained(finished).network  # is trained already
    model = ien.load(finished)
    assert isinstance(model, nn.Module) and not any(module.training for module in model.modules())
    x = torch.rand(5, 1, 28, 28)
    assert torch.equal(model(x), network.eval()(x))
    assert torch.equal(ien.load(str(finished))(x), model(x))
    monkeypatch.setattr(sys.modules["ien.training.run"], "train", None)
    assert run_in(finished) == json.loads((finished / "result.json").read_text())


@pytest.mark.slow
def test_a_steerable_run_trains_and_loads_as_a_plain_net_without_e2cnn(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "e2cnn", None)
    settings = {"model": "e2cnn-cnn6", "beta": 0.0, **SHORT}
    record = run_in(tmp_path / "run", **settings)
    network = toy.trained(tmp_path / "run", **settings).network
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


def test_an_interrupt_while_testing_says_how_to_go_on(tmp_path, monkeypatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(Stopped, match=str(tmp_path)):
        patch.setattr("ien.training.classify.evaluate", Mock(side_effect=KeyboardInterrupt))
        run_in(tmp_path, **SHORT)
    assert checkpoint.load_checkpoint(tmp_path)["epoch"] == 1
    run_in(tmp_path, **SHORT)
    assert (tmp_path / "model.safetensors").exists()


def test_a_run_that_is_refused_leaves_no_folder(tmp_path, monkeypatch) -> None:
    def refuse(*arguments):
        raise ValueError("the images are too small for this network")

    monkeypatch.setattr("ien.training.classify.trainable", refuse)
    (tmp_path / "there").mkdir()
    for folder in (tmp_path / "runs" / "row" / "one", tmp_path / "there" / "two"):
        with pytest.raises(ValueError, match="too small"):
            run_in(folder, **SHORT)
    assert list(tmp_path.rglob("*")) == [tmp_path / "there"]


def test_a_folder_that_was_there_is_left_alone_when_a_run_is_refused(tmp_path, monkeypatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr("ien.training.classify.evaluate", Mock(side_effect=KeyboardInterrupt))
        run_in(tmp_path / "run", **SHORT)
    before = sorted(path.name for path in (tmp_path / "run").iterdir())
    with pytest.raises(ValueError, match="another run"):
        run_in(tmp_path / "run", epochs=2, cycle_epochs=1)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before
