"""What all callbacks share: when to measure, and which batches each process measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch.distributed as dist
from torch import Tensor, nn

from ...groups.group import Group
from ...groups.members import FeatureAction
from ...loss.feature_groups import Spec
from ..inputs import Images, check_inputs, checked_batches
from ..metric import EquivarianceError
from ..report import Report

__all__ = ["EveryEpoch"]


class EveryEpoch:
    """Measures a model after every n-th epoch, each process a part of the images.

    Args:
        images: A tensor (N, C, H, W), or batches that can be gone through again and again, such as
            a DataLoader. In every process the same, all of them.
        group: The transformations.
        layers: Names of layers; by default the model's direct children that return maps.
        feature_groups: Which channels are pooled.
        labels: The class of each image, if ``images`` is a tensor.
        every: Measure after so many epochs.
        batch_size: Images per batch, if ``images`` is a tensor.
        floors: Whether to measure floors too.
        action: What is compared of a layer.
    """

    def __init__(
        self,
        images: Images,
        group: Group | str,
        layers: str | Sequence[str] | None,
        feature_groups: Spec | Mapping[str, Spec],
        labels: Tensor | None,
        every: int,
        batch_size: int,
        floors: bool,
        action: FeatureAction,
    ) -> None:
        check_inputs(nn.Identity(), images, labels, batch_size)
        if iter(images) is images:
            raise ValueError(
                "images must be a tensor or a DataLoader, to go through again every epoch; got an iterator"
            )
        if labels is not None and not (isinstance(images, Tensor) and len(images) == len(labels)):
            raise ValueError("labels need images as a tensor (N, C, H, W), and one label per image")
        if every < 1:
            raise ValueError(f"every must be 1 or more epochs; got {every}")
        self.images = images
        self.labels = labels
        self.every = every
        self.batch_size = batch_size
        self.metric = EquivarianceError(group, layers, feature_groups, floors=floors, action=action)

    def is_due(self, epochs: int) -> bool:
        """Say whether to measure now that so many epochs are done."""
        return epochs % self.every == 0

    def measure(self, model: nn.Module) -> Report:
        """Measure the model. All processes have to call it, and get the same report."""
        rank, processes = 0, 1
        if dist.is_available() and dist.is_initialized():
            rank, processes = dist.get_rank(), dist.get_world_size()
        self.metric.reset()
        start = 0
        for i, x in enumerate(checked_batches(self.images, self.batch_size)):
            labels = None
            if self.labels is not None:
                labels = self.labels[start : start + len(x)]
            start += len(x)
            if i % processes == rank:  # batches are dealt out in turn
                self.metric.update(model, x, labels)
        report = self.metric.report()
        self.metric.reset()  # do not hold on to the model
        return report
