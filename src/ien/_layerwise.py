"""Layer by layer: while a model runs, each layer is tied just before its turn, and its output is checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ._compare import full_precision
from ._feature_groups import FeatureGroups, holder
from ._seen import Views
from ._tied import Blocks, cuts, tie

__all__ = ["Breaks", "Kernel", "LayerStart", "Work", "hooked", "spreads_of"]

Kernel = nn.Conv2d | nn.ConvTranspose2d | nn.Linear
Hook = Callable[[str, nn.Module, Any], None]


@dataclass(frozen=True)
class LayerStart:
    """What became of one layer."""

    before: str
    """The sizes of the feature groups in its input."""
    after: str
    """The same of its output."""
    distance: float
    """‖w - Pw‖ / ‖w‖ of its weights w and the nearest that commute with the group, Pw: from 0 to 1."""
    exact: float = math.nan
    """The largest relative error of its output under quarter turns and flips, members compared one by one."""
    between: float | None = None
    """The mean relative error under all other elements, which resample."""


class Breaks(ValueError):
    """A layer from which on the model is not equivariant."""


class Work:
    """Makes each layer equivariant just before it runs, and looks at what it returns."""

    def __init__(self, views: Views, specs: dict[str, FeatureGroups], spreads: dict[str, float]) -> None:
        self.views, self.specs, self.spreads = views, specs, spreads
        self.layers: dict[str, LayerStart] = {}
        self.ran: set[str] = set()
        self.tied: dict[int, tuple[Blocks, Blocks]] = {}
        self.written: list[tuple[Tensor, Tensor]] = []

    def start(self, name: str, module: nn.Module, x: Any) -> None:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return
        if isinstance(module, Kernel):
            self.ran.add(name)
            self._kernels(name, module, x)
        elif not any(True for _ in module.children()):
            self._numbers(name, module, x)

    def check(self, name: str, module: nn.Module, output: Any) -> None:
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return
        maps = _layouts(output)
        seen = next(filter(None, map(self.views.look, maps)), None)
        if maps and seen is None:
            error = min(self.views.error(h) for h in maps)
            raise Breaks(
                f"{_called(name, module)} breaks {self.views.group}: what it returns, {_shape(output)}, "
                f"turns neither as feature groups {self._known()} nor as single maps "
                f"(relative error {error:.2g})"
            )
        if seen is not None and name in self.layers and math.isnan(self.layers[name].exact):
            self.layers[name] = replace(self.layers[name], exact=seen.exact, between=seen.between)

    def undo(self) -> None:
        for tensor, old in reversed(self.written):
            tensor.copy_(old)

    def _kernels(self, name: str, module: Kernel, x: Tensor) -> None:
        """Tie the weight and the bias of a layer that mixes channels."""
        if "weight" not in module._parameters:
            raise ValueError(
                f"{_called(name, module)} computes its weight from other ones (a weight or spectral norm): "
                f"take that off first, with torch.nn.utils.parametrize.remove_parametrizations"
            )
        linear = isinstance(module, nn.Linear)
        maps = _layouts(x)[-1:] if linear else _layouts(x)[:1]  # a linear layer takes the last dimension
        before = self._blocks(name, module, x, maps)
        after = self._after(name, module, pixels=x.ndim == 4)
        weight, bias = module.weight, module.bias
        if self.tied.setdefault(id(weight), (after, before)) != (after, before):
            raise ValueError(f"{_called(name, module)} shares its weight where other feature groups come in")
        kernels = weight[..., None, None] if linear else weight
        if self._is_done(weight) or (
            set(_sizes(after) + _sizes(before)) == {1} and kernels[0, 0].numel() == 1
        ):
            return
        height, width = kernels.shape[2:]
        if height != width and self.views.swaps_sides:
            raise ValueError(
                f"{_called(name, module)} has kernels of {height}×{width}, which cannot turn by a quarter: "
                f"make them {max(height, width)}×{max(height, width)}, or take a group such as rot2xflip"
            )
        random = name in self.spreads
        sides = (before, after) if isinstance(module, nn.ConvTranspose2d) else (after, before)
        try:
            conv_groups = 1 if isinstance(module, nn.Linear) else module.groups
            tied, lost = tie(kernels, *sides, self.views.group, conv_groups, random=random)
        except ValueError as error:
            raise ValueError(f"{_called(name, module)}: {error}") from None
        total = float(weight.double().norm())
        self._write(weight, tied.view_as(weight))
        if bias is not None:
            shared, also_lost = self._shared(bias, after, random=random)
            lost, total = math.hypot(lost, also_lost), math.hypot(total, float(bias.double().norm()))
            self._write(bias, shared)
        if random and (spread := _spread(module, module.forward(x))) > 0:
            weight.mul_((self.spreads[name] / spread) ** 0.5)
        self.layers[name] = LayerStart(_text(before), _text(after), lost / total if total else 0.0)

    def _numbers(self, name: str, module: nn.Module, x: Tensor) -> None:
        """Make what a layer has for each channel, such as the weight of a norm, equal in a feature group."""
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        for maps in _layouts(x):
            channels = maps.shape[1]
            found = [
                t for t in own if t.is_floating_point() and t.numel() == max(t.shape, default=0) == channels
            ]
            if channels > 1 and found:
                break
        else:
            return
        before = self._blocks(name, module, x, [maps])
        if isinstance(module, nn.GroupNorm) and cuts(module.num_groups, before, before, self.views.group):
            raise ValueError(
                f"{_called(name, module)} cuts through feature groups with num_groups={module.num_groups}: "
                f"take 1, or a number that leaves each feature group in one piece"
            )
        lost = 0.0
        for tensor in found:
            shared, distance = self._shared(tensor, before)
            lost = math.hypot(lost, distance)
            if not torch.equal(shared, tensor):
                self._write(tensor, shared)
        total = math.hypot(*(float(t.double().norm()) for t in found))
        if lost > 1e-7 * total:  # more than rounding
            self.layers.setdefault(name, LayerStart(_text(before), _text(before), lost / total))

    def _shared(self, tensor: Tensor, blocks: Blocks, random: bool = False) -> tuple[Tensor, float]:
        mean, lost = tie(tensor.reshape(-1, 1, 1, 1), blocks, [(1, 1)], self.views.group, random=random)
        return mean.view_as(tensor), lost

    def _blocks(self, name: str, module: nn.Module, x: Tensor, maps: list[Tensor]) -> Blocks:
        """The feature groups seen in what comes into a layer."""
        seen = self.views.look(maps[0]) if maps else None
        if seen is None:
            raise Breaks(
                f"what comes into {_called(name, module)}, {_shape(x)}, turns neither as feature groups "
                f"{self._known()} nor as single maps under {self.views.group}"
            )
        return seen.blocks

    def _after(self, name: str, module: Kernel, pixels: bool) -> Blocks:
        """The feature groups that a layer shall return; a linear layer on vectors ends them if not named."""
        channels = module.out_features if isinstance(module, nn.Linear) else module.out_channels
        key = holder(name, {"", *self.specs})
        if isinstance(module, nn.Linear) and not pixels and not key:
            return ((1, channels),)
        key = holder(name, self.specs)
        try:
            return tuple(self.specs[key].blocks(channels))
        except ValueError as error:
            hint = f'; feature_groups={{"": …, "{name}": 1}} leaves it single maps' if name else ""
            raise ValueError(f"{_called(name, module)}: {error}{hint}") from None

    def _is_done(self, weight: Tensor) -> bool:
        return any(tensor is weight for tensor, _ in self.written)

    def _write(self, tensor: Tensor, value: Tensor) -> None:
        self.written.append((tensor, tensor.clone()))
        tensor.copy_(value)

    def _known(self) -> str:
        return " or ".join(dict.fromkeys(map(str, self.specs.values())))


def spreads_of(model: nn.Module, modules: Mapping[str, nn.Module], images: Tensor) -> dict[str, float]:
    """The variance of what each layer returns."""
    spreads: dict[str, float] = {}

    def note(name: str, module: nn.Module, output: Any) -> None:
        if isinstance(module, Kernel):
            spreads.setdefault(name, _spread(module, output))

    with hooked(modules, after=note):
        model(images.clone())
    return spreads


def _spread(module: Kernel, output: Tensor) -> float:
    """The variance of what a layer returns, its bias left out."""
    bias = torch.zeros(1) if module.bias is None else module.bias
    bias = bias if isinstance(module, nn.Linear) else bias.view(-1, 1, 1)
    return float(full_precision(output - bias.to(output)).var(unbiased=False))


@contextmanager
def hooked(
    modules: Mapping[str, nn.Module], before: Hook | None = None, after: Hook | None = None
) -> Iterator[None]:
    """Call ``before`` with what comes into each module, and ``after`` with what it returns."""

    def entering(name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            before(name, module, next(iter([*args, *kwargs.values()]), None))  # type: ignore[misc]

        return hook

    def leaving(name: str) -> Any:
        return lambda module, args, output: after(name, module, output)  # type: ignore[misc]

    handles = []
    try:
        for name, module in modules.items():
            if before is not None:
                handles.append(module.register_forward_pre_hook(entering(name), with_kwargs=True))
            if after is not None:
                handles.append(module.register_forward_hook(leaving(name)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _layouts(x: Tensor) -> list[Tensor]:
    """``x`` as maps (B, C, H, W): channels first, or last; a vector is a map of one pixel."""
    if x.ndim == 2:
        return [x[:, :, None, None]]
    return [x, x.movedim(3, 1)] if x.ndim == 4 else []


def _sizes(blocks: Blocks) -> list[int]:
    return [size for size, _ in blocks]


def _text(blocks: Blocks) -> str:
    return "-".join(map(str, _sizes(blocks)))


def _shape(x: Tensor) -> str:
    return f"{x.dtype} of shape {tuple(x.shape)}" if x.ndim != 4 else "×".join(map(str, x.shape[1:]))


def _called(name: str, module: nn.Module) -> str:
    return f"layer {name!r} ({type(module).__name__})" if name else "the model itself"
