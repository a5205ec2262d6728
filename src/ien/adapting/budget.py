"""The budget: which members stay, so that a model keeps to a number of channels or operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor, nn

from ..tying.wiring import is_depthwise
from .channels import Channels, Read
from .worth import Worth

__all__ = ["Budget", "choose", "cost_of"]

Budget = Literal["channels", "operations"]


def choose(
    channels: Channels, worth: Mapping[str, Worth], keep: float, budget: Budget
) -> dict[str, list[list[int]]]:
    """Remove the least useful member for what it costs, again and again, until the budget is kept.

    Returns:
        Space → the members that remain of each feature group.
    """
    groups: dict[str, list[list[int]]] = {}
    for name, space in channels.spaces.items():
        if space.feature_groups is not None:
            groups[name] = [list(members) for members in space.groups()]
    widths = {name: space.channels for name, space in channels.spaces.items()}
    total = cost_of(channels, widths, budget)
    queues = {name: _ranked(groups[name], worth[name].score) for name in groups}
    cost = total
    while cost > keep * total:
        best, best_ratio, best_cost = "", float("inf"), cost
        for name, queue in queues.items():
            if not queue:
                continue
            score = float(worth[name].score[queue[0][1]])
            smaller = cost_of(channels, {**widths, name: widths[name] - 1}, budget)
            ratio = score / (cost - smaller)
            if not best or ratio < best_ratio:
                best, best_ratio, best_cost = name, ratio, smaller
        if not best:
            raise ValueError(
                f"keep={keep:g} cannot be reached: one member of each feature group leaves "
                f"{cost / total:.3f} of the {budget}; pass keep={cost / total + 0.001:.3f} or more"
            )
        group, channel = queues[best].pop(0)
        groups[best][group].remove(channel)
        widths[best] -= 1
        cost = best_cost
    return groups


def _ranked(groups: list[list[int]], score: Tensor) -> list[tuple[int, int]]:
    """List (feature group, channel) from the least useful on, without the best of each group."""
    ranked = []
    for group, members in enumerate(groups):
        best = max(members, key=lambda channel: float(score[channel]))
        for channel in members:
            if channel != best:
                ranked.append((float(score[channel]), group, channel))
    ranked.sort()
    return [(group, channel) for _, group, channel in ranked]


def cost_of(channels: Channels, widths: Mapping[str, int], budget: Budget) -> int:
    """Count the channels that layers write, or the multiplications of an image.

    Args:
        channels: The spaces and readers of a model.
        widths: Space → how many channels it has.
        budget: What is counted. Channels are those of layers that may lose some.
    """
    total = 0
    if budget == "channels":
        for name, space in channels.spaces.items():
            if space.feature_groups is not None:
                total += widths[name] * len(space.writers)
        return total
    for read in channels.reads:
        total += _operations(read, widths)
    return total


def _operations(read: Read, widths: Mapping[str, int]) -> int:
    """Count multiplications: inputs × outputs × kernel × pixels that the kernel is applied to."""
    module: Any = read.module
    inputs = 0
    for part in read.parts:
        width = part.channels
        if part.space is not None:
            width = widths[part.space]
        inputs += width * read.pixels
    if is_depthwise(module):
        return inputs * module.weight[0].numel() * read.positions
    if not read.mixes:
        return 0
    if isinstance(module, nn.Linear):
        outputs, kernel, positions = module.out_features, 1, read.positions
    else:
        outputs = module.out_channels
        kernel = module.weight[0, 0].numel()
        positions = read.positions
    if isinstance(module, nn.ConvTranspose2d):  # applied to the pixels of its input
        positions = read.positions_in
    if read.out is not None:
        outputs = widths[read.out]
    total = inputs * outputs * kernel * positions
    return total // getattr(module, "groups", 1)
