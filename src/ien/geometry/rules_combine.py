"""Sums: reductions, softmax, norms and products of matrices, which bring several places together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from .dimensions import PLAIN, Dim, axes, dim, leaves, merge, single, size
from .exactness import Step
from .facts import Call, Facts, Notes, Pending, facts_of, map_size, plain

__all__ = ["SUMS"]

Result = Facts | list[Facts]
REDUCED = ("dim", "keepdim", "dtype")  # what a step says in its own way


def _chosen(call: Call, x: Facts) -> list[int]:
    chosen = call.args.get("dim")
    chosen = [chosen] if isinstance(chosen, int) else chosen or range(len(x.dims))
    return sorted(i % max(len(x.dims), 1) for i in chosen)


def _is_whole(x: Facts, dims: Sequence[Dim]) -> bool:
    """Whether the dimensions hold rows and columns, or all that the tensor has of them."""
    held, every = _places(dims), _places(x.dims)
    if len("".join(held)) == len("".join(every)):
        return True
    torn, all_torn = ([d for d in places if d.replace("HW", "")] for places in (held, every))
    balanced = "".join(held).count("H") == "".join(held).count("W")
    return balanced and (not torn or torn == all_torn)  # of two maps, rows and columns of the same


def _places(dims: Sequence[Dim]) -> list[str]:
    """The rows and columns of each dimension in their order."""
    return ["".join(axis for axis, _ in leaves(d) if axis in ("H", "W")) for d in dims]


def _reduce(notes: Notes, call: Call) -> Result:
    x = call.facts[0]
    chosen = _chosen(call, x)
    gone = [x.dims[i] for i in chosen]
    keep = bool(call.args.get("keepdim"))
    dims = [d if i not in chosen else ((),) for i, d in enumerate(x.dims) if keep or i not in chosen]
    if not axes(gone):
        out = replace(x.to(dims), pending=notes.carried([x]))
    elif _is_whole(x, gone):
        several = isinstance(call.args.get("dim"), list)
        repaired = several and x.pending is not None and x.pending.steps
        args = (("dim", (2, 3)), ("keepdim", True), *call.options(*REDUCED))
        out = x.to(dims)
        if not repaired or notes.apply(x, Step("reduce", call.func, args), dims).pending is not None:
            notes.flush(x)
    elif len(places := [i for i in chosen if axes([x.dims[i]])]) == 1 and single(x.dims[places[0]]):
        along = 2 if single(x.dims[places[0]]) == "H" else 3
        chosen_dim = (along,) if isinstance(call.args["dim"], list) else along
        args = (("dim", chosen_dim), ("keepdim", True), *call.options(*REDUCED))
        out = notes.apply(x, Step("reduce", call.func, args), dims)
    else:
        return notes.unknown(call, x)
    index = Facts(out.dims, Pending((), map_size(x), (notes.modules[-1],), x.pitch)) if axes(gone) else out
    return [index] if call.name in ("argmax", "argmin") else [out, index if _has_index(call) else out]


def _has_index(call: Call) -> bool:
    return call.name in ("max", "min", "median", "mode", "kthvalue", "nanmedian")


def _along(notes: Notes, call: Call) -> Result:
    """Softmax, sorting and the like: a dimension that comes out as it went in, or of another size."""
    x, shape = call.facts[0], call.shapes[0]
    i = call.args["dim"] % len(x.dims)
    d = x.dims[i]
    if not axes([d]):
        new = d if "softmax" in call.name else dim(PLAIN, shape[i])
        out = x.to((*x.dims[:i], new, *x.dims[i + 1 :]))
        notes.flush(x)
        return [out] * len(call.shapes)
    if "softmax" in call.name and _is_whole(x, [d]):
        notes.flush(x)
        return x.to(x.dims)
    reason = "it goes along rows or columns alone" if single(d) else "it depends on the order of the places"
    return notes.unknown(call, x, reason)


def _channel_norm(notes: Notes, call: Call) -> Result:
    """Batch and group norm: statistics and weights of dimension 1."""
    x = call.facts[0]
    notes.flush(x)
    if len(x.dims) > 1 and axes([x.dims[1]]):
        reason = "its channels are places of the image, each with weights of its own"
        notes.note(x, "position", call.title, reason, "normalise over channels")
    if "group" in call.name and axes(x.dims[:1]) and axes(x.dims[2:]):
        return notes.unknown(call, x, "it normalises rows or columns alone")
    return [x.to(x.dims), *map(plain, call.shapes[1:])]


def _layer_norm(notes: Notes, call: Call) -> Result:
    x = call.facts[0]
    notes.flush(x)
    inner = x.dims[len(x.dims) - len(call.args["normalized_shape"]) :]
    if axes(inner) and not _is_whole(x, inner):
        return notes.unknown(call, x, "it normalises rows or columns alone")
    if axes(inner) and any(call.args.get(name) is not None for name in ("weight", "bias")):
        reason = "its weights differ from place to place and do not turn with the image"
        notes.note(x, "position", "layer norm", reason, "elementwise_affine=False, or over channels alone")
    return [x.to(x.dims), *map(plain, call.shapes[1:])]


def _matmul(notes: Notes, call: Call) -> Result:
    """mm, bmm and those with something added: (…, i, k) × (…, k, j)."""
    names = (
        ("mat1", "mat2")
        if "mat1" in call.args
        else ("batch1", "batch2")
        if "batch1" in call.args
        else ("self", "mat2")
    )
    a, b = (facts_of(call.args[name]) for name in names)
    notes.flush(*call.facts)
    _contract(notes, call, a, b, a.dims[-1], b.dims[-2])
    batch = []
    for p, q in zip(a.dims[:-2], b.dims[:-2], strict=True):
        both, problem = merge(p, q)
        if problem:
            notes.note(
                a if axes([p]) else b,
                "position",
                call.title,
                "its matrices differ from place to place",
                "one for all",
            )
        batch.append(both)
    out = (a if axes(a.dims) else b).to((*batch, a.dims[-2], b.dims[-1]))
    if names[0] == "self":
        return out
    return out.to(notes.broadcast(call, [out, facts_of(call.args["self"])], call.shapes[0]))


def _contract(notes: Notes, call: Call, a: Facts, b: Facts, p: Dim, q: Dim) -> None:
    """The sum over a dimension of both."""
    _, problem = merge(p, q)
    x = a if axes([p]) else b
    if problem == "values":
        each = "each place of the map has weights of its own"
        op = f"linear over {size(p)} inputs"
        notes.note(x, "flatten", op, each, "pool the map to 1×1 before it, or use a convolution")
    elif problem:
        notes.note(
            x, "position", call.title, "places that do not correspond meet", "bring both into one order"
        )
    elif axes([p, q]) and not (_is_whole(a, [p]) and _is_whole(b, [q])):
        notes.note(x, "unknown", call.title, "it goes along rows or columns alone", "let it see all places")


SUMS: dict[str, Callable[[Notes, Call], Result]] = {
    **dict.fromkeys(
        "sum mean amax amin max min var std var_mean std_mean logsumexp linalg_vector_norm prod any all norm"
        " median nanmedian mode kthvalue nansum argmax argmin aminmax count_nonzero".split(),
        _reduce,
    ),
    **dict.fromkeys(
        "_softmax _log_softmax _safe_softmax softmax log_softmax cumsum cumprod sort topk glu argsort"
        " cummax cummin logcumsumexp".split(),
        _along,
    ),
    **dict.fromkeys(
        "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm"
        " miopen_batch_norm _batch_norm_with_update _batch_norm_no_update native_group_norm".split(),
        _channel_norm,
    ),
    **dict.fromkeys(["native_layer_norm", "_fused_rms_norm"], _layer_norm),
    **dict.fromkeys(["mm", "bmm", "addmm", "baddbmm", "_addmm_activation"], _matmul),
}
