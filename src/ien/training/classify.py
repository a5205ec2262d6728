"""Classification as a task of the loop: from images and labels to the losses of each step."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import baselines, models
from .._files import digest, generator
from ..data import (
    DATASETS,
    Dataset,
    class_folders,
    data_folder,
    rot_mnist,
    scale_mnist,
    tiny_imagenet,
    to_float,
)
from ..data import load as load_dataset
from ..groups.devices import sent
from ..loss.error import full_precision
from ..loss.objective import Equivariance, EquivarianceLoss
from ..tying.slack import slack_of
from ..tying.tied import Tied
from . import run_folder
from .config import Config
from .distributed import Processes
from .evaluate import cost, evaluate, inference_speed
from .images import augmented, images, mean_colour, subset
from .network import (
    autocast,
    channels_last,
    count_views,
    create,
    exported,
    loss_names,
    objective_of,
    optimizer_of,
    trainable,
)
from .own_model import OWN
from .schedule import epoch_length
from .task import Cost, Description, EpochItems, Forward, TaskKind

__all__ = ["CLASSIFY", "ClassifyTask", "measured_by"]

TRIAL_IMAGES = 16
"""How many images a new network is tried on."""
DIGEST_LENGTH = 16
"""Hexadecimal digits, 64 bits: enough to tell data sets apart."""
STL10_TRAIN_IMAGES = 5000


class Classify(TaskKind[Config, Dataset]):
    """Images to classify."""

    config: type[Config] = Config
    data_unit = "images"
    test_unit = "images"
    can_embed = True
    compared_images = 64
    """On how many test images the exported network must do what the trained one does."""

    def load(self, config: Config, folder: str | None = None) -> Dataset:
        data = config.data
        settings = {}
        if data.dataset in DATASETS:  # load_dataset() has something to say if it is not
            for name in DATASETS[data.dataset].settings:
                settings[name] = getattr(data, name)
        return load_dataset(data.dataset, folder, config.seed_of_data, **settings)

    def source(self, config: Config, folder: str | None) -> str | None:
        # must agree with the sources that the loaders in ien.data give
        place = data_folder(folder)
        if str(place) == "embedded":
            return "embedded-5k"
        dataset = config.data.dataset
        if dataset in ("stl10", "tiny-imagenet", *class_folders.NAMED):
            return None  # whether it is whole is known once it is read
        if dataset != "rot-mnist" or config.data.max_angle < rot_mnist.FULL_TURN:
            return "generated"
        if not place.is_dir():
            return None
        if rot_mnist.find_original(place):
            return "original"
        return "generated"

    def describe(self, config: Config, data: Dataset) -> Description:
        (x, y), (test_x, test_y) = images(config, data)
        # test images too: a table must not compare accuracies on different ones
        parts = [tensor.contiguous().numpy().tobytes() for tensor in (x, y, test_x, test_y)]
        described = Description(
            name=data.name,
            source=data.source,
            train=len(x),
            test=len(test_x),
            digest=digest(*parts)[:DIGEST_LENGTH],
            class_names=getattr(data, "class_names", ()),
        )
        if config.data.subset is not None:
            return described._replace(train=config.data.subset, drawn_from=len(x))
        return described

    def epoch_items(self, config: Config, train: int | None) -> EpochItems:
        note = ""
        if train is None:
            train = config.data.train_images
        if train is None:
            if config.data.dataset in class_folders.NAMED:
                note = ", if all that were published train"
            train = _size_of_dataset(config)
            if config.data.test_on == "validation":
                train -= config.data.validation_images
        return EpochItems(train, "image", note)

    def network(self, config: Config) -> nn.Module:
        model = config.network.model
        family: Any = baselines
        if model in models.NAMES:
            family = models
        options: dict[str, Any] = {}
        if config.data.channels is not None:
            options["in_channels"] = config.data.channels
        return create(
            family.factory(model),
            **options,
            feature_groups=config.network.feature_groups,
            group=config.objective.group,
            width=config.network.width,
            num_classes=config.data.classes,
            size=config.data.image_size,
            plus=config.data.rescale > 1,
        )

    def prepare(self, config: Config, data: Dataset, processes: Processes) -> ClassifyTask:
        device = processes.device(config.machine.device)
        (x, y), _ = images(config, data)
        chosen = subset(config, len(x))
        some = to_float(x[chosen[:TRIAL_IMAGES]]).to(device)
        network, tied = trainable(config, device, processes, some)
        colour = torch.zeros(x.shape[1])
        if config.data.cutout:  # reading all images takes a while
            colour = mean_colour(x, chosen)
        task = ClassifyTask(
            config,
            network,
            processes.wrap(network, device),
            objective_of(config, network),
            optimizer_of(config, network),
            x.to(device),
            y.to(device),
            colour.to(device),
            processes,
            chosen,
            tied,
        )
        # BatchNorm cannot normalise a single value per channel, as after a 1×1 map
        smallest = max(1, task.items // task.steps // processes.count)
        if smallest * task.views < 2:
            raise ValueError(
                f"batch_size {config.schedule.batch_size} gives a process a single image, too few for "
                f"BatchNorm: set it to {4 * processes.count} or more"
            )
        return task

    def test(
        self, folder: Path, config: Config, network: nn.Module, data: Dataset, say: Callable[[str], None]
    ) -> dict[str, Any]:
        _, (x, y) = images(config, data)
        slack = slack_of(network)
        some = to_float(x[: self.compared_images]).to(config.machine.device)
        plain = exported(network, some)
        channels_last(plain)  # faster; the file of weights has the usual layout all the same
        run_folder.save_weights(folder, plain)
        parameters, macs = cost(config, plain, x.shape[1:])
        record = self.scores(config, plain, x, y)
        if slack:
            record["slack"] = slack
        record |= measured_by(config, plain)
        record["parameters"] = parameters
        record["macs"] = macs
        record["image_shape"] = list(x.shape[1:])
        record["images_per_second"] = round(self.speed(config, plain, x), 1)
        return record

    def scores(self, config: Config, plain: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Return what a record holds of how well a plain network does on the test images."""
        return evaluate(config, plain, x, y)

    def speed(self, config: Config, plain: nn.Module, x: Tensor) -> float:
        """Return how many images a second a plain network takes."""
        return inference_speed(config, plain, x)

    def outcome(self, record: Mapping[str, Any]) -> str:
        return f"accuracy {record.get('accuracy', 0):.2%}"

    def summary(self, config: Config, record: Mapping[str, Any]) -> dict[str, str]:
        group = ", ".join(map(str, config.objective.measured_groups))
        return {
            "accuracy": f"{record['accuracy']:.1%} of {record['data']['test']:,} test images",
            "agreement": f"{record['agreement']:.1%} of them are predicted alike under all of {group}",
            "under group": f"{record['accuracy_under_group']:.1%} accuracy, over all elements of {group}",
        }

    def cost(self, config: Config, plain: nn.Module) -> Cost:
        size = config.data.image_size
        shape = (config.data.channels or 3, size, size)
        if config.data.dataset.endswith("mnist"):  # digits are enlarged inside the network
            shape = (1, 28, 28)
        return Cost(*cost(config, plain, shape), "an image at inference")

    def examples(self, config: Config, data: Dataset) -> tuple[Tensor, Tensor | None]:
        _, tested = images(config, data)
        return tested


CLASSIFY = Classify()


@dataclass(frozen=True)
class ClassifyTask:
    """Everything that a step of a classifier needs."""

    config: Config
    network: nn.Module
    model: nn.Module
    """The network, or its wrapper that averages gradients over processes."""
    objective: EquivarianceLoss | None
    optimizer: torch.optim.Optimizer
    x: Tensor
    y: Tensor
    colour: Tensor
    """The mean colour of the images, (C,), which fills squares that are cut out."""
    processes: Processes
    chosen: Tensor
    """Indices of the images to train on: all, or a subset in epochs as long as those of all."""
    tied: Tied | None = None

    @property
    def steps(self) -> int:
        """Steps in an epoch."""
        steps, _ = self._epoch
        return steps

    @property
    def items(self) -> int:
        """Images in an epoch."""
        _, items = self._epoch
        return items

    @property
    def views(self) -> int:
        """How often an image is seen in a step: the original and its views."""
        return count_views(self.objective)

    @property
    def unit(self) -> str:
        """What an item is called."""
        return "images"

    @property
    def losses(self) -> list[str]:
        """Names of the parts of a forward pass."""
        return loss_names(self.config, self.objective)

    def batches(self, epoch: int, step: int) -> Generator[Tensor, None, None]:
        """Yield the indices of the images in each batch, from that step to the end of the run."""
        for each in range(epoch, self.config.schedule.epochs):
            # as even as possible: no last batch that is too small for its statistics
            batches = self._order(each).tensor_split(self.steps)
            first = step if each == epoch else 0
            yield from batches[first:]

    def pass_of(self, epoch: int, step: int) -> int | None:
        """Return which pass over the images a step belongs to; None if it has images of two."""
        # as tensor_split does: the first batches are larger by one image
        size, larger = divmod(self.items, self.steps)
        first = epoch * self.items + step * size + min(step, larger)
        last = first + size - int(step >= larger)
        if first // len(self.chosen) != last // len(self.chosen):
            return None
        return first // len(self.chosen)

    def forward(self, batch: Tensor, epoch: int, step: int) -> Forward:
        """Compute cross-entropy and equivariance loss of this process's share of the batch."""
        config = self.config
        share = self.processes.share(len(batch))
        count = share.stop - share.start
        if count == 0:  # fewer images than processes: take part, with a weight of 0
            share = slice(0, 1)
        x, y = self.shown(batch, share, (epoch, step))
        if config.machine.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        terms: list[Tensor] = []
        with autocast(config, x.device):
            if self.objective is None:
                output = self.model(x)
                loss = task_loss = self.loss(output, y)
            else:
                # for the whole batch: with more processes an image keeps its element
                g = self.objective.sample(len(batch), generator(config.seed, "elements", epoch, step))
                mine = g.view(-1, len(batch))[:, share].flatten()  # (samples, B) -> (samples * share)
                out = self.objective(self.model, x, g=mine)
                output, terms = out.output, list(out.terms.values())
                task_loss = self.loss(output, self.with_views(y, out))
                loss = task_loss + out.loss
        originals = output[: len(y)].detach()
        hits = self.hits(originals, y) * (count > 0)  # a share of nothing has no hits
        return Forward(loss, [task_loss, *terms], hits, count, len(batch))

    def shown(self, batch: Tensor, share: slice, place: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Return this process's images of a batch as they are shown in a step, and their labels."""
        chosen = sent(batch[share], self.x.device)
        x = to_float(self.x[chosen])
        return augmented(self.config, x, len(batch), share, place, self.colour), self.y[chosen]

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy of scores (B, classes)."""
        return F.cross_entropy(full_precision(output), y)

    def with_views(self, y: Tensor, out: Equivariance) -> Tensor:
        """Return the labels of the images and of their views."""
        return out.repeat(y)

    def hits(self, output: Tensor, y: Tensor) -> Tensor:
        """Count the images that are classified right."""
        return (output.argmax(1) == y).sum()

    @property
    def _epoch(self) -> tuple[int, int]:
        return epoch_length(self.config, len(self.x), self.views, self.processes.count)

    def _order(self, epoch: int) -> Tensor:
        """Deal out the images of an epoch: all in random order, then all in another, and so on."""
        # an epoch need not be a whole pass: with orbits it is shorter, with a subset it is longer
        total = len(self.chosen)
        first = epoch * self.items
        passes = range(first // total, (first + self.items - 1) // total + 1)
        orders = []
        for each in passes:
            orders.append(torch.randperm(total, generator=generator(self.config.seed, "order", each)))
        skipped = first - passes[0] * total  # dealt out in earlier epochs
        order = torch.cat(orders)[skipped:][: self.items]
        return self.chosen[order]


def measured_by(config: Config, plain: nn.Module) -> dict[str, Any]:
    """Return what a record keeps of a network of your own: its layers and their feature groups."""
    if config.network.model != OWN:
        return {}  # ours know it themselves
    return {"measured_by": plain.feature_groups}


def _size_of_dataset(config: Config) -> int:
    """Return how many training images the whole data set has, without reading it."""
    match config.data.dataset:
        case "rot-mnist":
            return rot_mnist.TRAIN
        case "scale-mnist" | "rot-scale-mnist":
            return scale_mnist.SIZES.train + scale_mnist.SIZES.validation
        case "stl10":
            return STL10_TRAIN_IMAGES
        case name if name in class_folders.NAMED:
            return class_folders.NAMED[name]
    return tiny_imagenet.TRAIN * config.data.classes
