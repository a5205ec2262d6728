"""The settings of a run that trains a tracker, where they differ from those of a classifier."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal

from ..._text import nearest
from ...groups.families import rotation
from ...groups.group import MAX_ELEMENTS
from ...loss.feature_groups import FeatureGroups
from ...training.config import Config
from ...training.fields import Section, setting
from ...training.sections import MAX_COUNT, MAX_IMAGES, Data, Network, Objective
from ..data.sets import MAX_PRETRAINING_CLIPS, SETS
from ..siamfc_network import BACKBONES, num_groups

__all__ = ["ClipData", "TrackerNetwork", "TrackingConfig", "TrackingObjective"]

IMAGE_FIELDS = ("subset", "rotate", "rescale", "shift", "mirror", "cutout", "average", "orbits", "transform")
"""Fields for images to classify; a tracker's pictures are stretched and moved as published."""


@dataclass(frozen=True)
class ClipData(Data):
    """Which clips a tracker is trained on, and which pairs of frames are drawn from them."""

    dataset: str = setting(
        "got10k", "got10k, tested on OTB, plain and rotated; or synthetic-clips, which are generated."
    )
    filter: Literal["published", "wide"] = setting(
        "published",
        "Which frames to train on. published: targets of 20 to 500 pixels and 1 to 50 % of the frame along "
        "a side; wide: 10 to 500 pixels and 1 to 75 %, for small sets.",
    )
    pairs: int | None = setting(
        None, "Pairs of frames in an epoch; none: one from each sequence.", low=2, high=MAX_IMAGES
    )
    turn: bool = setting(False, "Rotate both pictures of a pair by one random angle.")
    colour: float = setting(
        0.0, "Multiply red, green and blue of each picture by factors from 1 - N to 1 + N.", low=0, high=1
    )
    pretrain_epochs: int = setting(
        0,
        "The first N of the epochs draw their pairs from generated clips, as many as the others do; 0: none.",
        low=0,
        high=MAX_COUNT,
    )
    pretrain_clips: int = setting(
        200,
        "How many generated clips these epochs have; they are never among those of synthetic-clips.",
        low=2,
        high=MAX_PRETRAINING_CLIPS,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dataset not in SETS:
            raise ValueError(f"a tracker is trained on clips, {' or '.join(SETS)}; got {self.dataset}")
        _check_unused(self)


@dataclass(frozen=True)
class TrackerNetwork(Network):
    """Which tracker, and its backbone."""

    PLAIN: ClassVar[tuple[str, ...]] = ("siamfc",)
    BUILT_IN: ClassVar[tuple[str, ...]] = ("re-siamfc",)

    model: str = setting("siamfc", "siamfc, or the steerable re-siamfc.")
    backbone: str = setting("alexnet-v2", "alexnet-v1 or alexnet-v2.")
    features: int | None = setting(
        None,
        "Channels that are correlated, after pooling over feature groups; none: those of the width, of which "
        "plain SiamFC has twice as many as the others.",
        low=1,
        high=MAX_COUNT,
    )
    templates: int | None = setting(
        None,
        "Orientations in which the tracker looks for its target; none: as many as the group has rotations, "
        "and one in plain SiamFC. With N, angles come in steps of 360 / N degrees.",
        low=1,
        high=MAX_ELEMENTS,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.backbone not in BACKBONES:
            raise ValueError(f"there is no backbone {self.backbone!r}; {nearest(self.backbone, BACKBONES)}")
        num_groups(self.feature_groups, self.width, self.backbone, self.features)  # raises if it cannot be


@dataclass(frozen=True)
class TrackingObjective(Objective):
    """The loss of a tracker, without what only images to classify have."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_unused(self)


@dataclass(frozen=True)
class TrackingConfig(Config):
    """Every setting of a run that trains a tracker."""

    TASK: ClassVar[str] = "tracking"

    data: ClipData = field(default_factory=ClipData)
    network: TrackerNetwork = field(default_factory=TrackerNetwork)
    objective: TrackingObjective = field(default_factory=TrackingObjective)

    def __post_init__(self) -> None:
        super().__post_init__()
        generated, epochs = self.data.pretrain_epochs, self.schedule.epochs
        if generated >= epochs:
            raise ValueError(
                f"pretrain_epochs ({generated}) must leave some of the {epochs} epochs for "
                f"{self.data.dataset}: set both (at most pretrain_epochs={epochs - 1})"
            )

    @property
    def rotations(self) -> int:
        """Rotations in which the tracker tries its template.

        Those it was given, or else the group's, and 1 for plain SiamFC.
        """
        if self.network.templates is not None:
            return self.network.templates
        if FeatureGroups.of(self.network.feature_groups).sizes == (1,):
            return 1
        group = next(iter(self.objective.groups))
        # the largest rotation group that is part of the group
        most = 1
        for count in range(1, len(group) + 1):
            if set(rotation(count).elements) <= set(group.elements):
                most = count
        return most


def _check_unused(section: Section) -> None:
    """Fields for images to classify must keep their default: they would do nothing."""
    unused = []
    for each in fields(section):
        if each.name in IMAGE_FIELDS and getattr(section, each.name) != each.default:
            # better an error than a setting that is silently ignored
            unused.append(each.name)
    if unused:
        raise ValueError(
            f"{' and '.join(unused)} would do nothing: a tracker's pictures are stretched and moved as "
            f"published; leave it out"
        )
