"""Steerable layers: convolutions and norms that commute with rotations and flips by construction.

A *field* is a feature group with one channel, or member, for each element of the group. Between two
fields, a kernel commutes with the group if, for every element g,

    κ(g x) = ρ_out(g) κ(x) ρ_in(g)⁻¹

where ρ permutes the members (on an image it is the identity). The kernels that satisfy this form a
linear space with the basis κ_1 … κ_n of ``steerable_basis.py``, and a layer learns the weights w of

    κ = Σ_b w_b κ_b
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..groups.families import group as parse_group
from ..groups.families import reflection, rotation
from ..groups.group import Group
from ..loss.feature_groups import FeatureGroups
from .steerable_basis import E2CNN_DEFAULT, Functions, steerable_basis

__all__ = ["FieldNorm", "SteerableConv2d", "Symmetry", "steer"]


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


class SteerableConv2d(nn.Module):
    """A convolution from fields to fields whose kernels are combinations of a basis.

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
        basis, deviations = steerable_basis(
            symmetry.rotations, symmetry.flips, kernel_size, from_image, functions
        )
        self.stride = stride
        self.padding = padding
        self.shape = basis.shape[1:]  # (members out, members in, k, k)
        weight = torch.randn(after, before, len(basis))
        self.weight = nn.Parameter(weight * deviations.to(weight) / before**0.5)
        self.bias = None
        if bias:
            self.bias = nn.Parameter(torch.zeros(after))  # one for each field
        flat = basis.flatten(1)  # (n, members out * members in * k * k)
        self.register_buffer("basis", flat.to(weight, copy=True), persistent=False)

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
