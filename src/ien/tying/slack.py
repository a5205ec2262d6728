"""Slack: a tied weight plus a free remainder, for data that break the symmetry.

    W = P W + r,    with r - P r in place of r, so that r is orthogonal to the tied weights.

The task's loss is given a penalty that keeps r small, Σ over layers of ‖r‖² / (s ‖P W‖²), with the
slack s of each layer. ``listening.py`` decides when an automatic remainder may begin to learn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Real
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .._text import nearest, short_repr
from .parametrized import OnDevice, parametrizations_of
from .projection import VECTOR, Tie

__all__ = ["RATE", "Remainder", "Slack", "add_remainders", "relative_size", "slack_by_name", "slack_of"]

Slack = float | Literal["auto"]
"""How far weights may leave the symmetry: 0 is not at all."""
RATE = 0.1
"""The learning rate of remainders, as a share of that of other weights."""
MIN_SIZE = 1e-2
"""What ‖P W‖² counts as at least, for each output channel: a weight may be 0 at first."""


class Remainder(OnDevice):
    """The parametrization that adds a remainder to what one before it computes."""

    closed: Tensor
    """1 as long as it counts as 0, whatever an optimizer does to it."""

    def __init__(self, tie: Tie, like: Tensor, slack: float, closed: bool = False) -> None:
        """Start with a remainder of 0.

        Args:
            tie: How the weight is tied.
            like: A weight of its shape, device and dtype.
            slack: How large the remainder may become: its penalty is divided by this.
            closed: Whether it stays 0 until :meth:`open` is called.
        """
        # what only smoothness or resampling rules out breaks no symmetry: it is no part of r
        super().__init__(tie.exactly(), like)
        self.slack = slack
        self.free = nn.Parameter(torch.zeros_like(like))
        """r, before its tied part is taken away."""
        self.register_buffer("closed", torch.full_like(like, float(closed)).flatten()[:1])
        self.read: tuple[Tensor, int, bool] | None = None
        """``closed`` when it was last read, its version, and whether it was 1."""
        self.kept: tuple[Tensor, int] | None = None
        """r of the last forward pass, and the version of ``free`` that it was computed from."""

    def value(self) -> Tensor:
        """Return r - P r, or 0 while it is closed."""
        return (1 - self.closed) * self._free_part()

    def open(self) -> None:
        """Let it learn, from 0 on."""
        with torch.no_grad():
            self.free.zero_()
            self.closed.zero_()

    def forward(self, tied: Tensor) -> Tensor:
        """Return W = P W + r; a closed r costs nothing, and is given the gradient in W."""
        if torch.compiler.is_compiling() or not _is_readable(self.closed):
            return tied + self.value() + self.closed * (self.free - self.free.detach())
        if self.is_closed():
            return _Overheard.apply(tied, self.free)
        r = self._free_part()
        if self.training and r.requires_grad and _is_readable(r):
            self.kept = r.detach(), self.free._version
        return tied + r

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Return the tied weight; the remainder stays what it is."""
        return weight - self.value()

    def penalty(self, size: Tensor) -> Tensor:
        """Return ‖r‖² / size.

        Args:
            size: ‖P W‖².
        """
        kept, self.kept = self.kept, None
        if kept is not None and kept[1] == self.free._version:
            r = kept[0]
        else:  # no forward pass since the optimizer's step
            r = self.value().detach()
        return _SquaredNorm.apply(self.free, r) / size

    def extra_repr(self) -> str:
        return f"slack={self.slack:g}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> OnDevice:
        """Forget the remainder that was kept: it is somewhere else."""
        self.kept = None
        return super()._apply(fn, recurse)

    def _free_part(self) -> Tensor:
        return self.free - self.tie.project(self.free, self.parts_for(self.free))

    def is_closed(self) -> bool:
        """Read ``closed`` only if it has changed: on a GPU this would wait for all work there."""
        if self.closed.is_inference():  # it does not count its changes
            return bool(self.closed)
        if self.read is None or self.read[0] is not self.closed or self.read[1] != self.closed._version:
            self.read = (self.closed, self.closed._version, bool(self.closed))
        return self.read[2]


def _is_readable(tensor: Tensor) -> bool:
    """Return whether it holds numbers: not while somebody asks only for shapes, or maps a model."""
    return type(tensor) is Tensor and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


class _Overheard(torch.autograd.Function):
    """A weight as it is, whose gradient a closed remainder is given too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tied: Tensor, free: Tensor) -> Tensor:
        return tied.view_as(tied)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad


class _SquaredNorm(torch.autograd.Function):
    """‖r‖² of a remainder that is known already; r is orthogonal, so its gradient is 2 r."""

    @staticmethod
    def forward(ctx: Any, free: Tensor, r: Tensor) -> Tensor:
        ctx.save_for_backward(r)
        return r.square().sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (r,) = ctx.saved_tensors
        return 2 * grad * r, None


def relative_size(parametrizations: parametrize.ParametrizationList) -> Tensor:
    """Return ‖r‖² / ‖P W‖² of a weight with slack; its gradient leaves P W as it is."""
    remainder: Any = parametrizations[-1]
    return remainder.penalty(_tied_size(parametrizations))


def slack_of(model: nn.Module) -> dict[str, float]:
    """Return ‖r‖ / ‖P W‖ of each layer that has a remainder r; empty for other models."""
    found = {}
    with torch.no_grad():
        for name, module in model.named_modules():
            for parametrizations in parametrizations_of(module).values():
                remainder = parametrizations[-1]
                if isinstance(remainder, Remainder):
                    square = remainder.value().square().sum() / _tied_size(parametrizations)
                    found[name] = math.sqrt(float(square))
    return found


def slack_by_name(model: nn.Module, slack: Slack | Mapping[str, Slack]) -> dict[str, Slack]:
    """Check slack, and return it by the name of a layer or module, with ``""`` for the rest."""
    if not isinstance(slack, Mapping):
        slack = {"": slack}
    names = [name for name, _ in model.named_modules()]
    for name, value in slack.items():
        if name not in names:
            raise KeyError(
                f"slack names {name!r}, which the model does not have; {nearest(str(name), names)}"
            )
        if not _is_slack(value):
            where = ""
            if name:
                where = f" of layer {name!r}"
            raise ValueError(
                f'slack{where} must be a number of 0 or more, or "auto"; got {short_repr(value)}'
            )
    numbers = [value for value in slack.values() if value not in ("auto", 0)]
    if numbers and "auto" in slack.values():
        raise ValueError(
            f'slack cannot be {numbers[0]} beside "auto", which listens while all weights are tied: use '
            f'"auto" or 0 there'
        )
    return {"": 0.0, **slack}


def _is_slack(value: object) -> bool:
    # a bool is a number to Python, but nobody means it
    if isinstance(value, Real) and not isinstance(value, bool):
        return 0 <= float(value) < math.inf
    return isinstance(value, str) and value == "auto"


def add_remainders(
    model: nn.Module, tensors: Sequence[tuple[nn.Module, str, Tie]], slacks: Mapping[str, Slack]
) -> tuple[dict[str, parametrize.ParametrizationList], list[str]]:
    """Give weights with slack a remainder; return these by layer, and the layers that listen.

    Only weights that mix channels have one: no biases, norms, vectors or frozen weights.
    """
    names = {id(module): name for name, module in model.named_modules()}
    remainders: dict[int, Remainder] = {}  # by the id of a tensor that modules may share
    found: dict[str, parametrize.ParametrizationList] = {}
    with_slack = []  # layers, also those that share a remainder
    listening = []
    for module, key, tie in tensors:
        name = names[id(module)]
        slack = _nearest(name, slacks)
        mixes = isinstance(module, nn.Conv2d | nn.ConvTranspose2d | nn.Linear) and key == "weight"
        if slack == 0 or not mixes or VECTOR in dict(tie.after):
            continue
        values: Tensor = getattr(module, key)
        parametrizations: Any = module.get_submodule(f"parametrizations.{key}")
        original = next(parametrizations.parameters())
        if not original.requires_grad or tie.exactly().leaves_free(values):
            continue
        shared = id(original)
        is_first = shared not in remainders
        if is_first:
            number = 1.0 if slack == "auto" else float(slack)
            remainders[shared] = Remainder(tie, values, number, closed=slack == "auto")
            found[name] = parametrizations
        parametrize.register_parametrization(module, key, remainders[shared], unsafe=True)
        with_slack.append(name)
        if is_first and slack == "auto":
            listening.append(name)
    for entry, slack in slacks.items():
        if slack != 0 and entry and not _is_in(entry, with_slack):
            raise ValueError(
                f"slack of {entry!r} has no effect: name a convolution or linear layer that learns and whose "
                f"weight the group changes, or a module around it"
            )
    if any(slacks.values()) and not found:
        raise ValueError(
            "slack has no effect: no layer with slack has a weight that learns and that the group changes"
        )
    return found, listening


def _is_in(module: str, layers: Collection[str]) -> bool:
    """Return whether one of the layers is this module, or in it."""
    return any(layer == module or layer.startswith(f"{module}.") for layer in layers)


def _nearest(name: str, slacks: Mapping[str, Slack]) -> Slack:
    """Return the slack of a layer, or of the nearest named module around it."""
    while name not in slacks:
        name = name.rpartition(".")[0]
    return slacks[name]


@torch.no_grad()
def _tied_size(parametrizations: Any) -> Tensor:
    """Return ‖P W‖² of a weight without its remainder, the last of its parametrizations."""
    if parametrizations.is_tensor:
        originals = [parametrizations.original]
    else:  # those of a weight norm
        originals = [parametrizations.original0, parametrizations.original1]
    first, *others, _ = parametrizations
    training = first.training
    first.eval()  # a spectral norm would take one more step of its power iteration
    value = first(*originals)
    first.train(training)
    for each in others:
        value = each(value)
    return value.square().sum().clamp(min=MIN_SIZE * len(value))
