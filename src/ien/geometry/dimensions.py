"""Dimensions: which parts of a tensor's dimension run over the rows and columns of the image.

A dimension is a sequence of *segments* laid end to end (a class token, then the patches). A segment
is a product of *parts*, outermost first. A part is an axis and its size:

    batch of 2                              ((("", 2),),)
    7 rows                                  ((("H", 7),),)
    7 rows and 7 columns, flattened         ((("H", 7), ("W", 7)),)
    class token, then flattened places      ((), (("H", 7), ("W", 7)))

A dimension of size 1 is one segment without parts, ``((),)``. The axis of a part can also be a
whole dimension of several segments, for example when tokens are flattened together with the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any

__all__ = [
    "COLUMNS",
    "CONSTANT_AXIS",
    "LOST_AXIS",
    "OTHER_AXIS",
    "ROWS",
    "Dim",
    "all_axes",
    "cut",
    "dimension",
    "is_constant",
    "join",
    "length",
    "merge",
    "places",
    "regroup",
    "repetition",
    "row_or_column",
]

Part = tuple[Any, int]
"""An axis, which is a str or a Dim of several segments, and its size."""
Segment = tuple[Part, ...]
Dim = tuple[Segment, ...]

ROWS = "H"
"""The axis of the rows of the image."""
COLUMNS = "W"
"""The axis of its columns."""
OTHER_AXIS = ""
"""Batch or channels: values differ along it, but not by place in the image."""
CONSTANT_AXIS = "="
"""An axis along which all values are equal."""
LOST_AXIS = "?"
"""Bound to places of the image in a way that the doctor cannot follow."""

_PLACES = frozenset({ROWS, COLUMNS, LOST_AXIS})
_DIVISIBLE_AXES = (OTHER_AXIS, CONSTANT_AXIS)
"""A view may split these anywhere."""


def dimension(axis: str, size: int) -> Dim:
    """Return a dimension that consists of one axis.

    >>> dimension("H", 7), dimension("H", 1)
    (((('H', 7),),), ((),))
    """
    if size == 1:
        return ((),)
    return (((axis, size),),)


def length(d: Dim) -> int:
    """Return the number of entries along the dimension."""
    return sum(_segment_length(segment) for segment in d)


def _segment_length(segment: Segment) -> int:
    return prod(size for _, size in segment)


def all_axes(d: Dim) -> Iterator[tuple[str, int]]:
    """Yield every axis of the dimension with its size, outermost first."""
    for segment in d:
        for axis, size in segment:
            if isinstance(axis, str):
                yield axis, size
            else:
                yield from all_axes(axis)


def places(dims: Iterable[Dim]) -> set[str]:
    """Return which of rows, columns and lost places the dimensions contain."""
    found = set()
    for d in dims:
        for axis, _ in all_axes(d):
            if axis in _PLACES:
                found.add(axis)
    return found


def row_or_column(d: Dim) -> str:
    """Return ``"H"`` or ``"W"`` if the dimension is exactly that, otherwise ``""``."""
    is_one_part = len(d) == 1 and len(d[0]) == 1
    if is_one_part:
        axis: Any = d[0][0][0]
        if axis in (ROWS, COLUMNS):
            return str(axis)
    return ""


def repetition(d: Dim) -> tuple[str, int, int] | None:
    """Return which rows or columns repeat: the axis, how often as a whole, and each one.

    >>> repetition(regroup([dimension("=", 2), dimension("H", 7), dimension("=", 3)], [42])[0])
    ('H', 2, 3)
    """
    segment = d[0]
    if len(d) > 1 or len(segment) < 2:
        return None
    varying = [i for i, (axis, _) in enumerate(segment) if axis != CONSTANT_AXIS]
    if len(varying) != 1:
        return None
    at = varying[0]
    axis = segment[at][0]
    if axis not in (ROWS, COLUMNS):
        return None
    return axis, _segment_length(segment[:at]), _segment_length(segment[at + 1 :])


def is_constant(d: Dim) -> bool:
    """Return whether all values along the dimension are known to be equal."""
    for segment in d:
        if any(axis != CONSTANT_AXIS for axis, _ in segment):
            return False
    return True


def join(dims: Sequence[Dim]) -> Dim | None:
    """Concatenate dimensions; None if that would separate rows from columns."""
    segments: list[Segment] = []
    for d in dims:
        segments.extend(d)
    whole = tuple(segments)
    if not places([whole]):
        return dimension(OTHER_AXIS, length(whole))
    for segment in whole:
        # rows without columns, next to something else
        if len(whole) > 1 and places([(segment,)]) in ({ROWS}, {COLUMNS}):
            return None
    return whole


def cut(d: Dim, start: int, stop: int) -> Dim | None:
    """Return the entries from ``start`` to ``stop``; None if a segment keeps only some places."""
    kept: list[Segment] = []
    at = 0
    for segment in d:
        size = _segment_length(segment)
        low = max(start, at)
        high = min(stop, at + size)
        at += size
        if high - low == size:
            kept.append(segment)
        elif low < high:
            if places([(segment,)]):
                return None
            axis = CONSTANT_AXIS if is_constant((segment,)) else OTHER_AXIS
            kept.append(dimension(axis, high - low)[0])
    if len(kept) == 1 or places([tuple(kept)]):
        return tuple(kept)
    return dimension(OTHER_AXIS, stop - start)


def merge(a: Dim, b: Dim) -> tuple[Dim, str]:
    """Return the dimension of two aligned operands, and what is wrong with it.

    The second entry is ``"values"`` if one operand differs over the places of the other,
    ``"order"`` if their places do not correspond, and ``""`` if all is well.

    >>> merge(dimension("H", 7), dimension("", 7)), merge(dimension("H", 7), dimension("=", 7))
    ((((('H', 7),),), 'values'), (((('H', 7),),), ''))
    """
    if a == b or is_constant(b):
        return a, ""
    if is_constant(a):
        return b, ""
    if not places([a, b]):
        return dimension(OTHER_AXIS, length(a)), ""
    if not places([a]):
        a, b = b, a
    # from here on, a contains places
    if not places([b]) and len(b) < len(a):
        b = _segmented_like(a)
    if len(a) != len(b):
        return a, "order"
    merged = []
    problems = set()
    for segment_a, segment_b in zip(a, b, strict=True):
        segment, problem = _merge_segments(segment_a, segment_b)
        merged.append(segment)
        problems.add(problem)
    for problem in ("order", "values"):  # the worse one first
        if problem in problems:
            return tuple(merged), problem
    return tuple(merged), ""


def _segmented_like(d: Dim) -> Dim:
    """Return a dimension without places, divided into segments as ``d`` is."""
    segments = []
    for segment in d:
        segments.append(dimension(OTHER_AXIS, _segment_length(segment))[0])
    return tuple(segments)


def _merge_segments(a: Segment, b: Segment) -> tuple[Segment, str]:
    """Compare two segments part by part from the outside, splitting the larger part if allowed."""
    left, right = list(a), list(b)
    merged: list[Part] = []
    problem = ""
    while left and right:
        left_axis, left_size = left.pop(0)
        right_axis, right_size = right.pop(0)
        common = min(left_size, right_size)
        # the larger part can be compared with the smaller one if it may be split
        if left_size != right_size:
            if left_size > right_size:
                larger, axis, size = left, left_axis, left_size
            else:
                larger, axis, size = right, right_axis, right_size
            if size % common or axis not in _DIVISIBLE_AXES:
                return a, "order" if places([(b,)]) else "values"
            larger.insert(0, (axis, size // common))
        bound_to_places = {left_axis, right_axis} - set(_DIVISIBLE_AXES)
        if len(bound_to_places) == 2:
            return a, "order"
        if bound_to_places:
            if OTHER_AXIS in (left_axis, right_axis):
                problem = "values"
            merged.append((bound_to_places.pop(), common))
        elif left_axis == right_axis == CONSTANT_AXIS:
            merged.append((CONSTANT_AXIS, common))
        else:
            merged.append((OTHER_AXIS, common))
    return tuple(_squashed(merged)), problem


def regroup(dims: Sequence[Dim], shape: Sequence[int]) -> list[Dim] | None:
    """Return the dimensions after a view as ``shape``; None if the view splits rows or columns."""
    parts: list[Part] = []
    for d in dims:
        if len(d) == 1:
            parts.extend(d[0])
        elif places([d]):
            parts.append((d, length(d)))  # segments stay together
        else:
            parts.append((OTHER_AXIS, length(d)))
    parts = _squashed(parts)

    regrouped: list[Dim] = []
    for size in shape:
        segment = _take(parts, size)
        if segment is None:
            return None
        if len(segment) == 1 and not isinstance(segment[0][0], str):
            regrouped.append(segment[0][0])  # a whole dimension of several segments
        else:
            regrouped.append((tuple(_squashed(segment)),))
    if parts:
        return None
    return regrouped


def _take(parts: list[Part], needed: int) -> Segment | None:
    """Remove from the front of ``parts`` what makes up a dimension of size ``needed``."""
    taken: list[Part] = []
    while needed > 1:
        if not parts:
            return None
        axis, size = parts.pop(0)
        if needed % size == 0:
            taken.append((axis, size))
            needed //= size
        elif size % needed == 0 and axis in _DIVISIBLE_AXES:
            taken.append((axis, needed))
            parts.insert(0, (axis, size // needed))
            needed = 1
        else:
            return None
    if needed != 1:  # an empty dimension
        return None
    return tuple(taken)


def _squashed(parts: Sequence[Part]) -> list[Part]:
    """Return the parts without those of size 1, and with divisible neighbours of a kind as one."""
    squashed: list[Part] = []
    for axis, size in parts:
        if squashed and axis in _DIVISIBLE_AXES and axis == squashed[-1][0]:
            squashed[-1] = (axis, squashed[-1][1] * size)
        elif size > 1:
            squashed.append((axis, size))
    return squashed
