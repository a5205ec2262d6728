"""Tie: make_equivariant, make_plain and plain_copy, by torch's parametrizations."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .._text import type_name
from ..groups.group import Group
from ..loss.feature_groups import Spec
from .parametrized import (
    Projected,
    TiedNorm,
    TiedWeight,
    forget_gradients,
    parametrizations_of,
    restored_on_error,
    tie_norm,
    untie_norm,
)
from .parts import forget_parts
from .plan import make_plan
from .planned import TiedTensor
from .slack import Remainder, Slack, add_remainders, slack_by_name
from .tied import Tied, count_parameters

__all__ = ["make_equivariant", "make_plain", "plain_copy"]

M = TypeVar("M", bound=nn.Module)
Weights = Literal["random", "project"]
Kernels = Literal["smooth", "free"]
Outputs = Literal["scalar", "vector"]


def make_equivariant(
    model: nn.Module,
    group: Group | str,
    images: Tensor,
    feature_groups: Spec | Mapping[str, Spec] = "auto",
    weights: Weights = "random",
    kernels: Kernels = "smooth",
    slack: Slack | Mapping[str, Slack] = 0.0,
    outputs: Outputs = "scalar",
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Tied:
    """Make ``model`` equivariant, in place, and let it stay so however it is trained.

    Its weights become functions of fewer numbers (torch parametrizations): the kernels of a feature
    group are rotated versions of one another, and numbers per channel are equal within it. Quarter
    turns and flips are exact, other rotations as good as the pixels allow. Train it with any loop
    and any optimizer, then call :func:`make_plain`.

    Without slack it is not for data whose orientation matters, such as 6 and 9: a tied model cannot
    learn to break a symmetry. With ``slack="auto"`` it can, as far as the data ask for it.

    Args:
        model: A module of Conv2d, ConvTranspose2d, Linear and layers with numbers per channel.
            Frozen layers are tied too.
        group: Rotations and flips, such as ``"rot4"`` or ``"rot4xflip"``.
        images: A few images (B, C, H, W), as the model will see them, of a size at which the grid
            is exact: 3×3 convolutions of stride 2 need odd sizes, 2×2 pools even ones;
            :func:`doctor` lists them. For ``weights="project"`` pass a hundred or more.
        feature_groups: ``"auto"`` is the number of elements, and single channels where they do not
            divide or a grouped convolution or norm cuts through. Or a size or mix for all, or by
            the name of a layer or a module around it, with ``""`` for the rest. What the model
            returns is never a feature group unless its layer is named.
        weights: ``"random"`` treats them as a random draw, and keeps the variance of each layer's
            output; ``"project"`` takes the nearest equivariant weights of a trained model.
        kernels: ``"smooth"`` makes them of patterns that rotate by any angle, as in steerable CNNs,
            which learn more from images in all orientations; ``"free"`` leaves each pixel to
            itself. Where an element resamples, they are always smooth.
        slack: How far weights may leave the symmetry, if the data want it: 0 is not at all, 1 a
            good start. Add ``tied.penalty()`` to the loss and give the optimizer
            ``tied.parameter_groups(lr)``. ``"auto"`` stays tied until the images say that they
            prefer an orientation: call ``tied.listen(epoch)`` between backward and step. Or by the
            name of a layer or a module around it, with ``""`` for the rest, which is 0 if it is
            not named.
        outputs: ``"scalar"`` if each number or map that the model returns stays itself;
            ``"vector"`` for pairs (dx, dy) that rotate with the image: dx points right, dy down.
        args: What the model is called with after the images. Tensors whose first dim is the number
            of images are repeated for each element.
        kwargs: What else it is called with, treated in the same way.

    Returns:
        What became of each layer; ``print`` it for a table.

    Raises:
        ValueError: If the model cannot be equivariant; it names the layer, and nothing has changed.
        TypeError: If ``model``, ``group`` or ``images`` is something else altogether.

    >>> net = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 2, 3))
    >>> images = torch.rand(4, 1, 9, 9)
    >>> tied = make_equivariant(net, "rot4", images)
    >>> rotated = net.eval()(images.rot90(1, (-2, -1)))
    >>> torch.allclose(rotated, net(images).rot90(1, (-2, -1)), atol=1e-5)
    True
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"make_equivariant needs a torch.nn.Module; got {type_name(model)}")
    if _is_tied(model):
        raise ValueError("the model is tied already: call ien.make_plain(model) first")
    if kernels not in get_args(Kernels):
        raise ValueError(f'kernels must be "smooth" or "free"; got {kernels!r}')
    slacks = slack_by_name(model, slack)
    smooth = kernels == "smooth"
    with restored_on_error(model):
        plan = make_plan(model, group, images, feature_groups, weights, smooth, outputs, args, kwargs)
        plain_count = count_parameters(model)  # a lazy layer has its parameters now
        norms = {id(module) for module, _ in plan.norms}
        tensors = [tensor for tensor in plan.ties if id(tensor.module) not in norms]
        with torch.inference_mode(False), torch.no_grad():
            _tie_tensors(tensors)
            for module, blocks in plan.norms:
                tie_norm(module, blocks)
            with_slack, listening = add_remainders(model, tensors, slacks)
    return Tied(model, plan, plain_count, with_slack, listening)


def make_plain(model: nn.Module) -> nn.Module:
    """Give a tied model ordinary weights, in place: the modules and state_dict keys it came with.

    Outputs stay equal to the bit, and nothing keeps the weights tied from then on. A weight norm or
    spectral norm becomes the weight that it computed.

    Not for a model that goes on training: use :func:`plain_copy` to save or export it meanwhile.

    Args:
        model: A model that :func:`make_equivariant` changed; any other is left as it is.

    Returns:
        The same model.

    >>> net = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 2, 3))
    >>> tied = make_equivariant(net, "rot4", torch.rand(2, 1, 9, 9))
    >>> list(make_plain(net).state_dict())
    ['0.weight', '0.bias', '2.weight', '2.bias']
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"make_plain needs a torch.nn.Module; got {type_name(model)}")
    # in inference mode its weights could not be trained again, and without gradients a weight norm
    # would become a buffer
    with torch.inference_mode(False), torch.enable_grad():
        _remove_ties(model)
    return model


def plain_copy(model: M) -> M:
    """Return a copy of a tied model with ordinary weights, and leave the model as it is.

    For checkpoints, exports and averages of weights while training goes on.

    Args:
        model: A model that :func:`make_equivariant` changed; any other is only copied.

    >>> net = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 2, 3))
    >>> tied = make_equivariant(net, "rot4", torch.rand(2, 1, 9, 9))
    >>> list(plain_copy(net).state_dict()), net[0].parametrizations.weight.original.shape
    (['0.weight', '0.bias', '2.weight', '2.bias'], torch.Size([8, 1, 3, 3]))
    """
    with torch.inference_mode(False):
        copied = copy.deepcopy(model)
    make_plain(copied)
    return copied


def _remove_ties(model: nn.Module) -> None:
    """Give all tied tensors and norms of a model ordinary values."""
    forget_parts(model)
    tied = list(_tied_tensors(model))
    seen: set[int] = set()
    sharing: list[tuple[nn.Module, str, nn.Parameter]] = []
    for module, key, parametrizations in tied:
        if not parametrizations.is_tensor:
            continue  # a weight norm has several originals
        original = parametrizations.original
        if isinstance(original, nn.Parameter) and id(original) in seen:  # it shares that of a module before
            sharing.append((module, key, original))
            parametrizations.original = nn.Parameter(original.detach().clone(), original.requires_grad)
        seen.add(id(original))
    for module, key, parametrizations in tied:
        _give_own_class(module)
        if parametrizations.is_tensor:
            forget_gradients(parametrizations.original)
        parametrize.remove_parametrizations(module, key)
        first = parametrizations[0]
        if isinstance(first, TiedWeight):
            _reorder(module._parameters, first.order)
    for module, key, original in sharing:
        module._parameters[key] = original
    for module in model.modules():
        if isinstance(module, TiedNorm):
            untie_norm(module)


def _tied_tensors(model: nn.Module) -> Iterator[tuple[nn.Module, str, parametrize.ParametrizationList]]:
    """Yield each tensor that is tied: its module, its name and its parametrizations."""
    for module in model.modules():
        for key, parametrizations in parametrizations_of(module).items():
            if isinstance(parametrizations[-1], TiedWeight | Projected | Remainder):
                yield module, key, parametrizations


def _is_tied(model: nn.Module) -> bool:
    tied_norm = any(isinstance(module, TiedNorm) for module in model.modules())
    return tied_norm or any(_tied_tensors(model))


def _reorder(parameters: dict[str, nn.Parameter | None], order: Sequence[str]) -> None:
    """Put parameters in this order, and those that it does not name behind them."""
    before = dict(parameters)
    parameters.clear()
    for name in order:
        if name in before:
            parameters[name] = before.pop(name)
    parameters.update(before)


def _give_own_class(module: nn.Module) -> None:
    """Give a module a class of its own: copies share the one that parametrize made."""
    shared = type(module)
    own = dict(vars(shared))
    own.pop("__dict__", None)
    own.pop("__weakref__", None)
    module.__class__ = type(shared.__name__, shared.__bases__, own)


def _tie_tensors(tensors: Sequence[TiedTensor]) -> None:
    """Register a parametrization for each tensor; one that modules share keeps one original."""
    plain_values: dict[int, Tensor] = {}  # by the id of a parameter
    orders: dict[int, tuple[str, ...]] = {}  # by the id of a module
    for module, key, tie in tensors:
        order = orders.setdefault(id(module), tuple(module._parameters))
        parameter = module._parameters.get(key)
        if parameter is None:
            continue  # a buffer, which nothing trains, or computed by another parametrization
        values = plain_values.setdefault(id(parameter), parameter.detach().clone())
        is_first = values.shape == parameter.shape
        if not is_first:  # registering it for the first module has replaced its values by numbers
            module._parameters[key] = nn.Parameter(values, parameter.requires_grad)
        if parametrize.is_parametrized(module):
            _give_own_class(module)  # a copy of the model would see the new property too
        forget_gradients(parameter)
        # unsafe: it need not be computed only to compare its shape
        parametrize.register_parametrization(module, key, TiedWeight(tie, values, order), unsafe=True)
        if not is_first:
            parametrizations_of(module)[key].original = parameter
        tied_class: Any = type(module)
        tied_class.__getstate__ = _refuse_pickling
        tied_class._load_from_state_dict = _refuse_plain_weights


def _refuse_pickling(module: nn.Module) -> Any:
    raise RuntimeError(
        "a tied model cannot be pickled whole: save model.state_dict(), or ien.plain_copy(model) instead"
    )


def _refuse_plain_weights(module: nn.Module, state_dict: Any, prefix: str, *others: Any) -> None:
    """Load a layer, and add to torch's list of errors if it is given a plain weight."""
    errors: list[str] = others[-1]
    for key in parametrizations_of(module):
        if prefix + key in state_dict and not any("make_equivariant" in error for error in errors):
            errors.append(
                f"{prefix + key!r} belongs to a plain model: load it before you call make_equivariant(…, "
                f'weights="project"), or call make_plain(model) first'
            )
    plain_class: Any = type(module).__bases__[0]
    plain_class._load_from_state_dict(module, state_dict, prefix, *others)
