"""Slack: how far the weights of each layer have left the symmetry, as bars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .style import NARROW, plain, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_slack"]

FRAME, BAR = 1.0, 0.26
"""Inches of height: around the bars, and of each."""
SMALLEST_AXIS = 0.01
"""Where the axis ends at least: bars of nothing stay small."""


@styled()
def plot_slack(slack: Mapping[str, float], group: str) -> Figure:
    """Draw ‖r‖ / ‖P W‖ of each layer, the first at the top.

    Args:
        slack: Layer → its slack.
        group: What weights are tied under, for the title.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(NARROW, FRAME + BAR * len(slack)), layout="constrained")
    axes = figure.subplots()
    places = range(len(slack))
    axes.barh(places, list(slack.values()), height=0.7)
    axes.set_yticks(places, [plain(layer, 20) for layer in slack])
    axes.invert_yaxis()  # the layer that runs first is at the top
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, max(SMALLEST_AXIS, 1.08 * max(slack.values())))
    axes.set_xlabel("‖r‖ / ‖P W‖: 0 is tied")
    axes.set_title(f"Where the data break {plain(group)}")
    return figure
