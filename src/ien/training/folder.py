"""A folder of your own pictures, a subfolder for each class, as a task of the loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import nn

from ..data import Dataset, data_folder
from ..data.class_folders import class_folders
from .classify import Classify
from .config import Config
from .evaluate import cost
from .own_model import OWN, OwnNetwork, build_own, check_output
from .task import Cost

__all__ = ["CLASSIFY_FOLDER", "FolderConfig", "check_scores"]


@dataclass(frozen=True)
class FolderConfig(Config):
    """Every setting of a run on a folder of your own pictures."""

    TASK: ClassVar[str] = "folder"

    network: OwnNetwork = field(default_factory=OwnNetwork)


class ClassifyFolder(Classify):
    """Pictures of your own to classify; the data folder is that of the pictures."""

    config: type[Config] = FolderConfig
    can_embed = False

    def load(self, config: Config, folder: str | None = None) -> Dataset:
        data = config.data
        return class_folders(
            data_folder(folder), config.seed_of_data, data.image_size, data.dataset, data.channels
        )

    def source(self, config: Config, folder: str | None) -> str | None:
        return None  # whether it is one of the published sets is known once it is read

    def network(self, config: Config) -> nn.Module:
        if isinstance(config.network, OwnNetwork) and config.network.model == OWN:
            return build_own(
                config.network, num_classes=config.data.classes, in_channels=config.data.channels
            )
        return super().network(config)

    def cost(self, config: Config, plain: nn.Module) -> Cost:
        size = config.data.image_size
        return Cost(*cost(config, plain, (config.data.channels or 3, size, size)), "an image at inference")


CLASSIFY_FOLDER = ClassifyFolder()


def check_scores(output: object, images: int, classes: int, name: str) -> None:
    """Raise if what a network returned is not a score for each class.

    Args:
        output: What it returned.
        images: How many images it was shown.
        classes: How many classes there are.
        name: What the network is called.
    """
    check_output(
        output,
        (images, classes),
        name,
        expected=f"scores ({images}, {classes}) for {images} images of {classes} classes are expected",
        key="…",
        remedy=f"give its last layer {classes} outputs, or let the function that makes it take num_classes",
    )
