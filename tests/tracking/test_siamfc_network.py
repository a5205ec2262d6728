"""SiamFC: widths by arithmetic, features and responses against written-out ones, exactness."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ien
from ien import models
from ien.measuring.floors import symmetric_kernels
from ien.tracking.siamfc_network import num_groups, respond, respond_all
from tests.helpers.nets import assert_exact_with_symmetric_kernels, unsettled

pytestmark = pytest.mark.usefixtures("one_thread")

TAPS = ("conv1", "conv2", "conv3", "conv4", "conv5")
V1, V2 = "alexnet-v1", "alexnet-v2"
WHOLE, HALVES = (1, 1, 1, 1, 1), (1, 2, 1, 2, 2)


def net(feature_groups=4, backbone: str = V2, **options: object) -> nn.Module:
    settings = {"feature_groups": feature_groups, "backbone": backbone, "width": 1 / 16}
    return models.create("siamfc", **(settings | options))


def convs(model: nn.Module) -> list[nn.Conv2d]:
    return [model.get_submodule(tap)[0] for tap in TAPS]


def noise(*shape: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64)


def rot90(x: Tensor, quarters: int) -> Tensor:
    return torch.rot90(x, quarters, (2, 3))


@pytest.mark.parametrize(
    ("backbone", "feature_groups", "widths", "conv_groups", "kernels", "total"),
    [
        (V1, 1, (96, 256, 384, 384, 256), HALVES, 2.333, 2.336),
        (V2, 1, (96, 256, 384, 384, 32), HALVES, 1.946, 1.949),
        (V1, 4, (192, 512, 768, 768, 512), WHOLE, 14.914, 14.921),
        (V2, 4, (192, 512, 768, 768, 64), WHOLE, 11.817, 11.824),
        (V1, "4-2-1", (132, 352, 528, 528, 352), WHOLE, 7.064, 7.069),
        (V2, "4-2-1", (132, 352, 528, 528, 44), WHOLE, 5.600, 5.605),
    ],
)
def test_channels_and_parameters_are_the_published_ones(
    backbone, feature_groups, widths, conv_groups, kernels, total
) -> None:
    with torch.device("meta"):
        model = net(feature_groups, backbone, width=1)
    layers = convs(model)
    assert tuple(conv.out_channels for conv in layers) == widths
    assert tuple(conv.groups for conv in layers) == conv_groups
    before, count = 3, 0
    for size, after, parts in zip((11, 5, 3, 3, 3), widths, conv_groups, strict=True):
        count += before * after * size**2 // parts
        before = after
    assert sum(conv.weight.numel() for conv in layers) == count
    rest = sum(widths) + 2 * sum(widths[:4])  # biases, and two for each channel of a BatchNorm
    assert sum(p.numel() for p in model.parameters()) == count + rest
    assert (round(count / 1e6, 3), round((count + rest) / 1e6, 3)) == (kernels, total)


@pytest.mark.parametrize("feature_groups", [1, 2, "4-2-1", "8-4-2-1"])
def test_no_feature_group_lies_in_both_halves_of_a_convolution(feature_groups) -> None:
    for backbone in (V1, V2):
        model = net(feature_groups, backbone)
        assert model.feature_groups == ien.FeatureGroups.of(feature_groups)
        assert any(conv.groups == 2 for conv in convs(model)) == (feature_groups == 1)


@pytest.mark.parametrize(
    ("feature_groups", "width", "backbone", "groups"),
    [
        (4, 1 / 4, V2, (12, 32, 48, 48, 4)),
        (4, 1 / 10, V1, (5, 13, 19, 19, 13)),  # 4.8, 12.8, 19.2
        ("4-2-1", 1 / 8, V2, (4, 16, 24, 24, 4)),  # 6 lies between 4 and 8; no less than a unit
        (1, 1 / 32, V2, (2, 8, 12, 12, 2)),  # 1½ pairs of channels down; no less than one
        ("1", 1 / 10, V1, (10, 26, 38, 38, 26)),
    ],
)
def test_width_is_a_factor_on_feature_groups(feature_groups, width, backbone, groups) -> None:
    assert num_groups(feature_groups, width, backbone) == groups
    model = net(feature_groups, backbone, width=width)
    assert tuple(model.feature_groups.num_groups(c.out_channels) for c in convs(model)) == groups
    assert model(torch.rand(1, 3, 87, 87)).shape[1] == groups[-1]
    assert [models.channel_share("siamfc", mix) for mix in (1, 4, "4-2-1")] == [1, 1, 0.6875]


@pytest.mark.parametrize(
    ("backbone", "stride", "features", "responses"),
    [(V1, 8, {127: 6, 255: 22, 239: 20}, (17, 15)), (V2, 4, {127: 17, 255: 49, 239: 45}, (33, 29))],
)
def test_features_and_responses_have_the_published_sizes(backbone, stride, features, responses) -> None:
    with torch.device("meta"):
        model = net("4-2-1", backbone)
        maps = {size: model(torch.rand(2, 3, size, size)) for size in features}
    assert (model.stride, model.backbone, model.taps) == (stride, backbone, TAPS)
    groups = num_groups("4-2-1", 1 / 16, backbone)[-1]
    for size, side in features.items():
        assert maps[size].shape == (2, groups, side, side)
    for size, side in zip((255, 239), responses, strict=True):
        assert respond(maps[127], maps[size]).shape == (2, 1, side, side)


@pytest.mark.parametrize("feature_groups", [1, "4-2-1"])
@pytest.mark.parametrize(("backbone", "second_stride"), [(V1, 2), (V2, 1)])
def test_maps_and_features_equal_those_written_out(backbone, second_stride, feature_groups) -> None:
    model, x = unsettled(net(feature_groups, backbone).double()), noise(2, 3, 95, 95)
    weights = model.state_dict()
    with torch.no_grad(), ien.capture(model, TAPS) as features:
        pooled = model(x)
    h = 255 * x
    for i, (tap, parts) in enumerate(zip(TAPS, HALVES if feature_groups == 1 else WHOLE, strict=True)):
        kernel, bias = weights[f"{tap}.0.weight"], weights[f"{tap}.0.bias"]
        pieces = zip(h.chunk(parts, 1), kernel.chunk(parts), bias.chunk(parts), strict=True)
        h = torch.cat([F.conv2d(*piece, stride=1 if i else 2) for piece in pieces], 1)
        if i < 4:
            keys = ("running_mean", "running_var", "weight", "bias")
            mean, var, scale, shift = (weights[f"{tap}.1.{key}"][:, None, None] for key in keys)
            h = ((h - mean) / (var + 1e-6).sqrt() * scale + shift).clamp(min=0)
        assert (features[tap] - h).abs().max() < 1e-12 * h.abs().max()
        if i < 2:
            h = F.max_pool2d(h, 3, (2, second_stride)[i])
    if feature_groups != 1:
        unit = h.shape[1] // 11  # two groups of 4, one of 2, one of 1
        fours, twos, ones = h.split([8 * unit, 2 * unit, unit], 1)
        h = torch.cat([fours.unflatten(1, (-1, 4)).amax(2), twos.unflatten(1, (-1, 2)).amax(2), ones], 1)
    assert (pooled - h).abs().max() < 1e-12 * h.abs().max()


@pytest.mark.parametrize(("backbone", "odd_size", "module"), [(V2, 128, "conv1.0"), (V1, 131, "pool2")])
def test_the_doctor_calls_only_the_sizes_of_siamfc_exact(backbone, odd_size, module) -> None:
    model = net(1, backbone, width=1 / 32)
    for size in (127, 239, 255):
        diagnosis = ien.doctor(model, (3, size, size))
        assert diagnosis.exact and not diagnosis.findings and size in diagnosis.exact_sizes
    diagnosis = ien.doctor(model, (3, odd_size, odd_size))
    assert [finding.module for finding in diagnosis.findings] == [module] and 127 in diagnosis.exact_sizes


@pytest.mark.parametrize(
    ("backbone", "feature_groups", "size"), [(V1, 4, 239), (V2, 1, 127), (V2, "4-2-1", 127)]
)
def test_symmetric_kernels_make_every_tap_exact(backbone, feature_groups, size) -> None:
    model, x = unsettled(net(feature_groups, backbone, width=1 / 24).double()), noise(2, 3, size, size)
    h = assert_exact_with_symmetric_kernels(model, x, "rot4", 1e-20)
    with symmetric_kernels():
        for k in (1, 2, 3):
            assert (model(rot90(x, k)) - rot90(h, k)).abs().max() < 1e-10 * h.abs().max()


def test_respond_equals_a_loop_over_pairs_and_rotates_with_both() -> None:
    z, x = torch.randn(5, 7, 4, 3).double(), torch.randn(5, 7, 9, 10).double()
    response = respond(z, x)
    loop = torch.cat([F.conv2d(x[i : i + 1], z[i : i + 1]) for i in range(5)]) / 1000
    assert response.shape == (5, 1, 6, 8) and (response - loop).abs().max() < 1e-15
    total = (z[2].numpy() * x[2, :, 3:7, 1:4].numpy()).sum()
    assert response[2, 0, 3, 1].item() == pytest.approx(0.001 * total, abs=1e-14)
    for k in (1, 2, 3):
        assert (respond(rot90(z, k), rot90(x, k)) - rot90(response, k)).abs().max() < 1e-15


@pytest.mark.parametrize(("exemplars", "searches"), [(1, 3), (4, 1), (4, 3), (1, 1)])
def test_respond_all_equals_a_loop_and_a_single_one_serves_all(exemplars, searches) -> None:
    z, x = torch.randn(exemplars, 6, 3, 3).double(), torch.randn(searches, 6, 8, 8).double()
    response = respond_all(z, x)
    assert response.shape == (exemplars, searches, 6, 6)
    for t in range(exemplars):
        for s in range(searches):
            one = F.conv2d(x[s : s + 1], z[t : t + 1])[0, 0] / 1000
            assert (response[t, s] - one).abs().max() < 1e-15
    if 1 in (exemplars, searches):
        assert torch.equal(respond(z, x), response.reshape(-1, 1, 6, 6))


def test_respond_has_the_gradients_of_the_loop() -> None:
    z, x = (torch.randn(3, 4, n, n).double().requires_grad_() for n in (3, 5))
    assert torch.autograd.gradcheck(respond, (z, x)) and torch.autograd.gradcheck(respond_all, (z[:2], x))


@pytest.mark.parametrize(
    ("exemplar", "search", "message"),
    [
        ((2, 4, 3, 3), (3, 4, 8, 8), "as many exemplars as search images, .*; got 2 and 3"),
        ((2, 4, 3, 3), (2, 5, 8, 8), r"equally many channels.*got \(2, 4, 3, 3\) and \(2, 5, 8, 8\)"),
        ((2, 4, 9, 3), (2, 4, 8, 8), "the exemplar must fit inside the search image"),
        ((4, 3, 3), (4, 8, 8), r"features \(B, N, H, W\), B at least 1; got \(4, 3, 3\)"),
        ((0, 4, 3, 3), (0, 4, 8, 8), r"B at least 1; got \(0, 4, 3, 3\)"),
    ],
)
def test_features_that_do_not_fit_are_named(exemplar, search, message) -> None:
    with pytest.raises(ValueError, match=message):
        respond(torch.rand(exemplar), torch.rand(search))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backbone": "alexnet-v3"}, r"siamfc has no backbone 'alexnet-v3'; .*alexnet-v"),
        ({"width": 0}, "width must be a positive factor"),
    ],
)
def test_unknown_backbones_and_widths_are_refused(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        net(**options)


@pytest.mark.parametrize(("backbone", "feature_groups"), [(V1, 1), (V2, 1), (V2, "4-2-1")])
def test_every_parameter_gets_a_gradient_through_the_response(backbone, feature_groups) -> None:
    model = net(feature_groups, backbone)
    z, x = torch.rand(2, 3, 87, 87), torch.rand(2, 3, 111, 111)
    respond(model(z), model(x)).square().sum().backward()
    for name, parameter in model.named_parameters():
        shift = name.endswith(".0.bias") and name != "conv5.0.bias"  # the BatchNorm takes it out again
        assert parameter.grad is not None and (shift or parameter.grad.abs().max() > 0), name
    model.zero_grad()
    model = unsettled(model)
    respond(model(z), model(x)).square().sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in model.parameters())


def test_weights_start_as_published_and_have_the_published_names() -> None:
    model = net(1, width=1 / 2)
    for conv in convs(model):
        area = conv.kernel_size[0] ** 2
        bound = math.sqrt(6 / (area * (conv.in_channels // conv.groups + conv.out_channels)))
        assert 0.99 * bound < conv.weight.abs().max() <= bound and not conv.bias.any()
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert {(norm.eps, norm.momentum) for norm in norms} == {(1e-6, 0.05)} and len(norms) == 4
    norm_keys = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    names = [f"{tap}.0.{key}" for tap in TAPS for key in ("weight", "bias")]
    names += [f"{tap}.1.{key}" for tap in TAPS[:4] for key in norm_keys]
    assert sorted(model.state_dict()) == sorted(names)
