"""Channels: which layers write, pass on and read the same channels of a model.

Channels that are added or multiplied must be removed together, so layers that meet in a residual
sum share a *space*. A space is written by some layers, passed on by norms, and read by others: a
channel of it is an output of each writer, a number in each norm, and an input of each reader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils import parametrize

from ...loss.feature_groups import FeatureGroups, GroupPool
from ...loss.layers import by_name
from ...loss.modules import hooked, walk
from ...measuring.inputs import try_model
from ...tying.wiring import Mixing, Specs, Wiring, Word, asked_for, batches_in, is_depthwise

__all__ = ["Channels", "Part", "Read", "Space", "follow"]


class Part(NamedTuple):
    """Channels that a layer reads: all of a space, or those of the images (None)."""

    space: str | None
    channels: int


@dataclass
class Read:
    """What one layer, norm or group pool reads."""

    name: str
    module: nn.Module
    parts: tuple[Part, ...]
    """The spaces that are concatenated in its input."""
    pixels: int = 1
    """How many numbers of each channel are flattened in its input."""
    positions: int = 1
    """Pixels of its output."""
    positions_in: int = 1
    """Pixels of its input."""
    out: str | None = None
    """The space that it writes."""
    depthwise: bool = False
    """Whether each channel has a kernel of its own; one channel of one remains what it was."""

    @property
    def mixes(self) -> bool:
        """Whether it makes new channels of those that it reads."""
        return isinstance(self.module, Mixing) and not self.depthwise


@dataclass
class Space:
    """Channels that are removed together."""

    name: str
    """The first layer that writes them."""
    channels: int
    writers: list[str] = field(default_factory=list)
    feature_groups: FeatureGroups | None = None
    """How they are grouped; None if no channel may be removed."""
    reason: str = ""
    """Why no channel may be removed."""
    pooled_from: str | None = None
    """The space whose feature groups are pooled to these channels, which are only reordered."""

    def groups(self) -> list[list[int]]:
        """Return the channels of each feature group."""
        if self.feature_groups is None:
            return [[channel] for channel in range(self.channels)]
        found = []
        start = 0
        for size, channels in self.feature_groups.blocks(self.channels):
            for first in range(start, start + channels, size):
                found.append(list(range(first, first + size)))
            start += channels
        return found


@dataclass
class Channels:
    """All spaces of a model, and what reads them."""

    spaces: dict[str, Space]
    reads: list[Read]
    """In the order in which they run."""
    outputs: dict[str, str]
    """Each module that returns maps of one space → that space."""

    @property
    def widths(self) -> dict[str, int]:
        """Space → how many channels it has."""
        return {name: space.channels for name, space in self.spaces.items()}

    def with_mixes(
        self, model: nn.Module, mixes: Mapping[str, FeatureGroups], widths: Mapping[str, int]
    ) -> Channels:
        """Return the same for a smaller model.

        Args:
            model: The model without some channels.
            mixes: Space → its feature groups now.
            widths: Space → how many channels it has now; others have what they had.
        """
        spaces = {}
        for name, space in self.spaces.items():
            mix = mixes.get(name, space.feature_groups)
            spaces[name] = replace(space, channels=widths.get(name, space.channels), feature_groups=mix)
        reads = []
        for read in self.reads:
            parts = []
            for part in read.parts:
                count = part.channels
                if part.space is not None:
                    count = spaces[part.space].channels
                parts.append(Part(part.space, count))
            reads.append(replace(read, module=model.get_submodule(read.name), parts=tuple(parts)))
        return Channels(spaces, reads, self.outputs)


def follow(model: nn.Module, images: Tensor, feature_groups: Any) -> Channels:
    """Run a model once, in the mode it is in, and follow its channels.

    Args:
        model: A model without tied weights.
        images: A few images (B, C, H, W), where the model is.
        feature_groups: One for all layers, or layer → its own, with ``""`` for the rest.

    Raises:
        ValueError: Channels cannot be split into these feature groups.
    """
    modules = {name: module for name, module, _ in walk(model)}
    trace = _Trace()
    with torch.no_grad(), trace, hooked(modules, trace.enter, trace.leave):
        trace.end(try_model(model, trace.start(images), images_alone=True), len(images))
    channels = trace.channels_of_model()
    _keep_whole(trace, channels, modules)
    _set_feature_groups(channels, by_name(feature_groups))
    return channels


class _Trace(Wiring):
    """Wiring that also remembers what each module reads, channel by channel."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, list[tuple[nn.Module, Word, int]]] = {}
        """Modules with numbers of their own: what they read, in how many pixels; () if unknown."""
        self.lost: dict[str, set[str | None]] = {}
        """Modules that read channels nobody can tell → the layers that these come from."""
        self.positions: dict[str, int] = {}
        """How many pixels each layer returns."""
        self.positions_in: dict[str, int] = {}
        self.returned: dict[str, Word] = {}
        self.pools: dict[str, Word] = {}
        """Group pools, and what they read."""

    def enter(self, name: str, module: nn.Module, x: Any) -> None:
        super().enter(name, module, x)
        if not isinstance(x, Tensor) or not _has_numbers(module):
            return
        known = self.words.get(x, [])
        if not known or x.ndim < 2:
            return
        word, pixels = _fitting(module, x, known)
        self.positions_in[name] = x[0, :1].numel()
        if not word:
            self.lost[name] = self.layers_of(x)
        self.calls.setdefault(name, []).append((module, word, pixels))
        if isinstance(module, GroupPool):
            self.pools[name] = word

    def leave(self, name: str, module: nn.Module, output: Any) -> None:
        super().leave(name, module, output)
        if not isinstance(output, Tensor):
            return
        if isinstance(module, GroupPool):  # its maps are new channels, one for each feature group
            count = output.shape[1]
            self.spaces.setdefault(name, {name})
            self.channels.setdefault(name, count)
            self._note(output, [((name, count),)])
        if isinstance(module, Mixing):
            width = output.shape[-1 if isinstance(module, nn.Linear) else 1]
            self.positions[name] = output.numel() // (len(output) * width)
        if output.ndim == 4:
            for word in self.words.get(output, []):
                if sum(count for _, count in word) == output.shape[1]:
                    self.returned[name] = word

    def end(self, output: Any, num_images: int) -> None:
        super().end(output, num_images)
        for part in batches_in(output, num_images):  # also if they are flattened
            self.leaving.update(layer for layer in self.layers_of(part) if layer is not None)

    def space_of(self, layer: str | None) -> str | None:
        """Return the name of a layer's space, that of its first layer; None for images."""
        together = self.spaces[layer]
        if None in together:
            return None
        return next(name for name in self.channels if name in together)

    def channels_of_model(self) -> Channels:
        """Bring what was seen into its final form, when all spaces are known."""
        spaces: dict[str, Space] = {}
        for name, count in self.channels.items():
            key = self.space_of(name)
            if key is None:
                continue
            space = spaces.setdefault(key, Space(key, count))
            space.writers.append(name)
        reads = []
        for name, calls in self.calls.items():
            module, word, pixels = calls[0]
            parts = tuple(Part(self.space_of(layer), count) for layer, count in word)
            out = None
            if name in self.channels:
                out = self.space_of(name)
            read = Read(name, module, parts, pixels, out=out)
            read.positions = self.positions.get(name, 1)
            read.positions_in = self.positions_in[name]
            read.depthwise = is_depthwise(module)
            reads.append(read)
        outputs = {}
        for name, word in self.returned.items():
            if len(word) == 1:
                key = self.space_of(word[0][0])
                if key is not None:
                    outputs[name] = key
        return Channels(spaces, reads, outputs)


def _has_numbers(module: nn.Module) -> bool:
    """Return whether a module has numbers of its own that may belong to channels."""
    if isinstance(module, Mixing | GroupPool | _NormBase):
        return True
    return bool(module._parameters) or bool(module._buffers)


def _fitting(module: nn.Module, x: Tensor, known: Sequence[Word]) -> tuple[Word, int]:
    """Return which channels a tensor has, and how many pixels of each; () if nobody can tell."""
    width = x.shape[1]
    if isinstance(module, nn.Linear):
        width = x.shape[-1]
    flattened: list[tuple[Word, int]] = []
    for word in known:
        total = sum(count for _, count in word)
        if total == width:
            return word, 1
        if total and width % total == 0 and x.ndim == 2:
            flattened.append((word, width // total))
    if len(flattened) == 1:
        return flattened[0]
    return (), 1


def _keep_whole(trace: _Trace, channels: Channels, modules: dict[str, nn.Module]) -> None:
    """Note which spaces cannot lose channels, and why."""

    def keep(layers: set[str | None] | set[str], reason: str) -> None:
        for layer in layers:
            key = trace.space_of(layer)
            if key is not None and not channels.spaces[key].reason:
                channels.spaces[key].reason = reason

    for name, module in modules.items():  # numbers of a head belong to no feature group
        if isinstance(module, nn.Linear) and name in trace.channels and name not in trace.on_maps:
            keep({name}, "not maps")
    keep(set(trace.leaving), "returned by the model")
    keep({layer for layer in trace.shuffles if layer is not None}, "followed by a pixel shuffle")
    for name, layers in trace.lost.items():
        keep(layers, f"read by {name!r} in a way that cannot be followed")
    shared = _shared_parameters(modules)
    for name, calls in trace.calls.items():
        module, word, _ = calls[0]
        around: set[str | None] = {layer for layer, _ in word}
        if name in trace.channels:
            around.add(name)
        problem = _problem(module)
        if name in shared:
            problem = "shares its weights with another layer"
        elif len(calls) > 1:
            problem = "runs more than once"
        for layer, count in word:
            if layer is not None and count != trace.channels[layer]:
                problem = "reads some channels of a layer"
        if problem:
            keep(around, f"{name!r} {problem}")

    # pooled maps are reordered with their feature groups, so only their own readers may know of it
    for name, word in trace.pools.items():
        key = trace.space_of(name)
        alone = key is not None and channels.spaces[key].writers == [name]
        if len(word) != 1:
            keep({layer for layer, _ in word}, f"pooled by {name!r} together with others")
        elif not alone:
            keep({word[0][0]}, f"{name!r} pools them, and its maps are added to others")
        elif key is not None and channels.spaces[key].reason:
            keep({word[0][0]}, f"{name!r} pools them, and its maps are {channels.spaces[key].reason}")
        elif key is not None:
            channels.spaces[key].pooled_from = trace.space_of(word[0][0])
            channels.spaces[key].reason = "pooled"


def _problem(module: nn.Module) -> str:
    """Say why the channels of a module cannot be cut; empty if they can."""
    if parametrize.is_parametrized(module) or any("weight_g" in key for key in module._parameters):
        return "computes its weight by a parametrization"
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        if module.groups > 1 and not is_depthwise(module):
            return f"has {module.groups} conv groups"
        return ""
    if isinstance(module, nn.Linear | GroupPool | _NormBase):
        return ""
    if isinstance(module, nn.PReLU):
        return ""
    return f"is a {type(module).__name__} with numbers of its own"


def _shared_parameters(modules: dict[str, nn.Module]) -> set[str]:
    """Return the modules that have a parameter which another module has too."""
    owners: dict[int, list[str]] = {}
    for name, module in modules.items():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners.setdefault(id(parameter), []).append(name)
    found: set[str] = set()
    for names in owners.values():
        if len(names) > 1:
            found.update(names)
    return found


def _set_feature_groups(channels: Channels, specs: Specs) -> None:
    """Give each space that may lose channels its feature groups."""
    for space in channels.spaces.values():
        if space.reason:
            continue
        asked = {asked_for(name, specs)[0] for name in space.writers}
        if len(asked) > 1:
            raise ValueError(
                f"the channels of {', '.join(map(repr, space.writers))} are added, so they need the same "
                f"feature groups; got {', '.join(str(spec) for spec in asked)}"
            )
        (spec,) = asked
        if spec is None:
            continue
        try:
            spec.blocks(space.channels)
        except ValueError as error:
            raise ValueError(
                f"layer {space.name!r}: {error}; to leave it whole, pass "
                f'feature_groups={{"": {str(spec)!r}, {space.name!r}: 1}}'
            ) from None
        space.feature_groups = spec
    for read in channels.reads:
        if isinstance(read.module, GroupPool) and len(read.parts) == 1:
            _check_pool(read, channels)


def _check_pool(read: Read, channels: Channels) -> None:
    """Raise an error if a group pool has other feature groups than the space that it reads."""
    key = read.parts[0].space
    if key is None or channels.spaces[key].reason:
        return
    spec = channels.spaces[key].feature_groups
    pooled: Any = read.module.feature_groups
    if spec != pooled:
        raise ValueError(
            f"{read.name!r} pools feature groups {pooled}, but feature_groups says {spec} for {key!r}: "
            f"pass feature_groups={str(pooled)!r}, or name that layer in a mapping"
        )
