"""Untied parameters: those that could break an equivariant model as they train, found by trying.

A learned map of positions that is 0 at first breaks nothing yet. So after a model has been tied,
every parameter without a tie is given other numbers, the model runs again, and what then breaks
tells which of them must not be trained.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from .._files import seeded
from ..loss.modules import hooked
from .plan import Breaks, Plan

__all__ = ["untied_parameters"]

MAX_HIDING_WEIGHT = 1e-2
"""Tied weights below this share of usual ones may hide a break in what they multiply."""


def untied_parameters(
    plan: Plan, model: nn.Module, modules: Mapping[str, nn.Module], views: Tensor
) -> tuple[str, ...]:
    """Return the parameters that are not tied and would break equivariance with other numbers.

    Args:
        plan: What was tied.
        model: The model, equivariant with its own numbers.
        modules: All of its modules by name.
        views: The images under all elements that the plan was made with.

    Raises:
        Breaks: If tied weights near 0, such as the last norm of a residual block, hide a break.
    """
    weights = {name: weight for name, weight in model.named_parameters() if weight.numel() > 1}
    free: dict[str, Tensor] = {}  # other numbers for weights without a tie
    hiding: dict[str, Tensor] = {}  # other tied numbers for weights near 0
    for name, weight in weights.items():
        largest = float(weight.abs().max())
        usual = weight[0].numel() ** -0.5
        tie = plan.ties.get(id(weight))
        if tie is None:
            free[name] = weight + _noise(weight) * (largest or 1.0)
        elif largest < MAX_HIDING_WEIGHT * usual and tie.name != "bias":  # a bias multiplies nothing
            hiding[name] = tie.tie.project(_noise(weight) * usual)

    # one pass is enough for most models
    if not free and not hiding:
        return ()
    if _broken(plan, model, modules, views, free | hiding) is None:
        return ()

    error = _broken(plan, model, modules, views, hiding)
    if error is not None:
        names = ", ".join(map(repr, hiding))
        raise Breaks(f"{error}, once these are no longer 0: {names}")
    untied = []
    for name, other in free.items():
        if _broken(plan, model, modules, views, hiding | {name: other}) is not None:
            untied.append(name)
    return tuple(untied)


def _broken(
    plan: Plan,
    model: nn.Module,
    modules: Mapping[str, nn.Module],
    views: Tensor,
    others: Mapping[str, Tensor],
) -> Breaks | None:
    """Return what breaks with ``others`` in place of some parameters, which are put back."""
    weights = dict(model.named_parameters())
    before = {name: weights[name].clone() for name in others}
    returned = dict(plan.returned)
    try:
        for name, other in others.items():
            weights[name].copy_(other)
        with hooked(modules, after=plan.check):
            model(views.clone())
    except Breaks as error:
        return error
    finally:
        plan.returned = returned
        for name, old in before.items():
            weights[name].copy_(old)
    return None


def _noise(like: Tensor) -> Tensor:
    """Return numbers from -1 to 1, the same for the same shape."""
    noise = torch.rand(like.shape, generator=seeded(0), device="cpu")
    return (2 * noise - 1).to(like)
