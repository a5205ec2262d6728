"""How numbers are written: tables as text, Markdown and a self-contained HTML page with a curve."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import NamedTuple

from .._text import Table
from .report import ROOT, ElementReport, LayerReport, Report

__all__ = ["Axis", "measured_page", "page"]

Points = Sequence[tuple[float, float]]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 2")
WIDTH, HEIGHT, LEFT, BOTTOM = 720, 300, 60, 34

STYLE = """
:root { color-scheme: light dark; --ink: light-dark(#1c1c1e, #e8e8ea); --paper: light-dark(#fff, #17181a);
        --line: light-dark(#d9d9de, #3a3b3f); --muted: light-dark(#5f6066, #a0a1a7); }
body { margin: 2rem auto; max-width: 56rem; padding: 0 1rem; color: var(--ink); background: var(--paper);
       font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem .3rem 0; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
th { color: var(--muted); font-weight: 500; }
svg { width: 100%; height: auto; } svg text { fill: var(--muted); font: 12px system-ui, sans-serif; }
.grid { stroke: var(--line); } .key { white-space: nowrap; margin-right: 1.2rem; }
"""


class Axis(NamedTuple):
    """What a curve runs over, and the marks of it, from its first place to its last."""

    title: str
    ticks: Sequence[tuple[float, str]]


def page(
    title: str,
    table: Table,
    remarks: Sequence[str],
    curves: Mapping[str, Points],
    axis: Axis | None,
    elements: Table,
) -> str:
    """One HTML file; all text is escaped, nothing is loaded from elsewhere. ``curves`` are over the axis."""
    curve = _curve(curves, axis) if axis else ""
    body = [
        f"<h1>{escape(title.capitalize())}</h1>",
        _table(table),
        "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in remarks) + "</ul>",
        f"<h2>Relative error against the {axis.title}</h2>{curve}" if axis else "",
        f"<h2>Relative error of each element</h2>{_table(elements)}",
    ]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    allowed = "default-src 'none'; style-src 'unsafe-inline'"
    policy = f'<meta http-equiv="Content-Security-Policy" content="{allowed}">'
    style = f"<title>{escape(title)}</title><style>{STYLE}</style>"
    opening = f'<!doctype html>\n<html lang="en"><head>{head}{policy}{style}</head>\n<body>'
    return "\n".join([opening, *body, "</body></html>\n"])


def _table(rows: Table) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in rows[0])
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows[1:])
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'


def _curve(curves: Mapping[str, Points], axis: Axis) -> str:
    """Lines over the axis, on a logarithmic scale."""
    lines = {name: [(x, max(y, 1e-16)) for x, y in points] for name, points in curves.items()}
    values = [value for points in lines.values() for _, value in points]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9)
    low = min(low, high - 1)
    first, last = axis.ticks[0][0], axis.ticks[-1][0]

    def place(position: float, value: float) -> str:
        x = LEFT + (WIDTH - LEFT - 20) * (position - first) / (last - first)
        y = (HEIGHT - BOTTOM - 10) * (high - math.log10(value)) / (high - low) + 10
        return f"{x:.1f},{y:.1f}"

    parts = []
    for power in range(low, high + 1, max(1, (high - low) // 6)):
        x, y = place(first, 10.0**power).split(",")
        parts.append(f'<line class="grid" x1="{x}" x2="{WIDTH - 20}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y}" text-anchor="end" dy=".35em">{10.0**power:g}</text>')
    for position, label in axis.ticks:
        x = place(position, 10.0**low).split(",")[0]
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="10" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text x="{x}" y="{HEIGHT - 14}" text-anchor="middle">{label}</text>')
    keys = []
    for k, (name, points) in enumerate(lines.items()):
        stroke = f'stroke="{COLOURS[k % len(COLOURS)]}" stroke-dasharray="{DASHES[k % len(DASHES)]}"'
        path = " ".join(place(*point) for point in points)
        parts.append(f'<polyline fill="none" stroke-width="2" {stroke} points="{path}"/>')
        line = f'<line x2="28" y1="4" y2="4" stroke-width="2" {stroke}/>'
        sample = f'<svg viewBox="0 0 28 8" style="width: 28px">{line}</svg>'
        keys.append(f'<span class="key">{sample} {escape(name)}</span>')
    title = f"relative error against the {axis.title}"
    drawing = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">'
    return f"{drawing}{''.join(parts)}</svg><p>{' '.join(keys)}</p>"


def _curves(layers: Mapping[str, LayerReport]) -> tuple[dict[str, list[tuple[float, float]]], Axis | None]:
    """The relative error of each layer against the angle, or else against the logarithm of the factor."""
    angles = {name or ROOT: _points(layer, lambda e: e.degrees) for name, layer in layers.items()}
    factors = {
        name or ROOT: _points(layer, lambda e: math.log(e.factor) if e.factor else None)
        for name, layer in layers.items()
    }
    if max(map(len, angles.values())) >= 7:
        return angles, Axis("angle", [(degrees, f"{degrees}°") for degrees in range(0, 361, 90)])
    known = sorted({0.0, *(x for points in factors.values() for x, _ in points)})
    if len(known) < 4:
        return {}, None
    shown = [x for x in known if x in (0.0, known[0], known[-1])] if len(known) > 9 else known
    return factors, Axis("factor", [(x, f"×{math.exp(x):.3g}") for x in shown])


def _points(layer: LayerReport, place: Callable[[ElementReport], float | None]) -> list[tuple[float, float]]:
    """Place and relative error of the elements that have one."""
    placed = ((place(e), e.relative) for e in layer.elements.values())
    return sorted((x, y) for x, y in placed if x is not None and math.isfinite(y))


def measured_page(report: Report) -> str:
    header, rows = report.table()
    curves, axis = _curves(report.layers)
    return page(report.title, [header, *rows], report.remarks(), curves, axis, report.element_table())
