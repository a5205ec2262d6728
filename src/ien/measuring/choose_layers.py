"""The layers to measure: those the user names, else run the model and see who returns maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..loss.arguments import Arguments
from ..loss.feature_groups import Spec
from ..loss.modules import hooked, walk

__all__ = ["NoMaps", "choose_layers", "requested_layers"]

MAX_UNCAPTURED_LAYERS = 5
"""How many of the layers that return maps, but cannot be captured, an error names."""


class NoMaps(ValueError):
    """No layer of a model returns a map that can be captured."""


@dataclass
class _Run:
    """What a layer returned the last time it ran."""

    output: Any
    version: int
    """The output's version counter then: it rises when somebody writes into the tensor."""
    times: int
    """How often the layer has run."""

    @property
    def returned_map(self) -> bool:
        return isinstance(self.output, Tensor) and self.output.ndim == 4

    @property
    def can_be_captured(self) -> bool:
        """Whether it ran once and returned a floating-point map that nobody overwrote later."""
        return (
            self.returned_map
            and self.times == 1
            and self.output.is_floating_point()
            and self.output._version == self.version
        )


def choose_layers(model: nn.Module, x: Tensor, arguments: Arguments = ((), {})) -> list[str]:
    """Return the names of the model's direct children that return maps, and of its last map.

    They come in the order in which they run. If the only child is a Sequential, or the last is a
    model of its own after layers without weights, such as a normalisation, its children count
    instead. Layers that run more than once per image, or whose map a later in-place operation
    overwrites, are skipped: they cannot be captured.

    Args:
        model: The model, in the mode in which it should run.
        x: A few images (B, C, H, W); their values do not matter.
        arguments: What the model takes besides these images.

    Raises:
        NoMaps: No layer returns a map that can be captured.

    >>> layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    >>> choose_layers(nn.Sequential(layers), torch.rand(1, 1, 4, 4))
    ['0.0', '0.1']
    """
    modules = {}
    has_hidden_layers = False
    for name, module, hidden in walk(model):
        if hidden:  # hooks do not run inside a compiled module
            has_hidden_layers = True
        else:
            modules[name] = module
    runs = _run_once(model, modules, x, arguments)
    maps = [name for name, run in runs.items() if run.can_be_captured]
    if not maps:
        raise NoMaps(_why_no_map(runs, has_hidden_layers))

    children = _direct_children(modules)
    chosen = [name for name in maps if name in children]

    # The last map of all may come from deeper inside, or from the model itself.
    last_map = runs[maps[-1]].output
    if not chosen or runs[chosen[-1]].output is not last_map:
        # Containers return the map of their last layer too; the layer that made it finished first.
        returned_it = [name for name in maps if runs[name].output is last_map]
        chosen.append(returned_it[0])
    return chosen


def requested_layers(
    layers: str | Sequence[str] | None, feature_groups: Spec | Mapping[str, Spec]
) -> list[str] | None:
    """Return the layers named by the user, if only as keys of ``feature_groups``; else None."""
    if isinstance(layers, str):
        return [layers]
    if layers is not None:
        if not layers:
            raise ValueError("measure needs at least one layer name (see model.named_modules()); got none")
        return list(layers)
    # a mapping may also be a mix such as {4: 0.5, 2: 0.5}, which names no layer
    if isinstance(feature_groups, Mapping) and all(isinstance(key, str) for key in feature_groups):
        return list(map(str, feature_groups))
    return None


def _run_once(
    model: nn.Module, modules: Mapping[str, nn.Module], x: Tensor, arguments: Arguments
) -> dict[str, _Run]:
    """Run the model on ``x``; return what each module returned, in the order of their last runs."""
    runs: dict[str, _Run] = {}

    def note(name: str, module: nn.Module, output: Any) -> None:
        times = 1
        if name in runs:
            times += runs.pop(name).times  # pop, so that the name moves to the end
        version = 0
        if isinstance(output, Tensor):
            version = output._version
        runs[name] = _Run(output, version, times)

    args, kwargs = arguments
    with hooked(modules, after=note), torch.no_grad():
        model(x, *args, **kwargs)
    return runs


def _direct_children(modules: Mapping[str, nn.Module]) -> set[str]:
    """Return the names of the direct children, looking into a model that is only wrapped."""
    parent = ""
    while True:
        names = [name for name in modules if name and _parent_of(name) == parent]
        if not names or not _wraps(modules, names):
            return set(names)
        parent = names[-1]


def _wraps(modules: Mapping[str, nn.Module], names: list[str]) -> bool:
    """Whether these children are one Sequential, or a whole model after layers without weights."""
    *before, last = names
    if not before:
        return isinstance(modules[last], nn.Sequential)
    # as in nn.Sequential(Normalize(…), net)
    has_children = any(_parent_of(name) == last for name in modules)
    without_weights = all(next(modules[name].parameters(), None) is None for name in before)
    return has_children and without_weights


def _parent_of(name: str) -> str:
    return name.rpartition(".")[0]


def _why_no_map(runs: Mapping[str, _Run], has_hidden_layers: bool) -> str:
    if has_hidden_layers:
        return (
            "the model is compiled, so its layers run without the hooks that measure needs: pass the model "
            "from before torch.compile, or compile its layers one by one"
        )
    uncapturable = []
    for name, run in runs.items():
        if run.returned_map:
            uncapturable.append(name)
    if not uncapturable:
        return "no layer of the model returns a map (B, C, H, W), so there is nothing to compare"
    names = ", ".join(uncapturable[:MAX_UNCAPTURED_LAYERS])
    return (
        f"every layer that returns a map runs more than once or is overwritten in place ({names}): "
        f"use a separate module for each call, or inplace=False"
    )
