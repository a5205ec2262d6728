"""Feature groups against channel loops, plain autograd and the numbers of the paper."""

import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from ien import FeatureGroups, GroupPool, group_pool

POOLS = {  # what is given, and (size, how many feature groups) in the order of the channels
    "four": (4, [(4, 3)]),
    "three": ("3", [(3, 2)]),
    "one": (1, [(1, 5)]),
    "4-2-1": ("4-2-1", [(4, 4), (2, 2), (1, 2)]),
    "8-4-2": ("8-4-2", [(8, 2), (4, 1), (2, 1)]),
    "weights": ({1: 2, 3: 1}, [(3, 2), (1, 4)]),
}
every_pool = pytest.mark.parametrize(("spec", "layout"), POOLS.values(), ids=POOLS.keys())


def channels_of(layout):
    return sum(size * groups for size, groups in layout)


def loop_pool(h, layout):
    """channel = feature_group * size + member inside the contiguous block of each size."""
    h = h.numpy()
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
    return torch.from_numpy(result)


def plain_pool(h, layout):
    """What autograd differentiates by itself."""
    blocks = h.split([size * groups for size, groups in layout], 1)
    sizes = [size for size, _ in layout]
    return torch.cat([b.unflatten(1, (-1, s)).amax(2) for b, s in zip(blocks, sizes, strict=True)], 1)


def gradient(pool, h, how):
    """Of a sum with different weights, so that no two outputs can be exchanged unseen."""
    h = h.detach().requires_grad_()  # keeps the strides
    pooled = pool(h, how)
    weights = torch.linspace(-1, 2, pooled.numel(), dtype=h.dtype).reshape(pooled.shape)
    return torch.autograd.grad(pooled, h, weights)[0]


# --- reading a spec


@pytest.mark.parametrize(
    ("spec", "sizes", "counts", "text"),
    [
        (1, (1,), (1,), "1"),
        (" 16 ", (16,), (1,), "16"),
        ({4: 7.5}, (4,), (1,), "4"),
        ({1: 1, 2: 1, 4: 2}, (4, 2, 1), (2, 1, 1), "4-2-1"),
        ("4-2-1", (4, 2, 1), (2, 1, 1), "4-2-1"),
        ("8-4-2-1", (8, 4, 2, 1), (4, 2, 1, 1), "8-4-2-1"),
        ("1-4", (4, 1), (1, 1), "4-1"),
        # the shares follow the text, the layout puts large sizes first
        ("1-4-2", (4, 2, 1), (1, 1, 2), "{4: 0.25, 2: 0.25, 1: 0.5}"),
        ({4: 1, 1: 3}, (4, 1), (1, 3), "{4: 0.25, 1: 0.75}"),
        ({4: 0.1, 3: 0.2, 1: 0.7}, (4, 3, 1), (1, 2, 7), "{4: 0.1, 3: 0.2, 1: 0.7}"),
        ({4: 1 / 3, 2: 1 / 3, 1: 1 / 3}, (4, 2, 1), (1, 1, 1), "{4: 1, 2: 1, 1: 1}"),
    ],
)
def test_spec_becomes_sizes_the_smallest_whole_counts_and_a_text(spec, sizes, counts, text):
    groups = FeatureGroups.of(spec)
    assert (groups.sizes, groups.counts, str(groups)) == (sizes, counts, text)
    assert eval(repr(groups)) == FeatureGroups.of(groups) == pickle.loads(pickle.dumps(groups)) == groups
    with pytest.raises(AttributeError, match="cannot assign to field 'sizes'"):
        groups.sizes = (1,)


def test_partitions_are_equal_whatever_their_spelling_and_no_others_are():
    spellings = [dict(order) for order in itertools.permutations({4: 0.5, 2: 0.25, 1: 0.25}.items())]
    spellings += ["4-2-1", {4: 2, 2: 1, 1: 1}, {1: 0.1, 2: 0.1, 4: 0.2}, FeatureGroups.of("4-2-1")]
    assert len({FeatureGroups.of(spec) for spec in spellings}) == 1
    different = [4, 2, "4-2", "4-2-1", "1-2-4", "8-4-2", {4: 1 / 3, 2: 1 / 3, 1: 1 / 3}]
    assert len({FeatureGroups.of(spec) for spec in different}) == len(different)
    assert FeatureGroups.of({4: 1000, 2: 1}).counts == (1000, 1)  # whole numbers are not rounded


NOT_SIZES = [0, -4, "0", "4-0", {}, {0: 1}, {-2: 1}, {2.5: 1}, {"4": 1}, {True: 1}, {4: 1, "2": 1}]
NOT_SHARES = [{4: 1, 2: share} for share in (0, -1, math.nan, math.inf, "1", None)]
NOT_TEXTS = ["", "-", "4-", "-4", "4--2", "4-4", "4-2-4", "4-04", "4,2", "4 - 2", "4-2.5", "four", "²"]
MISTAKES = [
    (NOT_SIZES + NOT_SHARES, ValueError, r"whole sizes of at least 1 with positive shares.*got \{"),
    ([{4: 1, 2: 1e-5}], ValueError, "must be at least 1/1000"),
    (NOT_TEXTS, ValueError, r'written as "4" or "4-2-1" \(different sizes\); got'),
    ([4.0, None, True, [4], (4,), b"4"], TypeError, r'\(4\), a text \("4-2-1"\) or \{size: share\}; got'),
]


@pytest.mark.parametrize(("spec", "error", "match"), [(s, *rest) for specs, *rest in MISTAKES for s in specs])
def test_what_is_no_partition_is_an_error(spec, error, match):
    with pytest.raises(error, match=match):
        FeatureGroups.of(spec)


# --- counting


def test_channels_and_blocks_of_4_2_1_are_those_of_the_paper():
    groups = FeatureGroups.of("4-2-1")
    paper = {32: 88, 48: 132, 64: 176, 96: 264, 128: 352}
    assert {num_groups: groups.channels(num_groups) for num_groups in paper} == paper
    assert [groups.num_groups(channels) for channels in paper.values()] == list(paper)
    assert groups.blocks(88) == [(4, 64), (2, 16), (1, 8)]


@pytest.mark.parametrize(
    ("spec", "share", "percent"),
    [("4-2-1", 11 / 16, "69%"), ("8-4-2-1", 43 / 64, "67%"), ("8-4-2", 11 / 16, "69%"), (4, 1, "100%")],
)
def test_channel_share_is_that_of_the_paper(spec, share, percent):
    channel_share = FeatureGroups.of(spec).channel_share
    assert channel_share == pytest.approx(share, abs=1e-15)
    assert f"{channel_share:.0%}" == percent


@pytest.mark.parametrize(("spec", "step"), [(1, 1), (4, 4), ("4-2", 6), ("4-2-1", 11), ("8-4-2-1", 43)])
def test_nearest_is_the_closest_multiple_and_the_smaller_of_two(spec, step):
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
    ],
)
def test_channels_that_do_not_divide_name_the_nearest(spec, channels, message):
    groups = FeatureGroups.of(spec)
    for split in (groups.num_groups, groups.blocks, lambda c: group_pool(torch.zeros(2, c, 3), spec)):
        with pytest.raises(ValueError, match=message):
            split(channels)


@pytest.mark.parametrize(("given", "nearest"), [(6, "4 or 8"), (3, "4"), (0, "4"), (-4, "4")])
def test_feature_groups_that_do_not_divide_name_the_nearest(given, nearest):
    with pytest.raises(ValueError, match=rf"{given} feature groups .* multiple of 4 \(nearest: {nearest}\)"):
        FeatureGroups.of("4-2-1").channels(given)


mixes = st.dictionaries(st.sampled_from([1, 2, 3, 4, 8]), st.integers(1, 6), min_size=1)


def layout_of(mix, units):
    common = math.gcd(*mix.values())
    return [(size, units * mix[size] // common) for size in sorted(mix, reverse=True)]


@settings(deadline=None, max_examples=100)
@given(mix=mixes, scale=st.floats(1e-3, 1e3), units=st.integers(1, 50))
def test_any_mix_counts_channels_and_feature_groups_both_ways(mix, scale, units):
    groups = FeatureGroups.of({size: weight * scale for size, weight in mix.items()})
    layout = layout_of(mix, units)
    num_groups, channels = sum(n for _, n in layout), channels_of(layout)
    assert groups == FeatureGroups.of(mix) == eval(repr(groups))
    assert groups.unit * units == num_groups
    assert groups.channels(num_groups) == channels
    assert groups.num_groups(channels) == num_groups
    assert groups.nearest(channels) == channels
    assert groups.blocks(channels) == [(size, size * n) for size, n in layout]


# --- pooling


@settings(deadline=None, max_examples=60)
@given(
    mix=mixes,
    units=st.integers(1, 2),
    batch=st.integers(0, 2),
    spatial=st.lists(st.integers(1, 3), max_size=3),
    seed=st.integers(0, 2**31),
    ties=st.booleans(),
)
def test_any_pool_equals_the_loop_and_has_the_gradient_of_amax(mix, units, batch, spatial, seed, ties):
    layout = layout_of(mix, units)
    generator = torch.Generator().manual_seed(seed)
    h = torch.randn(batch, channels_of(layout), *spatial, generator=generator, dtype=torch.float64)
    h = h.round() if ties else h
    expected = loop_pool(h, layout)
    assert torch.equal(group_pool(h, mix), expected)
    pooled = group_pool(h.clone().requires_grad_(), mix)
    assert pooled.requires_grad and torch.equal(pooled, expected)
    with torch.inference_mode():
        assert torch.equal(group_pool(h, mix), expected)
    slopes = gradient(group_pool, h, mix), gradient(plain_pool, h, layout)
    torch.testing.assert_close(*slopes, rtol=0, atol=1e-15)


@pytest.mark.parametrize("shape", [(), (4,)])
def test_maps_without_channels_are_an_error(shape):
    with pytest.raises(ValueError, match=r"needs maps of shape \(B, C, …\); got \("):
        group_pool(torch.zeros(shape), 4)


@every_pool
def test_result_shares_no_memory_with_the_input(spec, layout):
    h = torch.randn(2, channels_of(layout), 3, 3, requires_grad=True)
    before = h.detach().clone()
    group_pool(h, spec).detach().zero_()
    assert torch.equal(h, before)


@every_pool
def test_gradients_are_those_of_finite_differences(spec, layout):
    # well separated values: no finite difference crosses a tie
    h = torch.randperm(2 * channels_of(layout)).double().reshape(2, -1, 1).requires_grad_()
    assert gradcheck(lambda h: group_pool(h, spec), h)
    assert gradgradcheck(lambda h: group_pool(h, spec).square(), h)


@every_pool
def test_members_that_all_tie_share_the_gradient_evenly(spec, layout):
    h = torch.full((2, channels_of(layout), 3), 0.7, dtype=torch.float64, requires_grad=True)
    group_pool(h, spec).sum().backward()
    share = [1 / size for size, groups in layout for _ in range(size * groups)]
    expected = torch.tensor(share, dtype=torch.float64)[None, :, None].expand_as(h)
    torch.testing.assert_close(h.grad, expected, rtol=0, atol=1e-15)


@every_pool
def test_second_derivative_is_that_of_amax(spec, layout):
    h = torch.randint(3, (2, channels_of(layout), 3)).double()

    def slope(h, pooled):
        pool, how = pooled
        return torch.autograd.grad(pool(h, how).pow(3).sum(), h, create_graph=True)[0].square()

    expected = gradient(slope, h, (plain_pool, layout))
    torch.testing.assert_close(gradient(slope, h, (group_pool, spec)), expected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_gradient_hook_on_the_maps_acts_once(create_graph):
    leaf = torch.tensor([[0.0, 1.0, 5.0, 3.0]], requires_grad=True)
    h = leaf * 1
    h.register_hook(lambda grad: 2 * grad)
    (grad,) = torch.autograd.grad(group_pool(h, 2).sum(), leaf, create_graph=create_graph)
    assert grad.tolist() == [[0, 2, 2, 0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@every_pool
def test_half_precision_is_kept_forward_and_backward(spec, layout, dtype):
    h = torch.randn(2, channels_of(layout), 4, 4).to(dtype)
    assert torch.equal(group_pool(h.clone().requires_grad_(), spec), loop_pool(h.float(), layout).to(dtype))
    slopes = gradient(group_pool, h, spec), gradient(plain_pool, h, layout)
    assert slopes[0].dtype == dtype and torch.equal(*slopes)


# --- layouts in memory

LAYOUTS = {
    "channels_last": lambda c: torch.randn(2, c, 3, 4).to(memory_format=torch.channels_last),
    "spatial transposed": lambda c: torch.randn(2, c, 3, 4).transpose(2, 3),
    "batch and channels transposed": lambda c: torch.randn(c, 2, 3, 4).transpose(0, 1),
    "every other channel": lambda c: torch.randn(2, 2 * c, 3, 4)[:, ::2],
    "cropped": lambda c: torch.randn(2, c, 6, 7)[:, :, 1:4, 2:6],
    "expanded batch": lambda c: torch.randn(1, c, 3, 4).expand(2, -1, -1, -1),
    "expanded pixels": lambda c: torch.randn(2, c, 1, 1).expand(-1, -1, 3, 4),
}


@pytest.mark.parametrize("name", LAYOUTS)
@every_pool
def test_values_and_gradient_do_not_depend_on_strides_and_last_stays_last(spec, layout, name):
    h = LAYOUTS[name](channels_of(layout))
    assert not h.is_contiguous()
    for pooled in (group_pool(h, spec), group_pool(h.detach().requires_grad_(), spec)):
        assert torch.equal(pooled, loop_pool(h, layout))
        if name == "channels_last":
            assert pooled.is_contiguous(memory_format=torch.channels_last) and not pooled.is_contiguous()
    slopes = gradient(group_pool, h, spec), gradient(plain_pool, h.contiguous(), layout)
    torch.testing.assert_close(*slopes, rtol=0, atol=1e-7)


# --- the module


def test_module_equals_function_and_has_no_state():
    h, module = torch.randn(2, 22, 3, 3), GroupPool({1: 1, 2: 1, 4: 2})
    assert torch.equal(module(h), group_pool(h, "4-2-1"))
    assert torch.equal(pickle.loads(pickle.dumps(module))(h), group_pool(h, "4-2-1"))
    assert (list(module.parameters()), list(module.buffers()), dict(module.state_dict())) == ([], [], {})
    assert repr(module) == "GroupPool(4-2-1)"


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_module_gives_the_same_values_and_gradients(fresh_compiler, backend):
    spec, layout = POOLS["4-2-1"]
    h = torch.randn(2, channels_of(layout), 3, 3)
    compiled = torch.compile(GroupPool(spec), backend=backend, fullgraph=True)
    assert torch.equal(compiled(h), group_pool(h, spec))
    slopes = gradient(lambda h, _: compiled(h), h, spec), gradient(plain_pool, h, layout)
    torch.testing.assert_close(*slopes)


def test_exported_module_gives_the_same_values(fresh_compiler):
    h = torch.randn(2, 22, 3, 3)
    exported = torch.export.export(GroupPool("4-2-1"), (torch.zeros_like(h),))
    assert torch.equal(exported.module()(h), group_pool(h, "4-2-1"))


def test_function_transforms_see_the_plain_maximum():
    h = torch.rand(3, 8, 2, 2, dtype=torch.float64)
    per_sample = torch.func.vmap(torch.func.grad(lambda x: group_pool(x[None], 4).square().sum()))(h)
    leaf = h.clone().requires_grad_()
    group_pool(leaf, 4).square().sum().backward()
    torch.testing.assert_close(per_sample, leaf.grad)
