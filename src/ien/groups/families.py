"""The groups a user names: rotations, reflections, scalings, own functions, and their text form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from numbers import Integral
from operator import mul
from typing import Literal

from .._text import nearest, short_repr, type_name
from .elements import Action, BlackBox, Element, unchanged
from .group import MAX_ELEMENTS, Group
from .similarity import Similarity

__all__ = ["custom", "group", "reflection", "rotation", "scale"]

EXAMPLES = ("rot4", "rot8", "flip", "vflip", "scale0.7")
"""What a name that cannot be read may have meant."""
MAX_TEXT = 1000
"""The longest text of a group that is read, in characters."""
MIN_FACTOR, MAX_FACTOR = 1e-30, 1e30
"""Scale factors beyond these would overflow the coordinates of pixels."""


def rotation(n: int) -> Group:
    """The ``n`` rotations by multiples of 360°/n, counter-clockwise.

    ``rotation(4)`` and ``rotation(8)`` are the paper's R4 and R8. Only multiples of 90° are
    exact; the others interpolate, so a layer can be no more equivariant to them than
    interpolation allows.

    Do not use it for data whose orientation carries meaning, such as 6 and 9.

    Args:
        n: Number of rotations, the identity among them.

    Returns:
        The group ``rot<n>``, the identity first, then by rising angle.

    Raises:
        ValueError: ``n`` is not a whole number from 1 to 1024.

    >>> rotation(8).labels[1]
    '45°'
    """
    if not isinstance(n, Integral) or isinstance(n, bool) or n < 1:
        raise ValueError(f"rotation(n) needs a whole number of rotations, at least 1; got {n!r}")
    n = int(n)
    if n > MAX_ELEMENTS:
        raise ValueError(f"a group can have at most {MAX_ELEMENTS} elements; got rot{short_repr(n)}")
    turns = [Fraction(k, n) for k in range(1, n)]
    return _group_of(f"rot{n}", [Similarity(turn=turn) for turn in turns])


def reflection(axis: Literal["horizontal", "vertical"] = "horizontal") -> Group:
    """The identity and one flip.

    Do not use it for data that no mirror leaves as they are, such as text.

    Args:
        axis: The direction that is reversed: ``horizontal`` swaps left and right.

    Returns:
        The group ``flip`` or ``vflip``; multiply it with :func:`rotation` for both.

    Raises:
        ValueError: There is no such axis.

    >>> (rotation(4) * reflection()).labels[:4]
    ('identity', 'flip', '90°', '90° flip')
    """
    if axis == "horizontal":
        return _group_of("flip", [Similarity(flip=True)])
    if axis == "vertical":
        return _group_of("vflip", [Similarity(turn=Fraction(1, 2), flip=True)])
    raise ValueError(f"axis is 'horizontal' (swaps left and right) or 'vertical'; got {axis!r}")


def scale(factors: float | Iterable[float]) -> Group:
    """The identity and one scaling about the centre for each factor.

    Do not use it with ``action="regular"``: a set of scalings is not closed under composition, so
    it cannot permute the members of feature groups.

    Args:
        factors: One factor or several; below 1 shrinks what the image shows.

    Returns:
        The group ``scale<factor>,<factor>``, the identity first.

    Raises:
        ValueError: A factor is not a positive number, or all of them are 1.

    >>> str(scale([0.7, 0.84]))
    'scale0.7,0.84'
    """
    if isinstance(factors, str):
        raise TypeError(
            f'scale takes numbers, as in scale([0.7, 0.84]); for text use group("scale{factors}")'
        )
    if not isinstance(factors, Iterable):
        factors = [factors]
    values = list(map(float, factors))
    for value in values:
        if not MIN_FACTOR <= value <= MAX_FACTOR:
            raise ValueError(
                f"scale factors must be positive numbers such as 0.7, from 1e-30 to 1e30; "
                f"got {value!r} among {values}"
            )
    kept = [value for value in dict.fromkeys(values) if value != 1]  # each once, in their order
    if len(kept) >= MAX_ELEMENTS:
        raise ValueError(f"a group can have at most {MAX_ELEMENTS} elements; got {len(kept)} scale factors")
    if not kept:
        raise ValueError(f"scale needs a factor other than 1 (the identity is always there); got {values}")
    steps, texts = [], []
    for value in kept:
        steps.append(Similarity(scale=Fraction(repr(value))))  # 7/10 as written, not the nearest binary
        texts.append(repr(value).removesuffix(".0"))
    return _group_of(f"scale{','.join(texts)}", steps)


def custom(
    name: str,
    actions: Mapping[str, Action],
    feature_actions: Literal["identity", "same"] | Mapping[str, Literal["identity", "same"] | Action],
) -> Group:
    """Your own transformations: the identity, and an element for each named function of images.

    Do not use it for rotations, flips and scalings: those are exact, have inverses, and know
    which of their pixels are valid.

    Args:
        name: Name of the group in tables and terms.
        actions: Label → function of images (n, C, H, W) that keeps their shape.
        feature_actions: What each does to feature maps: ``"identity"`` (layers should be
            invariant), ``"same"`` (the same function), or a mapping with one of these or a
            function for every label.

    Returns:
        A group with one element for each label; elements have no inverse and no matrix.

    Raises:
        ValueError: There is no action, or it is not said what one of them does to feature maps.

    >>> custom("negative", {"invert": lambda x: 1 - x}, feature_actions="identity").labels
    ('identity', 'invert')
    """
    if not isinstance(actions, Mapping):
        raise TypeError(
            f"actions must be a dict of functions by name, such as {{'blur': blur}}; got {type_name(actions)}"
        )
    if isinstance(feature_actions, str):
        feature_actions = dict.fromkeys(actions, feature_actions)
    if not actions or set(feature_actions) != set(actions):
        raise ValueError(
            f"group {name!r} needs at least one action, and feature_actions that name every one of them; "
            f"got actions {sorted(actions)} and feature_actions {sorted(feature_actions)}"
        )
    steps = []
    for label, action in actions.items():
        given = feature_actions[label]
        feature_action: Action | None
        if isinstance(given, str):
            feature_action = {"identity": unchanged, "same": action}.get(given)
        else:
            feature_action = given
        if not callable(action) or not callable(feature_action):
            raise ValueError(
                f"action {label!r} of group {name!r} must be a function of a batch of images, and its "
                f"feature action 'identity', 'same' or a function; got {_shown(action)} and {_shown(given)}"
            )
        steps.append(BlackBox(label, action, feature_action))
    return _group_of(name, steps)


def group(text: str | Group) -> Group:
    """Read the text form of a group; ``str(group)`` gives it back.

    ``custom`` groups have no text form.

    Args:
        text: ``rot8``, ``flip``, ``vflip``, ``scale0.7,0.84``, or a product such as
            ``rot4xflip``. Other names work too: the paper's ``r4``, ``r8`` and ``r4r``, the
            cyclic and dihedral groups ``C4`` and ``D4`` of any order, and ``p4`` and ``p4m``. A
            :class:`Group` is returned as it is.

    Returns:
        The group; ``str`` of it is the text in its usual form.

    Raises:
        ValueError: The text cannot be read; the message names the nearest that can.

    >>> group("r4r") == rotation(4) * reflection()
    True
    >>> str(group("D4")), str(group("p4"))
    ('rot4xflip', 'rot4')
    """
    if isinstance(text, Group):
        return text
    if not isinstance(text, str):
        given = repr(text) if isinstance(text, int) else type_name(text)  # rotation(4) without its name
        raise TypeError(f"a group is text such as rot4, or a Group such as ien.rotation(4); got {given}")
    if len(text) > MAX_TEXT:
        raise ValueError(f"a group is written as text such as rot4xflip; got {len(text)} characters")
    parts = text.strip().lower().split("x")
    if "" in parts:
        raise ValueError(
            f"cannot read group {text!r}: name a transformation, or one on each side of an x, as in rot4xflip"
        )
    return reduce(mul, [_parse(part, text) for part in parts])


def _parse(part: str, text: str) -> Group:
    """One factor of a product; ``text`` is the whole of it, for the error message."""
    if found := re.fullmatch(r"(?:rot|r|c)(\d+)|p([46])", part):
        return rotation(int(found[1] or found[2]))
    if part == "d1":
        return reflection()  # as its usual form, without the one rotation
    if found := re.fullmatch(r"r(\d+)r|d(\d+)|p([46])m", part):
        return rotation(int(found[1] or found[2] or found[3])) * reflection()
    if part == "flip":
        return reflection("horizontal")
    if part == "vflip":
        return reflection("vertical")
    if found := re.fullmatch(r"scale([\d.e+-]+(?:,[\d.e+-]+)*)", part):
        try:
            return scale(map(float, found[1].split(",")))
        except ValueError as error:
            raise ValueError(f"cannot read group {text!r}: {error}") from None
    raise ValueError(
        f"cannot read group {text!r}: {part!r} is none of rot<n>, flip, vflip, scale<factor>,<factor>; "
        f"join them with x, as in rot4xflip (C4, D4, p4 and p4m work too); {nearest(part, EXAMPLES)}"
    )


def _shown(given: object) -> str:
    """Name what was given as an action, for an error message."""
    if callable(given):  # whose repr is an address
        return type_name(given)
    return short_repr(given)


def _group_of(name: str, steps: Sequence[Similarity | BlackBox]) -> Group:
    """The identity, and an element of one step for each of ``steps``."""
    elements: list[Element] = [()]  # the identity has no steps
    for step in steps:
        elements.append((step,))
    return Group(name, tuple(elements))
