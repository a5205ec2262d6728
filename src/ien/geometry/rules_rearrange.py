"""Rules for operations that move, split, join or repeat dimensions, or act on single elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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
from .exactness import DIM_OF_AXIS, Step
from .facts import Call, Facts, facts_of, lost_places, no_places
from .notes import Notes, Result, Rule

__all__ = ["ELEMENTWISE", "REARRANGE_RULES", "elementwise"]

SIZE_ONE: Dim = ((),)
Repetition = tuple[str, int, int] | None
"""What :func:`.dimensions.repetition` returns."""


def _rearranged(x: Facts, dims: Sequence[Dim]) -> Facts:
    """Return the same elements with other dimensions; what is pending stays pending."""
    return replace(x, dims=tuple(dims), root=None, has_free_channels=False)


def _with_dim(x: Facts, i: int, d: Dim) -> Facts:
    dims = list(x.dims)
    dims[i] = d
    return _rearranged(x, dims)


def _without_dim(x: Facts, i: int) -> Facts:
    dims = list(x.dims)
    del dims[i]
    return _rearranged(x, dims)


def _with_new_dim(x: Facts, i: int) -> Facts:
    dims = list(x.dims)
    dims.insert(i, SIZE_ONE)
    return _rearranged(x, dims)


def _first_map(operands: Sequence[Facts]) -> Facts:
    """Return the first of them that has places, or the first of all."""
    for x in operands:
        if x.places:
            return x
    return operands[0]


# --- single elements


def elementwise(notes: Notes, call: Call) -> Result:
    """Operands that meet element by element, with broadcasting."""
    operands = call.operands
    dims = notes.broadcast(call, operands, call.shape)
    # the pitch, and the place in the program, are those of the map
    result = _first_map(operands).with_dims(dims)
    result.pending = notes.pending_through(operands)
    result.has_free_channels = _have_free_channels(operands)
    if len(operands) == 1:
        result.name = operands[0].name
    return [result] * len(call.shapes)


def _have_free_channels(operands: Sequence[Facts]) -> bool:
    """Return whether channels stay free: those of all maps are, and only what is learnt differs."""
    for x in operands:
        is_parameter = x.name != "" and x.value is None
        is_number = all(is_constant(d) for d in x.dims)
        if x.places:
            if not x.has_free_channels:
                return False
        elif not is_parameter and not is_number:
            return False
    return True


def _copy(notes: Notes, call: Call) -> Result:
    source = facts_of(call.args["src"])
    dims = notes.broadcast(call, [source], call.shape)
    return _rearranged(source, dims)


def _constant(notes: Notes, call: Call) -> Result:
    """Zeros, ones and the like: every element is the same."""
    results = []
    for shape in call.shapes:
        dims = [dimension(CONSTANT_AXIS, n) for n in shape]
        results.append(Facts(tuple(dims)))
    return results


# --- views


def _view(notes: Notes, call: Call) -> Result:
    x, shape = call.operand, call.shape
    dims = regroup(x.dims, shape)
    if dims is not None:
        repetitions = [repetition(d) for d in dims]
        return _repeated(notes, x, dims, repetitions)
    if not x.places:
        return _rearranged(x, no_places(shape).dims)
    remedy = "measure what it costs; the doctor can follow a convolution or pool instead of windows"
    return notes.report_unknown(call, x, "it splits rows or columns", remedy)


def _permute(notes: Notes, call: Call) -> Result:
    """permute, transpose and t."""
    x, args = call.operand, call.args
    dims = list(x.dims)
    if call.name == "permute":
        dims = [x.dims[i] for i in args["dims"]]
    elif len(dims) > 1:
        i, j = args.get("dim0", 0), args.get("dim1", 1)
        dims[i], dims[j] = dims[j], dims[i]
    return _rearranged(x, dims)


def _squeeze(notes: Notes, call: Call) -> Result:
    x = call.operand
    count = len(x.dims)
    chosen = call.args.get("dim", range(count))
    if isinstance(chosen, int):
        chosen = [chosen]
    squeezed = [i % max(count, 1) for i in chosen]
    dims = []
    for i, d in enumerate(x.dims):
        is_squeezed = i in squeezed and length(d) == 1
        if not is_squeezed:
            dims.append(d)
    return _rearranged(x, dims)


def _unsqueeze(notes: Notes, call: Call) -> Result:
    x = call.operand
    count = len(x.dims) + 1
    return _with_new_dim(x, call.args["dim"] % count)


def _expand(notes: Notes, call: Call) -> Result:
    x, shape = call.operand, call.shape
    dims = []
    for d, n in zip(_padded(x, len(shape)), shape, strict=True):
        if length(d) != n:
            d = dimension(CONSTANT_AXIS, n)  # the one entry, repeated
        dims.append(d)
    return _rearranged(x, dims)


def _padded(x: Facts, count: int) -> list[Dim]:
    """Return the dimensions of ``x``, after as many of size 1 as it takes to have ``count``."""
    dims = list(x.dims)
    while len(dims) < count:
        dims.insert(0, SIZE_ONE)
    return dims


# --- repetition


def _repeat(notes: Notes, call: Call) -> Result:
    x, shape = call.operand, call.shape
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
    """Return ``x`` with the dimensions ``dims``; some may repeat its rows or columns.

    Repeated rows count as rows of a larger map, made by a step of the kind ``"repeat"``.
    """
    counts: dict[str, tuple[int, int]] = {}  # of rows and columns: as a whole, and each one
    new_dims = []
    for d, repeated in zip(dims, repetitions, strict=True):
        if repeated is not None:
            axis, whole, each = repeated
            counts[axis] = (whole, each)
            d = dimension(axis, length(d))
        new_dims.append(d)
    if not counts:
        return _rearranged(x, dims)
    rows = counts.get(ROWS, (1, 1))
    columns = counts.get(COLUMNS, (1, 1))
    step = Step("repeat", _repeat_map, (("rows", rows), ("columns", columns)))
    result = notes.apply(x, step, new_dims)
    result.name = x.name
    return result


def _repeat_map(x: Tensor, rows: tuple[int, int], columns: tuple[int, int]) -> Tensor:
    """Return maps (N, 1, H, W) whose rows and columns are repeated: (as a whole, each one)."""
    each = x.repeat_interleave(rows[1], 2).repeat_interleave(columns[1], 3)
    return each.repeat(1, 1, rows[0], columns[0])


# --- slices


def _slice(notes: Notes, call: Call) -> Result:
    x, args = call.operand, call.args
    i = args["dim"]
    bounds = slice(args["start"], args["end"], args["step"])
    start, stop, step = bounds.indices(length(x.dims[i]))
    return _narrow(notes, call, x, i, start, stop, step)


def _select(notes: Notes, call: Call) -> Result:
    x = call.operand
    i = call.args["dim"] % len(x.dims)
    start = call.args["index"] % length(x.dims[i])
    chosen = _narrow(notes, call, x, i, start, start + 1)
    return _without_dim(chosen, i)


def _split(notes: Notes, call: Call) -> Result:
    """split and unbind."""
    x = call.operand
    i = call.args["dim"] % len(x.dims)
    results = []
    start = 0
    for shape in call.shapes:
        stop = start + 1
        if call.name != "unbind":
            stop = start + shape[i]
        piece = _narrow(notes, call, x, i, start, stop)
        if call.name == "unbind":
            piece = _without_dim(piece, i)
        results.append(piece)
        start = stop
    return results


def _narrow(notes: Notes, call: Call, x: Facts, i: int, start: int, stop: int, step: int = 1) -> Facts:
    """Return ``x`` from ``start`` to ``stop`` along dimension ``i``."""
    i %= len(x.dims)
    d = x.dims[i]
    count = len(range(start, stop, step))
    if start == 0 and count == length(d):  # all of it
        return _rearranged(x, x.dims)
    if not places([d]):
        axis = CONSTANT_AXIS if is_constant(d) else OTHER_AXIS
        return _with_dim(x, i, dimension(axis, count))
    axis = row_or_column(d)
    if axis:
        args = (("dim", DIM_OF_AXIS[axis]), ("start", start), ("stop", stop), ("step", step))
        sliced = _with_dim(x, i, dimension(axis, count))
        step_on_map = Step("slice", _slice_map, args)
        return notes.apply(x, step_on_map, sliced.dims)
    # flattened places, perhaps after a class token: whole segments can be cut off
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
    if dim == DIM_OF_AXIS[ROWS]:
        return x[:, :, chosen, :]
    return x[:, :, :, chosen]


# --- joins and indices


def _cat(notes: Notes, call: Call) -> Result:
    """cat and stack."""
    shape = call.shape
    i = call.args["dim"] % len(shape)
    tensors = []
    for x in call.operands:
        if call.name == "stack":
            x = _with_new_dim(x, i)
        if len(x.dims) == len(shape):  # torch lets an empty tensor (0,) pass
            tensors.append(x)

    # all dimensions but one meet element by element
    others = [_with_dim(x, i, SIZE_ONE) for x in tensors]
    other_shape = list(shape)
    other_shape[i] = 1
    dims = list(notes.broadcast(call, others, other_shape))

    joined: Dim | None = tensors[0].dims[i]
    if len(tensors) > 1:
        joined = join([x.dims[i] for x in tensors])
    notes.report_pending(*tensors)
    if joined is None:
        return notes.report_unknown(call, tensors[0], "it joins maps along rows or columns")
    dims[i] = joined
    return _first_map(tensors).with_dims(dims)


def _index(notes: Notes, call: Call) -> Result:
    """Indexing with tensors: followed if it picks channels or images by one list of numbers."""
    x, shape = call.operand, call.shape
    indices = _indices_by_dimension(call)
    if len(indices) == 1 and len(x.dims) == len(shape) and len(call.tensors) == 2:
        i, index = indices.popitem()
        is_list = index.ndim <= 1 and index.dtype is not torch.bool
        if is_list and not places([x.dims[i]]):
            notes.report_pending(*call.operands)
            return _with_dim(x, i, dimension(OTHER_AXIS, shape[i]))
    for operand in call.operands:
        if operand.places or operand.pending:
            return notes.report_unknown(call, operand)
    return [no_places(shape)]


def _indices_by_dimension(call: Call) -> dict[int, Tensor]:
    """Return the indices of ``x[:, index]``, None where there is none, or that of index_select."""
    if not call.args.get("indices"):
        return {call.args.get("dim", 0): call.args["index"]}
    by_dimension = {}
    for i, index in enumerate(call.args["indices"]):
        if index is not None:
            by_dimension[i] = index
    return by_dimension


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
