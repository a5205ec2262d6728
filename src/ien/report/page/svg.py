"""SVG: from a figure to an inline image that lives beside others in one page, in light and in dark."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

from ..plots.style import styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["as_svg", "inline"]

# what the plots are drawn with on white; the page says what each is on its own paper
COLOURS = {
    "#ffffff": "var(--figure-paper)",
    "#000000": "currentColor",
    "#333333": "currentColor",
    "#6b6b6b": "var(--figure-muted)",
    "#8c8c8c": "var(--figure-muted)",
    "#e3e3e3": "var(--figure-grid)",
    "#0072b2": "var(--blue)",
    "#d55e00": "var(--red)",
    "#009e73": "var(--green)",
    "#cc79a7": "var(--pink)",
    "#e69f00": "var(--orange)",
    "#56b4e9": "var(--sky)",
}


def as_svg(figure: Figure, prefix: str) -> str:
    """``figure`` as :func:`inline` text."""
    buffer = io.StringIO()
    with styled():
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return inline(buffer.getvalue(), prefix)


def inline(svg: str, prefix: str) -> str:
    """An SVG document as an element of an HTML page: ids begin with ``prefix``, colours follow the page.

    >>> inline('<?xml …?><svg xmlns="…"><use xlink:href="#a" style="fill: #000000"/></svg>', "f1-")
    '<svg><use href="#f1-a" style="fill: currentColor"/></svg>'
    """
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg).replace("xlink:href=", "href=")
    svg = re.sub(r'(\sid="|href="#|url\(#)', rf"\g<1>{prefix}", svg)
    # beside a colour scale, the colour of a mark is a value: it stays what it is
    marks = r"(?!use\b)" if "<image" in svg else ""
    return re.sub(rf'(<{marks}\w[^<>]*\sstyle=")([^"]*)', _recolour, svg)


def _recolour(found: re.Match[str]) -> str:
    return found[1] + re.sub(r"#[0-9a-fA-F]{6}", lambda colour: _on_page(colour[0].lower()), found[2])


def _on_page(colour: str) -> str:
    """The page's word for a colour; other dark ones are mixed with white where the paper is dark."""
    red, green, blue = bytes.fromhex(colour[1:])
    dark = 0.3 * red + 0.59 * green + 0.11 * blue < 100
    return COLOURS.get(colour, f"color-mix(in srgb, {colour} var(--keep), white)" if dark else colour)
