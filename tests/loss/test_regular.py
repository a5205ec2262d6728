"""The regular action: the loss on members one by one, against loops, and on nets whose weights are tied."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

import ien
from ien.groups.members import member_table
from ien.groups.similarity import Similarity
from tests.helpers.losses import CASES, D4, R4, R8, images, net
from tests.helpers.tied import channels_moved, moved

pytestmark = pytest.mark.usefixtures("one_thread")


def loop_loss(h, h_g, g, group, mix):
    """The mean over images of the mean over members, feature groups and valid pixels."""
    errors = []
    for i in range(len(h)):
        one, first, squares = g[i : i + 1], 0, []
        valid = group.valid(h[i : i + 1], one)
        for size, number in mix:
            for _ in range(number):
                for m in range(size):
                    source = first + int(member_table(group, size)[g[i], m])
                    difference = h_g[i, first + m] - group.act(h[i : i + 1, source : source + 1], one)[0, 0]
                    squares.append((difference if valid is None else difference[valid[0, 0]]) ** 2)
                first += size
        errors.append(torch.stack(squares).mean().item())
    return float(np.mean(errors))


@pytest.mark.parametrize(("group", "spec", "mix"), CASES, ids=lambda value: str(value).replace(" ", ""))
def test_loss_equals_a_loop_over_images_and_members(group, spec, mix) -> None:
    channels = sum(size * number for size, number in mix)
    h, h_g = torch.rand(2, 6, channels, 7, 7, dtype=torch.float64)
    g = torch.arange(6) % (len(group) - 1) + 1
    for order in (torch.arange(6), torch.tensor([3, 0, 5, 1, 4, 2])):
        expected = loop_loss(h, h_g, g[order], group, mix)
        arguments = {"action": "regular", "feature_groups": spec}
        loss = ien.equivariance_loss(h, h_g, group, g[order], **arguments)
        assert abs(loss.item() - expected) < 1e-13
        relative = ien.equivariance_loss(h, h_g, group, g[order], normalize=True, **arguments)
        assert abs(relative.item() - expected / np.var(h.numpy())) < 1e-12


@pytest.mark.parametrize("group", [R4, R8], ids=str)
def test_feature_groups_of_one_member_make_both_actions_equal(group) -> None:
    model, x = net(), images()
    g = torch.tensor([1, 2, 3, 1, 2])
    pooled, regular = (
        ien.EquivarianceLoss(group, ["1", "3"], 1, action=action)(model, x, g=g).loss
        for action in ("pooled", "regular")
    )
    assert torch.equal(pooled, regular)


@pytest.mark.parametrize(("group", "spec"), [(R4, 4), (R8, 8), (R8, 2), (D4, 8)], ids=str)
@pytest.mark.parametrize("samples", [1, "all"])
def test_objective_and_function_agree(group, spec, samples) -> None:
    model, x = net(), images()
    objective = ien.EquivarianceLoss({group: 0.5}, {"3": 3.0}, spec, samples=samples, action="regular")
    out = objective(model, x)
    h, *views = model(torch.cat([x, *(group.act(x, g) for g in out.g.split(5))])).split(5)
    terms = [
        ien.equivariance_loss(h, h_g, group, g, action="regular", feature_groups=spec)
        for h_g, g in zip(views, out.g.split(5), strict=True)
    ]
    torch.testing.assert_close(out.loss, 1.5 * torch.stack(terms).mean())


def test_gradient_goes_through_either_side_alone() -> None:
    h, h_g = torch.rand(2, 3, 4, 2, 2, dtype=torch.float64)
    g = torch.tensor([1, 2, 3])

    def loss(a, b):
        return ien.equivariance_loss(a, b, R4, g, action="regular", feature_groups=4)

    assert torch.autograd.gradcheck(loss, (h.requires_grad_(), h_g.requires_grad_()))
    assert all(float(grad.abs().max()) > 0 for grad in torch.autograd.grad(loss(h, h_g), (h, h_g)))


def tied(group, spec, channels):
    """A net of two convolutions whose kernels are averaged over rotated kernels of permuted members."""
    layers = nn.Conv2d(2, channels, 3), nn.ReLU(), nn.Conv2d(channels, channels, 3), nn.ELU()
    model = nn.Sequential(*layers).double()
    with torch.no_grad():
        for conv, inputs in ((model[0], 1), (model[2], spec)):
            weight, bias = torch.zeros_like(conv.weight), torch.zeros_like(conv.bias)
            for g, label in enumerate(group.labels):
                rows = channels_moved(group, spec, channels, g)
                columns = channels_moved(group, inputs, conv.in_channels, g)
                weight += moved(conv.weight, label)[rows][:, columns]
                bias += conv.bias[rows]
            conv.weight.copy_(weight)
            conv.bias.copy_(bias)
    return model


TIED = [(R4, "4", 12), (R4, "4-2-1", 11), (D4, "8", 16), (ien.reflection(), "2", 6)]


@pytest.mark.parametrize(("group", "spec", "channels"), TIED, ids=str)
def test_tied_weights_have_no_loss_and_random_ones_do(group, spec, channels) -> None:
    model, x = tied(group, spec, channels), torch.rand(4, 2, 9, 9, dtype=torch.float64)
    objective = ien.EquivarianceLoss(group, ["1", "3"], spec, samples="all", action="regular")
    assert objective(model, x).loss.item() < 1e-24
    report = ien.measure(model, x, group, ["1", "3"], spec, action="regular")
    assert all(layer.relative < 1e-20 for layer in report.layers.values())
    assert report.title == f"equivariance to {group} (regular action) over 4 images"
    assert report.to_dict()["action"] == "regular"
    assert ien.measure(model, x, group, ["1"], spec).to_dict()["action"] == "pooled"
    for conv in (model[0], model[2]):
        conv.reset_parameters()
    assert all(term.item() > 1e-4 for term in objective(model, x).terms.values())


@pytest.mark.parametrize(("group", "spec", "channels"), TIED[:3], ids=str)
def test_exchanged_members_are_seen_by_the_regular_action_alone(group, spec, channels) -> None:
    model, x = tied(group, spec, channels), torch.rand(4, 2, 9, 9, dtype=torch.float64)
    with torch.no_grad():
        for value in (model[2].weight, model[2].bias):
            value[[0, 1]] = value[[1, 0]]
    regular, pooled = (
        ien.EquivarianceLoss(group, ["1", "3"], spec, samples="all", normalize=True, action=action)(model, x)
        for action in ("regular", "pooled")
    )
    assert regular.terms[str(group), "1"].item() < 1e-24 and regular.terms[str(group), "3"].item() > 1e-2
    assert pooled.loss.item() < 1e-24


@pytest.mark.parametrize(("group", "size"), [(R8, 8), (R8, 4), (R4, 2), (D4, 8)], ids=str)
def test_measure_equals_a_loop_and_its_floor_is_that_of_geometry_alone(group, size) -> None:
    model, x = net(), images(3)
    layer = ien.measure(model, x, group, ["3"], size, batch_size=2, action="regular").layers["3"]
    errors, h = [], model(x).detach()
    for element in range(1, len(group)):
        g = torch.full((3,), element)
        h_g = model(group.act(x, g)).detach()
        errors.append(loop_loss(h, h_g, g, group, [(size, 8 // size)]))
    assert layer.raw == pytest.approx(np.mean(errors), rel=1e-12)
    assert layer.relative == pytest.approx(np.mean(errors) / np.var(h.numpy()), rel=1e-10)
    assert layer.variance == pytest.approx(np.var(h.numpy()), rel=1e-10)
    exact = [element.floor for element in layer.elements.values() if element.exact]
    assert exact and max(exact) < 1e-20 < layer.relative
    assert all(element.floor > 1e-6 for element in layer.elements.values() if not element.exact)


BLACK_BOX, SCALE = ien.custom("negative", {"invert": torch.neg}, "same"), ien.scale([0.8])
QUARTER = ien.Group("quarter", ((), (Similarity(turn=Fraction(1, 4)),)))


@pytest.mark.parametrize(
    ("group", "match"),
    [
        (SCALE, r"scale0\.8 has '×0\.8': use action=\"pooled\""),
        (R4 * SCALE, "rot4xscale0.8 has '×0.8'"),
        (BLACK_BOX, "negative has 'invert': use action=\"pooled\""),
        (R4 * BLACK_BOX, "rot4xnegative has 'invert'"),
        (QUARTER, r"quarter \(identity, 90°\) is not closed under composition"),
    ],
)
def test_groups_that_permute_no_members_are_told_to_pool(group, match) -> None:
    with pytest.raises(ValueError, match=match):
        ien.EquivarianceLoss(group, ["1"], 4, action="regular")
    with pytest.raises(ValueError, match=match):
        ien.measure(net(), images(2), group, ["1"], 4, action="regular")
    assert ien.EquivarianceLoss(group, ["1"], 4)(net(), images()).loss.item() > 0


@pytest.mark.parametrize("other", [SCALE, BLACK_BOX, R4 * BLACK_BOX], ids=str)
def test_beside_rotations_groups_that_permute_no_members_are_compared_pooled(other) -> None:
    model, x = net(), images()
    objective = ien.EquivarianceLoss({R4: 0.5, other: 2.0}, ["1", "3"], 4, action="regular")
    out = objective(model, x)
    rotations, others = out.g.split(5)
    regular = ien.EquivarianceLoss(R4, ["1", "3"], 4, action="regular")(model, x, g=rotations)
    pooled = ien.EquivarianceLoss(other, ["1", "3"], 4)(model, x, g=others)
    torch.testing.assert_close(out.terms, regular.terms | pooled.terms, rtol=0, atol=0)
    losses = out.loss, 0.5 * regular.loss + 2 * pooled.loss
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*(torch.autograd.grad(loss, list(model.parameters())) for loss in losses))
    assert repr(objective).endswith(f"action='regular', {other}: pooled)")


@pytest.mark.parametrize(
    ("groups", "layers", "sizes", "match"),
    [
        ([R4, QUARTER], ["1"], 4, r"quarter .* is not closed under composition"),
        ([SCALE, R4], ["1"], 8, r"layer '1': rot4 cannot permute .* size 8"),
        ({R4: 0, SCALE: 1}, ["1"], 4, r"only rotations and flips permute .* scale0\.8 has"),
        (R4, ["1", "3"], {"1": 4, "3": 8}, r"layer '3': rot4 cannot permute .* size 8; use 4, 2 or 1"),
        (R4, ["1"], "4-2-1", "layer '1': 8 channels cannot be split into feature groups 4-2-1"),
    ],
)
def test_errors_name_the_layer_and_what_works(groups, layers, sizes, match) -> None:
    with pytest.raises(ValueError, match=match):
        ien.EquivarianceLoss(groups, layers, sizes, action="regular")(net(), images())
    if groups is R4:
        with pytest.raises(ValueError, match=match):
            ien.measure(net(), images(2), R4, layers, sizes, action="regular")


def test_unknown_actions_and_feature_groups_out_of_place_are_errors() -> None:
    h, g = torch.rand(2, 4, 5, 5), torch.tensor([1, 2])
    with pytest.raises(ValueError, match=r'action is "pooled" .* or "regular"; got \'regluar\''):
        ien.EquivarianceLoss(R4, ["1"], 4, action="regluar")
    with pytest.raises(ValueError, match="got 'max'"):
        ien.measure(net(), images(2), R4, ["1"], 4, action="max")
    with pytest.raises(ValueError, match="got 'mean'"):
        ien.equivariance_loss(h, h, R4, g, action="mean")
    for wrong in ({"action": "regular"}, {"feature_groups": 4}):
        with pytest.raises(ValueError, match='feature_groups belong to action="regular"'):
            ien.equivariance_loss(h, h, R4, g, **wrong)


def test_what_has_no_weight_need_not_be_permuted() -> None:
    objective = ien.EquivarianceLoss({R4: 1, SCALE: 0}, {"1": 1, "3": 0}, {"1": 4, "3": 8}, action="regular")
    assert repr(objective).endswith("views=3, action='regular')")
    out = objective(net(), images())
    assert out.views == 3 and list(out.terms) == [("rot4", "1")]
    assert ien.EquivarianceLoss(SCALE, {"1": 0.0}, 4, action="regular")(net(), images()).loss.item() == 0
