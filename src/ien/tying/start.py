"""Start: make an ordinary model equivariant before its first step of training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from .._text import MODEL_ITSELF, columns, nearest, number
from ..geometry.doctor import doctor
from ..groups.families import group as parse_group
from ..groups.group import Group
from ..groups.members import Blocks, permutes_members
from ..loss.feature_groups import FeatureGroups, Spec
from ..loss.layers import by_name, check_regular_layers
from ..loss.modules import WRAPPERS, hooked, walk
from ..measuring.inputs import device_of, eval_mode, try_model
from .detect import views_of
from .plan import Breaks, LayerStart, Mixing, Plan, TiedTensor, spreads_of
from .untied import untied_parameters

__all__ = ["KernelKind", "LayerStart", "Start", "Weights", "restored_on_error", "start_equivariant"]

Weights = Literal["random", "project"]
KernelKind = Literal["free", "smooth"]
Containers = nn.ParameterList | nn.ParameterDict
"""Modules that never run: other modules use their parameters."""


@dataclass(frozen=True)
class Start:
    """What :func:`start_equivariant` did to each layer, in the order they run; prints as a table.

    >>> net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    >>> start = start_equivariant(net, "rot4", 4, torch.rand(2, 1, 9, 9))
    >>> print(str(start).splitlines()[0])
    equivariant to rot4, weights random: relative errors of 2 layers
    >>> list(start.layers), start.unused, start.untied
    (['0', '2'], (), ())
    """

    group: str
    weights: str
    layers: dict[str, LayerStart]
    unused: tuple[str, ...] = ()
    """Modules with parameters that did not run, and were not changed."""
    ties: tuple[TiedTensor, ...] = field(default=(), repr=False, compare=False)
    """What is tied, for :func:`keep_equivariant`."""
    untied: tuple[str, ...] = ()
    """Parameters without a tie that would break equivariance as they train, such as positions."""
    norms: tuple[tuple[nn.Module, Blocks], ...] = field(default=(), repr=False, compare=False)
    model: nn.Module | None = field(default=None, repr=False, compare=False)
    class_scores: str = ""
    """How to get class scores, if the model returns feature groups that elements permute."""
    returned: dict[str, Blocks] = field(default_factory=dict, repr=False, compare=False)
    """The feature groups found in what each module returned, as (size, channels)."""

    @property
    def loose(self) -> tuple[str, ...]:
        """Another name of ``untied``."""
        return self.untied

    @property
    def exchanged(self) -> str:
        """Another name of ``class_scores``."""
        return self.class_scores

    def __str__(self) -> str:
        notes = []
        if self.class_scores:
            notes.append(
                f"returns feature groups, not class scores; to return class scores: {self.class_scores}"
            )
        if self.unused:
            notes.append(f"did not run, and were not changed: {', '.join(self.unused)}")
        if not self.layers:
            return "\n".join([f"already equivariant to {self.group}: no weight had to change", *notes])
        count = len(self.layers)
        title = f"equivariant to {self.group}, weights {self.weights}: relative errors of {count} layers"
        return "\n".join([title, *columns(self._rows()), *notes])

    def _rows(self) -> list[list[str]]:
        """Return the table: a header, and a row for each layer."""
        header = ["layer", "before", "after", "distance", "exact"]
        resamples = any(layer.between is not None for layer in self.layers.values())
        if resamples:
            header.append("between")
        rows = [header]
        for name, layer in self.layers.items():
            row = [name or MODEL_ITSELF, layer.before, layer.after]
            row += [number(layer.distance), number(layer.exact)]
            if resamples:
                row.append(number(layer.between))
            rows.append(row)
        return rows


def start_equivariant(
    model: nn.Module,
    group: Group | str,
    feature_groups: Spec | Mapping[str, Spec],
    input: Tensor,
    weights: Weights = "random",
    kernels: KernelKind = "free",
) -> Start:
    """Make ``model`` equivariant by changing its weights, as if made of group convolutions.

    The kernels of a feature group become rotated versions of one another, and numbers per channel
    (biases, norms) become equal within it; frozen layers are changed too. Quarter turns and flips
    are exact, other rotations as good as the pixels allow. Linear layers on pooled features become
    invariant; after a group pool they stay as they are. It remains an ordinary model: training
    moves it away again unless a loss or :func:`keep_equivariant` holds it.

    Not for data whose orientation matters, such as 6 and 9, and not if :func:`recommended` will do:
    it also keeps the model equivariant and returns what to train it with.

    Args:
        model: A module of Conv2d, ConvTranspose2d, Linear and layers with numbers per channel.
        group: Rotations and flips, such as ``"rot4"`` or ``"rot4xflip"``.
        feature_groups: One for all, or by the name of a layer or a module around it, ``""`` for
            the rest.
        input: Images (B, C, H, W) of a size at which the grid is exact, see :func:`doctor`: 3×3
            convolutions of stride 2 need odd sizes, 2×2 pools even ones. The model runs on them in
            eval mode, to detect feature groups and to check every layer.
        weights: ``"random"`` treats the weights as a random draw and keeps the variance of each
            layer's output, unless that takes a factor above four; ``"project"`` takes the nearest
            equivariant weights of a trained model, and estimates the running statistics of norms
            again from ``input`` under all elements: pass a hundred images or more.
        kernels: ``"smooth"`` makes them of patterns that rotate by any angle, as in steerable CNNs,
            which learn more from few images in all orientations; where an element resamples, they
            always are.

    Returns:
        What became of each layer.

    Raises:
        ValueError: If the model cannot be equivariant; it names the layer, and nothing has changed.

    >>> net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    >>> start = start_equivariant(net, "rot4", 4, torch.rand(2, 1, 9, 9))
    >>> start.layers["2"].before, start.layers["2"].exact < 1e-10
    ('4', True)
    """
    group = parse_group(group)
    specs = _checked(model, group, feature_groups, input, weights, kernels)
    modules = {name: module for name, module, _ in walk(model)}
    with torch.inference_mode(False), torch.no_grad(), eval_mode(model):
        x = input.to(device_of(model, input.device), copy=True)
        # a model that fails on these images should say so before anything is changed
        try_model(model, x[:2].clone())
        views = views_of(x, group)
        spreads = {}
        if weights == "random":
            spreads = spreads_of(model, modules, views)
        plan = Plan(group, specs, views, spreads, smooth=kernels == "smooth")
        try:
            with restored_on_error(model):
                # clones, because a model may write to its input
                with hooked(modules, before=plan.tie, after=plan.check):
                    model(views.clone())
                untied = untied_parameters(plan, model, modules, views)
        except Breaks as error:
            raise ValueError(f"{error}{_advice(model, x)}") from None

    mixing = {name for name, module in modules.items() if isinstance(module, Mixing)}
    if not plan.layers and not plan.ran & mixing:
        raise ValueError("the model ran no convolution on maps (B, C, H, W), so there is nothing to start")
    return Start(
        group=str(group),
        weights=weights,
        layers=plan.layers,
        unused=_unused(modules, plan),
        ties=tuple(plan.all_ties),
        norms=tuple(plan.norms.values()),
        untied=untied,
        model=model,
        class_scores=plan.class_scores,
        returned=plan.returned,
    )


@contextmanager
def restored_on_error(model: nn.Module) -> Iterator[None]:
    """Put all parameters and buffers of a model back if the block fails."""
    tensors = []
    for tensor in (*model.parameters(), *model.buffers()):
        if not nn.parameter.is_lazy(tensor):  # a lazy layer has no numbers before it runs
            tensors.append(tensor)
    before = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
    except BaseException:  # Ctrl-C as well
        with torch.no_grad():
            for tensor, old in zip(tensors, before, strict=True):
                tensor.copy_(old)
        raise


def _checked(
    model: object,
    group: Group,
    feature_groups: Spec | Mapping[str, Spec],
    input: object,
    weights: str,
    kernels: str,
) -> dict[str, FeatureGroups]:
    """Check all arguments, and return feature groups by the name of a layer or module."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"start_equivariant needs a torch.nn.Module; got a {type(model).__name__}")
    if weights not in get_args(Weights):
        raise ValueError(f'weights must be "random" or "project"; got {weights!r}')
    if kernels not in get_args(KernelKind):
        raise ValueError(f'kernels must be "free" or "smooth"; got {kernels!r}')
    _check_images(input)
    _check_group(group)
    _check_unwrapped(model)
    names = [name for name, _, _ in walk(model)]
    specs = by_name(feature_groups)
    for name in specs:
        if name not in names:
            known = [each for each in names if each]
            raise KeyError(
                f"feature_groups names {name!r}, which the model does not have; {nearest(name, known)}"
            )
    check_regular_layers(group, specs)
    return specs


def _check_images(input: object) -> None:
    if not isinstance(input, Tensor):
        given = f"a {type(input).__name__}"
    elif input.ndim != 4 or not input.is_floating_point() or not len(input):
        given = f"{input.dtype} {tuple(input.shape)}"
    elif not input.isfinite().all():
        raise ValueError("input holds NaN or infinite values: repair these images or leave them out")
    else:
        return
    raise ValueError(
        f"input must be a batch of images (B, C, H, W), such as torch.rand(4, 3, 33, 33); got {given}"
    )


def _check_group(group: Group) -> None:
    """Raise an error unless all are rotations and flips, one of them exact, to be checked with."""
    if permutes_members(group) and any(group.exact[1:]):
        return
    raise ValueError(
        f"start_equivariant needs rotations and flips, among them a half turn, a quarter turn or a flip, "
        f"such as rot4, rot8 or rot4xflip; got {group}"
    )


def _check_unwrapped(model: nn.Module) -> None:
    """Raise an error if the model is wrapped or compiled, which hides its layers."""
    for module in model.modules():
        if isinstance(module, WRAPPERS):
            raise RuntimeError(
                f"the model is wrapped in {type(module).__name__}: start it before wrapping it"
            )
    for _, module, hidden in walk(model):
        if hidden or module._compiled_call_impl is not None:
            raise RuntimeError("the model is compiled, which hides its layers: start it before torch.compile")


def _unused(modules: Mapping[str, nn.Module], plan: Plan) -> tuple[str, ...]:
    """Return the modules with parameters of their own that did not run."""
    unused = []
    for name, module in modules.items():
        if module._parameters and name not in plan.ran and not isinstance(module, Containers):
            unused.append(name)
    return tuple(unused)


def _advice(model: nn.Module, x: Tensor) -> str:
    """Return what the doctor says about a model that is not equivariant."""
    try:
        diagnosis = doctor(model, x.shape[1:])
    except ValueError:
        return ""
    if not diagnosis.findings:
        return (
            ": only the weights of Conv2d, ConvTranspose2d, Linear and layers with numbers per channel are "
            "tied, and linear layers on vectors return single numbers unless feature_groups names them; "
            "write it with these, or pass the part of the model before it"
        )
    first = diagnosis.findings[0]
    advice = f"; doctor: {first.module or MODEL_ITSELF}, {first.op}: {first.reason}; remedy: {first.remedy}"
    if diagnosis.exact_sizes:
        sizes = ", ".join(map(str, diagnosis.exact_sizes))
        advice += f"; exact input sizes: {sizes}"
    return advice
