"""A tracker whose network is an ONNX file, run by onnxruntime."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import torch

from ..exporting.runtimes import OnnxModel
from ..training import changed, kind_of
from ..training.single_file import config_in
from .tracker import BoxShape, Tracker
from .training.config import TrackingConfig

__all__ = ["exported_tracker"]


def exported_tracker(
    path: str | PathLike[str], templates: int | None = None, box: BoxShape = "upright"
) -> Tracker:
    """Return the tracker of an ONNX file that ``ien export RUN -o net.onnx`` made.

    Args:
        path: The file; its header says how the network was trained, and so how it tracks.
        templates: Number of rotations to try; by default as many as the run was tested with.
        box: The shape of the boxes it returns.

    Raises:
        ValueError: The file holds something else than a tracker.
    """
    network: Any = OnnxModel(path)
    config = config_in(network.header, Path(path))
    if not isinstance(config, TrackingConfig):
        raise ValueError(f"{path} is no tracker: make one with ien export RUN -o siamfc.onnx")
    # only its shape is needed: on this device it has no weights
    with torch.device("meta"):
        plain: Any = kind_of(config).network(changed(config, {"model": config.network.plain_model}))
    network.stride, network.backbone = plain.stride, plain.backbone
    return Tracker(network, templates or config.rotations, box)
