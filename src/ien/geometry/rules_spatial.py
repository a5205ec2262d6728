"""Rules for operations on maps (…, H, W): convolutions, pools, resizes, padding, rolls and flips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch.nn.functional as F

from .dimensions import (
    COLUMNS,
    CONSTANT_AXIS,
    LOST_AXIS,
    OTHER_AXIS,
    ROWS,
    Dim,
    dimension,
    is_constant,
    length,
    places,
    row_or_column,
)
from .exactness import Step, is_symmetric
from .facts import Call, Facts, Pending, map_size, no_places, value_of
from .notes import Notes, Result, Rule

__all__ = ["SPATIAL_RULES", "pad"]

MAX_PADDING_VALUE = 1e3  # an infinite one would drown the noise that a step is tried on


# --- convolutions, pools and resizes


def _conv(notes: Notes, call: Call) -> Result:
    x, weight = call.facts[:2]
    notes.report_pending(*call.facts[1:])
    if places(weight.dims):
        return notes.report_unknown(call, weight, "its kernel is computed from a map")
    if len(weight.dims) != 4:
        return _conv_on_no_map(notes, call, x)
    kernel_size = tuple(call.args["weight"].shape[-2:])
    kernel = value_of(call.args["weight"])
    if kernel is not None and kernel_size[0] == kernel_size[1] and not is_symmetric(kernel):
        op = f"conv {kernel_size[0]}×{kernel_size[1]}"
        if weight.name:
            op += f" of {weight.name!r}"
        reason = "its kernel is fixed, not learnt, and changes when rotated or flipped"
        remedy = "use a symmetric kernel, or one that is learnt"
        notes.report(x, "kernel", op, reason, remedy)
    args = (("kernel", kernel_size), *call.options("weight", "bias", "groups"))
    return _apply_to_map(notes, call, Step("conv", call.func, args))


def _conv_on_no_map(notes: Notes, call: Call, x: Facts) -> Result:
    """A convolution in 1 or 3 dimensions, which must not run along places."""
    if places(x.dims[1:]):
        return notes.report_unknown(call, x, "it runs along the order of the positions")
    notes.report_pending(x)
    return x.with_dims((x.dims[0], *no_places(call.shapes[0][1:]).dims))


def _pool(notes: Notes, call: Call) -> Result:
    return _apply_to_map(notes, call, Step("pool", call.func, call.options()))


def _resize(notes: Notes, call: Call) -> Result:
    return _apply_to_map(notes, call, Step("resize", call.func, call.options()))


def _apply_to_map(notes: Notes, call: Call, step: Step) -> Result:
    """Apply a step to the last two dimensions of a map."""
    given, shape = call.facts[0], call.shapes[0]
    x = _as_map(notes, call, given)
    if x is None:
        if places(given.dims):
            return notes.report_unknown(call, given)
        return [no_places(shape) for shape in call.shapes]
    rows, columns = (row_or_column(d) for d in x.dims[-2:])
    if rows == COLUMNS:  # a transposed map: steps before the transpose cannot be continued
        notes.report_pending(x)
        x.pending = None
    lead = list(x.dims[:-2])
    if step.kind == "conv":
        lead[-1] = dimension(OTHER_AXIS, shape[-3])  # its channels are new
    result = notes.apply(x, step, (*lead, dimension(rows, shape[-2]), dimension(columns, shape[-1])))
    results = [result]
    for _ in call.shapes[1:]:  # the indices of a max pool
        pending = Pending((), map_size(x), (notes.modules[-1],), x.pitch)
        results.append(replace(result, pending=pending))
    return results


def _as_map(notes: Notes, call: Call, x: Facts) -> Facts | None:
    """``x`` as a map whose last two dimensions are rows and columns; None if it cannot be one.

    An operation on maps gives the last two dimensions a meaning even where places were lost, or where
    all of them are equal: then a new map starts there.
    """
    if len(x.dims) not in (3, 4):
        return None
    lead, last = list(x.dims[:-2]), list(x.dims[-2:])
    if LOST_AXIS in places(x.dims):
        lead = [dimension(OTHER_AXIS, length(d)) for d in lead]
        last = [dimension(CONSTANT_AXIS, length(d)) for d in last]
    if places(lead):
        return None
    axes = _rows_then_columns(last)
    if axes is None:
        return None
    height, width = length(last[0]), length(last[1])
    # written out, since dimension() would drop the axis of a map of one pixel
    map_dims: tuple[Dim, Dim] = (((axes[0], height),),), (((axes[1], width),),)
    if notes.is_square and not places(x.dims) and height != width:
        reason = f"it makes {height} rows and {width} columns from a square input"
        notes.report(Facts(map_dims), "grid", call.title, reason, "make as many rows as columns")
    return replace(x, dims=(*lead, *map_dims), root=None)


def _rows_then_columns(last: Sequence[Dim]) -> tuple[str, str] | None:
    """The axes of the last two dimensions; one that is constant is what the other is not."""
    for d in last:
        if not row_or_column(d) and not is_constant(d):
            return None
    first, second = (row_or_column(d) for d in last)
    if not first:
        first = COLUMNS if second == ROWS else ROWS
    other = COLUMNS if first == ROWS else ROWS
    if second not in ("", other):
        return None
    return first, other


# --- padding


def pad(notes: Notes, call: Call, amounts: Sequence[int], mode: str, value: float = 0.0) -> Result:
    """Padding; ``amounts`` as in ``F.pad``: before and after, for the last dimension first."""
    x, shape = call.facts[0], call.shapes[0]
    if not places(x.dims):
        x = _as_map(notes, call, x) or x
    dims = list(x.dims)
    sides = {ROWS: (0, 0), COLUMNS: (0, 0)}
    for i, (before, after) in enumerate(zip(amounts[::2], amounts[1::2], strict=True), start=1):
        if before == after == 0:
            continue
        axis = row_or_column(dims[-i])
        if axis:
            sides[axis] = (before, after)
        elif places([dims[-i]]):
            return notes.report_unknown(call, x)
        dims[-i] = dimension(axis or OTHER_AXIS, shape[-i])
    if sides == {ROWS: (0, 0), COLUMNS: (0, 0)}:  # channels are padded, or nothing
        notes.report_pending(x)
        return x.with_dims(dims)
    value = max(-MAX_PADDING_VALUE, min(MAX_PADDING_VALUE, value))
    left_right_top_bottom = (*sides[COLUMNS], *sides[ROWS])
    args = (("pad", left_right_top_bottom), ("mode", mode), ("value", value))
    return notes.apply(x, Step("pad", F.pad, args), dims)


def _constant_pad(notes: Notes, call: Call) -> Result:
    return pad(notes, call, call.args["pad"], "constant", float(call.args["value"]))


def _reflection_pad(notes: Notes, call: Call) -> Result:
    return pad(notes, call, call.args["padding"], "reflect")


def _replication_pad(notes: Notes, call: Call) -> Result:
    return pad(notes, call, call.args["padding"], "replicate")


# --- flips and rolls


def _move(notes: Notes, call: Call) -> Result:
    """flip and roll."""
    x, args = call.facts[0], call.args
    chosen = [i % len(x.dims) for i in args["dims"]]
    if not chosen and places(x.dims):
        return notes.report_unknown(call, x)  # a roll of all dimensions together
    moved_axes = []
    shifts = []
    for k, i in enumerate(chosen):
        if not places([x.dims[i]]):
            continue  # the order of channels does not matter
        axis = row_or_column(x.dims[i])
        if not axis:
            return notes.report_unknown(call, x)
        moved_axes.append(2 if axis == ROWS else 3)  # in maps (N, 1, H, W)
        if "shifts" in args:
            shifts.append(args["shifts"][k])
    if not moved_axes:
        notes.report_pending(x)
        return x.with_dims(x.dims)
    step_args: list[tuple[str, Any]] = [("dims", tuple(moved_axes))]
    if "shifts" in args:
        step_args.append(("shifts", tuple(shifts)))
    return notes.apply(x, Step("move", call.func, tuple(step_args)), x.dims)


_RESIZES = (
    "_adaptive_avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d upsample_nearest2d upsample_bilinear2d"
    " upsample_bicubic2d _upsample_nearest_exact2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa"
    " _upsample_lanczos2d_aa".split()
)

SPATIAL_RULES: dict[str, Rule] = {
    "convolution": _conv,
    **dict.fromkeys(["max_pool2d_with_indices", "max_pool2d", "avg_pool2d"], _pool),
    **dict.fromkeys(_RESIZES, _resize),
    "constant_pad_nd": _constant_pad,
    "reflection_pad2d": _reflection_pad,
    "replication_pad2d": _replication_pad,
    "flip": _move,
    "roll": _move,
}
