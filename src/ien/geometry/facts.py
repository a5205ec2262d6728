"""Facts: what is known of each tensor of a forward pass, and the findings that come of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from .dimensions import LOST, PLAIN, Dim, axes, dim, leaves, merge, size
from .exactness import Size, Step, exact, size_after, stride
from .findings import Finding, explain

__all__ = [
    "Call",
    "Facts",
    "NotExact",
    "Notes",
    "Pending",
    "facts_of",
    "is_strange",
    "lost",
    "map_size",
    "plain",
    "set_facts",
    "value_of",
]


class NotExact(Exception):
    """Ends a forward pass whose only question was whether the grid is exact."""


@dataclass(eq=False)
class Pending:
    """Steps that are not exact so far; a finding as soon as something else than a repair uses the map."""

    steps: tuple[Step, ...]
    size: Size
    modules: tuple[str, ...]
    """In which each of the steps ran."""
    pitch: float
    said: bool = False


@dataclass(eq=False)
class Facts:
    """Which dimensions of a tensor are places of the image, and how."""

    dims: tuple[Dim, ...]
    pending: Pending | None = None
    pitch: float = 1.0
    """Pixels of the input in one of the map."""
    name: str = ""
    """Of the parameter or buffer that it is."""
    root: Facts | None = None
    """The tensor that it is a view of."""
    rearranged: bool = False
    """Whether the view has other dimensions than that, or in another order."""
    writes: int = 0
    """How often what is known of it changed by writing into it; of a view, how often its root had by then."""
    node: int | None = None
    """Its place in the program of the notes; None: its size depends on the input's in ways not recorded."""
    fresh: bool = False
    """Whether it is a step's result as it came out."""
    value: Tensor | None = None
    """Of a small constant: what is in it."""

    def to(self, dims: Iterable[Dim]) -> Facts:
        """A result of it, with other dimensions and nothing pending."""
        return Facts(tuple(dims), pitch=self.pitch, node=self.node)


class Call(NamedTuple):
    """One operation: its arguments by name and the shapes of its results."""

    name: str
    func: Callable[..., Any]
    args: dict[str, Any]
    tensors: list[Tensor]
    shapes: list[tuple[int, ...]]

    @property
    def title(self) -> str:
        """Its name in words."""
        return self.name.strip("_").removeprefix("native_").replace("_", " ")

    @property
    def facts(self) -> list[Facts]:
        return [facts_of(tensor) for tensor in self.tensors]

    def options(self, *without: str) -> tuple[tuple[str, Any], ...]:
        """The arguments but the first tensor and those named, as a value that can be compared."""
        left_out = {"self", "input", *without}
        kept = {k: v for k, v in self.args.items() if k not in left_out}
        return tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in kept.items())


def facts_of(tensor: Tensor) -> Facts:
    if is_strange(tensor):
        return lost(tensor.shape)
    known: Facts | None = getattr(tensor, "_ien_facts", None)
    return plain(tensor.shape) if known is None else known


def is_strange(tensor: Tensor) -> bool:
    """Whether nothing is known of it any more: a fake tensor made out of sight, or an outdated view."""
    if not isinstance(tensor, FakeTensor):
        return False  # a constant
    known: Facts | None = getattr(tensor, "_ien_facts", None)
    return known is None or (known.root is not None and known.root.writes != known.writes)


def value_of(tensor: Tensor) -> Tensor | None:
    """What is in a constant, if that is known; what can be learnt is not constant."""
    if isinstance(tensor, FakeTensor):
        return facts_of(tensor).value
    return None if tensor.requires_grad or isinstance(tensor, nn.Parameter) or tensor.is_meta else tensor


def set_facts(tensor: Tensor, value: Facts) -> None:
    if isinstance(tensor, FakeTensor):  # the user's own tensors stay as they are
        tensor._ien_facts = value  # type: ignore[attr-defined]


def plain(shape: Sequence[int]) -> Facts:
    return Facts(tuple(dim(PLAIN, n) for n in shape))


def lost(shape: Sequence[int]) -> Facts:
    return Facts(tuple(dim(LOST, n) for n in shape))


def map_size(x: Facts) -> Size:
    """Height and width of the map that the tensor holds; 1 where it has no such axis."""
    parts = {axis: n for d in x.dims for axis, n in leaves(d)}
    return parts.get("H", 1), parts.get("W", 1)


def _apart(pending: Pending) -> list[Pending]:
    """A convolution or pool apart from what was tried after it, as far as each is not exact."""
    first, rest = pending.steps[0], pending.steps[1:]
    if first.passes_on or not rest:
        return [pending]
    after = size_after(first, pending.size)
    pitch = pending.pitch * stride(first, pending.size, after)
    parts = [
        Pending((first,), pending.size, pending.modules[:1], pending.pitch),
        Pending(rest, after, pending.modules[1:], pitch),
    ]
    return [part for part in parts if not exact(part.steps, part.size)]


@dataclass
class Notes:
    """The findings of one forward pass, in order."""

    stop_at_grid: bool = False
    square: bool = True
    """Whether the input is."""
    stopped: bool = False
    """Whether it ended early; remains where the model catches the exception."""
    modules: list[str] = field(default_factory=lambda: [""])
    findings: dict[Finding, None] = field(default_factory=dict)
    program: dict[tuple[int, Step], int] = field(default_factory=dict)
    """Convolutions and pools by the node that they are applied to; node 0 is the input."""
    cut_to_size: set[int | None] = field(default_factory=set)
    """Nodes of the program that are sliced, padded or resized, which may repair them."""
    direct: set[int] = field(default_factory=set)
    """Nodes of the program that follow another at once, and may repair it."""
    operations: int = 0
    """How many there were."""
    outputs: int = 0
    """Tensors in what the model returned."""

    def add(self, finding: Finding) -> None:
        self.findings[finding] = None

    def flush(self, *facts: Facts) -> None:
        """These maps are used: what is pending stays."""
        for pending in (x.pending for x in facts if x.pending is not None):
            if pending.said:
                continue
            pending.said = True
            if pending.steps:
                if self.stop_at_grid:
                    self.stopped = True
                    raise NotExact
                for each in _apart(pending):
                    self.add(explain(each.steps, each.size, each.modules[0], each.pitch))
            else:
                reason = "it gives places as numbers, which do not turn with the image"
                self.add(
                    Finding(
                        pending.modules[0],
                        "index",
                        pending.size,
                        "unknown",
                        reason,
                        "use values, not indices",
                    )
                )

    def note(self, x: Facts, kind: str, op: str, reason: str, remedy: str) -> None:
        self.flush(x)
        self.add(Finding(self.modules[-1], op, map_size(x), kind, reason, remedy))

    def unknown(
        self,
        call: Call,
        x: Facts,
        reason: str = "it cannot be followed",
        remedy: str = "measure what it costs, or do without",
    ) -> list[Facts]:
        """A finding, and results of which nothing is known."""
        self.note(x, "unknown", call.title, reason, remedy)
        return [lost(shape) for shape in call.shapes]

    def apply(self, x: Facts, step: Step, dims: Iterable[Dim]) -> Facts:
        """The map after a step, with what is pending: judged together with the steps before."""
        before = x.pending if x.pending is not None and x.pending.steps else None
        if before is None:
            self.flush(x)
        here, module = map_size(x), self.modules[-1]
        out = replace(x.to(dims), fresh=True)
        out.pitch *= stride(step, here, map_size(out))
        if step.passes_on or step.kind == "resize" or x.node is None:
            out.node = None
            self.cut_to_size.add(x.node)
        else:
            out.node = self.program.setdefault((x.node, step), len(self.program) + 1)
            if x.fresh:
                self.direct.add(out.node)
        if before is not None:
            steps = (*before.steps, step)
            if exact(steps, before.size):
                return out
            if step.passes_on:
                out.pending = replace(before, steps=steps, modules=(*before.modules, module))
                return out
            self.flush(x)
        if not exact((step,), here):
            out.pending = Pending((step,), here, (module,), x.pitch)
        return out

    def broadcast(self, call: Call, facts: Sequence[Facts], shape: Sequence[int]) -> tuple[Dim, ...]:
        """The dimensions of operands that meet element by element; a finding where they must not."""
        dims: list[Dim] = []
        for i in range(-len(shape), 0):
            here = [x for x in facts if -i <= len(x.dims) and size(x.dims[i]) != 1]
            merged: Dim = dim("=", shape[i])
            for x in here:
                merged, problem = merge(merged, x.dims[i])
                if problem:
                    self._clash(call, facts, x, i, problem)
            dims.append(merged)
        return tuple(dims)

    def _clash(self, call: Call, facts: Sequence[Facts], x: Facts, i: int, problem: str) -> None:
        held = next(t for t in facts if len(t.dims) >= -i and axes([t.dims[i]]))
        if problem == "order":
            reason = "places that do not correspond meet, such as rows and columns"
            return self.note(held, "position", call.title, reason, "bring both into one order")
        fixed = [t for t in facts if len(t.dims) >= -i and size(t.dims[i]) > 1 and not axes([t.dims[i]])]
        name = next((f" of {t.name!r}" for t in fixed if t.name), "")
        reason = "its values differ from place to place and do not turn with the image"
        remedy = "one value for all places; instead of a position embedding, a relative one or none"
        self.note(held, "position", f"{call.title}{name}", reason, remedy)

    def carried(self, facts: Sequence[Facts]) -> Pending | None:
        """What stays pending through an operation on single elements: which of them; else it is used now."""
        pending = next((x.pending for x in facts if x.pending is not None), None)
        if pending is None:
            return None
        if all(step.kind in ("slice", "repeat", "move") for step in pending.steps) and pending.steps:
            if all(x.pending is pending for x in facts if x.pending is not None or axes(x.dims)):
                return pending
        self.flush(*facts)
        return None
