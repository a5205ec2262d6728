"""Steerable layers: a group and e2cnn's kernel bases in, modules that commute with the group out."""

from __future__ import annotations

import importlib
import math
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..groups.group import Group, reflection, rotation
from ..groups.group import group as parse_group
from ..loss.feature_groups import FeatureGroups

__all__ = ["DEFAULT", "WIDE", "FieldNorm", "Functions", "SteerableConv2d", "Symmetry", "library", "steer"]


class Symmetry(NamedTuple):
    """Rotations about a point, with or without flips: what a field's members are indexed by.

    Members are in the order of the elements of ``rot4``, ``rot4xflip`` and the like, whatever that of a group
    which is read.
    """

    rotations: int
    flips: bool

    @classmethod
    def of(cls, group: str | Group) -> Symmetry:
        """Read ``rot4``, ``rot8``, ``rot4xflip``, or a group with these elements.

        >>> Symmetry.of("rot8"), Symmetry.of(ien.rotation(4) * ien.reflection()).members
        (Symmetry(rotations=8, flips=False), 8)
        """
        if isinstance(group, int | Mapping | FeatureGroups) or str(group)[:1].isdecimal():
            raise ValueError(
                f"a steerable net takes a group, such as rot4, and its feature groups are of one size, "
                f"the number of the group's elements; got {group!r}"
            )
        read = parse_group(group)
        n, elements = len(read), set(read.elements)
        if n > 1 and elements == set(rotation(n).elements):
            return cls(n, False)
        if n > 2 and elements == set((rotation(n // 2) * reflection()).elements):
            return cls(n // 2, True)
        raise ValueError(
            f"steerable nets are built for rotations (rot4, rot8), also with flips (rot4xflip); got {read}"
        )

    @property
    def members(self) -> int:
        """Channels of a regular field."""
        return self.rotations * (1 + self.flips)


class Functions(NamedTuple):
    """Which functions make up the kernels; None is e2cnn's own policy."""

    cutoff: float | None = None
    """The highest frequency on a ring, for each pixel of its radius."""
    sigma: float | None = None
    """The width of the rings, in pixels."""


DEFAULT = Functions()
"""6 functions for a 3×3 filter."""
WIDE = Functions(cutoff=math.pi, sigma=0.45)
"""8 functions for a 3×3 filter, as in e2cnn's wide residual nets."""


class SteerableConv2d(nn.Module):
    """A convolution between fields whose kernels are combinations of e2cnn's basis.

    It gives regular fields and takes such too or, ``from_image``, plain channels. Every forward pass expands
    the kernels, so that the state does not depend on the mode.
    """

    basis: Tensor

    def __init__(
        self,
        before: int,
        after: int,
        kernel_size: int,
        group: str | Group | Symmetry,
        *,
        from_image: bool = False,
        stride: int = 1,
        padding: int = 0,
        bias: bool = False,
        functions: Functions = DEFAULT,
    ) -> None:
        super().__init__()
        symmetry = group if isinstance(group, Symmetry) else Symmetry.of(group)
        with library():  # its absence is told also when the basis is at hand
            basis, scale = _basis(symmetry, kernel_size, from_image, functions, torch.get_default_dtype())
        self.stride, self.padding = stride, padding
        self.shape = basis.shape[1:]  # (members out, members in, k, k)
        weight = torch.randn(after, before, len(basis))
        self.weight = nn.Parameter(weight * scale.to(weight.device) / before**0.5)
        self.bias = nn.Parameter(torch.zeros(after)) if bias else None  # one for each field
        self.register_buffer("basis", basis.flatten(1).to(weight.device, copy=True), persistent=False)

    def kernel(self) -> Tensor:
        """The weight of the plain convolution that does the same."""
        after, before, _ = self.weight.shape
        out, inner, *size = self.shape
        kernel = (self.weight @ self.basis).unflatten(2, self.shape)
        return kernel.transpose(1, 2).reshape(after * out, before * inner, *size)

    def plain_bias(self) -> Tensor | None:
        """The bias of the plain convolution: as in e2cnn, a field's own is the length of its members'."""
        if self.bias is None:
            return None
        members = self.shape[0]
        return (self.bias / members**0.5).repeat_interleave(members)

    def plain_state(self) -> dict[str, Tensor]:
        """The state of the plain convolution that does the same."""
        bias = self.plain_bias()
        return {"weight": self.kernel()} | ({} if bias is None else {"bias": bias})

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.kernel(), self.plain_bias(), self.stride, self.padding)

    def extra_repr(self) -> str:
        after, before, n = self.weight.shape
        out, inner, *size = self.shape
        return (
            f"{before}×{inner}, {after}×{out}, kernel_size={tuple(size)}, stride={self.stride}, "
            f"padding={self.padding}, basis={n}, bias={self.bias is not None}"
        )


class FieldNorm(nn.Sequential):
    """BatchNorm with one mean, variance, weight and bias for all members of a field."""

    def __init__(self, fields: int, members: int, eps: float = 1e-5, momentum: float | None = 0.1) -> None:
        norm = nn.BatchNorm3d(fields, eps, momentum)  # within a Sequential SyncBatchNorm can take its place
        super().__init__(nn.Unflatten(1, (fields, members)), norm, nn.Flatten(1, 2))
        self.members = members

    def plain_state(self) -> dict[str, Tensor]:
        """The state of the plain BatchNorm that does the same in eval mode."""
        return {
            name: value.repeat_interleave(self.members) if value.ndim else value.clone()
            for name, value in self[1].state_dict().items()
        }


def steer(net: nn.Module, symmetry: Symmetry, functions: Functions = DEFAULT) -> None:
    """Replace every convolution and BatchNorm of maps in ``net`` by its steerable form, freshly initialised.

    Channels become fields of ``symmetry.members`` consecutive ones; the first convolution reads an image.
    """
    first = True
    for name, layer in list(net.named_modules()):
        if isinstance(layer, nn.Conv2d):
            net.set_submodule(name, _steered(layer, symmetry, functions, from_image=first))
            first = False
        elif isinstance(layer, nn.BatchNorm2d):
            fields = _fields(layer.num_features, symmetry.members)
            net.set_submodule(name, FieldNorm(fields, symmetry.members, layer.eps, layer.momentum))


def _steered(
    conv: nn.Conv2d, symmetry: Symmetry, functions: Functions, *, from_image: bool
) -> SteerableConv2d:
    members = symmetry.members
    same = nn.Conv2d(1, 1, conv.kernel_size[0], conv.stride[0], conv.padding[0], device="meta")
    given, needed = (
        (c.kernel_size, c.stride, c.padding, c.dilation, c.groups, c.padding_mode) for c in (conv, same)
    )
    if given != needed:
        raise ValueError(
            f"a steerable convolution is square, without dilation and groups, padded with zeros; got {conv}"
        )
    return SteerableConv2d(
        conv.in_channels if from_image else _fields(conv.in_channels, members),
        _fields(conv.out_channels, members),
        conv.kernel_size[0],
        symmetry,
        from_image=from_image,
        stride=conv.stride[0],
        padding=int(conv.padding[0]),
        bias=conv.bias is not None,
        functions=functions,
    )


def _fields(channels: int, members: int) -> int:
    return FeatureGroups.of(members).num_groups(channels)


@lru_cache(maxsize=64)
def _basis(
    symmetry: Symmetry, kernel_size: int, from_image: bool, functions: Functions, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The basis between one field and another, and the scale of generalised He initialisation for it.

    ``dtype`` is the default one, in which the library samples.
    """
    with torch.device("cpu"), library() as (gspaces, steerable):
        space = (gspaces.FlipRot2dOnR2 if symmetry.flips else gspaces.Rot2dOnR2)(symmetry.rotations)
        source = space.trivial_repr if from_image else space.regular_repr
        field, regular = (steerable.FieldType(space, [kind]) for kind in (source, space.regular_repr))
        options = {"frequencies_cutoff": functions.cutoff, "sigma": functions.sigma}
        # its cache would hand out one tensor to all layers, whatever the dtype
        conv = steerable.R2Conv(
            field, regular, kernel_size, bias=False, initialize=False, recompute=True, **options
        )
        (block,) = conv.basisexpansion._modules.values()  # children() needs a hash, which new numpy breaks
        # each output irrep hears each kind of input irrep equally loud
        ways = [(a["in_irrep"], a["out_irreps_position"]) for a in conv.basisexpansion.get_basis_info()]
        count, kinds = Counter(ways), Counter(out for _, out in set(ways))
        scale = torch.tensor([(count[way] * kinds[way[1]]) ** -0.5 for way in ways])
        basis = block.sampled_basis.detach().unflatten(-1, (kernel_size, kernel_size))
        # the library has all turns and then their flips; in the group's elements each turn has its flip next
        order = torch.arange(symmetry.members).view(-1, symmetry.rotations).T.flatten()
        return (basis[:, order] if from_image else basis[:, order][:, :, order]), scale


@contextmanager
def library() -> Iterator[tuple[Any, Any]]:
    """``e2cnn.gspaces`` and ``e2cnn.nn``, quiet and with the numpy that they were written for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # e2cnn is older than the torch and numpy it meets
        names = ("e2cnn.gspaces", "e2cnn.nn", "e2cnn.kernels.utils")
        try:
            modules: list[Any] = [importlib.import_module(name) for name in names]
        except ImportError as error:
            raise ModuleNotFoundError('steerable nets need e2cnn: pip install "ien[steerable]"') from error
        gspaces, steerable, utils = modules
        before, utils.np = utils.np, _OlderNumpy()
        try:
            yield gspaces, steerable
        finally:
            utils.np = before


class _OlderNumpy:
    """numpy with ``copy=False`` as before 2.0: no copy unless one is needed; flips fail without it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(numpy, name)

    def array(self, value: Any, copy: bool = True) -> Any:
        return numpy.array(value) if copy else numpy.asarray(value)
