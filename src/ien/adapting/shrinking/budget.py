"""The budget: which members stay, so that a model keeps to a number of channels or operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor, nn

from .channels import Channels, Read
from .worth import Worth

__all__ = ["Budget", "check_reachable", "choose", "cost_of"]

Budget = Literal["channels", "operations"]


def choose(
    channels: Channels, worth: Mapping[str, Worth], limit: float, budget: Budget
) -> dict[str, list[list[int]]]:
    """Remove the least useful member for what it costs, again and again, until the limit is kept.

    Args:
        channels: The spaces and readers of a model.
        worth: Space → what its channels are worth.
        limit: How much the model may cost.
        budget: What it is counted in.

    Returns:
        Space → the members that remain of each feature group, one at least.
    """
    groups: dict[str, list[list[int]]] = {}
    queues: dict[str, list[tuple[int, int]]] = {}
    for name, space in channels.spaces.items():
        if space.feature_groups is not None:
            groups[name] = [list(members) for members in space.groups()]
            queues[name] = _ranked(groups[name], worth[name].score)
    widths = channels.widths
    cost = cost_of(channels, widths, budget)
    while cost > limit:
        best, best_ratio, best_cost = "", 0.0, cost
        for name, queue in queues.items():
            if not queue:
                continue
            _, channel = queue[0]
            smaller = cost_of(channels, {**widths, name: widths[name] - 1}, budget)
            ratio = float(worth[name].score[channel]) / (cost - smaller)
            if not best or ratio < best_ratio:
                best, best_ratio, best_cost = name, ratio, smaller
        if not best:  # every feature group has one member
            break
        group, channel = queues[best].pop(0)
        groups[best][group].remove(channel)
        widths[best] -= 1
        cost = best_cost
    return groups


def check_reachable(channels: Channels, keep: float, budget: Budget) -> None:
    """Raise an error if one member of each feature group is still too much."""
    widths = {}
    least = {}
    for name, space in channels.spaces.items():
        widths[name] = least[name] = space.channels
        if space.feature_groups is not None:
            least[name] = len(space.groups())
    share = cost_of(channels, least, budget) / cost_of(channels, widths, budget)
    if share > keep:
        raise ValueError(
            f"keep={keep:g} cannot be reached: one member of each feature group leaves {share:.3f} of the "
            f"{budget}; pass keep={share + 0.001:.3f} or more"
        )


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
    if read.depthwise:
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
