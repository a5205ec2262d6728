"""Accuracies: from percentages to an axis that has room for small differences between good networks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["FINEST", "AccuracyAxis", "span"]

FINEST = 0.01
"""In percent: a lower error rate is drawn as this one, for 0 has no place."""
FEW, MOST = 4, 7  # ticks


class AccuracyAxis(NamedTuple):
    """An axis of accuracies in percent on which equal steps are equal factors of the error rate.

    From 80 to 90 % is as far as from 98 to 99 %: on either way half of the errors go.
    """

    low: float
    high: float

    @classmethod
    def over(cls, values: Iterable[float]) -> AccuracyAxis:
        """An axis that holds all values, with some room at both ends."""
        errors = [max(100 - value, FINEST) for value in values]
        room = max((max(errors) / min(errors)) ** 0.08, 1.02)
        return cls(max(100 - max(errors) * room, 0.0), 100 - min(errors) / room)

    @property
    def ticks(self) -> list[float]:
        """Round error rates, or where there are few of them, round accuracies.

        >>> AccuracyAxis(85.0, 99.2).ticks, AccuracyAxis(97.3, 98.5).ticks
        ([90.0, 95.0, 98.0, 99.0], [97.4, 97.6, 97.8, 98.0, 98.2, 98.4])
        """
        inside: list[float] = []
        for digits in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
            places = [round(100 - d * 10.0**e, 4) for e in (2, 1, 0, -1, -2) for d in reversed(digits)]
            inside = [place for place in places if self.low <= place <= self.high]
            if len(inside) <= MOST:
                break
        if len(inside) >= FEW:
            return inside
        most, least = 100 - self.low, 100 - self.high
        step = _round_step(most * math.log(most / least) / 9)  # nine at most, at the narrow end too
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(k * step, 6) for k in range(first, last + 1)]

    def draw(self, axes: Axes, across: bool = False) -> None:
        """Make it the upward axis of ``axes``, or the one across."""
        side = "x" if across else "y"
        scale: dict[str, Any] = {"functions": (_place, _accuracy)}
        getattr(axes, f"set_{side}scale")("function", **scale)
        getattr(axes, f"set_{side}lim")(self.low, self.high)
        getattr(axes, f"set_{side}ticks")(self.ticks, [f"{tick:g}" for tick in self.ticks])
        axes.minorticks_off()


def span(values: Sequence[float]) -> tuple[float, float]:
    """From the lowest to the highest that is drawn of seeds: themselves, and the bar of their spread."""
    mean, spread = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
    return min(*values, mean - spread), max(*values, mean + spread)


def _place(accuracy: Any) -> Any:
    return -np.log10(np.maximum(100 - np.asarray(accuracy, float), FINEST / 2))


def _accuracy(place: Any) -> Any:
    return 100 - 10 ** -np.asarray(place, float)


def _round_step(least: float) -> float:
    """The smallest of …, 0.1, 0.2, 0.5, 1, 2, 5, … that is not below ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(d * power for d in (1, 2, 5, 10) if d * power >= least * (1 - 1e-9))
