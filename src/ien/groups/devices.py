"""From the CPU, where element indices and other small tables are made, to the device of the maps.

A GPU works through a queue that the CPU fills. Some calls wait until the queue is empty
(*synchronise*), and the GPU is then idle until the CPU has filled it again: reading a number, a
mask as an index, and a copy in either direction unless torch is told that it need not wait.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["sent"]

TAKE_VALUES_AT_ONCE = ("cuda",)
"""Devices that need not be waited for. MPS would read values later, when they may have changed."""


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor on the CPU to a device, without waiting for a GPU to finish what it does.

    CUDA takes the values before this returns, so they may be overwritten at once.

    Do not use it in the other direction: the values would be read before they arrive.

    Args:
        values: A tensor on the CPU; one that is on the device already is returned as it is.
        device: Where to.

    >>> sent(torch.tensor([1, 2]), torch.device("meta")).device
    device(type='meta')
    """
    return values.to(device, non_blocking=device.type in TAKE_VALUES_AT_ONCE)
