"""Feature groups against channel loops, plain autograd and the numbers of the paper."""

import itertools
import math
import pickle
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from ien import FeatureGroups, GroupPool, group_pool
from ien.loss.feature_groups import Spec

Layout = list[tuple[int, int]]  # (size, how many feature groups), in the order of the channels

POOLS: dict[str, tuple[Spec, Layout]] = {
    "four": (4, [(4, 3)]),
    "three": ("3", [(3, 2)]),
    "one": (1, [(1, 5)]),
    "4-2-1": ("4-2-1", [(4, 4), (2, 2), (1, 2)]),
    "8-4-2": ("8-4-2", [(8, 2), (4, 1), (2, 1)]),
    "weights": ({1: 2, 3: 1}, [(3, 2), (1, 4)]),
}
SHAPES: dict[str, tuple[int, ...]] = {
    "BC": (),
    "BCL": (7,),
    "BCHW": (3, 4),
    "BCDHW": (2, 3, 2),
}

every_pool = pytest.mark.parametrize(("spec", "layout"), POOLS.values(), ids=POOLS.keys())
every_shape = pytest.mark.parametrize("spatial", SHAPES.values(), ids=SHAPES.keys())


def channels_of(layout: Layout) -> int:
    return sum(size * groups for size, groups in layout)


def loop_pool(h: np.ndarray, layout: Layout) -> np.ndarray:
    """channel = feature_group * size + member inside the contiguous block of each size."""
    result = np.empty((h.shape[0], sum(groups for _, groups in layout), *h.shape[2:]), h.dtype)
    first_channel = first_group = 0
    for size, groups in layout:
        for feature_group, b in itertools.product(range(groups), range(h.shape[0])):
            for pixel in np.ndindex(h.shape[2:]):
                members = [h[(b, first_channel + feature_group * size + m, *pixel)] for m in range(size)]
                result[(b, first_group + feature_group, *pixel)] = max(members)
        first_channel += size * groups
        first_group += groups
    assert first_channel == h.shape[1]
    return result


def plain_pool(h: Tensor, layout: Layout) -> Tensor:
    """What autograd differentiates by itself."""
    blocks = h.split([size * groups for size, groups in layout], 1)
    sizes = [size for size, _ in layout]
    return torch.cat([b.unflatten(1, (-1, s)).amax(2) for b, s in zip(blocks, sizes, strict=True)], 1)


def gradient(pool: Callable[[Tensor], Tensor], h: Tensor) -> Tensor:
    """Of a sum with different weights, so that no two outputs can be exchanged unseen."""
    h = h.detach().requires_grad_()  # keeps the strides
    pooled = pool(h)
    weights = torch.linspace(-1, 2, pooled.numel(), dtype=h.dtype).reshape(pooled.shape)
    return torch.autograd.grad(pooled, h, weights)[0]


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# --- reading a spec


@pytest.mark.parametrize(
    ("spec", "sizes", "counts"),
    [
        (4, (4,), (1,)),
        (1, (1,), (1,)),
        ("4", (4,), (1,)),
        (" 16 ", (16,), (1,)),
        ({4: 7.5}, (4,), (1,)),
        ({4: 0.5, 2: 0.25, 1: 0.25}, (4, 2, 1), (2, 1, 1)),
        ("4-2-1", (4, 2, 1), (2, 1, 1)),
        ("8-4-2-1", (8, 4, 2, 1), (4, 2, 1, 1)),
        ("8-4-2", (8, 4, 2), (2, 1, 1)),
        ("4-1", (4, 1), (1, 1)),
        ("1-4", (4, 1), (1, 1)),
        ("1-2-4", (4, 2, 1), (1, 1, 2)),  # the shares follow the text, the layout puts large sizes first
        ({4: 2, 2: 1, 1: 1}, (4, 2, 1), (2, 1, 1)),
        ({4: 10, 2: 4}, (4, 2), (5, 2)),
        ({4: 1 / 3, 2: 1 / 3, 1: 1 / 3}, (4, 2, 1), (1, 1, 1)),
        ({4: 0.1, 3: 0.2, 1: 0.7}, (4, 3, 1), (1, 2, 7)),
        ({4: 3 / 7, 2: 4 / 7}, (4, 2), (3, 4)),
        ({4: 1000, 2: 1}, (4, 2), (1000, 1)),
    ],
)
def test_spec_becomes_sizes_and_the_smallest_whole_counts(
    spec: Spec, sizes: tuple[int, ...], counts: tuple[int, ...]
) -> None:
    groups = FeatureGroups.of(spec)
    assert (groups.sizes, groups.counts) == (sizes, counts)


def test_key_order_weights_and_spelling_make_no_difference() -> None:
    shares = {4: 0.5, 2: 0.25, 1: 0.25}
    spellings: list[Spec] = [dict(order) for order in itertools.permutations(shares.items())]
    spellings += ["4-2-1", {4: 2, 2: 1, 1: 1}, {1: 0.1, 2: 0.1, 4: 0.2}, FeatureGroups.of("4-2-1")]
    read = [FeatureGroups.of(spec) for spec in spellings]
    assert all(groups == read[0] for groups in read)
    assert len({hash(groups) for groups in read}) == 1


def test_different_partitions_are_different_values() -> None:
    specs: list[Spec] = [4, 2, "4-2", "4-2-1", "1-2-4", "8-4-2", {4: 1 / 3, 2: 1 / 3, 1: 1 / 3}]
    assert len({FeatureGroups.of(spec) for spec in specs}) == len(specs)


def test_partition_is_a_frozen_value() -> None:
    groups = FeatureGroups.of("4-2-1")
    with pytest.raises(AttributeError, match="cannot assign to field 'sizes'"):
        groups.sizes = (1,)  # type: ignore[misc]
    assert FeatureGroups.of(groups) == groups
    assert pickle.loads(pickle.dumps(groups)) == groups


@pytest.mark.parametrize(
    ("spec", "text", "representation"),
    [
        (4, "4", "FeatureGroups.of(4)"),
        ({4: 1, 1: 3}, "{4: 0.25, 1: 0.75}", "FeatureGroups.of({4: 0.25, 1: 0.75})"),
        ({1: 1, 2: 1, 4: 2}, "4-2-1", "FeatureGroups.of({4: 0.5, 2: 0.25, 1: 0.25})"),
        ("8-4-2", "8-4-2", "FeatureGroups.of({8: 0.5, 4: 0.25, 2: 0.25})"),
        ("1-4-2", "{4: 0.25, 2: 0.25, 1: 0.5}", "FeatureGroups.of({4: 0.25, 2: 0.25, 1: 0.5})"),
    ],
)
def test_str_and_repr_can_be_read_and_read_back(spec: Spec, text: str, representation: str) -> None:
    groups = FeatureGroups.of(spec)
    assert (str(groups), repr(groups)) == (text, representation)
    assert eval(repr(groups)) == groups


@pytest.mark.parametrize(
    "spec", [0, -4, "0", "4-0", {}, {0: 1}, {-2: 1}, {2.5: 1}, {"4": 1}, {True: 1}, {4: 1, "2": 1}]
)
def test_sizes_below_one_or_not_whole_are_an_error(spec: Spec) -> None:
    with pytest.raises(ValueError, match=r"whole sizes of at least 1 with positive shares.*got \{"):
        FeatureGroups.of(spec)


@pytest.mark.parametrize("share", [0, -1, math.nan, math.inf, "1", None])
def test_shares_that_are_not_positive_numbers_are_an_error(share: object) -> None:
    with pytest.raises(ValueError, match="whole sizes of at least 1 with positive shares"):
        FeatureGroups.of({4: 1, 2: share})  # type: ignore[dict-item]


def test_shares_too_small_to_lay_out_are_an_error() -> None:
    with pytest.raises(ValueError, match="below 1/1000 are not supported"):
        FeatureGroups.of({4: 1, 2: 1e-5})


@pytest.mark.parametrize(
    "text", ["", "-", "4-", "-4", "4--2", "4-4", "4-2-4", "4-04", "4,2", "4 - 2", "4-2.5", "four", "²"]
)
def test_texts_that_are_not_different_sizes_are_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r'written as "4" or "4-2-1" \(different sizes\); got'):
        FeatureGroups.of(text)


@pytest.mark.parametrize("spec", [4.0, None, True, [4, 2, 1], (4,), b"4"])
def test_other_types_are_a_type_error(spec: object) -> None:
    with pytest.raises(TypeError, match=r'a size \(4\), a text \("4-2-1"\) or \{size: share\}; got'):
        FeatureGroups.of(spec)  # type: ignore[arg-type]


# --- counting


@pytest.mark.parametrize(
    ("spec", "unit"), [(4, 1), ("4-2-1", 4), ("8-4-2-1", 8), ("8-4-2", 4), ({4: 1, 2: 1, 1: 1}, 3)]
)
def test_unit_is_the_smallest_number_of_feature_groups(spec: Spec, unit: int) -> None:
    assert FeatureGroups.of(spec).unit == unit


@pytest.mark.parametrize(("num_groups", "channels"), [(32, 88), (48, 132), (64, 176), (96, 264), (128, 352)])
def test_channels_of_4_2_1_are_those_of_the_paper(num_groups: int, channels: int) -> None:
    groups = FeatureGroups.of("4-2-1")
    assert groups.channels(num_groups) == channels
    assert groups.num_groups(channels) == num_groups


@pytest.mark.parametrize(
    ("spec", "share", "percent"),
    [
        ("4-2-1", 11 / 16, "69%"),
        ("8-4-2-1", 43 / 64, "67%"),
        ("8-4-2", 11 / 16, "69%"),
        (4, 1, "100%"),
        ({4: 1, 2: 1, 1: 1}, 7 / 12, "58%"),
    ],
)
def test_channel_share_is_that_of_the_paper(spec: Spec, share: float, percent: str) -> None:
    channel_share = FeatureGroups.of(spec).channel_share
    assert channel_share == pytest.approx(share, abs=1e-15)
    assert f"{channel_share:.0%}" == percent


def test_blocks_of_the_paper_net() -> None:
    assert FeatureGroups.of("4-2-1").blocks(88) == [(4, 64), (2, 16), (1, 8)]


@pytest.mark.parametrize(("spec", "step"), [(1, 1), (4, 4), ("4-2", 6), ("4-2-1", 11), ("8-4-2-1", 43)])
def test_nearest_is_the_closest_multiple_and_the_smaller_of_two(spec: Spec, step: int) -> None:
    groups = FeatureGroups.of(spec)
    multiples = range(step, 400, step)
    for channels in range(1, 300):
        closest = min(multiples, key=lambda multiple: (abs(multiple - channels), multiple))
        assert groups.nearest(channels) == closest, channels


@pytest.mark.parametrize(
    ("spec", "channels", "message"),
    [
        ("4-2-1", 64, r"64 channels .* 4-2-1: .* multiple of 11 \(nearest: 55 or 66\)"),
        ("4-2-1", 5, r"5 channels .* multiple of 11 \(nearest: 11\)"),
        ("4-2-1", 0, r"0 channels .* multiple of 11 \(nearest: 11\)"),
        (4, 30, r"30 channels .* multiple of 4 \(nearest: 28 or 32\)"),
        ({4: 1, 2: 1, 1: 1}, 20, r"20 channels .* multiple of 7 \(nearest: 14 or 21\)"),
    ],
)
def test_channels_that_do_not_divide_name_the_nearest(spec: Spec, channels: int, message: str) -> None:
    groups = FeatureGroups.of(spec)
    for split in (groups.num_groups, groups.blocks, lambda c: group_pool(torch.zeros(2, c, 3), spec)):
        with pytest.raises(ValueError, match=message):
            split(channels)


@pytest.mark.parametrize(("given", "nearest"), [(6, "4 or 8"), (3, "4"), (0, "4"), (-4, "4")])
def test_feature_groups_that_do_not_divide_name_the_nearest(given: int, nearest: str) -> None:
    with pytest.raises(ValueError, match=rf"{given} feature groups .* multiple of 4 \(nearest: {nearest}\)"):
        FeatureGroups.of("4-2-1").channels(given)


# --- pooling


@every_pool
@every_shape
def test_pool_equals_a_loop_in_every_mode(spec: Spec, layout: Layout, spatial: tuple[int, ...]) -> None:
    h = torch.randn(2, channels_of(layout), *spatial)
    expected = loop_pool(h.numpy(), layout)
    np.testing.assert_array_equal(group_pool(h, spec).numpy(), expected)
    pooled = group_pool(h.requires_grad_(), spec)
    assert pooled.requires_grad
    np.testing.assert_array_equal(pooled.detach().numpy(), expected)
    with torch.inference_mode():
        np.testing.assert_array_equal(group_pool(h, spec).numpy(), expected)


@every_pool
def test_pool_of_an_empty_batch_is_empty(spec: Spec, layout: Layout) -> None:
    h = torch.zeros(0, channels_of(layout), 3, 3, requires_grad=True)
    pooled = group_pool(h, spec)
    pooled.sum().backward()
    assert pooled.shape == (0, sum(groups for _, groups in layout), 3, 3)
    assert h.grad is not None and h.grad.shape == h.shape


@pytest.mark.parametrize("shape", [(), (4,)])
def test_maps_without_channels_are_an_error(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"needs maps of shape \(B, C, …\); got \("):
        group_pool(torch.zeros(shape), 4)


@every_pool
def test_result_shares_no_memory_with_the_input(spec: Spec, layout: Layout) -> None:
    h = torch.randn(2, channels_of(layout), 3, 3, requires_grad=True)
    before = h.detach().clone()
    group_pool(h, spec).detach().zero_()
    assert torch.equal(h, before)


# --- gradients


@every_pool
def test_gradients_are_those_of_finite_differences(spec: Spec, layout: Layout) -> None:
    # well separated values: no finite difference crosses a tie
    count = 2 * channels_of(layout) * 2
    h = torch.randperm(count).double().reshape(2, -1, 2).requires_grad_()
    assert gradcheck(lambda h: group_pool(h, spec), h)
    assert gradgradcheck(lambda h: group_pool(h, spec).square(), h)


@every_pool
def test_members_that_all_tie_share_the_gradient_evenly(spec: Spec, layout: Layout) -> None:
    h = torch.full((2, channels_of(layout), 3), 0.7, dtype=torch.float64, requires_grad=True)
    group_pool(h, spec).sum().backward()
    share = [1 / size for size, groups in layout for _ in range(size * groups)]
    expected = torch.tensor(share, dtype=torch.float64)[None, :, None].expand_as(h)
    torch.testing.assert_close(h.grad, expected, rtol=0, atol=1e-15)


@every_pool
def test_second_derivative_is_that_of_amax(spec: Spec, layout: Layout) -> None:
    h = torch.randint(3, (2, channels_of(layout), 3)).double()

    def slope(pool: Callable[[Tensor], Tensor], h: Tensor) -> Tensor:
        return torch.autograd.grad(pool(h).pow(3).sum(), h, create_graph=True)[0].square()

    expected = gradient(lambda h: slope(lambda h: plain_pool(h, layout), h), h)
    result = gradient(lambda h: slope(lambda h: group_pool(h, spec), h), h)
    torch.testing.assert_close(result, expected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_gradient_hook_on_the_maps_acts_once(create_graph: bool) -> None:
    leaf = torch.tensor([[0.0, 1.0, 5.0, 3.0]], requires_grad=True)
    h = leaf * 1
    h.register_hook(lambda grad: 2 * grad)
    (grad,) = torch.autograd.grad(group_pool(h, 2).sum(), leaf, create_graph=create_graph)
    assert grad.tolist() == [[0, 2, 2, 0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@every_pool
def test_half_precision_is_kept_forward_and_backward(spec: Spec, layout: Layout, dtype: torch.dtype) -> None:
    h = torch.randn(2, channels_of(layout), 4, 4).to(dtype)
    pooled = group_pool(h.clone().requires_grad_(), spec)
    assert pooled.dtype == dtype
    np.testing.assert_array_equal(pooled.detach().float().numpy(), loop_pool(h.float().numpy(), layout))
    result = gradient(lambda h: group_pool(h, spec), h)
    assert result.dtype == dtype
    assert torch.equal(result, gradient(lambda h: plain_pool(h, layout), h))


# --- layouts in memory


@pytest.mark.parametrize("requires_grad", [False, True])
@every_pool
def test_channels_last_is_kept(spec: Spec, layout: Layout, requires_grad: bool) -> None:
    h = torch.randn(2, channels_of(layout), 3, 4).to(memory_format=torch.channels_last)
    pooled = group_pool(h.requires_grad_(requires_grad), spec)
    assert pooled.is_contiguous(memory_format=torch.channels_last)
    assert not pooled.is_contiguous()
    np.testing.assert_array_equal(pooled.detach().numpy(), loop_pool(h.detach().numpy(), layout))


LAYOUTS: dict[str, Callable[[int], Tensor]] = {
    "channels_last": lambda c: torch.randn(2, c, 3, 4).to(memory_format=torch.channels_last),
    "spatial transposed": lambda c: torch.randn(2, c, 3, 4).transpose(2, 3),
    "batch and channels transposed": lambda c: torch.randn(c, 2, 3, 4).transpose(0, 1),
    "every other channel": lambda c: torch.randn(2, 2 * c, 3, 4)[:, ::2],
    "cropped": lambda c: torch.randn(2, c, 6, 7)[:, :, 1:4, 2:6],
    "expanded batch": lambda c: torch.randn(1, c, 3, 4).expand(2, -1, -1, -1),
    "expanded pixels": lambda c: torch.randn(2, c, 1, 1).expand(-1, -1, 3, 4),
}


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS.keys())
@every_pool
def test_values_and_gradient_do_not_depend_on_strides(
    spec: Spec, layout: Layout, make: Callable[[int], Tensor]
) -> None:
    h = make(channels_of(layout))
    assert not h.is_contiguous()
    np.testing.assert_array_equal(group_pool(h, spec).numpy(), loop_pool(h.numpy(), layout))
    expected = gradient(lambda h: plain_pool(h, layout), h.contiguous())
    torch.testing.assert_close(gradient(lambda h: group_pool(h, spec), h), expected, rtol=0, atol=1e-7)


# --- the module


@every_pool
def test_module_equals_function(spec: Spec, layout: Layout) -> None:
    h = torch.randn(2, channels_of(layout), 3, 3)
    module = GroupPool(spec)
    assert torch.equal(module(h), group_pool(h, spec))
    assert torch.equal(pickle.loads(pickle.dumps(module))(h), group_pool(h, spec))


def test_module_has_no_state_and_a_readable_repr() -> None:
    module = GroupPool({1: 1, 2: 1, 4: 2})
    assert (list(module.parameters()), list(module.buffers()), dict(module.state_dict())) == ([], [], {})
    assert repr(module) == "GroupPool(4-2-1)"


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_module_gives_the_same_values_and_gradients(fresh_compiler: None, backend: str) -> None:
    spec, layout = POOLS["4-2-1"]
    h = torch.randn(2, channels_of(layout), 3, 3)
    compiled = torch.compile(GroupPool(spec), backend=backend, fullgraph=True)
    assert torch.equal(compiled(h), group_pool(h, spec))
    torch.testing.assert_close(gradient(compiled, h), gradient(lambda h: plain_pool(h, layout), h))


def test_exported_module_gives_the_same_values(fresh_compiler: None) -> None:
    h = torch.randn(2, 22, 3, 3)
    exported = torch.export.export(GroupPool("4-2-1"), (torch.zeros_like(h),))
    assert torch.equal(exported.module()(h), group_pool(h, "4-2-1"))


# --- any mix

mixes = st.dictionaries(st.sampled_from([1, 2, 3, 4, 8]), st.integers(1, 6), min_size=1)


def layout_of(mix: dict[int, int], units: int) -> Layout:
    common = math.gcd(*mix.values())
    return [(size, units * mix[size] // common) for size in sorted(mix, reverse=True)]


@settings(deadline=None, max_examples=60)
@given(
    mix=mixes,
    units=st.integers(1, 2),
    batch=st.integers(0, 2),
    spatial=st.lists(st.integers(1, 3), max_size=3),
    seed=st.integers(0, 2**31),
    ties=st.booleans(),
)
def test_any_pool_equals_the_loop_and_has_the_gradient_of_amax(
    mix: dict[int, int], units: int, batch: int, spatial: list[int], seed: int, ties: bool
) -> None:
    layout = layout_of(mix, units)
    generator = torch.Generator().manual_seed(seed)
    h = torch.randn(batch, channels_of(layout), *spatial, generator=generator, dtype=torch.float64)
    h = h.round() if ties else h
    np.testing.assert_array_equal(group_pool(h, mix).numpy(), loop_pool(h.numpy(), layout))
    expected = gradient(lambda h: plain_pool(h, layout), h)
    torch.testing.assert_close(gradient(lambda h: group_pool(h, mix), h), expected, rtol=0, atol=1e-15)


@settings(deadline=None, max_examples=100)
@given(mix=mixes, scale=st.floats(1e-3, 1e3), units=st.integers(1, 50))
def test_any_mix_counts_channels_and_feature_groups_both_ways(
    mix: dict[int, int], scale: float, units: int
) -> None:
    groups = FeatureGroups.of({size: weight * scale for size, weight in mix.items()})
    layout = layout_of(mix, units)
    num_groups, channels = sum(n for _, n in layout), channels_of(layout)
    assert groups == FeatureGroups.of(mix)
    assert groups.unit * units == num_groups
    assert groups.channels(num_groups) == channels
    assert groups.num_groups(channels) == num_groups
    assert groups.nearest(channels) == channels
    assert groups.blocks(channels) == [(size, size * n) for size, n in layout]
    assert eval(repr(groups)) == groups


def test_function_transforms_see_the_plain_maximum():
    h = torch.rand(3, 8, 2, 2, dtype=torch.float64)
    per_sample = torch.func.vmap(torch.func.grad(lambda x: group_pool(x[None], 4).square().sum()))(h)
    leaf = h.clone().requires_grad_()
    group_pool(leaf, 4).square().sum().backward()
    torch.testing.assert_close(per_sample, leaf.grad)
