"""The loss against NumPy sums written from the paper's equations, and its promises to a training loop."""

import copy
import gc
import warnings
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

import ien
from ien.groups import similarity
from tests.helpers.groups import hide_left
from tests.helpers.losses import (
    D4,
    R4,
    R8,
    images,
    loop_permute,
    net,
    numpy_pool,
    paper_loss,
    symmetrised,
    with_weight,
)
from tests.helpers.nets import Function
from tests.helpers.pixels import bilinear, turn, valid_mask
from tests.helpers.tied import Net
from tests.helpers.two_processes import together


@pytest.mark.parametrize(("feature_groups", "mix"), [(4, {4: 2}), (2, {2: 4}), ({3: 2, 1: 2}, {3: 2, 1: 2})])
def test_all_elements_give_the_papers_sum_over_layers_and_elements(feature_groups, mix) -> None:
    model, x, betas = net(), images(), {"1": 0.7, "3": 2.0}
    out = ien.EquivarianceLoss(D4, betas, feature_groups, samples="all")(model, x)
    assert out.views == 8
    assert abs(out.loss.item() - paper_loss(model, x, betas, mix, range(1, 8))) < 1e-12


def test_one_sample_compares_each_image_with_its_own_element() -> None:
    model, x, g = net(), images(4), torch.tensor([3, 1, 2, 1])
    out = ien.EquivarianceLoss(R4, ["3"], 4)(model, x, g=g)
    one_by_one = [paper_loss(model, x[i : i + 1], {"3": 1.0}, {4: 2}, [2 * int(g[i])]) for i in range(4)]
    assert abs(out.loss.item() - np.mean(one_by_one)) < 1e-12
    assert torch.equal(out.g, g)


SIZES = {"×0.7": 0.7, "×1.5": 1.5}
ROTATIONS = {f"{90 * k}°": turn(90 * k) for k in (1, 2, 3)}
SCALINGS = {label: factor * np.eye(2) for label, factor in SIZES.items()}
BOTH = {f"{a} {b}": SIZES[b] * ROTATIONS[a] for a in ROTATIONS for b in SIZES}


def loop_loss(model, x, depth, elements):
    """The mean over images and elements of the mean over valid pixels, by loops over pixels alone."""
    errors = []
    for image in x:
        for matrix in elements.values():
            h, h_g = (
                torch.from_numpy(numpy_pool(model[:depth](z[None]).detach().numpy(), {4: 2}))
                for z in (image, bilinear(image, matrix))
            )
            squares = (h_g - bilinear(h, matrix)) ** 2
            errors.append(squares[0][:, valid_mask(matrix, *h.shape[2:])].mean().item())
    return np.mean(errors)


@pytest.mark.parametrize("size", [9, 10])
def test_rotations_and_scales_equal_a_loop_together_and_as_a_product(size):
    model, x, betas, depths = net(), images(2, size), {"1": 0.7, "3": 2.0}, {"1": 2, "3": 4}
    scales = ien.scale(list(SIZES.values()))
    out = ien.EquivarianceLoss({R4: 1.0, scales: 0.5}, betas, 4, samples="all")(model, x)
    expected, total = {}, 0.0
    for group, alpha, elements in ((R4, 1.0, ROTATIONS), (scales, 0.5, SCALINGS)):
        for name, beta in betas.items():
            expected[str(group), name] = term = loop_loss(model, x, depths[name], elements)
            total += alpha * beta * term
    assert {key: term.item() for key, term in out.terms.items()} == pytest.approx(expected, rel=1e-7)
    assert out.loss.item() == pytest.approx(total, rel=1e-7)
    product, elements = R4 * scales, ROTATIONS | SCALINGS | BOTH
    assert set(product.labels[1:]) == set(elements)
    out = ien.EquivarianceLoss(product, ["3"], 4, samples="all")(model, x)
    assert out.loss.item() == pytest.approx(loop_loss(model, x, 4, elements), rel=1e-7)


@pytest.mark.parametrize("group", [R4, D4], ids=str)
def test_symmetrised_kernels_have_no_loss_and_random_ones_do(group) -> None:
    x = images(6)
    objective = ien.EquivarianceLoss(group, ["1", "3"], 4, samples="all")
    assert abs(objective(symmetrised(net()), x).loss.item()) < 1e-20
    assert objective(net(), x).loss.item() > 1e-4


@pytest.mark.parametrize("group", [R4, R8, ien.scale([0.7])], ids=str)
def test_gradcheck(group) -> None:
    model, x = net(2), images(3)
    g = torch.arange(3) % (len(group) - 1) + 1
    objective = ien.EquivarianceLoss(group, ["1", "3"], 2)
    assert torch.autograd.gradcheck(lambda w: with_weight(model, w, objective, x, g), model[2].weight)


both_actions = pytest.mark.parametrize("action", ["pooled", "regular"])


@both_actions
@pytest.mark.parametrize("group", [R4, R8], ids=str)
@pytest.mark.parametrize("normalize", [False, True])
def test_gradient_flows_through_both_sides(group, normalize, action) -> None:
    model, x, g = net(), images(), torch.tensor([1, 2, 3, 1, 2])
    objective = ien.EquivarianceLoss(group, ["3"], 4, normalize=normalize, action=action)
    (actual,) = torch.autograd.grad(objective(model, x, g=g).loss, model[2].weight)
    h, h_g = model(torch.cat([x, group.act(x, g)])).chunk(2)
    if action == "pooled":
        h, h_g = ien.group_pool(h, 4), ien.group_pool(h_g, 4)
        moved = group.act(h, g)
    else:
        moved = group.act(loop_permute(h, g, group, [(4, 2)]), g)
    valid = torch.ones(5, 1, 5, 5, dtype=torch.bool) if group == R4 else group.valid(h, g)
    errors = [(h_g[i] - moved[i])[:, valid[i, 0]].square().mean() for i in range(5)]
    scale = h.var(unbiased=False) if normalize else 1
    (expected,) = torch.autograd.grad(torch.stack(errors).mean() / scale, model[2].weight)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("corners", [False, True])
def test_views_and_maps_are_resampled_by_the_same_interpolation(corners) -> None:
    model, x, g = net(), images(), torch.tensor([1, 3, 5, 7, 2])
    options = {"interpolation": "nearest", "corners": corners}
    out = ien.EquivarianceLoss(R8, ["3"], 4, **options)(model, x, g=g)
    (actual,) = torch.autograd.grad(out.loss, model[2].weight)

    outputs = model(torch.cat([x, R8.act(x, g, mode="nearest")]))
    h, h_g = ien.group_pool(outputs, 4).chunk(2)
    torch.testing.assert_close(out.output, outputs)
    squares = (h_g - R8.act(h, g, mode="nearest")).square()
    valid = torch.ones(5, 1, 5, 5, dtype=torch.bool) if corners else R8.valid(h, g)
    errors = [squares[i][:, valid[i, 0]].mean() for i in range(5)]
    (expected,) = torch.autograd.grad(torch.stack(errors).mean(), model[2].weight)
    assert expected.abs().max() > 1e-6
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-14)


def test_with_corners_no_map_is_too_small() -> None:
    model, x = nn.Sequential(nn.Conv2d(1, 4, 8)), images(4, dtype=torch.float32)  # 2×2 maps
    objective = ien.EquivarianceLoss(R8, ["0"], 4, corners=True)
    assert repr(objective).endswith("views=2, corners=True)")
    for seed in range(4):  # whichever is drawn
        assert objective(model, x, generator=torch.Generator().manual_seed(seed)).loss.item() > 0


def test_loss_is_linear_in_the_weights() -> None:
    model, x, g = net(), images(), torch.tensor([1, 2, 3, 1, 2, 1, 1, 1, 1, 1])
    alphas, betas = {"rot4": 0.3, "flip": 2.0}, {"1": 0.5, "3": 7.0}
    out = ien.EquivarianceLoss(alphas, betas, 4)(model, x, g=g)
    total = sum(alphas[group] * betas[name] * term for (group, name), term in out.terms.items())
    torch.testing.assert_close(out.loss, total)
    ones = ien.EquivarianceLoss({"rot4": 1, "flip": 1}, {"1": 1, "3": 1}, 4)(model, x, g=g)
    listed = ien.EquivarianceLoss([R4, "flip"], ["1", "3"], 4)(model, x, g=g)
    assert torch.equal(ones.loss, listed.loss)
    for key, term in out.terms.items():
        assert torch.equal(term, ones.terms[key]) and term.requires_grad


def test_zero_weights_are_exactly_the_augmented_cnn() -> None:
    model, x, y = net(dtype=torch.float32), images(dtype=torch.float32), torch.arange(5)
    g = torch.tensor([1, 2, 3, 1, 2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = ien.EquivarianceLoss(R4, {"1": 0.0, "3": 0.0}, 4)(model, x, g=g)
    assert out.terms == {} and out.loss.item() == 0
    with_loss = F.cross_entropy(out.output.mean((2, 3)), out.repeat(y)) + out.loss
    augmented = F.cross_entropy(model(torch.cat([x, R4.act(x, g)])).mean((2, 3)), torch.cat([y, y]))
    gradients = [torch.autograd.grad(loss, list(model.parameters())) for loss in (with_loss, augmented)]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_zero_weights_register_no_hook() -> None:
    model, seen = net(), []

    def count_hooks(module, args):
        seen.append(sum(len(m._forward_hooks) for m in model.modules()))

    model.register_forward_pre_hook(count_hooks)
    arguments = [(R4, {"1": 0.0}, 4), (R4, [], 4), ({R4: 0.0}, ["1"], 4), (R4, [], {"1": 4}), (R4, ["1"], 4)]
    for groups, layers, feature_groups in arguments:
        ien.EquivarianceLoss(groups, layers, feature_groups)(model, images())
    assert seen[:4] == [0, 0, 0, 0] and seen[4] > 0


def test_views_are_the_originals_then_each_draw_and_none_without_samples() -> None:
    model, x = nn.Sequential(nn.Identity()), images(4)
    out = ien.EquivarianceLoss([R4, ien.reflection()], [], 1, samples=1)(model, x)
    assert out.views == 3 and out.g.shape == (8,)
    assert torch.equal(out.output, torch.cat([x, R4.act(x, out.g[:4]), x.flip(-1)]))
    out = ien.EquivarianceLoss([R4, ien.reflection()], ["0"], 1, samples=0)(model, x)
    assert (out.views, len(out.g), out.terms, out.loss.item()) == (1, 0, {}, 0.0)
    assert torch.equal(out.output, x) and torch.equal(out.repeat(torch.arange(4)), torch.arange(4))


@pytest.mark.parametrize("samples", [1, 3, 7])
def test_each_image_gets_different_elements_and_each_place_all_of_them(samples) -> None:
    objective = ien.EquivarianceLoss(R8, [], 1, samples=samples)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([objective.sample(5, generator).view(samples, 5) for _ in range(1000)])
    assert all(len(set(column)) == samples for draw in drawn[:50].mT.tolist() for column in draw)
    for place in drawn.flatten(1).T:
        frequency = torch.bincount(place, minlength=8)
        assert frequency[0] == 0 and (frequency[1:] - 1000 / 7).abs().max() < 5 * (1000 / 7) ** 0.5


def test_whole_orbits_are_in_order_and_draw_nothing() -> None:
    objective = ien.EquivarianceLoss([R4, ien.reflection()], [], 1, samples="all")
    generator = torch.Generator().manual_seed(0)
    state = generator.get_state()
    out = objective(nn.Sequential(nn.Identity()), x := images(2), generator=generator)
    assert out.g.tolist() == [1, 1, 2, 2, 3, 3, 1, 1] and torch.equal(generator.get_state(), state)
    turns = [torch.rot90(x, k, (-2, -1)) for k in range(4)]
    assert torch.equal(out.output, torch.cat([*turns, x.flip(-1)]))


def test_the_model_and_the_inputs_stay_as_they_were() -> None:
    model, x = nn.Sequential(*net(dtype=torch.float32), nn.BatchNorm2d(8)), images(dtype=torch.float32)
    model[4].eval()
    before = copy.deepcopy([model.state_dict(), x, [m.training for m in model.modules()]])
    state = torch.get_rng_state()
    objective = ien.EquivarianceLoss(R8, ["1", "3"], 4)
    objective(model, x, generator=torch.Generator().manual_seed(1)).loss.backward()
    assert torch.equal(torch.get_rng_state(), state)
    after = [model.state_dict(), x, [m.training for m in model.modules()]]
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


def test_the_same_generator_gives_the_same_loss_and_g_reproduces_it() -> None:
    model, x = net(), images()
    objective = ien.EquivarianceLoss([R4, R8], ["1"], 4, samples=2)
    first = objective(model, x, generator=torch.Generator().manual_seed(3))
    again = objective(model, x, generator=torch.Generator().manual_seed(3))
    assert torch.equal(first.g, again.g) and torch.equal(first.loss, again.loss)
    assert torch.equal(objective(model, x, g=first.g).loss, first.loss)


def test_autocast_gives_float32_terms() -> None:
    model, x = net(dtype=torch.float32), images(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = ien.EquivarianceLoss(R8, ["1", "3"], 4)(model, x)
    assert out.output.dtype == torch.bfloat16
    assert out.loss.dtype == torch.float32 and all(t.dtype == torch.float32 for t in out.terms.values())
    out.loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model[:3:2].parameters())


def test_black_box_with_invariant_features() -> None:
    occlude = ien.custom("occlude", {"left": hide_left}, feature_actions="identity")
    model, x = net(), images()
    out = ien.EquivarianceLoss(occlude, ["1"], 4)(model, x)
    h, h_g = (ien.group_pool(model[:2](z), 4) for z in (x, hide_left(x)))
    torch.testing.assert_close(out.loss, F.mse_loss(h_g, h))


def test_a_map_too_small_for_an_element_is_an_error_that_names_everything() -> None:
    model, x = nn.Sequential(nn.Conv2d(1, 4, 8)), images(4, dtype=torch.float32)  # 2×2 maps
    g = torch.tensor([1, 2, 2, 1])
    match = r"rot8 45° on the 2×2 map of layer '0': use larger maps or a milder group, or leave"
    with pytest.raises(ValueError, match=match):
        ien.EquivarianceLoss(R8, ["0"], 4)(model, x, g=g)
    assert ien.EquivarianceLoss(R8, ["0"], 4)(model, x[1:3], g=g[1:3]).loss.item() > 0
    model = nn.Sequential(nn.Conv2d(1, 4, 6))  # 4×4 maps
    objective = ien.EquivarianceLoss("scale0.9,0.1", ["0"], 4)
    for seed in range(4):  # whichever is drawn
        with pytest.raises(ValueError, match=r"scale0\.9,0\.1 ×0\.1 on the 4×4 map of layer '0'.*milder"):
            objective(model, x[:1], generator=torch.Generator().manual_seed(seed))
    assert objective(model, x[:1], g=torch.tensor([1])).loss.item() > 0


def test_one_element_group_warns_and_adds_nothing() -> None:
    with pytest.warns(UserWarning, match="rot1 has only the identity") as record:
        objective = ien.EquivarianceLoss(ien.rotation(1), ["1"], 4)
    assert len(record) == 1 and record[0].filename == __file__
    out = objective(net(), images())
    assert out.views == 1 and out.loss.item() == 0 and len(out.output) == 5 and len(out.g) == 0


def trunk_and_head() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 1))


def test_a_loss_on_frozen_layers_alone_warns_once() -> None:
    model, x = trunk_and_head(), images(dtype=torch.float32)
    model[:4].requires_grad_(False)
    objective = ien.EquivarianceLoss(R4, ["1", "3"], 4)
    with pytest.warns(UserWarning, match="trains nothing: layers '1', '3' and all before.* frozen") as record:
        objective(model, x)
    assert len(record) == 1 and record[0].filename == __file__
    objective(model, x)  # warnings are errors: it says so once


def test_a_loss_that_can_train_something_does_not_warn() -> None:
    model, x = trunk_and_head(), images(dtype=torch.float32)
    model[2].requires_grad_(False)
    out = ien.EquivarianceLoss(R4, ["3"], 4)(model, x)  # a frozen layer after a trainable one
    out.loss.backward()
    assert model[0].weight.grad.abs().max() > 0
    model.requires_grad_(False)
    ien.EquivarianceLoss(R4, {"3": 0}, 4)(model, x)  # nothing is compared
    with torch.no_grad():
        ien.EquivarianceLoss(R4, ["3"], 4)(model, x)  # nobody wants a gradient
    ien.EquivarianceLoss(R4, ["3"], 4)(model, x.requires_grad_())


SAME_NAME = [ien.custom("a", {"x": abs}, "same"), ien.custom("a", {"y": abs}, "same")]


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"layers": {"1": -1.0}}, ValueError, "layer '1' must be a number of at least 0; got -1.0"),
        ({"layers": {"1": float("nan")}}, ValueError, "got nan"),
        ({"groups": {R4: "much"}}, ValueError, "group 'rot4' must be a number"),
        ({"samples": 4}, ValueError, 'must be 0 to 3 for rot4, or "all"; got 4'),
        ({"samples": -1}, ValueError, "got -1"),
        ({"feature_groups": {4: 0.5, "1": 4}}, TypeError, "not both"),
        ({"feature_groups": {"2": 4}}, KeyError, "no entry for layer '1'"),
        ({"groups": "rott4"}, ValueError, "did you mean rot4"),
        ({"groups": SAME_NAME}, ValueError, "groups need distinct names: two are called a"),
        ({"groups": ["rot4", "rot4"]}, ValueError, "each group may be named only once"),
        ({"layers": ["1", "1"]}, ValueError, "each layer may be named only once"),
        (
            {"groups": {"rot4": 1.0, R4: 2.0}},
            ValueError,
            "groups must be distinct: rot4 and rot4 are the same group",
        ),
        ({"groups": ["rot1xrot4", "r4"]}, ValueError, "distinct: rot1xrot4 and r4 are the same group"),
    ],
)
def test_bad_arguments_say_what_was_needed(arguments, error, match) -> None:
    with pytest.raises(error, match=match):
        ien.EquivarianceLoss(**{"groups": R4, "layers": ["1"], "feature_groups": 4} | arguments)


FIRST_HALF = nn.Sequential(Function(lambda x: x[: len(x) // 2]))
TWICE = nn.Sequential(*[nn.ReLU()] * 2)


@pytest.mark.parametrize(
    ("layer", "size", "model", "call", "error", "match"),
    [
        ("1", 4, net(), {"g": torch.arange(3)}, ValueError, r"\(5,\) for 2 views of 5 images; got \(3,\)"),
        ("1", 4, net(), {"x": images(0)}, ValueError, "no images"),
        ("conv1", 4, net(), {}, KeyError, "no layer 'conv1'"),
        ("1", 3, net(), {}, ValueError, "layer '1': 8 channels cannot be split into feature groups 3"),
        ("0", 1, FIRST_HALF, {}, ValueError, "returned 5 maps for 2 views of 5 images"),
        ("0", 1, TWICE, {}, RuntimeError, "layer '0' ran 2 times in one forward pass"),
    ],
)
def test_bad_calls_say_what_was_needed(layer, size, model, call, error, match) -> None:
    with pytest.raises(error, match=match):
        ien.EquivarianceLoss(R4, [layer], size)(**{"model": model, "x": images()} | call)


def test_reprs_tell_groups_weights_and_feature_groups_and_are_short() -> None:
    objective = ien.EquivarianceLoss({R4: 0.5}, {"1": 1.0, "3": 0.1}, {"1": 4, "3": "4-2-1"})
    text = "EquivarianceLoss(groups {rot4: 0.5}, layers {1: 1 (4), 3: 0.1 (4-2-1)}, views=2)"
    assert repr(objective) == text
    out = repr(ien.EquivarianceLoss(R4, ["3"], 4, action="regular")(net(), images()))
    assert out.startswith("Equivariance(loss=") and "rot4 3:" in out and len(out) < 120


@settings(max_examples=25, deadline=None)
@given(n=st.integers(2, 9), batch=st.integers(1, 6), size=st.integers(5, 9), groups=st.integers(1, 3))
def test_primitives_and_objective_agree_for_any_rotation_group(n, batch, size, groups) -> None:
    torch.manual_seed(0)
    group, model = ien.rotation(n), nn.Sequential(nn.Conv2d(1, 4 * groups, 3), nn.ReLU()).double()
    x = images(batch, size)
    out = ien.EquivarianceLoss(group, ["1"], 4)(model, x)
    with ien.capture(model, ["1"]) as features:
        model(torch.cat([x, group.act(x, out.g)]))
    h, h_g = ien.group_pool(features["1"], 4).chunk(2)
    torch.testing.assert_close(out.loss, ien.equivariance_loss(h, h_g, group, out.g))


def checkpointed(use_reentrant):
    """A net with its second half under activation checkpointing, or not."""

    def forward(whole, x):
        early, late = whole.body[:2], whole.body[2:]
        if use_reentrant is None:
            return late(early(x))
        return checkpoint(late, early(x), use_reentrant=use_reentrant)

    torch.manual_seed(0)
    return Net(forward, body=net())


def test_activation_checkpointing_gives_the_same_gradient_or_an_error() -> None:
    gradients, x = [], images()
    for use_reentrant in (None, False):
        model = checkpointed(use_reentrant)
        out = ien.EquivarianceLoss(R4, ["body.1", "body.3"], 4)(model, x, g=torch.tensor([1, 2, 3, 1, 2]))
        (out.output.square().mean() + out.loss).backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    objective = ien.EquivarianceLoss(R4, ["body.3"], 4)
    with pytest.raises(RuntimeError, match=r"'body\.3' runs without gradients.*use_reentrant=False"):
        objective(checkpointed(True), x)
    with torch.no_grad():
        assert not objective(checkpointed(None), x).loss.requires_grad


def test_nothing_is_kept_alive_after_the_result_is_dropped() -> None:
    seen = []
    model = net()
    model[3].register_forward_hook(lambda module, args, output: seen.append(weakref.ref(output)))
    gc.disable()
    try:
        ien.EquivarianceLoss(R8, ["1", "3"], 4)(model, images())
        out = ien.EquivarianceLoss(R8, ["1", "3"], 4)(model, images())
        assert seen[0]() is None and seen[1]() is not None
        out.loss.backward()
        del out
        assert seen[1]() is None
    finally:
        gc.enable()


@both_actions
def test_layouts_function_transforms_and_the_default_device_do_not_matter(action) -> None:
    model, x, g = net(4), images(3), torch.tensor([1, 2, 3])
    objective = ien.EquivarianceLoss(R8, ["1", "3"], 2, samples=1, action=action)
    loss, report = objective(model, x, g=g).loss, ien.measure(model, x, R8, ["1"], 2, action=action)
    (expected,) = torch.autograd.grad(loss, model[2].weight, retain_graph=True)
    weight = model[2].weight.detach()
    transformed = torch.func.grad(lambda w: with_weight(model, w, objective, x, g))(weight)
    torch.testing.assert_close(transformed, expected)
    last = copy.deepcopy(model).to(memory_format=torch.channels_last)
    rearranged = objective(last, x.to(memory_format=torch.channels_last), g=g).loss
    torch.testing.assert_close(torch.autograd.grad(rearranged, last[2].weight)[0], expected)
    for cache in (similarity._grid, similarity.valid_pixels):
        cache.cache_clear()
    with torch.device("meta"):
        objective = ien.EquivarianceLoss(R8, ["1", "3"], 2, action=action)
        assert objective.sample(4).device.type == "cpu"
        assert torch.equal(objective(model, x, g=g).loss, loss)
        assert ien.measure(model, x, R8, ["1"], 2, action=action) == report


def test_changing_the_output_in_place_before_backward_is_torchs_own_error() -> None:
    model, x = net(), images()
    out = ien.EquivarianceLoss(R4, ["3"], 4)(model, x)
    out.output.relu_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.loss.backward()


def test_black_boxes_are_not_kept_alive_by_caches() -> None:
    def action(x):
        return x * 2

    alive = weakref.ref(action)
    group = ien.custom("double", {"twice": action}, "same") * R8
    ien.EquivarianceLoss(group, ["1"], 4)(net(), images())
    del action, group
    gc.collect()
    assert alive() is None


def gradients(rank=None):
    """Of the loss on a fixed batch; on one half of it for a rank of two."""
    torch.manual_seed(0)
    model, x, g = net(), images(8), torch.tensor([1, 1, 2, 2, 3, 3, 1, 1])
    mine = slice(None) if rank is None else slice(4 * rank, 4 * rank + 4)
    parallel = model if rank is None else nn.parallel.DistributedDataParallel(model)
    ien.EquivarianceLoss(R4, ["1", "3"], 4)(parallel, x[mine], g=g[mine]).loss.backward()
    return [p.grad for p in model.parameters()]


def save_gradients(processes, folder) -> None:
    torch.save(gradients(processes.rank), folder / f"{processes.rank}.pt")


@pytest.mark.slow
def test_two_processes_give_the_gradient_of_the_whole_batch(tmp_path) -> None:
    together(save_gradients, tmp_path)
    for rank in range(2):
        torch.testing.assert_close(torch.load(tmp_path / f"{rank}.pt", weights_only=True), gradients())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_images_that_are_not_finite_are_named(value) -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU())
    x = torch.rand(8, 1, 9, 9)
    for i in range(1, 8):
        x[i, 0, 4, i] = value
    for options in ({}, {"target": 0.1}):
        objective = ien.EquivarianceLoss("rot4", ["1"], 4, **options)
        before = objective.state_dict()
        with pytest.raises(
            ValueError, match=r"^7 of 8 images hold NaN or .*: mend or drop x\[1, 2, 3, 4, 5, …\]"
        ):
            objective(net, x)
        assert objective.state_dict() == before


def test_weights_that_diverged_are_left_to_the_training_loop() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU())
    with torch.no_grad():
        net[0].weight.fill_(float("nan"))
    assert ien.EquivarianceLoss("rot4", ["1"], 4)(net, torch.rand(2, 1, 9, 9)).loss.isnan()
