"""Keep: from a network that starts equivariant to an optimizer whose steps leave it so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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


def keep_equivariant(start: Start, optimizer: torch.optim.Optimizer) -> None:
    """Let every step of ``optimizer`` leave the model equivariant that :func:`start_equivariant` made so.

    The weights are trained as tied ones: before a step each gradient becomes its mean over the group, as that
    of one weight that stands in several places, and smooth where kernels are. After it the running statistics
    of norms are put back to the nearest equivariant ones, and so are the weights where they may have moved
    off: if kernels are smooth, in half precision, if the optimizer is fused, took steps before, or is not
    known to treat each number by itself, as SGD and Adam do; and once after others wrote them, as
    ``load_state_dict`` does. Where an element resamples, kernels are coefficients of patterns while the
    optimizer steps: its state is of these. The model and its loop stay as they are. It needs no loss, and no
    transformed copies of images. It cannot unlearn a symmetry that the data do not have, as it could with a
    loss. A copy of the model or of the optimizer is not kept.

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
    stray = bool(optimizer.state) or not _even(optimizer)
    ties = [(tie, tie.patterned) for tie in start.ties]
    moving = [
        tie
        for tie, patterned in ties
        if not isinstance(tie.tensor, nn.Parameter) or not (tie.copies or patterned)
    ]
    written, rewritten = _versions(start), False
    held: list[tuple[Tie, Tensor]] = []  # weights that are coefficients for a while, and their gradients

    def prepare() -> None:
        """The gradients of tied weights; kernels of patterns become their coefficients."""
        mine = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        with torch.no_grad():
            for tie, patterned in ties:
                tensor = tie.tensor
                if (grad := tensor.grad) is None:
                    continue
                if not patterned:
                    grad.copy_(tie.nearest(grad))
                elif id(tensor) in mine:
                    held.append((tie, grad))
                    tensor.copy_(tie.to_coefficients(tensor))
                    tensor.grad = tie.to_coefficients(grad)

    def restore() -> None:
        """Weights instead of coefficients, as a closure and everything else but a step needs them."""
        with torch.no_grad():
            while held:
                tie, grad = held.pop()
                tie.tensor.copy_(tie.from_coefficients(tie.tensor))
                tie.tensor.grad = grad

    def before(_: object, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any] | None:
        nonlocal rewritten
        restore()  # after a step that an error ended
        rewritten = _versions(start) != written
        closure = next((each for each in (*arguments[1:], *named.values()) if callable(each)), None)
        if closure is None:
            prepare()
            return None

        def prepared() -> Any:
            restore()
            loss = closure()
            prepare()
            return loss

        return (arguments[0], prepared), {}

    def after(*_: object) -> None:
        nonlocal written
        tied = {id(tie.tensor) for tie, _ in held}  # whatever the step did to their coefficients
        restore()
        with torch.no_grad():
            for tie in start.ties if stray or rewritten else moving:
                if id(tie.tensor) not in tied:
                    tie.tensor.copy_(tie.nearest(tie.tensor))
        written = _versions(start)

    def loaded(_: object) -> None:
        nonlocal stray
        stray = True

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
    optimizer.register_load_state_dict_post_hook(loaded)


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


def _versions(start: Start) -> list[tuple[int, int]]:
    """Which tensors the tied weights are, and how often each was written."""
    return [
        (id(tie.tensor), tie.tensor._version) for tie in start.ties if isinstance(tie.tensor, nn.Parameter)
    ]


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
