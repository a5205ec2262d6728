"""Steerable layers and the twin of cnn6: exact, equal to the library's own, a plain net once exported."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ien
from ien import baselines, models
from ien.baselines.steerable_layers import (
    E2CNN_DEFAULT,
    E2CNN_WIDE,
    FieldNorm,
    SteerableConv2d,
    Symmetry,
    library,
    steer,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("e2cnn")
    from e2cnn import gspaces
    from e2cnn import nn as e2nn

SPACES = {
    "rot4": (gspaces.Rot2dOnR2, 4),
    "rot8": (gspaces.Rot2dOnR2, 8),
    "rot4xflip": (gspaces.FlipRot2dOnR2, 4),
}
pytestmark = pytest.mark.usefixtures("one_thread")

TAPS = ("conv1", "conv2", "conv3", "conv4", "conv5", "conv6")


def images(count: int = 6, channels: int = 1) -> Tensor:
    return torch.rand(count, channels, 28, 28, dtype=torch.float64)


def net(**options: object) -> baselines.SteerableCNN6:
    return baselines.create("e2cnn-cnn6", **({"width": 1 / 8} | options)).double()


def trained(steps: int = 4) -> baselines.SteerableCNN6:
    """After a few steps of Adam, with statistics and affine parameters far from where they start."""
    model, x, y = net(), images(12), torch.arange(12) % 10
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm3d):
            for values in (layer.running_mean, layer.running_var, layer.weight.data, layer.bias.data):
                values.uniform_(0.5, 1.5)
    return model


def maps(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    model.eval()
    with torch.no_grad(), ien.capture(model, TAPS) as features:
        output = model(x)
    return {**features, "output": output}


@pytest.mark.parametrize("build", [net, trained], ids=["new", "trained"])
def test_every_tap_commutes_with_quarter_turns_and_the_output_ignores_them(build) -> None:
    model, x = build(), images()
    report = ien.measure(model, x, "rot4", model.taps, model.feature_groups)
    assert model.taps == TAPS and tuple(report.layers) == TAPS
    assert all(abs(layer.relative) < 1e-24 for layer in report.layers.values())
    outputs = [maps(model, torch.rot90(x, k, (2, 3)))["output"] for k in range(4)]
    assert all((turned - outputs[0]).abs().max() < 1e-12 for turned in outputs)
    assert outputs[0].std(0).min() > 0  # it does not ignore the images


def test_a_quarter_turn_shifts_the_members_of_each_field() -> None:
    model, x = trained(), images(2)
    h, turned = maps(model, x)["conv6"], maps(model, torch.rot90(x, 1, (2, 3)))["conv6"]
    expected = torch.rot90(h, 1, (2, 3)).unflatten(1, (-1, 4)).roll(1, dims=2).flatten(1, 2)
    assert (turned - expected).abs().max() < 1e-12 * h.abs().max()


def test_the_ruler_finds_a_plain_net_and_a_turn_between_the_pixels_far_from_exact() -> None:
    plain = ien.measure(models.cnn6(4, 1 / 8).double(), images(), "rot4", TAPS, 4)
    assert all(layer.relative > 0.01 for layer in plain.layers.values())
    eighth = ien.measure(net(), images(), "rot8", TAPS[:5], 4)  # 2×2 maps have no pixel that 45° leaves valid
    assert all(layer.per_element["45°"] > 0.01 for layer in eighth.layers.values())
    assert all(layer.per_element["90°"] < 1e-24 for layer in eighth.layers.values())


@pytest.fixture
def double() -> Iterator[None]:
    """Bases are sampled in float64, here and in the library."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def types(group: str, *fields: int, from_image: bool = False) -> list[e2nn.FieldType]:
    """The library's types for layers with this many fields, the first of which may be an image's channels."""
    make, rotations = SPACES[group]
    space = make(rotations)
    kinds = [space.trivial_repr if from_image else space.regular_repr, *[space.regular_repr] * len(fields)]
    return [e2nn.FieldType(space, [kind] * n) for kind, n in zip(kinds, fields, strict=False)]


def ordered(h: Tensor, group: str) -> Tensor:
    """Maps of the library's regular fields with their members in the order of our elements, turn by turn."""
    make, rotations = SPACES[group]
    elements = [e if isinstance(e, tuple) else (0, e) for e in make(rotations).fibergroup.elements]
    ours = sorted(range(len(elements)), key=lambda i: elements[i][::-1])  # theirs are (flip, turn)
    return h.unflatten(1, (-1, len(ours)))[:, :, ours].flatten(1, 2)


@pytest.mark.parametrize("group", SPACES)
def test_blocks_equal_those_of_the_library_in_both_modes(group) -> None:
    model, h = net(group=group), images(3)
    x = h
    before, *others = types(group, 1, 4, 6, 8, from_image=True)
    for tap, after, kernel, padding in zip(TAPS[:3], others, (7, 5, 5), (1, 2, 2), strict=True):
        ours = model.get_submodule(tap)
        with library():
            conv = e2nn.R2Conv(before, after, kernel, padding, bias=False, recompute=True, initialize=False)
            theirs = e2nn.SequentialModule(conv, e2nn.InnerBatchNorm(after), e2nn.ELU(after)).double()
        conv.weights.data = ours[0].weight.detach().flatten().clone()
        for mode in (True, False):
            with library():
                expected = theirs.train(mode)(e2nn.GeometricTensor(h, before)).tensor.detach()
            assert (ours.train(mode)(x) - ordered(expected, group)).abs().max() < 1e-12
        h, x, before = expected, ordered(expected, group), after


@pytest.mark.parametrize("group", SPACES)
@pytest.mark.parametrize(
    ("kernel", "stride", "from_image", "functions"),
    [
        (3, 1, True, E2CNN_WIDE),
        (3, 2, False, E2CNN_WIDE),
        (1, 2, False, E2CNN_WIDE),
        (3, 1, False, E2CNN_DEFAULT),
    ],
)
def test_a_layer_with_a_bias_equals_that_of_the_library(
    group, kernel, stride, from_image, functions, double
) -> None:
    before, after = types(group, 3, 2, from_image=from_image)
    options = {"frequencies_cutoff": functions.cutoff, "sigma": functions.sigma}
    with library():
        theirs = e2nn.R2Conv(
            before, after, kernel, kernel // 2, stride, recompute=True, initialize=False, **options
        )
    shape = {"from_image": from_image, "stride": stride, "padding": kernel // 2, "functions": functions}
    ours = SteerableConv2d(3, 2, kernel, group, bias=True, **shape)
    torch.nn.init.normal_(ours.bias)
    theirs.weights.data, theirs.bias.data = ours.weight.detach().flatten().clone(), ours.bias.detach().clone()
    x = torch.rand(2, before.size, 9, 9)
    expected = ordered(theirs(e2nn.GeometricTensor(x, before)).tensor, group)
    found = ours(x if from_image else ordered(x, group))
    assert expected.std() > 0.1 and (found - expected).abs().max() < 1e-12


@pytest.mark.parametrize("group", SPACES)
@pytest.mark.parametrize(("functions", "count"), [(E2CNN_DEFAULT, 6), (E2CNN_WIDE, 8)])
def test_a_3x3_filter_has_6_functions_or_8(group, functions, count) -> None:
    members = Symmetry.of(group).members
    assert SteerableConv2d(2, 3, 3, group, functions=functions).weight.shape == (3, 2, members * count)
    assert SteerableConv2d(2, 3, 3, group, from_image=True, functions=functions).weight.shape == (3, 2, count)


@pytest.mark.parametrize("group", SPACES)
def test_weights_start_with_the_generalised_he_scale_of_the_library(group) -> None:
    with library():
        conv = e2nn.R2Conv(*types(group, 3, 2), 5, bias=False, initialize=False)
    torch.manual_seed(5)
    e2nn.init.generalized_he_init(conv.weights.data, conv.basisexpansion)
    torch.manual_seed(5)
    ours = SteerableConv2d(3, 2, 5, group, padding=2)
    torch.testing.assert_close(ours.weight.detach().flatten(), conv.weights.detach())


def test_the_norm_of_fields_survives_the_exchange_for_one_that_averages_over_processes() -> None:
    norm = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(FieldNorm(3, 4))).eval()
    x = torch.rand(2, 12, 5, 5)
    assert isinstance(norm[0][1], nn.SyncBatchNorm) and norm[0][1].num_features == 3
    assert (norm(x) - x).abs().max() < 1e-4


@pytest.mark.parametrize("options", [{}, {"group": "rot4xflip", "num_classes": 3, "in_channels": 2}])
def test_the_exported_net_is_a_plain_cnn6_with_equal_maps_and_outputs(options) -> None:
    model = net(**options)
    channels = options.get("in_channels", 1)
    for _ in range(3):  # running statistics of its own
        model(images(8, channels))
    rng = torch.get_rng_state()
    plain = model.export()
    assert torch.equal(torch.get_rng_state(), rng) and model.training and not plain.training
    assert type(plain) is models.CNN6 and plain.taps == model.taps
    like = models.cnn6(model.feature_groups, 1 / 8, options.get("num_classes", 10), channels)
    assert [(k, v.shape) for k, v in plain.state_dict().items()] == [
        (k, v.shape) for k, v in like.state_dict().items()
    ]
    x = images(5, channels)
    theirs, ours = maps(plain, x), maps(model, x)
    assert all((theirs[name] - ours[name]).abs().max() < 1e-12 for name in (*TAPS, "output"))


def test_the_exported_net_has_weights_of_its_own() -> None:
    model, x = trained(), images(2)
    expected, plain = maps(model, x)["output"], model.export()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.zero_()
    assert torch.equal(maps(model, x)["output"], expected)
    plain.train()(x).sum().backward()
    assert all(parameter.grad is not None for parameter in plain.parameters())


@pytest.mark.parametrize(("width", "fields"), [(1, (32, 48, 64, 64, 96, 128)), (1 / 8, (4, 6, 8, 8, 12, 16))])
def test_parameters_follow_from_the_functions_of_each_basis(width, fields) -> None:
    model = baselines.steerable_cnn6(width=width)
    count = fields[0] * 18  # 7×7: 18 functions from one channel to one field
    count += sum(a * b * 4 * 11 for a, b in pairwise(fields))  # 5×5: 11 for each member
    count += 2 * sum(fields)
    count += fields[-1] ** 2 + 3 * fields[-1] + 10 * fields[-1] + 10
    assert sum(p.numel() for p in model.parameters()) == count
    assert width != 1 or round(count / 1e6, 2) == 1.21


def test_training_lowers_the_loss_and_gives_every_parameter_a_gradient() -> None:
    model, x, y = net(), images(12), torch.arange(12) % 10
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    for name, parameter in model.named_parameters():
        assert name == "classifier.0.bias" or parameter.grad.abs().max() > 0


@pytest.mark.parametrize("saved_in_training", [True, False])
@pytest.mark.parametrize("loaded_in_training", [True, False])
def test_state_does_not_depend_on_the_mode(saved_in_training, loaded_in_training) -> None:
    model, x = trained(), images(3)
    state = model.train(saved_in_training).state_dict()
    other = net().train(loaded_in_training)
    other.load_state_dict(state)
    assert set(state) == set(net().state_dict()) and not any("basis" in name for name in state)
    assert torch.equal(maps(other, x)["output"], maps(model, x)["output"])


def test_a_double_copy_leaves_the_nets_built_before_and_after_single() -> None:
    single = baselines.steerable_cnn6(width=1 / 8).eval()
    double = copy.deepcopy(single).double()
    x = images(3)
    assert (single(x.float()) - double(x)).abs().max() < 1e-4
    assert baselines.steerable_cnn6(width=1 / 8)(x.float()).dtype == torch.float32


def test_channels_last_images_give_the_same() -> None:
    model, x = net().eval(), images(3)
    there = model.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
    assert (there - model(x)).abs().max() < 1e-12


def test_the_same_seed_gives_the_same_weights() -> None:
    states = []
    for _ in range(2):
        torch.manual_seed(7)
        states.append(baselines.steerable_cnn6(width=1 / 8).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_building_and_running_says_nothing() -> None:
    code = (
        "import torch; from ien.baselines import create; net = create('e2cnn-cnn6', width=1 / 8); "
        "net(torch.rand(2, 1, 28, 28)).sum().backward(); net.export()"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_library_has_its_own_numpy_back_afterwards() -> None:
    from e2cnn.kernels import utils

    before = utils.np
    with pytest.raises(KeyError), library():
        assert utils.np is not before and utils.np.array(3, copy=False) == 3
        raise KeyError
    assert utils.np is before


@pytest.mark.parametrize(
    "options", [{"groups": 4}, {"dilation": 2}, {"padding_mode": "circular"}, {"stride": (1, 2)}], ids=str
)
def test_convolutions_without_a_steerable_form_are_refused(options) -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, **options))
    with pytest.raises(
        ValueError, match="square, without dilation and groups, padded with zeros; got Conv2d"
    ):
        steer(net, Symmetry(4, False))
    with pytest.raises(ValueError, match=r"10 channels cannot be split into feature groups 4: .*8 or 12"):
        steer(nn.Sequential(nn.Conv2d(3, 10, 3)), Symmetry(4, False))


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    baselines.steerable_cnn6(width=1 / 8)  # also when all bases are known
    monkeypatch.setitem(sys.modules, "e2cnn.gspaces", None)
    with pytest.raises(ModuleNotFoundError, match=r'need e2cnn: pip install "ien\[steerable\]"'):
        baselines.steerable_cnn6(width=1 / 8)


def test_a_group_is_read_from_its_name_or_its_elements() -> None:
    assert Symmetry.of("r4r") == Symmetry.of(ien.rotation(4) * ien.reflection("vertical")) == (4, True)
    assert Symmetry.of("rot6") == (6, False) and Symmetry.of("rot2xflip").members == 4
    assert baselines.steerable_cnn6("rot6", 1 / 8).feature_groups.sizes == (6,)


@pytest.mark.parametrize("group", ["rot1", "flip", "scale0.7", "rot4xscale0.7", "rot3xrot2xscale2"])
def test_other_groups_are_refused_with_those_that_work(group) -> None:
    with pytest.raises(ValueError, match=r"rotations \(rot4, rot8\), also with flips \(rot4xflip\); got "):
        baselines.steerable_cnn6(group)


@pytest.mark.parametrize("mix", ["4-2-1", "4", 4, {4: 0.5, 2: 0.5}, ien.FeatureGroups.of("8-4-2")], ids=str)
def test_feature_groups_in_place_of_a_group_are_refused(mix) -> None:
    with pytest.raises(ValueError, match="takes a group, such as rot4, and its feature groups have one size"):
        baselines.steerable_cnn6(mix)


@pytest.mark.parametrize(("group", "error"), [("turn", ValueError), (None, TypeError)])
def test_what_is_no_group_is_refused(group, error) -> None:
    with pytest.raises(error, match="rot4xflip"):
        baselines.steerable_cnn6(group)


def test_an_unknown_name_or_width_says_what_works() -> None:
    with pytest.raises(ValueError, match=r"'cnn6'; did you mean ss-cnn, e2cnn-cnn6, e2cnn-vgg\?$"):
        baselines.create("cnn6")
    with pytest.raises(ValueError, match="width must be a positive factor"):
        baselines.create("e2cnn-cnn6", width=-1)
