"""Random batches of images to adapt to."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .._files import generator
from ..measuring.inputs import Images, check_floating, check_images, checked_batches
from .outputs import check_square
from .variation import mixed, varied

__all__ = ["Batches"]

MIN_IMAGES = 32
"""Fewer are learnt by heart."""


class Batches:
    """Random batches of images, varied a little; the same for the same seed and step."""

    def __init__(self, images: Images, batch_size: int, mix: float, seed: int) -> None:
        check_images(images)
        if isinstance(images, Iterator):
            raise ValueError(
                "images can be gone through only once: pass a tensor, a list of batches or a DataLoader"
            )
        self.images = images
        self.batch_size = batch_size
        self.mix = mix
        self.seed = seed
        self._waiting: Iterator[Tensor] | None = None
        self._count = 0  # images in the first pass over batches
        if isinstance(images, Tensor):
            for x in checked_batches(images, batch_size):
                check_floating(x)
            check_square(images)
            _check_count(len(images))

    def draw(self, step: int, device: torch.device, may_mirror: bool) -> Tensor:
        """Return a batch (B, C, n, n) on ``device``."""
        draws = generator(self.seed, "images", step)
        if isinstance(self.images, Tensor):
            chosen = torch.randint(len(self.images), (self.batch_size,), generator=draws)
            x = self.images[chosen]
        else:
            x = self._next()
            check_floating(x)
            check_square(x)
        # in random order, so that no kind of image always gets the same element
        x = x[torch.randperm(len(x), generator=draws)]
        x = mixed(varied(x.to(device), may_mirror, draws), self.mix, draws)
        return x.contiguous(memory_format=torch.channels_last)

    def _next(self) -> Tensor:
        """The next batch of the user's, from the beginning again after the last one."""
        x = None
        if self._waiting is not None:
            x = next(self._waiting, None)
        if x is None:
            if self._waiting is not None:
                _check_count(self._count)
            self._waiting = checked_batches(self.images, self.batch_size)
            x = next(self._waiting, None)
        if x is None:
            raise ValueError("there are no images to adapt to")
        self._count += len(x)
        return x


def _check_count(count: int) -> None:
    if count < MIN_IMAGES:
        raise ValueError(
            f"{count} images are too few to adapt to: use {MIN_IMAGES} or more, better thousands"
        )
