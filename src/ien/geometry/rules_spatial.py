"""Maps: convolutions, pools, resizes, padding, rolls and flips of maps (…, H, W)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch.nn.functional as F

from .dimensions import LOST, PLAIN, SAME, axes, dim, is_same, single, size
from .exactness import Step, is_symmetric
from .facts import Call, Facts, Notes, Pending, map_size, plain, value_of

__all__ = ["MAPS", "pad"]

Result = Facts | list[Facts]
LARGE = 1e3


def pad(notes: Notes, call: Call, amounts: Sequence[int], mode: str, value: float = 0.0) -> Result:
    """``amounts`` as in ``F.pad``: before and after, of the last dimension first."""
    before, shape = call.facts[0], call.shapes[0]
    x = before if axes(before.dims) else _as_map(notes, call, before) or before
    dims, sides = list(x.dims), {"H": (0, 0), "W": (0, 0)}
    for i, (left, right) in enumerate(zip(amounts[::2], amounts[1::2], strict=True)):
        d = dims[-1 - i]
        if left == right == 0:
            continue
        if axes([d]) and not single(d):
            return notes.unknown(call, x)
        if single(d):
            sides[single(d)] = (left, right)
        dims[-1 - i] = dim(single(d) or PLAIN, shape[-1 - i])
    if sides == {"H": (0, 0), "W": (0, 0)}:
        notes.flush(x)
        return x.to(dims)
    value = max(-LARGE, min(LARGE, value))  # an infinite one would drown the noise of a trial
    args = (("pad", (*sides["W"], *sides["H"])), ("mode", mode), ("value", value))
    return notes.apply(x, Step("pad", F.pad, args), dims)


def _as_map(notes: Notes, call: Call, x: Facts) -> Facts | None:
    """Rows and columns last: as it is, or as it may count where places are lost or the same."""
    if len(x.dims) not in (3, 4):
        return None
    lead, last = list(x.dims[:-2]), x.dims[-2:]
    if LOST in axes(x.dims):
        lead = [dim(PLAIN, size(d)) for d in lead]
        last = (dim(SAME, size(last[0])), dim(SAME, size(last[1])))
    known = [single(d) for d in last]
    if axes(lead) or not all(axis or is_same(d) for axis, d in zip(known, last, strict=True)):
        return None
    rows = known[0] or ("H" if known[1] != "H" else "W")
    columns = "W" if rows == "H" else "H"
    if known[1] not in ("", columns):
        return None
    places = (((rows, size(last[0])),),), (((columns, size(last[1])),),)  # also where it is one pixel
    if notes.square and not axes(x.dims) and size(last[0]) != size(last[1]):
        reason = f"{size(last[0])} rows and {size(last[1])} columns are made of a square input"
        notes.note(Facts(places), "grid", call.title, reason, "as many rows as columns")
    return replace(x, dims=(*lead, *places), root=None)


def _spatial(notes: Notes, call: Call, step: Step) -> Result:
    """A step on the last two dimensions of a map."""
    before, shape = call.facts[0], call.shapes[0]
    x = _as_map(notes, call, before)
    if x is None:
        return notes.unknown(call, before) if axes(before.dims) else [plain(shape) for shape in call.shapes]
    rows, columns = (single(d) for d in x.dims[-2:])
    if rows == "W":  # transposed: a new beginning, with rows for columns
        notes.flush(x)
        x.pending = None
    lead = [*x.dims[:-3], dim(PLAIN, shape[-3])] if step.kind == "conv" else list(x.dims[:-2])
    out = notes.apply(x, step, (*lead, dim(rows, shape[-2]), dim(columns, shape[-1])))
    index = replace(out, pending=Pending((), map_size(x), (notes.modules[-1],), x.pitch))
    return [out, *(index for _ in call.shapes[1:])]


def _conv(notes: Notes, call: Call) -> Result:
    a, (x, weight, *_) = call.args, call.facts
    notes.flush(*call.facts[1:])
    if axes(weight.dims):
        return notes.unknown(call, weight, "its kernel is made from a map")
    if len(weight.dims) != 4:
        if axes(x.dims[1:]):
            return notes.unknown(call, x, "it goes along the order of the positions")
        notes.flush(x)
        return x.to((x.dims[0], *plain(call.shapes[0][1:]).dims))
    kernel = tuple(a["weight"].shape[-2:])
    value = value_of(a["weight"])
    if value is not None and kernel[0] == kernel[1] and not is_symmetric(value):
        name = f" of {weight.name!r}" if weight.name else ""
        reason = "its kernel is fixed, not learnt, and changes when it is turned or flipped"
        remedy = "a kernel that looks the same in all orientations, or one that is learnt"
        notes.note(x, "kernel", f"conv {kernel[0]}×{kernel[1]}{name}", reason, remedy)
    args = (("kernel", kernel), *call.options("weight", "bias", "groups"))
    return _spatial(notes, call, Step("conv", call.func, args))


def _pool(notes: Notes, call: Call) -> Result:
    return _spatial(notes, call, Step("pool", call.func, call.options()))


def _resize(notes: Notes, call: Call) -> Result:
    return _spatial(notes, call, Step("resize", call.func, call.options()))


def _constant_pad(notes: Notes, call: Call) -> Result:
    return pad(notes, call, call.args["pad"], "constant", float(call.args["value"]))


def _other_pad(notes: Notes, call: Call) -> Result:
    return pad(notes, call, call.args["padding"], "reflect" if "reflection" in call.name else "replicate")


def _flip(notes: Notes, call: Call) -> Result:
    """Flips and rolls."""
    x, a = call.facts[0], call.args
    chosen = [i % len(x.dims) for i in a["dims"]]
    kept = [k for k, i in enumerate(chosen) if axes([x.dims[i]])]
    if not kept and (chosen or not axes(x.dims)):
        notes.flush(x)
        return x.to(x.dims)
    if not chosen or not all(single(x.dims[chosen[k]]) for k in kept):
        return notes.unknown(call, x)
    args: dict[str, Any] = {"dims": tuple(2 if single(x.dims[chosen[k]]) == "H" else 3 for k in kept)}
    if "shifts" in a:
        args["shifts"] = tuple(a["shifts"][k] for k in kept)
    return notes.apply(x, Step("move", call.func, tuple(args.items())), x.dims)


MAPS: dict[str, Callable[[Notes, Call], Result]] = {
    "convolution": _conv,
    **dict.fromkeys(["max_pool2d_with_indices", "max_pool2d", "avg_pool2d"], _pool),
    **dict.fromkeys(
        "_adaptive_avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d upsample_nearest2d upsample_bilinear2d"
        " upsample_bicubic2d _upsample_nearest_exact2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa"
        " _upsample_lanczos2d_aa".split(),
        _resize,
    ),
    "constant_pad_nd": _constant_pad,
    **dict.fromkeys(["reflection_pad2d", "replication_pad2d"], _other_pad),
    **dict.fromkeys(["flip", "roll"], _flip),
}
