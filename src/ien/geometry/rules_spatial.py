"""Rules for operations on maps (…, H, W): convolutions, pools, resizes, padding, rolls, flips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch.nn.functional as F
from torch import Tensor

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
from .exactness import DIM_OF_AXIS, Step, is_symmetric
from .facts import Call, Facts, Pending, map_size, no_places, value_of
from .notes import Notes, Result, Rule

__all__ = ["SPATIAL_RULES", "pad"]

MAX_PADDING_VALUE = 1e3
"""An infinite one would drown the noise that a step is tried on."""


# --- convolutions, pools and resizes


def _conv(notes: Notes, call: Call) -> Result:
    x, weight = call.operands[:2]
    notes.report_pending(*call.operands[1:])
    if weight.places:
        return notes.report_unknown(call, weight, "its kernel is computed from a map")
    if len(weight.dims) != 4:
        return _conv_on_no_map(notes, call, x)
    kernel = call.args["weight"]
    _check_fixed_kernel(notes, x, kernel, weight.name)
    # groups of channels do not matter: a step has one channel
    options = call.options("weight", "bias", "groups")
    size = tuple(kernel.shape[-2:])
    step = Step("conv", call.func, (("kernel", size), *options))
    results = _apply_to_map(notes, call, step)
    is_learnt = value_of(kernel) is None
    for result in results:
        result.has_free_channels = is_learnt and call.args["groups"] == 1
    return results


def _check_fixed_kernel(notes: Notes, x: Facts, kernel: Tensor, name: str) -> None:
    """A kernel that is not learnt must be symmetric, as far as its values are known."""
    values = value_of(kernel)
    rows, columns = kernel.shape[-2:]
    if values is None or rows != columns or is_symmetric(values):
        return
    op = f"conv {rows}×{columns}"
    if name:
        op += f" of {name!r}"
    reason = "its kernel is fixed, not learnt, and changes when rotated or flipped"
    remedy = "use a symmetric kernel, or one that is learnt"
    notes.report(x, "kernel", op, reason, remedy)


def _conv_on_no_map(notes: Notes, call: Call, x: Facts) -> Result:
    """A convolution in 1 or 3 dimensions, which must not run along places."""
    if places(x.dims[1:]):
        return notes.report_unknown(call, x, "it runs along the order of the positions")
    notes.report_pending(x)
    others = no_places(call.shape[1:])
    return x.with_dims((x.dims[0], *others.dims))


def _pool(notes: Notes, call: Call) -> Result:
    step = Step("pool", call.func, call.options())
    return _apply_to_map(notes, call, step)


def _resize(notes: Notes, call: Call) -> Result:
    step = Step("resize", call.func, call.options())
    return _apply_to_map(notes, call, step)


def _apply_to_map(notes: Notes, call: Call, step: Step) -> list[Facts]:
    """Apply a step to the last two dimensions of a map."""
    given, shape = call.operand, call.shape
    x = _as_map(notes, call, given)
    if x is None:
        if given.places:
            return notes.report_unknown(call, given)
        return [no_places(shape) for shape in call.shapes]
    rows, columns = map(row_or_column, x.dims[-2:])
    if rows == COLUMNS:  # a transposed map: steps before the transpose cannot be continued
        notes.report_pending(x)
        x.pending = None
    dims = list(x.dims)
    if step.kind == "conv":
        dims[-3] = dimension(OTHER_AXIS, shape[-3])  # its channels are new
    dims[-2] = dimension(rows, shape[-2])
    dims[-1] = dimension(columns, shape[-1])
    result = notes.apply(x, step, dims)
    result.has_free_channels = x.has_free_channels
    results = [result]
    for _ in call.shapes[1:]:  # the indices of a max pool
        pending = Pending((), map_size(x), (notes.modules[-1],), x.pitch)
        results.append(replace(result, pending=pending))
    return results


def _pixel_shuffle(notes: Notes, call: Call) -> Result:
    """Channels in groups of r² become blocks of r × r places, (…, C r², H, W) → (…, C, r H, r W).

    A convolution before it has free channels: with the weights of a symmetric kernel of r times its
    size, both together are the transposed convolution of stride r with that kernel, and so exact.
    """
    given, shape = call.operand, call.shape
    x = _as_map(notes, call, given)
    if x is None:
        if given.places:
            return notes.report_unknown(call, given)
        return no_places(shape)
    if not x.has_free_channels:
        reason = "it makes places of channels that do not come from a learnt convolution, so none rotates"
        remedy = "put a convolution right before it, and a norm after it"
        notes.report(x, "unknown", call.title, reason, remedy)
    notes.report_pending(x)
    rows, columns = map(row_or_column, x.dims[-2:])
    dims = list(x.dims)
    dims[-3] = dimension(OTHER_AXIS, shape[-3])
    dims[-2] = dimension(rows, shape[-2])
    dims[-1] = dimension(columns, shape[-1])
    result = x.with_dims(dims)
    result.pitch /= call.args["upscale_factor"]
    result.node = None  # the program has convolutions and pools only
    return result


def _pixel_unshuffle(notes: Notes, call: Call) -> Result:
    """Blocks of r × r places become r² channels, which would have to be permuted from then on."""
    x = call.operand
    if not x.places:
        return no_places(call.shape)
    r = call.args["downscale_factor"]
    reason = "it makes channels of places, and an element permutes them"
    remedy = f"use a convolution with kernel size {r} and stride {r}: it does the same and mixes channels"
    return notes.report_unknown(call, x, reason, remedy)


def _as_map(notes: Notes, call: Call, x: Facts) -> Facts | None:
    """Return ``x`` as a map whose last dimensions are rows and columns; None if it is none.

    An operation on maps gives the last two dimensions a meaning even where places were lost, or
    where all of them are equal: then a new map starts there.
    """
    if len(x.dims) not in (3, 4):
        return None
    lead, last = list(x.dims[:-2]), list(x.dims[-2:])
    if LOST_AXIS in x.places:
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
    if notes.is_square and not x.places and height != width:
        reason = f"it makes {height} rows and {width} columns from a square input"
        notes.report(Facts(map_dims), "grid", call.title, reason, "make as many rows as columns")
    return replace(x, dims=(*lead, *map_dims), root=None)


def _rows_then_columns(last: Sequence[Dim]) -> tuple[str, str] | None:
    """Return the axes of the last two dimensions; a constant one is what the other is not."""
    for d in last:
        if not row_or_column(d) and not is_constant(d):
            return None
    first, second = map(row_or_column, last)
    if first == second != "":
        return None
    if first == COLUMNS or second == ROWS:
        return COLUMNS, ROWS
    return ROWS, COLUMNS


# --- padding


def pad(notes: Notes, call: Call, amounts: Sequence[int], mode: str, value: float = 0.0) -> Result:
    """Padding; ``amounts`` as in ``F.pad``: before and after, for the last dimension first."""
    x, shape = call.operand, call.shape
    if not x.places:
        x = _as_map(notes, call, x) or x
    dims = list(x.dims)
    sides = {ROWS: (0, 0), COLUMNS: (0, 0)}
    befores, afters = amounts[::2], amounts[1::2]
    for i, (before, after) in enumerate(zip(befores, afters, strict=True), start=1):
        if before == after == 0:
            continue
        axis = row_or_column(dims[-i])
        if axis:
            sides[axis] = (before, after)
        elif places([dims[-i]]):
            return notes.report_unknown(call, x)
        dims[-i] = dimension(axis or OTHER_AXIS, shape[-i])
    left_right_top_bottom = (*sides[COLUMNS], *sides[ROWS])
    if not any(left_right_top_bottom):  # channels are padded, or nothing
        notes.report_pending(x)
        return x.with_dims(dims)
    value = max(-MAX_PADDING_VALUE, min(MAX_PADDING_VALUE, value))
    args = (("pad", left_right_top_bottom), ("mode", mode), ("value", value))
    step = Step("pad", F.pad, args)
    return notes.apply(x, step, dims)


def _constant_pad(notes: Notes, call: Call) -> Result:
    return pad(notes, call, call.args["pad"], "constant", float(call.args["value"]))


def _reflection_pad(notes: Notes, call: Call) -> Result:
    return pad(notes, call, call.args["padding"], "reflect")


def _replication_pad(notes: Notes, call: Call) -> Result:
    return pad(notes, call, call.args["padding"], "replicate")


# --- flips and rolls


def _move(notes: Notes, call: Call) -> Result:
    """flip and roll."""
    x, args = call.operand, call.args
    chosen = [i % len(x.dims) for i in args["dims"]]
    if not chosen and x.places:
        return notes.report_unknown(call, x)  # a roll of all dimensions together
    moved_axes = []
    shifts = []
    for k, i in enumerate(chosen):
        if not places([x.dims[i]]):
            continue  # the order of channels does not matter
        axis = row_or_column(x.dims[i])
        if not axis:
            return notes.report_unknown(call, x)
        moved_axes.append(DIM_OF_AXIS[axis])
        if "shifts" in args:
            shifts.append(args["shifts"][k])
    if not moved_axes:
        notes.report_pending(x)
        return x.with_dims(x.dims)
    step_args: list[tuple[str, Any]] = [("dims", tuple(moved_axes))]
    if "shifts" in args:
        step_args.append(("shifts", tuple(shifts)))
    step = Step("move", call.func, tuple(step_args))
    return notes.apply(x, step, x.dims)


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
    "pixel_shuffle": _pixel_shuffle,
    "pixel_unshuffle": _pixel_unshuffle,
}
