"""A run folder of a tracker that was not trained: enough for `ien track` to work on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ien.tracking.training.config import TrackingConfig
from ien.training.network import build
from ien.training.run_folder import create, save_weights

DATA = {"folder": "", "name": "synthetic-clips", "source": "generated", "train": 1, "test": 1, "digest": ""}


def untrained_tracker(folder: Path, feature_groups: str) -> Path:
    """Write the run folder and return its path."""
    settings: dict[str, Any] = {"dataset": "synthetic-clips", "model": "siamfc", "width": 1 / 16, "beta": 0.1}
    if feature_groups == "1":
        settings |= {"augment": False, "beta": 0.0}
    config = TrackingConfig.of("tracking/stub", "smoke", feature_groups=feature_groups, **settings)
    save_weights(folder, build(create(folder, config, DATA)))
    return folder
