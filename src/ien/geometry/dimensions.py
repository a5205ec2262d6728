"""Axes: from the dimensions that enter a tensor operation to which of the leaving ones are rows and columns.

A dimension is a sequence of segments laid end to end (a class token, then patches), a segment is a product
of parts, outermost first, and a part is an axis with its size. A dimension of size 1 has no parts. A part may
also be a whole dimension of several segments, as when it is flattened together with the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any

__all__ = [
    "LOST",
    "PLAIN",
    "SAME",
    "Dim",
    "axes",
    "cut",
    "dim",
    "is_same",
    "join",
    "leaves",
    "merge",
    "regroup",
    "repeats",
    "single",
    "size",
]

Part = tuple[Any, int]  # the axis is a str, or a Dim of several segments
Segment = tuple[Part, ...]
Dim = tuple[Segment, ...]

PLAIN = ""  # channels, batch: not bound to places in the image, and different along it
SAME = "="  # the same along it
LOST = "?"  # bound to places in a way that cannot be followed
_PLACES = frozenset({"H", "W", LOST})


def dim(axis: str, n: int) -> Dim:
    """One axis of one size.

    >>> dim("H", 7), dim("H", 1)
    (((('H', 7),),), ((),))
    """
    return ((),) if n == 1 else (((axis, n),),)


def size(d: Dim) -> int:
    return sum(prod(n for _, n in segment) for segment in d)


def axes(dims: Iterable[Dim]) -> set[str]:
    """Which of rows H, columns W and lost places the dimensions hold."""
    return {axis for d in dims for axis, _ in leaves(d)} & _PLACES


def leaves(d: Dim) -> Iterator[tuple[str, int]]:
    """Every axis with its size."""
    for segment in d:
        for axis, n in segment:
            if isinstance(axis, str):
                yield axis, n
            else:
                yield from leaves(axis)


def single(d: Dim) -> str:
    """``"H"`` or ``"W"`` if the dimension is that and nothing else, otherwise ``""``."""
    return d[0][0][0] if len(d) == 1 and len(d[0]) == 1 and d[0][0][0] in ("H", "W") else ""


def repeats(d: Dim) -> tuple[str, int, int] | None:
    """Rows or columns that come several times: the axis, how often all of them, and how often each.

    >>> repeats(regroup([dim("=", 2), dim("H", 7), dim("=", 3)], [42])[0])
    ('H', 2, 3)
    """
    kinds = [axis for axis, _ in d[0]]
    places = [i for i, axis in enumerate(kinds) if axis != SAME]
    if len(d) > 1 or len(kinds) < 2 or len(places) != 1 or kinds[places[0]] not in ("H", "W"):
        return None
    at = places[0]
    return kinds[at], prod(n for _, n in d[0][:at]), prod(n for _, n in d[0][at + 1 :])


def is_same(d: Dim) -> bool:
    return all(axis == SAME for segment in d for axis, _ in segment)


def join(dims: Sequence[Dim]) -> Dim | None:
    """Dimensions laid end to end; None if that tears rows from columns."""
    whole = tuple(segment for d in dims for segment in d)
    if not axes([whole]):
        axis = SAME if len(dims) == 1 and is_same(whole) else PLAIN
        return dim(axis, size(whole))
    torn = any(axes([(segment,)]) in ({"H"}, {"W"}) for segment in whole)
    return None if torn and len(whole) > 1 else whole


def cut(d: Dim, start: int, stop: int) -> Dim | None:
    """From ``start`` to ``stop``; None if that tears places apart."""
    kept, at = [], 0
    for segment in d:
        n = prod(size for _, size in segment)
        low, high = max(start, at), min(stop, at + n)
        at += n
        if high - low == n:
            kept.append(segment)
        elif low < high:
            if axes([(segment,)]):
                return None
            kept.append(dim(SAME if is_same((segment,)) else PLAIN, high - low)[0])
    if len(kept) == 1 or axes([tuple(kept)]):
        return tuple(kept)
    return dim(PLAIN, stop - start)


def merge(a: Dim, b: Dim) -> tuple[Dim, str]:
    """The dimension of two aligned operands, and what is wrong with it.

    ``"values"``: one differs over the places of the other; ``"order"``: their places do not correspond.

    >>> merge(dim("H", 7), dim("", 7)), merge(dim("H", 7), dim("=", 7))
    ((((('H', 7),),), 'values'), (((('H', 7),),), ''))
    """
    if a == b or is_same(b):
        return a, ""
    if is_same(a):
        return b, ""
    if not axes([a, b]):
        return dim(PLAIN, size(a)), ""
    if not axes([a]):
        a, b = b, a
    if not axes([b]) and len(b) < len(a):
        b = tuple(dim(PLAIN, size((segment,)))[0] for segment in a)
    if len(a) != len(b):
        return a, "order"
    pairs = [_merge_segments(x, y) for x, y in zip(a, b, strict=True)]
    problems = {problem for _, problem in pairs}
    problem = next((p for p in ("order", "values") if p in problems), "")
    return tuple(segment for segment, _ in pairs), problem


def regroup(dims: Sequence[Dim], shape: Sequence[int]) -> list[Dim] | None:
    """The dimensions after a view as ``shape``; None if that tears rows or columns apart."""
    parts: list[Part] = []
    for d in dims:
        if len(d) == 1:
            parts += d[0]
        else:
            parts.append((d if axes([d]) else PLAIN, size(d)))
    parts = _squash(parts)
    out = []
    for n in shape:
        segment = _take(parts, n)
        if segment is None:
            return None
        alone = len(segment) == 1 and not isinstance(segment[0][0], str)
        out.append(segment[0][0] if alone else (tuple(_squash(segment)),))
    return None if parts else out


def _take(parts: list[Part], need: int) -> Segment | None:
    """Removes from the front of ``parts`` what makes up a dimension of size ``need``."""
    taken: list[Part] = []
    while need > 1:
        if not parts:
            return None
        axis, n = parts.pop(0)
        if need % n == 0:
            taken.append((axis, n))
            need //= n
        elif n % need == 0 and axis in (PLAIN, SAME):
            taken.append((axis, need))
            parts.insert(0, (axis, n // need))
            need = 1
        else:
            return None
    return tuple(taken) if need == 1 else None


def _squash(parts: Sequence[Part]) -> list[Part]:
    """Without ones, and neighbours of a kind that can be split anywhere as one."""
    out: list[Part] = []
    for axis, n in parts:
        if out and axis == out[-1][0] and axis in (PLAIN, SAME):
            out[-1] = (axis, out[-1][1] * n)
        elif n > 1:
            out.append((axis, n))
    return out


def _merge_segments(a: Segment, b: Segment) -> tuple[Segment, str]:
    left, right, out, problem = list(a), list(b), [], ""
    while left and right:
        (x, n), (y, m) = left.pop(0), right.pop(0)
        k = min(n, m)
        if n != m:
            longer, axis, rest = (left, x, n) if n > m else (right, y, m)
            if rest % k or axis not in (PLAIN, SAME):
                return a, "order" if axes([(b,)]) else "values"
            longer.insert(0, (axis, rest // k))
        places = {x, y} - {PLAIN, SAME}
        if len(places) == 2:
            return a, "order"
        if places and PLAIN in (x, y):
            problem = "values"
        out.append((places.pop() if places else SAME if x == y == SAME else PLAIN, k))
    return tuple(_squash(out)), problem
