"""Follow: from a forward pass on fake tensors to notes on what breaks quarter turns or flips."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from .dimensions import LOST, PLAIN, Dim, axes, dim, is_same, single, size
from .exactness import for_real
from .facts import Call, Facts, Notes, NotExact, facts_of, is_strange, lost, plain, set_facts, value_of
from .rules_combine import SUMS
from .rules_rearrange import ELEMENTWISE, STRUCTURE, pointwise
from .rules_spatial import MAPS, pad

__all__ = ["follow"]

RULES = {**STRUCTURE, **SUMS, **MAPS}
RESUMES = frozenset(name for name in RULES if "pool" in name or "upsample" in name or "_like" in name)
RESUMES |= {"convolution"}  # what can be followed again after places were lost: it takes maps only
SMALL = 4096  # elements of constants whose values are computed
PARTS = frozenset({"slice", "select", "split", "split_with_sizes", "unbind", "detach", "alias"})


def follow(model: nn.Module, x: Tensor, notes: Notes) -> None:
    """Run ``model`` on ``x``, a fake tensor whose facts_of is known, and take notes."""
    with _Operations(notes) as operations, _Functions(operations):
        output = list(_tensors(model(x)))  # here, as it may be a generator
    notes.outputs = len(output)
    for tensor in output:
        known = facts_of(tensor)
        if is_strange(tensor):
            notes.note(
                known,
                "unknown",
                "output",
                "it was made or changed out of sight",
                "return what the model computes",
            )
        notes.flush(known)  # what is pending on the output stays
        if len(known.dims) == 4 and (single(known.dims[-2]) == "W" or single(known.dims[-1]) == "H"):
            reason = "rows and columns of the output are exchanged"
            notes.note(known, "position", "transpose", reason, "transpose it back")
    if notes.stopped:  # and the model went on
        raise NotExact


class _Operations(TorchDispatchMode):
    """Sees every operation after torch has taken it apart, and follows it."""

    def __init__(self, notes: Notes) -> None:
        super().__init__()
        self.notes = notes
        self.paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        traits = _traits(func)
        bound = {**traits.defaults, **dict(zip(traits.defaults, args, strict=False)), **kwargs}
        out = _run(func, traits, bound, args, kwargs)
        results = list(_tensors(out))
        if (results or traits.written) and not self.paused:
            self.notes.operations += 1
            shapes = [tuple(each.shape) for each in results]
            call = Call(traits.name, func, bound, list(_tensors([args, kwargs])), shapes)
            _assign(self.notes, call, results, rule(self.notes, call), traits)
            for tensor, value in zip(results, _values(call, args, kwargs, traits), strict=False):
                facts_of(tensor).value = value
        return out


class _Functions(TorchFunctionMode):
    """Follows the functions that torch takes apart in a way that hides what they do."""

    def __init__(self, operations: _Operations) -> None:
        super().__init__()
        self.operations = operations

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func == Tensor.data.__set__:  # type: ignore[attr-defined]
            set_facts(args[0], replace(facts_of(args[1])))
        circular = func is F.pad and "circular" in (*args[2:3], kwargs.get("mode"))
        if self.operations.paused or not (circular or func is F.local_response_norm):
            return func(*args, **kwargs)
        self.operations.paused = True
        try:
            out = func(*args, **kwargs)
        finally:
            self.operations.paused = False
        call = Call(func.__name__, func, {}, list(_tensors([args, kwargs])), [tuple(out.shape)])
        if LOST in axes(call.facts[0].dims):
            result: Facts | list[Facts] = lost(out.shape)
        elif circular:
            amounts = args[1] if len(args) > 1 else kwargs["pad"]
            result = pad(self.operations.notes, call, amounts, "circular")
        elif axes(call.facts[0].dims[1:2]):
            result = self.operations.notes.unknown(call, call.facts[0])
        else:
            result = pointwise(self.operations.notes, call)
        _assign(self.operations.notes, call, [out], result, _Traits(func.__name__, {}, False, None))
        return out


class _Traits(NamedTuple):
    name: str
    defaults: dict[str, Any]
    """Every argument, in order, with its default."""
    is_view: bool
    written: str | None
    """The argument that it writes into."""


@cache
def _traits(func: Any) -> _Traits:
    schema = func._schema
    written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    is_view = not written and any(r.alias_info is not None for r in schema.returns)
    name = schema.name.split("::")[-1]
    return _Traits(
        name.rstrip("_") if written else name,
        {a.name: a.default_value if a.has_default_value() else None for a in schema.arguments},
        is_view,
        written[0] if written else None,
    )


def _run(func: Any, traits: _Traits, bound: dict[str, Any], args: Any, kwargs: Any) -> Any:
    if traits.name == "native_batch_norm" and not bound["training"]:  # torch takes 10 ms to find the same
        return (torch.empty_like(bound["input"]), *(bound["input"].new_empty(0) for _ in range(2)))
    if traits.written and not all(isinstance(t, FakeTensor) for t in _tensors(bound[traits.written])):
        return bound[traits.written]  # a tensor that is not the model's stays as it is
    return func(*args, **kwargs)


def _values(call: Call, args: Any, kwargs: Any, traits: _Traits) -> list[Tensor]:
    """The results of an operation on small constants, with what is in them."""
    small = all(prod(shape) <= SMALL for shape in [*call.shapes, *(t.shape for t in call.tensors)])
    if not small or traits.written or torch.Tag.nondeterministic_seeded in getattr(call.func, "tags", ()):
        return []
    values = {id(tensor): value_of(tensor) for tensor in call.tensors}
    if not values or any(value is None for value in values.values()):
        return []
    args, kwargs = tree_map(lambda leaf: values.get(id(leaf), leaf), (args, kwargs))
    return list(_tensors(for_real(call.func)(*args, **kwargs)))


def rule(notes: Notes, call: Call) -> Facts | list[Facts]:
    """What is known of the results; a finding where an operation on places is not known."""
    facts, known = call.facts, RULES.get(call.name)
    followed = [x for x in facts if axes(x.dims) or x.pending is not None]
    for tensor in filter(is_strange, call.tensors):
        notes.unknown(call, facts_of(tensor), "it gets a tensor that was made or changed out of sight")
    if any(LOST in axes(x.dims) for x in facts) and call.name not in RESUMES:
        notes.flush(*facts)
        return [lost(shape) for shape in call.shapes]
    if torch.Tag.pointwise in getattr(call.func, "tags", ()) or call.name in ELEMENTWISE:
        return pointwise(notes, call)
    if known is None:
        return notes.unknown(call, followed[0]) if followed else []
    try:
        return known(notes, call)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
        if not followed:
            return []
        return notes.unknown(call, followed[0])  # a form of the operation that no rule foresees


def _assign(
    notes: Notes, call: Call, results: list[Tensor], facts: Facts | list[Facts], traits: _Traits
) -> None:
    known = facts if isinstance(facts, list) else [facts]
    known += [plain(tensor.shape) for tensor in results[len(known) :]]
    if traits.written is not None:
        for i, target in enumerate(_tensors(call.args[traits.written])):
            _write(notes, call, target, known[i] if i < len(known) else plain(target.shape))
        return
    for tensor, result in zip(results, known, strict=False):
        alone = [axis for axis in map(single, result.dims) if axis]
        if [size(d) for d in result.dims] != list(tensor.shape) or len(set(alone)) != len(alone):
            result = notes.unknown(call, call.facts[0])[0]  # such as two maps in one tensor
        set_facts(tensor, replace(result, root=None, rearranged=False, writes=0, value=None))
        if traits.is_view and isinstance(call.tensors[0], FakeTensor):
            view, base = facts_of(tensor), facts_of(call.tensors[0])
            view.root = base.root or base
            view.rearranged = base.rearranged or call.name not in PARTS
            view.writes = view.root.writes


def _write(notes: Notes, call: Call, target: Any, new: Facts) -> None:
    """The tensor ``target``, and what it is a view of, hold ``new``."""
    if not isinstance(target, FakeTensor):
        if axes(new.dims):
            notes.unknown(call, new, "it writes a map into a tensor that is not the model's")
        return
    old = facts_of(target)
    root = old.root or old
    dims = new.dims if root is old else _written(notes, call, root, old, new)
    if (old.dims, old.pending, root.dims) != (new.dims, new.pending, dims):
        root.writes += 1
    root.dims, root.value = dims, None
    old.dims, old.pending, old.pitch, old.node, old.name = new.dims, new.pending, new.pitch, new.node, ""
    old.writes, old.value, old.fresh = root.writes, None, False


def _written(notes: Notes, call: Call, root: Facts, old: Facts, new: Facts) -> tuple[Dim, ...]:
    """The dimensions of a tensor of which the view ``old`` becomes ``new``."""
    if new.pending is not root.pending:
        notes.flush(new, *([root] if axes(new.dims) else []))
    alike = not old.rearranged and len(new.dims) == len(root.dims)
    pairs = list(zip(new.dims if alike else [None] * len(root.dims), root.dims, strict=True))
    kept = tuple(r if axes([r]) or n == r else dim(PLAIN, size(r)) for n, r in pairs)
    if not axes([*root.dims, *new.dims]):
        return kept
    if old.pending is root.pending:  # otherwise the view is a part of the map that is not symmetric
        if new.dims == old.dims:
            return kept
        if not axes(new.dims) and all(
            is_same(n) for n, o in zip(new.dims, old.dims, strict=True) if axes([o])
        ):
            return kept  # the same everywhere
        if alike and not axes(root.dims):
            if all(n is None or not axes([n]) or (is_same(r) and size(n) == size(r)) for n, r in pairs):
                return tuple(n if n and axes([n]) else k for (n, _), k in zip(pairs, kept, strict=True))
    notes.unknown(call, root if axes(root.dims) else new, "it writes into a part of a map")
    return tuple(dim(LOST, size(d)) for d in root.dims)


def _tensors(value: Any, inside: tuple[int, ...] = ()) -> Iterator[Tensor]:
    """All in it: in containers of any kind, and in the attributes of objects."""
    if isinstance(value, Tensor):
        yield value
    if isinstance(value, Tensor | int | float | str | bytes | type | nn.Module) or id(value) in inside:
        return
    inside = (*inside, id(value))
    if isinstance(value, Mapping):
        value = value.values()
    if not isinstance(value, Iterable):
        slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
        value = [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in slots)]
    for each in value:
        yield from _tensors(each, inside)
