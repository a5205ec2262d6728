"""The plan: run the model three times, and know what to tie.

A dry run shows how layers are wired, and feature groups are chosen for all of them. In a run on
views each layer is tied before it runs. A learned map of positions that is 0 at first breaks
nothing yet, so a last run has other numbers in place of whatever is not tied.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn

from .._files import seeded
from .._text import nearest, type_name
from ..geometry.doctor import doctor
from ..groups.families import group as parse_group
from ..groups.group import Group
from ..groups.members import num_channels, permutes_members
from ..loss.arguments import cut_for_batch, repeat_for_views
from ..loss.feature_groups import FeatureGroups, Spec
from ..loss.layers import by_name, check_regular_layers
from ..loss.modules import WRAPPERS, hooked, walk
from ..measuring.inputs import device_of, eval_mode, try_model
from .detect import views_of
from .planned import Breaks, Plan, check_layer, check_returned, sizes_text
from .planner import Planner
from .wiring import Mixing, Specs, Wiring, asked_for, choose

__all__ = ["errors_of", "make_plan"]

DETECTION_PIXELS = 2**15
"""Pixels of the images that feature groups are detected with, if there are 2 to 8 of them."""
MIN_FEATURES = 6
"""Independent features that a layer needs in order to learn what the model returns.

A U-Net with 2 of them before its head learned nothing, one with 4 learned slowly, one with 6 well.
"""
MAX_HIDING_WEIGHT = 1e-2
"""Tied weights below this share of usual ones may hide a break in what they multiply."""


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
        planner = Planner(group, wiring, choose(wiring, group, specs, outputs), specs, len(views))
        planner.random = weights == "random"
        planner.smooth = smooth
        plan = planner.plan
        try:
            with wiring, hooked(modules, planner.tie, planner.leave):
                output = run(wiring.start(views), len(group))
            planner.end(output)
            if planner.outdated:
                with hooked(modules, planner.estimate_statistics):
                    run(images)
            _find_untied(planner, model, lambda: _checked_run(plan, modules, run, views)[1])
        except Breaks as error:
            raise ValueError(f"{error}{_advice(planner, model, images)}") from None
    _warn(planner, outputs)
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
        run = _runner(model, len(images), args, kwargs)
        errors, problem = _checked_run(plan, _modules_of(model), run, views)
    if "breaks" in problem:
        problem += _doctors_advice(model, images)
    return errors, problem


def _find_untied(planner: Planner, model: nn.Module, problem: Callable[[], str]) -> None:
    """Find parameters that are not tied and would break equivariance with other numbers.

    Tied weights near 0, such as the last norm of a residual block, get other numbers as well: they
    could hide a break in what they multiply. So do numbers per channel of several dims, such as
    (1, 1, 1, 8): they could be per column. ``problem`` runs the model, and returns what breaks.
    """
    weights = dict(model.named_parameters())
    free: dict[str, Tensor] = {}
    hiding: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if weight.numel() < 2:
            continue
        tie = planner.tied.get(id(weight))
        largest = float(torch.linalg.vector_norm(weight, math.inf))
        usual = weight[0].numel() ** -0.5
        if tie is not None:
            is_small = largest < MAX_HIDING_WEIGHT * usual and not name.endswith("bias")
            may_be_per_column = weight.ndim > 1 and weight.numel() == num_channels(tie.after)
            if is_small or may_be_per_column:
                hiding[name] = tie.project(_noise(weight) * usual)
        else:
            free[name] = weight + _noise(weight) * (largest or 1.0)

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
        raise Breaks(f"{hidden}, once these have other values: {', '.join(map(repr, hiding))}")
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


def _noise(like: Tensor) -> Tensor:
    """Return numbers from -1 to 1, the same for the same shape."""
    noise = torch.rand(like.shape, generator=seeded(0), device="cpu")
    return (2 * noise - 1).to(like)


def _warn(planner: Planner, outputs: str) -> None:
    """Warn of too few features, of kernels without direction, and of features that are returned."""
    wiring = planner.wiring
    needed = f"{MIN_FEATURES} × {len(planner.group)} = {MIN_FEATURES * len(planner.group)}"
    for name in (wiring.leaving | wiring.beside_maps) & set(planner.inputs):
        blocks = planner.inputs[name]
        features = sum(channels // size for size, channels in blocks)
        if features < MIN_FEATURES and any(size > 1 for size, _ in blocks):
            warnings.warn(
                f"layer {name!r} has only {features} independent features to work with, "
                f"{num_channels(blocks)} channels in feature groups {sizes_text(blocks)}, and learns "
                f"little from so few: use {needed} or more",
                stacklevel=4,
            )
    if _all_single(planner):
        order = len(planner.group)
        warnings.warn(
            f"feature groups of {planner.group} have {order} channels, and no layer can be split into them: "
            f"all kernels look the same from all sides, and the model learns little; give layers multiples "
            f"of {order} channels that no group norm or conv group cuts through, or use a smaller group",
            stacklevel=4,
        )
    read = set()
    for _, module, layers in wiring.reads:
        if isinstance(module, Mixing):
            read.update(layers)
    names = []
    for name in sorted(wiring.leaving & read):
        _, is_named = asked_for(name, planner.specs)
        if not is_named:
            names.append(name)
    if names and outputs == "scalar":
        warnings.warn(
            f"the model returns features that its own layers read, of {', '.join(map(repr, names))}: single "
            f"channels, so that no output is permuted, whose kernels look the same from all sides; name "
            f"them with their size in feature_groups to allow it, or return only what comes after them",
            stacklevel=4,
        )


def _all_single(planner: Planner) -> bool:
    """Return whether no layer inside of the model got the feature groups that it should have."""
    wiring = planner.wiring
    has_kernels = False  # larger than 1×1, which look the same from all sides anyway
    for name, module, _ in wiring.reads:
        if name in wiring.leaving or name in wiring.beside_maps or not isinstance(module, Mixing):
            continue
        spec, _ = asked_for(name, planner.specs)
        if spec is not None or any(size > 1 for size, _ in planner.chosen[name]):
            return False
        has_kernels = has_kernels or math.prod(module.weight.shape[2:]) > 1
    return has_kernels


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
) -> tuple[dict[str, float], str]:
    """Run a tied model on views, and return its errors, and what first is not as planned."""
    problems: list[str] = []

    def check(name: str, module: nn.Module, output: Any) -> None:
        problems.append(check_layer(plan, name, module, output))

    with hooked(modules, after=check):
        output = run(views.clone(), len(plan.group))  # it may write to its input
    errors, problem = check_returned(plan, output, len(views))
    return errors, next(filter(None, problems), problem)


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
            f"such as rot4, rot8 or rot4xflip; got {group}: for other transformations train with "
            f"ien.EquivarianceLoss"
        )
    modules = _modules_of(model)
    for module in model.modules():
        if isinstance(module, WRAPPERS) or hasattr(module, "_orig_mod") or module._compiled_call_impl:
            raise RuntimeError(
                f"the model holds a {type(module).__name__} that is compiled or wraps it, which hides its "
                f"layers: call make_equivariant before torch.compile, DistributedDataParallel and the like"
            )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if not tensor.is_meta:
            continue
        try:
            tensor.cpu()
        except RuntimeError:
            raise ValueError(
                f"{name!r} is on the meta device and has no values yet: call model.to_empty(device=…) and "
                f"load or initialise its weights first"
            ) from None
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
    needed = "images must be a batch (B, C, H, W), such as torch.rand(4, 3, 33, 33)"
    if not isinstance(images, Tensor):
        hint = ""
        if isinstance(images, list | tuple):
            hint = ": torch.stack(images) makes a batch of images"
        elif isinstance(images, Iterable) and not hasattr(images, "__array__"):  # a DataLoader
            hint = ": take a batch of it"
        raise TypeError(f"{needed}; got {type_name(images)}{hint}")
    if images.ndim == 3:
        raise ValueError(f"{needed}; got one image {tuple(images.shape)}: use images[None]")
    if images.ndim != 4 or not len(images):
        raise ValueError(f"{needed}; got {tuple(images.shape)}")
    if not images.is_floating_point():
        raise ValueError(
            f"images must have floating-point numbers; got {images.dtype}: use images.float() / 255"
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
