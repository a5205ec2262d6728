"""Shrink: a trained model with feature groups of one size → a smaller one with a mix of sizes.

The paper sets the mix of a heterogeneous network by hand, before training, and gives every layer
the same. Here a trained network says which members it can do without (``worth.py``), the least
useful ones go until the budget is kept (``budget.py``), and their channels are removed for real
(``removal.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..._text import columns, short_count, type_name
from ...loss.feature_groups import FeatureGroups, Spec
from ...loss.modules import hooked, tensors_in, unwrapped
from ...measuring.inputs import Images, check_inputs, checked_batches, device_of, eval_mode
from ...tying.tie import plain_copy
from .budget import Budget, check_reachable, choose, cost_of
from .channels import Channels, follow
from .removal import cut, estimate_norms, without
from .worth import Loss, Worth, worth_of

__all__ = ["Shrunk", "ShrunkLayer", "shrink"]

CHECKED_IMAGES = 8
"""Images on which the smaller model is compared with the masked one."""
MAX_DIFFERENCE = 1e-3
"""Relative difference between the two that is still rounding."""


@dataclass(frozen=True)
class ShrunkLayer:
    """What became of the channels of one layer, or of several whose outputs are added."""

    layers: tuple[str, ...]
    """The layers that write these channels."""
    channels: int
    """Before."""
    kept: Tensor
    """The channels that remain, in their new order."""
    feature_groups: FeatureGroups
    """The mix that they have now."""
    wins: Tensor
    """The share of pixels where each channel, before, was the only maximum of its feature group."""
    score: Tensor
    """What each channel, before, was worth: how the loss, or the maximum, changes without it."""

    @property
    def sizes(self) -> dict[int, int]:
        """Size → how many feature groups have it now."""
        blocks = self.feature_groups.blocks(len(self.kept))
        return {size: count // size for size, count in blocks}


@dataclass(frozen=True, repr=False)
class Shrunk:
    """What :func:`shrink` returns; prints as a table."""

    model: nn.Module
    """The smaller model: plain layers, in the mode of the one it came from."""
    layers: dict[str, ShrunkLayer]
    """The first layer that writes some channels → what became of them."""
    feature_groups: dict[str, FeatureGroups]
    """Each module that returns maps → the mix of their channels, for the loss and ``measure``."""
    whole: dict[str, str] = field(default_factory=dict)
    """Layers that lost nothing, and why."""
    channels: tuple[int, int] = (0, 0)
    """Channels of the layers that may lose some, before and after."""
    parameters: tuple[int, int] = (0, 0)
    """Before and after."""
    operations: tuple[int, int] = (0, 0)
    """Multiplications of an image in convolutions and linear layers, before and after."""

    def __str__(self) -> str:
        rows = [["layer", "channels", "now", "feature groups", "never win"]]
        for name, layer in self.layers.items():
            mix = ", ".join(f"{count} of {size}" for size, count in layer.sizes.items())
            others = len(layer.layers) - 1
            if others:
                name = f"{name} (+{others})"
            never = int((layer.wins == 0).sum())
            rows.append([name, str(layer.channels), str(len(layer.kept)), mix, str(never)])
        totals = []
        for what in ("channels", "parameters", "operations"):
            before, after = getattr(self, what)
            totals.append(f"{what} {short_count(before)} → {short_count(after)} ({after / before:.0%})")
        return "\n".join([*columns(rows), *totals])

    def __repr__(self) -> str:
        before, after = self.channels
        return f"<Shrunk: {after} of {before} channels in {len(self.layers)} layers>"


def shrink(
    model: nn.Module,
    images: Images,
    feature_groups: Spec | Mapping[str, Spec] = 4,
    keep: float = 0.69,
    labels: Tensor | None = None,
    loss: Loss = F.cross_entropy,
    budget: Budget = "channels",
    rounds: int = 8,
    update_norms: bool = True,
    batch_size: int = 64,
) -> Shrunk:
    """Remove the members of feature groups that a trained model needs least, channels and all.

    Each member is scored on your images: with labels by what the loss loses without it, otherwise
    by how far the maximum over its feature group falls. The lowest in the whole model go, some in
    each round, until the budget is kept; of each feature group one member stays. Layers whose
    outputs are added lose the same channels. What remains is a model of ordinary, smaller layers,
    to fine-tune in your own loop, with ``result.feature_groups`` for the loss.

    Removing members breaks exact equivariance: a model that was tied is no longer equivariant
    afterwards, and feature groups of 3 members have no regular action. Measure it again. Not for
    models that are not trained yet: choose a mix such as ``"4-2-1"`` for those.

    Args:
        model: A trained model with feature groups of consecutive channels. It is not changed.
        images: Some hundred training images, a tensor (N, C, H, W) or batches, as it takes them.
        feature_groups: How channels are grouped now: one for all layers, or layer → its own, with
            ``""`` for the rest. A layer with size 1 is left whole.
        keep: The share of channels, or of operations, that remains at most: above 0 and up to 1.
        labels: What ``loss`` compares outputs with, (N, …), in the order of the images.
        loss: ``loss(output, labels)``, a mean over images.
        budget: ``"operations"`` counts multiplications instead of channels: members of costly
            layers go first.
        rounds: How often members are scored; what is left scores differently when others are gone.
        update_norms: Estimate the statistics of batch norms again on these images after each
            round. False: the model does exactly what it did with zeros in place of the channels.
        batch_size: Images per batch, if ``images`` is a tensor.

    Returns:
        The smaller model, and what became of each layer. Save it with :func:`ien.export`, which
        keeps its architecture: the weights fit no network of the old size.

    Raises:
        ValueError: Nothing can be removed, or not as much; channels cannot be split into these
            feature groups, or cannot be followed through the model. The message names the layer.

    >>> net = ien.models.cnn6(width=1 / 8).eval()
    >>> x = torch.rand(32, 1, 28, 28)
    >>> result = shrink(net, x, keep=0.69, labels=torch.arange(32) % 10)
    >>> result.channels, result.model(x).shape
    ((216, 149), torch.Size([32, 10]))
    """
    check_inputs(model, images, None, batch_size)
    if labels is not None and not isinstance(labels, Tensor):
        raise TypeError(f"labels must be a tensor (N, …), one entry for each image; got {type_name(labels)}")
    if isinstance(keep, bool) or not isinstance(keep, int | float) or not 0 < keep <= 1:
        raise ValueError(f"keep is the share that remains, above 0 and up to 1, such as 0.69; got {keep!r}")
    if budget not in ("channels", "operations"):
        raise ValueError(f'budget is "channels" or "operations"; got {budget!r}')
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        raise ValueError(f"rounds must be a whole number of at least 1; got {rounds!r}")
    large = plain_copy(unwrapped(model))
    batches = _labelled(large, images, labels, batch_size)
    few = batches[0][0][:CHECKED_IMAGES]
    with eval_mode(large):
        channels = follow(large, few, feature_groups)
        _check_some(channels)
        check_reachable(channels, keep, budget)
        total = cost_of(channels, channels.widths, budget)
        small = large
        now = channels
        first_worth: dict[str, Worth] = {}
        kept = {name: torch.arange(space.channels) for name, space in channels.spaces.items()}
        for done in range(1, rounds + 1):
            worth = worth_of(small, now, batches, loss, update_norms)
            first_worth = first_worth or worth
            groups = choose(now, worth, keep ** (done / rounds) * total, budget)
            small, now, remaining = _removed(small, now, groups, few)
            for name, index in remaining.items():
                kept[name] = kept[name][index]
            if keep == 1:
                break  # there is nothing to remove, nor to estimate again
            if update_norms:
                estimate_norms(small, [x for x, _ in batches])
        result = _told(large, small, channels, now, kept, first_worth)
    _set_modes(small, model)
    return result


def _labelled(
    model: nn.Module, images: Images, labels: Tensor | None, batch_size: int
) -> list[tuple[Tensor, Tensor | None]]:
    """Return batches of images with their labels, where the model is."""
    batches = list(checked_batches(images, batch_size))
    count = sum(len(x) for x in batches)
    if count == 0:
        raise ValueError("there are no images to score the members on")
    if labels is not None and len(labels) != count:
        raise ValueError(f"there are {len(labels)} labels for {count} images: pass one for each image")
    found: list[tuple[Tensor, Tensor | None]] = []
    start = 0
    for x in batches:
        x = x.to(device_of(model, x.device))
        some = None
        if labels is not None:
            some = labels[start : start + len(x)].to(x.device)
        found.append((x, some))
        start += len(x)
    return found


def _check_some(channels: Channels) -> None:
    """Raise an error if no feature group of any layer has two members."""
    for space in channels.spaces.values():
        if space.feature_groups is not None and space.feature_groups.sizes[0] > 1:
            return
    reasons = []
    for space in channels.spaces.values():
        if space.pooled_from is None:
            reasons.append(f"{space.name!r} ({space.reason or 'feature groups of size 1'})")
    raise ValueError(
        f"no layer has members to remove: {', '.join(reasons) or 'the model ran no convolution'}; pass the "
        f"feature_groups that the model was trained with"
    )


def _removed(
    model: nn.Module, channels: Channels, groups: Mapping[str, list[list[int]]], few: Tensor
) -> tuple[nn.Module, Channels, dict[str, Tensor]]:
    """Copy a model without the channels that no feature group has any more.

    Returns:
        The smaller model, its spaces, and which channels each space keeps, in their new order.
    """
    kept: dict[str, Tensor] = {}
    mixes: dict[str, FeatureGroups] = {}
    orders: dict[str, list[int]] = {}
    for name, members in groups.items():
        # larger feature groups first, otherwise in their old order
        orders[name] = sorted(range(len(members)), key=lambda group: -len(members[group]))
        remaining: list[int] = []
        for group in orders[name]:
            remaining += members[group]
        kept[name] = torch.tensor(remaining)
        mixes[name] = FeatureGroups.of(dict(Counter(len(each) for each in members)))
    reordered = dict(kept)
    for name, space in channels.spaces.items():
        if space.pooled_from is not None and space.pooled_from in orders:
            reordered[name] = torch.tensor(orders[space.pooled_from])
    small = plain_copy(model)
    cut(small, channels, reordered, mixes)
    _check(model, small, channels, kept, few)
    widths = {name: len(index) for name, index in kept.items()}
    return small, channels.with_mixes(small, mixes, widths), kept


def _told(
    large: nn.Module,
    small: nn.Module,
    before: Channels,
    after: Channels,
    kept: Mapping[str, Tensor],
    worth: Mapping[str, Worth],
) -> Shrunk:
    """Put together what became of a model, and tell the model what its feature groups are now."""
    layers, whole = {}, {}
    mixes: dict[str, FeatureGroups] = {}
    for name, space in before.spaces.items():
        mix = after.spaces[name].feature_groups
        if mix is not None:
            mixes[name] = mix
            writers = tuple(space.writers)
            told = worth[name]
            layers[name] = ShrunkLayer(writers, space.channels, kept[name], mix, told.wins, told.score)
        elif space.pooled_from is None:
            whole[name] = space.reason
    feature_groups = {}
    for module, space_name in before.outputs.items():
        if space_name in mixes:
            feature_groups[module] = mixes[space_name]
    taps: Any = getattr(small, "taps", ())
    if hasattr(small, "feature_groups") and all(tap in feature_groups for tap in taps):
        small.feature_groups = {tap: feature_groups[tap] for tap in taps}  # type: ignore[assignment]
    return Shrunk(
        small,
        layers,
        feature_groups,
        whole,
        channels=_counted(before, after, "channels"),
        parameters=(_parameters(large), _parameters(small)),
        operations=_counted(before, after, "operations"),
    )


def _counted(before: Channels, after: Channels, budget: Budget) -> tuple[int, int]:
    return cost_of(before, before.widths, budget), cost_of(after, after.widths, budget)


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@torch.no_grad()
def _check(
    large: nn.Module, small: nn.Module, channels: Channels, kept: Mapping[str, Tensor], x: Tensor
) -> None:
    """Raise an error unless the smaller model does what the large one does with masked channels."""
    with without(large, channels, kept):
        wanted = list(tensors_in(large(x)))
    entered: list[str] = []
    problem = ""
    found: list[Tensor] = []
    try:
        with hooked(dict(small.named_modules()), lambda name, module, given: entered.append(name)):
            found = list(tensors_in(small(x)))
    except Exception as error:  # whatever the model's own code raises
        problem = f"after it, {entered[-1]!r} fails ({' '.join(str(error).split())[:200]})"
    if not problem and not _alike(wanted, found):
        problem = "without them the model computes something else than with zeros in their place"
    if problem:
        names = ", ".join(repr(name) for name in kept)
        raise ValueError(
            f"shrink cannot follow the channels of {names} through this model: {problem}; leave layers whole "
            f'by name, feature_groups={{"": 4, {next(iter(kept))!r}: 1}}, and use modules, not '
            f"functions: ien.GroupPool, nn.BatchNorm2d"
        )


def _alike(wanted: list[Tensor], found: list[Tensor]) -> bool:
    for one, other in zip(wanted, found, strict=True):
        if one.shape != other.shape:
            return False
        scale = one.abs().max().clamp_min(1e-12)
        if not (one - other).abs().max() <= MAX_DIFFERENCE * scale:
            return False
    return True


def _set_modes(small: nn.Module, model: nn.Module) -> None:
    """Give each module the mode that it has in the model."""
    modes = {name: module.training for name, module in unwrapped(model).named_modules()}
    for name, module in small.named_modules():
        module.training = modes.get(name, model.training)
