"""HuggingFaceCallback: measure every n epochs inside the Trainer of transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from ...groups.group import Group
from ...groups.members import FeatureAction
from ...loss.feature_groups import Spec
from ..inputs import Images
from ..report import Report
from .every_epoch import EveryEpoch

__all__ = ["HuggingFaceCallback"]


class HuggingFaceCallback:
    """Measures how equivariant the model of a ``transformers.Trainer`` is, every n-th epoch.

    It has the shape of a ``TrainerCallback``, and needs nothing of transformers itself. Add it to
    the trainer with the trainer's own ``log``, and the numbers reach everything it reports to::

        trainer.add_callback(HuggingFaceCallback(images, "rot4", log=trainer.log))

    Do not give it all your training images: every image takes a forward pass for each element of
    the group, and a few hundred are enough.

    Args:
        images: A tensor (N, C, H, W) of pixel values as the model takes them, or batches of them
            that can be gone through again and again. In every process the same, all of them.
        group: The transformations, such as ``"rot4"``.
        layers: Names of layers, as in ``model.named_modules()``; by default the direct children
            that return maps.
        feature_groups: Which channels are pooled, as :func:`ien.measure` takes them.
        log: What is called with the numbers, a dict from names to floats: ``trainer.log``,
            ``wandb.log`` or ``print``. By default they are put into ``state.log_history``.
        labels: The class of each image, if ``images`` is a tensor. Adds accuracies.
        every: Measure after so many epochs.
        batch_size: Images per batch, if ``images`` is a tensor.
        floors: Whether to measure floors too, for :attr:`reports`.
        action: ``"pooled"`` or ``"regular"``, as :func:`ien.measure` takes it.
    """

    def __init__(
        self,
        images: Images,
        group: Group | str,
        layers: str | Sequence[str] | None = None,
        feature_groups: Spec | Mapping[str, Spec] = 1,
        *,
        log: Callable[[dict[str, float]], Any] | None = None,
        labels: Tensor | None = None,
        every: int = 1,
        batch_size: int = 64,
        floors: bool = False,
        action: FeatureAction = "pooled",
    ) -> None:
        self.log = log
        self._every_epoch = EveryEpoch(
            images, group, layers, feature_groups, labels, every, batch_size, floors, action
        )
        self.reports: dict[int, Report] = {}
        """How many epochs were done -> what was measured then."""

    def on_epoch_end(self, args: Any, state: Any, control: Any, model: nn.Module, **more: Any) -> None:
        """Measure and log, if it is time; the trainer calls it."""
        epochs = round(state.epoch)  # which counts parts of epochs too
        if not self._every_epoch.is_due(epochs):
            return
        report = self._every_epoch.measure(model)
        self.reports[epochs] = report
        if self.log is not None:
            self.log(report.scalars())
        else:
            when = {"epoch": state.epoch, "step": state.global_step}
            state.log_history.append(report.scalars() | when)

    def __getattr__(self, name: str) -> Any:
        # the trainer calls every callback at every event, and newer releases have more of them
        if name.startswith("on_"):
            return _nothing
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Let an event pass."""
