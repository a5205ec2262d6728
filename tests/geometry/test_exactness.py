"""Steps are tried on small maps, and the answer is that of the large ones."""

import gc
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ien.geometry import exactness
from ien.geometry.exactness import Step, is_exact, size_after
from ien.geometry.rules_rearrange import _slice_map
from tests.helpers.symmetrised import Fn, diagnosed, resize, strided

AVG_POOL = torch.ops.aten.avg_pool2d.default
MAX_POOL = torch.ops.aten.max_pool2d_with_indices.default


@st.composite
def chains(draw: st.DrawFn) -> tuple[Step, ...]:
    """Convolutions, pools, slices and pads, one after the other; slices end at a negative index."""
    chosen = []
    for kind in draw(st.lists(st.sampled_from(["pool", "conv", "slice", "pad"]), min_size=1, max_size=3)):
        k, s = draw(st.integers(1, 4)), draw(st.integers(1, 3))
        args = {"stride": (s, s), "padding": (k // 2, k // 2)}
        if kind == "pool":
            func = draw(st.sampled_from([AVG_POOL, MAX_POOL]))
            args |= {"kernel_size": (k, k), "ceil_mode": draw(st.booleans())}
        elif kind == "conv":
            func, args = torch.ops.aten.convolution.default, args | {"kernel": (k, k), "dilation": (1, 1)}
            args |= {"transposed": draw(st.booleans()), "output_padding": (0, 0)}
        elif kind == "slice":
            func, args = _slice_map, {"dim": 2, "start": draw(st.integers(0, 3))}
            args |= {"stop": -draw(st.integers(0, 3)), "step": s}
            chosen.append(Step(kind, func, tuple((args | {"dim": 3}).items())))
        else:
            func, args = F.pad, {"pad": draw(st.tuples(*[st.integers(0, 3)] * 4)), "mode": "reflect"}
        chosen.append(Step(kind, func, tuple(args.items())))
    return tuple(chosen)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(chains(), st.integers(60, 72))
def test_a_chain_on_a_small_map_answers_for_the_large_one(chain, n) -> None:
    size, placed = (n, n), ()
    x = torch.rand(1, 1, n, n, dtype=torch.float64)
    for step in chain:
        args = dict(step.args)
        if step.kind == "slice":  # the end was drawn from the far edge
            args["stop"] += size[args["dim"] - 2]
        placed = (*placed, step._replace(args=tuple(args.items())))
        size = size_after(placed[-1], size)
        assume(min(size) > 12)
        assert size == tuple(exactness._run(placed, x).shape[2:])
    assert is_exact(placed, (n, n)) == exactness._commutes(placed, (n, n), True)


LARGE = {
    "slices": (Fn(lambda x: x[..., 1:, 1:]), 2048),
    "reflection": (nn.Sequential(nn.ReflectionPad2d((0, 1, 0, 1)), nn.Conv2d(3, 3, 3)), 1536),
    "stride": (nn.Sequential(strided(3), nn.MaxPool2d(3, 2)), 4096),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_maps_are_tried_on_small_ones(name) -> None:
    model, size = LARGE[name]
    with mock.patch.object(exactness, "_noise", wraps=exactness._noise) as noise:
        assert not diagnosed(model, size).exact
    assert noise.call_count
    assert max(max(call.args[1]) for call in noise.call_args_list) <= exactness.MIN_COST_SIZE + 8


def test_no_map_that_was_tried_is_kept() -> None:
    assert not diagnosed(resize(size=150), 301).exact
    gc.collect()
    assert not [each for each in gc.get_objects() if type(each) is Tensor and each.shape[-1:] == (301,)]
