"""Loose: from a network that turns to the parameters that could come to break that as they learn."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..loss.capture import hooked
from .plan import Breaks, Work

__all__ = ["loose_parameters"]

SMALL = 1e-2
"""Weights below this share of usual ones may hide that what they weigh does not turn."""


def loose_parameters(
    work: Work, model: nn.Module, modules: Mapping[str, nn.Module], images: Tensor
) -> tuple[str, ...]:
    """Parameters that are not tied, and with other numbers would break what turns now: found by trying.

    Tied weights near 0 that hide a break are an error.
    """
    weights = {name: weight for name, weight in model.named_parameters() if weight.numel() > 1}
    free, hidden = dict[str, Tensor](), dict[str, Tensor]()
    for name, weight in weights.items():
        largest, usual = float(weight.abs().max()), weight[0].numel() ** -0.5
        if (tie := work.ties.get(id(weight))) is None:
            free[name] = weight + _noise(weight) * (largest or 1.0)
        elif largest < SMALL * usual and tie.name != "bias":  # adds equal numbers, which hide nothing
            hidden[name] = tie.nearest(_noise(weight) * usual)

    def broken(others: Mapping[str, Tensor]) -> Breaks | None:
        before, returned = {name: weights[name].clone() for name in others}, dict(work.returned)
        try:
            for name, other in others.items():
                weights[name].copy_(other)
            with hooked(modules, after=work.check):
                model(images.clone())
        except Breaks as error:
            return error
        finally:
            work.returned = returned
            for name, old in before.items():
                weights[name].copy_(old)
        return None

    if not (free or hidden) or not broken(free | hidden):  # one pass is enough for most models
        return ()
    if error := broken(hidden):
        raise Breaks(f"{error}, with numbers other than 0 in {', '.join(map(repr, hidden))}")
    return tuple(name for name, other in free.items() if broken(hidden | {name: other}))


def _noise(like: Tensor) -> Tensor:
    """Numbers from -1 to 1, the same for the same shape."""
    generator = torch.Generator().manual_seed(0)
    return (2 * torch.rand(like.shape, generator=generator, device="cpu") - 1).to(like)
