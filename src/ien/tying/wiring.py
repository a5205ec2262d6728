"""Wiring: which layers the channels of a tensor come from, and so the feature groups to choose.

While a model runs, every operation is seen, and what it returns is given a *word*: the layers that
its channels come from, through additions, activations, norms, pools, concatenations and gates. A
word may be wrong, as after a slice of channels; then its number of channels seldom fits. What is
added or multiplied must hold the same feature groups, so layers that meet there share a *space*,
and feature groups are chosen for all spaces at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from ..groups.group import Group
from ..groups.members import Blocks
from ..loss.error import full_precision
from ..loss.feature_groups import FeatureGroups
from ..loss.modules import tensors_in
from .projection import VECTOR

__all__ = ["Mixing", "Specs", "Wiring", "asked_for", "batches_in", "choose", "is_depthwise", "spread"]

Mixing = nn.Conv2d | nn.ConvTranspose2d | nn.Linear
"""Layers that mix channels."""
Specs = Mapping[str, FeatureGroups | None]
"""Feature groups by the name of a layer or a module around it, ``""`` for the rest; None: auto."""
Layer = str | None
"""The name of a layer that mixes channels; None for the images."""
Word = tuple[tuple[Layer, int], ...]
"""What channels are: those of these layers, each with its number of channels, concatenated."""


class Wiring(TorchFunctionMode):
    """Follows channels through a model, as a context around its run, with hooks on its modules.

    A depthwise convolution returns what it gets, and is not counted as a layer here.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words = WeakTensorKeyDictionary()
        """The words of each tensor that depends on the images, of different numbers of channels."""
        self.channels: dict[str, int] = {}
        """How many channels each layer returns, after a pixel shuffle that follows it."""
        self.shuffles: dict[Layer, int] = {}
        """The factor of that pixel shuffle, if there is one."""
        self.spreads: dict[str, float] = {}
        """The variance of what each layer returned, without its bias."""
        self.spaces: dict[Layer, set[Layer]] = {None: {None}}
        """The layers that share a space with each one."""
        self.reads: list[tuple[str, nn.Module, set[Layer]]] = []
        """Layers and group norms in the order that they run, and the layers they read."""
        self.on_maps: set[Layer] = set()
        """Layers whose channels are those of maps, also if maps are only multiplied with them."""
        self.leaving: set[str] = set()
        """Layers whose channels the model returns."""

    def start(self, images: Tensor) -> Tensor:
        """Return a copy of images to follow; a model may write to its input."""
        x = images.clone()
        self.words[x] = [((None, images.shape[1]),)]
        return x

    def layers_of(self, x: Tensor) -> set[Layer]:
        """Return the layers that a tensor comes from."""
        layers: set[Layer] = set()
        for word in self.words.get(x, []):
            for layer, _ in word:
                layers |= self.spaces[layer]
        return layers

    def enter(self, name: str, module: nn.Module, x: Any) -> None:
        """Note what a module is about to read."""
        if isinstance(module, Mixing | nn.GroupNorm) and isinstance(x, Tensor):
            self.reads.append((name, module, self.layers_of(x)))

    def leave(self, name: str, module: nn.Module, output: Any) -> None:
        """Note what a module has returned."""
        if not isinstance(module, Mixing) or not isinstance(output, Tensor):
            return
        if name not in self.spreads:
            self.spreads[name] = spread(module, output)
        if not is_depthwise(module):
            channels = output.shape[-1 if isinstance(module, nn.Linear) else 1]
            self.spaces.setdefault(name, {name})
            self.channels.setdefault(name, channels)
            self._note(output, [((name, channels),)])

    def end(self, output: Any, num_images: int) -> None:
        """Note what the model has returned."""
        for part in batches_in(output, num_images):
            for word in self.words.get(part, []):
                # the channels of tokens and boxes may be cut in any way
                if part.ndim not in (2, 4) or _has_channels(part, _total(word)):
                    for layer, _ in word:
                        self.leaving.update(name for name in self.spaces[layer] if name is not None)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and give what it returns words."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given = list(tensors_in((args, kwargs), in_objects=False))
        known = [self.words[x] for x in given if x in self.words]
        if not known:
            return result
        called = getattr(func, "__name__", "")
        if called in ("cat", "concat", "concatenate") and len(known) == len(given):
            joined: Word = ()
            for words in known:
                joined += (*words, ())[0]  # nothing, if nobody knows
            words = [joined]
        else:
            words = self._met(known)
        if called == "pixel_shuffle":
            words = self._shuffled(words, kwargs.get("upscale_factor", args[-1]))
        changed = list(tensors_in(result, in_objects=False))
        if result is None:  # x[…] = y
            changed = given[:1]
        for x in changed:
            self._note(x, words)
        return result

    def _note(self, x: Tensor, words: list[Word]) -> None:
        self.words[x] = words
        if x.ndim == 4:
            self.on_maps |= self.layers_of(x)

    def _met(self, known: list[list[Word]]) -> list[Word]:
        """Return the words of what was made of several tensors; their layers share spaces."""
        found: dict[int, Word] = {}  # by the number of channels
        for words in known:
            for word in words:
                first = found.setdefault(_total(word), word)
                pairs = list(zip(first, word, strict=False))
                if [count for _, count in first] != [count for _, count in word]:
                    pairs = [(first[0], part) for part in (*first, *word)]  # all share one space
                for (one, _), (other, _) in pairs:
                    joined = self.spaces[one] | self.spaces[other]
                    self.spaces.update(dict.fromkeys(joined, joined))
        return list(found.values())

    def _shuffled(self, words: list[Word], factor: int) -> list[Word]:
        """Note that a pixel shuffle follows a layer, and return the words after it."""
        if len(words) != 1 or len(words[0]) != 1:
            return []
        ((layer, channels),) = words[0]
        if layer is not None and layer not in self.shuffles:
            self.shuffles[layer] = factor
            self.channels[layer] = channels // factor**2
        return [((layer, channels // factor**2),)]

    @property
    def beside_maps(self) -> set[str]:
        """Linear layers from which nothing goes on to maps, as in a head, or that read no features.

        These read arguments, or the images.
        """
        to_maps = set(self.on_maps)
        found: set[str] = set()
        for name, module, layers in reversed(self.reads):  # what a layer returns is read later
            if name in to_maps:
                to_maps |= layers
            elif isinstance(module, nn.Linear):
                found.add(name)
        for name, module, layers in self.reads:
            if isinstance(module, nn.Linear) and name not in self.on_maps and layers <= {None, *found}:
                found.add(name)
        return found


def choose(wiring: Wiring, group: Group, specs: Specs, outputs: str = "scalar") -> dict[str, Blocks]:
    """Return the feature groups that every layer should return.

    Automatic ones have the group's order. They are single channels where channels do not divide by
    it, or where conv groups or a group norm would cut through them, in all layers of that space.
    Layers that are not named return single channels, or vectors, if they leave the model, and
    single numbers if they are linear layers of a head, or on arguments: members made of numbers
    that no rotation changes would all be equal.

    Args:
        wiring: What a run of the model has shown.
        group: Rotations and flips.
        specs: Feature groups by name.
        outputs: ``"scalar"``, or ``"vector"`` for pairs (dx, dy) that rotate with the image.
    """
    order = len(group)
    spaces = wiring.spaces
    single = set(spaces[None])  # where feature groups are automatic
    for name, channels in wiring.channels.items():
        if channels % order:
            single |= spaces[name]
    for name, module, layers in wiring.reads:
        width_in, width_out = _widths(module)
        if width_in % order:
            single = single.union(*[spaces[layer] for layer in layers])
        if width_out % order:
            single |= spaces[name]
    leaving = {name for name in wiring.leaving if not asked_for(name, specs)[1]}
    beside_maps = set()
    if outputs == "scalar":  # vectors can only be made of feature groups
        beside_maps = wiring.beside_maps
    scalar = set().union(*[spaces[name] for name in leaving | beside_maps])  # unless they are named

    chosen: dict[str, Blocks] = {}
    problems = []
    for name, channels in wiring.channels.items():
        spec, named = asked_for(name, specs)
        if outputs == "vector" and name in leaving:
            chosen[name] = ((VECTOR, channels),)
            if channels % 2:
                problems.append(f"{name!r} returns {channels}, which are not pairs (dx, dy)")
        elif (name in scalar and not named) or (name in single and spec is None):
            chosen[name] = ((1, channels),)
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


def asked_for(name: str, specs: Specs) -> tuple[FeatureGroups | None, bool]:
    """Return the feature groups that a layer should have, and whether it is named.

    The nearest module around it speaks for a layer that is not named itself.

    >>> asked_for("layer1.0.conv", {"": None, "layer1": FeatureGroups.of(4)})
    (FeatureGroups.of(4), True)
    """
    key = name
    while key and key not in specs:
        key = key.rpartition(".")[0]
    if key not in specs:
        raise KeyError(f'feature_groups says nothing about layer {name!r}: name it, or "" for all others')
    named = bool(key) or (not name and specs[key] is not None)  # a model that is one layer is the rest
    return specs[key], named


def is_depthwise(module: nn.Module) -> bool:
    """Return whether each channel has a kernel of its own, and keeps its place."""
    if not isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        return False
    return module.groups == module.in_channels == module.out_channels


def spread(module: Mixing, output: Tensor) -> float:
    """Return the variance of what a layer returned, without its bias."""
    if module.bias is not None:
        bias = module.bias.to(output)
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


def _total(word: Word) -> int:
    return sum(channels for _, channels in word)


def _has_channels(x: Tensor, channels: int) -> bool:
    """Return whether a tensor may have these channels: first, or last, beside square maps."""
    if x.ndim < 2:
        return x.ndim == channels == 1  # numbers (B,)
    channels_last = x.shape[-1] == channels and (x.ndim == 3 or x.shape[1] == x.shape[-2])
    return x.shape[1] == channels or channels_last


def _widths(module: nn.Module) -> tuple[int, int]:
    """Return how many channels of the input and of the output are one group; 0 if all are."""
    if isinstance(module, nn.GroupNorm) and module.num_groups < module.num_channels:
        return module.num_channels // module.num_groups, 0
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d) and module.groups > 1 and not is_depthwise(module):
        return module.in_channels // module.groups, module.out_channels // module.groups
    return 0, 0
