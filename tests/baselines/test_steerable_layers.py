"""Steerable layers: equal to those of e2cnn, and what has no steerable form."""

import pytest
import torch
from torch import nn

import ien
from ien import baselines
from ien.baselines.steerable_basis import E2CNN_DEFAULT, E2CNN_WIDE
from ien.baselines.steerable_layers import FieldNorm, SteerableConv2d, Symmetry, steer
from tests.helpers.e2cnn import library, members, space

GROUPS = {"rot4": (4, False), "rot8": (8, False), "rot4xflip": (4, True)}
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def double():
    """Bases are sampled in float64, here and in the library."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def types(group, *fields, from_image=False) -> list:
    """The library's types for layers with this many fields, the first of which may be an image's channels."""
    of = space(*GROUPS[group])
    kinds = [of.trivial_repr if from_image else of.regular_repr, *[of.regular_repr] * len(fields)]
    with library() as (_, e2nn):
        return [e2nn.FieldType(of, [kind] * n) for kind, n in zip(kinds, fields, strict=False)]


def ordered(h, group):
    """Maps of the library's regular fields with their members in the order of our elements."""
    ours = members(*GROUPS[group])
    return h.unflatten(1, (-1, len(ours)))[:, :, ours].flatten(1, 2)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.usefixtures("double")
def test_blocks_equal_those_of_the_library_in_both_modes(group) -> None:
    model = baselines.create("e2cnn-cnn6", group=group, width=1 / 8).double()
    h = x = torch.rand(3, 1, 28, 28, dtype=torch.float64)
    before, *others = types(group, 1, 4, 6, 8, from_image=True)
    blocks = (model.conv1, model.conv2, model.conv3)
    for ours, after, kernel, padding in zip(blocks, others, (7, 5, 5), (1, 2, 2), strict=True):
        with library() as (_, e2nn):
            conv = e2nn.R2Conv(before, after, kernel, padding, bias=False, recompute=True, initialize=False)
            theirs = e2nn.SequentialModule(conv, e2nn.InnerBatchNorm(after), e2nn.ELU(after)).double()
        conv.weights.data = ours[0].weight.detach().flatten().clone()
        for mode in (True, False):
            with library() as (_, e2nn):
                expected = theirs.train(mode)(e2nn.GeometricTensor(h, before)).tensor.detach()
            assert (ours.train(mode)(x) - ordered(expected, group)).abs().max() < 1e-12
        h, x, before = expected, ordered(expected, group), after


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(
    ("kernel", "stride", "from_image", "functions"),
    [
        (3, 1, True, E2CNN_WIDE),
        (3, 2, False, E2CNN_WIDE),
        (1, 2, False, E2CNN_WIDE),
        (3, 1, False, E2CNN_DEFAULT),
    ],
)
@pytest.mark.usefixtures("double")
def test_a_layer_with_a_bias_equals_that_of_the_library(group, kernel, stride, from_image, functions) -> None:
    before, after = types(group, 3, 2, from_image=from_image)
    options = {"frequencies_cutoff": functions.cutoff, "sigma": functions.sigma}
    with library() as (_, e2nn):
        theirs = e2nn.R2Conv(
            before, after, kernel, kernel // 2, stride, recompute=True, initialize=False, **options
        )
    shape = {"from_image": from_image, "stride": stride, "padding": kernel // 2, "functions": functions}
    ours = SteerableConv2d(3, 2, kernel, group, bias=True, **shape)
    nn.init.normal_(ours.bias)
    theirs.weights.data, theirs.bias.data = ours.weight.detach().flatten().clone(), ours.bias.detach().clone()
    x = torch.rand(2, before.size, 9, 9)
    expected = ordered(theirs(e2nn.GeometricTensor(x, before)).tensor, group)
    found = ours(x if from_image else ordered(x, group))
    assert expected.std() > 0.1 and (found - expected).abs().max() < 1e-12


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(("functions", "count"), [(E2CNN_DEFAULT, 6), (E2CNN_WIDE, 8)])
def test_a_3x3_filter_has_6_functions_or_8(group, functions, count) -> None:
    members = Symmetry.of(group).members
    assert SteerableConv2d(2, 3, 3, group, functions=functions).weight.shape == (3, 2, members * count)
    assert SteerableConv2d(2, 3, 3, group, from_image=True, functions=functions).weight.shape == (3, 2, count)


@pytest.mark.parametrize("group", GROUPS)
def test_weights_start_with_the_generalised_he_scale_of_the_library(group) -> None:
    with library() as (_, e2nn):
        conv = e2nn.R2Conv(*types(group, 3, 2), 5, bias=False, initialize=False)
    torch.manual_seed(5)
    e2nn.init.generalized_he_init(conv.weights.data, conv.basisexpansion)
    torch.manual_seed(5)
    ours = SteerableConv2d(3, 2, 5, group, padding=2)
    torch.testing.assert_close(ours.weight.detach().flatten(), conv.weights.detach())


def test_the_norm_of_fields_can_become_a_sync_batch_norm() -> None:
    norm = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(FieldNorm(3, 4))).eval()
    x = torch.rand(2, 12, 5, 5)
    assert isinstance(norm[0][1], nn.SyncBatchNorm) and norm[0][1].num_features == 3
    assert (norm(x) - x).abs().max() < 1e-4


@pytest.mark.parametrize(
    "options", [{"groups": 4}, {"dilation": 2}, {"padding_mode": "circular"}, {"stride": (1, 2)}], ids=str
)
def test_convolutions_without_a_steerable_form_are_refused(options) -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, **options))
    with pytest.raises(
        ValueError, match="square, without dilation and groups, padded with zeros; got Conv2d"
    ):
        steer(net, Symmetry(4, False))


def test_channels_that_are_no_fields_are_refused() -> None:
    with pytest.raises(ValueError, match=r"10 channels cannot be split into feature groups 4: .*8 or 12"):
        steer(nn.Sequential(nn.Conv2d(3, 10, 3)), Symmetry(4, False))


def test_a_group_is_read_from_its_name_or_its_elements() -> None:
    assert Symmetry.of("r4r") == Symmetry.of(ien.rotation(4) * ien.reflection("vertical")) == (4, True)
    assert Symmetry.of("rot6") == (6, False) and Symmetry.of("rot2xflip").members == 4
    assert baselines.steerable_cnn6("rot6", 1 / 8).feature_groups.sizes == (6,)


ROTATIONS = r"rotations \(rot4, rot8\), also with flips \(rot4xflip\); got "
MIX = "takes a group, such as rot4, and its feature groups have one size"


@pytest.mark.parametrize(
    ("group", "match"),
    [
        *((group, ROTATIONS) for group in ("rot1", "flip", "scale0.7", "rot4xscale0.7", "rot3xrot2xscale2")),
        *((mix, MIX) for mix in ("4-2-1", "4", 4, {4: 0.5, 2: 0.5}, ien.FeatureGroups.of("8-4-2"))),
        ("turn", "cannot read group 'turn'.*rot4xflip"),
        (None, r"text such as rot4, or a Group such as ien\.rotation\(4\); got None"),
    ],
    ids=str,
)
def test_other_groups_are_refused_with_those_that_work(group, match) -> None:
    with pytest.raises((ValueError, TypeError), match=match):
        baselines.steerable_cnn6(group)
