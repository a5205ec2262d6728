"""Rotate and then compute a layer, or the other way round: equivariance.png."""

from __future__ import annotations

import torch
from drawing import arrow, canvas, digit, network, say, tile
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from records import save
from torch import Tensor

from ien.report.palette import METHODS
from ien.report.plots.style import styled

SIDE, GAP, BETWEEN = 1.15, 0.1, 0.42
TOP, BOTTOM = 2.3, 0.55


@styled()
def draw() -> Figure:
    figure, axes = canvas(10.5, 4.0)
    x = digit(7, 3)
    for left, tied, title in ((0.2, False, "An ordinary layer"), (5.5, True, "An equivariant layer")):
        net = network(tied)
        with torch.no_grad():
            maps = [net(image).amax(1)[0] for image in (x, x.rot90(1, (-2, -1)))]
        draw_square(axes, left, x[0, 0], maps, title, METHODS["equivariant" if tied else "CNN"])
    return figure


def draw_square(axes: Axes, left: float, x: Tensor, maps: list[Tensor], title: str, colour: str) -> None:
    """Draw an image, and the two ways to the map of the rotated image: they should meet."""
    before, after = maps
    middle = left + SIDE + 1.0  # the map of the rotated image
    right = middle + SIDE + BETWEEN  # the rotated map of the image
    values = torch.cat([before, after])
    heat = {"cmap": "viridis", "vmin": float(values.min()), "vmax": float(values.max())}
    tile(axes, x, left, TOP, SIDE)
    tile(axes, x.rot90(), left, BOTTOM, SIDE)
    tile(axes, before, right, TOP, SIDE, **heat)
    tile(axes, after, middle, BOTTOM, SIDE, **heat)
    tile(axes, before.rot90(), right, BOTTOM, SIDE, **heat)

    for height, end in ((TOP, right), (BOTTOM, middle)):
        level = height + SIDE / 2
        arrow(axes, (left + SIDE + GAP, level), (end - GAP, level))
        say(axes, (left + SIDE + end) / 2, level + 0.17, "layer")
    for side in (left, right):
        level = side + SIDE / 2
        arrow(axes, (level, TOP - GAP), (level, BOTTOM + SIDE + GAP))
        say(axes, level - 0.1, (TOP + BOTTOM + SIDE) / 2, "rotate", ha="right")

    error = float((after - before.rot90()).square().mean() / before.var())
    same = error < 1e-6
    say(axes, right - BETWEEN / 2, BOTTOM + SIDE / 2, "=" if same else "≠", fontsize=20, color=colour)
    text = "the same map either way" if same else "two different maps"
    say(axes, right - BETWEEN / 2, BOTTOM - 0.25, text, color=colour)
    say(axes, left, 3.75, title, ha="left", fontsize=13, fontweight="bold", color=colour)


if __name__ == "__main__":
    save(draw(), "equivariance.png")
