import copy
import math
import pickle
from collections.abc import Iterator
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from ien import Group, _groups, _similarity, custom, group, reflection, rotation, scale

D4 = rotation(4) * reflection()
MIRROR = np.diag([-1.0, 1.0])


def turn(degrees: float) -> np.ndarray:
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return np.array([[cos, -sin], [sin, cos]])


def hide_left(x: Tensor) -> Tensor:
    return x * (torch.arange(x.shape[-1]) >= x.shape[-1] // 2)


def negate(x: Tensor) -> Tensor:
    return -x


HIDE = custom("hide", {"hide left": hide_left}, feature_actions="same")

# element k of D4 is flip^(k % 2), then k // 2 quarter turns
D4_BY_TORCH = [lambda x, k=k: torch.rot90(x.flip(-1) if k % 2 else x, k // 2, (-2, -1)) for k in range(8)]
EXACT = {
    "rot4": (rotation(4), D4_BY_TORCH[::2]),
    "rot4xflip": (D4, D4_BY_TORCH),
    "flip": (reflection(), [torch.clone, lambda x: x.flip(-1)]),
    "vflip": (reflection("vertical"), [torch.clone, lambda x: x.flip(-2)]),
}
RESAMPLED = {  # group, element, its matrix in closed form
    "45°": (rotation(8), 1, turn(45)),
    "30°": (rotation(12), 1, turn(30)),
    "252°": (rotation(10), 7, turn(252)),
    "×0.7": (scale([0.7]), 1, 0.7 * np.eye(2)),
    "×1.5": (scale([0.5, 1.5]), 2, 1.5 * np.eye(2)),
    "45° flip": (rotation(8) * reflection(), 3, turn(45) @ MIRROR),
    "flip 45°": (reflection() * rotation(8), 9, MIRROR @ turn(45)),
    "120° ×0.7": (rotation(3) * scale([0.7]), 3, 0.7 * turn(120)),
    "vflip ×1.5 30°": (reflection("vertical") * scale([1.5]) * rotation(12), 37, -1.5 * MIRROR @ turn(30)),
}
GROUPS = {str(g): g for n in range(1, 13) for g in (rotation(n), rotation(n) * reflection())}
GROUPS |= {str(g): g for g in (reflection(), reflection("vertical"), reflection() * reflection("vertical"))}
SIZES = [(5, 5), (6, 6), (4, 7), (7, 4)]


def over(table: dict[str, tuple], names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(names, list(table.values()), ids=list(table))


def image(dtype: torch.dtype, *shape: int) -> Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 256, shape).to(dtype)


def assert_same(actual: Tensor, expected: Tensor) -> None:
    assert_close(actual, expected, rtol=0, atol=0)


def neighbours(matrix: np.ndarray, height: int, width: int) -> Iterator[tuple[tuple, list[tuple]]]:
    """Each pixel of a transformed map, with the pixels it is made of and their bilinear weights."""
    centre_x, centre_y = (width - 1) / 2, (height - 1) / 2
    for i, j in np.ndindex(height, width):
        x, y = np.linalg.inv(matrix) @ (j - centre_x, centre_y - i)
        row, column = round(centre_y - y, 9), round(centre_x + x, 9)
        top, left = math.floor(row), math.floor(column)
        corners = [(r, c) for r in (top, top + 1) for c in (left, left + 1)]
        weighted = [(r, c, (1 - abs(row - r)) * (1 - abs(column - c))) for r, c in corners]
        yield (i, j), [(r, c, weight) for r, c, weight in weighted if weight > 0]


def bilinear(maps: Tensor, matrix: np.ndarray) -> Tensor:
    source, result = maps.numpy(), np.zeros(maps.shape)
    height, width = maps.shape[-2:]
    for (i, j), found in neighbours(matrix, height, width):
        for r, c, weight in found:
            if 0 <= r < height and 0 <= c < width:
                result[..., i, j] += weight * source[..., r, c]
    return torch.from_numpy(result)


def valid_mask(matrix: np.ndarray, height: int, width: int, before: np.ndarray | None = None) -> Tensor:
    before = np.ones((height, width), bool) if before is None else before
    mask = np.zeros((height, width), bool)
    for pixel, found in neighbours(matrix, height, width):
        mask[pixel] = all(0 <= r < height and 0 <= c < width and before[r, c] for r, c, _ in found)
    return torch.from_numpy(mask)


# exactness


@over(EXACT, "exact, by_torch")
@pytest.mark.parametrize("arrangement", ["runs", "shuffled", "single"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8, torch.bool], ids=str)
def test_exact_elements_equal_rot90_and_flip_bit_for_bit(exact, by_torch, arrangement, dtype):
    n = len(exact)
    runs = torch.arange(n).repeat_interleave(3)
    batches = {"runs": [runs], "shuffled": [runs[torch.randperm(3 * n)]], "single": torch.arange(n).split(1)}
    for g in batches[arrangement]:
        x = image(dtype, len(g), 2, 5, 5)
        moved = exact.act(x, g)
        assert_same(moved, torch.stack([by_torch[k](one) for one, k in zip(x, g.tolist(), strict=True)]))
        assert_same(exact.act(moved, g, inverse=True), x)


def test_quarter_turns_stay_exact_beside_45_degrees_in_one_batch():
    x, g = torch.randn(16, 3, 6, 6), torch.arange(16)[torch.randperm(16)] % 8
    moved = rotation(8).act(x, g)
    for one, before, k in zip(moved, x, g.tolist(), strict=True):
        if k % 2 == 0:
            assert_same(one, torch.rot90(before, k // 2, (-2, -1)))


def test_90_degrees_is_counter_clockwise():
    x = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])[None, None]
    assert rotation(4).act(x, torch.tensor([1]))[0, 0].tolist() == [[3, 6, 9], [2, 5, 8], [1, 4, 7]]


@pytest.mark.parametrize(
    "moving",
    [rotation(8), D4, scale([0.5, 0.7, 1.5]), rotation(4) * scale([0.5]), rotation(5) * reflection()],
)
def test_matrices_move_points_as_act_moves_images(moving):
    size, point = 41, np.array([7.0, 3.0])
    x, y = np.meshgrid(np.arange(size) - 20, 20 - np.arange(size))
    spot = np.exp(-((x - point[0]) ** 2 + (y - point[1]) ** 2) / 8)
    batch = torch.from_numpy(spot).expand(len(moving), 1, -1, -1)
    for moved, matrix in zip(
        moving.act(batch, torch.arange(len(moving)))[:, 0], moving.matrices, strict=True
    ):
        weights = moved.numpy() / moved.sum().item()
        centre = ((weights * x).sum(), (weights * y).sum())
        assert np.abs(matrix.numpy() @ point - centre).max() < 0.02


@pytest.mark.parametrize("size", [1, 2, 7, 8, 32])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest"])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=str)
def test_slow_path_equals_fast_path_on_d4(size, mode, dtype, tolerance):
    x = torch.rand(2, 3, size, size, dtype=dtype)
    for step in [_similarity.Similarity(), *(element[0] for element in D4.elements[1:])]:
        slow = _similarity.resample(x, [step], [2], mode)
        assert_close(slow, _similarity.permute(x, step), rtol=0, atol=tolerance)


# resampling


@over(RESAMPLED, "moving, element, matrix")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("inverse", [False, True])
def test_resampling_equals_a_bilinear_loop(moving, element, matrix, size, inverse):
    x = torch.randn(2, 2, *size, dtype=torch.float64)
    expected = bilinear(x, np.linalg.inv(matrix) if inverse else matrix)
    g = torch.full((2,), element)
    assert_close(moving.act(x, g, inverse), expected, rtol=0, atol=1e-7)
    assert_close(moving.act(x.float(), g, inverse), expected.float(), rtol=0, atol=1e-5)
    assert_same(moving.act_on_features(x, g, inverse), moving.act(x, g, inverse))


def test_nearest_takes_the_pixel_with_the_largest_weight():
    x, expected = torch.randn(1, 1, 6, 6), torch.zeros(1, 1, 6, 6)
    for (i, j), found in neighbours(turn(36), 6, 6):
        r, c, _ = max(found, key=lambda neighbour: neighbour[2])
        if 0 <= r < 6 and 0 <= c < 6:
            expected[..., i, j] = x[..., r, c]
    assert_same(rotation(10).act(x, torch.tensor([1]), mode="nearest"), expected)


@pytest.mark.parametrize("moving", [rotation(8), rotation(8) * scale([0.7])], ids=str)
def test_a_mixed_batch_is_resampled_in_one_call(moving, monkeypatch):
    calls, original = [], torch.nn.functional.grid_sample
    monkeypatch.setattr(
        "torch.nn.functional.grid_sample", lambda x, *a, **k: calls.append(len(x)) or original(x, *a, **k)
    )
    moving.act(torch.rand(2 * len(moving), 1, 5, 5), torch.arange(2 * len(moving)) % len(moving))
    assert calls == [2 * (len(moving) - 4)]  # all but the quarter turns


@settings(deadline=None, max_examples=40)
@given(st.data(), st.integers(1, 16), st.integers(3, 9), st.booleans())
def test_a_batch_is_transformed_as_its_images_one_by_one(data, n, size, inverse):
    moving = rotation(n) * reflection() if data.draw(st.booleans()) else rotation(n)
    g = torch.tensor(data.draw(st.lists(st.integers(0, len(moving) - 1), min_size=1, max_size=20)))
    x = torch.randn(len(g), 2, size, size)
    together = moving.act(x, g, inverse)
    for i, matrix in enumerate(moving.matrices[g]):
        exact = bool(((matrix.abs() - matrix.abs().round()).abs() < 1e-12).all())
        alone = moving.act(x[i : i + 1], g[i : i + 1], inverse)
        assert_close(together[i : i + 1], alone, rtol=0, atol=0 if exact else 1e-5)


# group laws


@pytest.mark.parametrize("moving", GROUPS.values(), ids=str)
def test_matrices_form_a_group(moving):
    matrices = moving.matrices

    def distances(others: Tensor) -> Tensor:  # (len(others), n)
        return (others[:, None] - matrices).abs().amax((-2, -1))

    assert_same(matrices[0], torch.eye(2, dtype=torch.float64))
    assert bool((distances(matrices) + torch.eye(len(moving)) > 0.1).all()), "elements are not distinct"
    products = (matrices[:, None] @ matrices).flatten(0, 1)
    assert distances(products).amin(1).abs().max() < 1e-12
    assert distances(matrices.inverse()).amin(1).abs().max() < 1e-12


@pytest.mark.parametrize("n", range(1, 13))
def test_rotations_are_powers_of_a_generator_of_order_n(n):
    assert len(rotation(n)) == n and len(rotation(n) * reflection()) == 2 * n
    closed_form = torch.from_numpy(np.stack([turn(360 * k / n) for k in range(n)]))
    assert_close(rotation(n).matrices, closed_form, rtol=0, atol=1e-14)
    generator = rotation(n).matrices[1 % n]
    powers = torch.stack([generator.matrix_power(k) for k in range(n + 1)])
    assert_close(powers[:n], closed_form, rtol=0, atol=1e-12)
    assert_close(powers[n], powers[0], rtol=0, atol=1e-12)


def test_equal_elements_of_a_product_are_merged():
    assert len(D4) == len(set(D4.elements)) == 8
    assert rotation(4) * rotation(8) == rotation(8)
    assert len(rotation(8) * rotation(4)) == len(rotation(2) * rotation(8)) == 8
    assert len(rotation(4) * rotation(6)) == 12
    assert rotation(2) * reflection() * reflection("vertical") == rotation(2) * reflection()
    assert len(scale([0.5, 2]) * scale([0.5, 2])) == len({1, 0.5, 2, 0.25, 4})


@pytest.mark.parametrize(
    "a, b", [(rotation(4), reflection()), (reflection(), rotation(5)), (rotation(3), scale([0.5, 0.7]))]
)
def test_element_of_a_product_has_index_i_times_len_b_plus_j(a, b):
    expected = [a.matrices[i] @ b.matrices[j] for i in range(len(a)) for j in range(len(b))]
    assert_close((a * b).matrices, torch.stack(expected), rtol=0, atol=1e-12)


# products act as a∘b


@pytest.mark.parametrize(
    "a, b",
    [(rotation(4), reflection()), (reflection("vertical"), rotation(4)), (rotation(4), HIDE), (HIDE, D4)],
)
def test_exact_product_equals_b_then_a_bit_for_bit(a, b):
    x = torch.randn(3, 2, 6, 6)
    for i, j in np.ndindex(len(a), len(b)):
        g_a, g_b, g = (torch.full((3,), int(k)) for k in (i, j, i * len(b) + j))
        assert_same((a * b).act(x, g), a.act(b.act(x, g_b), g_a))


@pytest.mark.parametrize(
    "a, b",
    [
        (rotation(8), rotation(3)),
        (rotation(8), rotation(8)),
        (rotation(3), reflection()),
        (scale([0.7]), rotation(5)),
        (rotation(4), scale([0.7, 1.5])),
    ],
)
def test_resampled_product_equals_b_then_a_in_the_interior(a, b):
    row, column = torch.meshgrid(torch.arange(48.0), torch.arange(48.0), indexing="ij")
    x = ((row / 7).sin() + (column / 9).cos() + row / 24)[None, None]
    for i, j in np.ndindex(len(a), len(b)):
        found = ((a * b).matrices - a.matrices[i] @ b.matrices[j]).abs().amax((1, 2)).argmin()
        once, twice = (a * b).act(x, found[None]), a.act(b.act(x, torch.tensor([j])), torch.tensor([i]))
        assert_close(once[..., 16:32, 16:32], twice[..., 16:32, 16:32], rtol=0, atol=0.02)


def test_order_of_a_product_with_custom_matters():
    x, ones = torch.rand(1, 1, 6, 6) + 1, torch.ones(1, 1, 6, 6)
    last = torch.tensor([3])  # i = j = 1
    turned_last, hidden_last = (rotation(2) * HIDE).act(x, last), (HIDE * rotation(2)).act(x, last)
    assert_same(hidden_last, hide_left(torch.rot90(x, 2, (-2, -1))))
    assert_same(turned_last, torch.rot90(hide_left(x), 2, (-2, -1)))
    assert bool((turned_last[..., 3:] == 0).all()) and bool((hidden_last[..., :3] == 0).all())
    g = torch.tensor([3])  # 45° after hiding, and before
    after, before = (rotation(8) * HIDE).act(ones, g), (HIDE * rotation(8)).act(ones, torch.tensor([9]))
    assert_close(after.double(), bilinear(hide_left(ones), turn(45)), rtol=0, atol=1e-5)
    assert_close(before.double(), hide_left(bilinear(ones, turn(45))), rtol=0, atol=1e-5)


# values and text


def test_groups_are_frozen_values():
    assert {rotation(8): "a", D4: "b"}[rotation(4) * rotation(8)] == "a"
    assert len({rotation(4), group("r4"), rotation(2), reflection(), reflection("vertical"), HIDE}) == 5
    assert rotation(4) != rotation(8) and HIDE == custom("other", {"hide left": hide_left}, "same")
    with pytest.raises(FrozenInstanceError, match="name"):
        rotation(4).name = "rot8"
    with pytest.raises(TypeError, match="unsupported operand"):
        rotation(4) * 2


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))])
@pytest.mark.parametrize("moving", [rotation(8), D4, scale([0.7]), HIDE, rotation(8) * HIDE], ids=str)
def test_copies_are_equal(copied, moving):
    twin = copied(moving)
    assert (twin, str(twin), hash(twin)) == (moving, str(moving), hash(moving))
    x, g = torch.rand(len(moving), 1, 6, 6), torch.arange(len(moving))
    assert_same(twin.act(x, g), moving.act(x, g))


@pytest.mark.parametrize(
    "moving",
    [
        *GROUPS.values(),
        scale([2]),
        scale([1e-7, 1e20, 0.1]),
        scale([0.7, 0.84]) * D4,
        rotation(4) * rotation(8),
    ],
    ids=str,
)
def test_text_form_reads_back(moving):
    assert group(str(moving)) == moving
    assert str(group(str(moving))) == str(moving)
    assert group(moving) is moving


@pytest.mark.parametrize(
    "text, expected, name",
    [
        ("r4", rotation(4), "rot4"),
        ("r8", rotation(8), "rot8"),
        ("rot8", rotation(8), "rot8"),
        ("r4r", D4, "rot4xflip"),
        (" R4R ", D4, "rot4xflip"),
        ("vflip", reflection("vertical"), "vflip"),
        ("r4xscale0.5", rotation(4) * scale([0.5]), "rot4xscale0.5"),
        ("scale0.70,1,0.84,0.7", scale([0.7, 0.84]), "scale0.7,0.84"),
    ],
)
def test_text_names_the_group(text, expected, name):
    assert group(text) == expected and str(group(text)) == name


@pytest.mark.parametrize(
    "moving, labels",
    [
        (rotation(8), ("identity", "45°", "90°", "135°", "180°", "225°", "270°", "315°")),
        (D4, ("identity", "flip", "90°", "90° flip", "180°", "vflip", "270°", "270° flip")),
        (reflection("vertical"), ("identity", "vflip")),
        (rotation(2) * scale([0.7]), ("identity", "×0.7", "180°", "180° ×0.7")),
        (rotation(2) * HIDE, ("identity", "hide left", "180°", "180° hide left")),
        (HIDE * rotation(2), ("identity", "180°", "hide left", "hide left 180°")),
    ],
    ids=str,
)
def test_labels_and_repr_are_readable(moving, labels):
    assert moving.labels == labels and len(moving) == len(labels)
    assert repr(moving) == f"<Group {moving}: {', '.join(labels)}>"


def test_repr_of_a_large_group_is_short():
    assert repr(rotation(360)) == "<Group rot360: identity, 1°, 2°, 3°, 4°, …, 359°>"


@pytest.mark.parametrize(
    "make, fragment",
    [
        (lambda: group("rota8"), r"cannot read group 'rota8'.*nearest: rot8"),
        (lambda: group("flop"), "nearest: flip"),
        (lambda: group("rot4xscale"), r"'rot4xscale': 'scale' is none of .*scale<factor>"),
        (lambda: group("rot4*flip"), "join them with x, as in rot4xflip"),
        (lambda: group("rot4x"), "'' is none of rot<n>"),
        (lambda: group(""), "cannot read group ''"),
        (lambda: group("rot-4"), "rot<n>"),
        (lambda: group("rot0"), "at least 1"),
        (lambda: group("scale0.7.1"), r"cannot read group 'scale0.7.1': .*0.7.1"),
        (lambda: group("scale-1"), "cannot read group 'scale-1'.*positive"),
        (lambda: scale([0.7, 0]), "positive numbers such as 0.7; got 0.0"),
        (lambda: scale([-0.5]), "positive"),
        (lambda: scale([math.nan]), "positive.*got nan"),
        (lambda: scale([math.inf]), "positive.*got inf"),
        (lambda: scale([1, 1.0]), "a factor other than 1"),
        (lambda: scale([]), "a factor other than 1"),
        (lambda: rotation(0), r"at least 1; got 0"),
        (lambda: rotation(2.5), r"whole number.*got 2\.5"),
        (lambda: reflection("diagonal"), "'horizontal'.*'vertical'; got 'diagonal'"),
        (lambda: custom("c", {}, "same"), "'c' needs at least one action"),
        (lambda: custom("c", {"a": negate, "b": negate}, {"a": "same"}), r"\['a', 'b'\].*\['a'\]"),
        (lambda: custom("c", {"a": negate}, {"a": "same", "z": "same"}), r"\['a'\].*\['a', 'z'\]"),
        (lambda: custom("c", {"a": negate}, "sane"), "'a'.*'identity', 'same' or a function; got.*'sane'"),
        (lambda: custom("c", {"a": 3}, "identity"), "'a'.*must be a function.*got 3"),
    ],
)
def test_wrong_arguments_get_an_error_that_helps(make, fragment):
    with pytest.raises(ValueError, match=fragment):
        make()


def test_custom_has_no_default_for_features():
    with pytest.raises(TypeError, match="feature_actions"):
        custom("negative", {"negate": negate})


# sample


@pytest.mark.parametrize("moving", [rotation(2), rotation(4), rotation(8), D4, HIDE], ids=str)
@pytest.mark.parametrize("include_identity", [False, True])
@pytest.mark.parametrize("n", [0, 1, 2, 5, 16, 65])
def test_sample_is_stratified_in_contiguous_runs(moving, include_identity, n):
    choices = set(range(0 if include_identity else 1, len(moving)))
    for seed in range(10):
        g = moving.sample(n, torch.Generator().manual_seed(seed), include_identity)
        assert (g.shape, g.dtype, g.device.type) == ((n,), torch.int64, "cpu")
        assert set(g.tolist()) <= choices
        assert len(g.unique_consecutive()) == len(g.unique()) == min(n, len(choices))
        counts = [g.tolist().count(k) for k in choices]
        assert max(counts) - min(counts) <= 1 and sum(counts) == n


@pytest.mark.parametrize("moving, n", [(rotation(4), 5), (rotation(8), 2), (D4, 17)], ids=str)
@pytest.mark.parametrize("include_identity", [False, True])
def test_every_place_draws_every_element_equally_often(moving, n, include_identity):
    generator, first = torch.Generator().manual_seed(1), 0 if include_identity else 1
    draws = torch.stack([moving.sample(n, generator, include_identity) for _ in range(4000)]) - first
    choices = len(moving) - first
    counts = torch.stack([place.bincount(minlength=choices) for place in draws.T]).double()
    expected = 4000 / choices
    chi_square = ((counts - expected) ** 2 / expected).sum(1)
    assert counts.shape == (n, choices)
    assert chi_square.max() < 35  # at 7 degrees of freedom, passed once in 100,000


def test_sample_follows_its_generator_and_leaves_the_global_one_alone():
    state = torch.get_rng_state()
    draws = [rotation(8).sample(20, torch.Generator().manual_seed(seed)).tolist() for seed in (3, 3, 4)]
    assert draws[0] == draws[1] != draws[2]
    assert_same(torch.get_rng_state(), state)
    first, second = rotation(8).sample(20), rotation(8).sample(20)
    torch.set_rng_state(state)
    assert_same(rotation(8).sample(20), first)
    assert not torch.equal(first, second)


def test_sample_is_on_the_cpu_whatever_the_default_device():
    with torch.device("meta"):
        g = rotation(4).sample(7)
    assert g.device.type == "cpu" and sorted(g.bincount().tolist()) == [0, 2, 2, 3]


def test_a_group_of_one_element_has_nothing_to_draw():
    with pytest.raises(ValueError, match="rot1 has one element.*nothing to draw"):
        rotation(1).sample(4)
    assert rotation(1).sample(4, include_identity=True).tolist() == [0, 0, 0, 0]


# g


@pytest.mark.parametrize("method", ["act", "act_on_features", "valid"])
@pytest.mark.parametrize(
    "shape, g, fragment",
    [
        ((3, 1, 4, 4), torch.tensor([0, 1]), r"\(3,\), one element index for each image.*\(2,\)"),
        ((1, 1, 4, 4), torch.tensor(1), r"got torch.int64 of shape \(\)"),
        ((2, 1, 4, 4), torch.tensor([0.0, 1.0]), "must be an integer tensor.*got torch.float32"),
        ((2, 1, 4, 4), torch.tensor([True, False]), "must be an integer tensor.*got torch.bool"),
        ((2, 1, 4, 4), torch.tensor([0, 4]), "rot4 has elements 0 to 3; g has 0 to 4"),
        ((2, 1, 4, 4), torch.tensor([-1, 1]), "rot4 has elements 0 to 3; g has -1 to 1"),
        ((2, 4, 4), torch.tensor([0, 1]), r"\(B, C, H, W\); got \(2, 4, 4\)"),
    ],
)
def test_wrong_g_is_an_error(method, shape, g, fragment):
    with pytest.raises(ValueError, match=fragment):
        getattr(rotation(4), method)(torch.rand(shape), g)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_g_may_be_any_integer_type(dtype):
    x, g = torch.rand(4, 1, 5, 5), torch.tensor([1, 0, 3, 1], dtype=dtype)
    expected = torch.stack([torch.rot90(one, k, (-2, -1)) for one, k in zip(x, g.tolist(), strict=True)])
    assert_same(rotation(4).act(x, g), expected)


def test_an_empty_batch_stays_empty():
    assert rotation(8).act(torch.rand(0, 3, 5, 6), torch.arange(0)).shape == (0, 3, 5, 6)


# valid


@pytest.mark.parametrize("moving", [rotation(4), D4, reflection("vertical"), HIDE, D4 * HIDE], ids=str)
def test_exact_groups_are_valid_everywhere(moving):
    g = torch.arange(len(moving))
    assert moving.valid(torch.rand(len(g), 2, 6, 6), g) is None
    assert moving.coverage((6, 6)) == (1.0,) * len(moving)


@over(RESAMPLED, "moving, element, matrix")
@pytest.mark.parametrize("size", SIZES)
def test_valid_is_where_all_bilinear_neighbours_lie_in_the_map(moving, element, matrix, size):
    expected = valid_mask(matrix, *size)
    assert moving.coverage(size)[element] == pytest.approx(expected.double().mean().item(), abs=1e-12)
    mask = moving.valid(torch.rand(2, 3, *size), torch.tensor([0, element]))
    if expected.all():
        assert mask is None
    else:
        assert_same(mask, torch.stack([torch.ones_like(expected), expected])[:, None])


def test_valid_of_a_mixed_batch_follows_g_and_ones_stay_ones_there():
    g = torch.tensor([3, 0, 1, 2, 6, 3, 4, 9, 1])
    moving, ones = rotation(8) * scale([0.7]), torch.ones(9, 2, 9, 9, dtype=torch.float64)
    mask = moving.valid(ones, g)
    assert (mask.shape, mask.dtype) == ((9, 1, 9, 9), torch.bool)
    for one, k in zip(mask[:, 0], g.tolist(), strict=True):
        assert_same(one, valid_mask(0.7 ** (k % 2) * turn(45 * (k // 2)), 9, 9))
    assert [bool(one.all()) for one in mask] == [k in (0, 4) for k in g.tolist()]
    moved = moving.act(ones, g)
    assert (moved[mask.expand_as(moved)] - 1).abs().max() < 1e-6
    assert_close(
        mask.double().mean((1, 2, 3)), torch.tensor(moving.coverage((9, 9))).double()[g], rtol=0, atol=1e-6
    )


def test_45_degrees_on_2x2_covers_nothing():
    assert rotation(8).coverage((2, 2)) == (1.0, 0.0) * 4


def test_valid_follows_the_chain_of_a_product_with_custom():
    h, last = torch.rand(1, 1, 15, 15), torch.tensor([2 * 8 + 8 + 3])  # 45° after hiding after 135°
    first = valid_mask(turn(135), 15, 15)
    second = valid_mask(turn(45), 15, 15, before=first.numpy())
    assert 0 < second.sum() < first.sum()
    assert_same((HIDE * rotation(8)).valid(h, torch.tensor([8 + 3]))[0, 0], first)
    assert_same((rotation(8) * HIDE * rotation(8)).valid(h, last)[0, 0], second)


# non-square maps


@pytest.mark.parametrize("moving, element", [(rotation(4), 1), (rotation(8), 6), (D4, 3)], ids=str)
def test_quarter_turn_of_a_non_square_map_is_an_error(moving, element):
    with pytest.raises(
        ValueError, match=f"'{moving.labels[element]}' swaps the sides.*4×6.*need square maps"
    ):
        moving.act(torch.rand(2, 1, 4, 6), torch.tensor([0, element]))


@pytest.mark.parametrize(
    "moving, element, axes", [(rotation(4), 2, (-2, -1)), (D4, 1, (-1,)), (reflection("vertical"), 1, (-2,))]
)
def test_half_turns_and_flips_work_on_non_square_maps(moving, element, axes):
    x = torch.rand(2, 3, 4, 6)
    assert_same(moving.act(x, torch.full((2,), element)), x.flip(axes))


# custom


@pytest.mark.parametrize(
    "feature_actions, on_features",
    [
        ("identity", torch.clone),
        ("same", negate),
        ({"negate": "identity"}, torch.clone),
        ({"negate": "same"}, negate),
        ({"negate": torch.exp}, torch.exp),
    ],
)
def test_custom_acts_on_images_and_as_declared_on_features(feature_actions, on_features):
    negative = custom("negative", {"negate": negate}, feature_actions)
    x, g = torch.randn(4, 2, 3, 5), torch.tensor([1, 0, 1, 0])
    chosen = g.bool().view(-1, 1, 1, 1)
    assert_same(negative.act(x, g), torch.where(chosen, -x, x))
    assert_same(negative.act_on_features(x, g), torch.where(chosen, on_features(x), x))


def test_custom_has_no_inverse_and_no_matrix():
    x, product = torch.rand(1, 1, 4, 4), rotation(4) * HIDE
    with pytest.raises(ValueError, match="'90° hide left' .*black box.*no inverse"):
        product.act(x, torch.tensor([3]), inverse=True)
    with pytest.raises(ValueError, match="'hide left' .*no matrix"):
        _ = product.matrices
    assert_same(product.act(x, torch.tensor([2]), inverse=True), torch.rot90(x, -1, (-2, -1)))


@pytest.mark.parametrize(
    "action, got", [(lambda x: x[..., :2], r"\(1, 2, 4, 2\)"), (lambda x: None, "NoneType")]
)
def test_custom_action_must_keep_the_shape(action, got):
    with pytest.raises(ValueError, match=rf"'crop' must keep the shape \(1, 2, 4, 4\); it returned {got}"):
        custom("c", {"crop": action}, "same").act(torch.rand(2, 2, 4, 4), torch.tensor([0, 1]))


# gradients, dtypes, memory


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("moving", [rotation(8), scale([0.7, 1.5]), rotation(8) * HIDE], ids=str)
def test_gradients_agree_with_finite_differences(moving, inverse):
    g = torch.tensor([1, 0, 2, 1, 2, 0, 1])
    if inverse and moving == rotation(8) * HIDE:
        g = 2 * g  # plain rotations
    x = torch.randn(7, 1, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: moving.act(t, g, inverse), (x,))


@pytest.mark.parametrize("g", [[1], [0, 0, 1, 1], [1, 0, 2, 1, 0]], ids=str)
@pytest.mark.parametrize(
    "moving", [rotation(8), D4, custom("wipe", {"a": Tensor.zero_, "b": Tensor.neg_}, "same")], ids=str
)
def test_act_leaves_its_input_alone_and_gives_new_memory(moving, g):
    x, g = torch.randn(len(g), 2, 5, 5), torch.tensor(g)
    before = x.clone()
    moving.act(x, g).fill_(7)
    assert_same(x, before)
    moving.act(x, torch.zeros_like(g)).fill_(7)
    assert_same(x, before)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float16, 2e-3), (torch.bfloat16, 2e-2)], ids=str)
def test_half_precision_is_kept(dtype, tolerance):
    x, g = torch.rand(8, 2, 6, 6).to(dtype), torch.arange(8)
    moved = rotation(8).act(x, g)
    assert moved.dtype == dtype
    assert_close(moved.float(), rotation(8).act(x.float(), g), rtol=0, atol=tolerance)
    assert_same(moved[2], torch.rot90(x[2], 1, (-2, -1)))


def test_interpolating_integers_is_an_error():
    with pytest.raises(ValueError, match="'45°' interpolates.*floating point, not torch.uint8"):
        rotation(8).act(torch.zeros(1, 1, 4, 4, dtype=torch.uint8), torch.tensor([1]))


@pytest.mark.parametrize("g", [[2], [1, 1, 0, 0, 2], [1, 2, 1, 0, 2]], ids=str)
@pytest.mark.parametrize("moving", [rotation(4), rotation(8), scale([0.7, 1.5])], ids=str)
def test_memory_format_is_kept(moving, g):
    x, g = torch.rand(len(g), 3, 5, 5), torch.tensor(g)
    moved = moving.act(x, g)
    last = moving.act(x.contiguous(memory_format=torch.channels_last), g)
    assert moved.is_contiguous()
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert_close(last, moved, rtol=0, atol=1e-6)


def test_what_inference_mode_caches_serves_training():
    moving, g, size = rotation(7) * scale([0.9]), torch.tensor([3]), (11, 13)  # a size used nowhere else
    with torch.inference_mode():
        moving.act(torch.rand(1, 1, *size), g)
        moving.valid(torch.rand(1, 1, *size), g)
    x = torch.rand(1, 1, *size, dtype=torch.float32, requires_grad=True)
    (moving.act(x, g) * moving.valid(x, g)).sum().backward()
    matrix, expected = 0.9 * turn(360 / 7), torch.zeros(size)
    mask = valid_mask(matrix, *size)
    for pixel, found in neighbours(matrix, *size):
        for r, c, weight in found if mask[pixel] else []:
            expected[r, c] += weight
    assert_close(x.grad[0, 0], expected, rtol=0, atol=1e-5)


def test_caches_are_bounded():
    names = {**vars(_similarity), **vars(_groups)}
    caches = {name: f.cache_info().maxsize for name, f in names.items() if hasattr(f, "cache_info")}
    assert {"_grid", "valid_pixels", "_coverage"} <= set(caches)
    assert None not in caches.values()
