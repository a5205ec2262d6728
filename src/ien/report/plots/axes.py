"""Axes: logarithmic ones of relative errors and of factors, and circles of angles."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .style import GREY, GRID, Look, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ROUNDING", "ErrorAxis", "closed_curve", "factor_axis", "log_ticks", "percent_ticks", "rings"]

ROUNDING = 1e-8
"""Relative errors below it are those of rounding in float32: they are drawn on one line, as such."""
BAND = 5.0
"""How many times higher than its lower end the band for errors of rounding ends."""
MAX_TICKS = 8


def log_ticks(low: float, high: float, count: int = MAX_TICKS) -> dict[float, str]:
    """Return the ticks of a logarithmic axis: powers of ten, and on a short one 2 and 5 between them.

    >>> list(log_ticks(0.005, 20)), list(log_ticks(0.15, 0.7).values())
    ([0.01, 0.1, 1.0, 10.0], ['$\\\\mathdefault{0.2}$', '$\\\\mathdefault{0.5}$'])
    """
    from matplotlib.ticker import LogFormatterSciNotation, LogLocator

    for locator in (LogLocator(numticks=count), LogLocator(subs=(1, 2, 5), numticks=count)):
        inside = []
        for value in locator.tick_values(low, high):
            if low <= value <= high:
                inside.append(float(value))
        if len(inside) > 1:
            break
    write = LogFormatterSciNotation()
    return {value: write(value) for value in inside}


class ErrorAxis(NamedTuple):
    """A logarithmic axis of relative errors, with a band at its low end for those that are rounding."""

    low: float
    high: float
    rounding: float | None
    """Where errors below :data:`ROUNDING` are drawn, if there are any."""

    @classmethod
    def over(cls, values: Iterable[float | None]) -> ErrorAxis:
        """Return an axis that holds all values; those that are None or not finite do not count."""
        known = [value for value in values if value is not None and math.isfinite(value)]
        if not known:
            raise ValueError("there is no finite relative error to plot")
        shown = [value for value in known if value >= ROUNDING] or [1.0]
        middle = math.sqrt(min(shown) * max(shown))
        # room at both ends, and at least a decade
        low = min(min(shown) / 1.6, middle / 4)
        high = max(max(shown) * 1.6, middle * 4)
        if min(known) >= ROUNDING:
            return cls(low, high, None)
        return cls(low / BAND, high, low / math.sqrt(BAND))

    def place(self, value: float | None) -> float:
        """Return where a value is drawn; NaN, a gap, for what is not a number."""
        if value is None or not math.isfinite(value):
            return math.nan
        if value < ROUNDING and self.rounding is not None:
            return self.rounding
        return value

    @property
    def start(self) -> float:
        """Where the scale begins, above the band for rounding."""
        if self.rounding is None:
            return self.low
        return BAND * self.low

    def ticks(self, count: int = MAX_TICKS) -> dict[float, str]:
        """Return the ticks of the scale, and of the band for rounding if there is one."""
        ticks = log_ticks(self.start, self.high, count)
        if self.rounding is None:
            return ticks
        exponent = round(math.log10(ROUNDING))
        return {self.rounding: f"< $\\mathdefault{{10^{{{exponent}}}}}$"} | ticks

    def draw(self, axes: Axes) -> None:
        """Make it the vertical axis, the band for rounding in grey."""
        ticks = self.ticks()
        axes.set_yscale("log")
        axes.set_ylim(self.low, self.high)
        axes.set_yticks(list(ticks), list(ticks.values()))
        axes.minorticks_off()
        if self.rounding is not None:
            axes.axhspan(self.low, self.start, color=GRID, alpha=0.45, linewidth=0, zorder=0)


def factor_axis(axes: Axes, factors: Iterable[float]) -> None:
    """Make the horizontal axis one of scale factors: logarithmic, with 1 in the middle."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    reach = max(abs(math.log(factor)) for factor in factors)
    axes.set_xscale("log", base=2)
    axes.set_xlim(math.exp(-1.08 * reach), math.exp(1.08 * reach))
    # powers of 2, or of its root if there are few of them
    base = 2.0 if reach > math.log(3) else math.sqrt(2)
    axes.xaxis.set_major_locator(LogLocator(base=base, numticks=9))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda factor, _: f"{factor:.3g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.axvline(1, color=GREY, linewidth=0.8, zorder=1)
    axes.set_xlabel("factor")


def closed_curve(axes: Axes, curve: Mapping[float, float], look: Look, name: str) -> None:
    """Draw a curve over all degrees around the circle, with marks at quarter turns."""
    angles = sorted(curve)
    around = [math.radians(angle) for angle in [*angles, angles[0] + 360]]
    values = [curve[angle] for angle in [*angles, angles[0]]]
    axes.plot(around, values, color=look.color, linestyle=look.linestyle, label=plain(name))

    quarters = [angle for angle in angles if angle % 90 == 0]
    places = [math.radians(angle) for angle in quarters]
    marked = [curve[angle] for angle in quarters]
    axes.plot(places, marked, color=look.color, marker=look.marker, linestyle="", label="_quarters")


def rings(axes: Any, low: float, high: float, ticks: Mapping[float, str]) -> None:
    """Scale a circle from its middle to its rim, with a labelled ring at each tick."""
    axes.set_rlim(low, high)
    axes.set_rgrids(list(ticks), [""] * len(ticks))
    axes.minorticks_off()
    behind = {"facecolor": "#ffffff", "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
    text: dict[str, Any] = {"fontsize": 8, "color": GREY, "ha": "center", "va": "center", "bbox": behind}
    for radius, label in ticks.items():  # over the curves, which would hide the grid's own labels
        axes.text(math.radians(22.5), radius, label, **text)


def percent_ticks(values: Sequence[float]) -> tuple[float, dict[float, str]]:
    """Return where an axis up to 100 % that holds all values begins, and its ticks."""
    known = [value for value in values if math.isfinite(value)]
    lowest = min(known, default=0.0)
    step = 25
    for smaller in (20, 10, 5, 2, 1):
        if 100 - 4 * smaller <= lowest:
            step = smaller
    ticks = {}
    for k in range(4):
        ticks[100.0 - k * step] = f"{100 - k * step:g} %"
    return 100 - 4.0 * step, ticks
