"""A device that is only pretended: shapes and devices as on a GPU, no values, and no waiting unseen.

Tensors on the CPU are real. Those on the device are torch's fake ones, which have a shape, a dtype
and a device, and refuse what CUDA refuses: an operation on tensors of two devices. Nothing can be
read from them, so a program that looks at values on the device fails here; copies for which a GPU
would have to finish its work first are listed in ``waits``.

The device is ``cuda``, or, for gradients, ``meta``: autograd asks for a driver of the device, which
a torch without CUDA has for ``meta`` only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ien.groups import elements, similarity
from ien.tying import projection
from tests.helpers.device import autocast

COPIES = ("_to_copy", "copy_")
INDEXING = ("index", "index_put_", "_index_put_impl_")
"""Operations that take indices on the CPU as well: they copy them to the device, and wait."""
CACHES = (similarity.valid_pixels, similarity._grid, elements.share_of_valid, projection._moved_channels)
"""They keep tensors by device."""


class Pretended(TorchDispatchMode):
    """Sends every operation to the CPU, or to torch's fake tensors, and remembers copies.

    Args:
        device: Which one is pretended.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.waits: list[str] = []
        """Operations for which the CPU would have waited."""
        self.sent = 0
        """How many copies went to the device without waiting."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        target = None
        if kwargs.get("device") is not None:
            target = torch.device(kwargs["device"])
        is_here = any(isinstance(tensor, FakeTensor) for tensor in tensors)
        goes_here = target is not None and target.type == self.device.type
        if not is_here and not goes_here:
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        self._remember(func._schema.name.split("::")[-1], tensors, target, kwargs)
        return func(*args, **kwargs)  # with the FakeTensorMode around this one

    def _remember(
        self, name: str, tensors: list[Tensor], target: torch.device | None, kwargs: dict[str, Any]
    ) -> None:
        if name in COPIES:
            end = tensors[0].device if target is None else target
            start = tensors[-1].device
            if start.type == end.type:
                return
            if kwargs.get("non_blocking") and end.type == self.device.type:
                self.sent += 1
            else:
                self.waits.append(f"{name} from {start.type} to {end.type}")
        elif name in INDEXING:
            if any(tensor.device.type == "cpu" for tensor in tensors[1:]):
                self.waits.append(f"{name} by indices on the CPU")


@contextmanager
def pretended(name: str) -> Iterator[Pretended]:
    """Pretend, while the block runs, that there is such a device: ``cuda`` or ``meta``."""
    device = torch.device(name, 0) if name == "cuda" else torch.device(name)
    _forget()
    try:
        with (
            mock.patch("ien.groups.devices.TAKE_VALUES_AT_ONCE", (name,)),
            mock.patch("torch.autocast", autocast),
            FakeTensorMode(allow_non_fake_inputs=True),
            Pretended(device) as mode,
        ):
            yield mode
    finally:
        _forget()


def _forget() -> None:
    for cache in CACHES:
        cache.cache_clear()
