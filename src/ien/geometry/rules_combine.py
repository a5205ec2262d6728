"""Rules for operations that combine places: reductions, softmax, norms and matrix products."""

from __future__ import annotations

from collections.abc import Sequence

from .dimensions import (
    COLUMNS,
    OTHER_AXIS,
    ROWS,
    Dim,
    all_axes,
    dimension,
    length,
    merge,
    places,
    row_or_column,
)
from .exactness import DIM_OF_AXIS, Step
from .facts import Call, Facts, Pending, facts_of, map_size, no_places
from .notes import Notes, Result, Rule

__all__ = ["COMBINE_RULES"]

REDUCTION_ARGUMENTS = ("dim", "keepdim", "dtype")
"""Arguments that a reducing step sets itself."""
WITH_INDICES = ("max", "min", "median", "mode", "kthvalue", "nanmedian")
"""Operations whose second result are indices."""


def _covers_whole_maps(x: Facts, dims: Sequence[Dim]) -> bool:
    """Return whether these dimensions of ``x`` contain rows and columns, or all its places.

    Of two maps in one tensor, the rows and columns must be those of the same map.
    """
    here = _axes_by_dimension(dims)
    everywhere = _axes_by_dimension(x.dims)
    here_joined = "".join(here)
    if len(here_joined) == len("".join(everywhere)):
        return True
    if here_joined.count(ROWS) != here_joined.count(COLUMNS):
        return False
    # a map that is flattened into one dimension is whole; of the others, all must be here
    split_here = list(filter(_has_lone_axis, here))
    if not split_here:
        return True
    return split_here == list(filter(_has_lone_axis, everywhere))


def _axes_by_dimension(dims: Sequence[Dim]) -> list[str]:
    """Return the rows and columns of each dimension: ``["", "", "HW"]`` for flattened places."""
    by_dimension = []
    for d in dims:
        axes = ""
        for axis, _ in all_axes(d):
            if axis in (ROWS, COLUMNS):
                axes += axis
        by_dimension.append(axes)
    return by_dimension


def _has_lone_axis(axes: str) -> bool:
    return axes.replace(ROWS + COLUMNS, "") != ""


# --- reductions


def _reduce(notes: Notes, call: Call) -> Result:
    """sum, mean, max and the like, over some dimensions or all."""
    x = call.operand
    reduced = _reduced_dims(call, x)
    reduced_dims = [x.dims[i] for i in reduced]
    dims = _dims_after_reduction(call, x, reduced)
    if not places(reduced_dims):  # over channels or images
        result = x.with_dims(dims)
        result.pending = notes.pending_through([x])
        return _reduction_results(call, result, result)
    axis = _only_axis(reduced_dims)
    if _covers_whole_maps(x, reduced_dims):
        result = _reduced_over_maps(notes, call, x, dims)
    elif axis:
        result = _reduced_over_one_axis(notes, call, x, dims, axis)
    else:
        return notes.report_unknown(call, x)
    # indices along places are numbers of places: a finding as soon as anything uses them
    index = Facts(result.dims)
    index.pending = Pending((), map_size(x), (notes.modules[-1],), x.pitch)
    return _reduction_results(call, result, index)


def _only_axis(dims: Sequence[Dim]) -> str:
    """Return the axis if only one of the dimensions has places, rows or columns; else ``""``."""
    with_places = [d for d in dims if places([d])]
    if len(with_places) != 1:
        return ""
    return row_or_column(with_places[0])


def _reduced_dims(call: Call, x: Facts) -> list[int]:
    chosen = call.args.get("dim")
    if isinstance(chosen, int):
        chosen = [chosen]
    count = len(x.dims)
    if not chosen:  # none given: all of them
        return list(range(count))
    return sorted(i % max(count, 1) for i in chosen)


def _dims_after_reduction(call: Call, x: Facts, reduced: Sequence[int]) -> list[Dim]:
    dims: list[Dim] = []
    for i, d in enumerate(x.dims):
        if i not in reduced:
            dims.append(d)
        elif call.args.get("keepdim"):
            dims.append(((),))
    return dims


def _reduced_over_maps(notes: Notes, call: Call, x: Facts, dims: Sequence[Dim]) -> Facts:
    """Over rows and columns: exact, and it may repair what is pending, as a sum undoes a roll."""
    has_pending_steps = x.pending is not None and bool(x.pending.steps)
    if has_pending_steps and isinstance(call.args.get("dim"), list):
        step = _reducing_step(call, (2, 3))
        after = notes.apply(x, step, dims)
        if after.pending is None:
            return x.with_dims(dims)
    notes.report_pending(x)
    return x.with_dims(dims)


def _reduced_over_one_axis(notes: Notes, call: Call, x: Facts, dims: Sequence[Dim], axis: str) -> Facts:
    """Over rows or columns alone: a step that the reduction over the other axis may complete."""
    dim: int | tuple[int, ...] = DIM_OF_AXIS[axis]
    if isinstance(call.args["dim"], list):
        dim = (DIM_OF_AXIS[axis],)
    return notes.apply(x, _reducing_step(call, dim), dims)


def _reducing_step(call: Call, dim: int | tuple[int, ...]) -> Step:
    """Return the reduction of maps (N, 1, H, W), which stay maps."""
    options = call.options(*REDUCTION_ARGUMENTS)
    return Step("reduce", call.func, (("dim", dim), ("keepdim", True), *options))


def _reduction_results(call: Call, result: Facts, index: Facts) -> list[Facts]:
    if call.name in ("argmax", "argmin"):
        return [index]
    if call.name in WITH_INDICES:
        return [result, index]
    return [result, result]


def _along(notes: Notes, call: Call) -> Result:
    """Softmax, sorting and the like: along a dimension that remains, perhaps of another size."""
    x, shape = call.operand, call.shape
    i = call.args["dim"] % len(x.dims)
    d = x.dims[i]
    is_softmax = "softmax" in call.name
    if not places([d]):
        dims = list(x.dims)
        if not is_softmax:
            dims[i] = dimension(OTHER_AXIS, shape[i])
        notes.report_pending(x)
        return [x.with_dims(dims)] * len(call.shapes)
    if is_softmax and _covers_whole_maps(x, [d]):
        notes.report_pending(x)
        return x.with_dims(x.dims)
    if row_or_column(d):
        return notes.report_unknown(call, x, "it acts along rows or columns alone")
    return notes.report_unknown(call, x, "it depends on the order of the positions")


# --- norms


def _channel_norm(notes: Notes, call: Call) -> Result:
    """Batch and group norm, with statistics and weights along dimension 1."""
    x = call.operand
    notes.report_pending(x)
    # as when maps are permuted to (B, H, W, C) before a norm that expects channels second
    if len(x.dims) > 1 and places([x.dims[1]]):
        reason = "its channels are positions of the image, each with its own weights"
        notes.report(x, "position", call.title, reason, "normalise over the channels")
    if "group" in call.name and places(x.dims[:1]) and places(x.dims[2:]):
        return notes.report_unknown(call, x, "it normalises rows or columns alone")
    return [x.with_dims(x.dims), *map(no_places, call.shapes[1:])]


def _layer_norm(notes: Notes, call: Call) -> Result:
    """Layer and RMS norm over the last dimensions."""
    x = call.operand
    notes.report_pending(x)
    first = len(x.dims) - len(call.args["normalized_shape"])
    normalised = x.dims[first:]
    if places(normalised):
        if not _covers_whole_maps(x, normalised):
            return notes.report_unknown(call, x, "it normalises rows or columns alone")
        if call.args.get("weight") is not None or call.args.get("bias") is not None:
            reason = "its weights differ between positions and do not rotate with the image"
            remedy = "set elementwise_affine=False, or normalise over channels only"
            notes.report(x, "position", "layer norm", reason, remedy)
    return [x.with_dims(x.dims), *map(no_places, call.shapes[1:])]


# --- matrix products


def _matmul(notes: Notes, call: Call) -> Result:
    """mm, bmm, and those that add something: (…, i, k) times (…, k, j), plus a tensor (…, i, j)."""
    if "mat1" in call.args:
        left, right = "mat1", "mat2"
    elif "batch1" in call.args:
        left, right = "batch1", "batch2"
    else:
        left, right = "self", "mat2"
    a = facts_of(call.args[left])
    b = facts_of(call.args[right])
    notes.report_pending(*call.operands)
    _contract(notes, call, a, b, a.dims[-1], b.dims[-2])

    # dimensions before the last two meet element by element
    batch = []
    for p, q in zip(a.dims[:-2], b.dims[:-2], strict=True):
        merged, problem = merge(p, q)
        if problem:
            on_places = a if places([p]) else b
            reason = "its matrices differ between positions"
            notes.report(on_places, "position", call.title, reason, "use the same matrix for all positions")
        batch.append(merged)
    first_map = a if a.places else b
    product = first_map.with_dims((*batch, a.dims[-2], b.dims[-1]))
    if left == "self":
        return product
    added = facts_of(call.args["self"])
    dims = notes.broadcast(call, [product, added], call.shape)
    return product.with_dims(dims)


def _contract(notes: Notes, call: Call, a: Facts, b: Facts, p: Dim, q: Dim) -> None:
    """Report what is wrong with the sum over dimension ``p`` of ``a`` and ``q`` of ``b``."""
    _, problem = merge(p, q)  # of the product nothing remains but the problem
    x = a if places([p]) else b
    if problem == "values":
        op = f"linear over {length(p)} inputs"
        reason = "each position of the map has its own weights"
        notes.report(x, "flatten", op, reason, "pool the map to 1×1 before it, or use a convolution")
        return
    if problem == "order":
        reason = "it combines positions that do not correspond"
        notes.report(x, "position", call.title, reason, "bring both into the same order")
        return
    is_whole = _covers_whole_maps(a, [p]) and _covers_whole_maps(b, [q])
    if places([p, q]) and not is_whole:
        reason = "it acts along rows or columns alone"
        notes.report(x, "unknown", call.title, reason, "let it act on all positions together")


_REDUCTIONS = (
    "sum mean amax amin max min var std var_mean std_mean logsumexp linalg_vector_norm prod any all norm"
    " median nanmedian mode kthvalue nansum argmax argmin aminmax count_nonzero".split()
)
_ALONG_ONE_DIMENSION = (
    "_softmax _log_softmax _safe_softmax softmax log_softmax cumsum cumprod sort topk glu argsort"
    " cummax cummin logcumsumexp".split()
)
_CHANNEL_NORMS = (
    "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm"
    " miopen_batch_norm _batch_norm_with_update _batch_norm_no_update native_group_norm".split()
)

COMBINE_RULES: dict[str, Rule] = {
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(_ALONG_ONE_DIMENSION, _along),
    **dict.fromkeys(_CHANNEL_NORMS, _channel_norm),
    **dict.fromkeys(["native_layer_norm", "_fused_rms_norm"], _layer_norm),
    **dict.fromkeys(["mm", "bmm", "addmm", "baddbmm", "_addmm_activation"], _matmul),
}
