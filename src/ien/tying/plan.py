"""The plan: run the model once with a planner, and see what could still break.

A learned map of positions that is 0 at first breaks nothing yet. So the model runs once more, with
other numbers in place of every parameter that is not tied.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn

from .._files import seeded
from .._text import MODEL_ITSELF, nearest
from ..geometry.doctor import doctor
from ..groups.families import group as parse_group
from ..groups.group import Group
from ..groups.members import num_channels, permutes_members
from ..loss.arguments import cut_for_batch, repeat_for_views
from ..loss.feature_groups import FeatureGroups, Spec
from ..loss.layers import by_name, check_regular_layers
from ..loss.modules import WRAPPERS, hooked, walk
from ..measuring.inputs import device_of, eval_mode, try_model
from .detect import errors_in, feature_groups_of, layouts, views_of
from .planner import Breaks, Plan, Planner, TiedLayer, TiedTensor, layer_text, maps_of, sizes_text
from .wiring import Mixing, Specs, batches_in, choose, is_named, wire

__all__ = ["Plan", "TiedLayer", "TiedTensor", "errors_of", "make_plan"]

DETECTION_PIXELS = 2**15
"""Pixels of the images that feature groups are detected with, if there are 2 to 8 of them."""
MIN_FEATURES = 6
"""Independent features that a layer needs in order to learn what the model returns.

A U-Net with 2 of them before its head learned nothing, one with 4 learned slowly, one with 6 well.
"""
MAX_HIDING_WEIGHT = 1e-2
"""Tied weights below this share of usual ones may hide a break in what they multiply."""
MAX_SUSPECTS = 3
"""Parameters that an error names."""


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
    device = device_of(model, images.device)
    with _planning(model, device):
        images = images.to(device, copy=True)
        few = images[: min(max(DETECTION_PIXELS // images[0, 0].numel(), 2), 8)]
        views = views_of(few, group)
        # a model that fails on these images should say so before anything is changed
        try_model(model, few.clone(), cut_for_batch(args, kwargs, len(images), slice(len(few)), few.device))
        run = _runner(model, len(images), args, kwargs)
        with torch.enable_grad():
            wiring = wire(modules, run, few)
        if not wiring.channels:
            raise ValueError("the model ran no Conv2d, ConvTranspose2d or Linear: there is nothing to tie")
        chosen = choose(wiring, group, specs, outputs)
        random = weights == "random"
        planner = Planner(group, wiring, chosen, specs, len(views), random, smooth, Plan(group))
        try:
            with hooked(modules, planner.tie, planner.check):
                run(views, len(group))
            if planner.outdated:
                with hooked(modules, planner.estimate_statistics):
                    run(images)
            _find_untied(planner, model, lambda: run(views, len(group)))
        except Breaks as error:
            raise ValueError(f"{error}{_advice(planner, model, images)}") from None
    _warn_if_narrow(planner)
    _warn_if_features_leave(planner, outputs)
    for name, module in modules.items():
        lists_others = isinstance(module, nn.ParameterList | nn.ParameterDict)
        if module._parameters and name not in planner.ran and not lists_others:
            planner.plan.unused += (name,)
    return planner.plan


def errors_of(
    model: nn.Module, plan: Plan, images: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> tuple[dict[str, float], str]:
    """Run a tied model again, and return its relative errors by element, and what breaks first.

    That is the first layer whose output does not rotate, or that mixes channels and is not tied,
    such as a new head; empty if there is none.
    """
    _check_images(images)
    broken: list[str] = []

    def check(name: str, module: nn.Module, output: Any) -> None:
        if not isinstance(module, Mixing):
            return
        blocks = plan.mixing.get(module)
        if module not in plan.mixing:
            broken.append(f"{layer_text(name, module)} is not tied: it was added after make_equivariant")
        elif blocks is not None:
            if feature_groups_of(maps_of(module, output), plan.group, [blocks]) is None:
                broken.append(f"{layer_text(name, module)} breaks {plan.group}")

    now = Plan(plan.group)
    device = device_of(model, images.device)
    with _planning(model, device):
        views = views_of(images.to(device), plan.group)
        with hooked(_modules_of(model), after=check):
            output = _runner(model, len(images), args, kwargs)(views, len(plan.group))
        for part, blocks in zip(batches_in(output, len(views)), plan.outputs, strict=False):
            for h in layouts(part):
                if num_channels(blocks) == h.shape[1]:
                    now.note_errors(errors_in(h, plan.group, blocks))
                    break
    problem = "".join(broken[:1])
    if problem.endswith(f"breaks {plan.group}"):
        problem += _doctors_advice(model, images)
    return now.errors, problem


@contextmanager
def _planning(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Run a model in eval mode, without gradients, and in its own precision."""
    autocast: Any = nullcontext()
    if torch.amp.is_autocast_available(device.type):
        autocast = torch.autocast(device.type, enabled=False)
    with torch.inference_mode(False), torch.no_grad(), eval_mode(model), autocast:
        yield


def _find_untied(planner: Planner, model: nn.Module, run: Callable[[], Any]) -> None:
    """Find parameters that are not tied and would break equivariance with other numbers.

    Tied weights near 0, such as the last norm of a residual block, get other numbers as well: they
    could hide a break in what they multiply.
    """
    free: dict[str, Tensor] = {}
    hiding: dict[str, Tensor] = {}
    weights = dict(model.named_parameters())
    for name, weight in weights.items():
        if weight.numel() < 2:
            continue
        largest = float(torch.linalg.vector_norm(weight, math.inf))
        usual = weight[0].numel() ** -0.5
        tie = planner.tied.get(id(weight))
        if tie is None:
            free[name] = weight + _noise(weight) * (largest or 1.0)
        elif largest < MAX_HIDING_WEIGHT * usual and not name.endswith("bias"):
            hiding[name] = tie.project(_noise(weight) * usual)
    # one pass is enough for most models
    if not (free or hiding) or _error_with(planner, run, weights, free | hiding) is None:
        return
    error = _error_with(planner, run, weights, hiding)
    if error is not None:
        raise Breaks(f"{error}, once these are no longer 0: {', '.join(map(repr, hiding))}")
    for name, other in free.items():
        if _error_with(planner, run, weights, hiding | {name: other}) is None:
            continue
        if weights[name].requires_grad:
            raise ValueError(
                f"parameter {name!r} {tuple(other.shape)} cannot be tied and would break equivariance as "
                f"it trains: freeze it (requires_grad_(False)), or leave that part of the model out; "
                f"numbers per channel can be tied in a module of their own that is called with the maps"
            )
        planner.plan.untied += (name,)


def _error_with(
    planner: Planner, run: Callable[[], Any], weights: Mapping[str, Tensor], others: Mapping[str, Tensor]
) -> Breaks | None:
    """Return what breaks with ``others`` in place of some parameters, which are put back."""
    before = {name: weights[name].clone() for name in others}
    plan = planner.plan
    planner.plan = Plan(planner.group)
    try:
        for name, other in others.items():
            weights[name].copy_(other)
        with hooked(planner.wiring.modules, after=planner.check):
            run()
    except Breaks as error:
        return error
    finally:
        planner.plan = plan
        for name, old in before.items():
            weights[name].copy_(old)
    return None


def _noise(like: Tensor) -> Tensor:
    """Return numbers from -1 to 1, the same for the same shape."""
    noise = torch.rand(like.shape, generator=seeded(0), device="cpu")
    return (2 * noise - 1).to(like)


def _warn_if_narrow(planner: Planner) -> None:
    """Warn if a head has very few independent features to read."""
    order = len(planner.group)
    for name in (planner.wiring.leaving | planner.wiring.hidden) & set(planner.inputs):
        blocks = planner.inputs[name]
        features = sum(channels // size for size, channels in blocks)
        if features < MIN_FEATURES and any(size > 1 for size, _ in blocks):
            warnings.warn(
                f"layer {name!r} has only {features} independent features to work with, "
                f"{num_channels(blocks)} channels in feature groups {sizes_text(blocks)}, and learns "
                f"little from so few: use {MIN_FEATURES} × {order} = {MIN_FEATURES * order} or more",
                stacklevel=4,
            )


def _warn_if_features_leave(planner: Planner, outputs: str) -> None:
    """Warn if layers return single channels only because the model returns what they add up to."""
    read: set[str | None] = set()
    for each in planner.wiring.inputs:
        if each.name in planner.wiring.channels:
            read.update(source.name for source in each.sources)
    names = sorted(name for name in planner.wiring.leaving & read if not is_named(name, planner.specs))
    if names and outputs == "scalar":
        layers = ", ".join(map(repr, names[:MAX_SUSPECTS]))
        warnings.warn(
            f"the model returns features that its own layers read, of {layers}: single channels, so that "
            f"no output is permuted, whose kernels look the same from all sides; name these layers with "
            f"their size in feature_groups to allow it, or return only what comes after them",
            stacklevel=4,
        )


def _modules_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules of a model by name."""
    return {name: module for name, module, _ in walk(model)}


def _runner(
    model: nn.Module, num_images: int, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> Callable[..., Any]:
    """Return a function that runs a model on some of its images, or on views of them."""

    def run(x: Tensor, views: int = 1) -> Any:
        count = len(x) // views
        some_args, some_kwargs = cut_for_batch(args, kwargs, num_images, slice(count), x.device)
        all_args, all_kwargs = repeat_for_views(some_args, some_kwargs, count, views)
        return model(x.clone(), *all_args, **all_kwargs)  # a clone, because it may write to its input

    return run


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
    names = [name for name, _, _ in walk(model) if name]
    specs: dict[str, FeatureGroups | None] = {}
    for name, spec in feature_groups.items():
        specs[name] = None
        if spec != "auto":
            specs.update(by_name({name: spec}))
            check_regular_layers(group, by_name({name: spec}))
        if name and name not in names:
            raise KeyError(
                f"feature_groups names {name!r}, which the model does not have; {nearest(name, names)}"
            )
    return specs


def _check_images(images: object) -> None:
    """Raise an error unless these are a batch of images with finite numbers."""
    given = type(images).__name__
    if isinstance(images, Tensor):
        given = f"{images.dtype} {tuple(images.shape)}"
        if images.ndim == 4 and images.is_floating_point() and len(images):
            if not images.isfinite().all():
                raise ValueError("images hold NaN or infinite values: repair these images or leave them out")
            return
    raise ValueError(f"images must be a batch (B, C, H, W), such as torch.rand(4, 3, 33, 33); got {given}")


def _doctors_advice(model: nn.Module, images: Tensor) -> str:
    """Return what the doctor says about a model that is not equivariant, if it finds anything."""
    diagnosis = None
    with suppress(ValueError):
        diagnosis = doctor(model, images)
    if diagnosis is None or not diagnosis.findings:
        return ""
    first = diagnosis.findings[0]
    advice = f"; doctor: {first.module or MODEL_ITSELF}, {first.op}: {first.reason}"
    if first.kind == "grid" and not diagnosis.grid_sizes:
        return (
            f"{advice}, and no other input size is exact; remedy: 2×2 convolutions of stride 2, or a pool "
            f"of 2, instead of 3×3 convolutions of stride 2"
        )
    advice += f"; remedy: {first.remedy}"
    if diagnosis.exact_sizes:
        advice += f"; exact input sizes: {', '.join(map(str, diagnosis.exact_sizes))}"
    return advice


def _advice(planner: Planner, model: nn.Module, images: Tensor) -> str:
    """Return what to do about a model that is not equivariant."""
    advice = _doctors_advice(model, images)
    if advice:
        return advice
    suspects = []
    for name, parameter in model.named_parameters():
        holder = name.rpartition(".")[0]
        has_run = holder in planner.ran and not isinstance(planner.wiring.modules[holder], Mixing)
        if has_run and parameter.numel() > 1 and id(parameter) not in planner.tied:
            suspects.append(repr(name))
    if suspects:
        return (
            f"; these parameters are not tied: {', '.join(suspects[:MAX_SUSPECTS])}; remedy: make them "
            f"weights of Conv2d or Linear, put a Linear after an Embedding, and keep numbers per channel in "
            f"a module of their own that is called with the maps"
        )
    return (
        "; only the weights of Conv2d, ConvTranspose2d, Linear and layers with numbers per channel are tied: "
        "write it with these, or pass the part of the model before it"
    )
