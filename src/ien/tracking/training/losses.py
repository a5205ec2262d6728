"""The losses of a tracker: the logistic loss of its responses, and the equivariance loss.

A response should be high at positions of the target, near its centre, and low everywhere else:

    loss = ½ mean_{target} log(1 + exp(-r)) + ½ mean_{elsewhere} log(1 + exp(r)).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...loss.objective import EquivarianceLoss
from ..siamfc_network import respond

__all__ = ["Siamese", "balanced_loss", "hits_target", "target_positions"]

TARGET_RADIUS = 2
"""Steps across and down together from the centre to a position of the target.

As published: 16 pixels for V1, whose stride is 8, and 8 pixels for V2, whose stride is 4."""


def target_positions(size: int) -> Tensor:
    """Return which positions (size, size) of a response are the target's.

    >>> target_positions(7).int()[3].tolist(), int(target_positions(7).sum())
    ([0, 1, 1, 1, 1, 1, 0], 13)
    """
    middle = (size - 1) / 2
    away = (torch.arange(size) - middle).abs()  # (size,)
    # |x| + |y| ≤ radius, as published: a diamond
    return away + away[:, None] <= TARGET_RADIUS


def balanced_loss(responses: Tensor) -> Tensor:
    """Return the logistic loss of responses (B, 1, H, H).

    The positions of the target weigh as much as all others together.

    >>> round(float(balanced_loss(torch.zeros(1, 1, 15, 15))), 4)  # log 2
    0.6931
    """
    target = target_positions(responses.shape[-1]).to(responses.device)
    labels = target.to(responses.dtype).expand_as(responses)
    errors = F.binary_cross_entropy_with_logits(responses, labels, reduction="none")
    # a mean of means: far more positions are elsewhere
    on_target = errors[..., target].mean()  # over (B, 1, positions)
    elsewhere = errors[..., ~target].mean()
    return (on_target + elsewhere) / 2


def hits_target(responses: Tensor) -> Tensor:
    """Return whether the peak of each response (B, 1, H, H) lies on the target: (B,) bool."""
    target = target_positions(responses.shape[-1]).to(responses.device)
    largest = responses.flatten(1).argmax(1)  # (B,)
    return target.flatten()[largest]


class Siamese(nn.Module):
    """Exemplars and search images, with their views, through one network in two passes.

    A pair is rotated by one element, so the response to its view is the response rotated. The
    equivariance loss is the mean of those of exemplars and search images. Both passes are one call,
    as DistributedDataParallel needs: between two calls it would write to the statistics of
    BatchNorm.
    """

    def __init__(self, network: nn.Module, objective: EquivarianceLoss | None) -> None:
        super().__init__()
        self.network = network
        self.objective = objective

    def forward(
        self, exemplars: Tensor, searches: Tensor, g: Tensor | None
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return the responses, the weighted equivariance loss and its terms.

        The responses are (views · B, 1, H, H), those of the original pairs first.
        """
        if self.objective is None:
            responses = respond(self.network(exemplars), self.network(searches))
            return responses, torch.zeros((), device=responses.device), []
        # the same g for both: a pair rotates as a whole
        z = self.objective(self.network, exemplars, g=g)
        x = self.objective(self.network, searches, g=g)
        terms = []
        for key in z.terms:
            terms.append((z.terms[key] + x.terms[key]) / 2)
        responses = respond(z.output, x.output)
        return responses, (z.loss + x.loss) / 2, terms
