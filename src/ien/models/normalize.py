"""Normalisation inside the network: images in [0, 1] → mean 0 and deviation 1."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["Normalize"]


class Normalize(nn.Module):
    """Subtract a mean and divide by a deviation, one of each per channel; both are constants.

    It is part of the network so that everything around it (groups, measurements, export) sees
    images.

    Args:
        mean: The mean of each channel over the data set.
        std: Its standard deviation.

    >>> Normalize([0.5], [0.25])(torch.ones(1, 1, 1, 1)).item()
    2.0
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        for name, values in (("mean", mean), ("std", std)):
            # on the CPU even for a network on the meta device: constants need their values
            constant = torch.tensor(values, device="cpu").view(1, -1, 1, 1)  # (1, C, 1, 1)
            self.register_buffer(name, constant, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        channels = self.mean.shape[1]
        if x.shape[1] != channels:
            raise ValueError(
                f"the network was built for images of {channels} channels (in_channels); got {tuple(x.shape)}"
            )
        return (x - self.mean) / self.std
