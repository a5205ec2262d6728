"""What a tied layer is made of: parametrizations of its tensors, and norms that pool statistics.

A weight W of a tied layer is a function of fewer numbers c, which the optimizer trains instead:

    W = c M,    and the gradient that c is given is    ∂L/∂W R,

with the matrices M and R of ``commuting.py``. R takes means where the chain rule would take sums
over the places of an orbit, so c is given what W itself would be given after projection: learning
rates and weight decay mean the same as for plain weights, with SGD as with Adam.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import parametrize

from ..groups.members import Blocks, num_channels
from .projection import Part, Tie

__all__ = [
    "OnDevice",
    "Projected",
    "TiedNorm",
    "TiedWeight",
    "forget_gradients",
    "parametrizations_of",
    "restored_on_error",
    "tie_norm",
    "untie_norm",
]

NORM_TENSORS = ("weight", "bias", "running_mean", "running_var")
"""What a norm has one number for each channel of, if it has it at all."""


class OnDevice(nn.Module):
    """A parametrization whose matrices go along to the device and precision of its tensor."""

    def __init__(self, tie: Tie, values: Tensor) -> None:
        """Prepare to compute tensors like ``values``.

        Args:
            tie: How feature groups tie them.
            values: A tensor of their shape, device and dtype.
        """
        super().__init__()
        self.tie = tie
        self.shape = values.shape
        self.place = values.detach().new_empty(0)
        """An empty tensor with the device and dtype of the values."""
        self.parts = tie.parts(self.place, self.shape)

    def parts_for(self, like: Tensor) -> list[Part] | None:
        """Return the prepared parts if they fit this tensor; otherwise they are computed again."""
        if (like.device, like.dtype) == (self.place.device, self.place.dtype):
            return self.parts
        return None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> OnDevice:
        """Move the matrices along; they stay in float32 for weights in half precision."""
        self.place = fn(self.place)
        self.parts = self.tie.parts(self.place, self.shape)
        return super()._apply(fn, recurse)


class TiedWeight(OnDevice):
    """The parametrization of a tied weight, bias or other tensor with numbers per channel.

    In eval mode the weight is computed once, and again when the numbers have changed.
    """

    def __init__(self, tie: Tie, values: Tensor, order: tuple[str, ...]) -> None:
        """Prepare to compute tensors like ``values``.

        Args:
            tie: How feature groups tie them.
            values: A tensor of their shape, device and dtype.
            order: The names of the module's parameters, for :func:`make_plain` to restore.
        """
        super().__init__(tie, values)
        self.order = order
        self.kept: tuple[Any, Tensor] | None = None
        """Which numbers a weight was computed from, and the weight."""

    def right_inverse(self, values: Tensor) -> Tensor:
        """Return the independent numbers of the nearest tied values."""
        return self.tie.numbers(values)

    def forward(self, numbers: Tensor) -> Tensor:
        """Return the tied values that have these independent numbers."""
        learns = torch.is_grad_enabled() and numbers.requires_grad
        if self.training or learns or not _has_version(numbers):
            return self._values(numbers)
        version = (numbers._version, numbers.data_ptr(), numbers.dtype)
        if self.kept is not None:
            kept_version, weight = self.kept
            if kept_version == version and weight._version == 0:  # nobody wrote to either
                return weight
        with torch.inference_mode(False), torch.no_grad():
            weight = self._values(numbers).clone()
        if type(weight) is Tensor:  # and not a fake one, while somebody only asks for shapes
            self.kept = (version, weight)
        return weight

    def _values(self, numbers: Tensor) -> Tensor:
        return self.tie.values(numbers, self.shape, self.parts_for(numbers))

    def train(self, mode: bool = True) -> TiedWeight:
        """Forget the weight that was kept."""
        self.kept = None
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> OnDevice:
        """Forget the weight that was kept: it is somewhere else."""
        self.kept = None
        return super()._apply(fn, recurse)

    def extra_repr(self) -> str:
        return f"{self.tie.group}, {tuple(self.shape)}"


def _has_version(numbers: Tensor) -> bool:
    """Return whether one can tell if they have changed: not while they are traced or mapped."""
    if torch.compiler.is_compiling() or numbers.is_inference():
        return False
    if type(numbers) not in (Tensor, nn.Parameter):  # a fake one is nowhere in memory
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(numbers)


class Projected(nn.Module):
    """A parametrization that projects what another one computes, such as a weight norm."""

    def __init__(self, tie: Tie) -> None:
        super().__init__()
        self.tie = tie

    def forward(self, values: Tensor) -> Tensor:
        """Return the nearest tied values."""
        return self.tie.project(values)


class TiedNorm(nn.Module):
    """What is mixed into a norm while it is tied: it pools statistics over members.

    A feature group counts as one channel with the pixels of all its members: maps (B, C, H, W) are
    read as (B, F, size * H, W), and the norm has one mean, variance, weight and bias for each of F
    feature groups. Of several sizes, members are repeated up to a common multiple.
    """

    blocks: Blocks

    def forward(self, x: Tensor) -> Tensor:
        """Normalise maps (B, C, H, W) or vectors (B, C)."""
        sizes = [size for size, _ in self.blocks]
        if len(set(sizes)) == 1:
            return self._pooled(x, sizes[0])
        filled = math.lcm(*sizes)
        parts = x.split([count for _, count in self.blocks], 1)  # the channels of each size
        repeated = []
        for part, size in zip(parts, sizes, strict=True):
            members = part.unflatten(1, (-1, size))  # (B, F, size, H, W)
            copies = torch.cat([members] * (filled // size), 2)  # (B, F, filled, H, W)
            repeated.append(copies.flatten(1, 2))  # (B, F * filled, H, W)
        pooled = self._pooled(torch.cat(repeated, 1), filled)
        parts = pooled.split([part.shape[1] for part in repeated], 1)
        restored = []
        for part, size in zip(parts, sizes, strict=True):
            members = part.unflatten(1, (-1, filled))[:, :, :size]  # (B, F, size, H, W)
            restored.append(members.flatten(1, 2))  # (B, F * size, H, W)
        return torch.cat(restored, 1)  # (B, C, H, W)

    def _pooled(self, x: Tensor, size: int) -> Tensor:
        """Normalise feature groups that all have ``size`` members."""
        channels_last = x.ndim == 4 and x.stride(1) == 1 and x.shape[1] > 1
        if channels_last and isinstance(self, _BatchNorm):  # other norms keep images apart
            pixels = x.permute(0, 2, 3, 1)  # (B, H, W, C), contiguous in memory
            pooled = pixels.reshape(-1, x.shape[1] // size, size, 1)  # (B * H * W, F, size, 1)
            result = super().forward(pooled)
            return result.reshape(pixels.shape).permute(0, 3, 1, 2)  # (B, C, H, W)
        lengths = x.shape[2:] or (1,)
        pooled = x.reshape(len(x), -1, size * lengths[0], *lengths[1:])  # (B, F, size * H, W)
        result = super().forward(pooled)
        return result.reshape(x.shape)  # (B, C, H, W)


@lru_cache(maxsize=64)
def _tied_class(plain: type[nn.Module]) -> type[nn.Module]:
    """Return the class that a norm has while it is tied, as parametrize changes classes too."""
    return type(f"Tied{plain.__name__}", (TiedNorm, plain), {})


def tie_norm(module: nn.Module, blocks: Blocks) -> None:
    """Let a norm pool its statistics over members, and hold one number for each feature group."""
    for key in NORM_TENSORS:
        tensor = getattr(module, key, None)
        if tensor is None:
            continue
        means = []
        first = 0
        for size, count in blocks:
            means.append(tensor[first : first + count].view(-1, size).mean(1))  # (F,)
            first += count
        _replace(tensor, torch.cat(means))
    plain: Any = type(module)
    module.__class__ = _tied_class(plain)
    vars(module)["blocks"] = tuple(blocks)
    vars(module)["num_features"] = sum(count // size for size, count in blocks)


def untie_norm(module: TiedNorm) -> None:
    """Give a norm back its class, and one number for each channel."""
    sizes: list[int] = []
    for size, count in module.blocks:
        sizes += [size] * (count // size)
    for key in NORM_TENSORS:
        tensor = getattr(module, key, None)
        if tensor is not None:
            repeats = torch.tensor(sizes, device=tensor.device)
            _replace(tensor, tensor.repeat_interleave(repeats))  # (C,)
    vars(module)["num_features"] = num_channels(module.blocks)
    del module.blocks
    _, module.__class__ = type(module).__bases__


def parametrizations_of(module: nn.Module) -> dict[str, Any]:
    """Return the parametrizations of a module's tensors by name."""
    if not parametrize.is_parametrized(module):
        return {}
    found: Any = module.parametrizations
    return dict(found.items())


@contextmanager
def restored_on_error(model: nn.Module) -> Iterator[None]:
    """Put a model back as it was, with its classes, tensors and values, if the block fails."""
    modules: list[Any] = []
    for module in model.modules():
        contents = (vars(module), module._parameters, module._buffers, module._modules)
        modules.append((module, type(module), contents, [dict(each) for each in contents]))
    tensors = []
    for tensor in (*model.parameters(), *model.buffers()):
        if not nn.parameter.is_lazy(tensor):  # a lazy layer has no numbers before it runs
            tensors.append((tensor, tensor.detach().clone()))
    try:
        yield
    except BaseException:  # Ctrl-C as well
        for module, plain, contents, before in modules:
            module.__class__ = plain
            for each, old in zip(contents, before, strict=True):
                each.clear()
                each.update(old)
        for tensor, values in tensors:
            tensor.data = values
        raise


def forget_gradients(tensor: Tensor) -> None:
    """Let a tensor change its shape: it forgets its gradient, and the node that accumulates it.

    A loss that is still alive, as in a notebook, keeps that node alive, and the node insists on the
    old shape. torch makes a new one only when a tensor changes its dtype, so it does for a moment.
    """
    tensor.grad = None
    values = tensor.data
    other = torch.float16
    if values.dtype == other:
        other = torch.float32
    tensor.data = values.new_empty(0, dtype=other)
    tensor.data = values


def _replace(tensor: Tensor, values: Tensor) -> None:
    """Give a tensor other values, of another shape too; an optimizer that has it keeps it."""
    forget_gradients(tensor)
    tensor.data = values.detach().clone()
