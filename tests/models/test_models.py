"""The six-convolution net: its size by arithmetic from the paper's widths, its geometry, its exactness."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ien
from ien import models
from ien.models.cnn6 import num_groups

HET = {4: 0.5, 2: 0.25, 1: 0.25}


def channels(model: nn.Module) -> list[int]:
    return [layer.out_channels for layer in model.modules() if isinstance(layer, nn.Conv2d)]


def parameters(widths: list[int], groups: int, classes: int = 10) -> int:
    """Weights of a net with these channels, layer by layer."""
    squares, before, count = [49, 25, 25, 25, 25, 25], 1, 0
    for square, after in zip(squares, widths, strict=True):
        count += before * after * square + 2 * after  # kernel, BatchNorm
        before = after
    return count + groups * groups + groups + 2 * groups + groups * classes + classes


def symmetrised(model: nn.Module) -> nn.Module:
    """Every kernel replaced by its mean over the four quarter turns and their mirror images."""
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, nn.Conv2d):
                turned = [torch.rot90(layer.weight, k, (2, 3)) for k in range(4)]
                layer.weight.copy_(sum(turned + [kernel.flip(3) for kernel in turned]) / 8)
    return model


@pytest.mark.parametrize(
    ("feature_groups", "widths", "millions"),
    [
        (4, [128, 192, 256, 256, 384, 512], 10.88),
        ("4-2-1", [88, 132, 176, 176, 264, 352], 5.16),
        (HET, [88, 132, 176, 176, 264, 352], 5.16),
    ],
)
def test_channels_and_parameters_are_those_of_the_paper(feature_groups, widths, millions) -> None:
    model = models.create("cnn6", feature_groups=feature_groups)
    assert channels(model) == widths
    count = sum(p.numel() for p in model.parameters())
    assert count == parameters(widths, groups=128)
    assert round(count / 1e6, 2) == millions


@pytest.mark.parametrize(
    ("feature_groups", "width", "groups"),
    [
        (4, 1, (32, 48, 64, 64, 96, 128)),
        (4, 1 / 8, (4, 6, 8, 8, 12, 16)),
        (4, 1 / 64, (1, 1, 1, 1, 1, 2)),  # ½ and ¾ of a group, 1½ twice a tie
        (4, Fraction(1, 3), (11, 16, 21, 21, 32, 43)),
        (4, 1 / 3, (11, 16, 21, 21, 32, 43)),  # 32/3 and 128/3 round up, 64/3 down
        (4, 0.1, (3, 5, 6, 6, 10, 13)),
        (1, 2, (64, 96, 128, 128, 192, 256)),
        ("4-2-1", 1, (32, 48, 64, 64, 96, 128)),
        ("4-2-1", 1 / 4, (8, 12, 16, 16, 24, 32)),
        ("4-2-1", 1 / 8, (4, 4, 8, 8, 12, 16)),  # 6 lies between 4 and 8
        ("4-2-1", 3 / 8, (12, 16, 24, 24, 36, 48)),  # 18 between 16 and 20
        ("8-4-2-1", 1 / 8, (8, 8, 8, 8, 8, 16)),  # 4 of a unit of 8 is a tie with none, 12 one with 16
        ("8-4-2-1", 1 / 4, (8, 8, 16, 16, 24, 32)),
        ("8-4-2", 1e-9, (4,) * 6),
    ],
)
def test_feature_groups_are_rounded_to_the_unit_with_ties_down(feature_groups, width, groups) -> None:
    assert num_groups(feature_groups, width) == groups
    spec = ien.FeatureGroups.of(feature_groups)
    widths = [sum(n // spec.unit * size * count for size, count in zip(spec.sizes, spec.counts, strict=True))
              for n in groups]  # fmt: skip
    assert channels(models.cnn6(feature_groups, width)) == widths


def test_an_eighth_of_the_width_has_sixteen_channels_in_the_first_layer() -> None:
    model = models.cnn6(width=1 / 8)
    assert channels(model)[0] == 16 and model.feature_groups == ien.FeatureGroups.of(4)


def test_taps_are_the_six_blocks_before_the_pools_with_sizes_that_commute_with_quarter_turns() -> None:
    model = models.cnn6("4-2-1", width=1 / 8)
    assert model.taps == ("conv1", "conv2", "conv3", "conv4", "conv5", "conv6")
    with ien.capture(model, model.taps) as features:
        scores = model(torch.rand(3, 1, 28, 28))
    sizes = {tap: tuple(features[tap].shape[2:]) for tap in model.taps}
    assert list(sizes.values()) == [(n, n) for n in (24, 24, 12, 12, 6, 2)]
    assert scores.shape == (3, 10)


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


def test_every_parameter_gets_a_gradient() -> None:
    model = models.cnn6("4-2-1", width=1 / 8)
    model(torch.rand(8, 1, 28, 28)).square().sum().backward()
    for name, parameter in model.named_parameters():
        # the bias before a BatchNorm shifts what is then centred
        assert parameter.grad is not None and (name == "classifier.0.bias" or parameter.grad.abs().max() > 0)


def test_the_same_seed_gives_the_same_weights() -> None:
    torch.manual_seed(3)
    first = models.cnn6(width=1 / 8).state_dict()
    torch.manual_seed(3)
    second = models.cnn6(width=1 / 8).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("feature_groups", [4, "4-2-1"])
def test_symmetric_kernels_make_every_tap_exact_and_random_ones_do_not(feature_groups) -> None:
    def errors(model: nn.Module) -> Tensor:
        x = torch.rand(4, 1, 28, 28, dtype=torch.float64)
        report = ien.measure(model, x, "rot4", model.taps, model.feature_groups)
        return torch.tensor([report.layers[tap].relative for tap in model.taps])

    model = models.cnn6(feature_groups, width=1 / 8).double()
    assert errors(model).min() > 0.01
    assert errors(symmetrised(model)).abs().max() < 1e-24


def test_an_unknown_name_or_option_says_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"no model 'cnn-6'; did you mean cnn6, cnn3\?$"):
        models.create("cnn-6")
    with pytest.raises(ValueError, match=r"no model 'zzz'; there are cnn6"):
        models.create("zzz")
    with pytest.raises(TypeError, match="depth"):
        models.create("cnn6", depth=3)


@pytest.mark.parametrize("width", [0, -1, math.inf, math.nan])
def test_width_must_be_a_positive_factor(width) -> None:
    with pytest.raises(ValueError, match="width must be a positive factor such as 1 or 1/8; got"):
        models.cnn6(width=width)


@pytest.mark.parametrize("width", ["1/8", True, None])
def test_width_must_be_a_number(width) -> None:
    with pytest.raises(TypeError, match="width is a number such as 1 or 1/8; got"):
        models.cnn6(width=width)
