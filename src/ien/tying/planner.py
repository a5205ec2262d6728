"""The planner: ties each layer just before it runs on views, and checks what it returns.

The feature groups that come in are those of the layers before it, or detected. The weight is tied
between these and the ones that it should return, and then its output is checked. So every layer
reads what is equivariant already, and the first output that is not is where the model breaks.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.utils import parametrize

from .._text import MODEL_ITSELF
from ..groups.group import Group
from ..groups.members import Blocks, num_channels
from ..loss.error import full_precision
from .detect import feature_groups_of, layouts, swaps_sides
from .parametrized import Projected
from .planned import (
    Breaks,
    Plan,
    TiedLayer,
    TiedTensor,
    check_layer,
    check_returned,
    layer_text,
    maps_of,
    sizes_text,
)
from .projection import MIN_SHARE, VECTOR, Tie, cuts, grouped
from .wiring import Mixing, Specs, Wiring, Word, asked_for, batches_in, is_depthwise, spread

__all__ = ["Planner"]

MAX_ROUNDING = 1e-6
"""Weights at no more than this relative distance from tied ones are tied already."""
MAX_GAIN = 4.0
"""How far a random weight may grow or shrink to keep a variance: dead maps would need more."""
CUTS_THROUGH = (
    "its groups cut through feature groups, whose members are permuted: use groups=1, or "
    'feature_groups="auto" for single channels there'
)


@dataclass
class Planner:
    """Ties each layer of a model just before it runs on views."""

    group: Group
    wiring: Wiring
    chosen: Mapping[str, Blocks]
    specs: Specs
    num_views: int
    random: bool = True
    smooth: bool = True
    ran: set[str] = field(default_factory=set)
    constant: set[str | None] = field(default_factory=set)
    """Layers on what is the same for all views, as an argument that is broadcast."""
    inputs: dict[str, Blocks] = field(default_factory=dict)
    """The feature groups in the input of layers that mix channels."""
    tied: dict[int, Tie] = field(default_factory=dict)
    """How tensors are tied, by their id."""
    changed: bool = False
    outdated: set[nn.Module] = field(default_factory=set)
    """Norms with statistics of other weights."""

    def __post_init__(self) -> None:
        self.plan = Plan(self.group)

    def tie(self, name: str, module: nn.Module, x: Any) -> None:
        """Tie the weights of a module that is about to run on ``x``."""
        self.ran.add(name)
        if isinstance(module, Mixing):
            self.plan.mixing.setdefault(module, None)
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return
        with torch._C.DisableTorchFunction():  # this is not part of the model
            if isinstance(module, Mixing) and name in self.wiring.spreads:
                self._tie_mixing(name, module, x)
            else:
                self._tie_numbers(name, module, x)

    def leave(self, name: str, module: nn.Module, output: Any) -> None:
        """Check what a module has returned."""
        self.wiring.leave(name, module, output)
        with torch._C.DisableTorchFunction():
            problem = check_layer(self.plan, name, module, output)
        if problem:
            raise Breaks(problem)

    def end(self, output: Any) -> None:
        """Check what the model has returned: feature groups are permuted there only if named."""
        for part in batches_in(output, self.num_views):
            blocks: Blocks | None = ()  # of tokens or boxes: a rotation changes their order
            for h in layouts(part):
                blocks = self._blocks_in(part, h)
                if blocks is not None:
                    break
            if blocks is None:
                raise Breaks(f"{MODEL_ITSELF} breaks {self.group}: its output does not rotate")
            self.plan.outputs.append(blocks)
            names = [name for name in self.wiring.layers_of(part) if name is not None]
            is_permuted = any(size > 1 for size, _ in blocks)
            if is_permuted and not self._are_asked_for(names):
                raise ValueError(
                    f"the model's output {tuple(part.shape)} holds feature groups that {self.group} "
                    f"permutes: in feature_groups, name {names} with size 1, or with their size to allow it"
                )
        self.plan.errors, problem = check_returned(self.plan, output, self.num_views)
        if problem:
            raise Breaks(problem)

    def _are_asked_for(self, names: Sequence[str]) -> bool:
        """Return whether the user named one of these layers in ``feature_groups``."""
        for name in names:
            _, is_named = asked_for(name, self.specs)
            if is_named:
                return True
        return False

    def _is_constant(self, x: Tensor) -> bool:
        """Return whether ``x`` is the same for all views."""
        return len(x) % self.num_views != 0 and self.wiring.layers_of(x) <= self.constant

    def _blocks_in(self, x: Tensor, h: Tensor) -> Blocks | None:
        """Return the feature groups of ``x``, or None; ``h`` is one of its layouts.

        The wiring tells, or what rotates; the check of what a layer returns finds any mistake.
        """
        if self._is_constant(x):
            return ((1, h.shape[1]),)
        for word in self.wiring.words.get(x, []):
            blocks = self._blocks_of_word(word)
            if num_channels(blocks) == h.shape[1]:
                return blocks
        sizes = {1}
        for chosen in self.chosen.values():
            sizes.update(size for size, _ in chosen)
        sizes.discard(VECTOR)
        return feature_groups_of(h, self.group, sorted(sizes, reverse=True))

    def _blocks_of_word(self, word: Word) -> Blocks:
        """Return the feature groups of a concatenation of what layers return."""
        blocks: list[tuple[int, int]] = []
        for layer, channels in word:
            returned: Blocks = ((1, channels),)  # the images
            if layer is not None:
                returned = self.chosen.get(layer, ())
            for size, count in returned:
                if blocks and blocks[-1][0] == size:  # feature groups of one size are one block
                    _, count_before = blocks.pop()
                    count += count_before
                blocks.append((size, count))
        return tuple(blocks)

    def _tie_mixing(self, name: str, module: Mixing, x: Tensor) -> None:
        """Tie the weight and the bias of a layer that mixes channels."""
        called = layer_text(name, module)
        if not layouts(x):
            raise ValueError(
                f"the input of {called} is {tuple(x.shape)}, which cannot rotate: keep height and width as "
                f"dims, (B, C, H, W) or (B, H, W, C)"
            )
        before = self._blocks_in(x, maps_of(module, x))
        if before is None:
            raise Breaks(f"the input of {called}, {tuple(x.shape)}, does not rotate under {self.group}")
        after = before
        if not is_depthwise(module):
            after = self.chosen[name]
        shuffle = self.wiring.shuffles.get(name, 1)
        if self._is_constant(x):
            self.constant.add(name)
        elif shuffle == 1:
            self.plan.mixing[module] = after
        self.inputs[name] = before
        ties = {"weight": self._tie_of_weight(called, module, before, after, shuffle)}
        num_returned = num_channels(after) * shuffle**2
        for key, numbers in _vectors_of(module).items():
            if key != "weight" and numbers.numel() == num_returned:  # a bias
                ties[key] = Tie(self.group, after, shuffle=shuffle)
        is_written = self._tie_all(name, module, ties, before, after)
        if is_written and self.random:
            self._keep_spread(name, module, x)

    def _tie_of_weight(self, called: str, module: Mixing, before: Blocks, after: Blocks, shuffle: int) -> Tie:
        """Return how the weight of a layer is tied, or say why it cannot be."""
        conv_groups = getattr(module, "groups", 1)  # a linear layer has none
        _, _, *sides_of_kernel = module.weight.shape  # (O, I, h, w); that of a linear layer is (O, I)
        height, width = sides_of_kernel or (1, 1)
        sides = (after, before)
        if isinstance(module, nn.ConvTranspose2d):  # its weight is (I, O, h, w)
            sides = (before, after)
        may_shuffle = isinstance(module, nn.Conv2d) and conv_groups == 1 and all(self.group.exact)
        stored = None
        if shuffle > 1 and not may_shuffle:
            reason = "only a Conv2d with groups=1 may feed a pixel shuffle, under quarter turns and flips"
        elif VECTOR in dict(before) or VECTOR in dict(sides[1]):
            reason = "vectors must leave the model, from a Conv2d or Linear"
        elif height != width and swaps_sides(self.group):
            reason = f"kernels of {height}×{width} cannot rotate by 90°: make them square"
        else:
            reason = CUTS_THROUGH
            stored = grouped(conv_groups, *sides, self.group)
        if stored is None:
            raise ValueError(f"{called} cannot be tied: {reason}")
        return Tie(self.group, *stored, self.smooth, shuffle)

    def _keep_spread(self, name: str, module: Mixing, x: Tensor) -> None:
        """Scale a random weight so that the layer's output varies as much as it did before."""
        scaled: Any = module.weight
        if parametrize.is_parametrized(module, "weight"):
            scaled = getattr(module.get_submodule("parametrizations.weight"), "original0", None)
            if scaled is None:  # only a weight norm has a length to scale
                return
        upright = x[: max(len(x) // len(self.group), 1)]
        now = spread(module, module.forward(upright))  # not module(upright), whose hooks would run
        if now > 0:
            gain = math.sqrt(self.wiring.spreads[name] / now)
            gain = min(max(gain, 1 / MAX_GAIN), MAX_GAIN)
            scaled.mul_(gain)

    def _tie_numbers(self, name: str, module: nn.Module, x: Tensor) -> None:
        """Make numbers per channel, such as the weight of a norm, equal within a feature group."""
        called = layer_text(name, module)
        has_statistics = isinstance(module, _NormBase) and module.running_mean is not None
        if isinstance(module, _BatchNorm) and not has_statistics:
            raise ValueError(
                f"{called} normalises with the statistics of a batch: set track_running_stats=True"
            )
        blocks = None
        keys: list[str] = []
        for h in layouts(x):
            num_maps = h.shape[1]
            keys = [key for key, numbers in _vectors_of(module).items() if numbers.numel() == num_maps]
            if keys or isinstance(module, nn.GroupNorm):
                blocks = self._blocks_in(x, h)
            if blocks is not None:
                break
        if blocks is None:
            if has_statistics and _vectors_of(module):
                raise Breaks(f"the input of {called} does not rotate under {self.group}")
            return  # the next layer that mixes channels will tell
        if isinstance(module, nn.GroupNorm) and cuts(module.num_groups, blocks, blocks, self.group):
            raise ValueError(f"{called} cannot be tied: {CUTS_THROUGH}")
        if has_statistics and self.changed and not self.random:
            self.outdated.add(module)
        largest, _ = max(blocks)
        if has_statistics and largest > 1 and (module, blocks) not in self.plan.norms:
            self.plan.norms.append((module, blocks))
        ties = dict.fromkeys(keys, Tie(self.group, blocks))
        self._tie_all(name, module, ties, blocks, blocks)

    def _tie_all(
        self, name: str, module: nn.Module, ties: Mapping[str, Tie], before: Blocks, after: Blocks
    ) -> bool:
        """Tie tensors of a module, and return whether its weight has got other numbers."""
        called = layer_text(name, module)
        is_written = False
        distances = [0.0]
        norms = [0.0]
        for key, tie in ties.items():
            tensor: Any = module._parameters.get(key, module._buffers.get(key))
            if parametrize.is_parametrized(module, key):
                tensor = module.get_submodule(f"parametrizations.{key}")
            if tensor is None:
                raise ValueError(
                    f"{called} computes its {key} in a hook: use torch.nn.utils.parametrizations"
                )
            is_new = id(tensor) not in self.tied
            if self.tied.setdefault(id(tensor), tie) != tie:
                raise ValueError(f"{called} shares its {key} with a place that has other feature groups")
            values = getattr(module, key)
            if tie.leaves_free(values):
                continue
            norms.append(float(full_precision(values).norm()))
            if TiedTensor(module, key, tie) not in self.plan.ties:
                self.plan.ties.append(TiedTensor(module, key, tie))
            if is_new:
                distances.append(self._write(called, module, key, tie))
                if key == "weight":
                    is_written = True
        # ‖W - P W‖ / ‖W‖ of all tensors together
        norm = max(math.hypot(*norms), sys.float_info.min)
        distance = math.hypot(*distances) / norm
        is_first = isinstance(module, Mixing) and name not in self.plan.layers
        if is_first or distance > MAX_ROUNDING:
            self.plan.layers[name] = TiedLayer(sizes_text(before), sizes_text(after), distance)
            self.changed |= distance > MAX_ROUNDING
        return is_written

    def _write(self, called: str, module: nn.Module, key: str, tie: Tie) -> float:
        """Give a tensor tied numbers, and return how far it was from them."""
        values: Tensor = getattr(module, key)
        is_mixing = isinstance(module, Mixing)
        tied, distance = tie.start(values, self.random and is_mixing)
        is_lost = values.any() and float(tied.norm()) <= MIN_SHARE * float(values.norm())
        if is_lost and is_mixing and key == "weight":
            raise ValueError(
                f"{called} cannot be tied: no part of its weight commutes with {self.group} from feature "
                f"groups {sizes_text(tie.before)} to {sizes_text(tie.after)}: use larger ones"
            )
        if parametrize.is_parametrized(module, key):  # what a weight norm computes is tied
            parametrize.register_parametrization(module, key, Projected(tie), unsafe=True)
        else:
            values.copy_(tied)
        return distance

    def estimate_statistics(self, name: str, module: nn.Module, x: Tensor) -> None:
        """Estimate the running statistics of a norm that is about to run on upright images."""
        if module not in self.outdated:
            return
        self.outdated.discard(module)  # a norm that runs twice has those of the first time
        pixels = full_precision(x).movedim(1, -1).flatten(0, -2)  # (pixels, C)
        variance, mean = torch.var_mean(pixels, 0)  # (C,) both
        buffers: Any = module._buffers
        tie = self.tied[id(buffers["running_mean"])]
        # of all views together: the variances of members, and the variance of their means
        pooled_mean = tie.project(mean)
        pooled_variance = tie.project(variance + (mean - pooled_mean).square())
        buffers["running_mean"].copy_(pooled_mean)
        buffers["running_var"].copy_(pooled_variance)


def _vectors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's parameters and buffers that have several numbers, all along one dim."""
    vectors = {}
    for key, tensor in {**module._parameters, **module._buffers}.items():
        if tensor is not None and tensor.is_floating_point():
            if tensor.numel() == max(tensor.shape, default=0) > 1:
                vectors[key] = tensor
    return vectors
