"""Facts: what is known of a tensor of the forward pass, above all which dimensions are places."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from .dimensions import COLUMNS, LOST_AXIS, OTHER_AXIS, ROWS, Dim, all_axes, dimension, places
from .exactness import Size, Step

__all__ = [
    "Call",
    "Facts",
    "Pending",
    "facts_of",
    "is_out_of_sight",
    "lost_places",
    "map_size",
    "no_places",
    "set_facts",
    "value_of",
]


@dataclass(eq=False)
class Pending:
    """Steps that are not exact so far.

    They become a finding as soon as anything but a repair uses the map. Without steps, the tensor
    holds indices of places, which become a finding as soon as anything uses them.
    """

    steps: tuple[Step, ...]
    size: Size
    """Of the map before the first step."""
    modules: tuple[str, ...]
    """The module in which each of the steps ran."""
    pitch: float
    """Input pixels per pixel of the map before the first step."""
    is_reported: bool = False

    @property
    def moves_elements(self) -> bool:
        """Whether the steps only choose or move elements: elementwise operations commute then."""
        kinds = {step.kind for step in self.steps}
        return bool(kinds) and kinds <= {"slice", "repeat", "move"}


@dataclass(eq=False)
class Facts:
    """What is known of one tensor."""

    dims: tuple[Dim, ...]
    pending: Pending | None = None
    pitch: float = 1.0
    """Input pixels per pixel of the map."""
    name: str = ""
    """Name of the parameter or buffer that the tensor is."""
    root: Facts | None = None
    """The tensor that this one is a view of."""
    is_rearranged: bool = False
    """Whether the view has other dimensions than its root, or the same in another order."""
    num_writes: int = 0
    """How often writing changed these facts; of a view: how often it had changed its root's.

    If a view and its root disagree, the root was changed behind the view's back.
    """
    node: int | None = None
    """Index in ``Notes.program``; None if the program does not determine the size of the map."""
    is_step_result: bool = False
    """Whether a spatial step returned it just as it is."""
    value: Tensor | None = None
    """The values of a small constant."""
    has_free_channels: bool = False
    """Whether a learnt convolution made each channel, and nothing has mixed channels since.

    Its weights can then be such that an element also permutes these channels, in any way.
    """

    @property
    def places(self) -> set[str]:
        """Which of rows, columns and lost places its dimensions contain."""
        return places(self.dims)

    def with_dims(self, dims: Iterable[Dim]) -> Facts:
        """Return facts of a result of this tensor: other dimensions, and nothing pending."""
        return Facts(tuple(dims), pitch=self.pitch, node=self.node)


class Call(NamedTuple):
    """One operation: its arguments by name, its tensors, and the shapes of its results."""

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
    def operands(self) -> list[Facts]:
        """The facts of its tensors."""
        return [facts_of(tensor) for tensor in self.tensors]

    @property
    def operand(self) -> Facts:
        """The facts of its first tensor."""
        return facts_of(self.tensors[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its first result."""
        return self.shapes[0]

    def lost_results(self) -> list[Facts]:
        """Return facts of results whose places are lost."""
        return [lost_places(shape) for shape in self.shapes]

    def options(self, *without: str) -> tuple[tuple[str, Any], ...]:
        """Return the arguments of a step: all but the first tensor and those named."""
        options = []
        # a step has to be hashable, because answers about it are cached
        for name, value in self.args.items():
            if name in ("self", "input", *without):
                continue
            if isinstance(value, list):
                value = tuple(value)
            options.append((name, value))
        return tuple(options)


def facts_of(tensor: Tensor) -> Facts:
    """Return what is known of the tensor."""
    if is_out_of_sight(tensor):
        return lost_places(tensor.shape)
    known = _attached(tensor)
    if known is None:
        return no_places(tensor.shape)  # a constant
    return known


def set_facts(tensor: Tensor, facts: Facts) -> None:
    """Attach facts to a fake tensor; the user's own tensors stay untouched."""
    if isinstance(tensor, FakeTensor):
        tensor._ien_facts = facts  # type: ignore[attr-defined]


def _attached(tensor: Tensor) -> Facts | None:
    return getattr(tensor, "_ien_facts", None)


def is_out_of_sight(tensor: Tensor) -> bool:
    """Return whether nothing is known of a tensor: made by unseen code, or an outdated view."""
    if not isinstance(tensor, FakeTensor):
        return False  # a constant
    known = _attached(tensor)
    if known is None:
        return True
    # a view is outdated if its root was written into since
    return known.root is not None and known.root.num_writes != known.num_writes


def value_of(tensor: Tensor) -> Tensor | None:
    """Return the values of a constant, if they are known; what can be learnt is not a constant."""
    if isinstance(tensor, FakeTensor):
        return facts_of(tensor).value
    if tensor.requires_grad or isinstance(tensor, nn.Parameter) or tensor.is_meta:
        return None
    return tensor


def no_places(shape: Sequence[int]) -> Facts:
    """Return facts of a tensor that has nothing to do with places of the image."""
    return Facts(tuple(dimension(OTHER_AXIS, n) for n in shape))


def lost_places(shape: Sequence[int]) -> Facts:
    """Return facts of a tensor that depends on places of the image in an unknown way."""
    return Facts(tuple(dimension(LOST_AXIS, n) for n in shape))


def map_size(x: Facts) -> Size:
    """Return height and width of the map in the tensor; 1 where it has no such axis."""
    sizes = {ROWS: 1, COLUMNS: 1}
    for d in x.dims:
        sizes.update(all_axes(d))
    return sizes[ROWS], sizes[COLUMNS]
