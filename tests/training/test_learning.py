"""Learning: a short run on real digits makes every layer more equivariant than a run without the loss."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ien
from ien.data import embedded_digits

LAYERS = ["conv1", "conv2", "conv3", "conv4"]


def build() -> nn.Sequential:
    """Four conv blocks on 28×28 images whose map sizes (24, 12, 6, 2) all commute with quarter turns."""
    net, inputs = nn.Sequential(), 1
    shapes = zip(LAYERS, (8, 16, 24, 32), (7, 5, 5, 5), (1, 2, 2, 0), strict=True)
    for name, outputs, kernel, padding in shapes:
        conv = nn.Conv2d(inputs, outputs, kernel, padding=padding, bias=False)
        net.add_module(name, nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ELU()))
        if name in ("conv1", "conv2"):
            net.append(nn.MaxPool2d(2))
        inputs = outputs
    return net.extend([ien.GroupPool(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)])


def errors_after_a_hundred_steps(beta: float) -> list[float]:
    x, y = embedded_digits()
    torch.manual_seed(0)
    rng = torch.Generator().manual_seed(0)
    model = build()
    objective = ien.EquivarianceLoss(ien.rotation(4), dict.fromkeys(LAYERS, beta), feature_groups=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(100):
        batch = torch.arange(64 * step, 64 * step + 64) % 4500
        out = objective(model, x[batch], generator=rng)
        (F.cross_entropy(out.output, out.repeat(y[batch])) + out.loss).backward()
        optimizer.step()
        optimizer.zero_grad()
    report = ien.measure(model, x[4500:], ien.rotation(4), LAYERS, feature_groups=4)
    return [layer.relative for layer in report.layers.values()]


@pytest.mark.slow
def test_a_hundred_steps_lower_every_layers_relative_error_tenfold() -> None:
    with_loss, without = errors_after_a_hundred_steps(3.0), errors_after_a_hundred_steps(0.0)
    assert all(ours < theirs / 10 for ours, theirs in zip(with_loss, without, strict=True))
