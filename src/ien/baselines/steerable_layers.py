"""Steerable layers: convolutions and norms that commute with rotations and flips by construction.

A *field* is a feature group with one channel, or member, for each element of the group. Between two
fields, a kernel commutes with the group if, for every element g,

    κ(g x) = ρ_out(g) κ(x) ρ_in(g)⁻¹

where ρ permutes the members (on an image it is the identity). The kernels that satisfy this form a
linear space. e2cnn samples a basis κ_1 … κ_n of it, and a layer learns the weights w of

    κ = Σ_b w_b κ_b
"""

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

from .._text import to_install
from ..groups.families import group as parse_group
from ..groups.families import reflection, rotation
from ..groups.group import Group
from ..loss.feature_groups import FeatureGroups

__all__ = [
    "E2CNN_DEFAULT",
    "E2CNN_WIDE",
    "FieldNorm",
    "Functions",
    "SteerableConv2d",
    "Symmetry",
    "library",
    "steer",
]


class Symmetry(NamedTuple):
    """Rotations about a point, with or without flips; a field has one member for each element.

    Members follow the order of the elements of ``rot4``, ``rot4xflip`` and the like, whatever the
    order in the group that :meth:`of` is given.
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
                f"a steerable net takes a group, such as rot4, and its feature groups have one size, "
                f"the number of the group's elements; got {group!r}"
            )
        read = parse_group(group)
        count = len(read)
        elements = set(read.elements)
        if count > 1 and elements == set(rotation(count).elements):
            return cls(count, flips=False)
        if count > 2 and elements == set((rotation(count // 2) * reflection()).elements):
            return cls(count // 2, flips=True)
        raise ValueError(
            f"steerable nets are built for rotations (rot4, rot8), also with flips (rot4xflip); got {read}"
        )

    @property
    def members(self) -> int:
        """Channels of a field: one for each element."""
        return self.rotations * (1 + self.flips)


class Functions(NamedTuple):
    """Which functions the kernels are made of; None leaves it to e2cnn."""

    cutoff: float | None = None
    """The highest frequency on a ring, for each pixel of its radius."""
    sigma: float | None = None
    """The width of the rings, in pixels."""


E2CNN_DEFAULT = Functions()
"""6 functions for a 3×3 filter."""
E2CNN_WIDE = Functions(cutoff=math.pi, sigma=0.45)
"""8 functions for a 3×3 filter, as in e2cnn's wide residual nets."""


class SteerableConv2d(nn.Module):
    """A convolution from fields to fields whose kernels are combinations of e2cnn's basis.

    Every forward pass expands the kernels, so the state does not depend on the mode.

    Args:
        before: Fields of the input, or its channels if ``from_image``.
        after: Fields of the output.
        kernel_size: Pixels along each side of the kernels.
        group: The group that the layer commutes with.
        from_image: The input is an image, whose channels the group leaves in place.
        stride: As in ``nn.Conv2d``.
        padding: As in ``nn.Conv2d``, with zeros.
        bias: Learn a bias for each field.
        functions: What the kernels are made of.
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
        functions: Functions = E2CNN_DEFAULT,
    ) -> None:
        super().__init__()
        symmetry = group
        if not isinstance(symmetry, Symmetry):
            symmetry = Symmetry.of(symmetry)
        with library():  # even if the basis is cached: a missing e2cnn should always be reported
            basis, scale = _basis(symmetry, kernel_size, from_image, functions, torch.get_default_dtype())
        self.stride = stride
        self.padding = padding
        self.shape = basis.shape[1:]  # (members out, members in, k, k)
        weight = torch.randn(after, before, len(basis))
        self.weight = nn.Parameter(weight * scale.to(weight.device) / before**0.5)
        self.bias = None
        if bias:
            self.bias = nn.Parameter(torch.zeros(after))  # one for each field
        flat = basis.flatten(1)  # (n, members out * members in * k * k)
        self.register_buffer("basis", flat.to(weight.device, copy=True), persistent=False)

    def kernel(self) -> Tensor:
        """Return the weight of the plain convolution that does the same."""
        after, before, _ = self.weight.shape
        out, inner, *size = self.shape
        # κ = Σ_b w_b κ_b, for every pair of fields
        kernel = (self.weight @ self.basis).unflatten(2, self.shape)  # (after, before, out, inner, k, k)
        kernel = kernel.transpose(1, 2)  # (after, out, before, inner, k, k)
        return kernel.reshape(after * out, before * inner, *size)  # (after * out, before * inner, k, k)

    def plain_bias(self) -> Tensor | None:
        """Return the bias of the plain convolution.

        As in e2cnn, the bias b of a field is the length of the vector of its members' biases, which
        are all equal: b / √members each.
        """
        if self.bias is None:
            return None
        members = self.shape[0]
        return (self.bias / members**0.5).repeat_interleave(members)

    def plain_state(self) -> dict[str, Tensor]:
        """Return the state of the plain convolution that does the same."""
        state = {"weight": self.kernel()}
        bias = self.plain_bias()
        if bias is not None:
            state["bias"] = bias
        return state

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.kernel(), self.plain_bias(), self.stride, self.padding)

    def extra_repr(self) -> str:
        after, before, functions = self.weight.shape
        out, inner, *size = self.shape
        return (
            f"{before}×{inner}, {after}×{out}, kernel_size={tuple(size)}, stride={self.stride}, "
            f"padding={self.padding}, basis={functions}, bias={self.bias is not None}"
        )


class FieldNorm(nn.Sequential):
    """BatchNorm with one mean, variance, weight and bias for all members of a field.

    Members of a field are permuted by the group, so normalising them alike commutes with it.
    """

    def __init__(self, fields: int, members: int, eps: float = 1e-5, momentum: float | None = 0.1) -> None:
        split = nn.Unflatten(1, (fields, members))  # (B, fields, members, H, W)
        norm = nn.BatchNorm3d(fields, eps, momentum)  # in a Sequential, so SyncBatchNorm can replace it
        super().__init__(split, norm, nn.Flatten(1, 2))
        self.members = members

    def plain_state(self) -> dict[str, Tensor]:
        """Return the state of the plain BatchNorm that does the same in eval mode."""
        state = {}
        for name, value in self[1].state_dict().items():
            if value.ndim:
                state[name] = value.repeat_interleave(self.members)
            else:  # the number of batches
                state[name] = value.clone()
        return state


def steer(net: nn.Module, symmetry: Symmetry, functions: Functions = E2CNN_DEFAULT) -> None:
    """Replace every Conv2d and BatchNorm2d in ``net`` by its steerable form, with fresh weights.

    Channels become fields of ``symmetry.members`` consecutive ones; the first convolution reads an
    image.
    """
    members = symmetry.members
    first = True
    for name, layer in list(net.named_modules()):
        if isinstance(layer, nn.Conv2d):
            net.set_submodule(name, _steered(layer, symmetry, functions, from_image=first))
            first = False
        elif isinstance(layer, nn.BatchNorm2d):
            fields = _fields(layer.num_features, members)
            net.set_submodule(name, FieldNorm(fields, members, layer.eps, layer.momentum))


def _steered(
    conv: nn.Conv2d, symmetry: Symmetry, functions: Functions, *, from_image: bool
) -> SteerableConv2d:
    kernel_size, stride, padding = conv.kernel_size[0], conv.stride[0], conv.padding[0]
    supported = nn.Conv2d(1, 1, kernel_size, stride, padding, device="meta")
    for setting in ("kernel_size", "stride", "padding", "dilation", "groups", "padding_mode"):
        if getattr(conv, setting) != getattr(supported, setting):
            raise ValueError(
                f"a steerable convolution is square, without dilation and groups, padded with zeros; "
                f"got {conv}"
            )
    before = conv.in_channels
    if not from_image:
        before = _fields(before, symmetry.members)
    return SteerableConv2d(
        before,
        _fields(conv.out_channels, symmetry.members),
        kernel_size,
        symmetry,
        from_image=from_image,
        stride=stride,
        padding=int(padding),
        bias=conv.bias is not None,
        functions=functions,
    )


def _fields(channels: int, members: int) -> int:
    return FeatureGroups.of(members).num_groups(channels)


@lru_cache(maxsize=64)
def _basis(
    symmetry: Symmetry, kernel_size: int, from_image: bool, functions: Functions, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Sample the basis between two fields, and the initial scale of each of its functions.

    ``dtype`` is torch's default, in which e2cnn samples: it is an argument for the sake of the
    cache.

    Returns:
        The basis (n, members out, members in, k, k) and the scales (n,).
    """
    with torch.device("cpu"), library() as (gspaces, steerable):
        if symmetry.flips:
            space = gspaces.FlipRot2dOnR2(symmetry.rotations)
        else:
            space = gspaces.Rot2dOnR2(symmetry.rotations)
        source = space.trivial_repr if from_image else space.regular_repr
        conv = steerable.R2Conv(
            steerable.FieldType(space, [source]),
            steerable.FieldType(space, [space.regular_repr]),
            kernel_size,
            frequencies_cutoff=functions.cutoff,
            sigma=functions.sigma,
            bias=False,
            initialize=False,
            recompute=True,  # e2cnn's own cache would share one tensor between all layers and dtypes
        )
        (block,) = conv.basisexpansion._modules.values()  # children() needs a hash, which new numpy breaks
        scale = _he_scale(conv.basisexpansion.get_basis_info())
        basis = block.sampled_basis.detach()  # (n, members out, members in, k * k)
        basis = basis.unflatten(-1, (kernel_size, kernel_size))  # (n, members out, members in, k, k)

        # e2cnn lists all rotations, then all flips; our groups have each rotation's flip beside it
        order = torch.arange(symmetry.members).view(-1, symmetry.rotations)  # (1 or 2, rotations)
        order = order.T.flatten()  # (members,)
        basis = basis[:, order]
        if not from_image:
            basis = basis[:, :, order]
        return basis, scale


def _he_scale(functions: Any) -> Tensor:
    """Generalised He initialisation: each output irrep hears each kind of input irrep equally loud.

    A function that leads from input irreps of kind i to output irrep o starts with the deviation

        1 / √(functions from i to o  ·  kinds of input irreps that lead to o)
    """
    paths = []
    for function in functions:
        paths.append((function["in_irrep"], function["out_irreps_position"]))
    functions_on = Counter(paths)
    kinds_into = Counter(out for _, out in functions_on)
    deviations = []
    for path in paths:
        deviations.append((functions_on[path] * kinds_into[path[1]]) ** -0.5)
    return torch.tensor(deviations)


def to_install_e2cnn() -> str:
    """Return the command that installs e2cnn, with what it imports without saying so."""
    return to_install("steerable", "e2cnn==0.2.3", "scipy", '"numpy<2.3"')


@contextmanager
def library() -> Iterator[tuple[Any, Any]]:
    """Import ``e2cnn.gspaces`` and ``e2cnn.nn``, quietly and with the numpy they expect."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # e2cnn is older than the torch and numpy it meets
        try:
            gspaces: Any = importlib.import_module("e2cnn.gspaces")
            steerable: Any = importlib.import_module("e2cnn.nn")
            utils: Any = importlib.import_module("e2cnn.kernels.utils")
        except ImportError as error:
            raise ModuleNotFoundError(f"steerable nets need e2cnn: {to_install_e2cnn()}") from error
        before = utils.np
        utils.np = _OlderNumpy()
        try:
            yield gspaces, steerable
        finally:
            utils.np = before


class _OlderNumpy:
    """numpy with ``copy=False`` as before 2.0: copy only if needed. Flips fail without it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(numpy, name)

    def array(self, value: Any, copy: bool = True) -> Any:
        if copy:
            return numpy.array(value)
        return numpy.asarray(value)
