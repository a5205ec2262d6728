"""Widths: the paper's feature groups and a factor in, the feature groups of each layer out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from ..loss.feature_groups import FeatureGroups, Spec

__all__ = ["of_largest_size", "rounded"]


def rounded(groups: Sequence[int], feature_groups: Spec, width: float | Fraction) -> tuple[int, ...]:
    """``groups`` times ``width``, each to the nearest multiple of the mix's unit.

    Of two equally near the smaller one counts, and none is less than one unit.

    >>> rounded((34, 68), "4-2-1", 1), rounded((34, 68), 4, 1 / 2)  # 34 lies between 32 and 36
    ((32, 68), (17, 34))
    """
    if isinstance(width, bool) or not isinstance(width, int | float | Fraction):
        raise TypeError(f"width is a number such as 1 or 1/8; got {width!r}")
    if not (math.isfinite(width) and width > 0):
        raise ValueError(f"width must be a positive factor such as 1 or 1/8; got {width!r}")
    factor = Fraction(width).limit_denominator(1000)  # 0.1 is meant as a tenth
    unit = FeatureGroups.of(feature_groups).unit
    return tuple(max(1, math.ceil(n * factor / unit - Fraction(1, 2))) * unit for n in groups)


def of_largest_size(name: str, table: Mapping[int, tuple[int, ...]], feature_groups: Spec) -> tuple[int, ...]:
    """The row of ``table`` for the largest size of the mix: a mix has as many feature groups as that size."""
    spec = FeatureGroups.of(feature_groups)
    if spec.sizes[0] not in table:
        *sizes, last = map(str, table)
        raise ValueError(
            f"{name} has widths for feature groups whose largest size is {', '.join(sizes)} or {last}; "
            f"got {spec}, whose largest size is {spec.sizes[0]}"
        )
    return table[spec.sizes[0]]
