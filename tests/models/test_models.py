"""What holds of every model by name: gradients, seeds, exactness by size, export, and errors."""

import math

import pytest
import torch
from torch import nn

import ien
from ien import models
from ien.models import MODELS, channel_share, create
from tests.helpers.nets import assert_invariant_with_symmetric_kernels, unsettled
from tests.helpers.symmetrised import diagnosed

CHANNELS = {"cnn6": 1, "cnn3": 1, "resnet18": 3, "vgg": 3, "wide-resnet": 3}


def net(name, feature_groups=4, **options) -> nn.Module:
    return create(name, **({"feature_groups": feature_groups, "width": 1 / 16} | options))


def images(name, count=4, size=None):
    side = size or (32 if name in ("resnet18", "vgg") else 28)
    return torch.rand(count, CHANNELS[name], side, side, dtype=torch.float64)


def gradients(model, x):
    model.zero_grad()
    model(x).square().sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_gets_a_gradient(name) -> None:
    model, x = net(name, num_classes=5).double(), images(name, 6)
    for parameter, gradient in gradients(model, x).items():
        # a bias before a BatchNorm shifts what is then centred
        assert gradient is not None and (parameter.endswith("bias") or gradient.abs().max() > 0)
    settled = gradients(unsettled(model), x)
    assert all(gradient.abs().max() > 0 for gradient in settled.values())


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("cnn6", "rot4"),
        ("vgg", "rot4xflip"),
        ("resnet18", "rot8"),
        ("cnn3", "scale0.7,0.84"),
        ("wide-resnet", "scale0.7,0.84"),
    ],
)
def test_taps_can_be_compared_and_trained_on(name, group) -> None:
    model = net(name, num_classes=5)
    objective = ien.EquivarianceLoss(group, model.taps, model.feature_groups)
    out = objective(model, images(name).float(), generator=torch.Generator().manual_seed(0))
    (out.loss + out.output.square().mean()).backward()
    assert {layer for _, layer in out.terms} == set(model.taps)
    assert all(term > 0 for term in out.terms.values()) and out.output.shape[1] == 5
    assert all(parameter.grad.abs().max() > 0 for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "size", "sizes"),
    [
        ("cnn6", 28, [24, 24, 12, 12, 6, 2]),
        ("resnet18", 32, [33, 17, 9, 5]),  # sizes that commute with quarter turns
        ("resnet18", 64, [65, 33, 17, 9]),
        ("resnet18", 65, [65, 33, 17, 9]),
        ("vgg", 64, [64, 32, 16, 16, 8, 8, 4, 4]),
    ],
)
def test_taps_are_the_blocks_before_the_pools(name, size, sizes) -> None:
    model = net(name, "4-2-1", num_classes=7)
    with ien.capture(model, model.taps) as features:
        scores = model(images(name, 2, size).float())
    stem = "layer" if name == "resnet18" else "conv"
    assert model.taps == tuple(f"{stem}{i}" for i in range(1, len(sizes) + 1))
    assert [features[tap].shape[2:] for tap in model.taps] == [(n, n) for n in sizes]
    assert scores.shape == (2, 7)


@pytest.mark.parametrize("name", MODELS)
def test_the_same_seed_gives_the_same_weights(name) -> None:
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        states.append(net(name).state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize(
    ("name", "feature_groups", "size"),
    [
        ("cnn6", 4, 28),
        ("cnn6", "4-2-1", 28),
        ("resnet18", "4-2-1", 33),
        ("resnet18", "8-4-2-1", 32),
        ("vgg", "4-2-1", 32),
        ("vgg", "8-4-2-1", 32),
    ],
)
def test_symmetric_kernels_make_every_tap_exact_and_random_ones_do_not(name, feature_groups, size) -> None:
    model = unsettled(net(name, feature_groups, width=1 / 8).double())
    assert_invariant_with_symmetric_kernels(model, images(name, 2, size))


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("cnn6", [28]), ("resnet18", [32, 33, 64, 65]), ("vgg", [16, 48, 64]), ("wide-resnet", [32, 96])],
)
def test_the_doctor_calls_the_whole_net_exact(name, sizes) -> None:
    for size in sizes:
        diagnosis = diagnosed(net(name), size, CHANNELS[name])
        assert diagnosis.exact and not diagnosis.findings


@pytest.mark.parametrize(
    ("name", "size", "better", "modules"),
    [
        ("resnet18", 36, {32, 33, 40, 41}, {"layer4.0.conv2", "layer4.0.shortcut"}),
        ("vgg", 40, {32, 48}, {"pool6"}),
    ],
)
def test_the_doctor_names_what_breaks_other_sizes(name, size, better, modules) -> None:
    diagnosis = ien.doctor(net(name), (3, size, size))
    assert not diagnosis.exact and better <= set(diagnosis.exact_sizes)
    assert {finding.module for finding in diagnosis.findings} == modules


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "vgg"])
def test_the_exported_program_computes_the_same_for_other_batches(name) -> None:
    model, x = unsettled(net(name, "4-2-1")), images(name, 3).float()
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    with torch.no_grad():
        assert (program.module()(x[:2]) - model(x[:2])).abs().max() < 1e-5


@pytest.mark.parametrize("name", ["resnet18", "vgg"])
def test_weights_start_as_torch_has_them(name) -> None:
    for layer in net(name, width=1 / 4).modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            bound = 1 / math.sqrt(layer.weight[0].numel())
            assert 0.9 * bound < layer.weight.abs().max() <= bound


@pytest.mark.parametrize("name", models.NAMES)
def test_feature_groups_of_one_size_are_the_whole_share(name) -> None:
    assert channel_share(name, 4) == 1 > channel_share(name, "4-2-1")


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("cnn-6", {}, r"no model 'cnn-6'; did you mean cnn6, cnn3\?$"),
        ("zzz", {}, "no model 'zzz'; choose from cnn6, .*, siamfc"),
        ("cnn6", {"depth": 3}, "depth"),
        ("cnn6", {"width": 0}, "width must be a positive factor such as 1 or 1/8; got 0"),
        ("cnn6", {"width": -1}, "width must be a positive factor"),
        ("cnn6", {"width": math.inf}, "width must be a positive factor"),
        ("cnn6", {"width": math.nan}, "width must be a positive factor"),
        ("cnn6", {"width": "1/8"}, "width is a number such as 1 or 1/8; got '1/8'"),
        ("cnn6", {"width": True}, "width is a number"),
        ("cnn6", {"width": None}, "width is a number"),
        ("vgg", {"feature_groups": "3-1"}, "vgg has widths .* size is 1, 2, 4 or 8; got 3-1, .* size is 3"),
        ("resnet18", {"feature_groups": 16}, "resnet18 has widths .* 1, 2, 4 or 8; got 16, .* size is 16"),
        ("resnet18", {"feature_groups": {6: 1, 1: 1}}, "resnet18 has widths .* largest size is 6"),
        ("cnn3", {"size": 32}, "size is 28, or 56 to double the image first; got 32"),
    ],
)
def test_what_cannot_be_built_says_what_can(name, options, match) -> None:
    with pytest.raises((ValueError, TypeError), match=match):
        create(name, **options)


@pytest.mark.parametrize(
    ("place", "name", "close"), [(ien.models, "resnet", "resnet18"), (ien.data, "dataset_", "Dataset")]
)
def test_a_name_that_does_not_exist_is_told_with_one_that_does(place, name, close) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; did you mean .*{close}"):
        getattr(place, name)
    assert dir(place) == sorted(place.__all__)
