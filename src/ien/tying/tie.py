"""Tie: make_equivariant, make_plain and plain_copy, by torch's parametrizations."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .._text import MODEL_ITSELF, columns, nearest, number, short_count
from ..groups.group import Group
from ..loss.feature_groups import Spec
from .parametrized import (
    Projected,
    TiedNorm,
    TiedWeight,
    forget_gradients,
    restored_on_error,
    tie_norm,
    untie_norm,
)
from .plan import Plan, TiedLayer, TiedTensor, errors_of, make_plan
from .projection import VECTOR
from .slack import RATE, Evidence, Listener, Remainder

__all__ = ["Tied", "make_equivariant", "make_plain", "plain_copy", "slack_of"]

M = TypeVar("M", bound=nn.Module)
Weights = Literal["random", "project"]
Kernels = Literal["smooth", "free"]
Outputs = Literal["scalar", "vector"]
Slack = float | Literal["auto"]
"""How far weights may leave the symmetry: 0 is not at all."""


class Tied:
    """A tied model: what became of each layer, in the order they run; prints as a table.

    >>> net = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 2, 3))
    >>> tied = make_equivariant(net, "rot4", torch.rand(2, 1, 9, 9))
    >>> print(str(tied).splitlines()[0])
    equivariant to rot4: stores 226 of 898 numbers (25%)
    >>> max(tied.errors.values()) < 1e-10
    True
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        plain_count: int,
        slack: Mapping[str, parametrize.ParametrizationList] | None = None,
        listening: Collection[str] = (),
    ) -> None:
        """Describe a model that was just tied.

        Args:
            model: The model.
            plan: What was tied in it.
            plain_count: How many parameters it had before.
            slack: The parametrizations of weights with slack, by the name of their layer.
            listening: The layers among these whose remainder may learn once the data ask for it.
        """
        self.model = model
        self.plan = plan
        self.plain_count = plain_count
        self._with_slack = dict(slack or {})
        self._versions: dict[str, int] = {}
        self._listener = None
        if listening:
            self._listener = Listener({name: self.remainders[name] for name in listening})

    @property
    def layers(self) -> dict[str, TiedLayer]:
        """What became of each layer: its feature groups, how far its weights moved, its errors."""
        return self.plan.layers

    @property
    def errors(self) -> dict[str, float]:
        """The relative error of what the model returns under each element, by its label."""
        return self.plan.errors

    @property
    def share(self) -> float:
        """The numbers that tied weights are made of, as a share of the plain model's parameters."""
        return self._stored / self.plain_count

    @property
    def _stored(self) -> int:
        """How many numbers are stored and trained, besides the remainders."""
        remainders = sum(remainder.free.numel() for remainder in self.remainders.values())
        return _count(self.model) - remainders

    def penalty(self) -> Tensor:
        """Return what to add to the loss: Σ over layers of ‖r‖² / (s ‖P W‖²), with slack s.

        It is 0 for a model without slack, and with ``slack="auto"`` until the remainders learn.
        """
        penalty = next(self.model.parameters()).new_zeros(())
        for name, remainder in self.remainders.items():
            if self._listener is not None and name in self._listener.remainders:
                if not self._listener.opened:
                    self._check_closed(name, remainder)
                    continue
            with torch.no_grad():
                size = _tied_part(self._with_slack[name]).square().sum()
            penalty = penalty + remainder.value().square().sum() / (remainder.slack * size)
        return penalty

    def listen(self, epoch: int) -> None:
        """Let the remainders learn as soon as images say that they break the symmetry.

        For ``slack="auto"``: call it in every step, between ``loss.backward()`` and
        ``optimizer.step()``. Under a gradient scaler, unscale the gradients first.

        Args:
            epoch: Its number. Within an epoch no image may be seen twice.
        """
        listener = self._listener
        if listener is None:
            raise ValueError('there is nothing to listen to: pass slack="auto" to make_equivariant')
        if listener.opened:
            return
        gradients = self.gradients()
        listener.hear({name: gradients[name] for name in listener.remainders}, epoch)
        if not listener.opened:
            for remainder in listener.remainders.values():
                remainder.free.grad = None  # the optimizer leaves it as it is

    @property
    def listens(self) -> bool:
        """Whether some remainder waits for the data, as with ``slack="auto"``."""
        return self._listener is not None

    @property
    def remainders(self) -> dict[str, Remainder]:
        """The remainders of weights with slack, by the name of their layer."""
        found = {}
        for name, parametrizations in self._with_slack.items():
            remainder: Any = parametrizations[-1]
            found[name] = remainder
        return found

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients in the remainders after ``loss.backward()``, by layer."""
        found = {}
        for name, remainder in self.remainders.items():
            if remainder.free.grad is None:
                raise RuntimeError(
                    f"layer {name!r} has no gradient: call tied.listen(epoch) after loss.backward() and "
                    f"before optimizer.zero_grad()"
                )
            found[name] = remainder.free.grad
        return found

    def evidence(self) -> dict[str, Evidence]:
        """Return what was heard in this epoch: of each layer by name, and of all of them as ``""``.

        After the remainders began to learn, it is what was heard until then.
        """
        if self._listener is None:
            return {}
        names = ["", *self._listener.remainders]
        return {name: self._listener.evidence(name) for name in names}

    def slack(self) -> dict[str, float]:
        """Return ‖r‖ / ‖P W‖ of each layer: where do these data break the symmetry?"""
        return dict.fromkeys(self.layers, 0.0) | slack_of(self.model)

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Return parameter groups for an optimizer: remainders learn at a tenth of the rate.

        Args:
            lr: The learning rate of all other parameters.
        """
        remainders = [remainder.free for remainder in self.remainders.values()]
        slow = {id(parameter) for parameter in remainders}
        others = [parameter for parameter in self.model.parameters() if id(parameter) not in slow]
        groups: list[dict[str, Any]] = [{"params": others, "lr": lr}]
        if remainders:
            groups.append({"params": remainders, "lr": RATE * lr, "weight_decay": 0.0})
        return groups

    def state_dict(self) -> dict[str, Any]:
        """Return what ``slack="auto"`` has heard, to be saved beside the model's own state."""
        if self._listener is None:
            return {}
        return self._listener.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on listening from what :meth:`state_dict` returned."""
        if self._listener is not None:
            self._listener.load_state_dict(state)

    def _check_closed(self, name: str, remainder: Remainder) -> None:
        """Raise an error if an optimizer has changed a remainder that must not learn yet."""
        if remainder.free._version != self._versions.get(name) and remainder.free.any():
            raise RuntimeError(
                f"the remainder of layer {name!r} has changed before the data asked for it: call "
                f"tied.listen(epoch) between loss.backward() and optimizer.step(), and to resume, load "
                f"tied.state_dict() beside the model's"
            )
        self._versions[name] = remainder.free._version

    def check(
        self, images: Tensor, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> dict[str, float]:
        """Run the model again, and return its relative error under each element.

        Use it after a change to the model, such as a new head, or at another size of images.

        Args:
            images: Images (B, C, H, W).
            args: What the model is called with after the images.
            kwargs: What else it is called with.

        Raises:
            ValueError: If the model is no longer equivariant; it names the layer.
        """
        modules = set(self.model.modules())
        for norm, _ in self.plan.norms:
            if norm not in modules or not isinstance(norm, TiedNorm):
                called = type(norm).__name__.removeprefix("Tied")
                raise ValueError(
                    f"a {called} is no longer tied: it was replaced or converted after make_equivariant"
                )
        errors, problem = errors_of(self.model, self.plan, images, args, kwargs)
        if problem:
            raise ValueError(problem)
        return errors

    def __repr__(self) -> str:
        title = (
            f"equivariant to {self.plan.group}: stores {short_count(self._stored)} of "
            f"{short_count(self.plain_count)} numbers ({self.share:.0%})"
        )
        notes = []
        if self._with_slack:
            notes.append("slack: ‖r‖ / ‖P W‖, how far a weight has left the symmetry")
        if self.plan.unused:
            notes.append(f"did not run, and were not changed: {', '.join(self.plan.unused)}")
        if self.plan.untied:
            notes.append(f"frozen, and not tied: keep them frozen: {', '.join(self.plan.untied)}")
        return "\n".join([title, *columns(self._rows()), *notes])

    def _rows(self) -> list[list[str]]:
        """Return the table: a header, and a row for each layer."""
        header = ["layer", "in", "out", "moved", "error"]
        resamples = any(layer.between is not None for layer in self.layers.values())
        if resamples:
            header.append("between")
        if self._with_slack:
            header.append("slack")
            slack = self.slack()
        rows = [header]
        for name, layer in self.layers.items():
            row = [name or MODEL_ITSELF, layer.before, layer.after]
            row += [number(layer.distance), number(layer.exact)]
            if resamples:
                row.append(number(layer.between))
            if self._with_slack:
                row.append(number(slack[name]))
            rows.append(row)
        return rows


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
            name of a layer or a module around it, with ``""`` for the rest.
        outputs: ``"scalar"`` if each number or map that the model returns stays itself;
            ``"vector"`` for pairs (dx, dy) that rotate with the image: dx points right, dy down.
        args: What the model is called with after the images. Tensors whose first dim is the number
            of images are repeated for each element.
        kwargs: What else it is called with, treated in the same way.

    Returns:
        What became of each layer; ``print`` it for a table.

    Raises:
        ValueError: If the model cannot be equivariant; it names the layer, and nothing has changed.

    >>> net = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 2, 3))
    >>> images = torch.rand(4, 1, 9, 9)
    >>> tied = make_equivariant(net, "rot4", images)
    >>> rotated = net.eval()(images.rot90(1, (-2, -1)))
    >>> torch.allclose(rotated, net(images).rot90(1, (-2, -1)), atol=1e-5)
    True
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"make_equivariant needs a torch.nn.Module; got a {type(model).__name__}")
    if _is_tied(model):
        raise ValueError("the model is tied already: call ien.make_plain(model) first")
    if kernels not in get_args(Kernels):
        raise ValueError(f'kernels must be "smooth" or "free"; got {kernels!r}')
    slacks = _slack_by_name(model, slack)
    smooth = kernels == "smooth"
    with restored_on_error(model):
        plan = make_plan(model, group, images, feature_groups, weights, smooth, outputs, args, kwargs)
        plain_count = _count(model)  # a lazy layer has its parameters now
        norms = {id(module) for module, _ in plan.norms}
        tensors = [tensor for tensor in plan.ties if id(tensor.module) not in norms]
        with torch.inference_mode(False), torch.no_grad():
            _tie_tensors(tensors)
            for module, blocks in plan.norms:
                tie_norm(module, blocks)
            with_slack, listening = _add_remainders(model, tensors, slacks)
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
        for key, parametrizations in _parametrizations_of(module).items():
            if isinstance(parametrizations[-1], TiedWeight | Projected | Remainder):
                yield module, key, parametrizations


def _is_tied(model: nn.Module) -> bool:
    tied_norm = any(isinstance(module, TiedNorm) for module in model.modules())
    return tied_norm or any(_tied_tensors(model))


def _parametrizations_of(module: nn.Module) -> dict[str, Any]:
    """Return the parametrizations of a module's tensors by name."""
    if not parametrize.is_parametrized(module):
        return {}
    found: Any = module.parametrizations
    return dict(found.items())


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
            _parametrizations_of(module)[key].original = parameter
        tied_class: Any = type(module)
        tied_class.__getstate__ = _refuse_pickling
        tied_class._load_from_state_dict = _refuse_plain_weights


def _slack_by_name(model: nn.Module, slack: Slack | Mapping[str, Slack]) -> dict[str, Slack]:
    """Return the slack of layers and modules by name, with ``""`` for the rest."""
    if not isinstance(slack, Mapping):
        slack = {"": slack}
    names = [name for name, _ in model.named_modules()]
    for name, value in slack.items():
        if name not in names:
            raise KeyError(f"slack names {name!r}, which the model does not have; {nearest(name, names)}")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value != "auto" and not (is_number and 0 <= value < math.inf):
            raise ValueError(f'slack must be a number of 0 or more, or "auto"; got {value!r}')
    return {"": 0.0, **slack}


def _slack_of(name: str, slacks: Mapping[str, Slack]) -> Slack:
    """Return the slack of a layer, or of the nearest named module around it."""
    while name not in slacks:
        name = name.rpartition(".")[0]
    return slacks[name]


def _add_remainders(
    model: nn.Module, tensors: Sequence[TiedTensor], slacks: Mapping[str, Slack]
) -> tuple[dict[str, parametrize.ParametrizationList], list[str]]:
    """Give weights with slack a remainder; return these by layer, and the layers that listen.

    Vectors have none, nor have numbers per channel, nor weights that no element moves.
    """
    names = {id(module): name for name, module in model.named_modules()}
    remainders: dict[int, Remainder] = {}  # by the id of a tensor that modules may share
    found: dict[str, parametrize.ParametrizationList] = {}
    listening = []
    for module, key, tie in tensors:
        name = names[id(module)]
        slack = _slack_of(name, slacks)
        values: Tensor = getattr(module, key)
        is_vector = VECTOR in dict(tie.after)
        if slack == 0 or values.ndim < 2 or is_vector or tie.exactly().leaves_free(values):
            continue
        parametrizations: Any = module.get_submodule(f"parametrizations.{key}")
        shared = id(next(parametrizations.parameters()))
        is_first = shared not in remainders
        if is_first:
            number = 1.0 if slack == "auto" else float(slack)
            remainders[shared] = Remainder(tie, values, number)
            found[name] = parametrizations
        parametrize.register_parametrization(module, key, remainders[shared], unsafe=True)
        if is_first and slack == "auto":
            listening.append(name)
    return found, listening


def slack_of(model: nn.Module) -> dict[str, float]:
    """Return ‖r‖ / ‖P W‖ of each layer that has a remainder r; empty for other models."""
    found = {}
    with torch.no_grad():
        for name, module in model.named_modules():
            for parametrizations in _parametrizations_of(module).values():
                remainder = parametrizations[-1]
                if isinstance(remainder, Remainder):
                    found[name] = float(remainder.value().norm() / _tied_part(parametrizations).norm())
    return found


def _tied_part(parametrizations: Any) -> Tensor:
    """Return a tied weight as it is without its remainder, the last of its parametrizations."""
    originals = [parametrizations.original]
    if not parametrizations.is_tensor:  # those of a weight norm
        originals = [parametrizations.original0, parametrizations.original1]
    first, *others, _ = parametrizations
    value = first(*originals)
    for each in others:
        value = each(value)
    return value


def _refuse_pickling(module: nn.Module) -> Any:
    raise RuntimeError(
        "a tied model cannot be pickled whole: save model.state_dict(), or ien.plain_copy(model) instead"
    )


def _refuse_plain_weights(module: nn.Module, state_dict: Any, prefix: str, *others: Any) -> None:
    """Load a layer, and add to torch's list of errors if it is given a plain weight."""
    errors: list[str] = others[-1]
    for key in _parametrizations_of(module):
        if prefix + key in state_dict and not any("make_equivariant" in error for error in errors):
            errors.append(
                f"{prefix + key!r} belongs to a plain model: load it before you call make_equivariant(…, "
                f'weights="project"), or call make_plain(model) first'
            )
    plain_class: Any = type(module).__bases__[0]
    plain_class._load_from_state_dict(module, state_dict, prefix, *others)


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
