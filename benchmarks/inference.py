"""Inference: plain again after tying, fewer channels with mixed feature groups, and onnxruntime."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from timing import Compared, Row, Run, ratio
from torch import Tensor, nn

import ien
from ien.exporting.runtimes import OnnxModel
from ien.training.network import channels_last

SIZES = {"cnn6": (1, 28, 28), "resnet18": (3, 33, 33)}
"""Channels, height and width of the images of each network."""
FIRST_CHANNELS = {"cnn6": 128, "resnet18": 136}
"""Of the first layer at width 1, with feature groups of 4."""
HETEROGENEOUS = (
    ("cnn6", 128, 64, "≥ 1.8"),
    ("cnn6", 128, 1, "≥ 1.5"),
    ("cnn6", 16, 64, "–"),
    ("resnet18", 136, 64, "≥ 1.8"),
    ("resnet18", 136, 1, "≥ 1.5"),
)
"""Network, first channels, images in a batch, goal."""
WIDTHS = {"cnn6": 1 / 4, "resnet18": 1 / 8}
NOTE = """Inference: made plain means tied weights that `ien.make_plain` wrote out, against the same net
that never was tied. R4 has feature groups of 4, R4-2-1 a mix of 4, 2 and 1 with 69 % of the channels; both
run channels-last, as runs do. onnxruntime runs the file of `ien.export`; eager is torch without a compiler.
"""


def forward(net: nn.Module, x: Tensor) -> Run:
    """One pass without gradients."""
    net.eval()

    def run() -> None:
        with torch.inference_mode():
            net(x)

    return run


def images(name: str, batch: int) -> Tensor:
    return torch.rand(batch, *SIZES[name])


def create(name: str, feature_groups: int | str = 4) -> nn.Module:
    channels, _, _ = SIZES[name]
    return ien.models.create(
        name, feature_groups=feature_groups, width=WIDTHS[name], num_classes=10, in_channels=channels
    )


def made_plain(name: str, batch: int) -> tuple[Run, Run]:
    """A network that was tied and is plain again, and one that never was."""
    x = images(name, batch)
    tied, bare = create(name), create(name)
    ien.make_equivariant(tied, "rot4", images(name, 4), 4)
    ien.make_plain(tied)
    return forward(tied, x), forward(bare, x)


def whole_and_mixed(name: str, width: float, batch: int) -> tuple[Run, Run]:
    """A network with feature groups of 4, and with 4-2-1."""
    x = images(name, batch).contiguous(memory_format=torch.channels_last)
    whole, mixed = (ien.models.create(name, feature_groups=spec, width=width) for spec in (4, "4-2-1"))
    channels_last(whole)
    channels_last(mixed)
    return forward(whole, x), forward(mixed, x)


def exported(net: nn.Module, x: Tensor) -> nn.Module:
    """The network in onnxruntime, through a file that ``ien.export`` writes and checks."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "net.onnx")
        ien.export(net, path, x)
        return OnnxModel(path)


def images_per_second(found: Compared, batch: int) -> str:
    return f"{batch / found.slow:.0f} / {batch / found.fast:.0f} images/s"


def measure() -> Iterator[Row]:
    torch.manual_seed(0)
    for name in SIZES:
        found = ratio(*made_plain(name, 64), rounds=60)
        yield found.row(f"inference, {name}, 64 images, made plain / never tied", "≤ 1.01")
    for name, channels, batch, goal in HETEROGENEOUS:
        width = channels / FIRST_CHANNELS[name]
        found = ratio(*whole_and_mixed(name, width, batch), rounds=200 if batch == 1 else 25)
        plural = "image" if batch == 1 else "images"
        what = f"inference, {name}, {channels} first channels, {batch} {plural}, R4 / R4-2-1"
        yield found.row(what, goal, images_per_second(found, batch))
    for name in SIZES:
        net = create(name).eval()
        file = exported(net, images(name, 8))
        for batch in (64, 1):
            x = images(name, batch)
            found = ratio(forward(net, x), forward(file, x), rounds=200 if batch == 1 else 40)
            plural = "image" if batch == 1 else "images"
            yield found.row(f"inference, {name}, {batch} {plural}, torch eager / onnxruntime", "≥ 1.3")
