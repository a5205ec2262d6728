"""Keep: let an optimizer's steps leave a model equivariant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .projection import Tie
from .start import Start

__all__ = ["check_optimizer", "check_untied", "keep_equivariant"]

ELEMENTWISE = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    torch.optim.ASGD,
)
"""Optimizers that update each number from its own gradients alone."""
KEEPERS_ATTRIBUTE = "_kept_equivariant"
"""The attribute of an optimizer that holds its keepers; a copy has neither it nor the hooks."""


def keep_equivariant(start: Start, optimizer: torch.optim.Optimizer) -> None:
    """Let every step of ``optimizer`` keep a model equivariant, after :func:`start_equivariant`.

    Before a step, each gradient becomes its mean over the group, as for one weight that is used in
    several places. After a step, these are projected again:

    - running statistics of norms, always;
    - weights, if kernels are smooth, the precision is half, or the optimizer is fused, has taken
      steps before, or is not elementwise like SGD and Adam;
    - weights that something else wrote, such as ``load_state_dict``, once. Writes through
      ``.data`` go unnoticed.

    Where an element resamples, elementwise optimizers step on coefficients of patterns instead of
    kernels, and their state starts again. The model and your loop stay as they are; no loss and no
    rotated images are needed.

    Not for data that may lack the symmetry: a tied model cannot learn to break it, but a loss can.
    A copy of the model or the optimizer is not kept; of several calls for a weight the last counts.

    Args:
        start: What :func:`start_equivariant` returned.
        optimizer: One of torch.optim, made from ``model.parameters()``.

    Raises:
        ValueError: If a parameter that trains cannot be tied, or the optimizer has none of its own.

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
            f"start must be what start_equivariant returned; got a {type(start).__name__} "
            f"(a model that recommended prepared is kept already)"
        )
    check_optimizer(optimizer, start.model)
    check_untied(start.model, start.untied)
    keepers: list[_Keeper] = vars(optimizer).setdefault(KEEPERS_ATTRIBUTE, [])
    keepers[:] = [keeper for keeper in keepers if keeper.release(optimizer, start.model)]
    keepers.append(_Keeper(start, optimizer))


class _Kept(NamedTuple):
    """A weight that is kept."""

    tie: Tie
    on_coefficients: bool
    """Whether the optimizer steps on coefficients in its place."""
    moves_off: bool
    """Whether a step with tied gradients may leave it untied."""


class _StandIn(NamedTuple):
    """Coefficients that an optimizer has for a while in place of a weight."""

    tie: Tie
    weight: Tensor
    grad: Tensor
    version: int
    """How often the weight had been written to."""
    coefficients: nn.Parameter


class _Keeper:
    """What happens before and after the steps of an optimizer.

    The model always holds its weights: however a step ends, they can be used and saved.
    """

    def __init__(self, start: Start, optimizer: torch.optim.Optimizer) -> None:
        self.weights: list[_Kept] = []
        self.statistics: list[Tie] = []
        for tie in start.ties:
            if tie.name in tie.module._buffers:
                self.statistics.append(tie)
                continue
            on_coefficients = type(optimizer) in ELEMENTWISE and tie.has_coefficients
            if on_coefficients:
                # its state refers to pixels, not coefficients
                optimizer.state.pop(tie.tensor, None)
            moves_off = not tie.stays_tied and not on_coefficients
            self.weights.append(_Kept(tie, on_coefficients, moves_off))
        # equal numbers may take unequal steps
        self.uneven = bool(optimizer.state) or not _takes_equal_steps(optimizer)
        self.versions = self._versions(optimizer)
        self.rewritten = False
        self.stand_ins: list[_StandIn] = []

        post = optimizer.register_step_post_hook(self._after)
        # run before other post-hooks (such as EMA), which must see the projected weights
        hooks = optimizer._optimizer_step_post_hooks
        for key in list(hooks):
            if key != post.id:
                hooks[key] = hooks.pop(key)
        pre = optimizer.register_step_pre_hook(self._before)
        self.handles = [pre, post, optimizer.register_load_state_dict_post_hook(self._loaded)]

    def release(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> bool:
        """Stop keeping what belongs to ``model``; return whether anything is left to keep."""
        self._restore(optimizer)
        released = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
        for tie, on_coefficients, _ in self.weights:
            if on_coefficients and id(tie.tensor) in released:
                # its state refers to coefficients, not pixels
                optimizer.state.pop(tie.tensor, None)
        self.weights = [kept for kept in self.weights if id(kept.tie.tensor) not in released]
        self.statistics = [tie for tie in self.statistics if id(tie.tensor) not in released]
        if not self.weights:
            for handle in self.handles:
                handle.remove()
        return bool(self.weights)

    def _before(
        self, optimizer: torch.optim.Optimizer, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[Any, Any] | None:
        self._restore(optimizer)  # after a step that an error ended
        self.rewritten = self._versions(optimizer) != self.versions
        closure = None
        for argument in (*arguments[1:], *named.values()):
            if closure is None and callable(argument):
                closure = argument
        if closure is None:
            self._prepare(optimizer)
            return None

        def prepared_closure() -> Any:
            self._restore(optimizer)
            loss = closure()
            self._prepare(optimizer)
            return loss

        def replaced(argument: Any) -> Any:
            return prepared_closure if argument is closure else argument

        replaced_named = {name: replaced(argument) for name, argument in named.items()}
        return tuple(map(replaced, arguments)), replaced_named

    def _after(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        # whatever the step did to coefficients, the weights that they stand for are tied
        tied = {id(each.weight) for each in self.stand_ins}
        self._restore(optimizer)
        with torch.no_grad():
            for kept in self._in_optimizer(optimizer):
                weight = kept.tie.tensor
                moved = weight.requires_grad and (kept.moves_off or self.uneven)
                if (moved or self.rewritten) and id(weight) not in tied:
                    weight.copy_(kept.tie.project(weight))
            for tie in self.statistics:
                # through .data, as a norm writes them: another loss may still go backward
                tie.tensor.data.copy_(tie.project(tie.tensor))
        self.versions = self._versions(optimizer)

    def _loaded(self, _: object) -> None:
        self.uneven = True

    def _prepare(self, optimizer: torch.optim.Optimizer) -> None:
        """Tie gradients, and let coefficients stand in for kernels that an element resamples."""
        with torch.no_grad():
            for tie, on_coefficients, _ in self._in_optimizer(optimizer):
                weight = tie.tensor
                grad = weight.grad
                if grad is None:
                    continue
                if not on_coefficients:
                    grad.copy_(tie.project(grad))
                    continue
                coefficients = nn.Parameter(tie.to_coefficients(weight))
                coefficients.grad = tie.to_coefficients(grad)
                self.stand_ins.append(_StandIn(tie, weight, grad, weight._version, coefficients))
                weight.grad = None
        _swap(optimizer, {each.weight: each.coefficients for each in self.stand_ins})

    def _restore(self, optimizer: torch.optim.Optimizer) -> None:
        """Put weights back in place of the coefficients that stand in for them."""
        _swap(optimizer, {each.coefficients: each.weight for each in self.stand_ins})
        with torch.no_grad():
            while self.stand_ins:
                tie, weight, grad, version, coefficients = self.stand_ins.pop()
                if weight._version == version:
                    weight.copy_(tie.from_coefficients(coefficients))
                else:  # written by something else, such as load_state_dict after a step that failed
                    weight.copy_(tie.project(weight))
                if weight.grad is None and coefficients.grad is not None:  # not zeroed since
                    weight.grad = grad

    def _in_optimizer(self, optimizer: torch.optim.Optimizer) -> list[_Kept]:
        """Return the weights that the optimizer has, and those that nothing trains."""
        trained = _parameter_ids(optimizer)
        found = []
        for kept in self.weights:
            weight = kept.tie.tensor
            if not isinstance(weight, nn.Parameter):
                raise RuntimeError(
                    f"the {kept.tie.name} of a {type(kept.tie.module).__name__} is no longer a parameter "
                    f"(pruned, or computed by a weight norm?), so it cannot be kept: undo that, or do it "
                    f"after training"
                )
            if id(weight) in trained or not weight.requires_grad:
                found.append(kept)
        return found

    def _versions(self, optimizer: torch.optim.Optimizer) -> list[tuple[int, int]]:
        """Return which tensors the tied weights are, and how often each has been written to."""
        versions = []
        for kept in self._in_optimizer(optimizer):
            weight = kept.tie.tensor
            versions.append((id(weight), weight._version))
        return versions


def _swap(optimizer: torch.optim.Optimizer, others: Mapping[Tensor, Tensor]) -> None:
    """Give an optimizer other parameters in place of some, with the state that it had for these."""
    if not others:
        return
    for group in optimizer.param_groups:
        group["params"][:] = [others.get(parameter, parameter) for parameter in group["params"]]
    for old, new in others.items():
        if old in optimizer.state:
            optimizer.state[new] = optimizer.state.pop(old)


def _takes_equal_steps(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether equal numbers with equal gradients stay equal to the bit.

    Implementations for half precision, and fused ones, round differently at the end of a tensor.
    """
    if type(optimizer) not in ELEMENTWISE:
        return False
    for group in optimizer.param_groups:
        if group.get("fused"):
            return False
        for parameter in group["params"]:
            if parameter.dtype in (torch.float16, torch.bfloat16):
                return False
    return True


def _parameter_ids(optimizer: torch.optim.Optimizer) -> set[int]:
    ids: set[int] = set()
    for group in optimizer.param_groups:
        ids.update(map(id, group["params"]))
    return ids


def check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Raise an error if this is not an optimizer, or has no parameter of the model."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer; got a {type(optimizer).__name__}")
    if _parameter_ids(optimizer).isdisjoint(map(id, model.parameters())):
        raise ValueError("the optimizer has no parameter of the model: create it with model.parameters()")


def check_untied(model: nn.Module, names: Sequence[str]) -> None:
    """Raise an error if one of these parameters, which are not tied, trains."""
    weights = dict(model.named_parameters())
    for name in names:
        if weights[name].requires_grad:
            raise ValueError(
                f"parameter {name!r} {tuple(weights[name].shape)} cannot be tied and would break "
                f"equivariance as it trains: freeze it (requires_grad_(False)), or leave that part of the "
                f"model out; parameters per channel can be tied in a module of their own that is called "
                f"with the maps"
            )
