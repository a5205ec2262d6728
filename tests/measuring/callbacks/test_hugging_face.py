"""The callback inside the real Trainer of transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ien
from tests.helpers.nets import digit_like_classifier

transformers = pytest.importorskip("transformers", reason="needs pip install transformers accelerate")
pytest.importorskip("accelerate", reason="needs pip install transformers accelerate")

X, Y = torch.rand(12, 1, 9, 9), torch.arange(12) % 3


class Classifier(nn.Module):
    """Takes and returns what the Trainer expects."""

    def __init__(self) -> None:
        super().__init__()
        self.net = digit_like_classifier()

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        returned = {"logits": self.net(pixel_values)}
        if labels is not None:
            returned["loss"] = F.cross_entropy(returned["logits"], labels)
        return returned


@pytest.mark.parametrize("through_trainer", [True, False])
def test_the_real_trainer_measures_every_second_epoch_and_logs(through_trainer, tmp_path) -> None:
    images = [{"pixel_values": x, "labels": y} for x, y in zip(X, Y, strict=True)]
    settings: dict[str, Any] = {"num_train_epochs": 5, "per_device_train_batch_size": 6, "use_cpu": True}
    quiet: dict[str, Any] = {"report_to": [], "disable_tqdm": True, "logging_strategy": "no"}
    arguments = transformers.TrainingArguments(str(tmp_path), save_strategy="no", **settings, **quiet)
    trainer = transformers.Trainer(model=Classifier(), args=arguments, train_dataset=images)
    log = trainer.log if through_trainer else None
    callback = ien.callbacks.HuggingFaceCallback(X, "rot4", ["net.0", "net.1"], log=log, labels=Y, every=2)
    trainer.add_callback(callback)
    trainer.train()
    assert list(callback.reports) == [2, 4]
    found = [values for values in trainer.state.log_history if "equivariance/rot4/net.0" in values]
    assert [(values.pop("epoch"), values.pop("step")) for values in found] == [(2, 4), (4, 8)]
    assert found == [pytest.approx(report.scalars()) for report in callback.reports.values()]
    # what it measures is what measure() does, predictions included
    after = measured_now(callback, trainer.model)
    assert after == pytest.approx(
        ien.measure(trainer.model.net, X, "rot4", ["0", "1"], labels=Y, floors=False).scalars()
    )


def measured_now(callback: Any, model: nn.Module) -> dict[str, float]:
    """What the callback would log now, by the names that the layers have in the network alone."""
    scalars = callback._every_epoch.measure(model).scalars()
    return {name.replace("/net.", "/"): value for name, value in scalars.items()}
