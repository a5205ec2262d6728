"""Does a network fit the images: which size is exact, and does it return what is needed?"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..data.dataset import MIN_IMAGE_SIZE
from ..geometry.doctor import doctor
from ..measuring.inputs import eval_mode, try_model
from ..training import Config
from ..training.folder import check_scores
from ..training.own_model import OwnNetwork
from ..training.segment import SegmentConfig, check_maps

__all__ = ["called", "check_output", "exact_size", "takes"]

MAX_STEP = 32
"""Pixels by which a size may change to one that a network takes at all."""


def exact_size(network: nn.Module, config: Config, asked: int | None) -> tuple[int, str]:
    """Return the size nearest to that of a configuration at which quarter turns are exact.

    Returns:
        The size, and what to tell the user about it.
    """
    size = config.data.image_size

    def distance(each: int) -> tuple[int, int]:
        return abs(each - size), -each  # the larger one if two are equally near: it loses nothing

    near = range(max(MIN_IMAGE_SIZE, size - MAX_STEP), size + MAX_STEP)
    # a network may refuse a size, as a U-Net does whose pools leave a rest
    runs = (each for each in sorted(near, key=distance) if takes(network, config, each))
    first = next(runs, size)
    try:
        diagnosis = doctor(network, (config.data.channels or 3, first, first))
    except ValueError as error:
        return size, f"size {size}: whether it is exact is not known ({error})"
    if not diagnosis.exact and not diagnosis.exact_sizes:
        return size, ""  # tying the weights says why
    exact = first
    if not diagnosis.exact:
        exact = min(diagnosis.exact_sizes, key=distance)
    if exact == size:
        return size, ""
    why = "you asked for" if asked is not None else "the pictures have"
    return exact, (
        f"size {exact}, where {why} {size}: {called(config)} commutes with quarter turns and "
        f"flips at {', '.join(map(str, diagnosis.exact_sizes))} (--set image_size={size} keeps it)"
    )


def check_output(network: nn.Module, config: Config) -> None:
    """Raise before anything is written if the network does not return what is needed."""
    x = _some_images(config)
    with torch.no_grad(), eval_mode(network):
        output = try_model(network, x)
    if isinstance(config, SegmentConfig):
        check_maps(output, tuple(x.shape), config.data.classes, called(config))
    else:
        check_scores(output, len(x), config.data.classes, called(config))


def takes(network: nn.Module, config: Config, size: int | None = None) -> bool:
    """Whether a network runs on images like those of a configuration, or of another size."""
    with torch.no_grad(), eval_mode(network):
        try:
            try_model(network, _some_images(config, size))
        except (ValueError, TypeError, RuntimeError):
            return False
    return True


def called(config: Config) -> str:
    """What the user calls the network."""
    network = config.network
    if isinstance(network, OwnNetwork) and network.code:
        return network.code
    return network.model


def _some_images(config: Config, size: int | None = None) -> Tensor:
    size = size or config.data.image_size
    return torch.rand(2, config.data.channels or 3, size, size)
