"""What was measured: the numbers of a model and a group, as values, as text, Markdown and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .._text import columns, markdown_table, number
from .page import Axis, page

__all__ = ["ElementReport", "LayerReport", "OutputElement", "OutputReport", "Report"]

Interval = tuple[float, float]
ROOT = "(the model)"
"""How the model itself is called among its layers."""
MOST_FACTORS = 8
"""Factors of scale that have a column each in the table of the layers; the elements' table has all."""


@dataclass(frozen=True)
class ElementReport:
    """How far one layer is from commuting with one element."""

    raw: float
    """The paper's L_G. NaN, as the others, where the map is too small to have a valid pixel."""
    relative: float
    """L_G over the variance of the maps compared: 0 is equivariant, about 2 is unrelated."""
    interval: Interval
    """95 % confidence interval of the relative error, over images."""
    floor: float | None
    """The relative error that geometry alone costs; None for black boxes, or if it was not asked for.

    For quarter turns and flips it is the grid's: that of the same net with every kernel averaged over them.
    For all others it is that of resampling: the layer's map transformed and transformed back, enlarged by no
    more than 1.2. NaN where the map is too small for that.
    """
    exact: bool
    """Whether the element only permutes pixels: a quarter turn or flip."""
    degrees: float | None
    """The angle, if it is a rotation."""
    factor: float | None = None
    """The factor, if it is a scaling."""


@dataclass(frozen=True)
class LayerReport:
    """How far one layer is from commuting with a group: means over the elements, the identity left out."""

    raw: float
    """The paper's L_G. Depends on the scale of the features."""
    relative: float
    """L_G over the variance of the maps compared: 0 is equivariant, about 2 is unrelated."""
    interval: Interval
    """95 % confidence interval of the relative error, over images."""
    floor: float | None
    """Of the elements that have one; see :class:`ElementReport`."""
    variance: float
    """Of the maps of the untransformed images, over images, channels and pixels."""
    diversity: float | None
    """How different the members of feature groups are: 0 are copies, 1 is unrelated; None for size 1."""
    collapsed: tuple[int, ...]
    """The feature groups whose members have become copies of each other."""
    num_groups: int
    constant: bool
    """Whether no channel varies at all over images and pixels, so that an error of 0 says nothing."""
    size: tuple[int, int]
    """Height and width of the maps."""
    elements: dict[str, ElementReport]

    @property
    def per_element(self) -> dict[str, float]:
        """The relative error of each element."""
        return {label: element.relative for label, element in self.elements.items()}

    @property
    def exact(self) -> float | None:
        """The mean relative error of quarter turns and flips alone."""
        return _mean(e.relative for e in self.elements.values() if e.exact)

    @property
    def between(self) -> float | None:
        """The mean relative error of all other elements, which resample."""
        return _mean(e.relative for e in self.elements.values() if not e.exact)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What makes the numbers of this layer worth less than they seem."""
        found = []
        if self.constant:
            found.append("its maps are constant: an error of 0 says nothing")
        elif self.collapsed:
            found.append(f"members of {len(self.collapsed)} of {self.num_groups} feature groups are copies")
        if missing := [label for label, element in self.elements.items() if math.isnan(element.relative)]:
            height, width = self.size
            shown = ", ".join([*missing[:4], *["…"] * (len(missing) > 4)])
            found.append(
                f"{len(missing)} of {len(self.elements)} elements leave no valid pixel of {height}×{width}, "
                f"and are left out: {shown}"
            )
        return tuple(found)


@dataclass(frozen=True)
class OutputElement:
    """What one element does to the output of a classifier."""

    logit_error: float
    """The mean squared change of the outputs over their variance."""
    flip_rate: float
    """The share of images whose prediction changes."""
    interval: Interval
    """95 % confidence interval of the flip rate."""
    accuracy: float | None
    """With labels: the share of images classified rightly."""
    exact: bool
    degrees: float | None
    factor: float | None = None


@dataclass(frozen=True)
class OutputReport:
    """What the group does to the output of a classifier: means over the elements, the identity left out."""

    logit_error: float
    flip_rate: float
    elements: dict[str, OutputElement]


@dataclass(frozen=True)
class Report:
    """What :func:`measure` found; ``print`` it for a table, ``save`` it for JSON, Markdown and a page."""

    group: str
    images: int
    layers: dict[str, LayerReport]
    chosen: bool = False
    """Whether the layers were chosen by ``measure``: the model's direct children and its last map."""
    output: OutputReport | None = None
    """Of models that return scores (B, classes)."""
    accuracy: dict[str, float] | None = None
    """With labels: the share of images classified rightly under each element, the identity first."""
    averaged_accuracy: float | None = None
    """With labels: the same for the softmax averaged over all elements."""
    action: str = "pooled"
    """What was compared: the maximum over members (pooled), or all of them, permuted (regular)."""

    @property
    def worst(self) -> tuple[str, float]:
        """The layer with the largest relative error, and the error."""
        return max(((name, layer.relative) for name, layer in self.layers.items()), key=lambda item: item[1])

    def __str__(self) -> str:
        header, rows = self.table()
        lines = [self.title, *columns([header, *rows])]
        return "\n".join([*lines, *self.remarks()])

    @property
    def title(self) -> str:
        action = "" if self.action == "pooled" else f" ({self.action} action)"
        return f"equivariance to {self.group}{action} over {self.images:,} images"

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Header and one row a layer, as text."""
        layers = self.layers.values()
        split = any(r.exact is not None for r in layers) and any(r.between is not None for r in layers)
        floors = any(r.floor is not None for r in layers)
        diverse = any(r.diversity is not None for r in layers)
        elements = next(iter(layers)).elements
        factors = [label for label, e in elements.items() if e.factor is not None]
        factors = factors if len(factors) <= MOST_FACTORS else []
        turned = all(e.exact or e.degrees is not None for e in elements.values())
        header = ["layer", "map", "raw", "relative", "95 % interval"]
        header += ["quarter turns, flips", "in between" if turned else "resampled"] * split
        header += [*factors, *["floor"] * floors, *["diversity"] * diverse]
        rows = []
        for name, r in self.layers.items():
            row = [name or ROOT, f"{r.size[0]}×{r.size[1]}", number(r.raw), number(r.relative)]
            row.append(f"{number(r.interval[0])} … {number(r.interval[1])}")
            row += [number(r.exact), number(r.between)] * split
            row += [number(r.elements[label].relative) for label in factors] + [number(r.floor)] * floors
            row += ["–" if r.diversity is None else f"{r.diversity:.2f}"] * diverse
            rows.append(row)
        return header, rows

    def remarks(self) -> list[str]:
        """What the table does not say."""
        said = [f"{name or ROOT}: {text}" for name, r in self.layers.items() for text in r.warnings]
        if self.chosen:
            said.append("layers: the model's direct children that return maps, and its last map")
        if self.output is not None:
            said.append(
                f"output: {self.output.flip_rate:.2%} of the predictions change, "
                f"relative logit error {number(self.output.logit_error)}"
            )
        if self.accuracy is not None:
            shares = [f"{label} {share:.2%}" for label, share in self.accuracy.items()]
            if len(shares) > 8:
                worst = min(self.accuracy, key=self.accuracy.__getitem__)
                shares = [shares[0], f"at worst {worst} {self.accuracy[worst]:.2%}"]
            said.append("accuracy: " + ", ".join(shares))
        return said

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON: what is not a number is None."""
        plain: dict[str, Any] = _without_nan(asdict(self))
        for name, layer in self.layers.items():
            parts = {"exact": layer.exact, "between": layer.between, "warnings": layer.warnings}
            plain["layers"][name] |= _without_nan(parts)
        return plain

    def to_markdown(self) -> str:
        """A page with the table, the elements of each layer and the remarks."""
        header, rows = self.table()
        parts = [f"# {self.title.capitalize()}", markdown_table([header, *rows])]
        parts += ["\n".join(f"- {text}" for text in self.remarks())]
        parts += ["## Relative error of each element", markdown_table(self.element_table())]
        return "\n\n".join(part for part in parts if part) + "\n"

    def to_html(self) -> str:
        """The same as one self-contained page, with a curve where there are enough angles or factors."""
        header, rows = self.table()
        curves, axis = _curves(self.layers)
        return page(self.title, [header, *rows], self.remarks(), curves, axis, self.element_table())

    def element_table(self) -> list[list[str]]:
        """One row an element: the relative error of each layer, with its floor, and the output's flips."""
        labels = list(next(iter(self.layers.values())).elements)
        outputs = {} if self.output is None else self.output.elements
        header = [
            "element",
            *(name or ROOT for name in self.layers),
            *["predictions changed"] * bool(outputs),
        ]
        rows = [header]
        for label in labels:
            cells = []
            for layer in self.layers.values():
                e = layer.elements[label]
                cells.append(
                    number(e.relative) + (f" (floor {number(e.floor)})" if e.floor is not None else "")
                )
            flips = [f"{outputs[label].flip_rate:.2%}"] if outputs else []
            rows.append([label, *cells, *flips])
        return rows

    def save(self, folder: Path | str) -> Path:
        """Write ``report.json``, ``report.md`` and ``report.html`` into ``folder``; returns it."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False, ensure_ascii=False)
        (folder / "report.json").write_text(text + "\n", encoding="utf-8")
        (folder / "report.md").write_text(self.to_markdown(), encoding="utf-8")
        (folder / "report.html").write_text(self.to_html(), encoding="utf-8")
        return folder


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


def _mean(values: Iterable[float]) -> float | None:
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else None


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
