"""One colour and one plain name for each method: in plots, on pages and in the documents."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

__all__ = [
    "COLOURS",
    "CYCLE",
    "METHODS",
    "PLAIN_NAMES",
    "colour_of",
    "colours_of",
    "method_of",
    "plain_name",
    "plain_names",
]

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

PLAIN_NAMES = {
    "CNN": "ordinary CNN",
    "CNN-aug": "CNN + rotated copies",
    "equivariant": "equivariant (tied)",
    "slack": "equivariant with slack",
    "IEN": "CNN + the paper's loss",
    "Het-IEN": "smaller CNN + the paper's loss",
    "E2CNN": "E2CNN",
    "SESN": "SESN",
    "SS-CNN": "SS-CNN",
    "DSS": "DSS",
}
"""Method to what a reader who has not seen our tables calls it."""

# How rows of tables call each method; the first pattern that a name contains decides.
NAMES = (
    (r"smaller cnn \+ the paper's loss", "Het-IEN"),
    ("the paper's loss", "IEN"),
    ("(rotated|scaled|transformed) copies", "CNN-aug"),
    ("het-ien", "Het-IEN"),
    ("het-siamfc", "Het-IEN"),
    ("slack", "slack"),
    ("equivariant", "equivariant"),
    ("tied", "equivariant"),
    ("free", "equivariant"),
    ("e2cnn", "E2CNN"),
    ("re-siamfc", "E2CNN"),
    ("cnn-aug", "CNN-aug"),
    ("augmented", "CNN-aug"),
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


def plain_name(name: str, copies: str = "rotated") -> str:
    """Name the method of a row or run in plain words; a name that does not tell is kept.

    Args:
        name: Of the row or run.
        copies: What was done to the extra copies of images, if the run trained on some.

    >>> plain_name("cnn-aug small seed 1"), plain_name("ien-r4-beta0.1"), plain_name("mine")
    ('CNN + rotated copies', "CNN + the paper's loss", 'mine')
    """
    method = method_of(name)
    if method is None:
        return name
    return PLAIN_NAMES[method].replace("rotated", copies)


def plain_names(names: Sequence[str], copies: str = "rotated") -> list[str]:
    """Name several runs in plain words, with what tells two runs of one method apart.

    >>> plain_names(["cnn-aug demo seed 1", "ien-r4 demo seed 1"])
    ['CNN + rotated copies', "CNN + the paper's loss"]
    >>> plain_names(["cnn small seed 1", "cnn small seed 2"])
    ['ordinary CNN (seed 1)', 'ordinary CNN (seed 2)']
    """
    plain = [plain_name(name, copies) for name in names]
    counts = Counter(plain)
    words = [re.findall(r"seed \S+|\S+", name) for name in names]
    found = []
    for i, name in enumerate(plain):
        if counts[name] == 1:
            found.append(name)
            continue
        common = set(words[i])  # to all runs of this name
        for k in range(len(names)):
            if plain[k] == name:
                common &= set(words[k])
        own = [word for word in words[i] if word not in common]
        if own:
            found.append(f"{name} ({' '.join(own).strip('()')})")
        else:
            found.append(name)
    if len(set(found)) < len(found):
        return list(names)  # as the runs were told apart before
    return found


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
