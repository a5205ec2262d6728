"""Where a 3×3 convolution of stride 2 looks, on 8 and on 9 pixels: sizes.png."""

from __future__ import annotations

from drawing import canvas, say
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle
from records import save

from ien.report.palette import COLOURS
from ien.report.plots.style import EDGE, GRID, styled

CELL = 0.42


@styled()
def draw() -> Figure:
    figure, axes = canvas(10.4, 2.75)
    draw_rows(axes, 0.2, 8, COLOURS["vermilion"], "8 pixels: it stops short of the right edge")
    draw_rows(axes, 5.5, 9, COLOURS["green"], "9 pixels: both edges are alike")
    return figure


def draw_rows(axes: Axes, left: float, pixels: int, colour: str, title: str) -> None:
    """Draw a row of pixels and the same row flipped, with the centres of the kernels in both."""
    say(axes, left, 2.5, title, ha="left", fontsize=12.5, fontweight="bold", color=colour)
    kernels = list(range(0, pixels, 2))
    flipped = [pixels - 1 - centre for centre in kernels]
    for height, name, centres in ((1.6, "the row", kernels), (0.8, "flipped", flipped)):
        for i in range(pixels):
            x = left + 0.75 + i * CELL
            used = i in centres
            look = {"facecolor": "white" if used else GRID, "edgecolor": EDGE, "linewidth": 0.8}
            axes.add_patch(Rectangle((x, height), CELL, CELL, **look))
            if used:
                axes.add_patch(Circle((x + CELL / 2, height + CELL / 2), 0.11, color=colour))
        say(axes, left, height + CELL / 2, name, ha="left")
    same = sorted(flipped) == kernels
    text = "the kernel looks at the same pixels" if same else "the kernel looks at other pixels"
    say(axes, left + 0.75, 0.45, text, ha="left", color=colour)


if __name__ == "__main__":
    save(draw(), "sizes.png")
