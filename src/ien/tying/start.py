"""Start: from an ordinary network to one that is equivariant before its first step of training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from .._text import columns, nearest, number
from ..geometry.doctor import doctor
from ..groups.families import group as parse_group
from ..groups.group import Group
from ..groups.members import Blocks
from ..groups.similarity import Similarity
from ..loss.capture import hooked, walk
from ..loss.feature_groups import FeatureGroups, Spec
from ..loss.layers import by_name, check_regular_layers
from ..measuring.inputs import eval_mode, try_model
from ..measuring.report import ROOT
from .detect import Views
from .plan import Breaks, LayerStart, Mixing, Work, spreads_of
from .projection import Tie
from .untied import loose_parameters

__all__ = ["Kernels", "LayerStart", "Start", "Weights", "start_after", "start_equivariant"]

Weights = Literal["random", "project"]
Kernels = Literal["free", "smooth"]
Listed = nn.ParameterList | nn.ParameterDict
"""Modules that are not called: their parameters are used by others."""


@dataclass(frozen=True)
class Start:
    """What :func:`start_equivariant` did, layer by layer in the order they run; ``print`` it for a table."""

    group: str
    weights: str
    layers: dict[str, LayerStart]
    unused: tuple[str, ...] = ()
    """Modules with parameters that did not run, and are as they were."""
    ties: tuple[Tie, ...] = field(default=(), repr=False, compare=False)
    """What is tied, for :func:`keep_equivariant`."""
    loose: tuple[str, ...] = ()
    """Parameters that are not tied, and with other numbers would break the symmetry, as a map of zeros."""
    model: nn.Module | None = field(default=None, repr=False, compare=False)
    exchanged: str = ""
    """How to ask for single maps, if the model returns feature groups, whose members elements exchange."""

    def __str__(self) -> str:
        classes = f"returns feature groups, not classes; if it shall be classes: {self.exchanged}"
        unused = f"did not run, and are as they were: {', '.join(self.unused)}"
        notes = [*[classes] * bool(self.exchanged), *[unused] * bool(self.unused)]
        if not self.layers:
            return "\n".join([f"equivariant to {self.group} as it was: no weight had to change", *notes])
        between = any(layer.between is not None for layer in self.layers.values())
        rows = [["layer", "before", "after", "distance", "exact", *["between"] * between]]
        for name, layer in self.layers.items():
            numbers = [layer.distance, layer.exact, *[layer.between] * between]
            rows.append([name or ROOT, layer.before, layer.after, *map(number, numbers)])
        title = (
            f"equivariant to {self.group}, weights {self.weights}: relative errors of {len(rows) - 1} layers"
        )
        return "\n".join([title, *columns(rows), *notes])


def start_equivariant(
    model: nn.Module,
    group: Group | str,
    feature_groups: Spec | Mapping[str, Spec],
    input: Tensor,
    weights: Weights = "random",
    kernels: Kernels = "free",
) -> Start:
    """Change the weights of ``model`` so that it is equivariant, as if it were built of group convolutions.

    Filters of a feature group become transformed copies of each other, and numbers for each channel (biases,
    norms) equal within it, frozen layers included. Quarter turns and flips are exact, other rotations as good
    as the pixels allow. It is still an ordinary network: training moves it away again unless the loss holds
    it, or :func:`keep_equivariant`.

    ``input`` is a batch of images (B, C, H, W), of a size at which the grid is exact: 3×3 convolutions of
    stride 2 need odd ones, 2×2 pools even ones; :func:`doctor` tells. The model is run on it in eval mode, so
    without dropout, a few times: to see what comes into each layer and to check what leaves it. Linear layers
    on pooled features become invariant; they stay as they are after a group pool. ``"random"`` takes the
    weights as a random draw, and keeps the variance of what each layer returns, its bias aside, unless its
    weights would become more than four times as large or as small; ``"project"`` takes the nearest
    equivariant weights, for a trained model, and the running statistics of norms anew from ``input`` under
    all elements: give a hundred images or more. ``kernels="smooth"`` makes them of patterns that turn by any
    angle, as those of steerable networks, which learn more from few images that come in all orientations;
    where an element resamples, they are always so. ``feature_groups`` may map layers, or modules that hold
    them, to their own; ``""`` is the rest. What cannot be equivariant is an error that leaves the model as it
    was.

    >>> net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    >>> start = start_equivariant(net, "rot4", 4, torch.rand(2, 1, 9, 9))
    >>> start.layers["2"].before, start.layers["2"].exact < 1e-10
    ('4', True)
    """
    return start_after(
        try_model, lambda returned, loose: None, model, group, feature_groups, input, weights, kernels
    )


def start_after(
    trial: Callable[[nn.Module, Tensor], object],
    settle: Callable[[Mapping[str, Blocks], Sequence[str]], None],
    model: nn.Module,
    group: Group | str,
    feature_groups: Spec | Mapping[str, Spec],
    input: Tensor,
    weights: Weights = "random",
    kernels: Kernels = "free",
) -> Start:
    """:func:`start_equivariant`, unless a ``trial`` of the model as it is, on two images, is an error.

    ``settle`` is called with the feature groups that each layer then returns, and the parameters that are not
    tied; its error leaves the model as it was, too.
    """
    group = parse_group(group)
    specs = _checked(model, group, feature_groups, input, weights)
    if kernels not in get_args(Kernels):
        raise ValueError(f'kernels is "free" or "smooth"; got {kernels!r}')
    modules = {name: module for name, module, _ in walk(model)}
    views = Views(group, list(specs.values()))
    with torch.inference_mode(False), torch.no_grad(), eval_mode(model):
        x = input.to(next((p.device for p in model.parameters()), input.device), copy=True)
        trial(model, x[:2].clone())
        images = views.of(x)
        spreads = spreads_of(model, modules, images) if weights == "random" else {}
        work = Work(views, specs, spreads, kernels == "smooth")
        try:
            with hooked(modules, before=work.start, after=work.check):
                model(images.clone())
            loose = loose_parameters(work, model, modules, images)
            settle(work.returned, loose)
        except BaseException as error:
            work.undo()
            if not isinstance(error, Breaks):
                raise
            raise ValueError(f"{error}{_advice(model, x)}") from None
    mixing = [name for name, module in modules.items() if isinstance(module, Mixing)]
    if not work.layers and not work.ran.intersection(mixing):
        raise ValueError("the model ran no convolution on maps (B, C, H, W): there is nothing to start")
    unused = tuple(
        name
        for name, module in modules.items()
        if module._parameters and name not in work.ran and not isinstance(module, Listed)
    )
    return Start(str(group), weights, work.layers, unused, work.tied, loose, model, work.exchanged)


def _checked(
    model: object, group: Group, feature_groups: Spec | Mapping[str, Spec], input: object, weights: str
) -> dict[str, FeatureGroups]:
    """Feature groups by the name of a layer or of a module that holds it, "" for all, after checks."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"start_equivariant takes a torch.nn.Module; got a {type(model).__name__}")
    if weights not in get_args(Weights):
        raise ValueError(f'weights is "random" or "project"; got {weights!r}')
    if not isinstance(input, Tensor) or input.ndim != 4 or not input.is_floating_point() or not len(input):
        got = (
            f"{input.dtype} {tuple(input.shape)}"
            if isinstance(input, Tensor)
            else f"a {type(input).__name__}"
        )
        raise ValueError(
            f"input is a batch of images (B, C, H, W), such as torch.rand(4, 3, 33, 33); got {got}"
        )
    if not input.isfinite().all():
        raise ValueError("input holds NaN or infinite values: repair these images or leave them out")
    steps = [step for element in group.elements for step in element]
    if not any(group.exact[1:]) or not all(isinstance(s, Similarity) and s.scale == 1 for s in steps):
        raise ValueError(
            f"start_equivariant takes rotations and flips, a half turn, quarter turn or flip among them, "
            f"such as rot4, rot8 or rot4xflip; got {group}"
        )
    for module in model.modules():
        if isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
            raise RuntimeError(f"the model is wrapped in {type(module).__name__}: start it before wrapping")
    modules = {name: hidden or m._compiled_call_impl is not None for name, m, hidden in walk(model)}
    if any(modules.values()):
        raise RuntimeError("the model is compiled, which hides its layers: start it before torch.compile")
    specs = by_name(feature_groups)
    if unknown := [name for name in specs if name not in modules]:
        raise KeyError(
            f"feature_groups names {unknown[0]!r}; {nearest(unknown[0], [n for n in modules if n])}"
        )
    check_regular_layers(group, specs)
    return specs


def _advice(model: nn.Module, x: Tensor) -> str:
    """What the doctor says to a model that is not equivariant."""
    try:
        diagnosis = doctor(model, x.shape[1:])
    except ValueError:
        return ""
    if not diagnosis.findings:
        return (
            ": only the weights of Conv2d, ConvTranspose2d, Linear and layers with a number for each channel "
            "are changed, and linear layers on vectors return single numbers unless feature_groups names "
            "them; write it with these, or give the part of the model before it"
        )
    first = diagnosis.findings[0]
    sizes = ", ".join(map(str, diagnosis.exact_sizes))
    near = f"; exact input sizes: {sizes}" if sizes else ""
    return f"; doctor: {first.module or ROOT}, {first.op}: {first.reason}; remedy: {first.remedy}{near}"
