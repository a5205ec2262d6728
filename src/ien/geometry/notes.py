"""Notes: the findings of one forward pass, and how steps add up before they become one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from .dimensions import CONSTANT_AXIS, Dim, dimension, length, merge, places
from .exactness import Step, is_exact, size_after, stride_of
from .facts import Call, Facts, Pending, map_size
from .findings import Finding, explain

__all__ = ["NotExact", "Notes", "Result", "Rule"]


class NotExact(Exception):
    """Ends a forward pass whose only question was whether the grid is exact."""


@dataclass
class Notes:
    """What one forward pass shows, in the order in which it happens."""

    stop_at_grid: bool = False
    """Whether to raise :class:`NotExact` at the first finding of the kind ``"grid"``."""
    is_square: bool = True
    """Whether the input is square."""
    is_stopped: bool = False
    """Whether the pass ended early; it stays True if the model catches the exception."""
    modules: list[str] = field(default_factory=lambda: [""])
    """Names of the modules that are running, the innermost last."""
    findings: dict[Finding, None] = field(default_factory=dict)
    """An ordered set."""
    program: dict[tuple[int, Step], int] = field(default_factory=dict)
    """Convolutions and pools: (node before, step) → node after; node 0 is the input."""
    resized_nodes: set[int | None] = field(default_factory=set)
    """Nodes that are then sliced, padded or resized, which may repair them."""
    chained_nodes: set[int] = field(default_factory=set)
    """Nodes whose step follows another step directly, and may repair it."""
    num_operations: int = 0
    num_outputs: int = 0
    """Tensors in what the model returned."""

    # --- findings

    def report(self, x: Facts, kind: str, op: str, reason: str, remedy: str) -> None:
        """Add a finding about an operation on ``x`` in the module that is running."""
        self.report_pending(x)
        self._add(Finding(self.modules[-1], op, map_size(x), kind, reason, remedy))

    def report_unknown(
        self,
        call: Call,
        x: Facts,
        reason: str = "the doctor cannot follow it",
        remedy: str = "measure what it costs, or avoid it",
    ) -> list[Facts]:
        """Add a finding that an operation cannot be followed; return the facts of its results."""
        self.report(x, "unknown", call.title, reason, remedy)
        return call.lost_results()

    def report_pending(self, *used: Facts) -> None:
        """Add findings for what is pending on these maps, because something now uses them."""
        for x in used:
            pending = x.pending
            if pending is None or pending.is_reported:
                continue
            pending.is_reported = True
            if not pending.steps:
                self._add_index(pending)
                continue
            if self.stop_at_grid:
                self.is_stopped = True
                raise NotExact
            for part in _parts(pending):
                self._add(explain(part.steps, part.size, part.modules[0], part.pitch))

    def _add(self, finding: Finding) -> None:
        self.findings[finding] = None

    def _add_index(self, pending: Pending) -> None:
        reason = "it returns positions as numbers, which do not rotate with the image"
        remedy = "use values, not indices"
        self._add(Finding(pending.modules[0], "index", pending.size, "unknown", reason, remedy))

    # --- spatial steps

    def apply(self, x: Facts, step: Step, dims: Iterable[Dim]) -> Facts:
        """Return facts of the map after a step, which is judged together with pending ones."""
        before = x.pending
        if before is not None and not before.steps:
            self.report_pending(x)
            before = None
        size = map_size(x)
        module = self.modules[-1]
        result = replace(x.with_dims(dims), is_step_result=True)
        result.pitch *= stride_of(step, size, map_size(result))
        self._extend_program(x, step, result)

        if before is not None:
            steps = (*before.steps, step)
            if is_exact(steps, before.size):
                return result  # the step repairs what was pending
            if step.is_repairable:
                result.pending = replace(before, steps=steps, modules=(*before.modules, module))
                return result
            self.report_pending(x)
        if not is_exact((step,), size):
            result.pending = Pending((step,), size, (module,), x.pitch)
        return result

    def _extend_program(self, x: Facts, step: Step, result: Facts) -> None:
        """Record convolutions and pools, so that other input sizes can be judged without a pass."""
        if step.is_repairable or step.kind == "resize" or x.node is None:
            result.node = None  # the arguments of such a step often depend on the size
            self.resized_nodes.add(x.node)
            return
        result.node = self.program.setdefault((x.node, step), len(self.program) + 1)
        if x.is_step_result:
            self.chained_nodes.add(result.node)

    def pending_through(self, operands: Sequence[Facts]) -> Pending | None:
        """Return what stays pending when an operation acts on single elements.

        Only steps that choose or move elements stay, and only if all maps agree on them. Anything
        else is used by the operation, and reported.
        """
        pending = None
        for x in operands:
            pending = pending or x.pending
        if pending is None:
            return None
        is_shared = True
        for x in operands:
            is_map = x.pending is not None or bool(x.places)
            if is_map and x.pending is not pending:
                is_shared = False
        if is_shared and pending.moves_elements:
            return pending
        self.report_pending(*operands)
        return None

    # --- operands that meet

    def broadcast(self, call: Call, operands: Sequence[Facts], shape: Sequence[int]) -> tuple[Dim, ...]:
        """Return the dimensions of operands that meet by element, and report what does not fit."""
        dims: list[Dim] = []
        for i in range(-len(shape), 0):  # from the last dimension, as torch aligns them
            merged: Dim = dimension(CONSTANT_AXIS, shape[i])
            for x in _operands_with(operands, i):
                if length(x.dims[i]) == 1:
                    continue
                merged, problem = merge(merged, x.dims[i])
                if problem:
                    self._report_clash(call, operands, i, problem)
            dims.append(merged)
        return tuple(dims)

    def _report_clash(self, call: Call, operands: Sequence[Facts], i: int, problem: str) -> None:
        maps = []
        names = []
        for x in _operands_with(operands, i):
            d = x.dims[i]
            if places([d]):
                maps.append(x)
            elif length(d) > 1 and x.name:
                names.append(x.name)
        title = call.title
        if problem == "order":
            reason = "it combines positions that do not correspond, such as rows and columns"
            remedy = "bring both into the same order"
        else:
            reason = "its values differ between positions and do not rotate with the image"
            remedy = (
                "use one value for all positions; replace a position embedding by a relative one, or drop it"
            )
            if names:
                title = f"{title} of {names[0]!r}"
        self.report(maps[0], "position", title, reason, remedy)


Result = Facts | list[Facts]
"""Facts of one result of an operation, or of several."""
Rule = Callable[[Notes, Call], Result]


def _operands_with(operands: Sequence[Facts], i: int) -> list[Facts]:
    """Return those that have a dimension ``i``, counted from the end."""
    return [x for x in operands if len(x.dims) >= -i]


def _parts(pending: Pending) -> list[Pending]:
    """Split off the repairs tried after a convolution or pool, and leave out what is exact."""
    first, rest = pending.steps[0], pending.steps[1:]
    if first.is_repairable or not rest:
        return [pending]
    after = size_after(first, pending.size)
    pitch = pending.pitch * stride_of(first, pending.size, after)
    parts = []
    if not is_exact((first,), pending.size):
        parts.append(Pending((first,), pending.size, pending.modules[:1], pending.pitch))
    if not is_exact(rest, after):
        parts.append(Pending(rest, after, pending.modules[1:], pitch))
    return parts
