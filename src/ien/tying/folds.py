"""Does a symmetry help on images that a network has not seen? Tied and ordinary, fold by fold.

The images are split into folds. For each fold, a tied network and an ordinary one of the same
layers learn from all other folds, with the same batches, and are tested on this one:

    d_k  =  accuracy of the tied network on fold k - accuracy of the ordinary one

The mean of the d_k has the interval of Student's t, as different folds have different test images
and different networks. They share most of their training images, so it is a little too narrow.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._files import generator
from ..measuring.intervals import Interval, student_95

__all__ = ["FOLDS", "HeldOut", "held_out"]

FOLDS = 5
STEPS = 600
"""Training steps of each network, at least: with fewer, the one that learns faster would win."""
LEARNING_RATE = 1e-2
"""The highest of Adam, in the middle of the cycle."""


@dataclass(frozen=True)
class HeldOut:
    """Accuracies on held-out images, of each fold."""

    tied: tuple[float, ...]
    ordinary: tuple[float, ...]

    @property
    def difference(self) -> float:
        """How much more accurate the tied networks are, as a mean over folds."""
        return statistics.mean(self._differences())

    @property
    def interval(self) -> Interval:
        """The 95 % interval of the difference."""
        error = statistics.stdev(self._differences()) / math.sqrt(FOLDS)
        margin = student_95(FOLDS - 1) * error
        return self.difference - margin, self.difference + margin

    def _differences(self) -> list[float]:
        return [tied - ordinary for tied, ordinary in zip(self.tied, self.ordinary, strict=True)]

    def __str__(self) -> str:
        """Both accuracies and their difference, in percent."""
        low, high = self.interval
        return (
            f"held-out images: tied {statistics.mean(self.tied):.1%}, "
            f"ordinary {statistics.mean(self.ordinary):.1%} correct; "
            f"difference {100 * self.difference:+.1f}, 95 % interval {100 * low:+.1f} … {100 * high:+.1f}"
        )


def held_out(
    x: Tensor,
    y: Tensor,
    make: Callable[[int, bool], nn.Module],
    batch_size: int,
    seed: int,
    advance: Callable[[], None],
) -> HeldOut:
    """Train a tied and an ordinary network for each fold, and test them on it.

    Args:
        x: Images (N, C, H, W).
        y: Their classes (N,).
        make: ``make(fold, tied)`` returns a network to train.
        batch_size: Images of a step.
        seed: Of the folds, and of the order of the images.
        advance: Called when a network is done.
    """
    folds = torch.randperm(len(x), generator=generator(seed, "folds")).tensor_split(FOLDS)
    accuracies: dict[bool, list[float]] = {True: [], False: []}
    for k, tested in enumerate(folds):
        learnt = torch.cat([fold for i, fold in enumerate(folds) if i != k])
        for tied in (True, False):
            net = make(k, tied)
            _train(net, x[learnt], y[learnt], batch_size, seed)
            accuracies[tied].append(_accuracy(net, x[tested], y[tested]))
            advance()
    return HeldOut(tuple(accuracies[True]), tuple(accuracies[False]))


def _train(net: nn.Module, x: Tensor, y: Tensor, batch_size: int, seed: int) -> None:
    """Take one cycle: the rate rises and falls to zero, so that what is tested has settled."""
    optimizer = torch.optim.Adam(net.parameters())
    steps = len(x) // batch_size  # of an epoch
    epochs = math.ceil(STEPS / steps)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, epochs * steps)
    net.train()
    for epoch in range(epochs):
        order = torch.randperm(len(x), generator=generator(seed, "order", epoch))
        for batch in order[: steps * batch_size].split(batch_size):
            optimizer.zero_grad()
            F.cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()
            schedule.step()


@torch.no_grad()
def _accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    net.eval()
    hits = 0
    for images, labels in zip(x.split(500), y.split(500), strict=True):
        hits += int((net(images).argmax(1) == labels).sum())
    return hits / len(x)
