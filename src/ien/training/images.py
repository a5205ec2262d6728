"""Which images of a data set a run trains on and is tested on, and how they are shown in a step."""

from __future__ import annotations

import torch
from torch import Tensor

from .._files import generator
from ..data import Dataset, to_float
from ..data.augment import cutout, mirror, rescale, rotate, shift
from .config import Config

__all__ = ["Labelled", "augmented", "images", "mean_colour", "subset"]

Labelled = tuple[Tensor, Tensor]
"""Images (N, C, H, W) and their labels (N,)."""


def images(config: Config, dataset: Dataset) -> tuple[Labelled, Labelled]:
    """Return what a run trains on, or draws its subset from, and what it is tested on."""
    data = config.data
    if dataset.classes != data.classes:
        raise ValueError(
            f"{dataset.name} has {dataset.classes} classes; the configuration says {data.classes}"
        )
    if data.channels is not None and dataset.train_x.shape[1] != data.channels:
        raise ValueError(
            f"images of {dataset.name} have {dataset.train_x.shape[1]} channels, the configuration says "
            f"{data.channels}: --set channels={dataset.train_x.shape[1]}"
        )
    train_x, train_y = dataset.train_x, dataset.train_y
    test_x, test_y = dataset.test_x, dataset.test_y
    if data.test_on == "validation":
        kept = len(train_x) - data.validation_images
        if kept < 2:
            raise ValueError(
                f"validation_images ({data.validation_images}) leaves none of {len(train_x)} to train on"
            )
        # the last ones, so that train_images, which takes the first, leaves them as they are
        train_x, test_x = train_x[:kept], train_x[kept:]
        train_y, test_y = train_y[:kept], train_y[kept:]
    _check_count(dataset, "train_images", data.train_images, len(train_x))
    train_x, train_y = train_x[: data.train_images], train_y[: data.train_images]
    _check_count(dataset, "subset", data.subset, len(train_x))
    _check_count(dataset, "test_images", data.test_images, len(test_x))
    test_x, test_y = test_x[: data.test_images], test_y[: data.test_images]
    return (train_x, train_y), (test_x, test_y)


def augmented(
    config: Config, x: Tensor, batch_size: int, share: slice, place: tuple[int, int], colour: Tensor
) -> Tensor:
    """Return training images as they are shown in one step.

    Everything is drawn for the whole batch, so the number of processes does not change what happens
    to an image.

    Args:
        config: The configuration of the run.
        x: Images (n, C, H, W) that ``share`` takes of a batch.
        batch_size: How many images the whole batch has.
        share: Which of them are in ``x``.
        place: The epoch and the step.
        colour: The colour (C,) of squares that are cut out.
    """
    data = config.data

    def drawn(purpose: str, *shape: int) -> Tensor:
        """Draw numbers from 0 to 1, (n, *shape), on the CPU: what moves images sends them."""
        values = torch.rand(batch_size, *shape, generator=generator(config.seed, purpose, *place))
        return values[share]

    # each step draws from its own purpose, so that switching one on leaves the others as they were
    if config.objective.transform:
        (group,) = config.objective.groups
        g = group.sample(batch_size, generator(config.seed, "places", *place), include_identity=True)
        x = group.act(x, g[share])
    if data.rotate:
        x = rotate(x, 360 * drawn("angles"))
    if data.rescale > 1:
        low, high = 1 / data.rescale, data.rescale
        x = rescale(x, low + (high - low) * drawn("factors"))
    if data.shift:
        # whole pixels from -shift to shift, each as likely: floor of [0, 2 · shift + 1) - shift
        places = drawn("offsets", 2) * (2 * data.shift + 1)
        x = shift(x, places.long() - data.shift)
    if data.mirror:
        x = mirror(x, drawn("mirrors") < 0.5)
    if data.cutout:
        sides = torch.tensor(x.shape[-2:])
        x = cutout(x, (drawn("holes", 2) * sides).long(), data.cutout, colour)
    return x


def subset(config: Config, total: int) -> Tensor:
    """Return the indices of the images to train on, rising.

    A larger subset contains the smaller ones of the same seed.
    """
    if config.data.subset is None:
        return torch.arange(total)
    order = torch.randperm(total, generator=generator(config.seed, "subset"))
    return order[: config.data.subset].sort().values


def mean_colour(x: Tensor, chosen: Tensor) -> Tensor:
    """Average the chosen of the images (N, C, H, W), which may be memory-mapped, in parts: (C,)."""
    sums = []
    for part in chosen.split(1000):
        sums.append(to_float(x[part]).sum((0, 2, 3)))  # (n, C, H, W) -> (C,)
    pixels = len(chosen) * x.shape[2] * x.shape[3]
    return torch.stack(sums).sum(0) / pixels


def _check_count(dataset: Dataset, name: str, asked: int | None, available: int) -> None:
    if asked is not None and asked > available:
        raise ValueError(
            f"{name} is {asked}, but {dataset.source} {dataset.name} has {available} of them: "
            f"--set {name}={available}, or use another preset"
        )
