"""Keep: from a network that starts equivariant to an optimizer whose steps leave it so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .projection import Tie
from .start import Start

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
    ``load_state_dict`` does (what is written through ``.data`` is not seen). Where an element resamples, such
    known optimizers step on coefficients of patterns in place of kernels: their state is of these, and begins
    anew. The model and its loop stay as they are. It needs no loss, and no transformed copies of images. It
    cannot unlearn a symmetry that the data do not have, as it could with a loss. A copy of the model or of
    the optimizer is not kept, and of several calls for one weight the last one counts.

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
    kept[:] = [other for other in kept if other.leave(optimizer, start.model)]
    kept.append(_Keeper(start, optimizer))


class _Kept(NamedTuple):
    """A weight that is kept."""

    tie: Tie
    patterned: bool
    """Whether the optimizer steps on coefficients in its place."""
    moves: bool
    """Whether a step with tied gradients may leave it untied."""


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

    The model always holds its weights: whatever ends a step, they can be used and saved.
    """

    def __init__(self, start: Start, optimizer: torch.optim.Optimizer) -> None:
        self.weights, self.statistics = list[_Kept](), list[Tie]()
        for tie in start.ties:
            if tie.name in tie.module._buffers:
                self.statistics.append(tie)
                continue
            patterned = type(optimizer) in ELEMENTWISE and tie.patterned
            if patterned:
                optimizer.state.pop(tie.tensor, None)  # what it knows is of pixels
            self.weights.append(_Kept(tie, patterned, moves=not (tie.copies or patterned)))
        self.stray = bool(optimizer.state) or not _even(optimizer)
        self.written, self.rewritten = self._versions(optimizer), False
        self.stand_ins: list[_StandIn] = []
        post = optimizer.register_step_post_hook(self._after)
        hooks = optimizer._optimizer_step_post_hooks  # this one first: others may follow the weights
        hooks.update({key: hooks.pop(key) for key in list(hooks) if key != post.id})
        pre = optimizer.register_step_pre_hook(self._before)
        self.handles = [pre, post, optimizer.register_load_state_dict_post_hook(self._loaded)]

    def leave(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> bool:
        """Keep no longer what belongs to ``model``; whether anything is left to keep."""
        self._restore(optimizer)
        its = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
        for tie, patterned, _ in self.weights:
            if patterned and id(tie.tensor) in its:
                optimizer.state.pop(tie.tensor, None)  # what it knows is of coefficients
        self.weights = [kept for kept in self.weights if id(kept.tie.tensor) not in its]
        self.statistics = [tie for tie in self.statistics if id(tie.tensor) not in its]
        if not self.weights:
            for handle in self.handles:
                handle.remove()
        return bool(self.weights)

    def _before(
        self, optimizer: torch.optim.Optimizer, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[Any, Any] | None:
        self._restore(optimizer)  # after a step that an error ended
        self.rewritten = self._versions(optimizer) != self.written
        closures = [each for each in (*arguments[1:], *named.values()) if callable(each)]
        if not closures:
            self._prepare(optimizer)
            return None

        def prepared() -> Any:
            self._restore(optimizer)
            loss = closures[0]()
            self._prepare(optimizer)
            return loss

        def instead(each: Any) -> Any:
            return prepared if each is closures[0] else each

        return tuple(map(instead, arguments)), {name: instead(each) for name, each in named.items()}

    def _after(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        tied = {id(each.weight) for each in self.stand_ins}  # whatever the step did to their coefficients
        self._restore(optimizer)
        with torch.no_grad():
            for kept in self._mine(optimizer):
                weight = kept.tie.tensor
                moved = self.rewritten or (weight.requires_grad and (kept.moves or self.stray))
                if moved and id(weight) not in tied:
                    weight.copy_(kept.tie.nearest(weight))
            for tie in self.statistics:  # as a norm writes them: another loss may be yet to go backward
                tie.tensor.data.copy_(tie.nearest(tie.tensor))
        self.written = self._versions(optimizer)

    def _loaded(self, _: object) -> None:
        self.stray = True

    def _prepare(self, optimizer: torch.optim.Optimizer) -> None:
        """The gradients of tied weights; coefficients stand in for kernels of patterns."""
        with torch.no_grad():
            for tie, patterned, _ in self._mine(optimizer):
                weight = tie.tensor
                if (grad := weight.grad) is None:
                    continue
                if not patterned:
                    grad.copy_(tie.nearest(grad))
                else:
                    coefficients = nn.Parameter(tie.to_coefficients(weight))
                    coefficients.grad = tie.to_coefficients(grad)
                    self.stand_ins.append(_StandIn(tie, weight, grad, weight._version, coefficients))
                    weight.grad = None
        _exchange(optimizer, {each.weight: each.coefficients for each in self.stand_ins})

    def _mine(self, optimizer: torch.optim.Optimizer) -> list[_Kept]:
        """The weights that the optimizer has, and those that nothing trains."""
        its = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for tie, _, _ in self.weights:
            if not isinstance(tie.tensor, nn.Parameter):
                raise RuntimeError(
                    f"the {tie.name} of a {type(tie.module).__name__} is no longer a parameter, so that it "
                    f"cannot be kept (pruned, or computed by a weight norm?): take that off, or do it after "
                    f"training"
                )
        return [
            kept for kept in self.weights if id(kept.tie.tensor) in its or not kept.tie.tensor.requires_grad
        ]

    def _restore(self, optimizer: torch.optim.Optimizer) -> None:
        """Weights of the coefficients that stand in for them, in the optimizer and in the model."""
        _exchange(optimizer, {each.coefficients: each.weight for each in self.stand_ins})
        with torch.no_grad():
            while self.stand_ins:
                tie, weight, grad, version, coefficients = self.stand_ins.pop()
                others = weight._version != version  # as load_state_dict, after a step that an error ended
                weight.copy_(tie.nearest(weight) if others else tie.from_coefficients(coefficients))
                if weight.grad is None and coefficients.grad is not None:  # else it was zeroed since
                    weight.grad = grad

    def _versions(self, optimizer: torch.optim.Optimizer) -> list[tuple[int, int]]:
        """Which tensors the tied weights are, and how often each was written."""
        return [(id(tie.tensor), tie.tensor._version) for tie, _, _ in self._mine(optimizer)]


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
