"""One fixed colour for each method: in plots, on pages and in the figures of the documents."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["COLOURS", "CYCLE", "METHODS", "colour_of", "colours_of", "method_of"]

# The colours of Okabe and Ito, which colour-blind readers can tell apart; without their yellow,
# which vanishes on white.
COLOURS = {
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "green": "#009E73",
    "purple": "#CC79A7",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "grey": "#7F7F7F",
    "black": "#333333",
}
CYCLE = tuple(COLOURS.values())
"""For things that are not methods, such as layers, in this order."""

METHODS = {
    "Het-IEN": COLOURS["sky"],
    "equivariant": COLOURS["green"],
    "E2CNN": COLOURS["vermilion"],
    "CNN-aug": COLOURS["orange"],
    "IEN": COLOURS["blue"],
    "slack": "#5254A3",
    "SESN": COLOURS["purple"],
    "SS-CNN": "#8C6D31",
    "DSS": "#AD494A",
    "CNN": COLOURS["grey"],
}
"""Method to colour."""

# How rows of tables call each method; the first pattern that a name contains decides.
NAMES = (
    ("het-ien", "Het-IEN"),
    ("het-siamfc", "Het-IEN"),
    ("equivariant", "equivariant"),
    ("tied", "equivariant"),
    ("slack", "slack"),
    ("free", "equivariant"),
    ("e2cnn", "E2CNN"),
    ("re-siamfc", "E2CNN"),
    ("cnn-aug", "CNN-aug"),
    ("cnn4-siamfc", "CNN-aug"),
    ("ien", "IEN"),
    ("sesn", "SESN"),
    ("ss-cnn", "SS-CNN"),
    ("dss", "DSS"),
    ("cnn", "CNN"),
    ("wrn", "CNN"),
    ("siamfc", "CNN"),
)
OTHER_COLOURS = (COLOURS["black"], COLOURS["purple"], "#8C6D31", "#7B4173", "#AD494A", "#637939")
"""For names that belong to no known method, in this order."""
SHADES = (0.0, -0.35, 0.4, -0.6, 0.6)
"""How far towards white, or below 0 towards black, the colours of one method go in one figure."""


def method_of(name: str) -> str | None:
    """Return the method that a row or run uses, by its name; None if the name does not tell.

    >>> method_of("resnet18-r8-cnn-aug small seed 1"), method_of("ien-r4"), method_of("mine")
    ('CNN-aug', 'IEN', None)
    """
    for pattern, method in NAMES:
        if re.search(rf"\b{pattern}\b", name.lower()):
            return method
    return None


def colour_of(name: str) -> str:
    """Return the colour of the method of a row or run; black if the name does not tell."""
    return METHODS.get(method_of(name) or "", COLOURS["black"])


def colours_of(names: Sequence[str]) -> list[str]:
    """Return the colour of each run in one figure: its method's, in another shade if that is taken.

    >>> colours_of(["cnn-aug", "ien-r4", "ien-r8"])
    ['#E69F00', '#0072B2', '#004A74']
    """
    colours: list[str] = []
    unknown = 0
    for name in names:
        method = method_of(name)
        if method is None:
            base = OTHER_COLOURS[unknown % len(OTHER_COLOURS)]
            unknown += 1
        else:
            base = METHODS[method]
        colours.append(_first_free_shade(base, colours))
    return colours


def _first_free_shade(colour: str, taken: Sequence[str]) -> str:
    for amount in SHADES:
        shade = _shade(colour, amount)
        if shade not in taken:
            return shade
    return colour  # markers and lines have to tell more than five runs of one method apart


def _shade(colour: str, amount: float) -> str:
    """Mix a colour with white (amount above 0) or black (below)."""
    target = 0
    if amount > 0:
        target = 255
    mixed = []
    for channel in bytes.fromhex(colour[1:]):
        mixed.append(round(channel + (target - channel) * abs(amount)))
    return "#" + bytes(mixed).hex().upper()
