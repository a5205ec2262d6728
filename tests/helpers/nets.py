"""What is asked of several networks alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ien
from ien.measuring.floors import symmetric_kernels
from tests.helpers import losses


def unsettled(model: nn.Module) -> nn.Module:
    """With statistics, affine parameters and biases of convolutions far from where they start."""
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d | nn.BatchNorm1d):
            for values in (layer.running_mean, layer.running_var, layer.weight.data, layer.bias.data):
                values.uniform_(0.5, 1.5)
        elif isinstance(layer, nn.Conv2d) and layer.bias is not None:
            layer.bias.data.uniform_(-1, 1)
    return model.eval()


def assert_trains(net: nn.Module, x: Tensor, num_classes: int, moves: bool = True) -> None:
    """Three images get a score for each class; every parameter a finite gradient, not 0 if it ``moves``."""
    scores = net(x)
    assert scores.shape == (3, num_classes)
    F.cross_entropy(scores, torch.tensor([0, 1, 2])).backward()
    still = [name for name, p in net.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not still
    assert not moves or all((p.grad != 0).any() for p in net.parameters())


def assert_exact_with_symmetric_kernels(model: nn.Module, x: Tensor, group: str, error: float) -> Tensor:
    """No tap is equivariant with the kernels it has, every tap with symmetric ones; what it returns then."""

    def errors() -> list[float]:
        report = ien.measure(model, x, group, model.taps, model.feature_groups, floors=False)
        return [report.layers[tap].relative for tap in model.taps]

    assert min(errors()) > 0.001
    with symmetric_kernels():
        assert max(errors()) < error
        return model(x)


def assert_invariant_with_symmetric_kernels(model: nn.Module, x: Tensor) -> None:
    """Symmetric kernels make every tap exact, and the scores invariant to quarter turns and flips."""
    scores = assert_exact_with_symmetric_kernels(model, x, "rot4xflip", 1e-24)
    with symmetric_kernels():
        for turned in (x.rot90(1, (2, 3)), x.flip(2), x.flip(3).rot90(3, (2, 3))):
            assert (model(turned) - scores).abs().max() < 1e-12
    assert scores.std(0).min() > 0  # it does not ignore the images


class Function(nn.Module):
    """A function as a module without parameters."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def classifier(classes: int) -> nn.Sequential:
    """Two convolutions, layers '1' and '3', and scores from their maps; in float64."""
    return nn.Sequential(*losses.net(), nn.Flatten(), nn.LazyLinear(classes, dtype=torch.float64))


def digit_like_classifier() -> nn.Sequential:
    """Layers '0' and '1' return maps; scores of three classes for images 1×9×9, in float32."""
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 7 * 7, 3))
