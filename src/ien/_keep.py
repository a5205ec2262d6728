"""Keep: from a network that starts equivariant to an optimizer whose steps leave it so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ._start import Start

__all__ = ["check_optimizer", "keep_equivariant"]


ELEMENTWISE = tuple(
    getattr(torch.optim, name)
    for name in "SGD Adam AdamW NAdam RAdam Adamax Adagrad Adadelta RMSprop Rprop ASGD".split()
)
"""Optimizers that do to each number what its own gradients say."""


def keep_equivariant(start: Start, optimizer: torch.optim.Optimizer) -> None:
    """Let every step of ``optimizer`` leave the model equivariant that :func:`start_equivariant` made so.

    The weights are trained as tied ones: before a step each gradient becomes its mean over the group, as that
    of one weight that stands in several places. After it the running statistics of norms are put back to the
    nearest equivariant ones, and so are the weights where a step moves them off: if elements resample, or if
    the optimizer is not known to treat each number by itself, as SGD and Adam do. The model and its loop stay
    as they are. It needs no loss, and no transformed copies of images. It cannot unlearn a symmetry that the
    data do not have, as it could with a loss.

    >>> net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    >>> start = start_equivariant(net, "rot4", 4, torch.rand(2, 1, 9, 9))
    >>> optimizer = torch.optim.Adam(net.parameters())
    >>> keep_equivariant(start, optimizer)
    >>> net(torch.rand(2, 1, 9, 9)).square().sum().backward()
    >>> optimizer.step()
    >>> measure(net, torch.rand(2, 1, 9, 9), "rot4", ["2"], 4, action="regular").layers["2"].relative < 1e-10
    True
    """
    mine = check_optimizer(optimizer, (tie.tensor for tie in start.ties))
    weights = [tie for tie in start.ties if id(tie.tensor) in mine]
    statistics = [tie for tie in start.ties if not isinstance(tie.tensor, nn.Parameter)]
    stray = not all(start.ties[0].group.exact) or type(optimizer) not in ELEMENTWISE

    def before(_: object, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        if any(callable(each) for each in (*arguments[1:], *named.values())):
            raise RuntimeError("a step with a closure computes gradients anew: call it, and then step()")
        with torch.no_grad():
            for tie in weights:
                if (grad := tie.tensor.grad) is not None:
                    grad.copy_(tie.nearest(grad)[0])

    def after(*_: object) -> None:
        with torch.no_grad():
            for tie in (*statistics, *(weights if stray else ())):
                tie.tensor.copy_(tie.nearest(tie.tensor)[0])

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


def check_optimizer(optimizer: torch.optim.Optimizer, tensors: Iterable[Tensor]) -> set[int]:
    """The identities of the optimizer's parameters; an error if none of the ``tensors`` is among them."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer is one of torch.optim, made before; got a {type(optimizer).__name__}")
    mine = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if not any(id(tensor) in mine for tensor in tensors):
        raise ValueError("the optimizer has no parameter of the model: make it of model.parameters()")
    return mine
