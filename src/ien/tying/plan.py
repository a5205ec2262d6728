"""Layer by layer: while a model runs, each layer is tied just before its turn, and its output is checked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..groups.members import Blocks
from ..loss.capture import hooked
from ..loss.error import full_precision
from ..loss.feature_groups import FeatureGroups
from ..loss.layers import holder
from .detect import Views
from .projection import LOST, Tie, cuts, ungrouped

__all__ = ["Breaks", "LayerStart", "Mixing", "Work", "spreads_of"]

Mixing = nn.Conv2d | nn.ConvTranspose2d | nn.Linear
"""Layers that mix channels."""
ROUNDING = 1e-6
"""Weights at no more than this distance are those of an equivariant layer already."""
GAIN = 4.0
"""A random weight grows or shrinks by no more to keep the variance: almost dead maps would need much more."""


@dataclass(frozen=True)
class LayerStart:
    """What became of one layer."""

    before: str
    """The sizes of the feature groups in its input."""
    after: str
    """The same of its output."""
    distance: float
    """‖w - Pw‖ / ‖w‖ of its weights w and the nearest tied ones, Pw, smooth if asked for: from 0 to 1."""
    exact: float = math.nan
    """The largest relative error of its output under quarter turns and flips, members compared one by one."""
    between: float | None = None
    """The mean relative error under all other elements, which resample."""


class Breaks(ValueError):
    """A layer from which on the model is not equivariant."""


class Work:
    """Makes each layer equivariant just before it runs, and looks at what it returns."""

    def __init__(
        self, views: Views, specs: dict[str, FeatureGroups], spreads: dict[str, float], smooth: bool
    ) -> None:
        self.views, self.specs, self.spreads, self.smooth = views, specs, spreads, smooth
        self.layers: dict[str, LayerStart] = {}
        self.ran: set[str] = set()
        self.returned: dict[str, Blocks] = {}  # the feature groups given to a layer, then those seen
        self.ties: dict[int, Tie] = {}
        self.written: dict[int, tuple[Tensor, Tensor]] = {}  # by id: a tensor, and what it was
        self.changed = False  # whether weights so far were not equivariant before
        self.last = ""  # the layer that mixed channels last
        self.exchanged = ""  # how to have the model return single maps, if it returns feature groups, unasked

    def start(self, name: str, module: nn.Module, x: Any) -> None:
        stale = self.changed and not self.spreads and name not in self.ran
        self.ran.add(name)
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return
        if isinstance(module, Mixing):
            self.last = name
            self._kernels(name, module, x)
        else:
            self._numbers(name, module, x)
            if stale:
                self._statistics(module, x)

    def check(self, name: str, module: nn.Module, output: Any) -> None:
        """An error if what a layer returns does not turn; the model itself may return several tensors."""
        if name or isinstance(output, Tensor):
            parts = [output]
        else:
            parts = [part for part in _tensors_in(output) if part.ndim and len(part) == self.views.count]
        for part in parts:
            self._check_part(name, module, part)
        if not name and len(parts) == 1:  # of several it is not known which layer made which
            self._check_classes(parts[0])

    def _check_part(self, name: str, module: nn.Module, output: Any) -> None:
        if not isinstance(output, Tensor) or not output.is_floating_point() or not _layouts(output):
            return
        maps, given = _layouts(output), self.returned.get(name, ())
        seen = next(filter(None, (self.views.look(h, given) for h in maps)), None)
        if seen is None:
            error = min(self.views.error(h) for h in maps)
            raise Breaks(
                f"{_called(name, module)} breaks {self.views.group}: what it returns, {_shape(output)}, "
                f"turns neither as feature groups {self._known()} nor as single maps "
                f"(relative error {error:.2g}){self._left(module)}"
            )
        self.returned[name] = seen.blocks
        if name in self.layers and math.isnan(self.layers[name].exact):
            self.layers[name] = replace(self.layers[name], exact=seen.exact, between=seen.between)

    def _check_classes(self, output: Tensor) -> None:
        """An error if the model returns vectors in feature groups, unasked; of maps it is noted."""
        blocks = self.returned.get("", ())
        if set(_sizes(blocks)) <= {1} or not self.last or holder(self.last, {"", *self.specs}):
            return
        self.exchanged = f'feature_groups={{"": …, "{self.last}": 1}}'
        if output.ndim == 2:
            raise ValueError(
                f"the model returns vectors of {output.shape[1]}, whose numbers {self.views.group} exchanges "
                f"within feature groups {_text(blocks)}, as those of classes must not be: end it in a "
                f"linear layer, or make its last layer return single maps, {self.exchanged}; name that layer "
                f"with its feature groups if they are what you want"
            )

    @property
    def tied(self) -> tuple[Tie, ...]:
        return tuple(tie for tie in self.ties.values() if id(tie.tensor) in self.written)

    def undo(self) -> None:
        for tensor, old in self.written.values():
            tensor.copy_(old)

    def _kernels(self, name: str, module: Mixing, x: Tensor) -> None:
        """Tie the weight and the bias of a layer that mixes channels."""
        if "weight" not in module._parameters:
            raise ValueError(
                f"{_called(name, module)} computes its weight from other ones (a weight or spectral norm): "
                f"take that off first, with torch.nn.utils.parametrize.remove_parametrizations, or with "
                f"remove_weight_norm or remove_spectral_norm of torch.nn.utils"
            )
        maps = _layouts(x)[-1:] if isinstance(module, nn.Linear) else _layouts(x)[:1]  # linear: the last dim
        before = self._blocks(name, module, x, maps)
        after = self.returned[name] = self._after(name, module, pixels=x.ndim == 4)
        sides = (before, after) if isinstance(module, nn.ConvTranspose2d) else (after, before)
        ungrouped_sides = ungrouped(getattr(module, "groups", 1), *sides, self.views.group)
        ties = [Tie(module, "weight", self.views.group, *ungrouped_sides, self.smooth)]
        if module.bias is not None:
            ties.append(Tie(module, "bias", self.views.group, after))
        if any(self.ties.setdefault(id(tie.tensor), tie)[2:] != tie[2:] for tie in ties):
            raise ValueError(f"{_called(name, module)} shares its weight where other feature groups come in")
        new = [tie for tie in ties if id(tie.tensor) not in self.written]
        weight, random = module.weight, name in self.spreads
        if not new or (set(_sizes(after) + _sizes(before)) == {1} and weight[0, 0].numel() == 1):
            return
        lost, total = 0.0, math.hypot(*(float(tie.tensor.double().norm()) for tie in ties))
        for tie in new:
            lost = math.hypot(lost, self._turn(name, tie, random))
        if random and new[0] is ties[0] and (spread := _spread(module, module.forward(x))) > 0:
            weight.mul_(min(max((self.spreads[name] / spread) ** 0.5, 1 / GAIN), GAIN))
        self._note(name, before, after, lost, total)

    def _turn(self, name: str, tie: Tie, random: bool) -> float:
        """Make kernels turned copies of each other, or biases equal; return how far they were from that."""
        values, called = tie.tensor, _called(name, tie.module)
        height, width = values.shape[2:] or (1, 1)
        if height != width and self.views.swaps_sides:
            raise ValueError(
                f"{called} has kernels of {height}×{width}, which cannot turn by a quarter: "
                f"make them {max(height, width)}×{max(height, width)}, or take a group such as rot2xflip"
            )
        try:
            tied, lost = tie.start(values, random)
        except ValueError as error:
            raise ValueError(f"{called}: {error}") from None
        if tie.name == "weight" and values.any() and float(tied.norm()) <= LOST * float(values.norm()):
            raise ValueError(
                f"{called}: no part of its weight turns in feature groups {_text(self.returned[name])}, it "
                f"would be 0: give it a larger size, up to {len(self.views.group)}, and as many channels"
            )
        self._write(values, tied)
        return lost

    def _numbers(self, name: str, module: nn.Module, x: Tensor) -> None:
        """Make what a module has for each channel, such as the weight of a norm, equal in a feature group."""
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            raise ValueError(
                f"{_called(name, module)} normalises members by the batch at hand, in tests too, so that an "
                f"image is seen as the others are turned: give it track_running_stats=True"
            )
        every = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
        own = {
            key: t
            for key, t in every.items()
            if t.is_floating_point() and t.numel() == max(t.shape, default=0) > 1
        }
        if (maps := self._layout(x, list(own.values()))) is None:
            return
        found = {key: t for key, t in own.items() if _of_channels(t, maps, x)}
        before = self._blocks(name, module, x, [maps])
        if isinstance(module, nn.GroupNorm) and cuts(module.num_groups, before, before, self.views.group):
            raise ValueError(
                f"{_called(name, module)} cuts through feature groups with num_groups={module.num_groups}: "
                f"take 1, or a number that leaves each feature group in one piece"
            )
        lost = 0.0
        for key, tensor in found.items():
            tie = Tie(module, key, self.views.group, before)
            if self.ties.setdefault(id(tensor), tie)[2:] != tie[2:]:
                raise ValueError(f"{_called(name, module)} is shared where other feature groups come in")
            shared, distance = tie.start(tensor)
            lost = math.hypot(lost, distance)
            self._write(tensor, shared)
        total = math.hypot(*(float(t.double().norm()) for t in found.values()))
        if lost > 1e-7 * total and name not in self.layers:
            self._note(name, before, before, lost, total)

    def _statistics(self, module: nn.Module, x: Tensor) -> None:
        """What a norm knows of its input was seen with other weights: estimate it from the views."""
        mean, variance = (module._buffers.get(key) for key in ("running_mean", "running_var"))
        if mean is None or variance is None or (maps := self._layout(x, [mean])) is None:
            return
        spread, centre = torch.var_mean(full_precision(maps), (0, 2, 3))
        for buffer, seen in ((mean, centre), (variance, spread)):
            tie = self.ties.get(id(buffer))
            self._write(buffer, tie.nearest(seen) if tie else seen)

    def _layout(self, x: Tensor, own: list[Tensor]) -> Tensor | None:
        """``x`` as maps to whose channels one of these belongs; where both ways, that in which they turn."""
        fits = [maps for maps in _layouts(x) if any(_of_channels(t, maps, x) for t in own)]
        first = next((maps for maps in fits if maps is x or x.ndim == 2), None)
        return next(filter(self.views.look, fits), first)

    def _note(self, name: str, before: Blocks, after: Blocks, lost: float, total: float) -> None:
        distance = lost / total if total else 0.0
        self.layers[name] = LayerStart(_text(before), _text(after), distance)
        self.changed |= distance > ROUNDING

    def _blocks(self, name: str, module: nn.Module, x: Tensor, maps: list[Tensor]) -> Blocks:
        """The feature groups seen in what comes into a layer."""
        if not maps:
            raise ValueError(
                f"what comes into {_called(name, module)}, {_shape(x)}, is neither maps (B, C, H, W) or "
                f"(B, H, W, C) nor vectors (B, C), so that it cannot be seen to turn: keep height and width "
                f"as dims of their own"
            )
        seen = self.views.look(maps[0])
        if seen is None:
            raise Breaks(
                f"what comes into {_called(name, module)}, {_shape(x)}, turns neither as feature groups "
                f"{self._known()} nor as single maps under {self.views.group}"
            )
        return seen.blocks

    def _after(self, name: str, module: Mixing, pixels: bool) -> Blocks:
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

    def _left(self, module: nn.Module) -> str:
        """The module's own parameters that are as they were, for an error."""
        own = module.named_parameters(recurse=False)
        left = [repr(name) for name, tensor in own if id(tensor) not in self.written]
        return f"; its own {' and '.join(left)} cannot be tied" if left else ""

    def _write(self, tensor: Tensor, value: Tensor) -> None:
        if id(tensor) not in self.written:
            self.written[id(tensor)] = tensor, tensor.clone()
        tensor.copy_(value)

    def _known(self) -> str:
        return " or ".join(dict.fromkeys(map(str, self.specs.values())))


def spreads_of(model: nn.Module, modules: Mapping[str, nn.Module], images: Tensor) -> dict[str, float]:
    """The variance of what each layer returns."""
    spreads: dict[str, float] = {}

    def note(name: str, module: nn.Module, output: Any) -> None:
        if isinstance(module, Mixing):
            spreads.setdefault(name, _spread(module, output))

    with hooked(modules, after=note):
        model(images.clone())
    return spreads


def _spread(module: Mixing, output: Tensor) -> float:
    """The variance of what a layer returns, its bias left out."""
    bias = torch.zeros(1) if module.bias is None else module.bias
    bias = bias if isinstance(module, nn.Linear) else bias.view(-1, 1, 1)
    return float(full_precision(output - bias.to(output)).var(unbiased=False))


def _layouts(x: Tensor) -> list[Tensor]:
    """``x`` as maps (B, C, H, W): channels first, or last; a vector is a map of one pixel."""
    if x.ndim == 2:
        return [x[:, :, None, None]]
    return [x, x.movedim(3, 1)] if x.ndim == 4 else []


def _of_channels(numbers: Tensor, maps: Tensor, x: Tensor) -> bool:
    """Whether a vector has a number for each channel of ``maps``, which are ``x`` in one of its layouts.

    One of several dims, as (C, 1, 1), says which dim it belongs to.
    """
    if numbers.numel() != maps.shape[1]:
        return False
    place = next((d for d in range(-numbers.ndim, 0) if numbers.shape[d] > 1), -1)
    channels = -x.ndim + 1 if maps is x or x.ndim == 2 else -1
    return numbers.ndim == 1 or place == channels


def _tensors_in(output: Any) -> Iterator[Tensor]:
    """What a model returned, in containers in one another."""
    if isinstance(output, Tensor):
        yield output
    elif is_dataclass(output) and not isinstance(output, type):
        yield from _tensors_in([getattr(output, each.name, None) for each in fields(output)])
    elif isinstance(output, Mapping):
        yield from _tensors_in(list(output.values()))
    elif isinstance(output, Sequence) and not isinstance(output, str):
        for part in output:
            yield from _tensors_in(part)


def _sizes(blocks: Blocks) -> list[int]:
    return [size for size, _ in blocks]


def _text(blocks: Blocks) -> str:
    return "-".join(map(str, _sizes(blocks)))


def _shape(x: Tensor) -> str:
    return f"{x.dtype} of shape {tuple(x.shape)}" if x.ndim != 4 else "×".join(map(str, x.shape[1:]))


def _called(name: str, module: nn.Module) -> str:
    return f"layer {name!r} ({type(module).__name__})" if name else "the model itself"
