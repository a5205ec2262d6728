"""Groups: their action on pixels against torch, loops and closed forms; sampling; valid pixels."""

import copy
import pickle
from dataclasses import FrozenInstanceError
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, tensor

from ien import custom, group, rotation, scale
from ien.groups import group as groups
from ien.groups import similarity
from tests.helpers.groups import D4, FLIP, GROUPS, HIDE, VFLIP, assert_near, assert_same, each, hide_left
from tests.helpers.pixels import bilinear, neighbours, turn, valid_mask

WIPE = custom("wipe", {"zero": Tensor.zero_, "negate": Tensor.neg_}, feature_actions="same")  # in place
MIRROR = np.diag([-1.0, 1.0])
SIZES = [(5, 5), (6, 6), (4, 7), (7, 4)]

# element k of D4 is flip^(k % 2), then k // 2 quarter turns
D4_BY_TORCH = [lambda x, k=k: torch.rot90(x.flip(-1) if k % 2 else x, k // 2, (-2, -1)) for k in range(8)]
EXACT = [
    (rotation(4), D4_BY_TORCH[::2]),
    (D4, D4_BY_TORCH),
    (FLIP, [torch.clone, lambda x: x.flip(-1)]),
    (VFLIP, [torch.clone, lambda x: x.flip(-2)]),
]
RESAMPLED = [  # group, element, its matrix in closed form
    (rotation(8), 1, turn(45)),
    (rotation(12), 1, turn(30)),
    (rotation(10), 7, turn(252)),
    (scale([0.7]), 1, 0.7 * np.eye(2)),
    (scale([0.5, 1.5]), 2, 1.5 * np.eye(2)),
    (rotation(8) * FLIP, 3, turn(45) @ MIRROR),
    (FLIP * rotation(8), 9, MIRROR @ turn(45)),
    (rotation(3) * scale([0.7]), 3, 0.7 * turn(120)),
    (VFLIP * scale([1.5]) * rotation(12), 37, -1.5 * MIRROR @ turn(30)),
]


pytestmark = pytest.mark.usefixtures("one_thread")


@each("exact, by_torch", EXACT)
@each("arrangement", ["runs", "shuffled", "single"])
@each("dtype", [torch.float32, torch.float64, torch.uint8, torch.bool])
def test_exact_elements_equal_rot90_and_flip_bit_for_bit(exact, by_torch, arrangement, dtype):
    every = torch.arange(3 * len(exact)) // 3
    batches = {"runs": [every], "shuffled": [every[torch.randperm(len(every))]], "single": every.split(1)}
    for g in batches[arrangement]:
        x = torch.randint(2 if dtype == torch.bool else 256, (len(g), 2, 5, 5)).to(dtype)
        moved = exact.act(x, g)
        assert_same(moved, torch.stack([by_torch[k](one) for one, k in zip(x, g.tolist(), strict=True)]))
        assert_same(exact.act(moved, g, inverse=True), x)


def test_quarter_turns_are_counter_clockwise_and_exact_beside_45_degrees():
    numbers = tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])[None, None]
    assert rotation(4).act(numbers, tensor([1]))[0, 0].tolist() == [[3, 6, 9], [2, 5, 8], [1, 4, 7]]
    x, g = torch.randn(16, 3, 6, 6), torch.randperm(16) % 8
    quarters = g % 2 == 0
    expected = [torch.rot90(one, k // 2, (-2, -1)) for one, k in zip(x, g.tolist(), strict=True)]
    assert_same(rotation(8).act(x, g)[quarters], torch.stack(expected)[quarters])


@each("moving", [rotation(8), D4, scale([0.5, 0.7, 1.5]), rotation(4) * scale([0.5]), rotation(5) * FLIP])
def test_matrices_move_points_as_act_moves_images(moving):
    point = tensor([7.0, 3.0]).double()
    x, y = torch.meshgrid(torch.arange(-20.0, 21), -torch.arange(-20.0, 21), indexing="xy")
    spot = (-((x - point[0]) ** 2 + (y - point[1]) ** 2) / 8).exp()
    moved = moving.act(spot.expand(len(moving), 1, -1, -1), torch.arange(len(moving)))
    weights = moved / moved.sum((2, 3), keepdim=True)  # (n, 1, H, W)
    centres = (weights * torch.stack([x, y])).sum((2, 3))  # (n, 2)
    assert_near(centres.double(), moving.matrices @ point, 0.02)


@each("size", [1, 2, 7, 8])
@each("mode", ["bilinear", "bicubic", "nearest"])
@each("dtype, tolerance", [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_slow_path_equals_fast_path_on_d4(size, mode, dtype, tolerance):
    x = torch.rand(2, 3, size, size, dtype=dtype)
    for step in [similarity.Similarity(), *(element[0] for element in D4.elements[1:])]:
        moved = similarity.resample(x, [step], [2], mode)
        assert_near(moved, similarity.permute_pixels(x, step), tolerance)


@each("moving, element, matrix", RESAMPLED)
@each("size", SIZES)
@each("inverse", [False, True])
def test_resampling_equals_a_bilinear_loop(moving, element, matrix, size, inverse):
    x, g = torch.randn(2, 2, *size, dtype=torch.float64), torch.full((2,), element)
    expected = bilinear(x, np.linalg.inv(matrix) if inverse else matrix)
    assert_near(moving.act(x, g, inverse), expected, 1e-7)
    assert_near(moving.act_on_features(x, g, inverse), expected, 1e-7)
    assert_near(moving.act(x.float(), g, inverse), expected.float(), 1e-5)


def test_nearest_takes_the_pixel_with_the_largest_weight():
    x, expected = torch.randn(1, 1, 6, 6), torch.zeros(1, 1, 6, 6)
    for (i, j), found in neighbours(turn(36), 6, 6):
        r, c, _ = max(found, key=lambda neighbour: neighbour[2])
        if 0 <= r < 6 and 0 <= c < 6:
            expected[..., i, j] = x[..., r, c]
    assert_same(rotation(10).act(x, tensor([1]), mode="nearest"), expected)


@each("moving", [rotation(8), rotation(8) * scale([0.7])])
def test_a_mixed_batch_is_resampled_in_one_call(moving, monkeypatch):
    sampled = Mock(wraps=torch.nn.functional.grid_sample)
    monkeypatch.setattr("torch.nn.functional.grid_sample", sampled)
    moving.act(torch.rand(2 * len(moving), 1, 5, 5), torch.arange(2 * len(moving)) % len(moving))
    assert [len(call.args[0]) for call in sampled.call_args_list] == [
        2 * (len(moving) - 4)
    ]  # no quarter turns


@settings(deadline=None, max_examples=40)
@given(st.data(), st.integers(1, 16), st.integers(1, 20), st.integers(3, 9), st.booleans())
def test_a_batch_is_transformed_as_its_images_one_by_one(data, n, batch, size, flipped):
    torch.manual_seed(0)
    moving = rotation(n) * FLIP if flipped else rotation(n)
    g = tensor(data.draw(st.lists(st.integers(0, len(moving) - 1), min_size=batch, max_size=batch)))
    x = torch.randn(batch, 2, size, size)
    together = moving.act(x, g)
    for i, matrix in enumerate(moving.matrices[g]):
        exact = bool(((matrix - matrix.round()).abs() < 1e-12).all())
        alone = moving.act(x[i : i + 1], g[i : i + 1])
        assert_near(together[i : i + 1], alone, 0 if exact else 1e-5)


@each("moving", GROUPS)
def test_matrices_form_a_group(moving):
    matrices = moving.matrices

    def distances(others):  # (len(others), n)
        return (others[:, None] - matrices).abs().amax((-2, -1))

    assert_same(matrices[0], torch.eye(2, dtype=torch.float64))
    assert bool((distances(matrices) + torch.eye(len(moving)) > 0.1).all()), "elements are not distinct"
    assert distances((matrices[:, None] @ matrices).flatten(0, 1)).amin(1).max() < 1e-12, "not closed"
    assert distances(matrices.inverse()).amin(1).max() < 1e-12, "an inverse is missing"


def test_equal_elements_of_a_product_are_merged():
    assert len(D4) == len(set(D4.elements)) == 8
    assert rotation(4) * rotation(8) == rotation(8)
    assert set((rotation(8) * rotation(4)).elements) == set(rotation(8).elements)
    assert set((FLIP * VFLIP * rotation(4)).elements) == set(D4.elements)
    assert len(rotation(4) * rotation(6)) == 12
    assert len(scale([0.5, 2]) * scale([0.5, 2])) == len({1, 0.5, 2, 0.25, 4})


@each("a, b", [(rotation(4), FLIP), (FLIP, rotation(5)), (rotation(3), scale([0.5, 0.7]))])
def test_element_of_a_product_has_index_i_times_len_b_plus_j(a, b):
    expected = a.matrices[:, None] @ b.matrices  # (i, j, 2, 2)
    assert_near((a * b).matrices, expected.flatten(0, 1), 1e-12)


@each("a, b", [(rotation(4), FLIP), (VFLIP, rotation(4)), (rotation(4), HIDE), (HIDE, D4)])
def test_exact_product_equals_b_then_a_bit_for_bit(a, b):
    x = torch.randn(3, 2, 6, 6)
    for i, j in np.ndindex(len(a), len(b)):
        g_a, g_b, g = (torch.full((3,), int(k)) for k in (i, j, i * len(b) + j))
        assert_same((a * b).act(x, g), a.act(b.act(x, g_b), g_a))


PAIRS = [(rotation(8), rotation(3)), (rotation(8), rotation(8)), (rotation(3), FLIP)]  # 45°∘45° is exact
PAIRS += [(scale([0.7]), rotation(5)), (rotation(4), scale([0.7, 1.5]))]


@each("a, b", PAIRS)
def test_resampled_product_equals_b_then_a_in_the_interior(a, b):
    row, column = torch.meshgrid(torch.arange(48.0), torch.arange(48.0), indexing="ij")
    x = ((row / 7).sin() + (column / 9).cos() + row / 24)[None, None]
    for i, j in np.ndindex(len(a), len(b)):
        found = ((a * b).matrices - a.matrices[i] @ b.matrices[j]).abs().amax((1, 2)).argmin()
        once, twice = (a * b).act(x, found[None]), a.act(b.act(x, tensor([j])), tensor([i]))
        assert_near(once[..., 16:32, 16:32], twice[..., 16:32, 16:32], 0.02)


def test_order_of_a_product_with_custom_matters():
    x = torch.rand(1, 1, 6, 6) + 1
    turned_last, hidden_last = rotation(8) * HIDE, HIDE * rotation(8)
    assert_near(turned_last.act(x, tensor([3])).double(), bilinear(hide_left(x), turn(45)), 1e-5)
    assert_near(hidden_last.act(x, tensor([9])).double(), hide_left(bilinear(x, turn(45))), 1e-5)


def test_groups_are_frozen_values():
    assert {rotation(8): "a", D4: "b"}[rotation(4) * rotation(8)] == "a"
    assert len({rotation(4), group("r4"), rotation(2), FLIP, VFLIP, HIDE}) == 5
    assert rotation(4) != rotation(8) and HIDE == custom("other", {"hide left": hide_left}, "same")
    with pytest.raises(FrozenInstanceError, match="name"):
        rotation(4).name = "rot8"
    with pytest.raises(TypeError, match="unsupported operand"):
        rotation(4) * 2


@each("copied", [copy.deepcopy, lambda moving: pickle.loads(pickle.dumps(moving))])
@each("moving", [rotation(8), D4, scale([0.7]), HIDE, rotation(8) * HIDE])
def test_copies_are_equal(copied, moving):
    twin = copied(moving)
    assert (twin, str(twin), hash(twin)) == (moving, str(moving), hash(moving))
    x, g = torch.rand(len(moving), 1, 6, 6), torch.arange(len(moving))
    assert_same(twin.act(x, g), moving.act(x, g))


@each("moving", [rotation(2), rotation(4), rotation(8), D4, HIDE])
@each("include_identity", [False, True])
@each("n", [0, 1, 2, 5, 16, 65])
def test_sample_is_stratified_in_contiguous_runs(moving, include_identity, n):
    choices = range(0 if include_identity else 1, len(moving))
    for seed in range(10):
        g = moving.sample(n, torch.Generator().manual_seed(seed), include_identity)
        assert (g.shape, g.dtype, g.device.type) == ((n,), torch.int64, "cpu")
        assert len(g.unique_consecutive()) == len(g.unique()) == min(n, len(choices))
        counts = [g.tolist().count(k) for k in choices]
        assert sum(counts) == n and max(counts) - min(counts) <= 1


@each("moving, n", [(rotation(4), 5), (rotation(8), 2), (D4, 17)])
@each("include_identity", [False, True])
def test_every_place_draws_every_element_equally_often(moving, n, include_identity):
    generator, first = torch.Generator().manual_seed(1), 0 if include_identity else 1
    draws = torch.stack([moving.sample(n, generator, include_identity) for _ in range(2000)]) - first
    counts = torch.stack([place.bincount(minlength=len(moving) - first) for place in draws.T]).double()
    assert counts.shape == (n, len(moving) - first)
    expected = 2000 / counts.shape[1]
    assert ((counts - expected) ** 2 / expected).sum(1).max() < 35  # chi square: exceeded once in 100,000


def test_sample_follows_its_generator_and_leaves_the_global_one_alone():
    state = torch.get_rng_state()
    draws = [rotation(8).sample(20, torch.Generator().manual_seed(seed)).tolist() for seed in (3, 3, 4)]
    assert draws[0] == draws[1] != draws[2]
    assert_same(torch.get_rng_state(), state)
    rotation(8).sample(20)
    assert not torch.equal(torch.get_rng_state(), state)
    with torch.device("meta"):
        g = rotation(4).sample(7)
    assert g.device.type == "cpu" and sorted(g.bincount().tolist()) == [0, 2, 2, 3]


def test_a_group_of_one_element_has_nothing_to_draw():
    with pytest.raises(ValueError, match=r"rot1 has only the identity: there is nothing to draw"):
        rotation(1).sample(4)
    assert rotation(1).sample(4, include_identity=True).tolist() == [0, 0, 0, 0]


WRONG_G = [
    ((3, 1, 4, 4), tensor([0, 1]), r"\(3,\), one element index for each image.*\(2,\)"),
    ((1, 1, 4, 4), tensor(1), r"got torch.int64 of shape \(\)"),
    ((2, 1, 4, 4), tensor([0.0, 1.0]), "must be an integer tensor.*got torch.float32"),
    ((2, 1, 4, 4), tensor([True, False]), "must be an integer tensor.*got torch.bool"),
    ((2, 1, 4, 4), tensor([0, 4]), "rot4 has elements 0 to 3; g has 0 to 4"),
    ((2, 1, 4, 4), tensor([-1, 1]), "rot4 has elements 0 to 3; g has -1 to 1"),
    ((2, 4, 4), tensor([0, 1]), r"\(B, C, H, W\); got \(2, 4, 4\)"),
]


@each("method", ["act", "act_on_features", "valid"])
@each("shape, g, fragment", WRONG_G)
def test_a_wrong_g_or_mode_is_an_error(method, shape, g, fragment):
    with pytest.raises(ValueError, match=fragment):
        getattr(rotation(4), method)(torch.rand(shape), g)
    with pytest.raises(ValueError, match="mode is one of bilinear, bicubic, nearest; got 'linear'"):
        rotation(4).act(torch.rand(1, 1, 4, 4), tensor([1]), mode="linear")


@each("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_g_may_be_any_integer_type_and_empty(dtype):
    assert rotation(8).act(torch.rand(0, 3, 5, 6), torch.arange(0, dtype=dtype)).shape == (0, 3, 5, 6)
    x = torch.rand(3, 1, 5, 5)
    expected = torch.stack([torch.rot90(x[0], 1, (-2, -1)), x[1], torch.rot90(x[2], 1, (-2, -1))])
    assert_same(rotation(4).act(x, tensor([1, 0, 1], dtype=dtype)), expected)


@each("moving", [rotation(4), D4, VFLIP, HIDE, D4 * HIDE])
def test_exact_groups_are_valid_everywhere(moving):
    assert moving.valid(torch.rand(len(moving), 2, 6, 6), torch.arange(len(moving))) is None
    assert moving.coverage((6, 6)) == (1.0,) * len(moving)
    assert rotation(8).coverage((2, 2)) == (1.0, 0.0) * 4  # 45° of 2×2 pixels leaves none


@each("moving, element, matrix", RESAMPLED)
@each("size", SIZES)
def test_valid_is_where_all_bilinear_neighbours_lie_in_the_map(moving, element, matrix, size):
    expected = valid_mask(matrix, *size)
    assert moving.coverage(size)[element] == pytest.approx(expected.double().mean().item(), abs=1e-12)
    mask = moving.valid(torch.rand(2, 3, *size), tensor([0, element]))
    if expected.all():
        assert mask is None
    else:
        assert_same(mask, torch.stack([torch.ones_like(expected), expected])[:, None])


def test_valid_of_a_mixed_batch_follows_g_and_ones_stay_ones_there():
    moving, ones = rotation(8) * scale([0.7]), torch.ones(9, 2, 9, 9, dtype=torch.float64)
    g = tensor([3, 0, 1, 2, 6, 3, 4, 9, 1])
    mask, moved = moving.valid(ones, g), moving.act(ones, g)
    expected = [valid_mask(0.7 ** (k % 2) * turn(45 * (k // 2)), 9, 9) for k in g.tolist()]
    assert_same(mask, torch.stack(expected)[:, None])
    assert [bool(one.all()) for one in mask] == [k in (0, 4) for k in g.tolist()]
    assert (moved[mask.expand_as(moved)] - 1).abs().max() < 1e-6


@each("factor", [0.8, 1.1])
def test_valid_is_for_bilinear_and_bicubic_reads_one_pixel_further(factor):
    ones, g = torch.ones(1, 1, 9, 9, dtype=torch.float64), tensor([1])
    moved, valid = scale(factor).act(ones, g, mode="bicubic")[0, 0], valid_mask(factor * np.eye(2), 9, 9)
    wider = valid_mask(factor * np.eye(2), 9, 9, before=torch.nn.functional.pad(torch.ones(7, 7), [1] * 4))
    assert 0 < wider.sum() < valid.sum()
    assert (moved[wider] - 1).abs().max() < 1e-6 < 1e-3 < (moved[valid] - 1).abs().max()


def test_valid_follows_the_chain_of_a_product_with_custom():
    h, chain = torch.rand(1, 1, 15, 15), rotation(8) * HIDE * rotation(8)
    first = valid_mask(turn(135), 15, 15)
    second = valid_mask(turn(45), 15, 15, before=first)
    assert 0 < second.sum() < first.sum()
    assert_same(chain.valid(h, tensor([chain.labels.index("hide left 135°")]))[0, 0], first)
    assert_same(chain.valid(h, tensor([chain.labels.index("45° hide left 135°")]))[0, 0], second)


@each("element", range(8))
def test_one_index_stands_for_all_images(element):
    d4 = group("rot4xflip")
    g = torch.full((3,), element)
    x = torch.rand(3, 2, 5, 5, generator=torch.Generator().manual_seed(1))
    boxes = torch.tensor([[0.0, 1.0, 2.0, 4.0]]).expand(3, 4)
    numbers = torch.rand(3, 6, 2, generator=torch.Generator().manual_seed(2))
    for inverse in (False, True):
        assert torch.equal(d4.act(x, element, inverse), d4.act(x, g, inverse))
        assert torch.equal(d4.act_on_features(x, element, inverse), d4.act_on_features(x, g, inverse))
        for method, targets in (
            (d4.act_on_boxes, boxes),
            (d4.act_on_points, numbers),
        ):
            found, expected = (method(targets, i, (5, 5), inverse) for i in (element, g))
            assert torch.equal(found, expected)
        for method, targets in (
            (d4.act_on_masks, x),
            (d4.act_on_vectors, numbers),
            (d4.act_on_angles, numbers),
        ):
            found, expected = (method(targets, i, inverse=inverse) for i in (element, g))
            assert torch.equal(found, expected)
    for wrong in (-1, 8):
        with pytest.raises(ValueError, match=f"has elements 0 to 7; got {wrong}"):
            d4.act(x, wrong)


@each("element", [1, 3])
def test_one_index_stands_for_all_images_in_a_trace(element):
    rot8 = rotation(8)
    x = torch.rand(3, 2, 5, 5, generator=torch.Generator().manual_seed(1))
    found = torch.func.vmap(lambda image: rot8.act(image[None], element)[0])(x)
    assert torch.allclose(found, rot8.act(x, element), atol=1e-6)


@each("moving, element", [(rotation(4), 1), (rotation(8), 6), (D4, 3)])
def test_quarter_turn_of_a_non_square_map_is_an_error(moving, element):
    with pytest.raises(ValueError, match=f"'{moving.labels[element]}' swaps the sides.*4×6.*square maps"):
        moving.act(torch.rand(2, 1, 4, 6), tensor([0, element]))


@each("moving, element, axes", [(rotation(4), 2, (-2, -1)), (D4, 1, -1), (D4, 5, -2), (VFLIP, 1, -2)])
def test_half_turns_and_flips_work_on_non_square_maps(moving, element, axes):
    x = torch.rand(2, 3, 4, 6)
    assert_same(moving.act(x, torch.full((2,), element)), x.flip(axes))


@each("inverse", [False, True])
@each("moving", [rotation(8), scale([0.7, 1.5])])
def test_gradients_agree_with_finite_differences(moving, inverse):
    g = tensor([1, 0, 2, 1, 2, 0, 1])
    x = torch.randn(7, 1, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: moving.act(t, g, inverse), (x,))


@each("g", [[0, 0], [1], [0, 0, 1, 1], [1, 0, 2, 1, 0]])
@each("moving", [rotation(8), D4, HIDE * rotation(2), WIPE])
def test_act_leaves_its_input_alone_and_gives_new_memory(moving, g):
    x = torch.randn(len(g), 2, 5, 5)
    before = x.clone()
    moving.act(x, tensor(g)).fill_(7)
    assert_same(x, before)


@each("dtype, tolerance", [(torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
def test_half_precision_is_kept_and_integers_are_an_error(dtype, tolerance):
    x, g = torch.rand(8, 2, 6, 6).to(dtype), torch.arange(8)
    moved = rotation(8).act(x, g)
    assert moved.dtype == dtype
    assert_near(moved[1].double(), bilinear(x[1].double(), turn(45)), tolerance)
    assert_same(moved[2], torch.rot90(x[2], 1, (-2, -1)))
    with pytest.raises(ValueError, match=r"'45°' interpolates.*floating point, not torch\.uint8"):
        rotation(8).act(x.byte(), g)


@each("memory_format", [torch.contiguous_format, torch.channels_last])
@each("g", [[2], [1, 1, 0, 0, 2], [1, 2, 1, 0, 2]])
@each("moving", [rotation(4), rotation(8), scale([0.7, 1.5])])
def test_memory_format_is_kept(moving, g, memory_format):
    x = torch.rand(len(g), 3, 5, 5).contiguous(memory_format=memory_format)
    assert moving.act(x, tensor(g)).is_contiguous(memory_format=memory_format)


def test_what_inference_mode_caches_serves_training():
    moving, g, size = rotation(7) * scale([0.9]), tensor([3]), (11, 13)  # a size used nowhere else
    with torch.inference_mode():
        moving.act(torch.rand(1, 1, *size), g)
        moving.valid(torch.rand(1, 1, *size), g)
    x = torch.rand(1, 1, *size, requires_grad=True)
    (moving.act(x, g) * moving.valid(x, g)).sum().backward()
    matrix, expected = 0.9 * turn(360 / 7), torch.zeros(size)
    mask = valid_mask(matrix, *size)
    for pixel, found in neighbours(matrix, *size):
        for r, c, weight in found if mask[pixel] else []:
            expected[r, c] += weight
    assert_near(x.grad[0, 0], expected, 1e-5)


def test_caches_are_bounded():
    names = {**vars(similarity), **vars(groups)}
    caches = {name: f.cache_info().maxsize for name, f in names.items() if hasattr(f, "cache_info")}
    assert {"_grid", "valid_pixels"} <= set(caches) and None not in caches.values()
