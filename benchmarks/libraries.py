"""The networks of the peers, written with e2cnn or escnn: the same layers and channels as ours.

Both libraries name their layers alike, so one text serves both; only the group is made differently.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import warnings
from typing import Any

from torch import Tensor, nn

from ien.models.cnn6 import KERNELS, PADDINGS
from ien.models.cnn6 import num_groups as cnn6_fields
from ien.models.resnet18 import STRIDES, odd_sized
from ien.models.resnet18 import num_groups as resnet18_fields

LIBRARIES = ("e2cnn", "escnn")
QUARTERS = 4
SIGMA = 0.45
"""With all frequencies up to π, as in the paper's ResNet18: 8 functions for each 3×3 filter."""


def is_installed(library: str) -> bool:
    return importlib.util.find_spec(library) is not None


def create(library: str, name: str, width: float) -> nn.Module:
    """Build ``cnn6`` or ``resnet18`` for 10 classes, steered by quarter turns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # e2cnn is older than the torch and numpy it meets
        return {"cnn6": CNN6, "resnet18": ResNet18}[name](Fields(library), width)


class Fields:
    """A library's layers, and its fields of four members."""

    def __init__(self, library: str) -> None:
        gspaces = importlib.import_module(f"{library}.gspaces")
        self.nn: Any = importlib.import_module(f"{library}.nn")
        if library == "e2cnn":
            self.space = gspaces.Rot2dOnR2(QUARTERS)
        else:
            self.space = gspaces.rot2dOnR2(QUARTERS)

    def of_images(self, channels: int) -> Any:
        return self.nn.FieldType(self.space, channels * [self.space.trivial_repr])

    def of_maps(self, count: int) -> Any:
        return self.nn.FieldType(self.space, count * [self.space.regular_repr])


class CNN6(nn.Module):
    """Six convolutions, each with a norm and ELU; two pools; the maximum over members; two linear layers."""

    def __init__(self, fields: Fields, width: float) -> None:
        super().__init__()
        library = fields.nn
        self.as_field = library.GeometricTensor
        self.images = fields.of_images(1)
        counts = cnn6_fields(QUARTERS, width)
        layers: list[nn.Module] = []
        before = self.images
        for i, (count, kernel, padding) in enumerate(zip(counts, KERNELS, PADDINGS, strict=True)):
            after = fields.of_maps(count)
            layers.append(library.R2Conv(before, after, kernel, padding=padding, bias=False))
            layers.append(library.InnerBatchNorm(after))
            layers.append(library.ELU(after))
            if i in (1, 3):
                layers.append(library.PointwiseMaxPool(after, 2))
            before = after
        layers.append(library.GroupPooling(before))
        self.layers = library.SequentialModule(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(counts[-1], counts[-1]), nn.BatchNorm1d(counts[-1]), nn.ELU(), nn.Linear(counts[-1], 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.layers(self.as_field(x, self.images)).tensor  # (B, groups, 2, 2) from 28×28
        return self.classifier(pooled.mean((2, 3)))


class ResNet18(nn.Module):
    """A stem, four stages of two pre-activation blocks, the maximum over members, a linear layer."""

    def __init__(self, fields: Fields, width: float) -> None:
        super().__init__()
        library = fields.nn
        self.as_field = library.GeometricTensor
        self.images = fields.of_images(3)
        counts = resnet18_fields(QUARTERS, width)
        before = fields.of_maps(counts[0])
        self.stem = _conv(library, self.images, before)
        blocks = []
        for count, stride in zip(counts, STRIDES, strict=True):
            after = fields.of_maps(count)
            blocks.append(Block(library, before, after, stride))
            blocks.append(Block(library, after, after, 1))
            before = after
        self.blocks = nn.Sequential(*blocks)
        self.last_norm = library.InnerBatchNorm(before)
        self.relu = library.ReLU(before)
        self.group_pool = library.GroupPooling(before)
        self.classifier = nn.Linear(counts[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(self.as_field(odd_sized(x), self.images))
        h = self.relu(self.last_norm(self.blocks(h)))
        return self.classifier(self.group_pool(h).tensor.mean((2, 3)))


class Block(nn.Module):
    """The pre-activation block of ``ien.models.resnet18``, in fields."""

    def __init__(self, library: Any, before: Any, after: Any, stride: int) -> None:
        super().__init__()
        self.norm1 = library.InnerBatchNorm(before)
        self.relu1 = library.ReLU(before)
        self.conv1 = _conv(library, before, after)
        self.norm2 = library.InnerBatchNorm(after)
        self.relu2 = library.ReLU(after)
        self.conv2 = _conv(library, after, after, stride)
        self.shortcut = None
        if stride > 1 or before != after:
            self.shortcut = library.R2Conv(before, after, 1, stride=stride)

    def forward(self, x: Any) -> Any:
        active = self.relu1(self.norm1(x))
        h = self.conv2(self.relu2(self.norm2(self.conv1(active))))
        if self.shortcut is None:
            return h + x
        return h + self.shortcut(active)


def _conv(library: Any, before: Any, after: Any, stride: int = 1) -> nn.Module:
    return library.R2Conv(before, after, 3, stride=stride, padding=1, frequencies_cutoff=math.pi, sigma=SIGMA)
