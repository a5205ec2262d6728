"""Rules for operations that move, split, join or repeat dimensions, or act on single elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .dimensions import (
    COLUMNS,
    CONSTANT_AXIS,
    OTHER_AXIS,
    ROWS,
    Dim,
    cut,
    dimension,
    is_constant,
    join,
    length,
    places,
    regroup,
    repetition,
    row_or_column,
)
from .exactness import Step
from .facts import Call, Facts, facts_of, lost_places, no_places
from .notes import Notes, Result, Rule

__all__ = ["ELEMENTWISE", "REARRANGE_RULES", "elementwise"]

SIZE_ONE: Dim = ((),)
Repetition = tuple[str, int, int] | None  # as dimensions.repetition has it


def _rearranged(x: Facts, dims: Sequence[Dim]) -> Facts:
    """The same elements with other dimensions; what is pending stays pending."""
    return replace(x, dims=tuple(dims), root=None)


def _with_dim(x: Facts, i: int, d: Dim) -> Facts:
    return _rearranged(x, (*x.dims[:i], d, *x.dims[i + 1 :]))


def _without_dim(x: Facts, i: int) -> Facts:
    return _rearranged(x, x.dims[:i] + x.dims[i + 1 :])


# --- single elements


def elementwise(notes: Notes, call: Call) -> Result:
    """Operands that meet element by element, with broadcasting."""
    operands = call.facts
    dims = notes.broadcast(call, operands, call.shapes[0])
    first_map = next((x for x in operands if places(x.dims)), operands[0])
    result = replace(first_map.with_dims(dims), pending=notes.pending_through(operands))
    if len(operands) == 1:
        result.name = operands[0].name
    return [result] * len(call.shapes)


def _copy(notes: Notes, call: Call) -> Result:
    source = facts_of(call.args["src"])
    return _rearranged(source, notes.broadcast(call, [source], call.shapes[0]))


def _constant(notes: Notes, call: Call) -> Result:
    """Zeros, ones and the like: every element is the same."""
    results = []
    for shape in call.shapes:
        results.append(Facts(tuple(dimension(CONSTANT_AXIS, n) for n in shape)))
    return results


# --- views


def _view(notes: Notes, call: Call) -> Result:
    x, shape = call.facts[0], call.shapes[0]
    dims = regroup(x.dims, shape)
    if dims is not None:
        return _repeated(notes, x, dims, [repetition(d) for d in dims])
    if not places(x.dims):
        return _rearranged(x, no_places(shape).dims)
    remedy = "measure what it costs; the doctor can follow a convolution or pool instead of windows"
    return notes.report_unknown(call, x, "it splits rows or columns", remedy)


def _permute(notes: Notes, call: Call) -> Result:
    """permute, transpose and t."""
    x, args = call.facts[0], call.args
    order = list(range(len(x.dims)))
    if call.name == "permute":
        order = [i % len(order) for i in args["dims"]]
    elif len(order) > 1:
        i, j = args.get("dim0", 0), args.get("dim1", 1)
        order[i], order[j] = order[j], order[i]
    return _rearranged(x, [x.dims[i] for i in order])


def _squeeze(notes: Notes, call: Call) -> Result:
    x = call.facts[0]
    chosen = call.args.get("dim", range(len(x.dims)))
    if isinstance(chosen, int):
        chosen = [chosen]
    squeezed = {i % max(len(x.dims), 1) for i in chosen}
    dims = []
    for i, d in enumerate(x.dims):
        if i not in squeezed or length(d) != 1:
            dims.append(d)
    return _rearranged(x, dims)


def _unsqueeze(notes: Notes, call: Call) -> Result:
    x = call.facts[0]
    at = call.args["dim"] % (len(x.dims) + 1)
    return _rearranged(x, (*x.dims[:at], SIZE_ONE, *x.dims[at:]))


def _expand(notes: Notes, call: Call) -> Result:
    x, shape = call.facts[0], call.shapes[0]
    dims = []
    for d, n in zip(_padded(x, len(shape)), shape, strict=True):
        dims.append(d if length(d) == n else dimension(CONSTANT_AXIS, n))
    return _rearranged(x, dims)


def _padded(x: Facts, count: int) -> list[Dim]:
    """The dimensions of ``x``, after as many of size 1 as it takes to have ``count``."""
    return [SIZE_ONE] * (count - len(x.dims)) + list(x.dims)


# --- repetition


def _repeat(notes: Notes, call: Call) -> Result:
    x, shape = call.facts[0], call.shapes[0]
    dims: list[Dim] = []
    repetitions: list[Repetition] = []
    for d, n in zip(_padded(x, len(shape)), shape, strict=True):
        count = n // max(length(d), 1)
        axis = row_or_column(d)
        if count != 1 and axis:
            repetitions.append((axis, count, 1))
            dims.append(dimension(axis, n))
            continue
        repetitions.append(None)
        if count == 1:
            dims.append(d)
        elif is_constant(d):
            dims.append(dimension(CONSTANT_AXIS, n))
        else:
            dims.append(join([d] * count) or d)
    return _repeated(notes, x, dims, repetitions)


def _repeated(notes: Notes, x: Facts, dims: Sequence[Dim], repetitions: Sequence[Repetition]) -> Facts:
    """``x`` with the dimensions ``dims``, some of which repeat its rows or columns.

    Repeated rows count as rows of a larger map, made by a step of the kind ``"repeat"``.
    """
    counts = {ROWS: (1, 1), COLUMNS: (1, 1)}
    new_dims = []
    for d, repeated in zip(dims, repetitions, strict=True):
        if repeated is None:
            new_dims.append(d)
            continue
        axis, whole, each = repeated
        counts[axis] = (whole, each)
        new_dims.append(dimension(axis, length(d)))
    if all(repeated is None for repeated in repetitions):
        return _rearranged(x, dims)
    step = Step("repeat", _repeat_map, (("rows", counts[ROWS]), ("columns", counts[COLUMNS])))
    return replace(notes.apply(x, step, new_dims), name=x.name)


def _repeat_map(x: Tensor, rows: tuple[int, int], columns: tuple[int, int]) -> Tensor:
    """Maps (N, 1, H, W) whose rows and columns are repeated: (as a whole, each one)."""
    each = x.repeat_interleave(rows[1], 2).repeat_interleave(columns[1], 3)
    return each.repeat(1, 1, rows[0], columns[0])


# --- slices


def _slice(notes: Notes, call: Call) -> Result:
    x, args = call.facts[0], call.args
    bounds = slice(args["start"], args["end"], args["step"])
    start, stop, step = bounds.indices(length(x.dims[args["dim"]]))
    return _narrow(notes, call, x, args["dim"], start, stop, step)


def _select(notes: Notes, call: Call) -> Result:
    x = call.facts[0]
    i = call.args["dim"] % len(x.dims)
    start = call.args["index"] % length(x.dims[i])
    return _without_dim(_narrow(notes, call, x, i, start, start + 1), i)


def _split(notes: Notes, call: Call) -> Result:
    """split and unbind."""
    x = call.facts[0]
    i = call.args["dim"] % len(x.dims)
    results = []
    start = 0
    for shape in call.shapes:
        if call.name == "unbind":
            piece = _narrow(notes, call, x, i, start, start + 1)
            results.append(_without_dim(piece, i))
            start += 1
        else:
            results.append(_narrow(notes, call, x, i, start, start + shape[i]))
            start += shape[i]
    return results


def _narrow(notes: Notes, call: Call, x: Facts, i: int, start: int, stop: int, step: int = 1) -> Facts:
    """``x`` from ``start`` to ``stop`` along dimension ``i``."""
    i %= len(x.dims)
    d = x.dims[i]
    count = len(range(start, stop, step))
    if start == 0 and count == length(d):
        return _rearranged(x, x.dims)
    if not places([d]):
        axis = CONSTANT_AXIS if is_constant(d) else OTHER_AXIS
        return _with_dim(x, i, dimension(axis, count))
    if row_or_column(d):
        dim_of_map = 2 if row_or_column(d) == ROWS else 3  # in maps (N, 1, H, W)
        args = (("dim", dim_of_map), ("start", start), ("stop", stop), ("step", step))
        dims = _with_dim(x, i, dimension(row_or_column(d), count)).dims
        return replace(notes.apply(x, Step("slice", _slice_map, args), dims), root=None)
    if step == 1:
        piece = cut(d, start, stop)
        if piece is not None:
            return _with_dim(x, i, piece)
    notes.report_unknown(call, x, "it picks some of the flattened positions")
    shape = [length(d) for d in x.dims]
    shape[i] = count
    return lost_places(shape)


def _slice_map(x: Tensor, dim: int, start: int, stop: int, step: int) -> Tensor:
    chosen = slice(start, stop, step)
    return x[:, :, chosen] if dim == 2 else x[:, :, :, chosen]


# --- joins and indices


def _cat(notes: Notes, call: Call) -> Result:
    """cat and stack."""
    shape = call.shapes[0]
    i = call.args["dim"] % len(shape)
    tensors = []
    for x in call.facts:
        if call.name == "stack":
            x = replace(x, dims=(*x.dims[:i], SIZE_ONE, *x.dims[i:]))
        if len(x.dims) == len(shape):  # torch lets an empty tensor (0,) pass
            tensors.append(x)

    # the other dimensions meet element by element
    others = [replace(x, dims=(*x.dims[:i], SIZE_ONE, *x.dims[i + 1 :])) for x in tensors]
    dims = list(notes.broadcast(call, others, (*shape[:i], 1, *shape[i + 1 :])))
    if len(tensors) == 1:
        joined: Dim | None = tensors[0].dims[i]
    else:
        joined = join([x.dims[i] for x in tensors])
    notes.report_pending(*tensors)
    if joined is None:
        return notes.report_unknown(call, tensors[0], "it joins maps along rows or columns")
    dims[i] = joined
    first_map = next((x for x in tensors if places(x.dims)), tensors[0])
    return first_map.with_dims(dims)


def _index(notes: Notes, call: Call) -> Result:
    """Indexing with tensors: followed if it picks channels or images by one list of numbers."""
    x, shape = call.facts[0], call.shapes[0]
    indices = call.args.get("indices") or [None] * call.args.get("dim", 0) + [call.args.get("index")]
    indexed = [i for i, index in enumerate(indices) if index is not None]
    if len(indexed) == 1 and len(x.dims) == len(shape) and len(call.facts) == 2:
        i = indexed[0]
        if _is_list(indices[i]) and not places([x.dims[i]]):
            notes.report_pending(*call.facts)
            return _with_dim(x, i, dimension(OTHER_AXIS, shape[i]))
    followed = [t for t in call.facts if places(t.dims) or t.pending]
    if followed:
        return notes.report_unknown(call, followed[0])
    return [no_places(shape)]


def _is_list(index: Any) -> bool:
    is_list: bool = index.ndim <= 1 and index.dtype is not torch.bool
    return is_list


# elementwise operations that torch does not mark as such
ELEMENTWISE = frozenset(
    "_to_copy alias contiguous detach hardswish lift lift_fresh lift_fresh_copy log_sigmoid_forward"
    " _prelu_kernel to _conj real resolve_conj resolve_neg complex __and __or __xor floor_divide"
    " fake_quantize_per_tensor_affine_cachemask".split()
)
_CONSTANTS = (
    "zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full scalar_tensor empty"
    " empty_like empty_strided empty_permuted new_empty new_empty_strided fill zero".split()
)
_VIEWS = ("view", "_unsafe_view", "reshape", "_reshape_alias", "flatten", "unflatten")
_SPLITS = ("split", "split_with_sizes", "unbind", "unsafe_split", "unsafe_split_with_sizes")

REARRANGE_RULES: dict[str, Rule] = {
    **dict.fromkeys(_VIEWS, _view),
    **dict.fromkeys(["permute", "transpose", "t"], _permute),
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
    "expand": _expand,
    "repeat": _repeat,
    "slice": _slice,
    "select": _select,
    **dict.fromkeys(_SPLITS, _split),
    **dict.fromkeys(["cat", "stack"], _cat),
    **dict.fromkeys(["index", "index_select", "_unsafe_index"], _index),
    "copy": _copy,
    **dict.fromkeys(_CONSTANTS, _constant),
}
