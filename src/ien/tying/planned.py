"""What is tied in a model, and the check that its layers return what was planned."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.utils import parametrize

from .._text import MODEL_ITSELF
from ..groups.group import Group
from ..groups.members import Blocks, num_channels
from .detect import errors_in, layouts
from .projection import VECTOR, Tie
from .wiring import Mixing, batches_in

__all__ = [
    "Breaks",
    "Plan",
    "TiedLayer",
    "TiedTensor",
    "check_layer",
    "check_returned",
    "layer_text",
    "maps_of",
    "sizes_text",
]


class TiedTensor(NamedTuple):
    """A tensor of a module, and how feature groups tie its numbers."""

    module: nn.Module
    key: str
    tie: Tie


@dataclass(frozen=True)
class TiedLayer:
    """What became of one layer."""

    before: str
    """The sizes of the feature groups in its input."""
    after: str
    """The sizes of the feature groups in its output."""
    distance: float
    """‖W - P W‖ / ‖W‖ of its weights W and the nearest tied ones P W: 0 to 1."""
    exact: float = math.nan
    """The largest relative error of its output under quarter turns and flips."""
    between: float | None = None
    """The mean relative error under all other elements, which resample."""


@dataclass
class Plan:
    """What is tied in a model, in the order that its layers run."""

    group: Group
    layers: dict[str, TiedLayer] = field(default_factory=dict)
    ties: list[TiedTensor] = field(default_factory=list)
    """What is tied; a shared tensor comes once for each of its modules."""
    norms: list[tuple[nn.Module, Blocks]] = field(default_factory=list)
    """Norms with running statistics, and the feature groups to pool them over."""
    mixing: dict[nn.Module, Blocks | None] = field(default_factory=dict)
    """Layers that mix channels, and the feature groups that they return, if this can be checked."""
    outputs: list[Blocks] = field(default_factory=list)
    """The feature groups of each tensor that the model returns."""
    errors: dict[str, float] = field(default_factory=dict)
    """The relative error of what the model returns under each element, by its label."""
    unused: tuple[str, ...] = ()
    """Modules with parameters that did not run, and were not changed."""
    untied: tuple[str, ...] = ()
    """Frozen parameters that would break equivariance if they were trained."""


class Breaks(ValueError):
    """The layer from which on the model is not equivariant."""


def check_layer(plan: Plan, name: str, module: nn.Module, output: Any) -> str:
    """Check what a layer that mixes channels has returned, and say what is not as planned.

    Its errors are noted if it is checked for the first time. Other modules are not asked: of what
    they return, only what is read matters.
    """
    if not isinstance(module, Mixing):
        return ""
    if module not in plan.mixing:
        return f"{layer_text(name, module)} is not tied: it was added after make_equivariant"
    blocks = plan.mixing[module]
    if blocks is None:
        return ""
    found = errors_in(maps_of(module, output), plan.group, blocks)
    layer = plan.layers.get(name)
    if layer is not None and math.isnan(layer.exact):
        plan.layers[name] = replace(layer, exact=found.exact, between=found.between)
    if found.fits:
        return ""
    return f"{layer_text(name, module)} breaks {plan.group}"


def check_returned(plan: Plan, output: Any, num_views: int) -> tuple[dict[str, float], str]:
    """Return the errors of what a model has returned, by element, and what is not as planned."""
    errors: dict[str, float] = {}
    problem = ""
    for part, blocks in zip(batches_in(output, num_views), plan.outputs, strict=False):
        of_layouts = []
        for h in layouts(part):
            if h.shape[1] == num_channels(blocks):
                of_layouts.append(errors_in(h, plan.group, blocks))
        if not of_layouts:
            continue
        of_layouts.sort(key=lambda each: each.fits)  # the last of two layouts is the one that fits
        found = of_layouts[-1]
        for label, error in found.errors.items():
            errors[label] = max(error, errors.get(label, 0.0))
        if not found.fits:
            problem = f"{MODEL_ITSELF} breaks {plan.group}: its output does not rotate"
    return errors, problem


def maps_of(module: Mixing, x: Tensor) -> Tensor:
    """Return what a layer gets or returns as maps (B, C, H, W)."""
    if isinstance(module, nn.Linear):
        return layouts(x)[-1]  # it mixes the last dim
    return x


def layer_text(name: str, module: nn.Module) -> str:
    """Describe a layer by its name and type."""
    if not name:
        return MODEL_ITSELF
    return f"layer {name!r} ({parametrize.type_before_parametrizations(module).__name__})"


def sizes_text(blocks: Blocks) -> str:
    """Return the sizes as tables and messages show them: ``4-2-1``, or ``vector``."""
    sizes = []
    for size, _ in blocks:
        sizes.append("vector" if size == VECTOR else str(size))
    return "-".join(sizes)
