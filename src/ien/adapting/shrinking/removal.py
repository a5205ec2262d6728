"""Removal: channels of a model → the same model with smaller layers.

Of each space some channels are kept, in a given order. Writers lose rows of their weights, norms
lose entries, readers lose columns. A reader no longer adds what a removed channel gave it, and a
group pool no longer takes it into its maximum: everything else is computed as before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from ...loss.feature_groups import FeatureGroups, GroupPool
from .channels import Channels, Read

__all__ = ["Kept", "cut", "estimate_norms", "without"]

Kept = Mapping[str, Tensor]
"""Space → the channels that it keeps, in their new order."""


def cut(model: nn.Module, channels: Channels, kept: Kept, mixes: Mapping[str, FeatureGroups]) -> None:
    """Make the layers of a model smaller, in place.

    Args:
        model: A model whose modules have the names in ``channels``.
        channels: Which layers write and read each space.
        kept: The channels of each space that remain; also the new order of pooled ones.
        mixes: The feature groups of each space afterwards.
    """
    for read in channels.reads:
        module: Any = model.get_submodule(read.name)
        columns = _columns(read, channels, kept)
        rows = None
        if read.out is not None:
            rows = kept.get(read.out)
        if isinstance(module, GroupPool):
            for part in read.parts:
                if part.space is not None and part.space in mixes:
                    module.feature_groups = mixes[part.space]
        elif read.depthwise:
            if columns is not None:
                _select(module, "weight", 0, columns)
                _select(module, "bias", 0, columns)
                module.in_channels = module.out_channels = module.groups = len(columns)
        elif isinstance(module, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
            _cut_mixing(module, columns, rows)
        elif columns is not None and isinstance(module, _NormBase):
            for key in ("weight", "bias", "running_mean", "running_var"):
                _select(module, key, 0, columns)
            module.num_features = len(columns)
        elif columns is not None and isinstance(module, nn.PReLU) and module.num_parameters > 1:
            _select(module, "weight", 0, columns)
            module.num_parameters = len(columns)


@torch.no_grad()
def estimate_norms(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Estimate the running statistics of batch norms again, as means over batches of images.

    A single image says nothing about a variance: it is left out, and without others nothing
    changes.
    """
    several = [x for x in batches if len(x) > 1]
    norms = {}
    for module in model.modules():
        if isinstance(module, _BatchNorm) and module.track_running_stats:
            norms[module] = (module.momentum, module.training)
    if not several or not norms:
        return
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over all batches
        norm.train()
    try:
        for x in several:
            model(x)
    finally:
        for norm, (momentum, training) in norms.items():
            norm.momentum = momentum
            norm.train(training)


def _cut_mixing(
    module: nn.Conv2d | nn.ConvTranspose2d | nn.Linear, columns: Tensor | None, rows: Tensor | None
) -> None:
    into, out_of = 1, 0
    if isinstance(module, nn.ConvTranspose2d):
        into, out_of = 0, 1
    if columns is not None:
        _select(module, "weight", into, columns)
    if rows is not None:
        _select(module, "weight", out_of, rows)
        _select(module, "bias", 0, rows)
    before, after = module.weight.shape[into], module.weight.shape[out_of]
    if isinstance(module, nn.Linear):
        module.in_features, module.out_features = before, after
    else:
        module.in_channels, module.out_channels = before, after


def _select(module: nn.Module, key: str, dim: int, index: Tensor) -> None:
    """Keep these entries of a parameter or buffer, if the module has it."""
    tensor = getattr(module, key, None)
    if tensor is None:
        return
    smaller = tensor.detach().index_select(dim, index.to(tensor.device))
    if tensor.ndim == 4 and not tensor.is_contiguous():  # channels last, which is faster on some CPUs
        smaller = smaller.contiguous(memory_format=torch.channels_last)
    if isinstance(tensor, nn.Parameter):
        setattr(module, key, nn.Parameter(smaller, tensor.requires_grad))
    else:
        setattr(module, key, smaller)


def _columns(read: Read, channels: Channels, kept: Kept) -> Tensor | None:
    """Return the inputs of a reader that remain, in their new order; None if all do."""
    if not any(part.space in kept for part in read.parts):
        return None
    found = []
    start = 0
    for part in read.parts:
        index = torch.arange(part.channels)
        if part.space is not None and part.space in kept:
            index = kept[part.space]
        found.append(start + index)
        start += part.channels
    columns = torch.cat(found)
    if read.pixels > 1:  # channel c is flattened to c · pixels, …, c · pixels + pixels - 1
        columns = columns.unsqueeze(1) * read.pixels + torch.arange(read.pixels)  # (C, pixels)
        columns = columns.flatten()
    return columns


@contextmanager
def without(model: nn.Module, channels: Channels, kept: Kept) -> Iterator[None]:
    """Let a model of full size compute what it would without the removed channels.

    Readers get 0 in their place, and group pools minus infinity. It is slow, and there to check
    what :func:`cut` did by another way.
    """

    def masking(read: Read, columns: Tensor) -> Any:
        fill = 0.0
        if isinstance(read.module, GroupPool):
            fill = -math.inf

        def hook(module: nn.Module, args: Any) -> Any:
            x = args[0]
            dim = 1
            if isinstance(module, nn.Linear):
                dim = x.ndim - 1
            removed = torch.ones(x.shape[dim], dtype=torch.bool, device=x.device)
            removed[columns.to(x.device)] = False
            index = removed.nonzero().flatten()
            return (x.index_fill(dim, index, fill), *args[1:])

        return hook

    handles = []
    try:
        for read in channels.reads:
            columns = _columns(read, channels, kept)
            if columns is not None and (read.mixes or isinstance(read.module, GroupPool)):
                module = model.get_submodule(read.name)
                handles.append(module.register_forward_pre_hook(masking(read, columns)))
        yield
    finally:
        for handle in handles:
            handle.remove()
