"""The six-convolution net: its size by arithmetic from the paper's widths, its maps and its scores."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import ien
from ien import models


@pytest.mark.parametrize(
    ("feature_groups", "widths", "millions"),
    [
        (4, [128, 192, 256, 256, 384, 512], 10.88),
        ("4-2-1", [88, 132, 176, 176, 264, 352], 5.16),
        ({4: 0.5, 2: 0.25, 1: 0.25}, [88, 132, 176, 176, 264, 352], 5.16),
    ],
)
def test_channels_and_parameters_are_those_of_the_paper(feature_groups, widths, millions) -> None:
    model = models.create("cnn6", feature_groups=feature_groups)
    assert [layer.out_channels for layer in model.modules() if isinstance(layer, nn.Conv2d)] == widths
    expected, before = 0, 1
    for square, after in zip([49, 25, 25, 25, 25, 25], widths, strict=True):
        expected += before * after * square + 2 * after  # kernel, BatchNorm
        before = after
    expected += 128 * 128 + 128 + 2 * 128 + 128 * 10 + 10
    count = sum(p.numel() for p in model.parameters())
    assert count == expected and round(count / 1e6, 2) == millions


def test_the_output_is_the_classifier_of_the_mean_of_the_largest_member() -> None:
    model = models.cnn6(4, 1 / 8, num_classes=3, in_channels=2).double().eval()
    with ien.capture(model, "conv6") as features:
        scores = model(torch.rand(2, 2, 28, 28, dtype=torch.float64))
    h = features["conv6"].detach().numpy().reshape(2, 16, 4, 2, 2).max(2).mean((2, 3))
    first, norm, _, last = model.classifier
    bias = float(torch.tensor(0.01))  # single precision before the net was made double
    h = (h @ first.weight.detach().numpy().T + bias) / np.sqrt(1 + norm.eps)
    h = np.where(h > 0, h, np.expm1(h)) @ last.weight.detach().numpy().T + bias
    np.testing.assert_allclose(scores.detach().numpy(), h, rtol=0, atol=1e-13)


def test_weights_start_xavier_uniform_and_linear_biases_at_a_hundredth() -> None:
    for layer in models.cnn6(width=1 / 2).modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            fans = layer.weight.shape[0] + layer.weight.shape[1]
            bound = math.sqrt(6 / (fans * layer.weight[0, 0].numel()))
            assert 0.95 * bound < layer.weight.abs().max() <= bound
            assert abs(layer.weight.std() / (bound / math.sqrt(3)) - 1) < 0.1
        if isinstance(layer, nn.Linear):
            assert bool((layer.bias == 0.01).all())
