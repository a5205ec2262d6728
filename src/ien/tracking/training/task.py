"""Tracking as a task of the loop: from pairs of pictures to the losses of each step."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ... import baselines, models
from ..._files import generator
from ...loss.error import full_precision
from ...loss.objective import EquivarianceLoss
from ...training import run_folder
from ...training.distributed import Processes
from ...training.network import (
    autocast,
    build,
    channels_last,
    create,
    exported,
    loss_names,
    objective_of,
    optimizer_of,
    plain_of,
    started,
    trainable,
)
from ...training.task import Cost, Description, EpochItems, Forward, TaskKind
from ..data import sets
from ..data.clip import Clip
from ..data.sets import Clips
from ..siamfc_network import respond
from ..tracker import Tracker
from .config import TrackingConfig
from .evaluate import evaluate_tracker, search_crops, update_cost
from .pairs import EXEMPLAR, Pairs, Shown, loaded, pairs_of

__all__ = [
    "TRACK",
    "Siamese",
    "TrackingTask",
    "balanced_loss",
    "found",
    "sequences",
    "target_places",
    "untrained",
]

RADIUS = 2
"""Places from the centre, across and down together, that are the target: as published, 16 pixels for V1,
whose stride is 8, and 8 for V2, whose stride is 4."""


def target_places(size: int) -> Tensor:
    """Which places (size, size) of a response are the target's: those near the centre, along the axes.

    >>> target_places(7).int()[3].tolist(), int(target_places(7).sum())
    ([0, 1, 1, 1, 1, 1, 0], 13)
    """
    away = (torch.arange(size) - (size - 1) / 2).abs()
    return away + away[:, None] <= RADIUS


def balanced_loss(responses: Tensor) -> Tensor:
    """The logistic loss of responses (B, 1, H, H); places of the target weigh as much as all others together.

    >>> round(float(balanced_loss(torch.zeros(1, 1, 15, 15))), 4)  # log 2
    0.6931
    """
    target = target_places(responses.shape[-1]).to(responses.device)
    errors = F.binary_cross_entropy_with_logits(
        responses, target.to(responses.dtype).expand_as(responses), reduction="none"
    )
    return (errors[..., target].mean() + errors[..., ~target].mean()) / 2


def found(responses: Tensor) -> Tensor:
    """Whether the largest of each of the responses (B, 1, H, H) lies on the target: (B,) bool."""
    target = target_places(responses.shape[-1]).to(responses.device)
    return target.flatten()[responses.flatten(1).argmax(1)]


class Siamese(nn.Module):
    """Exemplars and searches, with their transformed copies, through one network in two passes.

    A pair and its copies have one element each, so that the response to a copy is the response turned. The
    equivariance loss is the mean of those of exemplars and searches. All is one call, as
    DistributedDataParallel needs it: between two it would write to the statistics of BatchNorm.
    """

    def __init__(self, network: nn.Module, objective: EquivarianceLoss | None) -> None:
        super().__init__()
        self.network, self.objective = network, objective

    def forward(
        self, exemplars: Tensor, searches: Tensor, g: Tensor | None
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Responses (views · B, 1, H, H), originals first, the weighted loss, and the terms."""
        if self.objective is None:
            responses = respond(self.network(exemplars), self.network(searches))
            return responses, torch.zeros((), device=responses.device), []
        z, x = (self.objective(self.network, images, g=g) for images in (exemplars, searches))
        terms = [(z.terms[key] + x.terms[key]) / 2 for key in z.terms]
        return respond(z.output, x.output), (z.loss + x.loss) / 2, terms


@dataclass(frozen=True)
class TrackingTask:
    """Everything a step of a tracker needs."""

    config: TrackingConfig
    network: nn.Module
    model: nn.Module
    """A :class:`Siamese` around the network, or its wrapper that averages gradients over processes."""
    objective: EquivarianceLoss | None
    optimizer: torch.optim.Optimizer
    pairs: Pairs
    processes: Processes

    @property
    def steps(self) -> int:
        """Steps in an epoch."""
        return self.pairs.steps

    @property
    def items(self) -> int:
        """Pairs in an epoch."""
        return self.pairs.count

    @property
    def views(self) -> int:
        """How often the network sees one of a pair in a step: exemplar, search and their copies."""
        return 2 * (1 if self.objective is None else self.objective.views)

    @property
    def unit(self) -> str:
        return "pairs"

    @property
    def losses(self) -> list[str]:
        return loss_names(self.config, self.objective)

    def batches(self, epoch: int, step: int) -> Generator[Shown, None, None]:
        """The rest of the run from there on: the pictures of this process's share of each batch."""
        return loaded(self.pairs, self.config, epoch, step)

    def forward(self, batch: Shown, epoch: int, step: int) -> Forward:
        """The balanced logistic loss, and the equivariance loss, of this process's share of the batch."""
        config, total = self.config, len(self.pairs.batch(step))
        share = self.processes.share(total)
        count = share.stop - share.start
        like = next(self.network.parameters())
        exemplars, searches = (images.to(like.device, like.dtype) for images in batch)
        if config.machine.channels_last:
            exemplars, searches = (
                images.contiguous(memory_format=torch.channels_last) for images in (exemplars, searches)
            )
        g = None
        if self.objective is not None:
            # drawn for the whole batch: the number of processes does not change a pair's element
            drawn = self.objective.sample(total, generator(config.seed, "elements", epoch, step))
            g = drawn.view(-1, total)[:, share if count else slice(0, 1)].flatten()
        with autocast(config, like.device):
            responses, equivariance, terms = self.model(exemplars, searches, g)
            responses = full_precision(responses)
            task_loss = balanced_loss(responses)
        hits = found(responses[: len(exemplars)].detach()).sum() * (count > 0)
        return Forward(task_loss + equivariance, [task_loss, *terms], hits, count, total)


class Track(TaskKind[TrackingConfig, Clips]):
    """Targets to track through clips."""

    config = TrackingConfig
    data_unit = "sequences"
    test_unit = "sequences, plain and rotated"
    can_embed = False

    def load(self, config: TrackingConfig, folder: str | None = None) -> Clips:
        seed = config.seed if config.data.data_seed is None else config.data.data_seed
        return sets.load_clips(config.data.dataset, folder, seed, config.data.test_on)

    def source(self, config: TrackingConfig, folder: str | None) -> str | None:
        return "generated" if config.data.dataset == "synthetic-clips" else None

    def describe(self, config: TrackingConfig, data: Clips) -> Description:
        train, tests = sequences(config, data)
        return Description(
            name=data.name,
            source=data.source,
            train=len(train),
            test=len(next(iter(tests.values()))),
            digest=sets.digest([*train, *chain(*tests.values())]),
        )

    def epoch_items(self, config: TrackingConfig, train: int | None) -> EpochItems:
        if config.data.pairs is not None:
            return EpochItems(config.data.pairs, "pair")
        if train is None:
            train = config.data.train_images
        if train is None:
            counts = {"got10k": sets.PUBLISHED_COUNTS[0], "synthetic-clips": sets.GENERATED_COUNTS[0]}
            train = counts[config.data.dataset]
            if config.data.test_on == "validation":
                train -= sets.held_out(train)
        note = f", one of each of {train:,} sequences in an epoch, or of those that can be used"
        return EpochItems(train, "pair", note)

    def network(self, config: TrackingConfig) -> nn.Module:
        family: Any = baselines if config.network.steerable else models
        return create(
            family.factory(config.network.model),
            feature_groups=config.network.feature_groups,
            group=config.objective.group,
            width=config.network.width,
            backbone=config.network.backbone,
        )

    def prepare(self, config: TrackingConfig, data: Clips, processes: Processes) -> TrackingTask:
        device = processes.device(config.machine.device)
        train, _ = sequences(config, data)
        pairs = pairs_of(config, train, processes)
        network, start = trainable(config, device, _trial(config))
        optimizer, objective = optimizer_of(config, network, start), objective_of(config, network)
        model = processes.wrap(Siamese(network, objective), device)
        return TrackingTask(config, network, model, objective, optimizer, pairs, processes)

    def test(
        self,
        folder: Path,
        config: TrackingConfig,
        network: nn.Module,
        data: Clips,
        say: Callable[[str], None],
    ) -> dict[str, Any]:
        _, tests = sequences(config, data)
        some = search_crops(next(iter(tests.values()))[:1])[:2].to(config.machine.device)
        plain = exported(network, some)
        before = untrained(config).to(config.machine.device)
        for each in (plain, before):
            channels_last(each)
        run_folder.save_weights(folder, plain)
        return evaluate_tracker(folder, config, plain, before, tests, say)

    def cost(self, config: TrackingConfig, plain: nn.Module) -> Cost:
        tracker = Tracker(plain, config.rotations)
        numbers = update_cost(tracker)
        templates = "1 template" if config.rotations == 1 else f"{config.rotations} templates"
        unit = f"an update, {tracker.settings.scales} sizes × {templates}"
        return Cost(numbers["parameters"], numbers["macs"], unit)

    def examples(self, config: TrackingConfig, data: Clips) -> tuple[Tensor, Tensor | None]:
        _, tests = sequences(config, data)
        return search_crops(next(iter(tests.values()))), None


TRACK = Track()


def _trial(config: TrackingConfig) -> Tensor:
    """What a new network is tried on, (2, 3, 127, 127)."""
    return torch.rand(2, 3, EXEMPLAR, EXEMPLAR, generator=generator(config.seed, "trial"))


def untrained(config: TrackingConfig) -> nn.Module:
    """The plain network that a run begins with, in eval mode."""
    network = build(config)
    started(config, network, _trial(config))
    return plain_of(network).eval()


def sequences(config: TrackingConfig, clips: Clips) -> tuple[list[Clip], dict[str, list[Clip]]]:
    """What a run trains on, and what it is tested on by the name of the test: of each as many as it asks."""
    train, tests = clips.train, clips.tests
    counts = (("train_images", len(train)), ("test_images", min(map(len, tests.values()))))
    for name, there in counts:
        asked = getattr(config.data, name)
        if asked is not None and asked > there:
            raise ValueError(
                f"{name} is {asked}, but {clips.source} {clips.name} has {there} sequences for it: "
                f"--set {name}={there}, or use another preset"
            )
    return train[: config.data.train_images], {
        name: test[: config.data.test_images] for name, test in tests.items()
    }
