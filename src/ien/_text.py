"""The end of an error message about an unknown name: which names it may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Collection

__all__ = ["nearest"]


def nearest(name: str, known: Collection[str]) -> str:
    """The known names that are near, or all of them.

    >>> nearest("cnn", ["cnn6", "resnet18"]), nearest("x", ["cnn6"])
    ('did you mean cnn6?', 'there are cnn6')
    """
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    return f"did you mean {', '.join(close)}?" if close else f"there are {', '.join(known)}"
