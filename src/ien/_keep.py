"""Keep: from a network that starts equivariant to an optimizer whose steps leave it so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ._start import Start
from ._tied import Tie

__all__ = ["check_loose", "check_optimizer", "keep_equivariant"]


ELEMENTWISE = tuple(
    getattr(torch.optim, name)
    for name in "SGD Adam AdamW NAdam RAdam Adamax Adagrad Adadelta RMSprop Rprop ASGD".split()
)
"""Optimizers that do to each number what its own gradients say."""
KEPT = "_kept_equivariant"
"""Where an optimizer has what keeps its weights; a copy of it has neither this nor the hooks."""


def keep_equivariant(start: Start, optimizer: torch.optim.Optimizer) -> None:
    """Let every step of ``optimizer`` leave the model equivariant that :func:`start_equivariant` made so.

    The weights are trained as tied ones: before a step each gradient becomes its mean over the group, as that
    of one weight that stands in several places, and smooth where kernels are. After it the running statistics
    of norms are put back to the nearest equivariant ones, and so are the weights where they may have moved
    off: if kernels are smooth, in half precision, if the optimizer is fused, took steps before, or is not
    known to treat each number by itself, as SGD and Adam do; and once after others wrote them, as
    ``load_state_dict`` does. Where an element resamples, the optimizer steps on coefficients of patterns in
    place of kernels: its state is of these. The model and its loop stay as they are. It needs no loss, and no
    transformed copies of images. It cannot unlearn a symmetry that the data do not have, as it could with a
    loss. A copy of the model or of the optimizer is not kept, and of several calls for the same weights the
    last one counts.

    >>> net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    >>> images, optimizer = torch.rand(2, 1, 9, 9), torch.optim.Adam(net.parameters())
    >>> keep_equivariant(ien.start_equivariant(net, "rot4", 4, images), optimizer)
    >>> net(images).square().sum().backward()
    >>> optimizer.step()
    >>> report = ien.measure(net, images, "rot4", ["2"], 4, action="regular")
    >>> report.layers["2"].relative < 1e-10
    True
    """
    if not isinstance(start, Start) or start.model is None:
        raise ValueError(
            f"start is what start_equivariant returned, which knows the model and what is tied; got "
            f"{type(start).__name__} (what recommended prepared is kept already)"
        )
    check_optimizer(optimizer, start.model)
    check_loose(start.model, start.loose)
    kept: list[_Keeper] = vars(optimizer).setdefault(KEPT, [])
    tied = {id(tie.tensor) for tie in start.ties}
    for other in [other for other in kept if not tied.isdisjoint(id(tie.tensor) for tie, _ in other.ties)]:
        other.remove(optimizer)
        kept.remove(other)
    kept.append(_Keeper(start, optimizer))


class _StandIn(NamedTuple):
    """Coefficients that an optimizer has for a while in place of a weight."""

    tie: Tie
    weight: Tensor
    grad: Tensor
    version: int
    """How often the weight was written before."""
    coefficients: nn.Parameter


class _Keeper:
    """What is done before and after the steps of an optimizer.

    The weights of the model are never anything else: whatever ends a step, they can be used and saved.
    """

    def __init__(self, start: Start, optimizer: torch.optim.Optimizer) -> None:
        self.ties = [(tie, tie.patterned) for tie in start.ties]
        self.moving = [
            tie
            for tie, patterned in self.ties
            if not isinstance(tie.tensor, nn.Parameter) or not (tie.copies or patterned)
        ]
        self.stray = bool(optimizer.state) or not _even(optimizer)
        self.written, self.rewritten = self._versions(), False
        self.stand_ins: list[_StandIn] = []
        self.handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
            optimizer.register_load_state_dict_post_hook(self._loaded),
        ]

    def remove(self, optimizer: torch.optim.Optimizer) -> None:
        self._restore(optimizer)
        for handle in self.handles:
            handle.remove()

    def _before(
        self, optimizer: torch.optim.Optimizer, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[Any, Any] | None:
        self._restore(optimizer)  # after a step that an error ended
        self.rewritten = self._versions() != self.written
        closure = next((each for each in (*arguments[1:], *named.values()) if callable(each)), None)
        if closure is None:
            self._prepare(optimizer)
            return None

        def prepared() -> Any:
            self._restore(optimizer)
            loss = closure()
            self._prepare(optimizer)
            return loss

        return (arguments[0], prepared), {}

    def _after(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        tied = {id(each.weight) for each in self.stand_ins}  # whatever the step did to their coefficients
        self._restore(optimizer)
        with torch.no_grad():
            for tie in [tie for tie, _ in self.ties] if self.stray or self.rewritten else self.moving:
                if id(tie.tensor) not in tied:
                    tie.tensor.copy_(tie.nearest(tie.tensor))
        self.written = self._versions()

    def _loaded(self, _: object) -> None:
        self.stray = True

    def _prepare(self, optimizer: torch.optim.Optimizer) -> None:
        """The gradients of tied weights; coefficients stand in for kernels of patterns."""
        mine = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        with torch.no_grad():
            for tie, patterned in self.ties:
                weight = tie.tensor
                if (grad := weight.grad) is None:
                    continue
                if not patterned:
                    grad.copy_(tie.nearest(grad))
                elif id(weight) in mine:
                    coefficients = nn.Parameter(tie.to_coefficients(weight))
                    coefficients.grad = tie.to_coefficients(grad)
                    self.stand_ins.append(_StandIn(tie, weight, grad, weight._version, coefficients))
        _exchange(optimizer, {each.weight: each.coefficients for each in self.stand_ins})
        for each in self.stand_ins:
            each.weight.grad = None

    def _restore(self, optimizer: torch.optim.Optimizer) -> None:
        """Weights of the coefficients that stand in for them, in the optimizer and in the model."""
        _exchange(optimizer, {each.coefficients: each.weight for each in self.stand_ins})
        with torch.no_grad():
            while self.stand_ins:
                tie, weight, grad, version, coefficients = self.stand_ins.pop()
                others = weight._version != version  # as load_state_dict, after a step that an error ended
                weight.copy_(tie.nearest(weight) if others else tie.from_coefficients(coefficients))
                weight.grad = grad if weight.grad is None else weight.grad

    def _versions(self) -> list[tuple[int, int]]:
        """Which tensors the tied weights are, and how often each was written."""
        return [
            (id(tie.tensor), tie.tensor._version)
            for tie, _ in self.ties
            if isinstance(tie.tensor, nn.Parameter)
        ]


def _exchange(optimizer: torch.optim.Optimizer, pairs: Mapping[Tensor, Tensor]) -> None:
    """Give an optimizer other parameters in the place of some, with the state that it had for these."""
    for group in optimizer.param_groups if pairs else ():
        group["params"][:] = [pairs.get(parameter, parameter) for parameter in group["params"]]
    for old, new in pairs.items():
        if old in optimizer.state:
            optimizer.state[new] = optimizer.state.pop(old)


def _even(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step takes equal numbers with equal gradients to equal ones, to the bit.

    Some kernels round otherwise at the end of a tensor: those of half precision, and fused ones.
    """
    if type(optimizer) not in ELEMENTWISE:
        return False
    half = any(
        p.dtype in (torch.float16, torch.bfloat16) for g in optimizer.param_groups for p in g["params"]
    )
    fused = any(group.get("fused") for group in optimizer.param_groups)
    return not half and not fused


def check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """An error if it is no optimizer, or has no parameter of the model."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer is one of torch.optim, made before; got a {type(optimizer).__name__}")
    mine = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if mine.isdisjoint(map(id, model.parameters())):
        raise ValueError("the optimizer has no parameter of the model: make it of model.parameters()")


def check_loose(model: nn.Module, names: Sequence[str]) -> None:
    """An error if one of these parameters, which are not tied, learns."""
    weights = dict(model.named_parameters())
    if learns := [name for name in names if weights[name].requires_grad]:
        raise ValueError(
            f"{learns[0]!r} {tuple(weights[learns[0]].shape)} has no place in feature groups, so that it "
            f"would come to break the symmetry as it learns: freeze it with requires_grad_(False), or start "
            f"the part of the model without it; numbers for each channel belong into a module of their own "
            f"that is called with the maps"
        )
