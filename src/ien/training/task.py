"""What the loop trains: a :class:`Task`; and what a run needs to know of a kind of tasks.

Four kinds come with the package: images to classify, of a known data set
(:mod:`ien.training.classify`) or of a folder of your own (:mod:`ien.training.folder`), images to
segment (:mod:`ien.training.segment`) and targets to track (:mod:`ien.tracking.training.task`). The
configuration names its kind; everything else asks
:func:`kind_of` it, and never which one it is.
"""

from __future__ import annotations

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from .._text import nearest, short_repr
from ..loss.objective import EquivarianceLoss
from ..tying.tied import Tied
from .config import Config
from .distributed import Processes

__all__ = [
    "KINDS",
    "Cost",
    "Description",
    "EpochItems",
    "Forward",
    "Task",
    "TaskKind",
    "config_from_json",
    "kind_named",
    "kind_of",
]

# by name and not by value: training must not import tracking, which imports training
KINDS = {
    "classify": "ien.training.classify:CLASSIFY",
    "folder": "ien.training.folder:CLASSIFY_FOLDER",
    "segment": "ien.training.segment:SEGMENT",
    "tracking": "ien.tracking.training.task:TRACK_TARGETS",
}
"""Name of a kind of tasks → where it is; imported when it is first asked for."""

C = TypeVar("C", bound=Config)
D = TypeVar("D")


class Forward(NamedTuple):
    """The forward pass of one step, over this process's share of the batch."""

    loss: Tensor
    """The mean to descend."""
    parts: list[Tensor]
    """Means: the task loss and the terms of the equivariance loss, named by ``Task.losses``."""
    hits: Tensor
    """How many of the original images or pairs are right."""
    items: int
    """Images or pairs in the share; 0 if one takes part that does not count."""
    total: int
    """Images or pairs in the whole batch."""


class Task(Protocol):
    """Everything that the loop needs to train one network."""

    # properties, so that a frozen dataclass fits: it has no attributes that can be set
    @property
    def config(self) -> Config: ...
    @property
    def processes(self) -> Processes: ...
    @property
    def network(self) -> nn.Module: ...
    @property
    def optimizer(self) -> torch.optim.Optimizer: ...
    @property
    def objective(self) -> EquivarianceLoss | None: ...
    @property
    def tied(self) -> Tied | None:
        """What became of a network whose weights are tied."""

    @property
    def steps(self) -> int:
        """Steps in an epoch."""

    @property
    def items(self) -> int:
        """Images or pairs in an epoch, views not counted."""

    @property
    def views(self) -> int:
        """How often the network sees an item in a step: the original and its views."""

    @property
    def unit(self) -> str:
        """What an item is called, in the plural."""

    @property
    def losses(self) -> list[str]:
        """Names of the parts of a forward pass."""

    def batches(self, epoch: int, step: int) -> Generator[Any, None, None]:
        """Yield the batches of the rest of the run, from that step on."""

    def pass_of(self, epoch: int, step: int) -> int | None:
        """Return which pass over the data a step belongs to: nothing is seen twice in one.

        None for a step with data of two passes.
        """

    def forward(self, batch: Any, epoch: int, step: int) -> Forward:
        """Compute the losses of this process's share of a batch."""


class Description(NamedTuple):
    """Which data a run has, for its folder and its record."""

    name: str
    source: str
    train: int
    test: int
    digest: str
    """Differs if any of the data differ."""
    drawn_from: int | None = None
    """The images from which a subset to train on is drawn."""
    class_names: tuple[str, ...] = ()
    """What the classes are called, if that is known."""


class Cost(NamedTuple):
    """What a trained network costs."""

    parameters: int
    macs: int
    """Multiply-accumulates."""
    unit: str
    """What they are counted for: ``an image at inference``."""


class EpochItems(NamedTuple):
    """What there is in an epoch."""

    total: int
    name: str
    """What one of them is called."""
    note: str = ""
    """What is not known about the count."""


class TaskKind(ABC, Generic[C, D]):
    """A kind of tasks: from its configuration ``C`` and data ``D`` to a trained, tested network."""

    config: type[C]
    """The class of its configurations."""
    data_unit: ClassVar[str]
    """What its training data are counted in: images."""
    test_unit: ClassVar[str]
    """What a network is tested on."""
    can_embed: ClassVar[bool]
    """Whether the digits that come with the installation can stand in for its data."""
    any_size: ClassVar[bool] = False
    """Whether its networks are run on images of several sizes, so that exports must take any."""

    @abstractmethod
    def load(self, config: C, folder: str | None = None) -> D:
        """Read or make the data of a run."""

    @abstractmethod
    def source(self, config: C, folder: str | None) -> str | None:
        """Say what the data in a folder would be called in a record; None if that is not known."""

    @abstractmethod
    def describe(self, config: C, data: D) -> Description:
        """Count the data of a run, and digest them."""

    @abstractmethod
    def epoch_items(self, config: C, train: int | None) -> EpochItems:
        """Count what there is in an epoch; ``train`` is the number of images or clips, if known."""

    @abstractmethod
    def network(self, config: C) -> nn.Module:
        """Build the network of a run, with random weights."""

    @abstractmethod
    def prepare(self, config: C, data: D, processes: Processes) -> Task:
        """Make everything that a step needs, on the device of the run."""

    @abstractmethod
    def test(
        self, folder: Path, config: C, network: nn.Module, data: D, say: Callable[[str], None]
    ) -> dict[str, Any]:
        """Keep the plain network in the run folder; return what it reaches and what it costs."""

    @abstractmethod
    def outcome(self, record: Mapping[str, Any]) -> str:
        """Say in a few words what a run reached.

        The record is empty in all processes but the first, which do not show the text.
        """

    def summary(self, config: C, record: Mapping[str, Any]) -> dict[str, str]:
        """Say what a run reached, line by line: what was measured → its value in words."""
        return {"reached": self.outcome(record)}

    @abstractmethod
    def cost(self, config: C, plain: nn.Module) -> Cost:
        """Count what a plain network costs, without any data."""

    @abstractmethod
    def examples(self, config: C, data: D) -> tuple[Tensor, Tensor | None]:
        """Return test images (N, C, H, W) to look at, and what they show, if it is known.

        That is a label for each image (N,), or a mask (N, H, W).
        """


def kind_named(name: object) -> TaskKind[Any, Any]:
    """Import a kind of tasks by its name."""
    if not isinstance(name, str) or name not in KINDS:
        raise ValueError(f"there is no task {short_repr(name)}; {nearest(str(name), KINDS)}")
    # imported now, so that a run that classifies does not load the trackers
    kind: TaskKind[Any, Any] = pkgutil.resolve_name(KINDS[name])
    return kind


def kind_of(config: Config) -> TaskKind[Any, Any]:
    """Return the kind of tasks that a configuration is of."""
    return kind_named(config.TASK)


def config_from_json(content: Mapping[str, Any]) -> Config:
    """Read what :meth:`Config.to_json` gave, with the class of the task that it names.

    Raises:
        ValueError: It is not the JSON of a configuration; the message names the field.
    """
    if not isinstance(content, Mapping):
        raise ValueError(f"config must be a section with fields of its own; got {short_repr(content)}")
    config: Config = kind_named(content.get("task")).config.from_json(content)
    return config
