"""Layers: from any model and an image to the names of the layers that are worth a look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..loss.capture import hooked, walk

__all__ = ["choose_layers"]


@dataclass
class _Seen:
    output: Any
    version: int
    times: int = 1

    @property
    def is_map(self) -> bool:
        """One run, one floating-point map, and nobody wrote over it later."""
        output = self.output
        return (
            self.times == 1
            and isinstance(output, Tensor)
            and output.ndim == 4
            and output.is_floating_point()
            and output._version == self.version
        )


def choose_layers(model: nn.Module, x: Tensor) -> list[str]:
    """The direct children of ``model`` that return maps, and the last map of all, in the order they run.

    A lone Sequential is looked through. Layers that run more than once for an image, or that a later in-place
    operation overwrites, are left out: they cannot be captured.

    >>> net = nn.Sequential(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)))
    >>> choose_layers(net, torch.rand(1, 1, 4, 4))
    ['0.0', '0.1']
    """
    seen: dict[str, _Seen] = {}

    def note(name: str, _: nn.Module, output: Any) -> None:
        times = seen.pop(name).times + 1 if name in seen else 1  # in the order of the last runs
        seen[name] = _Seen(output, output._version if isinstance(output, Tensor) else 0, times)

    modules = {name: module for name, module, hidden in walk(model) if not hidden}
    with hooked(modules, after=note), torch.no_grad():
        model(x)
    maps = [name for name, layer in seen.items() if layer.is_map]
    if not maps:
        shared = [
            name
            for name, layer in seen.items()
            if isinstance(layer.output, Tensor) and layer.output.ndim == 4
        ]
        if shared:
            raise ValueError(
                f"every layer that returns maps runs more than once or is overwritten in place "
                f"({', '.join(shared[:5])}): give one of them a module of its own"
            )
        raise ValueError(
            "no layer of the model returns a map (B, C, H, W): nothing in it could turn with an image"
        )
    children = _children(modules)
    chosen = [name for name in maps if name in children]
    last = maps[-1]
    if seen[last].output is not (seen[chosen[-1]].output if chosen else None):
        same = [name for name in maps if seen[name].output is seen[last].output]
        chosen.append(same[0])  # the innermost of those that pass the same map on
    return chosen


def _children(modules: Mapping[str, nn.Module]) -> set[str]:
    """Names of the direct children, through Sequentials that are the only child."""
    prefix = ""
    while True:
        depth = prefix.count(".") + 1 if prefix else 0
        names = [n for n in modules if n and n.startswith(prefix and f"{prefix}.") and n.count(".") == depth]
        if len(names) != 1 or not isinstance(modules[names[0]], nn.Sequential):
            return set(names)
        prefix = names[0]
