"""The VGG: widths and parameters by arithmetic, maps against a written-out reference, exactness by size."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ien
from ien import models
from ien.models.vgg import num_groups
from tests.helpers.nets import assert_invariant_with_symmetric_kernels, unsettled

TAPS = ("conv1", "conv2", "conv3", "conv4", "conv5", "conv6", "conv7", "conv8")


def net(feature_groups: ien.FeatureGroups | int | str = 4, **options: object) -> nn.Module:
    return models.create("vgg", **({"feature_groups": feature_groups, "width": 1 / 16} | options))


def images(count: int = 4, size: int = 32) -> Tensor:
    return torch.rand(count, 3, size, size, dtype=torch.float64)


@pytest.mark.parametrize(
    ("feature_groups", "widths", "groups", "millions"),
    [
        (1, (64, 128, 256, 256, *4 * [512]), 512, 9.853),
        (4, (144, 288, 576, 576, *4 * [1152]), 288, 47.073),
        (8, (200, 400, 800, 800, *4 * [1600]), 200, 90.333),
        ("4-2-1", (99, 198, 396, 396, *4 * [792]), 288, 22.464),
        ("8-4-2-1", (129, 258, 516, 516, *4 * [1075]), 200, 40.413),
        ("8-4-2", (132, 264, 550, 550, *4 * [1100]), 200, 42.784),
    ],
)
def test_channels_and_parameters_are_those_of_the_paper(feature_groups, widths, groups, millions) -> None:
    with torch.device("meta"):
        model = net(feature_groups, width=1)
    convs = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    assert tuple(conv.out_channels for conv in convs) == widths
    assert all(conv.kernel_size == (3, 3) and conv.bias is None for conv in convs)
    count = sum(9 * before * after + 2 * after for before, after in zip((3, *widths), widths, strict=False))
    count += (groups + 1) * 1024 + 2 * 1024 + (1024 + 1) * 100
    assert sum(p.numel() for p in model.parameters()) == count
    assert round(count / 1e6, 3) == millions


@pytest.mark.parametrize(
    ("feature_groups", "width", "groups"),
    [
        (4, 1 / 8, (4, 9, 18, 18, *4 * [36])),  # 4½ down
        (8, 1 / 4, (6, 12, 25, 25, *4 * [50])),
        ("4-2-1", 1 / 4, (8, 16, 36, 36, *4 * [72])),  # 9 and 18: 18 is a tie of 16 and 20
        ("8-4-2", 1, (24, 48, 100, 100, *4 * [200])),
    ],
)
def test_feature_groups_follow_from_the_largest_size_and_the_width(feature_groups, width, groups) -> None:
    assert num_groups(feature_groups, width) == groups
    with torch.device("meta"):
        model = net(feature_groups, width=width)
    spec = ien.FeatureGroups.of(feature_groups)
    assert model.feature_groups == spec and model.classifier[0].in_features == groups[-1]
    widths = [model.get_submodule(tap)[0].out_channels for tap in TAPS]
    assert tuple(map(spec.num_groups, widths)) == groups


@pytest.mark.parametrize(("feature_groups", "largest"), [(2, 2), ("2-1", 2), (16, 16)])
def test_a_largest_size_without_widths_is_named(feature_groups, largest) -> None:
    message = f"vgg has widths .* largest size is 1, 4 or 8; got .* largest size is {largest}"
    with pytest.raises(ValueError, match=message):
        net(feature_groups)


def test_taps_are_the_eight_blocks_before_the_pools_with_even_sizes() -> None:
    model = net("4-2-1", num_classes=7)
    assert model.taps == TAPS
    with ien.capture(model, model.taps) as features:
        scores = model(torch.rand(2, 3, 64, 64))
    assert [features[tap].shape[2:] for tap in TAPS] == [(n, n) for n in (64, 32, 16, 16, 8, 8, 4, 4)]
    assert scores.shape == (2, 7)


def test_maps_and_scores_equal_those_written_out_from_the_weights() -> None:
    model, x = unsettled(net("8-4-2", num_classes=5).double()), images(3)
    weights = model.state_dict()

    def active(name: str, h: Tensor) -> Tensor:
        mean, var, scale, shift = (
            weights[f"{name}.{key}"].reshape(-1, *[1] * (h.ndim - 2))
            for key in ("running_mean", "running_var", "weight", "bias")
        )
        h = (h - mean) / (var + 1e-5).sqrt() * scale + shift
        return torch.where(h > 0, h, h.expm1())

    with torch.no_grad(), ien.capture(model, TAPS) as features:
        scores = model(x)
    h = x
    for i, tap in enumerate(TAPS, start=1):
        h = active(f"{tap}.1", F.conv2d(h, weights[f"{tap}.0.weight"], padding=1))
        assert (features[tap] - h).abs().max() < 1e-12 * h.abs().max()
        if i in (1, 2, 4, 6):
            h = h.unflatten(3, (-1, 2)).amax(4).unflatten(2, (-1, 2)).amax(3)
    units = h.shape[1] // 22  # two groups of 8, one of 4, one of 2
    parts = zip(h.split([16 * units, 4 * units, 2 * units], 1), (8, 4, 2), strict=True)
    pooled = torch.cat([part.unflatten(1, (-1, size)).amax(2) for part, size in parts], 1).mean((2, 3))
    hidden = pooled @ weights["classifier.0.weight"].T + weights["classifier.0.bias"]
    hidden = active("classifier.1", hidden)
    expected = hidden @ weights["classifier.4.weight"].T + weights["classifier.4.bias"]
    assert (scores - expected).abs().max() < 1e-12


def test_half_of_the_hidden_units_are_dropped_in_training_only() -> None:
    model = net(num_classes=5)
    kept: list[Tensor] = []
    model.classifier[4].register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0]))
    model(torch.rand(8, 3, 32, 32))
    assert kept[0].shape == (8, 1024) and abs((kept[0] == 0).double().mean() - 0.5) < 0.03
    model.eval()
    assert torch.equal(model(x := torch.rand(2, 3, 32, 32)), model(x))


@pytest.mark.parametrize("size", [16, 32, 48, 64])
def test_the_doctor_calls_the_whole_net_exact(size) -> None:
    diagnosis = ien.doctor(net(), (3, size, size))
    assert diagnosis.exact and not diagnosis.findings


def test_the_doctor_names_the_pool_that_loses_a_row() -> None:
    diagnosis = ien.doctor(net(), (3, 40, 40))
    assert not diagnosis.exact and {32, 48} <= set(diagnosis.exact_sizes)
    assert [finding.module for finding in diagnosis.findings] == ["pool6"]


@pytest.mark.parametrize("feature_groups", [4, "4-2-1", "8-4-2-1"])
def test_symmetric_kernels_make_every_tap_exact_and_random_ones_do_not(feature_groups) -> None:
    assert_invariant_with_symmetric_kernels(unsettled(net(feature_groups).double()), images())


def test_every_parameter_gets_a_gradient() -> None:
    model = net("8-4-2-1", num_classes=5).double()
    model(images(6)).square().sum().backward()
    for name, parameter in model.named_parameters():
        # the bias before a BatchNorm shifts what is then centred
        assert parameter.grad is not None and (name == "classifier.0.bias" or parameter.grad.abs().max() > 0)


def test_weights_start_as_torch_has_them() -> None:
    for layer in net(width=1 / 4).modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            bound = 1 / math.sqrt(layer.weight[0].numel())
            assert 0.9 * bound < layer.weight.abs().max() <= bound


def test_names_in_the_state_are_those_of_saved_runs() -> None:
    norm = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    names = [f"{tap}.0.weight" for tap in TAPS] + [f"{tap}.1.{key}" for tap in TAPS for key in norm]
    names += [f"classifier.{i}.{key}" for i in (0, 4) for key in ("weight", "bias")]
    names += [f"classifier.1.{key}" for key in norm]
    assert sorted(net().state_dict()) == sorted(names)


def test_the_exported_program_computes_the_same_for_other_batches() -> None:
    model, x = unsettled(net("4-2-1")), torch.rand(3, 3, 32, 32)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    with torch.no_grad():
        assert (program.module()(x[:2]) - model(x[:2])).abs().max() < 1e-5
