"""A quarter turn moves pixels, 45° has to invent some: exact.png."""

from __future__ import annotations

import torch
from drawing import canvas, digit, say, tile
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from records import save

import ien
from ien.report.palette import COLOURS
from ien.report.plots.style import GRID, styled

SIDE, LEFT, STEP = 1.9, 0.2, 2.65
HEIGHT = 0.75


@styled()
def draw() -> Figure:
    figure, axes = canvas(10.25, 3.2)
    # (1, 1, 16, 16): pixels large enough to see
    x = torch.nn.functional.interpolate(digit(5, 2)[..., 2:26, 2:26], (16, 16), mode="area")
    group = ien.rotation(8)
    eighth = torch.tensor([1])
    quarter = x.rot90(1, (-2, -1))
    resampled = group.act(x, eighth)
    there_and_back = group.act(resampled, eighth, inverse=True)
    valid = group.valid(x, eighth)[0].squeeze()

    pictures = (x, quarter, resampled, there_and_back)
    titles = ("the image", "by 90°", "by 45°", "by 45°, and back")
    notes = (
        "16×16 pixels",
        "the same pixels, moved:\nexact, bit for bit",
        "mixtures of four pixels;\ncorners unknown",
        "blurred: what is lost\nis the floor",
    )
    colours = ("#333333", COLOURS["green"], COLOURS["vermilion"], COLOURS["vermilion"])
    for i, (picture, title, note, colour) in enumerate(zip(pictures, titles, notes, colours, strict=True)):
        left = LEFT + i * STEP
        shown = picture[0, 0].clone()
        if i == 2:
            shown[~valid.bool()] = float("nan")
        axes.add_patch(Rectangle((left, HEIGHT), SIDE, SIDE, color=GRID))  # seen where pixels are unknown
        tile(axes, shown, left, HEIGHT, SIDE, vmin=0, vmax=1)
        say(axes, left + SIDE / 2, HEIGHT + SIDE + 0.25, title, fontweight="bold")
        say(axes, left + SIDE / 2, HEIGHT - 0.12, note, va="top", color=colour, fontsize=10, linespacing=1.35)
    return figure


if __name__ == "__main__":
    save(draw(), "exact.png")
