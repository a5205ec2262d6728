"""Callbacks measure what measure() measures, when it is time, and log it where the trainer logs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ien
from ien.measuring.callbacks.every_epoch import EveryEpoch
from tests.helpers.losses import images, net
from tests.helpers.nets import digit_like_classifier
from tests.helpers.two_processes import together

ROOT = Path(__file__).parents[3]
X, Y = torch.rand(12, 1, 9, 9), torch.arange(12) % 3


def in_lightning(callback: Any, epochs: int) -> tuple[Any, Any, list[dict[str, float]]]:
    """Train a small classifier with Lightning; return trainer, module and what reached the logger."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's own, on import and on few workers
        lightning = pytest.importorskip("lightning", reason="needs lightning: pip install 'ien[lightning]'")
        from lightning.pytorch.loggers.logger import DummyLogger

        logged = []

        class Logger(DummyLogger):
            def log_metrics(self, metrics, step=None) -> None:
                logged.append(metrics)

        class Module(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.net = digit_like_classifier()

            def training_step(self, batch, index):
                x, y = batch
                return F.cross_entropy(self.net(x), y)

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1)

        module = Module()
        trainer = lightning.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            callbacks=[callback],
            logger=Logger(),
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, DataLoader(TensorDataset(X, Y), batch_size=6))
    return trainer, module, logged


def test_lightning_measures_every_second_epoch_and_logs() -> None:
    callback = ien.callbacks.LightningCallback(X, "rot4", every=2, module="net", labels=Y, batch_size=5)
    trainer, module, logged = in_lightning(callback, epochs=5)
    assert list(callback.reports) == [2, 4]
    found = [values for values in logged if "equivariance/rot4/output/accuracy" in values]
    assert len(found) == 2
    for values, report in zip(found, callback.reports.values(), strict=True):
        for name, value in report.scalars().items():
            assert values[name] == pytest.approx(value, rel=1e-6)
    assert set(callback.reports[4].scalars()) <= set(trainer.callback_metrics)  # for EarlyStopping
    callback._every_epoch.metric.update(module.net, X, Y)  # what it would be after the last epoch
    assert callback._every_epoch.metric.compute() == pytest.approx(
        ien.measure(module.net, X, "rot4", labels=Y, floors=False).scalars()
    )


def test_without_lightning_one_line_says_what_to_install(monkeypatch) -> None:
    pytest.importorskip("lightning")
    from ien.measuring.callbacks import lightning

    monkeypatch.setattr(lightning, "Callback", object)
    with pytest.raises(ModuleNotFoundError, match=r"^LightningCallback needs lightning: pip install"):
        lightning.LightningCallback(X, "rot4")


class Trainer:
    """In place of Hugging Face's: it calls all callbacks at all events, as documented for TrainerCallback."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.callbacks, self.control = model, [], SimpleNamespace()
        self.state = SimpleNamespace(epoch=0.0, global_step=0, log_history=[])

    def add_callback(self, callback: Any) -> None:
        self.callbacks.append(callback)

    def log(self, logs: dict[str, float]) -> None:
        self.state.log_history.append({**logs, "epoch": self.state.epoch, "step": self.state.global_step})
        self.event("on_log", logs=logs)

    def event(self, name: str, **more: Any) -> None:
        for callback in self.callbacks:
            result = getattr(callback, name)(
                None,
                self.state,
                self.control,
                model=self.model,
                optimizer=None,
                train_dataloader=None,
                **more,
            )
            assert result is None or result is self.control

    def train(self, epochs: int) -> None:
        self.event("on_train_begin")
        for _ in range(epochs):
            self.event("on_epoch_begin")
            for _ in range(3):
                self.state.global_step += 1
                self.state.epoch += 1 / 3
                self.event("on_step_end")
            self.event("on_epoch_end")
        self.event("on_train_end")


@pytest.mark.parametrize("through_trainer", [True, False])
def test_hugging_face_measures_every_second_epoch_and_logs(through_trainer) -> None:
    trainer = Trainer(digit_like_classifier())
    log = trainer.log if through_trainer else None
    callback = ien.callbacks.HuggingFaceCallback(X, "rot4", log=log, every=2)
    trainer.add_callback(callback)
    trainer.train(epochs=5)
    expected = ien.measure(trainer.model, X, "rot4", floors=False).scalars()
    assert [values.pop("step") for values in trainer.state.log_history] == [6, 12]
    for values in trainer.state.log_history:
        assert round(values.pop("epoch")) in (2, 4)
        assert values == pytest.approx(expected)
    assert list(callback.reports) == [2, 4]


def test_batches_of_a_loader_are_measured_as_a_tensor_is() -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=5)
    model = digit_like_classifier()
    for given in (X, loader):
        every = EveryEpoch(given, "rot4", None, 1, None, 1, 4, False, "pooled")
        for _ in range(2):  # again and again
            values = every.measure(model).scalars()
            assert values == pytest.approx(ien.measure(model, X, "rot4", floors=False).scalars())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"images": iter([X])}, "got an iterator"),
        ({"images": 3}, "must be a tensor"),
        ({"every": 0}, "every must be 1 or more epochs; got 0"),
        ({"labels": Y[:3]}, "one label per image"),
        ({"images": [X], "labels": Y}, "images as a tensor"),
        ({"group": "rot"}, "rot"),
    ],
)
def test_mistakes_are_told_when_the_callback_is_made(settings, message) -> None:
    given = {"images": X, "group": "rot4"} | settings
    with pytest.raises((ValueError, TypeError), match=message):
        ien.callbacks.HuggingFaceCallback(**given)


def test_names_of_callbacks_are_near() -> None:
    with pytest.raises(AttributeError, match="did you mean LightningCallback"):
        _ = ien.callbacks.Lightning
    with pytest.raises(AttributeError, match="no attribute 'of_epoch'"):
        _ = ien.callbacks.HuggingFaceCallback(X, "rot4").of_epoch


def measured_together(processes, folder) -> None:
    torch.manual_seed(0)
    model, x = net(), images(7)
    every = EveryEpoch(x, "rot4", ["1", "3"], 4, None, 1, 2, False, "pooled")  # 4 batches for 2 processes
    report = every.measure(nn.parallel.DistributedDataParallel(model))
    (folder / f"{processes.rank}.json").write_text(json.dumps([report.scalars(), report.images]))


@pytest.mark.slow
def test_two_processes_share_the_images(tmp_path) -> None:
    together(measured_together, tmp_path)
    torch.manual_seed(0)
    whole = ien.measure(net(), images(7), "rot4", ["1", "3"], 4, floors=False)
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found == [pytest.approx(whole.scalars(), rel=1e-9), 7]


SCRIPT = """
import json
import sys
import warnings
from pathlib import Path

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Lightning's own on import
    import lightning

import ien
from tests.helpers.nets import digit_like_classifier

torch.set_num_threads(1)
folder = Path(sys.argv[1])
x, y = torch.rand(14, 1, 9, 9, generator=torch.Generator().manual_seed(0)), torch.arange(14) % 3


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = digit_like_classifier()

    def training_step(self, batch, index):
        images, labels = batch
        return torch.nn.functional.cross_entropy(self.net(images), labels)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


lightning.seed_everything(0, verbose=False)
module = Module()
# 7 batches of 2, so that one process measures more of them than the other
callback = ien.callbacks.LightningCallback(x, "rot4", module="net", labels=y, batch_size=2)
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", devices=2, strategy="ddp", callbacks=[callback], logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    trainer.fit(module, torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=7))
logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
seen = {
    "epochs": list(callback.reports),
    "images": callback.reports[2].images,
    "scalars": callback.reports[2].scalars(),
    "logged": logged,
    "alone": ien.measure(module.net, x, "rot4", labels=y, floors=False).scalars(),
    "told": [str(warning.message) for warning in told if "sync_dist" in str(warning.message)],
}
(folder / f"{trainer.global_rank}.json").write_text(json.dumps(seen))
"""
# Lightning starts this script once more by itself, for the second process


@pytest.mark.slow
def test_lightnings_own_processes_share_the_images_and_log_the_same_numbers(tmp_path) -> None:
    pytest.importorskip("lightning", reason="needs lightning: pip install 'ien[lightning]'")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert "distributed_backend=gloo" in done.stderr and "Starting with 2 processes" in done.stderr
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    for seen in (first, second):
        assert seen["epochs"] == [1, 2] and seen["images"] == 14 and seen["told"] == []
        assert seen["scalars"] == pytest.approx(first["alone"])
        assert seen["logged"] == pytest.approx(first["alone"], rel=1e-6)
