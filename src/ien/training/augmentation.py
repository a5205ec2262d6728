"""What a run does to its training images: a batch in, the images as they are shown in this step out."""

from __future__ import annotations

import torch
from torch import Tensor

from .._files import generator
from ..data.augment import cutout, mirror, rescale, rotate, shift
from .config import Config

__all__ = ["augmented"]


def augmented(
    config: Config, x: Tensor, batch_size: int, share: slice, place: tuple[int, int], colour: Tensor
) -> Tensor:
    """The images ``x`` (n, C, H, W), those that ``share`` takes of a batch, changed as ``config`` says.

    Everything is drawn for the whole batch at its ``place``, (epoch, step), so that the number of processes
    does not change what happens to an image. Squares that are cut out get the ``colour``.
    """

    def drawn(purpose: str, *shape: int) -> Tensor:
        """From 0 to 1."""
        values = torch.rand(batch_size, *shape, generator=generator(config.seed, purpose, *place))
        return values[share].to(x.device)

    if config.transform:
        (group,) = config.groups
        g = group.sample(batch_size, generator(config.seed, "places", *place), include_identity=True)
        x = group.act(x, g[share])
    if config.rotate:
        x = rotate(x, 360 * drawn("angles"))
    if config.rescale > 1:
        low, high = 1 / config.rescale, config.rescale
        x = rescale(x, low + (high - low) * drawn("factors"))
    if config.shift:
        x = shift(x, (drawn("offsets", 2) * (2 * config.shift + 1)).long() - config.shift)
    if config.mirror:
        x = mirror(x, drawn("mirrors") < 0.5)
    if config.cutout:
        sides = torch.tensor(x.shape[-2:], device=x.device)
        x = cutout(x, (drawn("holes", 2) * sides).long(), config.cutout, colour)
    return x
