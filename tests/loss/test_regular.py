"""The regular action: the loss on members one by one, against loops, and on nets whose weights are tied."""

from __future__ import annotations

import copy
from fractions import Fraction
from functools import reduce
from operator import mul

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ien
from ien.groups.members import member_table
from ien.groups.similarity import Similarity
from tests.helpers.losses import CASES, D4, R4, R8, images, loop_permute, net, with_weight

pytestmark = pytest.mark.usefixtures("one_thread")


def loop_loss(h: Tensor, h_g: Tensor, g: Tensor, group: ien.Group, mix: list[tuple[int, int]]) -> float:
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


@pytest.mark.parametrize("group", [R4, R8], ids=str)
@pytest.mark.parametrize("normalize", [False, True])
def test_gradient_equals_that_of_a_loop(group, normalize) -> None:
    model, x, g = net(), images(), torch.tensor([1, 2, 3, 1, 2])
    out = ien.EquivarianceLoss(group, ["3"], 4, normalize=normalize, action="regular")(model, x, g=g)
    (actual,) = torch.autograd.grad(out.loss, model[2].weight)
    h, h_g = model(torch.cat([x, group.act(x, g)])).chunk(2)
    scale = h.var(unbiased=False) if normalize else 1
    shifted = loop_permute(h, g, group, [(4, 2)])
    moved, valid = group.act(shifted, g), group.valid(h, g)
    errors = [
        (a - b)[:, ... if valid is None else valid[i, 0]].square().mean()
        for i, (a, b) in enumerate(zip(h_g, moved, strict=True))
    ]
    (expected,) = torch.autograd.grad(torch.stack(errors).mean() / scale, model[2].weight)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-14)


def test_gradient_goes_through_either_side_alone() -> None:
    h, h_g = torch.rand(2, 3, 4, 5, 5, dtype=torch.float64)
    g = torch.tensor([1, 2, 3])

    def loss(a: Tensor, b: Tensor) -> Tensor:
        return ien.equivariance_loss(a, b, R4, g, action="regular", feature_groups=4)

    assert torch.autograd.gradcheck(loss, (h.requires_grad_(), h_g.requires_grad_()))
    assert all(float(grad.abs().max()) > 0 for grad in torch.autograd.grad(loss(h, h_g), (h, h_g)))


def test_transforms_layouts_half_precision_and_default_devices_agree() -> None:
    model, x, g = net(4), images(3), torch.tensor([1, 2, 3])
    objective = ien.EquivarianceLoss(R4, ["1", "3"], 2, action="regular")
    out = objective(model, x, g=g)
    (expected,) = torch.autograd.grad(out.loss, model[2].weight)
    weight = model[2].weight.detach()
    transformed = torch.func.grad(lambda w: with_weight(model, w, objective, x, g))(weight)
    torch.testing.assert_close(transformed, expected)
    last = copy.deepcopy(model).to(memory_format=torch.channels_last)
    rearranged = objective(last, x.to(memory_format=torch.channels_last), g=g)
    torch.testing.assert_close(torch.autograd.grad(rearranged.loss, last[2].weight)[0], expected)
    with torch.device("meta"):
        assert torch.equal(objective(model, x, g=g).loss, out.loss)
    h, h_g = torch.rand(2, 3, 4, 6, 6).to(torch.bfloat16)
    arguments = {"action": "regular", "feature_groups": 4}
    half = ien.equivariance_loss(h, h_g, R8, g, **arguments)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, ien.equivariance_loss(h.float(), h_g.float(), R8, g, **arguments))


def turned(kernel: Tensor, element: tuple[int, int]) -> Tensor:
    """Mirrored left-right if the second number says so, then turned counter-clockwise by quarters."""
    quarters, flipped = element
    return torch.rot90(kernel.flip(-1) if flipped else kernel, quarters, (-2, -1))


def undo(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    """Which element ``a⁻¹ b`` is: looked up among those that do the same to a kernel without symmetry."""
    kernel = torch.arange(9.0).view(3, 3)
    target = turned(kernel, b)
    found = [
        (q, f) for q in range(4) for f in range(2) if torch.equal(turned(turned(kernel, (q, f)), a), target)
    ]
    assert len(found) == 1
    return found[0]


def tied_by_elements(elements: list[tuple[int, int]], fan_in: int, fan_out: int) -> nn.Sequential:
    """A lifting and a group convolution, loop by loop: feature groups with a member for each element."""
    n = len(elements)
    model = nn.Sequential(
        nn.Conv2d(fan_in, fan_out * n, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(fan_out * n, fan_out * n, 3, padding=1),
        nn.ELU(),
    ).double()
    with torch.no_grad():
        for o in range(fan_out):
            first_bias, second_bias = torch.rand(2).tolist()
            lifting = torch.randn(fan_in, 3, 3, dtype=torch.float64)
            for m, element in enumerate(elements):
                model[0].bias[o * n + m], model[2].bias[o * n + m] = first_bias, second_bias
                model[0].weight[o * n + m] = turned(lifting, element)
            for i in range(fan_out):
                base = torch.randn(n, 3, 3, dtype=torch.float64)
                for m, element in enumerate(elements):
                    for k, other in enumerate(elements):
                        relative = elements.index(undo(element, other))
                        model[2].weight[o * n + m, i * n + k] = turned(base[relative], element)
    return model


def tied_by_turns(sizes_in: list[int], sizes_out: list[int], conv: nn.Conv2d) -> None:
    """Tie ``conv`` for quarter turns: member m of a feature group of k is the turn by m, m + k, …"""
    with torch.no_grad():
        row = 0
        for k in sizes_out:
            bias, column = float(torch.rand(())), 0
            conv.bias[row : row + k] = bias
            for j in sizes_in:
                base = torch.randn(j, 3, 3, dtype=torch.float64)
                symmetric = torch.zeros(j, 3, 3, dtype=torch.float64)
                for s in range(0, 4, k):  # the turns that leave member 0 in its place
                    for member in range(j):
                        symmetric[member] += torch.rot90(base[(member - s) % j], s, (-2, -1))
                for m in range(k):
                    for member in range(j):
                        kernel = torch.rot90(symmetric[(member - m) % j], m, (-2, -1))
                        conv.weight[row + m, column + member] = kernel
                column += j
            row += k


def tied(name: str) -> tuple[ien.Group, str, nn.Sequential]:
    match name:
        case "rot4":
            return R4, "4", tied_by_elements([(q, 0) for q in range(4)], 2, 3)
        case "rot4xflip":
            return D4, "8", tied_by_elements([(q, f) for q in range(4) for f in range(2)], 2, 2)
        case "flip":
            return ien.reflection(), "2", tied_by_elements([(0, 0), (0, 1)], 2, 3)
    mix = [4, 4, 2, 1]
    model = nn.Sequential(nn.Conv2d(2, 11, 3), nn.ReLU(), nn.Conv2d(11, 11, 3), nn.ELU()).double()
    tied_by_turns([1, 1], mix, model[0])
    tied_by_turns(mix, mix, model[2])
    return R4, "4-2-1", model


TIED = ["rot4", "rot4xflip", "flip", "4-2-1"]


@pytest.mark.parametrize("name", TIED)
def test_tied_weights_have_no_loss_and_random_ones_do(name) -> None:
    group, spec, model = tied(name)
    x = torch.rand(4, 2, 9, 9, dtype=torch.float64)
    objective = ien.EquivarianceLoss(group, ["1", "3"], spec, samples="all", action="regular")
    assert objective(model, x).loss.item() < 1e-24
    loose = copy.deepcopy(model)
    for module in loose:
        if isinstance(module, nn.Conv2d):
            module.reset_parameters()
    assert all(term.item() > 1e-4 for term in objective(loose, x).terms.values())


@pytest.mark.parametrize("name", ["rot4", "rot4xflip", "4-2-1"])
def test_exchanged_members_are_seen_by_the_regular_action_alone(name) -> None:
    group, spec, model = tied(name)
    x = torch.rand(4, 2, 9, 9, dtype=torch.float64)
    with torch.no_grad():
        for value in (model[2].weight, model[2].bias):
            value[[0, 1]] = value[[1, 0]]
    regular, pooled = (
        ien.EquivarianceLoss(group, ["1", "3"], spec, samples="all", normalize=True, action=action)(model, x)
        for action in ("regular", "pooled")
    )
    assert regular.terms[str(group), "1"].item() < 1e-24 and regular.terms[str(group), "3"].item() > 1e-2
    assert pooled.loss.item() < 1e-24


@pytest.mark.parametrize("name", TIED)
def test_measure_tells_the_regular_error(name) -> None:
    group, spec, model = tied(name)
    x = torch.rand(4, 2, 9, 9, dtype=torch.float64)
    report = ien.measure(model, x, group, ["1", "3"], spec, action="regular")
    assert all(layer.relative < 1e-20 for layer in report.layers.values())
    assert report.title == f"equivariance to {group} (regular action) over 4 images"
    assert report.to_dict()["action"] == "regular"
    assert ien.measure(model, x, group, ["1"], spec).to_dict()["action"] == "pooled"


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


BLACK_BOX = ien.custom("negative", {"invert": torch.neg}, "same")


QUARTER = ien.Group("quarter", ((), (Similarity(turn=Fraction(1, 4)),)))


@pytest.mark.parametrize(
    ("group", "match"),
    [
        (ien.scale([0.7]), r"scale0\.7 has '×0\.7': use action=\"pooled\""),
        (reduce(mul, [R4, ien.scale([0.7])]), "rot4xscale0.7 has '×0.7'"),
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


@pytest.mark.parametrize("other", [ien.scale([0.8]), BLACK_BOX, R4 * BLACK_BOX], ids=str)
def test_beside_rotations_groups_that_permute_no_members_are_compared_pooled(other) -> None:
    model, x = net(), images()
    objective = ien.EquivarianceLoss({R4: 0.5, other: 2.0}, ["1", "3"], 4, action="regular")
    out = objective(model, x)
    turned, others = out.g.split(5)
    regular = ien.EquivarianceLoss(R4, ["1", "3"], 4, action="regular")(model, x, g=turned)
    pooled = ien.EquivarianceLoss(other, ["1", "3"], 4)(model, x, g=others)
    assert all(
        torch.equal(out.terms[key], term) for key, term in [*regular.terms.items(), *pooled.terms.items()]
    )
    expected = 0.5 * regular.loss + 2 * pooled.loss
    torch.testing.assert_close(out.loss, expected)
    for actual, wanted in zip(
        *(torch.autograd.grad(t, list(model.parameters())) for t in (out.loss, expected)), strict=True
    ):
        torch.testing.assert_close(actual, wanted)
    assert repr(objective).endswith(f"action='regular', {other}: pooled)")


def test_sizes_and_incomplete_groups_are_errors_beside_rotations_too() -> None:
    with pytest.raises(ValueError, match=r"quarter .* is not closed under composition"):
        ien.EquivarianceLoss([R4, QUARTER], ["1"], 4, action="regular")
    with pytest.raises(ValueError, match=r"layer '1': rot4 cannot permute .* size 8"):
        ien.EquivarianceLoss([ien.scale([0.8]), R4], ["1"], 8, action="regular")
    with pytest.raises(ValueError, match=r"only rotations and flips permute .* scale0\.8 has"):
        ien.EquivarianceLoss({R4: 0, ien.scale([0.8]): 1}, ["1"], 4, action="regular")


def test_errors_name_the_layer_and_what_works() -> None:
    with pytest.raises(ValueError, match=r"layer '3': rot4 cannot permute .* size 8; use 4 or 2 or 1"):
        ien.EquivarianceLoss(R4, ["1", "3"], {"1": 4, "3": 8}, action="regular")
    with pytest.raises(ValueError, match="layer '3': rot4 cannot permute"):
        ien.measure(net(), images(2), R4, ["1", "3"], {"1": 4, "3": 8}, action="regular")
    with pytest.raises(ValueError, match="layer '1': 8 channels cannot be split into feature groups 4-2-1"):
        ien.EquivarianceLoss(R4, ["1"], "4-2-1", action="regular")(net(), images())
    with pytest.raises(ValueError, match=r'action is "pooled" .* or "regular"; got \'regluar\''):
        ien.EquivarianceLoss(R4, ["1"], 4, action="regluar")
    with pytest.raises(ValueError, match="got 'max'"):
        ien.measure(net(), images(2), R4, ["1"], 4, action="max")
    h, g = torch.rand(2, 4, 5, 5), torch.tensor([1, 2])
    for wrong in ({"action": "regular"}, {"feature_groups": 4}):
        with pytest.raises(ValueError, match='feature_groups belong to action="regular"'):
            ien.equivariance_loss(h, h, R4, g, **wrong)
    with pytest.raises(ValueError, match="got 'mean'"):
        ien.equivariance_loss(h, h, R4, g, action="mean")


def test_what_has_no_weight_need_not_be_permuted() -> None:
    scale = ien.scale([0.8])
    objective = ien.EquivarianceLoss({R4: 1, scale: 0}, {"1": 1, "3": 0}, {"1": 4, "3": 8}, action="regular")
    out = objective(net(), images())
    assert out.views == 3 and list(out.terms) == [("rot4", "1")]
    assert ien.EquivarianceLoss(scale, {"1": 0.0}, 4, action="regular")(net(), images()).loss.item() == 0


def test_repr_tells_an_action_that_is_not_the_papers() -> None:
    assert repr(ien.EquivarianceLoss(R4, ["1"], 4, action="regular")).endswith("views=2, action='regular')")
