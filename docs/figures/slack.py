"""A weight is a tied one plus a remainder: slack.png."""

from __future__ import annotations

from drawing import arrow, canvas, say
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from records import save

from ien.report.palette import COLOURS, METHODS
from ien.report.plots.style import GREY, styled

TIP = (2.25, 1.05)
"""Of the tied weight, in inches from the corner of its panel."""
ACROSS = (-0.42, 0.9)
"""A direction at a right angle to the line of tied weights."""


@styled()
def draw() -> Figure:
    figure, axes = canvas(10.4, 3.3)
    panels = (
        (0.35, 0.0, "Tied", "exactly equivariant", METHODS["equivariant"]),
        (3.8, 0.45, "A little slack", "nearly equivariant", METHODS["slack"]),
        (7.25, 1.0, "Much slack", "as free as an ordinary weight", METHODS["CNN"]),
    )
    for left, length, title, note, colour in panels:
        draw_panel(axes, (left, 0.8), length, title, note, colour)
    return figure


def draw_panel(
    axes: Axes, corner: tuple[float, float], length: float, title: str, note: str, colour: str
) -> None:
    """Draw a weight W, the nearest tied weight P W, and between them a remainder r of this length."""
    x, y = corner
    # the space of tied weights, drawn as a line
    a, b = (x - 0.15, y - 0.07), (x + 2.75, y + 1.2833)
    band = {"linewidth": 7, "alpha": 0.45, "solid_capstyle": "round"}
    axes.plot([a[0], b[0]], [a[1], b[1]], color=COLOURS["sky"], **band)
    tip = (x + TIP[0], y + TIP[1])
    end = (tip[0] + length * ACROSS[0], tip[1] + length * ACROSS[1])
    arrow(axes, (x, y), tip, color=METHODS["equivariant"], linewidth=2.2)
    say(axes, x + 1.35, y + 0.36, "P W", color=METHODS["equivariant"], fontsize=12, fontweight="bold")
    if length:
        arrow(axes, tip, end, color=COLOURS["vermilion"], linewidth=2.2)
        arrow(axes, (x, y), end, color="#333333", linewidth=1.4, linestyle=(0, (4, 2)))
        beside = ((tip[0] + end[0]) / 2 + 0.2, (tip[1] + end[1]) / 2 + 0.1)
        say(axes, *beside, "r", color=COLOURS["vermilion"], fontsize=12, fontweight="bold")
        above = ((x + end[0]) / 2 - 0.2, (y + end[1]) / 2 + 0.25)
        say(axes, *above, "W", fontsize=12, fontweight="bold")
    else:
        say(axes, x + 1.75, y + 0.0, "the line: all tied weights", fontsize=10, color=COLOURS["blue"])
    say(axes, x - 0.15, 3.05, title, ha="left", fontsize=13, fontweight="bold", color=colour)
    say(axes, x - 0.15, 0.25, note, ha="left", color=GREY)


if __name__ == "__main__":
    save(draw(), "slack.png")
