"""What docs/loop.md writes to TensorBoard is in its files, read back by TensorBoard itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import ien
from tests.test_documents import blocks_of

pytestmark = pytest.mark.usefixtures("elsewhere", "one_thread")


def names() -> dict[str, Any]:
    """What the blocks of the page take for granted."""
    torch.manual_seed(0)
    model = nn.Sequential()
    for i in range(1, 5):
        layer = nn.Conv2d(3 if i == 1 else 8, 8, 3, padding=1)
        model.add_module(f"layer{i}", nn.Sequential(layer, nn.ReLU()))
    model.add_module("classify", nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)))
    x, y = torch.rand(3, 6, 3, 9, 9), torch.randint(4, (3, 6))
    return {
        "ien": ien,
        "F": torch.nn.functional,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=1e-3),
        "loader": list(zip(x, y, strict=True)),
        "images": torch.rand(6, 3, 9, 9),
        "objective": ien.EquivarianceLoss("rot4", ["layer1", "layer4"], feature_groups=4),
    }


def block_with(text: str) -> str:
    (block,) = [block for block in blocks_of("docs/loop.md") if text in block]
    return block


def test_tensorboard_holds_the_terms_and_the_measurement() -> None:
    pytest.importorskip("tensorboard", reason='needs pip install "ien[tensorboard]"')
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    given = names()
    exec(compile(block_with("SummaryWriter"), "docs/loop.md", "exec"), given)
    given["writer"].close()
    events = EventAccumulator("runs/mine")
    events.Reload()
    measured = ien.measure(given["model"], given["images"], "rot4", floors=False).scalars()
    terms = {f"terms/rot4/{layer}" for layer in ("layer1", "layer4")}
    assert set(events.Tags()["scalars"]) == terms | set(measured)
    for name in terms:
        written = events.Scalars(name)
        assert [event.step for event in written] == [0, 1, 2]
        last = given["out"].terms["rot4", name.rpartition("/")[2]]
        assert written[-1].value == pytest.approx(last.item())
    for name, value in measured.items():
        (event,) = events.Scalars(name)
        assert event.value == pytest.approx(value, rel=1e-6) and event.step == 2
