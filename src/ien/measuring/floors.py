"""Symmetric kernels: convolutions with their kernels averaged over quarter turns and flips, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["average_over_d4", "symmetric_kernels"]


def average_over_d4(kernel: Tensor) -> Tensor:
    """``kernel`` (…, k, k) averaged over the quarter turns and flips of its last two dims.

    >>> average_over_d4(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    tensor([[0.2500, 0.2500],
            [0.2500, 0.2500]])
    """
    half = kernel + kernel.flip(-1)
    half = half + half.flip(-2)
    return (half + half.transpose(-2, -1)) / 8


@contextmanager
def symmetric_kernels() -> Iterator[None]:
    """While the block runs, networks are as symmetric as their grids allow; they themselves are untouched.

    Every convolution uses averaged kernels, also those called as functions; only kernels that are not
    square stay as they are.
    """
    with torch.compiler.set_stance("force_eager"), _Symmetric():
        yield


class _Symmetric(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self._averaged: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution.default and args[1].ndim == 4:
            args = (args[0], self._average(args[1]), *args[2:])
        return func(*args, **(kwargs or {}))

    def _average(self, kernel: Tensor) -> Tensor:
        if kernel.shape[-1] != kernel.shape[-2] or kernel.shape[-1] == 1:
            return kernel
        key = kernel.data_ptr(), kernel._version
        if key not in self._averaged:
            # the kernel is kept with its average, so that its address stays its own
            self._averaged[key] = (kernel, average_over_d4(kernel))
        return self._averaged[key][1]
