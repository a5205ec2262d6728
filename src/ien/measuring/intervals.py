"""95 % confidence intervals: how far to go from a mean, and the interval of a share."""

from __future__ import annotations

import math

__all__ = ["NORMAL_95", "Interval", "interval_of_share", "student_95"]

Interval = tuple[float, float]
"""The ends of a 95 % confidence interval."""

NORMAL_95 = 1.959964
"""95 % of a normal distribution lie within this many standard deviations of its mean."""

STUDENT_95 = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip
"""The same for Student's t with 1, 2, … degrees of freedom."""


def student_95(freedom: int) -> float:
    """How many standard errors the interval of a mean reaches to each side, by Student's t.

    Args:
        freedom: Degrees of freedom: of n values around their own mean, n - 1.

    >>> student_95(4)
    2.7764
    """
    if freedom > len(STUDENT_95):
        return NORMAL_95
    return STUDENT_95[freedom - 1]


def interval_of_share(share: float, count: int) -> Interval:
    """Return Wilson's 95 % confidence interval of a share that was counted over ``count`` images.

    With z = 1.96² / count it is (share + z/2 ± √(z (share (1 - share) + z/4))) / (1 + z).

    >>> [round(x, 3) for x in interval_of_share(0.5, 100)]
    [0.404, 0.596]
    """
    z = NORMAL_95**2 / count
    variance = share * (1 - share)
    centre = share + z / 2
    margin = math.sqrt(z * (variance + z / 4))
    low = (centre - margin) / (1 + z)
    high = (centre + margin) / (1 + z)
    return max(low, 0.0), min(high, 1.0)
