"""A model card: what a file of weights holds, as Markdown with a header that model hubs read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .._files import replace_file

__all__ = ["UNKNOWN_LICENCE", "card_beside", "card_text", "is_our_card", "licence_in", "write_card"]

UNKNOWN_LICENCE = "unknown"
OURS = "library_name: ien"
"""The line by which we know a card of our own."""


def card_text(title: str, licence: str, sections: Mapping[str, str]) -> str:
    """Write a card.

    Args:
        title: What the model is called.
        licence: As model hubs write it, such as ``mit``; ``unknown`` if nobody has said.
        sections: Heading → Markdown.
    """
    lines = ["---", OURS, f"license: {licence}", "tags: [equivariance]", "---", "", f"# {title}", ""]
    for heading, text in sections.items():
        lines += [f"## {heading}", "", text.strip(), ""]
    lines += ["## Licence", ""]
    if licence == UNKNOWN_LICENCE:
        lines.append(
            "Not stated. Before you publish the model, write one into the `license:` line at the top; the "
            "licence of the data may restrict which."
        )
    else:
        lines.append(f"`{licence}`, as whoever exported the model says.")
    return "\n".join(lines) + "\n"


def card_beside(path: Path) -> Path:
    """Return where the card of an export goes: beside the file, named after it.

    >>> card_beside(Path("out/net.onnx")).as_posix()
    'out/net.onnx.md'
    """
    return path.with_name(f"{path.name}.md")


def is_our_card(path: Path) -> bool:
    """Return whether a file is a card that we may replace; also if there is none."""
    if not path.exists():
        return True
    return OURS in path.read_text(encoding="utf-8", errors="replace").splitlines()[:5]


def licence_in(path: Path) -> str:
    """Return the licence that a card of ours names; ``unknown`` if there is none."""
    if path.is_file() and is_our_card(path):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines()[:5]:
            if line.startswith("license: "):
                return line.removeprefix("license: ").strip()
    return UNKNOWN_LICENCE


def write_card(path: Path, text: str) -> None:
    """Write a card whole."""
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
