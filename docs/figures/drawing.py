"""What the pictures of the concepts share: images as tiles, arrows between them, captions."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from torch import Tensor, nn

import ien
from ien.data import embedded_digits
from ien.report.plots.style import DARK, EDGE

TEXT = 11
"""Points; large enough if the picture is half as wide."""


def digit(number: int = 7, which: int = 0) -> Tensor:
    """Return a digit of the embedded ones, (1, 1, 28, 28)."""
    x, y = embedded_digits()
    return x[y == number][which : which + 1]


def network(tied: bool, seed: int = 0) -> nn.Sequential:
    """Return two convolutions with random weights, as they are or tied; the last has 8 channels."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(1, 24, 7, padding=3), nn.ReLU(), nn.Conv2d(24, 8, 5, padding=2), nn.ReLU())
    if tied:
        # what a model returns is made of feature groups only if its layer is named
        ien.make_equivariant(net, "rot4", embedded_digits()[0][:16], feature_groups={"": 4, "2": 4})
    return net.eval()


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """Return a figure whose one invisible axes has inches for coordinates."""
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.set_axis_off()
    return figure, axes


def tile(
    axes: Axes,
    image: Tensor,
    x: float,
    y: float,
    side: float,
    frame: str = EDGE,
    width: float = 0.8,
    **colours: Any,
) -> None:
    """Draw an image (H, W) with its lower left corner at (x, y)."""
    colours = {"cmap": "gray_r", "interpolation": "nearest"} | colours
    axes.imshow(image.numpy(), extent=(x, x + side, y, y + side), zorder=2, aspect="auto", **colours)
    axes.add_patch(Rectangle((x, y), side, side, fill=False, edgecolor=frame, linewidth=width, zorder=3))


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], **options: Any) -> None:
    look = {"color": DARK, "linewidth": 1.5, "arrowstyle": "-|>", "mutation_scale": 13} | options
    axes.add_patch(FancyArrowPatch(start, end, shrinkA=0, shrinkB=0, zorder=4, **look))


def say(axes: Axes, x: float, y: float, text: str, **options: Any) -> None:
    """Write a text, centred at (x, y) unless the options say otherwise."""
    look = {"ha": "center", "va": "center", "fontsize": TEXT, "color": DARK} | options
    axes.text(x, y, text, **look)
