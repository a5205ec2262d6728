"""Tie: make_equivariant, make_plain and plain_copy, by torch's parametrizations.

A weight W of a tied layer is a function of fewer numbers c, which the optimizer trains in its place:

    W = c M,    and the gradient that c is given is    ∂L/∂W R,

with the matrices M and R of ``commuting.py``. R takes means where the chain rule would take sums
over the places of an orbit, so c is given what W itself would be given after projection: learning
rates and weight decay mean the same as for plain weights, with SGD as with Adam.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..groups.group import Group
from ..groups.members import Blocks, num_channels
from ..loss.feature_groups import Spec
from .plan import TiedTensor
from .projection import Part, Projected, Tie, expanded, placed, reduced
from .start import start_equivariant

__all__ = ["Tied", "TiedNorm", "TiedWeight", "make_equivariant", "make_plain", "plain_copy"]

M = TypeVar("M", bound=nn.Module)

NORM_TENSORS = ("weight", "bias", "running_mean", "running_var")
"""What a norm has one number for each channel of."""


class _Expand(torch.autograd.Function):
    """The kernels W = c M of a part, (O, I * h * w), from numbers c; backward multiplies by R."""

    generate_vmap_rule = True

    @staticmethod
    def forward(numbers: Tensor, expand: Tensor, reduce: Tensor, index: Tensor | None, part: Part) -> Tensor:
        if index is None:
            return expanded(numbers, part, expand)
        rows = numbers.reshape(part.groups_out, -1)  # (groups out, groups in * numbers)
        kernels = rows.gather(1, index.expand(part.groups_out, -1))  # (groups out, out * I * h * w)
        return kernels.view(part.groups_out * part.out, -1)  # (O, I * h * w)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        numbers, _, ctx.reduce, _, ctx.part = inputs
        ctx.shape = numbers.shape

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return reduced(grad, ctx.part, ctx.reduce).reshape(ctx.shape), None, None, None, None


class TiedWeight(nn.Module):
    """The parametrization of a tied weight, bias or other tensor with numbers per channel.

    In eval mode the weight is computed once, and again when the numbers have changed.
    """

    def __init__(self, tie: Tie, shape: torch.Size, order: tuple[str, ...]) -> None:
        super().__init__()
        self.tie = tie
        self.shape = shape
        self.order = order  # the names of the module's parameters, before
        weight = tie.as_weight(torch.empty(shape, device="meta"))
        self.parts = tie.parts(weight)
        self.kernel = weight.shape[2:]
        self._matrices: tuple[Any, ...] = ()
        self._kept: tuple[Any, ...] = ()

    def right_inverse(self, values: Tensor) -> Tensor:
        """Return the independent numbers of the nearest tied values."""
        return self.tie.numbers(values)

    def forward(self, numbers: Tensor) -> Tensor:
        """Return the tied values that have these independent numbers."""
        learns = torch.is_grad_enabled() and numbers.requires_grad
        if self.training or learns or torch.compiler.is_compiling() or numbers.is_inference():
            return self._values(numbers)
        version = (numbers._version, numbers.data_ptr(), numbers.dtype)
        if not self._kept or self._kept[0] != version or self._kept[1]._version > 0:
            with torch.inference_mode(False), torch.no_grad():
                self._kept = (version, self._values(numbers).clone())
        kept: Tensor = self._kept[1]
        return kept

    def train(self, mode: bool = True) -> TiedWeight:
        """Forget the weight that is kept in eval mode."""
        self._kept = ()
        return super().train(mode)

    def extra_repr(self) -> str:
        return f"{self.tie.group}, feature groups {self.tie.before} to {self.tie.after}"

    def _values(self, numbers: Tensor) -> Tensor:
        kernels = []
        first = 0
        for part, (expand, reduce, index) in zip(self.parts, self._on(numbers), strict=True):
            c = numbers
            if len(self.parts) > 1:
                c = numbers[first : first + part.count]
                first += part.count
            kernels.append(_Expand.apply(c, expand, reduce, index, part))  # (O, I * h * w) of the part
        if len(kernels) > 1:
            columns = len(self.tie.before)
            rows = [torch.cat(kernels[i : i + columns], 1) for i in range(0, len(kernels), columns)]
            kernels = [torch.cat(rows)]  # (O, I * h * w)
        weight = kernels[0].unflatten(1, (-1, *self.kernel))  # (O, I, h, w)
        return self.tie.from_weight(weight, self.shape)

    def _on(self, numbers: Tensor) -> list[tuple[Tensor, Tensor, Tensor | None]]:
        """Return M, R and the index of copies of each part, on the device of the numbers."""
        place = (numbers.device, numbers.dtype)
        if not self._matrices or self._matrices[0] != place:
            found = []
            for part in self.parts:
                index = None
                if part.kernels.copies is not None:
                    index = _index(part).to(numbers.device)
                expand = placed(part.kernels.expand, numbers)
                reduce = placed(part.kernels.reduce, numbers)
                found.append((expand, reduce, index))
            self._matrices = (place, found)
        matrices: list[tuple[Tensor, Tensor, Tensor | None]] = self._matrices[1]
        return matrices


def _index(part: Part) -> Tensor:
    """Return which of a row of numbers (groups in * K) each place (out, I, h, w) copies."""
    assert part.kernels.copies is not None
    copies = part.kernels.copies.view(part.out, 1, -1)  # (out, 1, inner * h * w)
    count = len(part.kernels.expand)
    first = count * torch.arange(part.groups_in, device="cpu").view(1, -1, 1)  # (1, groups in, 1)
    return (copies + first).flatten()  # (out * groups in * inner * h * w,)


class TiedNorm(nn.Module):
    """What is mixed into a norm while it is tied: it pools statistics over members.

    A feature group counts as one channel with the pixels of all its members: maps (B, C, H, W) are
    read as (B, F, size * H, W), and the norm has one mean, variance, weight and bias for each of the
    F feature groups. Of several sizes, the smaller are repeated up to the largest.
    """

    blocks: Blocks

    def forward(self, x: Tensor) -> Tensor:
        """Normalise maps (B, C, H, W) or vectors (B, C)."""
        sizes = [size for size, _ in self.blocks]
        if len(set(sizes)) == 1:
            return self._pooled(x, sizes[0])
        repeated, restored = _repeated_members(tuple(self.blocks), x.device)
        return self._pooled(x[:, repeated], max(sizes))[:, restored]  # (B, C, H, W)

    def _pooled(self, x: Tensor, size: int) -> Tensor:
        if x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous():
            pixels = x.permute(0, 2, 3, 1)  # (B, H, W, C), contiguous in memory
            pooled = pixels.reshape(-1, x.shape[1] // size, size, 1)  # (B * H * W, F, size, 1)
            return super().forward(pooled).view(pixels.shape).permute(0, 3, 1, 2)  # (B, C, H, W)
        lengths = x.shape[2:] or (1,)
        pooled = x.reshape(len(x), -1, size * lengths[0], *lengths[1:])  # (B, F, size * H, W)
        return super().forward(pooled).view(x.shape)  # (B, C, H, W)


@lru_cache(maxsize=64)
def _repeated_members(blocks: Blocks, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the channels that fill feature groups up to the largest size, and where each one is.

    Both index channels: (F * largest,) into C, and (C,) into F * largest.
    """
    largest = max(size for size, _ in blocks)
    repeated: list[int] = []
    restored: list[int] = []
    first = 0
    for size, count in blocks:
        for start in range(first, first + count, size):
            restored += range(len(repeated), len(repeated) + size)
            repeated += list(range(start, start + size)) * (largest // size)
        first += count
    with torch.inference_mode(False):
        return torch.tensor(repeated, device=device), torch.tensor(restored, device=device)


@lru_cache(maxsize=64)
def _tied_class(plain: type[nn.Module]) -> type[nn.Module]:
    """Return the class that a norm of a class has while it is tied."""
    return type(f"Tied{plain.__name__}", (TiedNorm, plain), {})


def _tie_norm(module: nn.Module, blocks: Blocks) -> None:
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
    module.__class__ = _tied_class(type(module))
    module.blocks = tuple(blocks)


def _untie_norm(module: TiedNorm) -> None:
    """Give a norm back its class, and one number for each channel."""
    sizes = []
    for size, count in module.blocks:
        sizes += [size] * (count // size)
    repeats = torch.tensor(sizes, device="cpu")
    for key in NORM_TENSORS:
        tensor = getattr(module, key, None)
        if tensor is not None:
            _replace(tensor, tensor.repeat_interleave(repeats.to(tensor.device)))  # (C,)
    del module.blocks
    _, plain = type(module).__bases__
    module.__class__ = plain


def _replace(tensor: Tensor, values: Tensor) -> None:
    """Give a tensor other values, of another shape too; an optimizer that has it keeps it."""
    tensor.data = values.detach().clone()


def _tie_tensors(ties: Sequence[TiedTensor]) -> None:
    """Register a parametrization for each tensor; one that modules share keeps one original."""
    shared: dict[int, tuple[nn.Parameter, Tensor]] = {}
    orders: dict[int, tuple[str, ...]] = {}
    for module, key, tie in ties:
        order = orders.setdefault(id(module), tuple(module._parameters))
        if parametrize.is_parametrized(module, key):  # a weight norm or the like: tie its result
            if not isinstance(module.parametrizations[key][-1], Projected | TiedWeight):
                parametrize.register_parametrization(module, key, Projected(tie))
            continue
        parameter = module._parameters.get(key)
        if parameter is None:
            continue  # a buffer, which nothing trains
        first = id(parameter) not in shared
        if first:
            shared[id(parameter)] = (parameter, parameter.detach().clone())
        else:
            module._parameters[key] = nn.Parameter(shared[id(parameter)][1], parameter.requires_grad)
        weight = TiedWeight(tie, shared[id(parameter)][1].shape, order)
        parametrize.register_parametrization(module, key, weight)
        if not first:
            module.parametrizations[key].original = parameter
        type(module).__getstate__ = _refuse_pickling


def _refuse_pickling(module: nn.Module) -> None:
    raise RuntimeError(
        "a tied model cannot be pickled whole: save model.state_dict(), or torch.save(ien.plain_copy(model), …)"
    )


def make_plain(model: nn.Module) -> nn.Module:
    """Give a tied model ordinary weights, in place: the modules and state_dict keys it came with.

    Outputs stay equal to the bit, and nothing keeps the weights tied from then on. A weight norm or
    spectral norm becomes the weight that it computed.

    Not for a model that goes on training: use :func:`plain_copy` to save or export it meanwhile.

    Args:
        model: A model that :func:`make_equivariant` changed; any other is left as it is.

    Returns:
        The same model.

    >>> net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    >>> tied = make_equivariant(net, "rot4", torch.rand(2, 1, 9, 9))
    >>> list(make_plain(net).state_dict())
    ['0.weight', '0.bias', '2.weight', '2.bias']
    """
    tied = list(_tied_tensors(model))
    # a shared original is used by the first module, and by the others after all are plain
    first_to_use: dict[int, tuple[nn.Module, str]] = {}
    others: list[tuple[nn.Module, str, Tensor]] = []
    for module, key in tied:
        weights = module.parametrizations[key]
        if not weights.is_tensor:
            continue  # a weight norm has several originals
        original = weights.original
        if id(original) in first_to_use:
            others.append((module, key, original))
            weights.original = nn.Parameter(original.detach().clone(), original.requires_grad)
        first_to_use.setdefault(id(original), (module, key))
    for module, key in tied:
        last = module.parametrizations[key][-1]
        _give_own_class(module)
        parametrize.remove_parametrizations(module, key)
        if isinstance(last, TiedWeight):
            in_order = {name: module._parameters[name] for name in last.order if name in module._parameters}
            module._parameters.clear()
            module._parameters.update(in_order)
    for module, key, original in others:
        module._parameters[key] = original
    for module in model.modules():
        if isinstance(module, TiedNorm):
            _untie_norm(module)
    return model


def plain_copy(model: M) -> M:
    """Return a copy of a tied model with ordinary weights, and leave the model as it is.

    For checkpoints, exports and averages of weights while training goes on.

    Args:
        model: A model that :func:`make_equivariant` changed; any other is only copied.

    >>> net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    >>> tied = make_equivariant(net, "rot4", torch.rand(2, 1, 9, 9))
    >>> list(plain_copy(net).state_dict()), net[0].parametrizations.weight.original.shape
    (['0.weight', '0.bias', '2.weight', '2.bias'], torch.Size([2, 1, 3, 3]))
    """
    copied = copy.deepcopy(model)
    make_plain(copied)
    return copied


def _tied_tensors(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Yield the tensors that are tied: their module and name."""
    for module in model.modules():
        if not parametrize.is_parametrized(module):
            continue
        for key, weights in module.parametrizations.items():
            if isinstance(weights[-1], TiedWeight | Projected):
                yield module, key


def _give_own_class(module: nn.Module) -> None:
    """Give a module a class of its own: copies share the one that parametrize made."""
    shared = type(module)
    own = dict(vars(shared))
    own.pop("__dict__", None)
    own.pop("__weakref__", None)
    module.__class__ = type(shared.__name__, shared.__bases__, own)


class Tied:
    """A tied model: what became of each layer, in the order they run; prints as a table.

    >>> net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    >>> tied = make_equivariant(net, "rot4", torch.rand(2, 1, 9, 9))
    >>> list(tied.layers), max(tied.errors.values()) < 1e-10
    (['0', '2'], True)
    """

    def __init__(self, model: nn.Module, start: Any) -> None:
        self.model = model
        self.start = start
        self.layers = start.layers


def make_equivariant(
    model: nn.Module,
    group: Group | str,
    images: Tensor,
    feature_groups: Spec | Mapping[str, Spec] = "auto",
    weights: str = "random",
    kernels: str = "smooth",
    slack: float = 0.0,
) -> Tied:
    """Make ``model`` equivariant, and let it stay so however it is trained."""
    start = start_equivariant(model, group, feature_groups, images, weights, kernels)
    if start.untied:
        raise ValueError(f"untied {start.untied}")
    with torch.inference_mode(False), torch.no_grad():
        norms = {id(module) for module, _ in start.norms}
        _tie_tensors([tie for tie in start.ties if id(tie.module) not in norms])
        for module, blocks in start.norms:
            _tie_norm(module, blocks)
    return Tied(model, start)
