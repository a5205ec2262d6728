"""Structure: dimensions that move, split, join and repeat, and those that stay when elements meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .dimensions import PLAIN, SAME, Dim, axes, cut, dim, is_same, join, regroup, repeats, single, size
from .exactness import Step
from .facts import Call, Facts, Notes, facts_of, lost, plain

__all__ = ["ELEMENTWISE", "STRUCTURE", "pointwise"]

Result = Facts | list[Facts]


def pointwise(notes: Notes, call: Call) -> Result:
    """Elements that meet one by one, with broadcasting."""
    facts = call.facts
    dims = notes.broadcast(call, facts, call.shapes[0])
    name = facts[0].name if len(facts) == 1 else ""
    first = next((x for x in facts if axes(x.dims)), facts[0])
    return [replace(first.to(dims), pending=notes.carried(facts), name=name)] * len(call.shapes)


def _same(notes: Notes, call: Call) -> Result:
    return [Facts(tuple(dim(SAME, n) for n in shape)) for shape in call.shapes]


def _copy(notes: Notes, call: Call) -> Result:
    source = facts_of(call.args["src"])
    return _restructured(source, notes.broadcast(call, [source], call.shapes[0]))


def _restructured(x: Facts, dims: Sequence[Dim]) -> Facts:
    return replace(x, dims=tuple(dims), root=None)


def _view(notes: Notes, call: Call) -> Result:
    x, shape = call.facts[0], call.shapes[0]
    dims = regroup(x.dims, shape)
    if dims is not None:
        return _repeated(notes, x, dims, [repeats(d) for d in dims])
    if not axes(x.dims):
        return _restructured(x, plain(shape).dims)
    remedy = "measure what it costs; a convolution or pool in place of windows can be followed"
    return notes.unknown(call, x, "it splits rows or columns", remedy)


def _repeated(
    notes: Notes, x: Facts, dims: Sequence[Dim], how: Sequence[tuple[str, int, int] | None]
) -> Facts:
    """``x`` with the dimensions ``dims``, some of which are its rows or columns several times."""
    times = {axis: (whole, each) for axis, whole, each in filter(None, how)}
    if not times:
        return _restructured(x, dims)
    new = [d if r is None else dim(r[0], size(d)) for d, r in zip(dims, how, strict=True)]
    args = tuple((name, times.get(axis, (1, 1))) for name, axis in (("rows", "H"), ("columns", "W")))
    return replace(notes.apply(x, Step("repeat", _repeat_map, args), new), name=x.name)


def _repeat_map(x: Tensor, rows: tuple[int, int], columns: tuple[int, int]) -> Tensor:
    each = x.repeat_interleave(rows[1], 2).repeat_interleave(columns[1], 3)
    return each.repeat(1, 1, rows[0], columns[0])


def _permute(notes: Notes, call: Call) -> Result:
    x, a = call.facts[0], call.args
    order = list(range(len(x.dims)))
    if call.name == "permute":
        order = [i % len(order) for i in a["dims"]]
    elif len(order) > 1:
        i, j = (a["dim0"], a["dim1"]) if "dim0" in a else (0, 1)
        order[i], order[j] = order[j], order[i]
    return _restructured(x, [x.dims[i] for i in order])


def _squeeze(notes: Notes, call: Call) -> Result:
    x = call.facts[0]
    chosen = call.args.get("dim", list(range(len(x.dims))))
    chosen = {i % max(len(x.dims), 1) for i in ([chosen] if isinstance(chosen, int) else chosen)}
    return _restructured(x, [d for i, d in enumerate(x.dims) if i not in chosen or size(d) != 1])


def _unsqueeze(notes: Notes, call: Call) -> Result:
    x = call.facts[0]
    at = call.args["dim"] % (len(x.dims) + 1)
    return _restructured(x, [*x.dims[:at], ((),), *x.dims[at:]])


def _expand(notes: Notes, call: Call) -> Result:
    x, shape = call.facts[0], call.shapes[0]
    padded = [((),)] * (len(shape) - len(x.dims)) + list(x.dims)
    return _restructured(x, [d if size(d) == n else dim(SAME, n) for d, n in zip(padded, shape, strict=True)])


def _repeat(notes: Notes, call: Call) -> Result:
    x, shape = call.facts[0], call.shapes[0]
    padded: list[Dim] = [((),)] * (len(shape) - len(x.dims)) + list(x.dims)
    dims: list[Dim] = []
    how: list[tuple[str, int, int] | None] = []
    for d, n in zip(padded, shape, strict=True):
        often = n // max(size(d), 1)
        if often != 1 and single(d):
            how.append((single(d), often, 1))
            dims.append(dim(single(d), n))
        else:
            how.append(None)
            dims.append(d if often == 1 else dim(SAME, n) if is_same(d) else join([d] * often) or d)
    return _repeated(notes, x, dims, how)


def _narrow(notes: Notes, call: Call, x: Facts, i: int, start: int, stop: int, step: int = 1) -> Facts:
    """``x`` from ``start`` to ``stop`` along dimension ``i``."""
    i %= len(x.dims)
    d, n = x.dims[i], len(range(start, stop, step))
    if (start, n) == (0, size(d)):
        return _restructured(x, x.dims)
    if not axes([d]):
        new: Dim | None = dim(SAME if is_same(d) else PLAIN, n)
    elif single(d):
        along = 2 if single(d) == "H" else 3
        args = (("dim", along), ("start", start), ("stop", stop), ("step", step))
        dims = [*x.dims[:i], dim(single(d), n), *x.dims[i + 1 :]]
        return replace(notes.apply(x, Step("slice", _sliced, args), dims), root=None)
    else:
        new = cut(d, start, stop) if step == 1 else None
    if new is None:
        notes.unknown(call, x, "it takes some of the flattened positions")
        return lost([n if j == i else size(d) for j, d in enumerate(x.dims)])
    return _restructured(x, [*x.dims[:i], new, *x.dims[i + 1 :]])


def _sliced(x: Tensor, dim: int, start: int, stop: int, step: int) -> Tensor:
    return x[(slice(None),) * dim + (slice(start, stop, step),)]


def _slice(notes: Notes, call: Call) -> Result:
    x, a = call.facts[0], call.args
    bounds = slice(a["start"], a["end"], a["step"]).indices(size(x.dims[a["dim"]]))
    return _narrow(notes, call, x, a["dim"], *bounds)


def _select(notes: Notes, call: Call) -> Result:
    x, i = call.facts[0], call.args["dim"] % len(call.facts[0].dims)
    start = call.args["index"] % size(x.dims[i])
    out = _narrow(notes, call, x, i, start, start + 1)
    return _without(out, i)


def _without(x: Facts, i: int) -> Facts:
    return _restructured(x, x.dims[:i] + x.dims[i + 1 :])


def _split(notes: Notes, call: Call) -> Result:
    x, i, out, at = call.facts[0], call.args["dim"], [], 0
    for shape in call.shapes:
        n = 1 if call.name == "unbind" else shape[i]
        piece = _narrow(notes, call, x, i, at, at + n)
        out.append(_without(piece, i % len(x.dims)) if call.name == "unbind" else piece)
        at += n
    return out


def _cat(notes: Notes, call: Call) -> Result:
    facts, shape = call.facts, call.shapes[0]
    if call.name == "stack":
        i = call.args["dim"] % len(shape)
        facts = [replace(x, dims=(*x.dims[:i], ((),), *x.dims[i:])) for x in facts]
    facts = [x for x in facts if len(x.dims) == len(shape)]  # torch lets an empty (0,) pass
    i = call.args["dim"] % len(shape)
    others = [replace(x, dims=(*x.dims[:i], ((),), *x.dims[i + 1 :])) for x in facts]
    dims = list(notes.broadcast(call, others, [1 if j == i else n for j, n in enumerate(shape)]))
    joined = facts[0].dims[i] if len(facts) == 1 else join([x.dims[i] for x in facts])
    notes.flush(*facts)
    if joined is None:
        return notes.unknown(call, facts[0], "maps are joined along rows or columns")
    dims[i] = joined
    return next((x for x in facts if axes(x.dims)), facts[0]).to(dims)


def _index(notes: Notes, call: Call) -> Result:
    x, shape = call.facts[0], call.shapes[0]
    indices = call.args.get("indices") or [None] * call.args.get("dim", 0) + [call.args.get("index")]
    at = [i for i, index in enumerate(indices) if index is not None]
    one = len(at) == 1 and indices[at[0]].ndim <= 1 and indices[at[0]].dtype is not torch.bool
    if one and len(x.dims) == len(shape) and not axes([x.dims[at[0]]]) and len(call.facts) == 2:
        notes.flush(*call.facts)
        return _restructured(x, [*x.dims[: at[0]], dim(PLAIN, shape[at[0]]), *x.dims[at[0] + 1 :]])
    followed = [t for t in call.facts if axes(t.dims) or t.pending]
    return notes.unknown(call, followed[0]) if followed else [plain(shape)]


ELEMENTWISE = frozenset(  # those that torch does not mark as such
    "_to_copy alias contiguous detach hardswish lift lift_fresh lift_fresh_copy log_sigmoid_forward"
    " _prelu_kernel to _conj real resolve_conj resolve_neg complex __and __or __xor floor_divide"
    " fake_quantize_per_tensor_affine_cachemask".split()
)
STRUCTURE: dict[str, Callable[[Notes, Call], Result]] = {
    **dict.fromkeys(["view", "_unsafe_view", "reshape", "_reshape_alias", "flatten", "unflatten"], _view),
    **dict.fromkeys(["permute", "transpose", "t"], _permute),
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
    "expand": _expand,
    "repeat": _repeat,
    "slice": _slice,
    "select": _select,
    **dict.fromkeys(
        ["split", "split_with_sizes", "unbind", "unsafe_split", "unsafe_split_with_sizes"], _split
    ),
    **dict.fromkeys(["cat", "stack"], _cat),
    **dict.fromkeys(["index", "index_select", "_unsafe_index"], _index),
    "copy": _copy,
    **dict.fromkeys(
        "zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full scalar_tensor empty"
        " empty_like empty_strided empty_permuted new_empty new_empty_strided fill zero".split(),
        _same,
    ),
}
