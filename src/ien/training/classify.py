"""Classification as a task of the loop: from images and labels to the losses of each step."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._files import generator
from ..data import Dataset, to_float
from ..loss.error import full_precision
from ..loss.objective import EquivarianceLoss
from .augmentation import augmented
from .config import Config
from .distributed import Processes
from .network import Forward, autocast, images, loss_names, objective_of, optimizer_of, trainable
from .schedule import epoch_length

__all__ = ["ImageTask", "prepare"]

TRIED = 16
"""Images that a new network is tried on."""


@dataclass(frozen=True)
class ImageTask:
    """Everything a step of a classifier needs."""

    config: Config
    network: nn.Module
    model: nn.Module
    """The network, or its wrapper that averages gradients over processes."""
    objective: EquivarianceLoss | None
    optimizer: torch.optim.Optimizer
    x: Tensor
    y: Tensor
    colour: Tensor
    """The mean of the images, (C,), with which squares are cut out."""
    processes: Processes
    subset: Tensor | None = None
    """Places of the images that are trained on, in epochs as long as those of all; None for all."""

    @property
    def steps(self) -> int:
        """Steps in an epoch."""
        return self._epoch[0]

    @property
    def items(self) -> int:
        """Images in an epoch."""
        return self._epoch[1]

    @property
    def views(self) -> int:
        """How often an image is seen in a step: itself and its copies."""
        return 1 if self.objective is None else self.objective.views

    @property
    def unit(self) -> str:
        return "images"

    @property
    def losses(self) -> list[str]:
        return loss_names(self.config, self.objective)

    def batches(self, epoch: int, step: int) -> Generator[Tensor, None, None]:
        """The rest of the run from there on: which images are in each batch."""
        for each in range(epoch, self.config.epochs):
            # as even as possible: no last batch too small for its statistics
            yield from self._order(each).tensor_split(self.steps)[step if each == epoch else 0 :]

    def forward(self, batch: Tensor, epoch: int, step: int) -> Forward:
        """The cross-entropy, and the equivariance loss, of this process's share of the batch."""
        config = self.config
        share = self.processes.share(len(batch))
        count = share.stop - share.start
        if count == 0:  # fewer images than processes: take part, with a weight of 0
            share = slice(0, 1)
        chosen = batch[share].to(self.x.device)
        x, y = to_float(self.x[chosen]), self.y[chosen]
        x = augmented(config, x, len(batch), share, (epoch, step), self.colour)
        if config.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        terms: list[Tensor] = []
        with autocast(config, x.device):
            if self.objective is None:
                output = self.model(x)
                loss = task_loss = F.cross_entropy(full_precision(output), y)
            else:
                # drawn for the whole batch: the number of processes does not change an image's element
                g = self.objective.sample(len(batch), generator(config.seed, "elements", epoch, step))
                out = self.objective(self.model, x, g=g.view(-1, len(batch))[:, share].flatten())
                output, terms = out.output, list(out.terms.values())
                task_loss = F.cross_entropy(full_precision(output), out.repeat(y))
                loss = task_loss + out.loss
        hits = (output[: len(y)].detach().argmax(1) == y).sum() * (count > 0)
        return Forward(loss, [task_loss, *terms], hits, count, len(batch))

    @property
    def _epoch(self) -> tuple[int, int]:
        return epoch_length(self.config, len(self.x), self.views, self.processes.count)

    def _order(self, epoch: int) -> Tensor:
        """The images of an epoch: all in random order, then all in another, and so on, are dealt out."""
        total, first = len(self.x if self.subset is None else self.subset), epoch * self.items
        passes = range(first // total, (first + self.items - 1) // total + 1)
        orders = [
            torch.randperm(total, generator=generator(self.config.seed, "order", each)) for each in passes
        ]
        order = torch.cat(orders)[first - passes[0] * total :][: self.items]
        return order if self.subset is None else self.subset[order]


def prepare(config: Config, dataset: Dataset, processes: Processes) -> ImageTask:
    """Network, objective, optimizer and training images, on the device of the run."""
    device = processes.device(config.device)
    (x, y), _ = images(config, dataset)
    subset = _subset(config, len(x))
    mine = x if subset is None else x[subset]
    some = to_float(mine[:TRIED]).to(device)
    network, start = trainable(config, device, some)
    optimizer = optimizer_of(config, network, start)
    model, objective = processes.wrap(network, device), objective_of(config, network)
    colour = _colour(mine) if config.cutout else torch.zeros(x.shape[1])
    on_device = x.to(device), y.to(device), colour.to(device)
    task = ImageTask(config, network, model, objective, optimizer, *on_device, processes, subset)
    smallest = max(1, task.items // task.steps // processes.count)
    if smallest * task.views < 2:
        raise ValueError(
            f"batch_size {config.batch_size} gives a process a single image, too few for BatchNorm: "
            f"set it to {4 * processes.count} or more"
        )
    return task


def _subset(config: Config, total: int) -> Tensor | None:
    """Places of the images drawn, in rising order; those of a larger subset hold those of a smaller one."""
    if config.subset is None:
        return None
    return torch.randperm(total, generator=generator(config.seed, "subset"))[: config.subset].sort().values


def _colour(x: Tensor) -> Tensor:
    sums = [to_float(part).sum((0, 2, 3)) for part in x.split(1000)]
    return torch.stack(sums).sum(0) / (x.numel() / x.shape[1])
