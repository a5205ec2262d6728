"""The loss of a copy that answers for a transformed image as the model does for the image.

    L = d( g · f(x), f′(g · x) ) + γ e( h(x), h′(g · x) ) + Σ_i β_i e( g · h_i(x), h′_i(g · x) )

f is the model as it came, frozen; f′ its copy; g an element, for some of the images the identity;
d the Kullback-Leibler divergence of scores, or the relative squared error e of anything else. h is
what a classifier's last layer reads, h_i are the maps of layers that are named: the paper's loss,
with the frozen model's map in place of the copy's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..groups.group import Group
from ..loss.capture import capture
from ..loss.error import mean_error
from ..loss.modules import tensors_in
from .head import inputs_of
from .outputs import Kind, Kinds, act_on_outputs, kinds_in

__all__ = ["Imitation"]


@dataclass(frozen=True)
class Imitation:
    """What of the copy is compared with what of the model; see the top of this file."""

    group: Group
    kinds: Kinds
    layers: Mapping[str, float]
    """Layers whose maps are compared, and their weights β."""
    head: str | None
    """The layer whose inputs are compared."""
    features: float
    """Their weight γ."""

    def loss(self, teacher: nn.Module, student: nn.Module, x: Tensor, g: Tensor) -> Tensor:
        """The loss of one step on images (B, C, n, n) under elements (B,)."""
        with (
            torch.no_grad(),
            capture(teacher, self.layers) as maps,
            inputs_of(teacher, self.head) as features,
        ):
            upright = teacher(x)
        with (
            capture(student, self.layers) as moved_maps,
            inputs_of(student, self.head) as moved_features,
        ):
            answers = student(self.group.act(x, g))

        height, width = x.shape[-2:]
        wanted = act_on_outputs(upright, self.kinds, self.group, g, (height, width))
        loss = torch.zeros((), device=x.device)
        # in the order in which the model returns them
        for kind, target, answer in zip(
            kinds_in(upright, self.kinds), tensors_in(wanted), tensors_in(answers), strict=True
        ):
            loss = loss + _distance(target, answer, kind)
        for target, answer in zip(features, moved_features, strict=True):
            loss = loss + self.features * _distance(target, answer, "invariant")
        for name, weight in self.layers.items():
            error = mean_error(
                maps[name], moved_maps[name], self.group, g, normalize=True, layer=f"layer {name!r}"
            )
            loss = loss + weight * error
        return loss


def _distance(target: Tensor, answer: Tensor, kind: Kind) -> Tensor:
    """KL divergence of scores over dim 1, or the relative squared error of anything else."""
    of_classes = kind == "scores" or (kind == "map" and target.shape[1] > 1)
    if of_classes:
        # KL(p, q) = Σ p (log p - log q)
        kl = F.kl_div(answer.log_softmax(1), target.log_softmax(1), reduction="none", log_target=True)
        return kl.sum(1).mean()
    return (answer - target).square().mean() / target.square().mean().clamp(min=1e-12)
