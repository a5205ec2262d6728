"""Segmentation as a task of the loop: images and masks → a class for every pixel."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import models
from .._files import generator
from ..data import Dataset, data_folder, to_float
from ..data.mask_folders import IGNORED, NAMED, has_masks, mask_folders, place_in
from ..groups.devices import sent
from ..groups.group import Group
from ..loss.error import full_precision
from ..loss.objective import Equivariance
from ..measuring.inputs import device_of
from ..measuring.measure import measure
from .classify import ClassifyTask
from .config import Config
from .distributed import Processes
from .evaluate import inference_speed, layer_errors
from .fields import Section, setting
from .folder import ClassifyFolder
from .images import images
from .own_model import OWN, OwnNetwork, check_output
from .sections import Data, Objective
from .task import EpochItems

__all__ = [
    "SEGMENT",
    "MaskData",
    "SegmentConfig",
    "SegmentNetwork",
    "SegmentObjective",
    "SegmentTask",
    "check_maps",
    "dice",
    "evaluate_masks",
]

LABEL_FIELDS = ("rotate", "rescale", "shift", "mirror", "cutout", "average")
"""Fields for images with one label: they would move an image and not its mask."""
NUCLEI_TRAIN_IMAGES = 120
"""As many as the data set nuclei has in the folder that we measured on."""
TEST_BATCH = 16
"""Images that are segmented at once: their maps are large."""


@dataclass(frozen=True)
class MaskData(Data):
    """Which images and masks a run trains on and is tested on."""

    dataset: str = setting(
        "nuclei", "nuclei (dsb2018-nuclei in the data folder), or the name of your folder."
    )
    classes: int = setting(2, "Number of classes: of the values that masks have.", low=2, high=IGNORED)
    image_size: int = setting(192, "Pixels along a side; images and masks are scaled to it.", low=8, high=512)
    ignore: int | None = setting(
        None, "A value of the masks where nothing is known: not trained on, not counted.", low=0, high=255
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_unused(self)


@dataclass(frozen=True)
class SegmentNetwork(OwnNetwork):
    """Which network that returns maps, and how wide."""

    PLAIN: ClassVar[tuple[str, ...]] = (*models.SEGMENTERS, OWN)
    BUILT_IN: ClassVar[tuple[str, ...]] = ()

    model: str = setting("unet", "unet, or own: a network of your own.")


@dataclass(frozen=True)
class SegmentObjective(Objective):
    """Which transformations there are; without views and the loss, unless they are asked for."""

    augment: bool = setting(False, "Show the network views of each image too; the loss needs them.")
    beta: float = setting(0.0, "Weight of the equivariance loss in every layer.", low=0, high=1e9)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_unused(self)


@dataclass(frozen=True)
class SegmentConfig(Config):
    """Every setting of a run that segments."""

    TASK: ClassVar[str] = "segment"

    data: MaskData = field(default_factory=MaskData)
    network: SegmentNetwork = field(default_factory=SegmentNetwork)
    objective: SegmentObjective = field(default_factory=SegmentObjective)


@dataclass(frozen=True)
class SegmentTask(ClassifyTask):
    """Everything that a step of segmentation needs; ``y`` are masks (N, H, W)."""

    def shown(self, batch: Tensor, share: slice, place: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Return this process's images of a batch as they are shown in a step, and their masks."""
        chosen = sent(batch[share], self.x.device)
        x, y = to_float(self.x[chosen]), self.y[chosen].long()
        if self.config.objective.transform:
            (group,) = self.config.objective.groups
            rng = generator(self.config.seed, "places", *place)
            g = group.sample(len(batch), rng, include_identity=True)[share]
            x, y = group.act(x, g), group.act_on_masks(y, g, ignore=IGNORED)
        return x, y

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy of scores (B, classes, H, W), over the pixels that are known."""
        known = (y != IGNORED).sum().clamp(min=1)  # a batch of unknown pixels has a loss of 0
        return F.cross_entropy(full_precision(output), y, ignore_index=IGNORED, reduction="sum") / known

    def with_views(self, y: Tensor, out: Equivariance) -> Tensor:
        """Return the masks of the images and of their views."""
        masks: Tensor = out.targets(y, kind="mask", ignore=IGNORED)
        return masks

    def hits(self, output: Tensor, y: Tensor) -> Tensor:
        """Add up the shares of pixels that are right, over the images."""
        known = y != IGNORED
        right = (output.argmax(1) == y) & known
        # (B, H, W) -> (B,)
        return (right.sum((1, 2)) / known.sum((1, 2)).clamp(min=1)).sum()


class Segment(ClassifyFolder):
    """Images to segment, of a known data set or of a folder of your own."""

    config: type[Config] = SegmentConfig
    compared_images = 2

    def load(self, config: Config, folder: str | None = None) -> Dataset:
        data: Any = config.data
        place = data_folder(folder)
        # a folder of your own may have the same name
        if data.dataset in NAMED and not has_masks(place):
            place = place_in(place, data.dataset)
        return mask_folders(
            place, config.seed_of_data, data.image_size, data.dataset, data.ignore, data.channels
        )

    def prepare(self, config: Config, data: Dataset, processes: Processes) -> SegmentTask:
        return SegmentTask(**vars(super().prepare(config, data, processes)))

    def scores(self, config: Config, plain: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
        return evaluate_masks(config, plain, x, y)

    def speed(self, config: Config, plain: nn.Module, x: Tensor) -> float:
        return inference_speed(config, plain, x[:TEST_BATCH], rounds=5)

    def outcome(self, record: Mapping[str, Any]) -> str:
        return f"Dice {record.get('dice', 0):.3f}"

    def summary(self, config: Config, record: Mapping[str, Any]) -> dict[str, str]:
        group = ", ".join(map(str, config.objective.measured_groups))
        return {
            "Dice": f"{record['dice']:.3f} on {record['data']['test']:,} test images",
            "agreement": f"{record['consistency']:.3f} Dice between rotated predictions and those of rotated "
            f"images, over {group}",
            "under group": f"{record['dice_under_group']:.3f} Dice, over all elements of {group}",
        }

    def epoch_items(self, config: Config, train: int | None) -> EpochItems:
        return EpochItems(train or config.data.train_images or NUCLEI_TRAIN_IMAGES, "image")

    def examples(self, config: Config, data: Dataset) -> tuple[Tensor, Tensor | None]:
        _, (x, masks) = images(config, data)
        return x, masks


SEGMENT = Segment()


def dice(a: Tensor, b: Tensor, classes: int) -> Tensor:
    """Compare masks: how much of each class do they share?

        2 |A ∩ B| / (|A| + |B|)      1: the same pixels; 0: none in common

    Pixels that are unknown in either mask do not count, and neither does class 0, the background.

    Args:
        a: Masks (B, H, W).
        b: Others (B, H, W).
        classes: How many classes there are.

    Returns:
        (B, classes - 1), for each class from 1 on; NaN where neither mask has it.

    >>> dice(torch.tensor([[[0, 1, 1, 0]]]), torch.tensor([[[0, 1, 0, 0]]]), 2).round(decimals=3)
    tensor([[0.6670]])
    """
    known = (a != IGNORED) & (b != IGNORED)
    scores = []
    for label in range(1, classes):
        in_a = (a == label) & known
        in_b = (b == label) & known
        shared = (in_a & in_b).sum((1, 2))  # (B, H, W) -> (B,)
        total = in_a.sum((1, 2)) + in_b.sum((1, 2))
        scores.append(2 * shared / total)  # 0 / 0 is NaN
    return torch.stack(scores, 1)


def evaluate_masks(config: Config, model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    """Measure Dice, as it is and under every element, and the equivariance error of every tap.

    Args:
        config: The configuration of the run.
        model: The plain network.
        x: Test images (N, C, H, W).
        y: Their masks (N, H, W).

    Returns:
        What a record holds of them: ``dice``, the mean over images and classes but the background;
        ``dice_under_group``, over all elements, the identity included; ``dice_per_element``;
        ``consistency``, the Dice between what is predicted for a rotated image and the rotated
        prediction for the image, over all elements but the identity; and ``layers``.
    """
    classes = config.data.classes
    per_element: dict[str, float] = {}
    consistency: list[float] = []
    reports = []
    for group in config.objective.measured_groups:
        predicted = _predicted(model, x, group)
        for k, label in enumerate(group.labels):
            g = torch.full((len(x),), k)
            truth = group.act_on_masks(y, g, ignore=IGNORED)
            per_element[label] = _mean(dice(predicted[k], truth, classes))
            if k > 0:
                rotated = group.act_on_masks(predicted[0], g, ignore=IGNORED)
                shared = dice(predicted[k], rotated, classes)
                consistency.append(_mean(shared.nan_to_num(nan=1.0)))  # both see none: they agree
        taps: Any = (model.taps, model.feature_groups)
        reports.append(measure(model, _batches(x), group, *taps, floors=False))
    first = config.objective.measured_groups[0]
    return {
        "accuracy": None,
        "accuracy_with_copies": None,
        "dice": per_element[first.labels[0]],
        "dice_under_group": statistics.fmean(per_element.values()),
        "dice_per_element": per_element,
        "consistency": statistics.fmean(consistency),
        "layers": layer_errors(reports),
    }


def check_maps(output: object, shape: Sequence[int], classes: int, name: str) -> None:
    """Raise if what a network returned is not a score for each class and pixel.

    Args:
        output: What it returned.
        shape: Of the images that it was shown, (B, C, H, W).
        classes: How many classes there are.
        name: What the network is called.
    """
    count, _, height, width = shape
    wanted = (count, classes, height, width)
    check_output(
        output,
        wanted,
        name,
        expected=f"scores {wanted} for {count} images of {height}×{width} and {classes} classes are expected",
        key="'out'",
        remedy=f"give its last layer {classes} channels, and maps the size of the image",
    )


def _predicted(model: nn.Module, x: Tensor, group: Group) -> list[Tensor]:
    """Segment the images under every element: a mask (N, H, W) of bytes for each."""
    device = device_of(model, torch.device("cpu"))
    predicted = []
    model.eval()
    with torch.inference_mode():
        for k in range(len(group)):
            parts = []
            for batch in _batches(x):
                g = torch.full((len(batch),), k, device=device)
                scores = model(group.act(batch.to(device), g))  # (B, classes, H, W)
                parts.append(scores.argmax(1).to("cpu", torch.uint8))
            predicted.append(torch.cat(parts))
    return predicted


def _batches(x: Tensor) -> list[Tensor]:
    return [to_float(part) for part in x.split(TEST_BATCH)]


def _mean(scores: Tensor) -> float:
    """Average over images and classes; NaN where no image has any."""
    return float(scores.nanmean())


def _check_unused(section: Section) -> None:
    """Fields for images with one label must keep their default."""
    unused = []
    for each in fields(section):
        if each.name in LABEL_FIELDS and getattr(section, each.name) != each.default:
            unused.append(each.name)
    if unused:
        raise ValueError(
            f"{' and '.join(unused)} would move images and leave their masks: use transform=true, which "
            f"moves both, or leave it out"
        )
