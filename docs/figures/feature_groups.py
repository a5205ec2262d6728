"""One feature in four orientations: rotating the image passes the maps on: feature-groups.png."""

from __future__ import annotations

import torch
from drawing import arrow, canvas, digit, network, say, tile
from matplotlib.figure import Figure
from records import save

from ien.report.palette import COLOURS
from ien.report.plots.style import styled

SIDE, STEP = 1.15, 1.42
TOP, BOTTOM = 2.55, 0.25
FRAMES = [COLOURS[name] for name in ("blue", "orange", "green", "vermilion")]


@styled()
def draw() -> Figure:
    figure, axes = canvas(9.75, 4.2)
    x = digit(7, 3)
    layer = network(tied=True)[:2]  # 24 channels: six feature groups of four
    with torch.no_grad():
        upright, rotated = (layer(image)[0].unflatten(0, (6, 4)) for image in (x, x.rot90(1, (-2, -1))))
    clearest = upright.var(dim=(1, 2, 3)).argmax()
    upright, rotated = upright[clearest], rotated[clearest]  # (4, H, W)
    shades = {"cmap": "viridis", "vmin": float(upright.min()), "vmax": float(upright.max())}
    members, pooled = 2.15, 2.15 + 4 * STEP + 0.5

    say(axes, 0.2 + SIDE / 2, TOP + SIDE + 0.25, "image")
    say(axes, pooled + SIDE / 2, TOP + SIDE + 0.25, "group pool")
    for row, image, maps in ((TOP, x, upright), (BOTTOM, x.rot90(1, (-2, -1)), rotated)):
        tile(axes, image[0, 0], 0.2, row, SIDE)
        tile(axes, maps.amax(0), pooled, row, SIDE, **shades)
        say(axes, pooled - 0.3, row + SIDE / 2, "max", fontsize=10)
        for m in range(4):
            # in the lower row, the map that came from member m - 1
            frame = FRAMES[m if row == TOP else (m - 1) % 4]
            tile(axes, maps[m], members + m * STEP, row, SIDE, frame, 2.6, **shades)
    for m in range(4):
        middle = members + m * STEP + SIDE / 2
        say(axes, middle, TOP + SIDE + 0.25, f"member {m}")
        to = members + (m + 1) % 4 * STEP + SIDE / 2
        arrow(axes, (middle, TOP - 0.1), (to, BOTTOM + SIDE + 0.1), color=FRAMES[m])
    for left in (0.2, pooled):
        middle = left + SIDE / 2
        arrow(axes, (middle, TOP - 0.1), (middle, BOTTOM + SIDE + 0.1))
        say(axes, middle + 0.1, (TOP + BOTTOM + SIDE) / 2, "rotate", ha="left")
    return figure


if __name__ == "__main__":
    save(draw(), "feature-groups.png")
