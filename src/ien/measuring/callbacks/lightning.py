"""LightningCallback: measure every n epochs, and log through Lightning's loggers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ..._text import to_install
from ...groups.group import Group
from ...groups.members import FeatureAction
from ...loss.feature_groups import Spec
from ..inputs import Images
from ..report import Report
from .every_epoch import EveryEpoch

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:
    Callback = object

__all__ = ["LightningCallback"]


class LightningCallback(Callback):  # type: ignore[misc]
    """Measures how equivariant a LightningModule is after every n-th training epoch.

    The numbers go to the loggers of the trainer, where other callbacks find them too:
    ``EarlyStopping(monitor="equivariance/rot4/net.layer1")``. With several processes, each measures
    a part of the images.

    Do not give it all your training images: every image takes a forward pass for each element of
    the group, and a few hundred are enough.

    Args:
        images: A tensor (N, C, H, W), or a DataLoader whose batches start with images. In every
            process the same, all of them.
        group: The transformations, such as ``"rot4"``.
        layers: Names of layers, as in ``module.named_modules()``; by default the direct children
            that return maps.
        feature_groups: Which channels are pooled, as :func:`ien.measure` takes them.
        labels: The class of each image, if ``images`` is a tensor. Adds accuracies.
        every: Measure after so many epochs.
        module: The part of the LightningModule to measure, such as ``"net"``; by default itself, by
            its ``forward``.
        batch_size: Images per batch, if ``images`` is a tensor.
        floors: Whether to measure floors too, for :attr:`reports`.
        action: ``"pooled"`` or ``"regular"``, as :func:`ien.measure` takes it.

    Raises:
        ModuleNotFoundError: Lightning is not installed.
    """

    def __init__(
        self,
        images: Images,
        group: Group | str,
        layers: str | Sequence[str] | None = None,
        feature_groups: Spec | Mapping[str, Spec] = 1,
        *,
        labels: Tensor | None = None,
        every: int = 1,
        module: str = "",
        batch_size: int = 64,
        floors: bool = False,
        action: FeatureAction = "pooled",
    ) -> None:
        if Callback is object:
            raise ModuleNotFoundError(
                f"LightningCallback needs lightning: {to_install('lightning', 'lightning')}", name="lightning"
            )
        super().__init__()
        self.module = module
        self._every_epoch = EveryEpoch(
            images, group, layers, feature_groups, labels, every, batch_size, floors, action
        )
        self.reports: dict[int, Report] = {}
        """How many epochs were done -> what was measured then."""

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Measure and log, if it is time; Lightning calls it."""
        epochs = trainer.current_epoch + 1
        if not self._every_epoch.is_due(epochs):
            return
        report = self._every_epoch.measure(pl_module.get_submodule(self.module))
        self.reports[epochs] = report
        # all processes have the same numbers; said so, as Lightning warns of any others
        pl_module.log_dict(report.scalars(), sync_dist=True)
