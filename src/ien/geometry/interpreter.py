"""Interpreter: sees every operation of a forward pass on fake tensors and applies its rule."""

from __future__ import annotations

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

from ..loss.modules import tensors_in
from .dimensions import COLUMNS, LOST_AXIS, ROWS, length, places, row_or_column
from .exactness import with_real_tensors
from .facts import Call, Facts, facts_of, is_out_of_sight, no_places, set_facts, value_of
from .notes import Notes, NotExact, Result, Rule
from .rules_combine import COMBINE_RULES
from .rules_rearrange import ELEMENTWISE, REARRANGE_RULES, elementwise
from .rules_spatial import SPATIAL_RULES, pad
from .writes import write

__all__ = ["interpret"]

RULES: dict[str, Rule] = {**REARRANGE_RULES, **COMBINE_RULES, **SPATIAL_RULES}
"""Operation → what follows of its operands for its results."""
FRESH_STARTS = frozenset(
    {"convolution", *(name for name in RULES if "pool" in name or "upsample" in name or "_like" in name)}
)
"""Operations that take maps only, or only the shape: they start afresh after places were lost."""
ALIGNED_VIEWS = frozenset({"slice", "select", "split", "split_with_sizes", "unbind", "detach", "alias"})
"""Views whose dimensions are those of the tensor, in its order."""
MAX_CONSTANT_ELEMENTS = 4096
"""Values of larger constants are not computed."""
UNFORESEEN = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
"""Errors of a rule that meets arguments it was not written for."""


def interpret(model: nn.Module, x: Tensor, notes: Notes) -> None:
    """Run ``model`` on ``x``, a fake tensor whose facts are set, and take notes."""
    with _Operations(notes) as operations, _Functions(operations):
        outputs = list(tensors_in(model(x)))  # inside the block, since it may be a generator
    notes.num_outputs = len(outputs)
    for tensor in outputs:
        _check_output(notes, tensor)
    if notes.is_stopped:  # and the model caught the exception and went on
        raise NotExact


def _check_output(notes: Notes, tensor: Tensor) -> None:
    facts = facts_of(tensor)
    if is_out_of_sight(tensor):
        reason = "it was made or changed where the doctor cannot see it"
        notes.report(facts, "unknown", "output", reason, "return what the model computes")
    notes.report_pending(facts)  # nothing can repair it any more
    if len(facts.dims) != 4:
        return
    first, second = map(row_or_column, facts.dims[-2:])
    if first == COLUMNS or second == ROWS:
        reason = "rows and columns of the output are swapped"
        notes.report(facts, "position", "transpose", reason, "transpose it back")


class _Operations(TorchDispatchMode):
    """Sees every operation after torch has decomposed it, and follows it."""

    def __init__(self, notes: Notes) -> None:
        super().__init__()
        self.notes = notes
        self.is_paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        traits = _traits_of(func)
        given = dict(zip(traits.defaults, args, strict=False))
        arguments = {**traits.defaults, **given, **kwargs}
        output = _run(func, traits, arguments, args, kwargs)
        results = list(tensors_in(output))
        if self.is_paused or not (results or traits.written):
            return output
        self.notes.num_operations += 1
        operands = list(tensors_in([args, kwargs]))
        shapes = [tuple(each.shape) for each in results]
        call = Call(traits.name, func, arguments, operands, shapes)
        facts = apply_rule(self.notes, call)
        _assign(self.notes, call, results, facts, traits)
        values = _constant_values(call, args, kwargs, traits)
        for tensor, value in zip(results, values, strict=False):
            facts_of(tensor).value = value
        return output


class _Functions(TorchFunctionMode):
    """Follows the functions whose decomposition hides what they do."""

    def __init__(self, operations: _Operations) -> None:
        super().__init__()
        self.operations = operations

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func == Tensor.data.__set__:  # type: ignore[attr-defined]
            set_facts(args[0], replace(facts_of(args[1])))
        is_circular_pad = func is F.pad and "circular" in (*args[2:3], kwargs.get("mode"))
        is_followed_here = is_circular_pad or func is F.local_response_norm
        if self.operations.is_paused or not is_followed_here:
            return func(*args, **kwargs)

        # the operations inside are not looked at
        self.operations.is_paused = True
        try:
            output = func(*args, **kwargs)
        finally:
            self.operations.is_paused = False

        notes = self.operations.notes
        name = func.__name__
        operands = list(tensors_in([args, kwargs]))
        call = Call(name, func, {}, operands, [tuple(output.shape)])
        if LOST_AXIS in call.operand.places:
            result: Result = call.lost_results()
        elif is_circular_pad:
            amounts = args[1] if len(args) > 1 else kwargs["pad"]
            result = pad(notes, call, amounts, "circular")
        else:
            result = _response_norm(notes, call)
        _assign(notes, call, [output], result, _Traits(name, {}, False, None))
        return output


def _response_norm(notes: Notes, call: Call) -> Result:
    """Normalisation over neighbours along dimension 1, which must be channels."""
    x = call.operand
    if places(x.dims[1:2]):
        return notes.report_unknown(call, x)
    return elementwise(notes, call)


class _Traits(NamedTuple):
    """What the schema of an operation says."""

    name: str
    defaults: dict[str, Any]
    """Every argument, in order, with its default."""
    is_view: bool
    written: str | None
    """The argument that the operation writes into."""


@cache
def _traits_of(func: Any) -> _Traits:
    schema = func._schema
    name = schema.name.split("::")[-1]
    defaults = {}
    written = None
    for argument in schema.arguments:
        defaults[argument.name] = argument.default_value if argument.has_default_value() else None
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        if is_written and written is None:
            written = argument.name
    if written is not None:
        return _Traits(name.rstrip("_"), defaults, False, written)
    is_view = any(result.alias_info is not None for result in schema.returns)
    return _Traits(name, defaults, is_view, None)


def _run(func: Any, traits: _Traits, arguments: dict[str, Any], args: Any, kwargs: Any) -> Any:
    """Let torch run the operation on fake tensors."""
    if traits.name == "native_batch_norm" and not arguments["training"]:
        # torch takes 10 ms to find the same
        x = arguments["input"]
        return torch.empty_like(x), x.new_empty(0), x.new_empty(0)
    if traits.written:
        targets = tensors_in(arguments[traits.written])
        if not all(isinstance(tensor, FakeTensor) for tensor in targets):
            return arguments[traits.written]  # a tensor that is not the model's stays as it is
    return func(*args, **kwargs)


def _constant_values(call: Call, args: Any, kwargs: Any, traits: _Traits) -> list[Tensor]:
    """Return the results with their values, if all operands are small constants."""
    is_random = torch.Tag.nondeterministic_seeded in getattr(call.func, "tags", ())
    if traits.written or is_random or not call.tensors:
        return []
    if max(map(prod, call.shapes)) > MAX_CONSTANT_ELEMENTS:
        return []
    values = {}
    for tensor in call.tensors:
        value = value_of(tensor)
        if value is None or value.numel() > MAX_CONSTANT_ELEMENTS:
            return []
        values[id(tensor)] = value
    # run the operation once more, with the values in place of the fake tensors
    args, kwargs = tree_map(lambda leaf: values.get(id(leaf), leaf), (args, kwargs))
    output = with_real_tensors(call.func)(*args, **kwargs)
    return list(tensors_in(output))


def apply_rule(notes: Notes, call: Call) -> Result:
    """Facts of the results; a finding if the operation acts on places and no rule covers it."""
    operands = call.operands
    for tensor in call.tensors:
        if is_out_of_sight(tensor):
            reason = "it receives a tensor that was made or changed where the doctor cannot see it"
            notes.report_unknown(call, facts_of(tensor), reason)
    has_lost_places = any(LOST_AXIS in x.places for x in operands)
    if has_lost_places and call.name not in FRESH_STARTS:
        notes.report_pending(*operands)
        return call.lost_results()
    if torch.Tag.pointwise in getattr(call.func, "tags", ()) or call.name in ELEMENTWISE:
        return elementwise(notes, call)
    rule = RULES.get(call.name)
    if rule is not None:
        try:
            return rule(notes, call)
        except UNFORESEEN:
            pass  # a variant of the operation that the rule does not cover
    for x in operands:
        if x.places or x.pending is not None:
            return notes.report_unknown(call, x)
    return []


def _assign(notes: Notes, call: Call, results: list[Tensor], result: Result, traits: _Traits) -> None:
    """Attach the facts that a rule found to the tensors that were returned or written into."""
    known = list(result) if isinstance(result, list) else [result]
    for tensor in results[len(known) :]:
        known.append(no_places(tensor.shape))
    if traits.written is not None:
        targets = list(tensors_in(call.args[traits.written]))
        for target in targets[len(known) :]:
            known.append(no_places(target.shape))
        for target, facts in zip(targets, known, strict=False):
            write(notes, call, target, facts)
        return
    for tensor, facts in zip(results, known, strict=False):
        if not _fits(facts, tensor):
            facts = notes.report_unknown(call, call.operand)[0]
        facts = replace(facts, root=None, is_rearranged=False, num_writes=0, value=None)
        set_facts(tensor, facts)
        if traits.is_view and isinstance(call.tensors[0], FakeTensor):
            base = facts_of(call.tensors[0])
            view = facts_of(tensor)
            view.root = base.root or base
            view.is_rearranged = base.is_rearranged or call.name not in ALIGNED_VIEWS
            view.num_writes = view.root.num_writes


def _fits(facts: Facts, tensor: Tensor) -> bool:
    """Return whether facts have the shape of the tensor, and rows and columns of one map."""
    if list(map(length, facts.dims)) != list(tensor.shape):
        return False
    axes = list(map(row_or_column, facts.dims))
    return axes.count(ROWS) <= 1 and axes.count(COLUMNS) <= 1
