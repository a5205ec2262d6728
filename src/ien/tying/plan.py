"""The plan: run the model once, and tie each layer just before it runs.

Before a layer runs, its feature groups are detected in the maps that come in, and its weight is
tied between these and the ones it should return. After it has run, its output is checked. So every
layer sees inputs that are equivariant already, and the first output that is not is where the
model breaks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..groups.group import Group
from ..groups.members import Blocks
from ..loss.error import full_precision
from ..loss.feature_groups import FeatureGroups
from ..loss.modules import hooked, tensors_in
from .detect import swaps_sides
from .flow import Flow
from .layouts import (
    has_number_per_channel,
    layer_text,
    layouts,
    nearest_named,
    shape_text,
    sizes_of,
    sizes_text,
    vectors_of,
)
from .projection import MIN_SHARE, Tie, cuts, grouped

__all__ = ["Breaks", "LayerStart", "Mixing", "Plan", "TiedTensor", "spreads_of"]

Mixing = nn.Conv2d | nn.ConvTranspose2d | nn.Linear
"""Layers that mix channels."""
MAX_ROUNDING = 1e-6
"""Weights at no more than this relative distance from tied ones are tied already."""
MAX_UNLISTED_DISTANCE = 1e-7
"""Numbers per channel at no more than this relative distance are not listed as a layer."""
MAX_GAIN = 4.0
"""How far a random weight may grow or shrink to keep a variance: dead maps would need more."""


@dataclass(frozen=True)
class LayerStart:
    """What became of one layer."""

    before: str
    """The sizes of the feature groups in its input."""
    after: str
    """The sizes of the feature groups in its output."""
    distance: float
    """‖W - P W‖ / ‖W‖ of its weights W and the nearest tied ones P W: 0 to 1."""
    exact: float = math.nan
    """The largest relative error of its output under quarter turns and flips, per channel."""
    between: float | None = None
    """The mean relative error under all other elements, which resample."""


class TiedTensor(NamedTuple):
    """A tensor of a module, and how feature groups tie its numbers."""

    module: nn.Module
    name: str
    tie: Tie

    @property
    def tensor(self) -> Tensor:
        """The tensor that the module has now."""
        found: Tensor = getattr(self.module, self.name)
        return found


class Breaks(ValueError):
    """The layer from which on the model is not equivariant."""


class Plan:
    """What is known about a model while it runs on views, and what became of its layers."""

    def __init__(
        self,
        group: Group,
        specs: Mapping[str, FeatureGroups],
        views: Tensor,
        spreads: Mapping[str, float],
        smooth: bool,
    ) -> None:
        """Begin with a model that has not run yet.

        Args:
            group: Rotations and flips.
            specs: Feature groups by the name of a layer or a module around it, ``""`` for the rest.
            views: The images under all elements, which the model will run on.
            spreads: The variance of what each layer returned before; empty to leave it alone.
            smooth: Whether kernels are smooth.
        """
        self.group = group
        self.specs = dict(specs)
        self.flow = Flow(group, specs.values(), views)
        self.spreads = dict(spreads)
        self.smooth = smooth
        self.layers: dict[str, LayerStart] = {}
        self.ran: set[str] = set()
        self.returned: dict[str, Blocks] = {}
        """The feature groups that a layer should return, then those found in what it returned."""
        self.ties: dict[int, TiedTensor] = {}
        self.all_ties: list[TiedTensor] = []
        self.norms: dict[int, tuple[nn.Module, Blocks]] = {}
        """By the id of a tensor."""
        self.written: set[int] = set()
        """The ids of tensors that were tied."""
        self.class_scores = ""
        """How to get class scores, if the model returns feature groups without being asked to."""
        self._weights_changed = False
        self._last_mixing = ""

    @property
    def tied(self) -> tuple[TiedTensor, ...]:
        """The tensors that were tied."""
        tied = [tie for tie in self.ties.values() if id(tie.tensor) in self.written]
        return tuple(tied)

    def tie(self, name: str, module: nn.Module, x: Any) -> None:
        """Tie the weights of a module that is about to run on ``x``."""
        first_run = name not in self.ran
        self.ran.add(name)
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return
        if isinstance(module, Mixing):
            self._last_mixing = name
            self._tie_mixing(name, module, x)
            return
        # a trained norm has statistics of maps that came from other weights
        outdated = self._weights_changed and not self.spreads and first_run
        self._tie_numbers(name, module, x)
        if outdated:
            self._estimate_statistics(module, x)

    def _tie_mixing(self, name: str, module: Mixing, x: Tensor) -> None:
        """Tie the weight and the bias of a layer that mixes channels."""
        called = layer_text(name, module)
        if "weight" not in module._parameters:
            raise ValueError(
                f"{called} computes its weight from other parameters (weight norm or spectral norm): remove "
                f"that first, with torch.nn.utils.parametrize.remove_parametrizations, or with "
                f"remove_weight_norm or remove_spectral_norm of torch.nn.utils"
            )
        maps = layouts(x)
        if isinstance(module, nn.Linear):
            maps.reverse()  # it mixes the last dim
        before = self._feature_groups_in(called, x, maps[:1])
        after = self._feature_groups_out(name, module, on_maps=x.ndim == 4)
        self.returned[name] = after
        ties = self._ties_of(module, before, after)
        self._register(ties, f"{called} shares its weight with a layer that has other feature groups")

        new = [tie for tie in ties if id(tie.tensor) not in self.written]
        only_single = set(sizes_of(after) + sizes_of(before)) == {1}
        one_pixel = module.weight[0, 0].numel() == 1
        if not new or (only_single and one_pixel):
            return  # tied already, or equivariant whatever its weight
        random = name in self.spreads
        norms = [_norm(tie.tensor) for tie in ties]
        total = math.hypot(*norms)
        distance = 0.0
        for tie in new:
            distance = math.hypot(distance, self._write_tied(name, tie, random))
        if random and new[0] is ties[0]:  # the weight itself, and not only the bias beside a shared one
            self._keep_spread(name, module, x)
        self._note(name, before, after, distance, total)

    def _ties_of(self, module: Mixing, before: Blocks, after: Blocks) -> list[TiedTensor]:
        """Return how feature groups tie the weight of a layer, and then its bias, if it has one."""
        sides = (after, before)
        if isinstance(module, nn.ConvTranspose2d):  # its weight is (I, O, h, w)
            sides = (before, after)
        conv_groups = getattr(module, "groups", 1)  # a linear layer has none
        stored = grouped(conv_groups, *sides, self.group)
        if stored is None:
            raise ValueError(
                f"its {conv_groups} conv groups cut through feature groups, whose members {self.group} "
                f"permutes: use groups=1, or a number that leaves each feature group in one piece"
            )
        ties = [TiedTensor(module, "weight", Tie(self.group, *stored, self.smooth))]
        if module.bias is not None:
            ties.append(TiedTensor(module, "bias", Tie(self.group, after)))
        return ties

    def _write_tied(self, name: str, tie: TiedTensor, random: bool) -> float:
        """Tie a weight or a bias, and return how far it was from that."""
        values = tie.tensor
        called = layer_text(name, tie.module)
        self._check_kernel_shape(called, values)
        try:
            tied, distance = tie.tie.start(values, random)
        except ValueError as error:
            raise ValueError(f"{called}: {error}") from None
        lost = float(tied.norm()) <= MIN_SHARE * float(values.norm())
        if lost and tie.name == "weight" and values.any():
            raise ValueError(
                f"{called}: no part of its weight commutes with {self.group} in feature groups "
                f"{sizes_text(self.returned[name])}, so it would be 0: use a larger size, up to "
                f"{len(self.group)}, and as many channels"
            )
        self._write(values, tied)
        return distance

    def _check_kernel_shape(self, called: str, weight: Tensor) -> None:
        if weight.ndim != 4 or not swaps_sides(self.group):
            return
        height, width = weight.shape[2:]
        if height != width:
            side = max(height, width)
            raise ValueError(
                f"{called} has kernels of {height}×{width}, which cannot rotate by 90°: "
                f"make them {side}×{side}, or use a group such as rot2xflip"
            )

    def _keep_spread(self, name: str, module: Mixing, x: Tensor) -> None:
        """Scale a random weight so that the layer's output varies as much as it did before."""
        spread = _spread(module, module.forward(x))  # not module(x), whose hooks would run
        if spread > 0:
            gain = (self.spreads[name] / spread) ** 0.5
            module.weight.mul_(min(max(gain, 1 / MAX_GAIN), MAX_GAIN))

    def _tie_numbers(self, name: str, module: nn.Module, x: Tensor) -> None:
        """Make numbers per channel, such as the weight of a norm, equal within a feature group."""
        called = layer_text(name, module)
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            raise ValueError(
                f"{called} normalises with the statistics of the batch, also in eval mode, so the result for "
                f"an image depends on how the others are rotated: set track_running_stats=True"
            )
        vectors = vectors_of(module)
        maps = self._layout(x, list(vectors.values()))
        if maps is None:
            return
        before = self._feature_groups_in(called, x, [maps])
        if isinstance(module, nn.GroupNorm) and cuts(module.num_groups, before, before, self.group):
            raise ValueError(
                f"{called} cuts through feature groups with num_groups={module.num_groups}: "
                f"use 1, or a number that leaves each feature group in one piece"
            )
        distance = 0.0
        norms = []
        for key, numbers in vectors.items():
            if not has_number_per_channel(numbers, maps, x):
                continue
            tie = TiedTensor(module, key, Tie(self.group, before))
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                self.norms[id(module)] = (module, before)
            self._register([tie], f"{called} is shared with a place that has other feature groups")
            tied, its_distance = tie.tie.start(numbers)
            distance = math.hypot(distance, its_distance)
            self._write(numbers, tied)
            norms.append(_norm(numbers))
        total = math.hypot(*norms)
        if distance > MAX_UNLISTED_DISTANCE * total and name not in self.layers:
            self._note(name, before, before, distance, total)

    def _estimate_statistics(self, module: nn.Module, x: Tensor) -> None:
        """Estimate the running statistics of a norm from the views."""
        mean = module._buffers.get("running_mean")
        variance = module._buffers.get("running_var")
        if mean is None or variance is None:
            return
        maps = self._layout(x, [mean])
        if maps is None:
            return
        new_variance, new_mean = torch.var_mean(full_precision(maps), (0, 2, 3))
        for buffer, estimate in ((mean, new_mean), (variance, new_variance)):
            tie = self.ties.get(id(buffer))
            if tie is not None:
                estimate = tie.tie.project(estimate)
            self._write(buffer, estimate)

    def check(self, name: str, module: nn.Module, output: Any) -> None:
        """Raise :class:`Breaks` if what a module returned is not equivariant."""
        if name or isinstance(output, Tensor):
            parts = [output]
        else:
            # the model may return several tensors;
            # those whose batch is not that of the views are no features
            batches = [part for part in tensors_in(output, in_objects=False) if part.ndim]
            parts = [part for part in batches if len(part) == self.flow.num_views]
        for part in parts:
            self._check_part(name, module, part)
        # of several parts it is not known which layer made which
        if not name and len(parts) == 1:
            self._check_class_scores(parts[0])

    def _check_part(self, name: str, module: nn.Module, output: Any) -> None:
        if not isinstance(output, Tensor) or not output.is_floating_point() or not layouts(output):
            return
        found = None
        for maps in layouts(output):
            found = self.flow.feature_groups(maps, expected=self.returned.get(name, ()))
            if found is not None:
                break
        if found is None:
            error = min(self.flow.relative_error(maps) for maps in layouts(output))
            called = layer_text(name, module)
            raise Breaks(
                f"{called} breaks {self.group}: its output, {shape_text(output)}, rotates neither in "
                f"feature groups {self.flow.specs_text()} nor as single channels "
                f"(relative error {error:.2g}){self._untied_text(module)}"
            )
        self.returned[name] = found.blocks
        layer = self.layers.get(name)
        if layer is not None and math.isnan(layer.exact):
            self.layers[name] = replace(layer, exact=found.exact, between=found.between)

    def _check_class_scores(self, output: Tensor) -> None:
        """Refuse vectors in feature groups that nobody asked for; of maps, note how to avoid it."""
        blocks = self.returned.get("", ())
        in_feature_groups = any(size > 1 for size in sizes_of(blocks))
        if not in_feature_groups or not self._last_mixing:
            return
        if nearest_named(self._last_mixing, {"", *self.specs}):  # its feature groups were named
            return
        self.class_scores = f'feature_groups={{"": …, "{self._last_mixing}": 1}}'
        if output.ndim == 2:
            raise ValueError(
                f"the model's output has {output.shape[1]} values that {self.group} permutes in feature "
                f"groups {sizes_text(blocks)}, so they cannot be class scores: end the model with a linear "
                f"layer, or set {self.class_scores}; if you do want feature groups, name that layer with "
                f"its size"
            )

    def _feature_groups_in(self, called: str, x: Tensor, maps: Sequence[Tensor]) -> Blocks:
        """Return the feature groups found in a layer's input ``x``, read as ``maps[0]``."""
        if not maps:
            raise ValueError(
                f"the input of {called}, {shape_text(x)}, is neither maps (B, C, H, W) or (B, H, W, C) nor "
                f"vectors (B, C), so its feature groups cannot be detected: keep height and width as "
                f"separate dims"
            )
        found = self.flow.feature_groups(maps[0])
        if found is None:
            raise Breaks(
                f"the input of {called}, {shape_text(x)}, rotates neither in feature groups "
                f"{self.flow.specs_text()} nor as single channels under {self.group}"
            )
        return found.blocks

    def _feature_groups_out(self, name: str, module: Mixing, on_maps: bool) -> Blocks:
        """Return the feature groups that a layer should return.

        A linear layer on vectors returns single numbers, such as class scores, unless it is named.
        """
        channels = module.out_features if isinstance(module, nn.Linear) else module.out_channels
        named = nearest_named(name, {"", *self.specs})
        if isinstance(module, nn.Linear) and not on_maps and not named:
            return ((1, channels),)
        spec = self.specs[nearest_named(name, self.specs)]
        try:
            return tuple(spec.blocks(channels))
        except ValueError as error:
            hint = ""
            if name:
                hint = f'; feature_groups={{"": …, "{name}": 1}} gives it single channels'
            raise ValueError(f"{layer_text(name, module)}: {error}{hint}") from None

    def _layout(self, x: Tensor, vectors: Sequence[Tensor]) -> Tensor | None:
        """Return ``x`` in the layout that has these channels; of both, the one that rotates."""
        fitting = []
        for maps in layouts(x):
            if any(has_number_per_channel(numbers, maps, x) for numbers in vectors):
                fitting.append(maps)
        for maps in fitting:
            if self.flow.feature_groups(maps) is not None:
                return maps
        for maps in fitting:
            if maps is x or x.ndim == 2:
                return maps
        return None

    def _register(self, ties: Sequence[TiedTensor], problem: str) -> None:
        """Note how tensors are tied; raise an error if one is tied already in another way."""
        for tie in ties:
            first = self.ties.setdefault(id(tie.tensor), tie)
            # a shared tensor may belong to other modules, but must be tied in the same way
            self.all_ties.append(tie)
            if first.tie != tie.tie:
                raise ValueError(f"{problem}: give both the same, or a weight of their own")

    def _note(self, name: str, before: Blocks, after: Blocks, distance: float, total: float) -> None:
        relative = 0.0  # numbers that are all 0 once tied
        if total > 0:
            relative = distance / total
        self.layers[name] = LayerStart(sizes_text(before), sizes_text(after), relative)
        if relative > MAX_ROUNDING:
            self._weights_changed = True

    def _write(self, tensor: Tensor, value: Tensor) -> None:
        self.written.add(id(tensor))
        tensor.copy_(value)

    def _untied_text(self, module: nn.Module) -> str:
        """Return the module's own parameters that are not tied, as the end of an error."""
        untied = []
        for name, tensor in module.named_parameters(recurse=False):
            if id(tensor) not in self.written:
                untied.append(repr(name))
        if not untied:
            return ""
        return f"; its own {' and '.join(untied)} cannot be tied"


def spreads_of(model: nn.Module, modules: Mapping[str, nn.Module], views: Tensor) -> dict[str, float]:
    """Return the variance of what each layer that mixes channels returns for these views."""
    spreads: dict[str, float] = {}

    def note(name: str, module: nn.Module, output: Any) -> None:
        if isinstance(module, Mixing):
            spreads.setdefault(name, _spread(module, output))

    with hooked(modules, after=note):
        model(views.clone())
    return spreads


def _spread(module: Mixing, output: Tensor) -> float:
    """Return the variance of what a layer returns, without its bias."""
    if module.bias is not None:
        bias = module.bias.to(output)
        if not isinstance(module, nn.Linear):
            bias = bias.view(-1, 1, 1)  # (C, 1, 1)
        output = output - bias
    return float(full_precision(output).var(unbiased=False))


def _norm(tensor: Tensor) -> float:
    return float(tensor.double().norm())
