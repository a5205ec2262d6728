"""Trackers on OTB and Rot-OTB: tracking.png, and where they lose the target: turning.png.

Of the larger of the presets medium and small that has records; rows without one are left out.
"""

from __future__ import annotations

from matplotlib.figure import Figure
from records import rows, save

from ien.report.plots.style import note_below, styled
from ien.tracking.report.plots import plot_curves, plot_turning, scores_by_test

# row: what to call it
ROWS = {
    "tracking/siamfc": "SiamFC",
    "tracking/cnn4-siamfc": "CNN4-SiamFC",
    "tracking/re-siamfc": "RE-SiamFC (built in)",
    "tracking/ien-siamfc": "IEN-SiamFC (the loss)",
    "tracking/het-siamfc": "Het-SiamFC (smaller)",
    "tracking/equivariant-siamfc": "make_equivariant (tied)",
}
PRESETS = ("medium", "small")
TOP = 0.7
"""Of the curves: no tracker gets further."""


def scores() -> dict:
    """Return test → what to call a tracker → its scores."""
    chosen = []
    for preset in PRESETS:
        known = rows("tracking/*", preset=preset)
        chosen = [known[name] for name in ROWS if name in known]
        if chosen:
            break
    found = {}
    for test, trackers in scores_by_test(chosen).items():
        named = {}
        for label, score in trackers.items():
            named[ROWS[f"tracking/{label}"]] = score
        found[test] = named
    return found


def draw() -> Figure:
    figure = plot_curves(scores())
    for axes in figure.axes:
        axes.set_ylim(0, TOP)
    return figure


def draw_turning() -> Figure:
    figure = plot_turning(scores())
    _, onward = figure.axes
    onward.set(xlim=(0, 360), xticks=range(0, 361, 90))  # later, all have lost most targets
    for line in onward.lines:
        line.set_clip_on(True)
    with styled():
        note_below(figure, "means over frames, then sequences; on the right, the first turn of the target")
    return figure


if __name__ == "__main__":
    save(draw(), "tracking.png")
    save(draw_turning(), "turning.png")
