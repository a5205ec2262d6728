"""Layouts: where the channels of a tensor are, and how layers and shapes are named in messages.

Maps have their channels first, (B, C, H, W), or last, (B, H, W, C), as in ConvNeXt; a vector (B, C)
is a map of one pixel.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor, nn

from .._text import MODEL_ITSELF
from ..groups.members import Blocks

__all__ = [
    "has_number_per_channel",
    "layer_text",
    "layouts",
    "nearest_named",
    "shape_text",
    "sizes_of",
    "sizes_text",
    "vectors_of",
]


def layouts(x: Tensor) -> list[Tensor]:
    """Return ``x`` as maps (B, C, H, W), read with channels first and then with channels last."""
    if x.ndim == 2:
        return [x[:, :, None, None]]  # (B, C, 1, 1)
    if x.ndim == 4:
        return [x, x.movedim(3, 1)]  # (B, C, H, W) both
    return []


def has_number_per_channel(numbers: Tensor, maps: Tensor, x: Tensor) -> bool:
    """Return whether there is one number for each channel of ``maps``, a layout of ``x``.

    If it has several dims, such as (C, 1, 1), the long one says which dim of ``x`` it belongs to.
    """
    if numbers.numel() != maps.shape[1]:
        return False
    if numbers.ndim == 1:
        return True
    channels_first = maps is x or x.ndim == 2
    channel_dim = -1
    if channels_first:
        channel_dim = 1 - x.ndim
    for dim in range(-numbers.ndim, 0):
        if numbers.shape[dim] > 1:
            return dim == channel_dim
    return channel_dim == -1  # a single number, as for one channel


def vectors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's parameters and buffers that have several numbers, all along one dim."""
    tensors = {
        **dict(module.named_parameters(recurse=False)),
        **dict(module.named_buffers(recurse=False)),
    }
    vectors = {}
    for key, tensor in tensors.items():
        longest = max(tensor.shape, default=0)
        if tensor.is_floating_point() and tensor.numel() == longest > 1:
            vectors[key] = tensor
    return vectors


def nearest_named(name: str, named: Collection[str]) -> str:
    """Return the module that speaks for a layer: itself, or the nearest ``named`` one around it.

    >>> nearest_named("layer1.0.conv", ["", "layer1"]), nearest_named("stem", ["", "layer1"])
    ('layer1', '')
    """
    key = name
    while key and key not in named:
        key = key.rpartition(".")[0]
    if key not in named:
        raise KeyError(f'feature_groups says nothing about layer {name!r}: name it, or "" for all others')
    return key


def sizes_of(blocks: Blocks) -> list[int]:
    """Return the size of the feature groups in each block."""
    return [size for size, _ in blocks]


def sizes_text(blocks: Blocks) -> str:
    """Return the sizes as tables and messages show them: ``4-2-1``."""
    return "-".join(map(str, sizes_of(blocks)))


def shape_text(x: Tensor) -> str:
    """Describe maps without their batch, as ``8×7×7``, and any other tensor with its type."""
    if x.ndim == 4:
        return "×".join(map(str, x.shape[1:]))
    return f"{x.dtype} of shape {tuple(x.shape)}"


def layer_text(name: str, module: nn.Module) -> str:
    """Describe a layer by its name and type."""
    if not name:
        return MODEL_ITSELF
    return f"layer {name!r} ({type(module).__name__})"
