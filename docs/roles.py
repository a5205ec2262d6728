"""Turns the roles of docstrings, :func:`measure`, into links of the API reference."""

from __future__ import annotations

import re
from typing import Any

import griffe

import ien

UNLISTED = (*ien._FOLDERS, "load")
"""Public names that the reference has on no page of its own."""
ROLE = re.compile(r":(?:class|func|meth|attr|mod|data|exc):`~?([^`]+)`")


def to_link(role: re.Match[str]) -> str:
    name = role[1].removesuffix("()")
    first = name.removeprefix("ien.").partition(".")[0]
    if first in ien.__all__ and first not in UNLISTED:
        return f"[`{name}`][ien.{first}]"
    return f"`{name}`"


class Roles(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = ROLE.sub(to_link, obj.docstring.value)
