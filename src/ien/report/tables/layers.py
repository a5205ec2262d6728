"""The tables of layers: how far each layer is from equivariant, in several measures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ..records import Layer
from ..rows import Row
from .columns import PaperRow, Table, formatted, paper_row

__all__ = ["layer_names", "layer_tables"]

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class Measure(NamedTuple):
    """An error of a layer that has a table of its own."""

    title: str
    value: Callable[[Layer], float]


RAW = Measure("Equivariance loss L_G: lower is better", lambda layer: layer.raw)
RELATIVE = Measure("Relative error, L_G over variance: lower is better", lambda layer: layer.relative)
REGULAR = Measure("Relative error per channel (regular): lower is better", lambda layer: layer.regular)
EXACT = Measure("Relative error of quarter turns and flips alone", lambda layer: layer.exact)
BETWEEN = Measure("Relative error of the other elements alone, which resample", lambda layer: layer.between)


def layer_tables(
    title: str, rows: Sequence[Row], layers: Sequence[str], paper: Mapping[str, PaperRow]
) -> list[Table]:
    """Return a table for each measure that some row has; ``title`` stands before each of theirs."""
    measures = [RAW, RELATIVE]
    if _is_known(REGULAR, rows, layers):
        measures.append(REGULAR)
    # if the group has elements of one kind only, the table of all elements says the same
    if _is_known(EXACT, rows, layers) and _is_known(BETWEEN, rows, layers):
        measures += [EXACT, BETWEEN]

    tables = []
    for measure in measures:
        lines = []
        for row in rows:
            cells = [row.label, row.preset, row.data]  # not the seeds: these are means over them
            for name in layers:
                cells.append(formatted(measure.value(row.layer(name)), ".1e"))
            lines.append(cells)
            known = paper_row(row, paper)
            if measure is RAW and known is not None and known.exponents:
                lines.append(["in the paper", "", "", *_powers(known.exponents, len(layers))])
        tables.append(Table(title + measure.title, ["row", "preset", "data", *layers], lines))
    return tables


def layer_names(rows: Sequence[Row]) -> list[str]:
    """Return all layers of the rows, in the order in which they come up."""
    names: dict[str, None] = {}
    for row in rows:
        for record in row.records:
            names |= dict.fromkeys(record.layers)
    return list(names)


def _is_known(measure: Measure, rows: Sequence[Row], layers: Sequence[str]) -> bool:
    for row in rows:
        for name in layers:
            if math.isfinite(measure.value(row.layer(name))):
                return True
    return False


def _powers(exponents: Sequence[int], count: int) -> list[str]:
    """Write powers of ten, with dashes for layers that the paper does not print."""
    cells = ["–"] * count
    for i, exponent in enumerate(exponents[:count]):
        cells[i] = f"10{str(exponent).translate(SUPERSCRIPTS)}"
    return cells
