"""The planner: ties each layer just before it runs on views, and checks what it returns.

Before a layer runs, its feature groups are detected in the maps that come in, or taken from the
layers that feed it, and its weight is tied between these and the ones that it should return. Then
its output is checked. So every layer sees inputs that are equivariant already, and the first
output that is not is where the model breaks.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.utils import parametrize

from .._text import MODEL_ITSELF
from ..groups.group import Group
from ..groups.members import Blocks, num_channels
from ..loss.error import full_precision
from .detect import Found, feature_groups_of, layouts, swaps_sides
from .parametrized import Projected
from .projection import MIN_SHARE, VECTOR, Tie, cuts, grouped
from .wiring import Mixing, Source, Specs, Wiring, batches_in, is_depthwise, is_named, spread

__all__ = ["Breaks", "Plan", "Planner", "TiedLayer", "TiedTensor", "layer_text", "maps_of", "sizes_text"]

MAX_ROUNDING = 1e-6
"""Weights at no more than this relative distance from tied ones are tied already."""
MAX_GAIN = 4.0
"""How far a random weight may grow or shrink to keep a variance: dead maps would need more."""


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
    """Layers that mix channels, and the feature groups that they return, if this was checked."""
    outputs: list[Blocks] = field(default_factory=list)
    """The feature groups of each tensor that the model returns."""
    errors: dict[str, float] = field(default_factory=dict)
    """The relative error of what the model returns under each element, by its label."""
    unused: tuple[str, ...] = ()
    """Modules with parameters that did not run, and were not changed."""
    untied: tuple[str, ...] = ()
    """Frozen parameters that would break equivariance if they were trained."""

    def note_errors(self, found: Found) -> None:
        """Keep the larger errors, of several tensors that the model returns."""
        for label, error in found.errors.items():
            self.errors[label] = max(error, self.errors.get(label, 0.0))


class Breaks(ValueError):
    """The layer from which on the model is not equivariant."""


@dataclass
class Planner:
    """What is known about a model while it runs on views."""

    group: Group
    wiring: Wiring
    chosen: dict[str, Blocks]
    specs: Specs
    num_views: int
    random: bool
    smooth: bool
    plan: Plan
    ran: set[str] = field(default_factory=set)
    constant: set[str | None] = field(default_factory=set)
    """Layers on what is the same for all views, such as an argument that is broadcast."""
    inputs: dict[str, Blocks] = field(default_factory=dict)
    """The feature groups in the input of mixing layers."""
    tied: dict[int, Tie] = field(default_factory=dict)
    """How tensors are tied, by their id."""
    changed: bool = False
    outdated: set[nn.Module] = field(default_factory=set)
    """Norms with statistics of other weights."""
    read: Tensor | None = None
    """The maps that the layer that runs now has read."""

    def tie(self, name: str, module: nn.Module, x: Any) -> None:
        """Tie the weights of a module that is about to run on ``x``."""
        self.ran.add(name)
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return
        if isinstance(module, Mixing) and name in self.chosen:
            self._tie_mixing(name, module, x)
        else:
            self._tie_numbers(name, module, x)

    def _tie_mixing(self, name: str, module: Mixing, x: Tensor) -> None:
        """Tie the weight and the bias of a layer that mixes channels."""
        called = layer_text(name, module)
        if not layouts(x):
            raise ValueError(
                f"the input of {called} is {_shape_text(x)}, which cannot rotate: keep height and width as "
                f"dims, (B, C, H, W) or (B, H, W, C)"
            )
        self.read = maps_of(module, x)
        before = self._feature_groups_in(name, self.read)
        if before is None:
            raise Breaks(f"the input of {called}, {_shape_text(x)}, does not rotate under {self.group}")
        if is_depthwise(module):
            self.chosen[name] = before
        after = self.chosen[name]
        shuffle = self.wiring.shuffles[name]
        self.plan.mixing[module] = None
        self.inputs[name] = before
        stored = self._stored(called, module, before, after, shuffle)
        ties = {"weight": Tie(self.group, *stored, self.smooth, shuffle)}
        for key, numbers in _vectors_of(module).items():
            if key != "weight" and numbers.numel() == num_channels(after) * shuffle**2:
                ties[key] = Tie(self.group, after, shuffle=shuffle)
        written = self._tie_all(name, module, ties, before, after)
        if "weight" in written and self.random:
            self._keep_spread(name, module, x)

    def _stored(
        self, called: str, module: Mixing, before: Blocks, after: Blocks, shuffle: int
    ) -> tuple[Blocks, Blocks]:
        """Return the feature groups of a weight as it is stored, or say why it cannot be tied."""
        transposed = isinstance(module, nn.ConvTranspose2d)
        conv_groups = getattr(module, "groups", 1)  # a linear layer has none
        if shuffle > 1 and not (isinstance(module, nn.Conv2d) and conv_groups == 1 and all(self.group.exact)):
            raise ValueError(
                f"{called} feeds a pixel shuffle, as only a Conv2d with groups=1 may, and only under quarter "
                f"turns and flips: upsample with ConvTranspose2d or interpolate instead"
            )
        if VECTOR in dict(before) or (transposed and VECTOR in dict(after)):
            raise ValueError(
                f"{called} cannot read or return vectors: they must leave the model, from a Conv2d or Linear"
            )
        height, width = (*module.weight.shape[2:], 1, 1)[:2]
        if height != width and swaps_sides(self.group):
            side = max(height, width)
            raise ValueError(
                f"{called} has kernels of {height}×{width}, which cannot rotate by 90°: "
                f"make them {side}×{side}, or use a group such as rot2xflip"
            )
        sides = (after, before)
        if transposed:  # its weight is (I, O, h, w)
            sides = (before, after)
        stored = grouped(conv_groups, *sides, self.group)
        if stored is None:
            raise ValueError(
                f"{called}: its {conv_groups} conv groups cut through feature groups, whose members "
                f'{self.group} permutes: use groups=1, or feature_groups="auto" for single channels there'
            )
        return stored

    def _keep_spread(self, name: str, module: Mixing, x: Tensor) -> None:
        """Scale a random weight so that the layer's output varies as much as it did before."""
        scaled: Any = module.weight
        if parametrize.is_parametrized(module, "weight"):
            scaled = getattr(module.get_submodule("parametrizations.weight"), "original0", None)
            if scaled is None:  # only a weight norm has a length to scale
                return
        upright = x[: max(len(x) // len(self.group), 1)]
        now = spread(module, module.forward(upright))  # not module(upright), whose hooks would run
        if now > 0:
            gain = math.sqrt(self.wiring.spreads[name] / now)
            scaled.mul_(min(max(gain, 1 / MAX_GAIN), MAX_GAIN))

    def _tie_numbers(self, name: str, module: nn.Module, x: Tensor) -> None:
        """Tie the numbers per channel of a module, for channels first or last."""
        if isinstance(module, _BatchNorm) and module.running_mean is None:
            raise ValueError(
                f"{layer_text(name, module)} normalises with the statistics of the batch, also in eval mode, "
                f"so an image's result depends on how others are rotated: set track_running_stats=True"
            )
        for h in layouts(x):
            keys = []
            for key, numbers in _vectors_of(module).items():
                if _has_number_per_channel(numbers, h, x):
                    keys.append(key)
            if not keys and not isinstance(module, nn.GroupNorm):
                continue
            # the last dim may be a side of the maps instead
            blocks = self._feature_groups_in(name, h, trusting=h is x or x.ndim == 2)
            if blocks is not None:
                self._tie_per_channel(name, module, keys, blocks)
                return
        # if none was found, the next layer that mixes channels will tell

    def _tie_per_channel(self, name: str, module: nn.Module, keys: Sequence[str], blocks: Blocks) -> None:
        """Make numbers per channel, such as the weight of a norm, equal within a feature group."""
        if isinstance(module, nn.GroupNorm) and cuts(module.num_groups, blocks, blocks, self.group):
            raise ValueError(
                f"{layer_text(name, module)} cuts through feature groups by num_groups={module.num_groups}: "
                f'use 1, a number that leaves each feature group in one piece, or feature_groups="auto"'
            )
        outdated = self.changed and not self.random  # before this module notes a change of its own
        self._tie_all(name, module, dict.fromkeys(keys, Tie(self.group, blocks)), blocks, blocks)
        if isinstance(module, _NormBase) and module.running_mean is not None:
            if outdated:
                self.outdated.add(module)
            if any(size > 1 for size, _ in blocks) and (module, blocks) not in self.plan.norms:
                self.plan.norms.append((module, blocks))

    def _tie_all(
        self, name: str, module: nn.Module, ties: Mapping[str, Tie], before: Blocks, after: Blocks
    ) -> list[str]:
        """Tie tensors of a module, and return the names of those that were not tied before."""
        written: list[str] = []
        distances, norms = [0.0], [0.0]
        for key, tie in ties.items():
            tensor: Any = module._parameters.get(key, module._buffers.get(key))
            if parametrize.is_parametrized(module, key):
                tensor = module.get_submodule(f"parametrizations.{key}")
            if tensor is None:
                raise ValueError(
                    f"{layer_text(name, module)} computes its {key} in a hook: use weight_norm or "
                    f"spectral_norm of torch.nn.utils.parametrizations, and remove any pruning"
                )
            is_new = id(tensor) not in self.tied
            if self.tied.setdefault(id(tensor), tie) != tie:
                raise ValueError(
                    f"{layer_text(name, module)} shares its {key} with a place that has other feature "
                    f"groups: give both the same, or a {key} of their own"
                )
            values = getattr(module, key)
            if tie.leaves_free(values):
                continue
            norms.append(float(full_precision(values).norm()))
            if TiedTensor(module, key, tie) not in self.plan.ties:
                self.plan.ties.append(TiedTensor(module, key, tie))
            if is_new:
                written.append(key)
                distances.append(self._write(name, module, key, tie))
        distance = math.hypot(*distances) / max(math.hypot(*norms), sys.float_info.min)
        is_first = isinstance(module, Mixing) and name not in self.plan.layers
        if is_first or distance > MAX_ROUNDING:
            self.plan.layers[name] = TiedLayer(sizes_text(before), sizes_text(after), distance)
            self.changed |= distance > MAX_ROUNDING
        return written

    def _write(self, name: str, module: nn.Module, key: str, tie: Tie) -> float:
        """Give a tensor tied numbers, and return how far it was from them."""
        is_weight = isinstance(module, Mixing) and key == "weight"
        values: Tensor = getattr(module, key)
        tied, distance = tie.start(values, self.random and isinstance(module, Mixing))
        if is_weight and values.any() and float(tied.norm()) <= MIN_SHARE * float(values.norm()):
            raise ValueError(
                f"{layer_text(name, module)}: no part of its weight commutes with {self.group} from feature "
                f"groups {sizes_text(tie.before)} to {sizes_text(tie.after)}, so it would be 0: use larger "
                f"ones, up to {len(self.group)}, on either side"
            )
        if parametrize.is_parametrized(module, key):  # what a weight norm computes is tied
            parametrize.register_parametrization(module, key, Projected(tie), unsafe=True)
        else:
            values.copy_(tied)
        return distance

    def estimate_statistics(self, name: str, module: nn.Module, x: Tensor) -> None:
        """Estimate the running statistics of a norm that is about to run on upright images."""
        if module not in self.outdated:
            return
        self.outdated.discard(module)  # a norm that runs twice has those of the first time
        pixels = full_precision(x).movedim(1, -1).flatten(0, -2)  # (pixels, C)
        variance, mean = torch.var_mean(pixels, 0)  # (C,) both
        buffers: Any = module._buffers
        tie = self.tied[id(buffers["running_mean"])]
        # of all views together: the variances of members, and the variance of their means
        pooled = tie.project(mean)
        buffers["running_mean"].copy_(pooled)
        buffers["running_var"].copy_(tie.project(variance + (mean - pooled).square()))

    def check(self, name: str, module: nn.Module, output: Any) -> None:
        """Raise :class:`Breaks` if what a mixing layer or the model returned is not equivariant.

        No others are asked: of what they return, only what is read later matters.
        """
        if isinstance(module, Mixing) and name in self.chosen:
            if self.wiring.shuffles[name] == 1 and name not in self.constant:
                self._check_mixing(name, module, maps_of(module, output))
        if not name:
            self._check_returned(output)

    def _check_mixing(self, name: str, module: Mixing, h: Tensor) -> None:
        """Check the maps that a layer returned, and note their errors."""
        found = feature_groups_of(h, self.group, [self.chosen[name]])
        if found is None:
            what = "its output does not rotate"
            if self.read is not None and self._detect(self.read, [self.inputs[name]]) is None:
                what = "neither its input nor its output rotates"
            raise Breaks(f"{layer_text(name, module)} breaks {self.group}: {what}")
        self.read = None
        self.plan.mixing[module] = found.blocks
        layer = self.plan.layers.get(name)
        if layer is not None and math.isnan(layer.exact):
            self.plan.layers[name] = replace(layer, exact=found.exact, between=found.between)

    def _check_returned(self, output: Any) -> None:
        """Check all that the model returns: feature groups are permuted there only if named."""
        inputs = [each for each in self.wiring.inputs if each.name is None]
        for part, each in zip(batches_in(output, self.num_views), inputs, strict=False):
            maps = layouts(part)
            if not maps:  # tokens or boxes: a rotation changes their order
                self.plan.outputs.append(())
                continue
            expected = self._blocks_of(each.sources)
            for h in maps:
                expected.append(((1, h.shape[1]),))
            fitting = [self._detect(h, expected) for h in maps]
            found = fitting[0] or fitting[-1]
            if found is None:
                raise Breaks(f"{MODEL_ITSELF} breaks {self.group}: its output does not rotate")
            names = [source.name for source in each.sources if source.name is not None]
            permuted = any(size > 1 for size, _ in found.blocks)
            if permuted and not any(is_named(name, self.specs) for name in names):
                raise ValueError(
                    f"the model's output, {_shape_text(part)}, holds feature groups that {self.group} "
                    f'permutes: set feature_groups={{"": …, "{"".join(names[:1])}": 1}}, or name that layer '
                    f"with its size to allow it"
                )
            self.plan.outputs.append(found.blocks)
            self.plan.note_errors(found)

    def _feature_groups_in(self, name: str, h: Tensor, trusting: bool = True) -> Blocks | None:
        """Return the feature groups of a module's input.

        If all its sources agree, they are taken at their word: the check of the output will tell.
        """
        sources = self.wiring.sources(name)
        same_length = {len(h)} == self.wiring.lengths(name)  # there are more views than images
        if same_length and self.constant.issuperset(source.name for source in sources):
            self.constant.add(name)
            return ((1, h.shape[1]),)
        *alone, joined = self._blocks_of(sources)
        words = set(alone)
        if len({source.part for source in sources}) > 1:
            words = {joined}
        fitting = [blocks for blocks in words if num_channels(blocks) == h.shape[1]]
        if trusting and len(fitting) == 1:
            return fitting[0]
        found = self._detect(h, [*alone, joined])
        return found and found.blocks

    def _detect(self, h: Tensor, expected: Sequence[Blocks]) -> Found | None:
        """Return the feature groups that maps rotate in: expected ones, or others of the model."""
        sizes = {1}
        for blocks in self.chosen.values():
            sizes.update(size for size, _ in blocks if size != VECTOR)
        largest_first = sorted(sizes, reverse=True)
        uniform = [((size, h.shape[1]),) for size in largest_first if h.shape[1] % size == 0]
        return feature_groups_of(h, self.group, [*expected, *uniform], largest_first)

    def _blocks_of(self, sources: Iterable[Source]) -> list[Blocks]:
        """Return the feature groups of each source, and those of all parts concatenated."""
        found: list[Blocks] = []
        joined: list[tuple[int, int]] = []
        parts = set()
        for source in sources:
            blocks: Blocks = ((1, source.channels),)
            if source.name is not None:
                blocks = self.chosen[source.name]
            found.append(blocks)
            if source.part in parts:
                continue
            parts.add(source.part)
            for size, channels in blocks:
                if joined and joined[-1][0] == size:
                    channels += joined.pop()[1]
                joined.append((size, channels))
        return [*found, tuple(joined)]


def sizes_text(blocks: Blocks) -> str:
    """Return the sizes as tables and messages show them: ``4-2-1``, or ``vector``."""
    sizes = []
    for size, _ in blocks:
        sizes.append("vector" if size == VECTOR else str(size))
    return "-".join(sizes)


def layer_text(name: str, module: nn.Module) -> str:
    """Describe a layer by its name and type."""
    if not name:
        return MODEL_ITSELF
    return f"layer {name!r} ({parametrize.type_before_parametrizations(module).__name__})"


def _shape_text(x: Tensor) -> str:
    """Describe maps without their batch, as ``8×7×7``, and any other tensor with its type."""
    if x.ndim == 4:
        return "×".join(map(str, x.shape[1:]))
    return f"{x.dtype} {tuple(x.shape)}"


def maps_of(module: Mixing, x: Tensor) -> Tensor:
    """Return what a layer gets or returns as maps (B, C, H, W)."""
    if isinstance(module, nn.Linear):
        return layouts(x)[-1]  # it mixes the last dim
    return x


def _vectors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's parameters and buffers that have several numbers, all along one dim."""
    vectors = {}
    for key, tensor in {**module._parameters, **module._buffers}.items():
        if tensor is not None and tensor.is_floating_point():
            if tensor.numel() == max(tensor.shape, default=0) > 1:
                vectors[key] = tensor
    return vectors


def _has_number_per_channel(numbers: Tensor, maps: Tensor, x: Tensor) -> bool:
    """Return whether there is one number for each channel of ``maps``, a layout of ``x``.

    If it has several dims, such as (C, 1, 1), the long one says which dim of ``x`` it belongs to.
    """
    if numbers.numel() != maps.shape[1] or numbers.ndim == 1:
        return numbers.numel() == maps.shape[1]
    channel_dim = -1
    if maps is x or x.ndim == 2:
        channel_dim = 1 - x.ndim
    return numbers.ndim >= -channel_dim and numbers.shape[channel_dim] == numbers.numel()
