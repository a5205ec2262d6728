"""How many feature groups each layer gets: the paper's times a width, in whole units."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from ..loss.feature_groups import FeatureGroups, Spec

__all__ = ["of_largest_size", "rounded"]


def rounded(groups: Sequence[int], feature_groups: Spec, width: float | Fraction) -> tuple[int, ...]:
    """Scale the numbers of feature groups of all layers by ``width``.

    Each result is the nearest multiple of the mix's unit, the smaller one if two are equally near,
    and at least one unit.

    Args:
        groups: Feature groups of each layer at width 1.
        feature_groups: Their sizes; a mix such as ``"4-2-1"`` comes in units of 4 feature groups.
        width: A positive factor, such as 1 or 1/8.

    >>> rounded((34, 68), "4-2-1", 1), rounded((34, 68), 4, 1 / 2)  # 34 lies between 32 and 36
    ((32, 68), (17, 34))
    """
    if isinstance(width, bool) or not isinstance(width, int | float | Fraction):
        raise TypeError(f"width is a number such as 1 or 1/8; got {width!r}")
    if not (math.isfinite(width) and width > 0):
        raise ValueError(f"width must be a positive factor such as 1 or 1/8; got {width!r}")
    factor = Fraction(width).limit_denominator(1000)  # 0.1 means a tenth, not its binary neighbour
    unit = FeatureGroups.of(feature_groups).unit
    scaled = []
    for count in groups:
        units = math.ceil(count * factor / unit - Fraction(1, 2))  # nearest; ties go down
        scaled.append(max(1, units) * unit)
    return tuple(scaled)


def of_largest_size(name: str, table: Mapping[int, tuple[int, ...]], feature_groups: Spec) -> tuple[int, ...]:
    """Look up the paper's numbers of feature groups for the largest size in a mix.

    Args:
        name: The network, for the error message.
        table: Largest size → feature groups of each layer at width 1.
        feature_groups: The mix; it has as many feature groups as its largest size alone would have.
    """
    spec = FeatureGroups.of(feature_groups)
    largest = spec.sizes[0]
    if largest not in table:
        *sizes, last = map(str, table)
        raise ValueError(
            f"{name} has widths for feature groups whose largest size is {', '.join(sizes)} or {last}; "
            f"got {spec}, whose largest size is {largest}"
        )
    return table[largest]
