"""Steerable nets: e2cnn's kernel bases in, modules that commute with rotations by construction out."""

from __future__ import annotations

import importlib
import warnings
from collections import Counter
from fractions import Fraction
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._feature_groups import FeatureGroups
from ..models.cnn6 import CNN6, KERNELS, PADDINGS, cnn6, num_groups

__all__ = ["SteerableCNN6", "SteerableConv2d", "steerable_cnn6"]


def steerable_cnn6(
    rotations: int = 4, width: float | Fraction = 1, num_classes: int = 10, in_channels: int = 1
) -> SteerableCNN6:
    """The E2CNN twin of :func:`ien.models.cnn6`: same blocks and channels, regular fields as feature groups.

    Exact for quarter turns; for the rotations between them as exact as the pixels allow.
    """
    if isinstance(rotations, bool) or not isinstance(rotations, int) or rotations < 2:
        raise ValueError(f"rotations must be a whole number of at least 2, such as 4; got {rotations!r}")
    return SteerableCNN6(rotations, width, num_classes, in_channels)


class SteerableCNN6(CNN6):
    """A :class:`CNN6` with steerable convolutions and BatchNorms that share statistics within a field."""

    def __init__(self, rotations: int, width: float | Fraction, num_classes: int, in_channels: int) -> None:
        fields = num_groups(rotations, width)
        blocks = []
        for i, (kernel, padding, after) in enumerate(zip(KERNELS, PADDINGS, fields, strict=True)):
            before = in_channels if i == 0 else fields[i - 1]
            conv = SteerableConv2d(before, after, kernel, padding, rotations, from_image=i == 0)
            members = nn.Unflatten(1, (after, rotations))
            blocks.append(nn.Sequential(conv, members, nn.BatchNorm3d(after), nn.ELU(), nn.Flatten(1, 2)))
        super().__init__(blocks, FeatureGroups.of(rotations), fields[-1], num_classes)
        self._plain = partial(cnn6, rotations, width, num_classes, in_channels)

    def export(self) -> CNN6:
        """The plain net that computes the same in eval mode, with weights of its own."""
        (members,) = self.feature_groups.sizes
        state = {name: value.detach().clone() for name, value in self.state_dict().items()}
        for tap in self.taps:
            conv, _, norm, *_ = self.get_submodule(tap).children()
            state[f"{tap}.0.weight"] = conv.kernel().detach()  # type: ignore[operator]
            for name in norm.state_dict():
                value = state.pop(f"{tap}.2.{name}")
                state[f"{tap}.1.{name}"] = value.repeat_interleave(members) if value.ndim else value
        with torch.device("meta"):  # without drawing weights that are replaced at once
            plain = self._plain()
        plain.load_state_dict(state, assign=True)
        return plain.eval()


class SteerableConv2d(nn.Module):
    """A convolution between fields whose kernels are combinations of e2cnn's basis.

    It gives regular fields and takes such too or, ``from_image``, plain channels. Every forward pass expands
    the kernels, so that the state does not depend on the mode.
    """

    basis: Tensor

    def __init__(
        self, before: int, after: int, kernel_size: int, padding: int, rotations: int, *, from_image: bool
    ) -> None:
        super().__init__()
        basis, scale = _basis(rotations, kernel_size, from_image)
        self.padding = padding
        self.shape = basis.shape[1:]  # (members out, members in, k, k)
        self.register_buffer("basis", basis.flatten(1), persistent=False)
        self.weight = nn.Parameter(torch.randn(after, before, len(basis)) * scale / before**0.5)

    def kernel(self) -> Tensor:
        """The weight of the plain convolution that does the same."""
        after, before, _ = self.weight.shape
        out, inner, *size = self.shape
        kernel = (self.weight @ self.basis).unflatten(2, self.shape)
        return kernel.transpose(1, 2).reshape(after * out, before * inner, *size)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.kernel(), padding=self.padding)

    def extra_repr(self) -> str:
        after, before, n = self.weight.shape
        out, inner, *size = self.shape
        return (
            f"{before}×{inner}, {after}×{out}, kernel_size={tuple(size)}, padding={self.padding}, basis={n}"
        )


def _basis(rotations: int, kernel_size: int, from_image: bool) -> tuple[Tensor, Tensor]:
    """The basis between one field and another, and the scale of generalised He initialisation for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # e2cnn is older than the torch and numpy it meets
        try:
            gspaces, steerable = map(importlib.import_module, ("e2cnn.gspaces", "e2cnn.nn"))
        except ImportError as error:
            raise ModuleNotFoundError('steerable nets need e2cnn: pip install "ien[steerable]"') from error
        space = gspaces.Rot2dOnR2(rotations)
        source = space.trivial_repr if from_image else space.regular_repr
        field, regular = (steerable.FieldType(space, [kind]) for kind in (source, space.regular_repr))
        conv = steerable.R2Conv(field, regular, kernel_size, bias=False, initialize=False)
    (block,) = conv.basisexpansion.children()
    # each output irrep hears each kind of input irrep equally loud
    ways = [(a["in_irrep"], a["out_irreps_position"]) for a in conv.basisexpansion.get_basis_info()]
    count, kinds = Counter(ways), Counter(out for _, out in set(ways))
    scale = torch.tensor([(count[way] * kinds[way[1]]) ** -0.5 for way in ways])
    # a copy: the library hands out one tensor to all layers, and .double() would change it in all of them
    return block.sampled_basis.detach().clone().unflatten(-1, (kernel_size, kernel_size)), scale
