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
"""Relative errors below it are rounding in float32: they are drawn on one line, as such."""
BAND = 5.0
"""How many times higher than its lower end the band for errors of rounding ends."""
MAX_TICKS = 8


def log_ticks(low: float, high: float, count: int = MAX_TICKS) -> dict[float, str]:
    """Return the ticks of a logarithmic axis: powers of ten, with 2 and 5 between them if few.

    >>> list(log_ticks(0.005, 20)), list(log_ticks(0.15, 0.7))
    ([0.01, 0.1, 1.0, 10.0], [0.2, 0.5])
    """
    from matplotlib.ticker import LogFormatterSciNotation, LogLocator

    write = LogFormatterSciNotation()
    ticks: dict[float, str] = {}
    for locator in (LogLocator(numticks=count), LogLocator(subs=(1, 2, 5), numticks=count)):
        ticks.clear()
        for value in locator.tick_values(low, high):
            if low <= value <= high:
                ticks[float(value)] = write(value)
        if len(ticks) > 1:
            break
    return ticks


class ErrorAxis(NamedTuple):
    """A logarithmic axis of relative errors, with a band at its low end for rounding."""

    low: float
    high: float
    rounding: float | None
    """Where errors below :data:`ROUNDING` are drawn, if there are any."""

    @classmethod
    def over(cls, values: Iterable[float | None]) -> ErrorAxis:
        """Return an axis that holds all values; those that are None or not finite do not count."""
        shown = []
        has_rounding = False
        for value in values:
            if value is None or not math.isfinite(value):
                continue
            if value >= ROUNDING:
                shown.append(value)
            else:
                has_rounding = True
        if not shown and not has_rounding:
            raise ValueError("there is no finite relative error to plot")
        lowest, highest = min(shown, default=1.0), max(shown, default=1.0)
        # room at both ends, and at least a decade
        middle = math.sqrt(lowest * highest)
        low = min(lowest / 1.6, middle / 4)
        high = max(highest * 1.6, middle * 4)
        if not has_rounding:
            return cls(low, high, None)
        # the band lies below the scale, and its errors are drawn in its middle
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
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    reach = 0.0
    for factor in factors:
        reach = max(reach, abs(math.log(factor)))
    axes.set_xscale("log", base=2)
    axes.set_xlim(math.exp(-1.08 * reach), math.exp(1.08 * reach))
    if reach < math.log(3):  # powers of 2 would give one or two ticks only
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    else:
        axes.xaxis.set_major_locator(LogLocator(base=2, numticks=9))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda factor, _: f"{factor:.3g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.axvline(1, color=GREY, linewidth=0.8, zorder=1)
    axes.set_xlabel("factor")


def closed_curve(axes: Axes, curve: Mapping[float, float], look: Look, name: str) -> None:
    """Draw a curve over all degrees around the circle, with marks at quarter turns."""
    places, values = [], []
    for angle in sorted(curve):
        place, value = math.radians(angle), curve[angle]
        places.append(place)
        values.append(value)
        if angle % 90 == 0:
            axes.plot([place], [value], color=look.color, marker=look.marker, label="_quarter")
    # back to the first point, a whole turn later
    places.append(places[0] + 2 * math.pi)
    values.append(values[0])
    axes.plot(places, values, color=look.color, linestyle=look.linestyle, label=plain(name))


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
    lowest = min(filter(math.isfinite, values), default=0.0)
    step = 25  # four steps always reach from 100 % to 0
    for smaller in (20, 10, 5, 2, 1):
        if 100 - 4 * smaller <= lowest:
            step = smaller
    ticks = {}
    for k in range(4):
        ticks[100.0 - k * step] = f"{100 - k * step:g} %"
    return 100 - 4.0 * step, ticks
