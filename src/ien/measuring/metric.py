"""EquivarianceError: the numbers of measure(), batch by batch in one's own loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .._text import type_name
from ..groups.group import Group
from ..groups.members import FeatureAction, check_action
from ..loss.feature_groups import Spec
from ..loss.modules import unwrapped
from .choose_layers import requested_layers
from .inputs import ImageArguments, check_inputs, checked_batches, device_of, eval_mode
from .measurement import Measurement, begin, group_to_measure
from .report import Report
from .summary import Sums

__all__ = ["EquivarianceError"]


class EquivarianceError:
    """How equivariant a model is, batch by batch: a metric in the manner of torchmetrics.

    Call :meth:`update` with the model and each batch, :meth:`compute` at the end of an epoch, and
    :meth:`reset` before the next. The numbers are those of :func:`ien.measure` on all images
    together. If ``torch.distributed`` is initialised, each process updates with its own images, and
    ``compute`` adds up the sums of all of them, so every process gets the same numbers.

    Do not use it if you have all images at hand and one process: :func:`ien.measure` is one call.
    To train with it, use :class:`EquivarianceLoss`; this has no gradient.

    Args:
        group: The transformations, such as ``ien.rotation(4)`` or ``"rot4"``.
        layers: Names of layers that return maps; by default the model's direct children that do.
        feature_groups: Which channels are pooled, as :func:`ien.measure` takes them.
        floors: Also measure what the pixel grid and resampling alone would cost; it can double the
            time, and shows in :meth:`report` only.
        action: ``"pooled"`` or ``"regular"``, as :func:`ien.measure` takes it.

    >>> metric = EquivarianceError("rot4")
    >>> net = nn.Sequential(nn.Conv2d(1, 4, kernel_size=1), nn.ReLU())  # 1×1: no direction
    >>> for x in torch.rand(3, 8, 1, 6, 6):
    ...     metric.update(net, x)
    >>> metric.compute()
    {'equivariance/rot4/0': 0.0, 'equivariance/rot4/1': 0.0}
    >>> metric
    EquivarianceError(rot4, 24 images)
    >>> metric.reset()
    """

    def __init__(
        self,
        group: Group | str,
        layers: str | Sequence[str] | None = None,
        feature_groups: Spec | Mapping[str, Spec] = 1,
        *,
        floors: bool = False,
        action: FeatureAction = "pooled",
    ) -> None:
        check_action(action)
        self.group = group_to_measure(group)
        self.layers = requested_layers(layers, feature_groups)
        self.feature_groups = feature_groups
        self.floors = floors
        self.action: FeatureAction = action
        self._measurement: Measurement | None = None

    def update(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor | None = None,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Add one batch: one forward pass for each element of the group.

        The model runs in eval mode and without gradients, and is left as it was.

        Args:
            model: Any module that takes images first; the same one until :meth:`reset`. Wrappers
                such as DistributedDataParallel are taken off.
            images: A batch (B, C, H, W).
            labels: The class of each image, integers (B,); for all batches or for none.
            args: What the model takes after the images.
            kwargs: What it takes by name.

        Raises:
            ValueError: Another model than before, labels now and not before, or images, layers and
                group that do not fit together.
        """
        check_inputs(model, images, labels, batch_size=1)
        if not isinstance(images, Tensor):
            raise TypeError(f"update takes one batch (B, C, H, W); got {type_name(images)}")
        # a process with more batches than the others would wait for them inside the wrapper
        model = unwrapped(model)
        device = device_of(model, torch.device("cpu"))
        arguments = ImageArguments(images, args, kwargs, device)
        with torch.no_grad(), eval_mode(model):
            for x in checked_batches(images, max(len(images), 1)):
                x = x.to(device)
                if self._measurement is None:
                    few = x[:2]
                    self._measurement = begin(
                        model,
                        self.group,
                        few,
                        arguments.of(0, len(few)),
                        self.layers,
                        self.feature_groups,
                        self.floors,
                        self.action,
                    )
                self._check_same(self._measurement, model, labels)
                self._measurement.add(x, arguments.of(0, len(x)), labels)

    def compute(self) -> dict[str, float]:
        """Return the numbers to log, over the images of all processes since the last reset.

        Returns:
            What :meth:`Report.scalars` gives: ``"equivariance/rot4/layer1"`` is the relative error
            of a layer, ``"equivariance/rot4/output/flip_rate"`` the share of predictions that
            change.

        Raises:
            ValueError: There were fewer than two images.
        """
        return self.report().scalars()

    def report(self) -> Report:
        """Return everything :func:`ien.measure` reports. All processes have to call it."""
        parts = self._sums_of_all_processes()
        count = sum(part.count for part in parts)
        if count < 2:
            raise ValueError(f"EquivarianceError needs two images or more: call update first; got {count}")
        partition = {}
        for name, layer in parts[0].layers.items():
            partition[name] = layer.feature_groups
        # a new measurement, so that more batches can be added to this one
        whole = Measurement(nn.Identity(), self.group, partition, self.floors, self.action)
        whole.merge(parts)
        return whole.report(chosen=self.layers is None)

    def reset(self) -> None:
        """Forget all images, and the model."""
        self._measurement = None

    def __repr__(self) -> str:
        count = 0
        if self._measurement is not None:
            count = self._measurement.count
        return f"EquivarianceError({self.group}, {count:,} images)"

    def _check_same(self, measurement: Measurement, model: nn.Module, labels: Tensor | None) -> None:
        """Raise an error if a batch does not fit those before it."""
        if model is not measurement.model:
            raise ValueError("update got another model than before: call reset() first, or use two metrics")
        had_labels = measurement.labelled > 0
        if measurement.count > 0 and had_labels != (labels is not None):
            raise ValueError("labels must be given for all batches or for none, until reset()")

    def _sums_of_all_processes(self) -> list[Sums]:
        """Return the sums of each process that had images, in the order of their ranks."""
        own = None
        if self._measurement is not None:
            own = self._measurement.sums
        everyone: list[Sums | None] = [own]
        if dist.is_available() and dist.is_initialized():
            # as objects, because a process without images does not know which layers there are
            everyone = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, own)
        return [sums for sums in everyone if sums is not None]
