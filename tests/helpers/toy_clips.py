"""A toy run of a tracker: a few small clips, and a configuration that takes moments."""

from __future__ import annotations

from typing import Any

from ien.tracking.data.sets import Clips, with_rotated
from ien.tracking.data.synthetic import synthetic
from ien.tracking.training.config import TrackingConfig


def clips(count: int = 3, frames: int = 4, tests: int = 2) -> Clips:
    made = [synthetic(seed, frames, (120, 160), turning=False) for seed in range(count + tests)]
    return Clips("synthetic-clips", "generated", made[:count], with_rotated("clips", made[count:]))


def config(**changes: Any) -> TrackingConfig:
    """Two epochs of three steps, in this process alone."""
    settings: dict[str, Any] = {"dataset": "synthetic-clips", "model": "siamfc", "width": 1 / 16}
    settings |= {"filter": "wide", "pairs": 7, "batch_size": 3, "beta": 0.1, "epochs": 2, "max_lr": 1e-2}
    settings |= {"schedule": "exponential", "decay_after": 1, "decay": 0.5, "optimizer": "momentum"}
    settings |= {"device": "cpu", "threads": 1, "workers": 0} | changes
    return TrackingConfig.of("tracking/ien-siamfc", "smoke", **settings)
