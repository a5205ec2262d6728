"""Wiring: which layers feed which, and so the feature groups that each of them returns.

One dry run of the model leaves autograd's graph of what was computed. From the input of a layer we
walk this graph back to its *sources*: the layers that reach it through additions, activations,
norms, pools, concatenations and gates. What is added or multiplied must hold the same feature
groups, so layers that meet there share a *space*, and all feature groups are chosen at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ..groups.group import Group
from ..groups.members import Blocks
from ..loss.error import full_precision
from ..loss.feature_groups import FeatureGroups
from ..loss.modules import hooked, tensors_in
from .projection import VECTOR

__all__ = ["Mixing", "Specs", "Wiring", "choose", "is_depthwise", "nearest_named", "spread", "wire"]

Mixing = nn.Conv2d | nn.ConvTranspose2d | nn.Linear
"""Layers that mix channels."""
Specs = Mapping[str, FeatureGroups | None]
"""Feature groups by the name of a layer or a module around it, ``""`` for the rest; None: auto."""


class Source(NamedTuple):
    """A layer that an input comes from; the images have no name."""

    name: str | None
    channels: int
    part: int
    """Which of several concatenated parts it is in; what is added or multiplied is in one part."""


class Input(NamedTuple):
    """What a module was called with; what the model returned has no name and no module."""

    name: str | None
    module: nn.Module | None
    channels: int
    sources: tuple[Source, ...]
    on_vectors: bool
    """Whether it is (B, C), without pixels."""
    length: int
    """Of its first dim."""


class Wiring(NamedTuple):
    """What a dry run shows about a model."""

    modules: Mapping[str, nn.Module]
    inputs: list[Input]
    channels: dict[str, int]
    """How many channels each mixing layer returns, after a pixel shuffle that follows it."""
    shuffles: dict[str, int]
    """The factor of that pixel shuffle; 1 if there is none."""
    spreads: dict[str, float]
    """The variance of what each mixing layer returned, without its bias."""
    leaving: set[str]
    """Mixing layers whose channels are those of something that the model returns."""

    @property
    def hidden(self) -> set[str]:
        """Linear layers on vectors (B, C) from which nothing goes on to maps: those of a head."""
        to_maps: set[str | None] = set()
        found = set()
        for each in reversed(self.inputs):  # what a layer returns is read after it has run
            if not each.on_vectors or each.name in to_maps - {None}:
                to_maps.update(source.name for source in each.sources)
            elif each.name is not None and isinstance(each.module, nn.Linear):
                found.add(each.name)
        return found

    def sources(self, name: str) -> list[Source]:
        """Return the sources of a module's input, in the order of concatenated parts."""
        return [source for each in self.inputs if each.name == name for source in each.sources]

    def lengths(self, name: str) -> set[int]:
        """Return the first dims of a module's inputs."""
        return {each.length for each in self.inputs if each.name == name}


def wire(modules: Mapping[str, nn.Module], run: Callable[[Tensor], Any], images: Tensor) -> Wiring:
    """Return how the layers of a model are connected, from one ``run(images)`` with gradients."""
    wiring = Wiring(modules, [], {}, {}, {}, set())
    layer_of: dict[Any, str | None] = {}  # by autograd's nodes, which are the same ones while held
    clashing: list[str] = []

    def note_input(name: str | None, module: nn.Module | None, x: Tensor) -> None:
        sources = []
        for source, part, shuffle in _walk_back(x.grad_fn, layer_of):
            channels = images.shape[1]
            if source is not None:
                channels = wiring.channels[source]
                if wiring.shuffles.setdefault(source, shuffle) != shuffle:
                    clashing.append(source)
            sources.append(Source(source, channels // shuffle**2, part))
        channels = x.shape[_channel_dim(module, x)]
        wiring.inputs.append(Input(name, module, channels, tuple(sources), x.ndim < 3, len(x)))

    def before(name: str, module: nn.Module, x: Any) -> None:
        if isinstance(x, Tensor) and x.ndim and (_has_numbers(module) or isinstance(module, nn.GroupNorm)):
            note_input(name, module, x)

    def after(name: str, module: nn.Module, output: Any) -> None:
        if isinstance(module, Mixing) and isinstance(output, Tensor):
            wiring.channels[name] = output.shape[_channel_dim(module, output)]
            wiring.spreads.setdefault(name, spread(module, output.detach()))
            layer_of[output.grad_fn] = name

    leaf = images.clone().requires_grad_()
    x = leaf + 0  # a model may write to its input
    layer_of[x.grad_fn] = None
    # the graph is walked and never run backward: it need not hold any maps
    with saved_tensors_hooks(lambda _: None, lambda _: leaf), hooked(modules, before, after):
        output = run(x)
    for part in batches_in(output, len(images)):
        note_input(None, None, part)
        for source in wiring.inputs[-1].sources:
            if source.name is not None and _may_have_channels(part, source.channels):
                wiring.leaving.add(source.name)
    if clashing:
        raise ValueError(
            f"layer {clashing[0]!r} feeds a pixel shuffle and, before it, a norm or another layer: "
            f"put these after the shuffle"
        )
    for name in wiring.channels:
        wiring.channels[name] //= wiring.shuffles.setdefault(name, 1) ** 2
    return wiring


def choose(wiring: Wiring, group: Group, specs: Specs, outputs: str = "scalar") -> dict[str, Blocks]:
    """Return the feature groups that every mixing layer should return.

    Automatic ones have the group's order. They are single channels where channels do not divide by
    it, or where conv groups or a group norm would cut through them, in all layers of that space.
    Layers that are not named return single channels, or vectors, if they leave the model, and
    single numbers if they are linear layers of a head that returns scalars.

    Args:
        wiring: How layers are connected.
        group: Rotations and flips.
        specs: Feature groups by name.
        outputs: ``"scalar"``, or ``"vector"`` for pairs (dx, dy) that rotate with the image.
    """
    order = len(group)
    spaces = _spaces(wiring)
    asked = {}
    for name in wiring.channels:
        asked[name] = specs[nearest_named(name, specs)]
    auto: set[str | None] = {name for name, spec in asked.items() if spec is None}
    unnamed: set[str | None] = {name for name in asked if not is_named(name, specs)}

    single = spaces[None] & auto  # what meets the images, whose channels are no members
    for name, channels in wiring.channels.items():
        if asked[name] == FeatureGroups.of(1):
            single.add(name)
        if channels % order:
            single |= spaces[name] & auto
        if name in wiring.leaving & unnamed:
            single |= spaces[name] & unnamed
    for cut in _cut(wiring, order):
        single |= spaces[cut] & auto
    if outputs == "scalar":  # vectors can only be made of feature groups
        for name in wiring.hidden:
            single |= spaces[name] & unnamed
    for name in _on_invariant_numbers(wiring, single):
        single |= spaces[name] & (auto | unnamed)  # in place: layers that follow see it

    chosen: dict[str, Blocks] = {}
    problems = []
    for name, channels in wiring.channels.items():
        spec = asked[name]
        chosen[name] = ((1, channels),)
        if outputs == "vector" and name in wiring.leaving & unnamed:
            chosen[name] = ((VECTOR, channels),)
            if channels % 2:
                problems.append(f"{name!r} returns {channels}, which are not pairs (dx, dy)")
        elif name in single or is_depthwise(wiring.modules[name]):  # which returns what it gets
            continue
        elif spec is None:
            chosen[name] = ((order, channels),)
        elif spec.nearest(channels) == channels:
            chosen[name] = tuple(spec.blocks(channels))
        else:
            problems.append(f"{name!r} has {channels} for {spec} (nearest: {spec.nearest(channels)})")
    if problems:
        raise ValueError(
            f"the channels of these layers cannot be split: {'; '.join(problems)}; change their number, set "
            f'feature_groups="auto", or name each of them with size 1: {{"": …, {problems[0].split()[0]}: 1}}'
        )
    return chosen


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


def is_named(name: str, specs: Specs) -> bool:
    """Return whether feature groups were asked for in this layer, or in a module around it."""
    key = nearest_named(name, specs)
    return bool(key) or (not name and specs[key] is not None)  # a model that is one layer is the rest


def is_depthwise(module: nn.Module | None) -> bool:
    """Return whether each channel has a kernel of its own, and keeps its place."""
    if not isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        return False
    return module.groups == module.in_channels == module.out_channels


def spread(module: Mixing, output: Tensor) -> float:
    """Return the variance of what a layer returned, without its bias."""
    if module.bias is not None:
        bias = module.bias.detach().to(output)
        if not isinstance(module, nn.Linear):
            bias = bias.view(-1, 1, 1)  # (C, 1, 1)
        output = output - bias
    output = full_precision(output)
    mean_square = float(torch.linalg.vector_norm(output)) ** 2 / output.numel()  # faster than var
    return max(mean_square - float(output.mean()) ** 2, 0.0)


def batches_in(output: Any, count: int) -> list[Tensor]:
    """Return the tensors of numbers that a model returned for ``count`` images."""
    found = []
    for tensor in tensors_in(output, in_objects=False):
        if tensor.is_floating_point() and tensor.ndim and len(tensor) == count:
            found.append(tensor)
    return found


def _walk_back(node: Any, layer_of: Mapping[Any, str | None]) -> Iterator[tuple[str | None, int, int]]:
    """Yield the layers that a node comes from: name, concatenated part, and pixel shuffle."""
    stack = [(node, 0, 1)]
    seen = set()
    parts = 0
    while stack:
        node, part, shuffle = stack.pop()
        if node is None or (node, part) in seen:
            continue
        seen.add((node, part))
        if node in layer_of:
            yield layer_of[node], part, shuffle
            continue
        if node.name().startswith("PixelShuffle"):
            shuffle *= node._saved_upscale_factor
        for parent, _ in reversed(node.next_functions):  # the first of them is popped first
            if node.name().startswith("Cat"):
                parts += 1
                part = parts
            stack.append((parent, part, shuffle))


def _has_numbers(module: nn.Module) -> bool:
    """Return whether a module itself has several numbers; one is the same for all channels."""
    tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    return isinstance(module, Mixing) or any(tensor.numel() > 1 for tensor in tensors)


def _channel_dim(module: nn.Module | None, x: Tensor) -> int:
    """Return the dim with the channels of what a module gets or returns."""
    if isinstance(module, nn.Linear) or x.ndim == 1:
        return -1
    return 1


def _may_have_channels(output: Tensor, channels: int) -> bool:
    """Return whether an output may have these channels, first or last; of tokens any may."""
    if output.ndim not in (2, 4):
        return True
    channels_last = output.shape[-1] == channels and output.shape[1] == output.shape[-2]
    return output.shape[1] == channels or channels_last


def _spaces(wiring: Wiring) -> dict[str | None, set[str | None]]:
    """Return the layers that share a space with each layer, and with the images."""
    spaces: dict[str | None, set[str | None]] = {None: {None}}
    for layer in wiring.channels:
        spaces[layer] = {layer}
    for each in wiring.inputs:
        meeting: dict[tuple[int, int], str | None] = {}  # the first layer by part and channels
        if is_depthwise(each.module):
            meeting[0, each.channels] = each.name
        parts = {source.part for source in each.sources}
        whole = {source.part for source in each.sources if source.channels == each.channels}
        added_to_parts = bool(whole) and len(parts) > len(whole)  # to several, concatenated
        for source in each.sources:
            key = (source.part, source.channels)
            if added_to_parts:
                key = (0, 0)
            mine, others = spaces[source.name], spaces[meeting.setdefault(key, source.name)]
            if mine is not others:
                joined = mine | others
                spaces.update(dict.fromkeys(joined, joined))
    return spaces


def _cut(wiring: Wiring, order: int) -> Iterator[str | None]:
    """Yield layers whose feature groups a group norm or conv groups would cut through."""
    for each in wiring.inputs:
        module = each.module
        cuts_input = False
        if is_depthwise(module):
            continue
        if isinstance(module, nn.GroupNorm) and module.num_groups < module.num_channels:
            cuts_input = module.num_channels // module.num_groups % order != 0
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d) and module.groups > 1:
            cuts_input = module.in_channels // module.groups % order != 0
            if module.out_channels // module.groups % order:
                yield each.name
        if cuts_input:
            yield from (source.name for source in each.sources)


def _on_invariant_numbers(wiring: Wiring, single: set[str | None]) -> Iterator[str]:
    """Yield linear layers on single numbers, as of an argument: members would all be equal.

    What meets maps, as in squeeze-and-excitation, must hold the feature groups of these instead.
    """
    meets_maps: set[str | None] = set()
    for each in wiring.inputs:
        if not each.on_vectors:
            meets_maps.update(source.name for source in each.sources)
    for each in wiring.inputs:
        if each.name is None or each.name in meets_maps:
            continue
        is_single = single.issuperset(source.name for source in each.sources)
        if isinstance(each.module, nn.Linear) and each.on_vectors and is_single:
            yield each.name
