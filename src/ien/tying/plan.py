"""The plan: run the model once on views, and tie each layer just before it runs.

Before a layer runs, its feature groups are detected in the maps that come in, or taken from the
layers that feed it, and its weight is tied between these and the ones that it should return. Then
its output is checked. So every layer sees inputs that are equivariant already, and the first
output that is not is where the model breaks.
"""

from __future__ import annotations

import itertools
import math
import sys
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.utils import parametrize

from .._files import seeded
from .._text import MODEL_ITSELF, nearest
from ..geometry.doctor import doctor
from ..groups.families import group as parse_group
from ..groups.group import Group
from ..groups.members import Blocks, num_channels, permutes_members
from ..loss.error import full_precision
from ..loss.feature_groups import FeatureGroups, Spec
from ..loss.layers import by_name, check_regular_layers
from ..loss.modules import WRAPPERS, hooked, walk
from ..measuring.inputs import MAX_ERROR_LENGTH, device_of, eval_mode
from .detect import Found, errors_in, feature_groups_of, layouts, swaps_sides, views_of
from .parametrized import Projected
from .projection import MIN_SHARE, VECTOR, Tie, cuts, grouped
from .wiring import (
    Mixing,
    Source,
    Specs,
    Wiring,
    batches_in,
    choose,
    has_numbers,
    is_depthwise,
    is_named,
    spread,
    wire,
)

__all__ = ["Plan", "TiedLayer", "TiedTensor", "errors_of", "make_plan", "sizes_text"]

ENOUGH_PIXELS = 2**15
"""Pixels of the images that feature groups are detected with, if there are 2 to 8 of them."""
MIN_FEATURES = 6
"""Independent features that a layer needs in order to learn what the model returns.

A U-Net with 2 of them before its head learned nothing, one with 4 learned slowly, one with 6 well.
"""
MAX_ROUNDING = 1e-6
"""Weights at no more than this relative distance from tied ones are tied already."""
MAX_GAIN = 4.0
"""How far a random weight may grow or shrink to keep a variance: dead maps would need more."""
MAX_HIDING_WEIGHT = 1e-2
"""Tied weights below this share of usual ones may hide a break in what they multiply."""
REMEMBERED_MAPS = 4
"""How many of the latest maps are remembered: enough for a residual block."""


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
    mixing: dict[str, nn.Module] = field(default_factory=dict)
    """The mixing layers that ran."""
    returned: dict[str, Blocks] = field(default_factory=dict)
    """The feature groups that layers returned."""
    outputs: list[Blocks] = field(default_factory=list)
    """The feature groups of each tensor that the model returns."""
    errors: dict[str, float] = field(default_factory=dict)
    """The largest relative error of what the model returns under each element, by its label."""
    unused: tuple[str, ...] = ()
    """Modules with parameters that did not run, and were not changed."""
    untied: tuple[str, ...] = ()
    """Frozen parameters that would break equivariance if they were trained."""


class _Breaks(ValueError):
    """The layer from which on the model is not equivariant."""


def make_plan(
    model: nn.Module,
    group: Group | str,
    images: Tensor,
    feature_groups: Spec | Mapping[str, Spec] = "auto",
    weights: str = "random",
    smooth: bool = True,
    outputs: str = "scalar",
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Plan:
    """Give a model tied weights, in place, and return what is tied.

    Args:
        model: A module of Conv2d, ConvTranspose2d, Linear and layers with numbers per channel.
        group: Rotations and flips.
        images: Images (B, C, H, W) of a size at which the grid is exact.
        feature_groups: ``"auto"``, one for all, or by name with ``""`` for the rest.
        weights: ``"random"`` keeps the variance of each layer's output; ``"project"`` takes the
            nearest tied weights, and estimates running statistics again from all images.
        smooth: Whether kernels are made of patterns that rotate by any angle.
        outputs: ``"scalar"``, or ``"vector"`` for pairs (dx, dy) that rotate with the image.
        args: What the model is called with after the images. Tensors whose first dim is the number
            of images are repeated for each element.
        kwargs: What else it is called with, treated in the same way.

    Raises:
        ValueError: If the model cannot be equivariant; it names the layer, and nothing has changed.
    """
    group = parse_group(group)
    specs = _checked(model, group, images, feature_groups, weights, outputs)
    with torch.inference_mode(False), torch.no_grad(), eval_mode(model):
        images = images.to(device_of(model, images.device), copy=True)
        run = _runner(model, len(images), args, kwargs or {})
        few = images[: min(max(ENOUGH_PIXELS // images[0, 0].numel(), 2), 8)]
        views = views_of(few, group)
        modules = modules_of(model)
        with torch.enable_grad():
            wiring = wire(modules, lambda x: _tried(run, x), few)
        if not wiring.channels:
            raise ValueError("the model ran no Conv2d, ConvTranspose2d or Linear: there is nothing to tie")
        chosen = choose(wiring, group, specs, outputs)
        planner = _Planner(Plan(group), wiring, chosen, specs, len(views), weights, smooth)
        try:
            with hooked(modules, planner.tie, planner.check):
                run(views, len(group))
            if planner.outdated:
                with hooked(modules, planner.estimate_statistics):
                    run(images)
            planner.find_untied(model, lambda: run(views, len(group)))
        except _Breaks as error:
            raise ValueError(f"{error}{_advice(model, images)}") from None
    planner.plan.unused = _unused(modules, planner.ran)
    _warn_if_narrow(group, {name: planner.fed[name] for name in wiring.leaving})
    return planner.plan


def errors_of(
    model: nn.Module,
    plan: Plan,
    images: Tensor,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> tuple[dict[str, float], str]:
    """Run a tied model again, and return its relative errors by element, and what breaks first.

    That is the first layer whose output does not rotate, or that mixes channels and is not tied,
    such as a new head; empty if there is none. The arguments are those of :func:`make_plan`.
    """
    broken: list[str] = []

    def check(name: str, module: nn.Module, output: Any) -> None:
        if isinstance(module, Mixing) and plan.mixing.get(name) is not module:
            broken.append(f"{layer_text(name, module)} is not tied: it was added after make_equivariant")
        elif isinstance(module, Mixing) and name in plan.returned:
            h = _maps_of(module, output)
            if feature_groups_of(h, plan.group, [plan.returned[name]]) is None:
                broken.append(f"{layer_text(name, module)} breaks {plan.group}")

    with torch.inference_mode(False), torch.no_grad(), eval_mode(model):
        images = images.to(device_of(model, images.device), copy=True)
        views = views_of(images, plan.group)
        run = _runner(model, len(images), args, kwargs or {})
        with hooked(modules_of(model), after=check):
            output = run(views, len(plan.group))
        errors: dict[str, float] = {}
        for part, blocks in zip(batches_in(output, len(views)), plan.outputs, strict=False):
            for h in layouts(part):
                if num_channels(blocks) == h.shape[1]:
                    for label, error in errors_in(h, plan.group, blocks).errors.items():
                        errors[label] = max(error, errors.get(label, 0.0))
                    break
    return errors, (broken or [""])[0]


class _Planner:
    """What is known about a model while it runs on views."""

    def __init__(
        self,
        plan: Plan,
        wiring: Wiring,
        chosen: dict[str, Blocks],
        specs: Specs,
        num_views: int,
        weights: str,
        smooth: bool,
    ) -> None:
        self.num_views = num_views
        self.plan = plan
        self.group = plan.group
        self.wiring = wiring
        self.chosen = chosen
        self.specs = specs
        self.random = weights == "random"
        self.smooth = smooth
        self.tied: dict[int, Tie] = {}  # how tensors are tied, by their id
        self.outdated: set[nn.Module] = set()  # norms with statistics of other weights
        self.changed = False
        self.fed: dict[str, Blocks] = {}  # the feature groups in the input of mixing layers
        self.ran: set[str] = set()
        self.trusted: set[str] = set()  # modules whose input does not rotate as a whole
        self.latest: deque[tuple[Tensor, int, Found | None]] = deque(maxlen=REMEMBERED_MAPS)

    def tie(self, name: str, module: nn.Module, x: Any) -> None:
        """Tie the weights of a module that is about to run on ``x``."""
        self.ran.add(name)
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return
        if isinstance(module, Mixing):
            self._tie_mixing(name, module, x)
        else:
            self._tie_numbers(name, module, x)

    def _tie_mixing(self, name: str, module: Mixing, x: Tensor) -> None:
        """Tie the weight and the bias of a layer that mixes channels."""
        called = layer_text(name, module)
        if not layouts(x):
            raise ValueError(
                f"the input of {called}, {_shape_text(x)}, is neither maps (B, C, H, W) or (B, H, W, C) nor "
                f"vectors (B, C), so its feature groups cannot be detected: keep height and width as "
                f"separate dims"
            )
        before, _ = self._feature_groups_in(name, [_maps_of(module, x)])
        if before is None:
            raise _Breaks(f"the input of {called}, {_shape_text(x)}, does not rotate under {self.group}")
        if is_depthwise(module):
            self.chosen[name] = before
        after = self.chosen[name]
        shuffle = self.wiring.shuffles[name]
        self.plan.mixing[name] = module
        self.fed[name] = before
        stored = self._stored(called, module, before, after, shuffle)
        ties = {"weight": Tie(self.group, *stored, self.smooth, shuffle)}
        if module.bias is not None:
            ties["bias"] = Tie(self.group, after, shuffle=shuffle)
        one_pixel = module.weight[0, 0].numel() * shuffle == 1
        written = self._tie_all(name, module, ties, before, after, one_pixel)
        if "weight" in written and self.random and not parametrize.is_parametrized(module, "weight"):
            # scale the weight so that the layer's output varies as much as it did before
            upright = x[: len(x) // len(self.group)]
            now = spread(module, module.forward(upright))  # not module(upright), whose hooks would run
            gain = math.sqrt(self.wiring.spreads[name] / max(now, sys.float_info.min))
            module.weight.mul_(min(max(gain, 1 / MAX_GAIN), MAX_GAIN))

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
        if transposed and VECTOR in dict(after):
            raise ValueError(f"{called} cannot return vectors: end the model with a Conv2d or a Linear")
        height, width = (*module.weight.shape[2:], 1, 1)[:2]
        side = max(height, width)
        if height != width and swaps_sides(self.group):
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

    def _tie_numbers(self, name: str, module: nn.Module, x: Tensor) -> None:
        """Make numbers per channel, such as the weight of a norm, equal within a feature group."""
        called = layer_text(name, module)
        has_statistics = getattr(module, "running_mean", None) is not None
        if isinstance(module, _BatchNorm) and not has_statistics:
            raise ValueError(
                f"{called} normalises with the statistics of the batch, also in eval mode, so the result for "
                f"an image depends on how the others are rotated: set track_running_stats=True"
            )
        vectors = _vectors_of(module)
        maps = []
        for h in layouts(x):
            if any(_has_number_per_channel(numbers, h, x) for numbers in vectors.values()):
                maps.append(h)
        if isinstance(module, nn.GroupNorm):
            maps = layouts(x)[:1]
        blocks, layout = self._feature_groups_in(name, maps)
        if blocks is None or layout is None:
            return  # the next layer that mixes channels will tell
        if isinstance(module, nn.GroupNorm) and cuts(module.num_groups, blocks, blocks, self.group):
            raise ValueError(
                f"{called} cuts through feature groups with num_groups={module.num_groups}: use 1, a number "
                f'that leaves each feature group in one piece, or feature_groups="auto"'
            )
        ties = {}
        for key, numbers in vectors.items():
            if _has_number_per_channel(numbers, layout, x):
                ties[key] = Tie(self.group, blocks)
        outdated = self.changed and not self.random  # before this module notes a change itself
        self._tie_all(name, module, ties, blocks, blocks, one_pixel=True)
        if isinstance(module, _NormBase) and has_statistics:
            if outdated:
                self.outdated.add(module)
            if (module, blocks) not in self.plan.norms and max(size for size, _ in blocks) > 1:
                self.plan.norms.append((module, blocks))

    def _tie_all(
        self,
        name: str,
        module: nn.Module,
        ties: Mapping[str, Tie],
        before: Blocks,
        after: Blocks,
        one_pixel: bool,
    ) -> list[str]:
        """Tie tensors of a module, and return the names of those that were not tied before."""
        called = layer_text(name, module)
        free = one_pixel and {size for size, _ in (*before, *after)} == {1}  # whatever its numbers
        written, distances, norms = [], [0.0], [0.0]
        for key, tie in ties.items():
            is_new = self._register(called, module, key, tie)
            if free:
                continue
            if not any(each.module is module and each.key == key for each in self.plan.ties):
                self.plan.ties.append(TiedTensor(module, key, tie))
            norms.append(float(full_precision(getattr(module, key)).norm()))
            if is_new:
                written.append(key)
                distances.append(self._write(called, module, key, tie))
        total = math.hypot(*norms)
        distance = math.hypot(*distances) / max(total, sys.float_info.min)
        if written and (isinstance(module, Mixing) or distance > MAX_ROUNDING):
            self.plan.layers[name] = TiedLayer(sizes_text(before), sizes_text(after), distance)
            self.changed |= distance > MAX_ROUNDING
        return written

    def _register(self, called: str, module: nn.Module, key: str, tie: Tie) -> bool:
        """Note how a tensor is tied, and return whether that is new; it may be shared."""
        tensor: Any = module._parameters.get(key, module._buffers.get(key))
        if parametrize.is_parametrized(module, key):
            tensor = module.get_submodule(f"parametrizations.{key}")
        if tensor is None:
            raise ValueError(
                f"{called} computes its {key} in a hook: use torch.nn.utils.parametrizations.weight_norm or "
                f".spectral_norm in place of those of torch.nn.utils, and prune.remove after pruning"
            )
        is_new = id(tensor) not in self.tied
        if self.tied.setdefault(id(tensor), tie) != tie:
            raise ValueError(
                f"{called} shares its {key} with a place that has other feature groups: give both the same, "
                f"or a {key} of their own"
            )
        return is_new

    def _write(self, called: str, module: nn.Module, key: str, tie: Tie) -> float:
        """Give a tensor tied numbers, and return how far it was from them."""
        mixing = isinstance(module, Mixing)
        values: Tensor = getattr(module, key)
        tied, distance = tie.start(values, self.random and mixing)
        lost = float(tied.norm()) <= MIN_SHARE * float(values.norm())
        if lost and mixing and key == "weight" and values.any():
            raise ValueError(
                f"{called}: no part of its weight commutes with {self.group} from feature groups "
                f"{sizes_text(tie.before)} to {sizes_text(tie.after)}, so it would be 0: use larger ones, up "
                f"to {len(self.group)}, on either side"
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
        # over all views: the mean of the variances of members, and the variance of their means
        pooled = tie.project(mean)
        buffers["running_mean"].copy_(pooled)
        buffers["running_var"].copy_(tie.project(variance + (mean - pooled).square()))

    def check(self, name: str, module: nn.Module, output: Any) -> None:
        """Raise :class:`_Breaks` if what a layer or the model returned is not equivariant.

        Pads and pools are not asked: of what they return, only what is read later matters.
        """
        if isinstance(module, Mixing):
            if self.wiring.shuffles[name] == 1:
                self._check_maps(name, module, [_maps_of(module, output)], [self.chosen[name]])
        elif name and name not in self.trusted and isinstance(output, Tensor) and output.is_floating_point():
            if has_numbers(module) and not isinstance(module, _NormBase):
                sources = self.wiring.sources(name)
                self._check_maps(name, module, layouts(output), self._blocks_of(sources), others=True)
        if not name:
            self._check_returned(module, output)

    def _check_returned(self, model: nn.Module, output: Any) -> None:
        """Check all that the model returns; nothing may be permuted there that was not named."""
        inputs = [each for each in self.wiring.inputs if each.name is None]
        parts = batches_in(output, self.num_views)
        for part, each in zip(parts, inputs, strict=False):
            maps = layouts(part)
            if not maps:
                self.plan.outputs.append(())  # tokens or boxes: a rotation changes their order
                continue
            single = [((1, h.shape[1]),) for h in maps]
            found = self._check_maps("", model, maps, [*self._blocks_of(each.sources), *single], others=True)
            names = [source.name for source in each.sources if source.name is not None]
            permuted = any(size > 1 for size, _ in found.blocks)
            if permuted and not any(is_named(name, self.specs) for name in names):
                raise ValueError(
                    f"the model's output, {_shape_text(part)}, holds feature groups that {self.group} "
                    f'permutes: set feature_groups={{"": …, "{names[0]}": 1}}, or name that layer with its '
                    f"size to allow it"
                )
            self.plan.outputs.append(found.blocks)
            for label, error in found.errors.items():
                self.plan.errors[label] = max(error, self.plan.errors.get(label, 0.0))

    def _check_maps(
        self,
        name: str,
        module: nn.Module,
        maps: Sequence[Tensor],
        expected: Sequence[Blocks],
        others: bool = False,
    ) -> Found:
        """Return the feature groups in which maps, in one of their layouts, rotate."""
        for h in maps:
            found = self._detect(h, expected, others)
            if found is None:
                continue
            self.plan.returned[name] = found.blocks
            layer = self.plan.layers.get(name)
            if layer is not None and math.isnan(layer.exact):
                self.plan.layers[name] = replace(layer, exact=found.exact, between=found.between)
            return found
        shape = _shape_text(maps[0])
        what = f"its output, {shape}, does not rotate"
        if name in self.trusted:
            what = f"neither its input nor its output, {shape}, rotates"
        text = f"{layer_text(name, module)} breaks {self.group}: {what}"
        for key, tensor in module.named_parameters(recurse=False):
            if tensor.numel() > 1 and id(tensor) not in self.tied:
                text += f"; its own {key!r} cannot be tied"
        raise _Breaks(text)

    def _feature_groups_in(self, name: str, maps: Sequence[Tensor]) -> tuple[Blocks | None, Tensor | None]:
        """Return the feature groups of a module's input, and the layout in which it has them.

        If it does not rotate, its sources are taken at their word: a padded column may never be
        read, and the check of the output will tell.
        """
        expected = self._blocks_of(self.wiring.sources(name))
        for h in maps:
            found = self._detect(h, expected, others=True)
            if found is not None:
                return found.blocks, h
        for h in maps:
            words = {blocks for blocks in expected if num_channels(blocks) == h.shape[1]}
            if len(words) == 1:
                self.trusted.add(name)
                return words.pop(), h
        return None, None

    def _detect(self, h: Tensor, expected: Sequence[Blocks], others: bool = False) -> Found | None:
        """Return the feature groups that maps rotate in: those expected, or any ``others`` too."""
        for maps, version, found in self.latest:
            if maps.is_set_to(h) and version == h._version:  # the very same maps, not written to
                return found
        channels = h.shape[1]
        candidates: list[Blocks] = []
        for spec in (*self.specs.values(), FeatureGroups.of(1)):
            spec = spec or FeatureGroups.of(len(self.group))
            if others and spec.nearest(channels) == channels:
                candidates.append(tuple(spec.blocks(channels)))
        found = feature_groups_of(h, self.group, expected, candidates)
        self.latest.append((h, h._version, found))
        return found

    def _blocks_of(self, sources: Iterable[Source]) -> list[Blocks]:
        """Return the feature groups of each source, and those of all parts concatenated."""
        found: list[Blocks] = []
        parts: dict[int, Blocks] = {}
        for source in sources:
            blocks: Blocks = ((1, source.channels),)
            if source.name is not None:
                blocks = self.chosen[source.name]
            found.append(blocks)
            parts.setdefault(source.part, blocks)
        joined: list[tuple[int, int]] = []
        for size, channels in itertools.chain(*parts.values()):
            if joined and joined[-1][0] == size:
                channels += joined.pop()[1]
            joined.append((size, channels))
        return [*found, tuple(joined)]

    def find_untied(self, model: nn.Module, run: Callable[[], Any]) -> None:
        """Find parameters that are not tied and would break equivariance with other numbers.

        A learned map of positions that is 0 at first breaks nothing yet. So every parameter without
        a tie gets other numbers, tied ones near 0 too, which could hide a break, and the model runs
        again.
        """
        free: dict[str, Tensor] = {}
        hiding: dict[str, Tensor] = {}
        for name, weight in model.named_parameters():
            if weight.numel() == 1:
                continue
            largest = float(torch.linalg.vector_norm(weight, math.inf))
            usual = weight[0].numel() ** -0.5
            tie = self.tied.get(id(weight))
            if tie is None:
                free[name] = weight + _noise(weight) * (largest or 1.0)
            elif largest < MAX_HIDING_WEIGHT * usual and not name.endswith(
                "bias"
            ):  # which multiplies nothing
                hiding[name] = tie.project(_noise(weight) * usual)
        # one pass is enough for most models
        if not (free or hiding) or self._error_with(model, run, free | hiding) is None:
            return
        error = self._error_with(model, run, hiding)
        if error is not None:
            raise _Breaks(f"{error}, once these are no longer 0: {', '.join(map(repr, hiding))}")
        weights = dict(model.named_parameters())
        for name, other in free.items():
            if self._error_with(model, run, hiding | {name: other}) is None:
                continue
            if weights[name].requires_grad:
                raise ValueError(
                    f"parameter {name!r} {tuple(other.shape)} cannot be tied and would break equivariance as "
                    f"it trains: freeze it (requires_grad_(False)), or leave that part of the model out; "
                    f"numbers per channel can be tied in a module of their own that is called with the maps"
                )
            self.plan.untied += (name,)

    def _error_with(
        self, model: nn.Module, run: Callable[[], Any], others: Mapping[str, Tensor]
    ) -> _Breaks | None:
        """Return what breaks with ``others`` in place of some parameters, which are put back."""
        weights = dict(model.named_parameters())
        before = {name: weights[name].clone() for name in others}
        plan = self.plan
        self.plan = Plan(self.group)
        try:
            for name, other in others.items():
                weights[name].copy_(other)
            with hooked(self.wiring.modules, after=self.check):
                run()
        except _Breaks as error:
            return error
        finally:
            self.plan = plan
            for name, old in before.items():
                weights[name].copy_(old)
        return None


def _noise(like: Tensor) -> Tensor:
    """Return numbers from -1 to 1, the same for the same shape."""
    noise = torch.rand(like.shape, generator=seeded(0), device="cpu")
    return (2 * noise - 1).to(like)


def sizes_text(blocks: Blocks) -> str:
    """Return the sizes as tables and messages show them: ``4-2-1``, or ``vector``."""
    return "-".join(str(size) for size, _ in blocks).replace(str(VECTOR), "vector")


def layer_text(name: str, module: nn.Module) -> str:
    """Describe a layer by its name and type."""
    if not name:
        return MODEL_ITSELF
    return f"layer {name!r} ({type(module).__name__})"


def modules_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules of a model by name, without the parametrizations inside them."""
    modules = {}
    for name, module, _ in walk(model):
        if "parametrizations" not in name.split("."):
            modules[name] = module
    return modules


def _shape_text(x: Tensor) -> str:
    """Describe maps without their batch, as ``8×7×7``, and any other tensor with its type."""
    if x.ndim == 4:
        return "×".join(map(str, x.shape[1:]))
    return f"{x.dtype} of shape {tuple(x.shape)}"


def _maps_of(module: Mixing, x: Tensor) -> Tensor:
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


def _runner(
    model: nn.Module, images: int, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Callable[..., Any]:
    """Return a function that runs a model on images or views, with its further arguments."""

    def run(x: Tensor, elements: int = 1) -> Any:
        def fitted(value: Any) -> Any:
            if isinstance(value, Tensor) and value.ndim and len(value) == images:
                return torch.cat([value[: len(x) // elements]] * elements)
            return value

        # a clone, because a model may write to its input
        return model(x.clone(), *map(fitted, args), **{key: fitted(value) for key, value in kwargs.items()})

    return run


def _tried(run: Callable[[Tensor], Any], images: Tensor) -> Any:
    """Run the model and, if it fails, say what it was given."""
    try:
        return run(images)
    except Exception as error:
        reason = " ".join(str(error).split())[:MAX_ERROR_LENGTH]
        raise ValueError(
            f"the model fails on images {_shape_text(images)} of {images.dtype} ({type(error).__name__}: "
            f"{reason}): pass images of the size, channels and dtype it expects, and other inputs in args "
            f"or kwargs"
        ) from error


def _unused(modules: Mapping[str, nn.Module], ran: Collection[str]) -> tuple[str, ...]:
    """Return the modules with parameters of their own that did not run; lists of them never do."""
    unused = []
    for name, module in modules.items():
        if module._parameters and name not in ran:
            if not isinstance(module, nn.ParameterList | nn.ParameterDict):
                unused.append(name)
    return tuple(unused)


def _warn_if_narrow(group: Group, fed: Mapping[str, Blocks]) -> None:
    """Warn if a layer makes what the model returns of very few independent features."""
    for name, blocks in fed.items():
        features = sum(channels // size for size, channels in blocks)
        if features < MIN_FEATURES and max(size for size, _ in blocks) > 1:
            warnings.warn(
                f"layer {name!r} has only {features} independent features to work with, "
                f"{num_channels(blocks)} channels in feature groups {sizes_text(blocks)}, and learns little "
                f"from so few: use {MIN_FEATURES} × {len(group)} = {MIN_FEATURES * len(group)} or more",
                stacklevel=4,
            )


def _checked(
    model: object, group: Group, images: object, feature_groups: Any, weights: str, outputs: str
) -> Specs:
    """Check all arguments, and return feature groups by the name of a layer or module."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"make_equivariant needs a torch.nn.Module; got a {type(model).__name__}")
    if weights not in ("random", "project"):
        raise ValueError(f'weights must be "random" or "project"; got {weights!r}')
    if outputs not in ("scalar", "vector"):
        raise ValueError(f'outputs must be "scalar" or "vector"; got {outputs!r}')
    if (
        not isinstance(images, Tensor)
        or images.ndim != 4
        or not images.is_floating_point()
        or not len(images)
    ):
        given = f"a {type(images).__name__}"
        if isinstance(images, Tensor):
            given = f"{images.dtype} {tuple(images.shape)}"
        raise ValueError(
            f"images must be a batch (B, C, H, W), such as torch.rand(4, 3, 33, 33); got {given}"
        )
    if not images.isfinite().all():
        raise ValueError("images hold NaN or infinite values: repair these images or leave them out")
    if not permutes_members(group) or not any(group.exact[1:]):
        raise ValueError(
            f"make_equivariant needs rotations and flips, among them a half turn, a quarter turn or a flip, "
            f"such as rot4, rot8 or rot4xflip; got {group}"
        )
    names = []
    for name, module, hidden in walk(model):
        names.append(name)
        if hidden or module._compiled_call_impl is not None:
            raise RuntimeError("the model is compiled, which hides its layers: tie it before torch.compile")
    for module in model.modules():
        if isinstance(module, WRAPPERS):
            raise RuntimeError(f"the model is wrapped in {type(module).__name__}: tie it before wrapping it")
    if not isinstance(feature_groups, Mapping) or all(isinstance(key, int) for key in feature_groups):
        feature_groups = {"": feature_groups}
    specs: dict[str, FeatureGroups | None] = {}
    for name, spec in feature_groups.items():
        specs[name] = None
        if spec != "auto":
            specs.update(by_name({name: spec}))
            check_regular_layers(group, by_name({name: spec}))
        if name not in names:
            known = [each for each in names if each]
            raise KeyError(
                f"feature_groups names {name!r}, which the model does not have; {nearest(name, known)}"
            )
    return specs


def _advice(model: nn.Module, images: Tensor) -> str:
    """Return what the doctor says about a model that is not equivariant."""
    try:
        diagnosis = doctor(model, images.shape[1:])
    except ValueError:
        return ""
    if not diagnosis.findings:
        return (
            ": only the weights of Conv2d, ConvTranspose2d, Linear and layers with numbers per channel are "
            "tied; write it with these, or pass the part of the model before it"
        )
    first = diagnosis.findings[0]
    advice = f"; doctor: {first.module or MODEL_ITSELF}, {first.op}: {first.reason}; remedy: {first.remedy}"
    if diagnosis.exact_sizes:
        advice += f"; exact input sizes: {', '.join(map(str, diagnosis.exact_sizes))}"
    return advice
