"""What ``mkdocs build`` does beyond its plugins: examples in the site, formulas without a script."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from matplotlib.mathtext import MathTextParser
from matplotlib.path import Path as Outline
from matplotlib.textpath import TextPath
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
COMMANDS = {Outline.MOVETO: "M", Outline.LINETO: "L", Outline.CURVE3: "Q", Outline.CURVE4: "C"}
SIZE = 16
"""Pixels of an em; the page scales it with its text."""


def on_files(files: Files, config: Any) -> Files:
    """Put the examples beside the pages that link to them."""
    for path in sorted((ROOT / "examples").rglob("*")):
        if path.suffix in (".py", ".ipynb"):
            name = str(path.relative_to(ROOT))
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links leave docs/ for the examples in the repository, and find them below it in the site."""
    return re.sub(r"\]\((?:\.\./)+examples/", lambda _: f"]({up(page)}examples/", markdown)


def up(page: Any) -> str:
    return "../" * page.file.src_uri.count("/")


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Draw formulas: TeX → outlines of letters, in the colour of the text."""
    return FORMULA.sub(draw_formula, html)


def draw_formula(found: re.Match[str]) -> str:
    tag, tex = found[1], " ".join(found[2].split())
    for entity, character in {"&lt;": "<", "&gt;": ">", "&amp;": "&"}.items():
        tex = tex.replace(entity, character)
    width, height, depth, *_ = MathTextParser("path").parse(f"${tex}$", dpi=72)
    scale = SIZE / 12  # mathtext measures letters of 12 points
    outline = TextPath((0, 0), f"${tex}$", size=SIZE)
    data = []
    for points, command in outline.iter_segments(curves=True, simplify=False):
        if command == Outline.CLOSEPOLY:
            data.append("Z")
        else:
            # y points down in SVG
            numbers = [f"{number:.2f}" for x, y in points.reshape(-1, 2) for number in (x, -y)]
            data.append(COMMANDS[command] + " ".join(numbers))
    width, height, depth = width * scale, height * scale, depth * scale
    label = tex.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    svg = (
        f'<svg class="formula" role="img" aria-label="{label}" viewBox="0 {depth - height:.2f} {width:.2f} '
        f'{height:.2f}" style="width:{width / SIZE:.3f}em;height:{height / SIZE:.3f}em;'
        f'vertical-align:{-depth / SIZE:.3f}em"><path d="{"".join(data)}"/></svg>'
    )
    return f"<{tag}>{svg}</{tag}>"
