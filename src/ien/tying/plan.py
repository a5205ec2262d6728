"""The plan: which tensors of a model are tied, by which feature groups.

The model runs three times. A dry run shows how layers are wired, and feature groups are chosen for
all of them. Then it runs on views: just before a layer runs, its weight is tied between the feature
groups that come in and the ones it should return, and then its output is checked, so the first
layer that is not equivariant is where the model breaks. A learned map of positions that is 0 at
first breaks nothing yet, so a last run has other numbers in place of whatever is not tied.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
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
from ..loss.arguments import cut_for_batch, repeat_for_views
from ..loss.error import full_precision
from ..loss.feature_groups import FeatureGroups, Spec
from ..loss.layers import by_name, check_regular_layers
from ..loss.modules import WRAPPERS, hooked, walk
from ..measuring.inputs import device_of, eval_mode, try_model
from .detect import errors_in, feature_groups_of, layouts, swaps_sides, views_of
from .parametrized import Projected
from .projection import MIN_SHARE, VECTOR, Tie, cuts, grouped
from .wiring import Mixing, Specs, Wiring, asked_for, batches_in, choose, is_depthwise, spread

__all__ = ["Plan", "TiedLayer", "TiedTensor", "errors_of", "make_plan"]

DETECTION_PIXELS = 2**15
"""Pixels of the images that feature groups are detected with, if there are 2 to 8 of them."""
MAX_ROUNDING = 1e-6
"""Weights at no more than this relative distance from tied ones are tied already."""
MAX_GAIN = 4.0
"""How far a random weight may grow or shrink to keep a variance: dead maps would need more."""
MIN_FEATURES = 6
"""Independent features that a layer needs in order to learn what the model returns.

A U-Net with 2 of them before its head learned nothing, one with 4 learned slowly, one with 6 well.
"""
MAX_HIDING_WEIGHT = 1e-2
"""Tied weights below this share of usual ones may hide a break in what they multiply."""
CUTS_THROUGH = (
    "its groups cut through feature groups, whose members are permuted: use groups=1, or "
    'feature_groups="auto" for single channels there'
)


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


def make_plan(
    model: nn.Module,
    group: Group | str,
    images: Tensor,
    feature_groups: Spec | Mapping[str, Spec],
    weights: str,
    smooth: bool,
    outputs: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Plan:
    """Give a model tied weights, in place, and return what is tied.

    The arguments are those of :func:`make_equivariant`. If it fails, the model is left half tied.
    """
    group = parse_group(group)
    specs = _checked(model, group, images, feature_groups, weights, outputs)
    modules = _modules_of(model)
    wiring = Wiring()
    with _planning(model, images) as device:
        images = images.to(device, copy=True)
        run = _runner(model, len(images), args, kwargs)
        few = images[: min(max(DETECTION_PIXELS // images[0, 0].numel(), 2), 8)]
        views = views_of(few, group)
        with wiring, hooked(modules, wiring.enter, wiring.leave):
            wiring.end(run(wiring.start(few)), len(few))
        if not wiring.spreads:
            raise ValueError("the model ran no Conv2d, ConvTranspose2d or Linear: there is nothing to tie")
        heads = wiring.leaving | wiring.in_heads
        planner = Planner(group, wiring, choose(wiring, group, specs, outputs), specs, len(views))
        planner.random = weights == "random"
        planner.smooth = smooth
        plan = planner.plan
        try:
            with wiring, hooked(modules, planner.tie, planner.leave):
                planner.end(run(wiring.start(views), len(group)))
            if planner.outdated:
                with hooked(modules, planner.estimate_statistics):
                    run(images)
            _find_untied(planner, model, lambda: _checked_run(plan, modules, run, views).problem)
        except Breaks as error:
            raise ValueError(f"{error}{_advice(planner, model, images)}") from None
    _warn(planner, heads, outputs)
    for name, module in modules.items():
        lists_others = isinstance(module, nn.ParameterList | nn.ParameterDict)
        if module._parameters and name not in planner.ran and not lists_others:
            plan.unused += (name,)
    return plan


def errors_of(
    model: nn.Module, plan: Plan, images: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> tuple[dict[str, float], str]:
    """Run a tied model again, and return its relative errors by element, and what breaks first.

    That is the first layer whose output does not rotate, or that mixes channels and is not tied,
    such as a new head; empty if there is none.
    """
    _check_images(images)
    with _planning(model, images) as device:
        views = views_of(images.to(device), plan.group)
        check = _checked_run(plan, _modules_of(model), _runner(model, len(images), args, kwargs), views)
    problem = check.problem
    if "breaks" in problem:
        problem += _doctors_advice(model, images)
    return check.errors, problem


class Check:
    """Compares what layers and the model return with the feature groups of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.errors: dict[str, float] = {}
        """The largest relative error of what the model returns under each element, by its label."""
        self.problem = ""
        """The first thing that is not as planned."""

    def layer(self, name: str, module: nn.Module, output: Any) -> None:
        """Check what a layer that mixes channels returned; of others only what is read matters."""
        if not isinstance(module, Mixing):
            return
        if module not in self.plan.mixing:
            self._note(f"{_layer_text(name, module)} is not tied: it was added after make_equivariant")
        blocks = self.plan.mixing.get(module)
        if blocks is None:
            return
        found = errors_in(_maps_of(module, output), self.plan.group, blocks)
        if not found.fits:
            self._note(f"{_layer_text(name, module)} breaks {self.plan.group}")
        layer = self.plan.layers.get(name)
        if layer is not None and math.isnan(layer.exact):  # it has not been checked before
            self.plan.layers[name] = replace(layer, exact=found.exact, between=found.between)

    def returned(self, output: Any, num_views: int) -> None:
        """Check what the model returned."""
        for part, blocks in zip(batches_in(output, num_views), self.plan.outputs, strict=False):
            maps = [h for h in layouts(part) if h.shape[1] == num_channels(blocks)]
            found = [errors_in(h, self.plan.group, blocks) for h in maps]
            found.sort(key=lambda each: each.fits)  # the last of two layouts is the one that fits
            if found and not found[-1].fits:
                self._note(f"{MODEL_ITSELF} breaks {self.plan.group}: its output does not rotate")
            for each in found[-1:]:
                for label, error in each.errors.items():
                    self.errors[label] = max(error, self.errors.get(label, 0.0))

    def _note(self, problem: str) -> None:
        self.problem = self.problem or problem


@dataclass
class Planner:
    """Ties each layer of a model just before it runs on views."""

    group: Group
    wiring: Wiring
    chosen: Mapping[str, Blocks]
    specs: Specs
    num_views: int
    random: bool = True
    smooth: bool = True
    ran: set[str] = field(default_factory=set)
    inputs: dict[str, Blocks] = field(default_factory=dict)
    """The feature groups in the input of layers that mix channels."""
    tied: dict[int, Tie] = field(default_factory=dict)
    """How tensors are tied, by their id."""
    changed: bool = False
    outdated: set[nn.Module] = field(default_factory=set)
    """Norms with statistics of other weights."""

    def __post_init__(self) -> None:
        self.plan = Plan(self.group)
        self.check = Check(self.plan)

    def tie(self, name: str, module: nn.Module, x: Any) -> None:
        """Tie the weights of a module that is about to run on ``x``."""
        if self.check.problem:
            raise Breaks(self.check.problem)
        self.ran.add(name)
        if isinstance(module, Mixing):
            self.plan.mixing.setdefault(module, None)
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return
        if isinstance(module, Mixing) and name in self.wiring.spreads:
            self._tie_mixing(name, module, x)
        else:
            self._tie_numbers(name, module, x)

    def leave(self, name: str, module: nn.Module, output: Any) -> None:
        """Check what a module has returned."""
        self.wiring.leave(name, module, output)
        self.check.layer(name, module, output)

    def end(self, output: Any) -> None:
        """Check what the model has returned: feature groups are permuted there only if named."""
        for part in batches_in(output, self.num_views):
            blocks: Blocks | None = ()  # of tokens or boxes: a rotation changes their order
            for h in layouts(part):
                blocks = self._blocks_in(part, h)
                if blocks is not None:
                    break
            if blocks is None:
                raise Breaks(f"{MODEL_ITSELF} breaks {self.group}: its output does not rotate")
            self.plan.outputs.append(blocks)
            names = [name for name in self.wiring.layers_of(part) if name is not None]
            permuted = any(size > 1 for size, _ in blocks)
            if permuted and not any(asked_for(name, self.specs)[1] for name in names):
                raise ValueError(
                    f"the model's output {tuple(part.shape)} holds feature groups that {self.group} permutes: "
                    f"in feature_groups, name {names} with size 1, or with their size"
                )
        self.check.returned(output, self.num_views)
        if self.check.problem:
            raise Breaks(self.check.problem)
        self.plan.errors = self.check.errors

    def _blocks_in(self, x: Tensor, h: Tensor) -> Blocks | None:
        """Return the feature groups of ``x``, of which ``h`` is a layout, or None.

        The wiring tells, or what rotates; the check of what a layer returns finds any mistake.
        """
        if len(h) % self.num_views:  # the same for all views, as an argument that is broadcast
            return ((1, h.shape[1]),)
        for word in self.wiring.words.get(x, []):
            blocks: list[tuple[int, int]] = []
            for layer, channels in word:
                returned = self.chosen[layer] if layer is not None else ((1, channels),)
                for size, count in returned:
                    if blocks and blocks[-1][0] == size:
                        count += blocks.pop()[1]
                    blocks.append((size, count))
            if num_channels(blocks) == h.shape[1]:
                return tuple(blocks)
        sizes = {size for chosen in self.chosen.values() for size, _ in chosen} - {VECTOR} | {1}
        return feature_groups_of(h, self.group, sorted(sizes, reverse=True))

    def _tie_mixing(self, name: str, module: Mixing, x: Tensor) -> None:
        """Tie the weight and the bias of a layer that mixes channels."""
        called = _layer_text(name, module)
        if not layouts(x):
            raise ValueError(
                f"the input of {called} is {tuple(x.shape)}, which cannot rotate: keep height and width as "
                f"dims, (B, C, H, W) or (B, H, W, C)"
            )
        h = _maps_of(module, x)
        before = self._blocks_in(x, h)
        if before is None:
            raise Breaks(f"the input of {called}, {tuple(x.shape)}, does not rotate under {self.group}")
        after = before if is_depthwise(module) else self.chosen[name]
        shuffle = self.wiring.shuffles.get(name, 1)
        if shuffle == 1 and len(h) % self.num_views == 0:
            self.plan.mixing[module] = after
        self.inputs[name] = before
        ties = {"weight": self._tie_of_weight(called, module, before, after, shuffle)}
        for key, numbers in _vectors_of(module).items():
            if key != "weight" and numbers.numel() == num_channels(after) * shuffle**2:
                ties[key] = Tie(self.group, after, shuffle=shuffle)
        if self._tie_all(name, module, ties, before, after) and self.random:
            self._keep_spread(name, module, x)

    def _tie_of_weight(self, called: str, module: Mixing, before: Blocks, after: Blocks, shuffle: int) -> Tie:
        """Return how the weight of a layer is tied, or say why it cannot be."""
        conv_groups = getattr(module, "groups", 1)  # a linear layer has none
        height, width = (*module.weight.shape[2:], 1, 1)[:2]
        sides = (after, before)
        if isinstance(module, nn.ConvTranspose2d):  # its weight is (I, O, h, w)
            sides = (before, after)
        may_shuffle = isinstance(module, nn.Conv2d) and conv_groups == 1 and all(self.group.exact)
        stored = None
        if shuffle > 1 and not may_shuffle:
            reason = "only a Conv2d with groups=1 may feed a pixel shuffle, under quarter turns and flips"
        elif VECTOR in dict(before) or VECTOR in dict(sides[1]):
            reason = "vectors must leave the model, from a Conv2d or Linear"
        elif height != width and swaps_sides(self.group):
            reason = f"kernels of {height}×{width} cannot rotate by 90°: make them square"
        else:
            reason = CUTS_THROUGH
            stored = grouped(conv_groups, *sides, self.group)
        if stored is None:
            raise ValueError(f"{called} cannot be tied: {reason}")
        return Tie(self.group, *stored, self.smooth, shuffle)

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
        """Make numbers per channel, such as the weight of a norm, equal within a feature group."""
        called = _layer_text(name, module)
        has_statistics = isinstance(module, _NormBase) and module.running_mean is not None
        if isinstance(module, _BatchNorm) and not has_statistics:
            raise ValueError(
                f"{called} normalises with the statistics of a batch: set track_running_stats=True"
            )
        blocks = None
        keys: list[str] = []
        for h in layouts(x):
            keys = [key for key, each in _vectors_of(module).items() if _is_per_channel(each, h, x)]
            if keys or isinstance(module, nn.GroupNorm):
                blocks = self._blocks_in(x, h)
            if blocks is not None:
                break
        if blocks is None:
            if has_statistics and _vectors_of(module):
                raise Breaks(f"the input of {called} does not rotate under {self.group}")
            return  # the next layer that mixes channels will tell
        if isinstance(module, nn.GroupNorm) and cuts(module.num_groups, blocks, blocks, self.group):
            raise ValueError(f"{called} cannot be tied: {CUTS_THROUGH}")
        if has_statistics and self.changed and not self.random:
            self.outdated.add(module)
        if has_statistics and max(blocks)[0] > 1 and (module, blocks) not in self.plan.norms:
            self.plan.norms.append((module, blocks))
        self._tie_all(name, module, dict.fromkeys(keys, Tie(self.group, blocks)), blocks, blocks)

    def _tie_all(
        self, name: str, module: nn.Module, ties: Mapping[str, Tie], before: Blocks, after: Blocks
    ) -> bool:
        """Tie tensors of a module, and return whether its weight has got other numbers."""
        called = _layer_text(name, module)
        written = False
        distances, norms = [0.0], [0.0]
        for key, tie in ties.items():
            tensor: Any = module._parameters.get(key, module._buffers.get(key))
            if parametrize.is_parametrized(module, key):
                tensor = module.get_submodule(f"parametrizations.{key}")
            if tensor is None:
                raise ValueError(
                    f"{called} computes its {key} in a hook: use torch.nn.utils.parametrizations"
                )
            is_new = id(tensor) not in self.tied
            if self.tied.setdefault(id(tensor), tie) != tie:
                raise ValueError(f"{called} shares its {key} with a place that has other feature groups")
            values = getattr(module, key)
            if tie.leaves_free(values):
                continue
            norms.append(float(full_precision(values).norm()))
            if TiedTensor(module, key, tie) not in self.plan.ties:
                self.plan.ties.append(TiedTensor(module, key, tie))
            if is_new:
                written |= key == "weight"
                distances.append(self._write(called, module, key, tie))
        distance = math.hypot(*distances) / max(math.hypot(*norms), sys.float_info.min)
        is_first = isinstance(module, Mixing) and name not in self.plan.layers
        if is_first or distance > MAX_ROUNDING:
            self.plan.layers[name] = TiedLayer(_sizes_text(before), _sizes_text(after), distance)
            self.changed |= distance > MAX_ROUNDING
        return written

    def _write(self, called: str, module: nn.Module, key: str, tie: Tie) -> float:
        """Give a tensor tied numbers, and return how far it was from them."""
        values: Tensor = getattr(module, key)
        is_mixing = isinstance(module, Mixing)
        tied, distance = tie.start(values, self.random and is_mixing)
        is_lost = values.any() and float(tied.norm()) <= MIN_SHARE * float(values.norm())
        if is_lost and is_mixing and key == "weight":
            raise ValueError(
                f"{called} cannot be tied: no part of its weight commutes with {self.group} from feature "
                f"groups {_sizes_text(tie.before)} to {_sizes_text(tie.after)}: use larger ones"
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


def _find_untied(planner: Planner, model: nn.Module, problem: Callable[[], str]) -> None:
    """Find parameters that are not tied and would break equivariance with other numbers.

    Tied weights near 0, such as the last norm of a residual block, get other numbers as well: they
    could hide a break in what they multiply. ``problem`` runs the model, and returns what breaks.
    """
    weights = dict(model.named_parameters())
    free: dict[str, Tensor] = {}
    hiding: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if weight.numel() < 2:
            continue
        noise = 2 * torch.rand(weight.shape, generator=seeded(0), device="cpu").to(weight) - 1  # -1 to 1
        largest = float(torch.linalg.vector_norm(weight, math.inf))
        usual = weight[0].numel() ** -0.5
        tie = planner.tied.get(id(weight))
        if tie is None:
            free[name] = weight + noise * (largest or 1.0)
        elif largest < MAX_HIDING_WEIGHT * usual and not name.endswith("bias"):
            hiding[name] = tie.project(noise * usual)

    def problem_with(others: Mapping[str, Tensor]) -> str:
        before = {name: weights[name].clone() for name in others}
        for name, other in others.items():
            weights[name].copy_(other)
        found = problem()
        for name, old in before.items():
            weights[name].copy_(old)
        return found

    # one pass is enough for most models
    if not (free or hiding) or not problem_with(free | hiding):
        return
    hidden = problem_with(hiding)
    if hidden:
        raise Breaks(f"{hidden}, once these are no longer 0: {', '.join(map(repr, hiding))}")
    for name, other in free.items():
        if not problem_with(hiding | {name: other}):
            continue
        if weights[name].requires_grad:
            raise ValueError(
                f"parameter {name!r} {tuple(other.shape)} cannot be tied and would break equivariance as "
                f"it trains: freeze it (requires_grad_(False)), or leave that part of the model out; "
                f"numbers per channel can be tied in a module of their own that is called with the maps"
            )
        planner.plan.untied += (name,)


def _warn(planner: Planner, heads: set[str], outputs: str) -> None:
    """Warn if heads have very few features to read, and if the model returns its own features."""
    wiring = planner.wiring
    needed = f"{MIN_FEATURES} × {len(planner.group)} = {MIN_FEATURES * len(planner.group)}"
    for name in heads & set(planner.inputs):
        blocks = planner.inputs[name]
        features = sum(channels // size for size, channels in blocks)
        if features < MIN_FEATURES and any(size > 1 for size, _ in blocks):
            warnings.warn(
                f"layer {name!r} has only {features} independent features to work with, "
                f"{num_channels(blocks)} channels in feature groups {_sizes_text(blocks)}, and learns "
                f"little from so few: use {needed} or more",
                stacklevel=4,
            )
    read = {layer for _, module, layers in wiring.reads if isinstance(module, Mixing) for layer in layers}
    names = [name for name in sorted(wiring.leaving & read) if not asked_for(name, planner.specs)[1]]
    if names and outputs == "scalar":
        warnings.warn(
            f"the model returns features that its own layers read, of {', '.join(map(repr, names))}: single "
            f"channels, so that no output is permuted, whose kernels look the same from all sides; name "
            f"them with their size in feature_groups to allow it, or return only what comes after them",
            stacklevel=4,
        )


@contextmanager
def _planning(model: nn.Module, images: Tensor) -> Iterator[torch.device]:
    """Run a model in eval mode, without gradients, in its own precision and on its own device."""
    device = device_of(model, images.device)
    autocast: Any = nullcontext()
    if torch.amp.is_autocast_available(device.type):
        autocast = torch.autocast(device.type, enabled=False)
    with torch.inference_mode(False), torch.no_grad(), eval_mode(model), autocast:
        yield device


def _runner(
    model: nn.Module, num_images: int, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> Callable[..., Any]:
    """Return a function that runs a model on some of its images, or on views of them."""

    def run(x: Tensor, views: int = 1) -> Any:
        count = len(x) // views
        arguments = cut_for_batch(args, kwargs, num_images, slice(count), x.device)
        if views == 1:  # the first run, which may fail
            return try_model(model, x, arguments)
        all_args, all_kwargs = repeat_for_views(*arguments, count, views)
        return model(x, *all_args, **all_kwargs)

    return run


def _checked_run(
    plan: Plan, modules: Mapping[str, nn.Module], run: Callable[..., Any], views: Tensor
) -> Check:
    """Run a tied model on views, and compare it with its plan."""
    check = Check(plan)
    with hooked(modules, after=check.layer):
        check.returned(run(views.clone(), len(plan.group)), len(views))  # it may write to its input
    return check


def _modules_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules of a model by name."""
    return {name: module for name, module, _ in walk(model)}


def _checked(
    model: nn.Module, group: Group, images: object, feature_groups: Any, weights: str, outputs: str
) -> Specs:
    """Check all arguments, and return feature groups by the name of a layer or module."""
    if weights not in ("random", "project"):
        raise ValueError(f'weights must be "random" or "project"; got {weights!r}')
    if outputs not in ("scalar", "vector"):
        raise ValueError(f'outputs must be "scalar" or "vector"; got {outputs!r}')
    _check_images(images)
    if not permutes_members(group) or not any(group.exact[1:]):
        raise ValueError(
            f"make_equivariant needs rotations and flips, among them a half turn, a quarter turn or a flip, "
            f"such as rot4, rot8 or rot4xflip; got {group}"
        )
    modules = _modules_of(model)
    for module in model.modules():
        if isinstance(module, WRAPPERS) or hasattr(module, "_orig_mod") or module._compiled_call_impl:
            raise RuntimeError(
                f"the model holds a {type(module).__name__} that is compiled or wraps it, which hides its "
                f"layers: call make_equivariant before torch.compile, DistributedDataParallel and the like"
            )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta and not nn.parameter.is_lazy(tensor):
            raise ValueError(
                f"{name!r} is on the meta device and has no values yet: call model.to_empty(device=…) and "
                f"load or initialise its weights first"
            )
    if not isinstance(feature_groups, Mapping) or all(isinstance(key, int) for key in feature_groups):
        feature_groups = {"": feature_groups}
    specs: dict[str, FeatureGroups | None] = {}
    for name, spec in feature_groups.items():
        specs[name] = None
        if spec != "auto":
            specs.update(by_name({name: spec}))
            check_regular_layers(group, by_name({name: spec}))
        if name not in modules:
            raise KeyError(
                f"feature_groups names {name!r}, which the model does not have; {nearest(name, modules)}"
            )
    return specs


def _check_images(images: object) -> None:
    """Raise an error unless these are a batch of images with finite numbers."""
    given = type(images).__name__
    if isinstance(images, Tensor):
        given = f"{images.dtype} {tuple(images.shape)}"
    if (
        not isinstance(images, Tensor)
        or images.ndim != 4
        or not images.is_floating_point()
        or not len(images)
    ):
        raise ValueError(
            f"images must be a batch (B, C, H, W), such as torch.rand(4, 3, 33, 33); got {given}"
        )
    if not images.isfinite().all():
        raise ValueError("images hold NaN or infinite values: repair these images or leave them out")


def _doctors_advice(model: nn.Module, images: Tensor) -> str:
    """Return what the doctor says about a model that is not equivariant, if it finds anything."""
    with suppress(ValueError):
        advice = doctor(model, images).advice
        if advice:
            return f"; doctor: {advice}"
    return ""


def _advice(planner: Planner, model: nn.Module, images: Tensor) -> str:
    """Return what to do about a model that is not equivariant."""
    advice = _doctors_advice(model, images)
    if advice:
        return advice
    for name, parameter in model.named_parameters():
        holder = name.rpartition(".")[0]
        may_break = holder in planner.ran and not isinstance(model.get_submodule(holder), Mixing)
        if may_break and parameter.numel() > 1 and id(parameter) not in planner.tied:
            advice = f"; parameter {name!r} is not tied"
            break
    return (
        f"{advice}; remedy: write it with Conv2d, ConvTranspose2d and Linear (one after an Embedding, too), "
        f"and numbers per channel in a module of their own that is called with the maps: only these are tied"
    )


def _sizes_text(blocks: Blocks) -> str:
    """Return the sizes as tables and messages show them: ``4-2-1``, or ``vector``."""
    return "-".join("vector" if size == VECTOR else str(size) for size, _ in blocks)


def _layer_text(name: str, module: nn.Module) -> str:
    """Describe a layer by its name and type."""
    if not name:
        return MODEL_ITSELF
    return f"layer {name!r} ({parametrize.type_before_parametrizations(module).__name__})"


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


def _is_per_channel(numbers: Tensor, maps: Tensor, x: Tensor) -> bool:
    """Return whether there is one number for each channel of ``maps``, a layout of ``x``.

    If it has several dims, such as (C, 1, 1), the long one says which dim of ``x`` it belongs to.
    """
    channel_dim = -1
    if maps is x:
        channel_dim = 1 - x.ndim
    elif x.ndim == 4 and x.shape[1] == maps.shape[1] and numbers.ndim > 1:
        return False  # nobody knows which dim has the channels
    long_dim = list(numbers.shape).index(numbers.numel()) - numbers.ndim
    return numbers.numel() == maps.shape[1] and (numbers.ndim == 1 or long_dim == channel_dim)
