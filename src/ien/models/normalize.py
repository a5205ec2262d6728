"""Normalize: images in [0, 1] in, images of mean 0 and standard deviation 1 over a data set out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["Normalize"]


class Normalize(nn.Module):
    """Subtracts a mean and divides by a deviation, one for each channel; neither is part of the weights.

    Inside of the network, so that everything around it (transformations, measurements, export) sees images.

    >>> Normalize([0.5], [0.25])(torch.ones(1, 1, 1, 1)).item()
    2.0
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        for name, values in (("mean", mean), ("std", std)):
            # constants, so they have values on the meta device too
            numbers = torch.tensor(values, device="cpu").view(1, -1, 1, 1)
            self.register_buffer(name, numbers, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] != self.mean.shape[1]:
            raise ValueError(
                f"the network was built for images of {self.mean.shape[1]} channels (in_channels); "
                f"got {tuple(x.shape)}"
            )
        return (x - self.mean) / self.std
