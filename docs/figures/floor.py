"""Relative errors around the circle, and the floor that no layer of this network gets below: floor.png."""

from __future__ import annotations

from drawing import network
from matplotlib.figure import Figure
from records import save

import ien
from ien.data import embedded_digits
from ien.report.palette import COLOURS, METHODS
from ien.report.plots.style import GREY, styled


@styled()
def draw() -> Figure:
    x = embedded_digits()[0][:100]
    figure = Figure(figsize=(9.6, 4.0), layout="constrained")
    axes = figure.subplots()
    group = ien.rotation(24)
    angles = [360 / 24 * i for i in range(24)]
    for tied, name in ((False, "an ordinary layer"), (True, "an equivariant layer")):
        layer = ien.measure(network(tied), x, group, ["3"], feature_groups=4).layers["3"]
        errors = [layer.elements[label].relative for label in group.labels[1:]]
        colour = METHODS["equivariant" if tied else "CNN"]
        # the identity has no error
        axes.plot([*angles, 360], [0, *errors, 0], "o-", color=colour, markersize=4, label=name)
        if tied:
            floors = [layer.elements[label].floor for label in group.labels[1:]]
            shade = {"color": COLOURS["sky"], "alpha": 0.6, "linewidth": 0}
            axes.fill_between([*angles, 360], [0, *floors, 0], label="its floor", **shade)
    axes.axhline(2, color=GREY, linewidth=1, linestyle=(0, (4, 2)))
    axes.text(358, 2.04, "unrelated maps", ha="right", va="bottom", color=GREY, fontsize=11)
    axes.set(xlim=(0, 360), ylim=(0, 2.35), xticks=range(0, 361, 45), yticks=(0, 0.5, 1, 1.5, 2))
    axes.tick_params(labelsize=11)
    axes.set_xticklabels([f"{angle}°" for angle in range(0, 361, 45)])
    axes.set_xlabel("the image is rotated by", fontsize=11)
    axes.set_ylabel("relative error", fontsize=11)
    axes.legend(loc="upper left", bbox_to_anchor=(0, 1.16), ncols=3, fontsize=11, borderaxespad=0)
    return figure


if __name__ == "__main__":
    save(draw(), "floor.png")
