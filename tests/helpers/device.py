"""A device without float64, as Apple's MPS is, played by the CPU.

Tensors on it claim the device ``meta``, which every build of torch knows, and hold real values, so
results can be compared with those of the CPU. Like MPS, it refuses to make a float64 tensor, to
convert one of its tensors to float64 while it is copied to the CPU, and to mix devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

from ien.groups import elements, similarity

DEVICE = torch.device("meta")
AUTOCAST = torch.autocast
MIXED = ("copy_", "_to_copy", "index", "index_put_", "_index_put_impl_")
"""Operations whose operands may lie on two devices."""


class OnDevice(Tensor):
    """A tensor on the device, whose values are those of the CPU tensor ``held``."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> OnDevice:
        if held.dtype in (torch.float64, torch.complex128):
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype: the device does not support it")
        wrapper = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        wrapper.held = held
        return wrapper

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def __repr__(self, **options: Any) -> str:
        return f"OnDevice({self.held})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


class _Device(TorchDispatchMode):
    """Sees operations on tensors of the CPU too: those that make or move a tensor to the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """Catches what torch does before the first operation is dispatched."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.tensor:
            # both would look for values on the true device meta, which has none
            args = tree_map(_number, args)
            if torch.device(kwargs.get("device") or "cpu") == DEVICE:
                return func(*args, **{**kwargs, "device": "cpu"}).to(DEVICE)
        output = func(*args, **kwargs)
        if func == Tensor.data.__set__ and isinstance(args[0], OnDevice):  # type: ignore[attr-defined]
            args[0].held = args[1].held
        return output


def autocast(device_type: str, *args: Any, **kwargs: Any) -> Any:
    """torch.autocast, which knows no device meta."""
    return AUTOCAST(device_type.replace(DEVICE.type, "cpu"), *args, **kwargs)


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the CPU and put its results where they belong."""
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    tensors = [leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor)]
    on_device = [isinstance(tensor, OnDevice) for tensor in tensors]
    is_result_here = any(on_device)
    name = func._schema.name.split("::")[-1]
    if any(on_device) and name not in MIXED:
        for tensor in tensors:
            if not isinstance(tensor, OnDevice) and tensor.ndim > 0:
                raise RuntimeError(f"Expected all tensors to be on the same device, in {func}")

    # what goes to the other side may not become float64 on the way
    target_dtype = given.get("dtype")
    if name == "copy_":
        is_result_here = on_device[0]
        target_dtype = tensors[0].dtype
    if given.get("device") is not None:
        is_result_here = torch.device(given["device"]) == DEVICE
        given["device"] = torch.device("cpu")
    if any(on_device) and not is_result_here and target_dtype == torch.float64:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype while it is copied")

    output = func(**tree_map(_held, given))
    if not is_result_here:
        return output
    output = tree_map(_wrapped, output)
    if not any(on_device):  # made on the device, or moved to it
        return output
    return return_and_correct_aliasing(func, args, kwargs, output)


def _held(leaf: Any) -> Any:
    if isinstance(leaf, OnDevice):
        return leaf.held
    return leaf


def _number(leaf: Any) -> Any:
    if isinstance(leaf, OnDevice):
        return leaf.item()
    return leaf


def _wrapped(leaf: Any) -> Any:
    if isinstance(leaf, Tensor) and not isinstance(leaf, OnDevice):
        return OnDevice(leaf)
    return leaf


@contextmanager
def device_without_float64() -> Iterator[torch.device]:
    """Give the device while the block runs; ``model.to(device)`` and ``x.to(device)`` work."""
    caches = (similarity.valid_pixels, similarity._grid, elements.share_of_valid)
    try:
        with _Device(), _Functions(), mock.patch("torch.autocast", autocast):
            yield DEVICE
    finally:
        for cache in caches:  # they keep tensors by device
            cache.cache_clear()
