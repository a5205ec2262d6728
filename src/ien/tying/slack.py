"""Slack: a tied weight plus a free remainder, for data that break the symmetry.

    W = P W + r,    with r - P r in place of r, so that r is orthogonal to the tied weights.

The task's loss is given a penalty that keeps r small, Σ over layers of ‖r‖² / (s ‖P W‖²), with the
slack s of each layer. ``listening.py`` decides when an automatic remainder may begin to learn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .._text import nearest
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
    """1 as long as it counts as 0, whatever an optimizer does to it; its gradient is the same."""

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

    def value(self) -> Tensor:
        """Return r - P r, or 0 with the same gradient while it is closed."""
        r = self.free - self.tie.project(self.free, self.parts_for(self.free))
        return r - self.closed * r.detach()

    def open(self) -> None:
        """Let it learn, from 0 on."""
        with torch.no_grad():
            self.free.zero_()
            self.closed.zero_()

    def forward(self, tied: Tensor) -> Tensor:
        """Return W = P W + r."""
        return tied + self.value()

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Return the tied weight; the remainder stays what it is."""
        return weight - self.value()

    def extra_repr(self) -> str:
        return f"slack={self.slack:g}"


def relative_size(parametrizations: parametrize.ParametrizationList) -> Tensor:
    """Return ‖r‖² / ‖P W‖² of a weight with slack; its gradient leaves P W as it is."""
    remainder: Any = parametrizations[-1]
    with torch.no_grad():
        tied = _tied_part(parametrizations)
        size = tied.square().sum().clamp(min=MIN_SIZE * len(tied))
    return remainder.value().square().sum() / size


def slack_of(model: nn.Module) -> dict[str, float]:
    """Return ‖r‖ / ‖P W‖ of each layer that has a remainder r; empty for other models."""
    found = {}
    with torch.no_grad():
        for name, module in model.named_modules():
            for parametrizations in parametrizations_of(module).values():
                remainder = parametrizations[-1]
                if isinstance(remainder, Remainder):
                    found[name] = math.sqrt(float(relative_size(parametrizations)))
    return found


def slack_by_name(model: nn.Module, slack: Slack | Mapping[str, Slack]) -> dict[str, Slack]:
    """Check slack, and return it by the name of a layer or module, with ``""`` for the rest."""
    if not isinstance(slack, Mapping):
        slack = {"": slack}
    names = [name for name, _ in model.named_modules()]
    for name, value in slack.items():
        if name not in names:
            raise KeyError(f"slack names {name!r}, which the model does not have; {nearest(name, names)}")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value != "auto" and not (is_number and 0 <= value < math.inf):
            raise ValueError(f'slack must be a number of 0 or more, or "auto"; got {value!r}')
    numbers = [value for value in slack.values() if value not in ("auto", 0)]
    if numbers and "auto" in slack.values():
        raise ValueError(
            f'slack cannot be {numbers[0]} beside "auto", which listens while all weights are tied: use '
            f'"auto" or 0 there'
        )
    return {"": 0.0, **slack}


def add_remainders(
    model: nn.Module, tensors: Sequence[tuple[nn.Module, str, Tie]], slacks: Mapping[str, Slack]
) -> tuple[dict[str, parametrize.ParametrizationList], list[str]]:
    """Give weights with slack a remainder; return these by layer, and the layers that listen.

    Only weights that mix channels have one: no biases, norms, vectors or frozen weights.
    """
    names = {id(module): name for name, module in model.named_modules()}
    remainders: dict[int, Remainder] = {}  # by the id of a tensor that modules may share
    found: dict[str, parametrize.ParametrizationList] = {}
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
        if is_first and slack == "auto":
            listening.append(name)
    if any(slacks.values()) and not found:
        raise ValueError("slack has no effect: no layer with slack has a weight that the group changes")
    return found, listening


def _nearest(name: str, slacks: Mapping[str, Slack]) -> Slack:
    """Return the slack of a layer, or of the nearest named module around it."""
    while name not in slacks:
        name = name.rpartition(".")[0]
    return slacks[name]


def _tied_part(parametrizations: Any) -> Tensor:
    """Return a tied weight as it is without its remainder, the last of its parametrizations."""
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
    return value
