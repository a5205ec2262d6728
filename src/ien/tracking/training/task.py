"""Tracking as a kind of task of the training loop: data, network, steps and test."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
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
    count_views,
    create,
    exported,
    loss_names,
    objective_of,
    optimizer_of,
    plain_of,
    tie_weights,
    trainable,
)
from ...training.task import Cost, Description, EpochItems, Forward, TaskKind
from ...tying.tied import Tied
from ..data import sets
from ..data.clip import Clip
from ..data.sets import Clips
from ..tracker import Tracker
from .config import TrackingConfig
from .evaluate import evaluate_tracker, search_crops, update_cost
from .losses import Siamese, balanced_loss, hits_target
from .pairs import EXEMPLAR, PairBatch, Pairs, load_batches, make_pairs

__all__ = ["TRACK_TARGETS", "Sequences", "TrackTargets", "TrackingTask", "sequences", "untrained"]


@dataclass(frozen=True)
class TrackingTask:
    """Everything that a training step of a tracker needs."""

    config: TrackingConfig
    network: nn.Module
    model: nn.Module
    """A :class:`Siamese` around the network, perhaps wrapped to average gradients."""
    objective: EquivarianceLoss | None
    optimizer: torch.optim.Optimizer
    pairs: Pairs
    processes: Processes
    tied: Tied | None = None

    def pass_of(self, epoch: int, step: int) -> int:
        """Return the epoch: clips are long, and pairs of frames hardly come twice in one."""
        return epoch

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
        """How often the network sees a pair in a step: exemplar, search image and their views."""
        return 2 * count_views(self.objective)

    @property
    def unit(self) -> str:
        """What an item is called, in the plural."""
        return "pairs"

    @property
    def losses(self) -> list[str]:
        """Names of the parts of a forward pass."""
        return loss_names(self.config, self.objective)

    def batches(self, epoch: int, step: int) -> Generator[PairBatch, None, None]:
        """Yield this process's share of each batch in the rest of the run."""
        return load_batches(self.pairs, self.config, epoch, step)

    def forward(self, batch: PairBatch, epoch: int, step: int) -> Forward:
        """Compute both losses of this process's share of a batch."""
        config = self.config
        total = len(self.pairs.batch(step))
        share = self.processes.share(total)
        count = share.stop - share.start
        like = next(self.network.parameters())
        exemplars = batch.exemplars.to(like.device, like.dtype)
        searches = batch.searches.to(like.device, like.dtype)
        if config.machine.channels_last:
            exemplars = exemplars.contiguous(memory_format=torch.channels_last)
            searches = searches.contiguous(memory_format=torch.channels_last)

        g = None
        if self.objective is not None:
            # drawn for the whole batch: the number of processes does not change a pair's element
            drawn = self.objective.sample(total, generator(config.seed, "elements", epoch, step))
            mine = share
            if count == 0:
                mine = slice(0, 1)  # a process without pairs takes part with the first
            g = drawn.view(-1, total)[:, mine].flatten()  # (samples, total) -> (samples · count,)
        with autocast(config, like.device):
            responses, equivariance, terms = self.model(exemplars, searches, g)
            responses = full_precision(responses)
            task_loss = balanced_loss(responses)
        originals = responses[: len(exemplars)].detach()
        hits = hits_target(originals).sum() * (count > 0)  # those of a pair that does not count are 0
        return Forward(task_loss + equivariance, [task_loss, *terms], hits, count, total)


class TrackTargets(TaskKind[TrackingConfig, Clips]):
    """The kind of tasks whose networks track targets through clips."""

    config = TrackingConfig
    data_unit = "sequences"
    test_unit = "sequences, plain and rotated"
    can_embed = False
    any_size = True  # exemplars are smaller than what is searched

    def load(self, config: TrackingConfig, folder: str | None = None) -> Clips:
        return sets.load_clips(config.data.dataset, folder, config.seed_of_data, config.data.test_on)

    def source(self, config: TrackingConfig, folder: str | None) -> str | None:
        if config.data.dataset == "synthetic-clips":
            return "generated"
        return None  # whether the files are all there takes listing them

    def describe(self, config: TrackingConfig, data: Clips) -> Description:
        train, tests = sequences(config, data)
        # the tests belong to the digest: other tests would give another record
        all_clips = list(train)
        if config.data.pretrain_epochs > 0:
            all_clips += sets.pretraining_clips(config.seed_of_data, config.data.pretrain_clips)
        for clips in tests.values():
            all_clips += clips
        return Description(
            name=data.name,
            source=data.source,
            train=len(train),
            test=len(next(iter(tests.values()))),
            digest=sets.digest(all_clips),
        )

    def epoch_items(self, config: TrackingConfig, train: int | None) -> EpochItems:
        generated = ""
        if config.data.pretrain_epochs > 0:
            generated = f", those of the first {config.data.pretrain_epochs} epochs from generated clips"
        if config.data.pairs is not None:
            return EpochItems(config.data.pairs, "pair", generated)
        if train is None:
            train = config.data.train_images
        if train is None:
            counts = {"got10k": sets.PUBLISHED_COUNTS[0], "synthetic-clips": sets.GENERATED_COUNTS[0]}
            train = counts[config.data.dataset]
            if config.data.test_on == "validation":
                train -= sets.held_out(train)
        note = f", one of each of {train:,} sequences in an epoch, or of those that can be used"
        return EpochItems(train, "pair", note + generated)

    def network(self, config: TrackingConfig) -> nn.Module:
        family: Any = models
        if config.network.steerable:
            family = baselines
        return create(
            family.factory(config.network.model),
            feature_groups=config.network.feature_groups,
            group=config.objective.group,
            width=config.network.width,
            backbone=config.network.backbone,
            features=config.network.features,
        )

    def prepare(self, config: TrackingConfig, data: Clips, processes: Processes) -> TrackingTask:
        device = processes.device(config.machine.device)
        pairs = make_pairs(config, sequences(config, data).train, processes)
        network, tied = trainable(config, device, processes, _trial(config))
        optimizer = optimizer_of(config, network)
        objective = objective_of(config, network)
        model = processes.wrap(Siamese(network, objective), device)
        return TrackingTask(config, network, model, objective, optimizer, pairs, processes, tied)

    def test(
        self,
        folder: Path,
        config: TrackingConfig,
        network: nn.Module,
        data: Clips,
        say: Callable[[str], None],
    ) -> dict[str, Any]:
        tests = sequences(config, data).tests
        # two pictures are enough to check that the exported network computes the same
        first_clips = next(iter(tests.values()))[:1]
        some = search_crops(first_clips)[:2].to(config.machine.device)
        plain = exported(network, some)
        # tracked too: what learning adds is the difference to the network it started from
        before = untrained(config).to(config.machine.device)
        for each in (plain, before):
            channels_last(each)
        run_folder.save_weights(folder, plain)
        return evaluate_tracker(folder, config, plain, before, tests, say)

    def outcome(self, record: Mapping[str, Any]) -> str:
        scores = []
        for test, score in record.get("tracking", {}).items():
            if "success_curve" in score:  # not one of the baselines
                scores.append(f"{score['success']:.3f} / {score['precision']:.3f} on {test}")
        return f"success / precision {', '.join(scores)}"

    def cost(self, config: TrackingConfig, plain: nn.Module) -> Cost:
        tracker = Tracker(plain, config.rotations)
        numbers = update_cost(tracker)
        templates = f"{config.rotations} templates"
        if config.rotations == 1:
            templates = "1 template"
        unit = f"an update, {tracker.settings.scales} sizes × {templates}"
        return Cost(numbers["parameters"], numbers["macs"], unit)

    def examples(self, config: TrackingConfig, data: Clips) -> tuple[Tensor, Tensor | None]:
        tests = sequences(config, data).tests
        return search_crops(next(iter(tests.values()))), None


TRACK_TARGETS = TrackTargets()


class Sequences(NamedTuple):
    """The clips of a run."""

    train: list[Clip]
    tests: dict[str, list[Clip]]
    """By the name of the test, the plain ones first."""


def sequences(config: TrackingConfig, clips: Clips) -> Sequences:
    """Return the clips that a run trains and is tested on: the first ones, as many as it asks for.

    Raises:
        ValueError: It asks for more than there are.
    """
    fewest = min(map(len, clips.tests.values()))
    for name, there in (("train_images", len(clips.train)), ("test_images", fewest)):
        asked = getattr(config.data, name)
        if asked is not None and asked > there:
            raise ValueError(
                f"{name} is {asked}, but {clips.source} {clips.name} has {there} sequences for it: "
                f"--set {name}={there}, or use another preset"
            )
    tests = {}
    for name, test in clips.tests.items():
        tests[name] = test[: config.data.test_images]
    return Sequences(clips.train[: config.data.train_images], tests)


def untrained(config: TrackingConfig) -> nn.Module:
    """Return the plain network that a run starts from, in eval mode."""
    network = build(config)
    tie_weights(config, network, _trial(config))
    return plain_of(network).eval()


def _trial(config: TrackingConfig) -> Tensor:
    """Return the pictures (2, 3, 127, 127) that a new network is tried on."""
    return torch.rand(2, 3, EXEMPLAR, EXEMPLAR, generator=generator(config.seed, "trial"))
