"""Axes: logarithmic ones of relative errors and of factors, and plain ones of angles."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from .style import GREY, GRID, Look, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ROUNDING", "ErrorAxis", "angle_axis", "angle_curve", "factor_axis", "log_ticks"]

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
        return {self.rounding: "exact"} | ticks

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


def angle_axis(axes: Axes) -> None:
    """Make the horizontal axis one of angles, from 0° to 360°, with a line at each quarter turn."""
    axes.set_xlim(0, 360)
    axes.set_xticks(range(0, 361, 90), [f"{angle}°" for angle in range(0, 361, 90)])
    axes.set_xlabel("angle")


def angle_curve(axes: Axes, curve: Mapping[float, float], look: Look, name: str) -> None:
    """Draw a curve over all degrees, which ends at 360° as it begins at 0°."""
    places = sorted(curve)
    values = [curve[place] for place in places]
    if places[0] == 0:
        places.append(360.0)
        values.append(values[0])
    axes.plot(places, values, color=look.color, linestyle=look.linestyle, label=plain(name), clip_on=False)
