"""What ``measure`` returns: numbers for a model and a group, to read, print and save."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._text import MODEL_ITSELF, html_table, markdown_table, nearest, number, without_nan
from .._text import columns as aligned
from .intervals import Interval
from .layer_report import ElementReport, LayerReport, OutputReport

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Report"]

MAX_FACTOR_COLUMNS = 8
"""With more scale factors than this, only the table of elements lists them."""
MAX_LISTED_ACCURACIES = 8
"""With more elements than this, only the identity and the worst element are printed."""


@dataclass(frozen=True)
class Report:
    """How equivariant a model is, as :func:`measure` found it.

    ``print(report)`` shows a table with one row per layer, as does a notebook;
    ``report.layers["layer1"].relative`` is one number of it, ``report.plot()`` draws it, and
    ``report.save("folder")`` writes everything as JSON, Markdown and HTML.

    >>> import torch, ien
    >>> report = ien.measure(torch.nn.Conv2d(1, 4, kernel_size=1), torch.rand(8, 1, 6, 6), "rot4")
    >>> report
    Report(rot4, 8 images, 1 layer, worst the model itself: 0)
    >>> print(report.title)
    equivariance to rot4 over 8 images
    >>> list(report.layers[""].elements)
    ['90°', '180°', '270°']
    """

    group: str
    """The group, such as ``"rot4"``."""
    images: int
    """How many images were measured."""
    layers: dict[str, LayerReport]
    """The errors of each layer by its name, in the order given or in which they run."""
    chosen: bool = False
    """Whether ``measure`` chose the layers, because none were named."""
    output: OutputReport | None = None
    """What the group does to the scores; None if the model does not return scores (B, classes)."""
    accuracy: dict[str, float] | None = None
    """With labels: the share of images classified correctly under each element, identity first."""
    averaged_accuracy: float | None = None
    """With labels: the same if the softmax is averaged over all elements."""
    action: str = "pooled"
    """What was compared: the maximum over each feature group (``"pooled"``), or all its channels,
    permuted by the element (``"regular"``)."""

    @property
    def worst(self) -> tuple[str, float]:
        """The name of the layer with the largest relative error, and that error."""
        name = max(self.layers, key=lambda name: self.layers[name].relative)
        return name, self.layers[name].relative

    def __str__(self) -> str:
        header, rows = self.table()
        table = aligned([header, *rows])
        return "\n".join([self.title, *table, *self.remarks()])

    def __repr__(self) -> str:
        layers = "1 layer" if len(self.layers) == 1 else f"{len(self.layers)} layers"
        name, error = self.worst
        worst = f"worst {name or MODEL_ITSELF}: {number(error)}"
        return f"Report({self.group}, {self.images:,} images, {layers}, {worst})"

    def _repr_html_(self) -> str:
        header, rows = self.table()
        return html_table(self.title, [header, *rows], self.remarks())

    @property
    def title(self) -> str:
        """What was measured, in one line."""
        action = ""
        if self.action != "pooled":
            action = f" ({self.action} action)"
        return f"equivariance to {self.group}{action} over {self.images:,} images"

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return the table that is printed: its header, and the cells of one row per layer."""
        columns = self._columns()
        header = ["layer", *columns]
        rows = []
        for name, layer in self.layers.items():
            row = [name or MODEL_ITSELF]
            for text_of in columns.values():
                row.append(text_of(layer))
            rows.append(row)
        return header, rows

    def remarks(self) -> list[str]:
        """Return what the table does not say: warnings, how layers were chosen, and the output."""
        lines = []
        for name, layer in self.layers.items():
            for warning in layer.warnings:
                lines.append(f"{name or MODEL_ITSELF}: {warning}")
        if self.chosen:
            lines.append("layers: the model's direct children that return maps, and its last map")
        if self.output is not None:
            lines.append(
                f"output: {self.output.flip_rate:.2%} of the predictions change, "
                f"{self.output.agreement:.2%} of the images keep theirs under all elements, "
                f"relative logit error {number(self.output.logit_error)}"
            )
        if self.accuracy is not None:
            lines.append(_accuracy_line(self.accuracy))
        return lines

    def element_table(self) -> list[list[str]]:
        """Return a table with one row per element: errors, floors and changed predictions."""
        outputs = {}
        if self.output is not None:
            outputs = self.output.elements
        header = ["element"]
        for name in self.layers:
            header.append(name or MODEL_ITSELF)
        if outputs:
            header.append("predictions changed")

        rows = [header]
        for label in self._elements():
            row = [label]
            for layer in self.layers.values():
                element = layer.elements[label]
                cell = number(element.relative)
                if element.floor is not None:
                    cell += f" (floor {number(element.floor)})"
                row.append(cell)
            if outputs:
                row.append(f"{outputs[label].flip_rate:.2%}")
            rows.append(row)
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return every number in nested dicts that JSON can hold: NaN and infinity become None."""
        content: dict[str, Any] = without_nan(asdict(self))
        for name, layer in self.layers.items():
            derived = {"exact": layer.exact, "between": layer.between, "warnings": layer.warnings}
            content["layers"][name].update(without_nan(derived))
        return content

    def scalars(self) -> dict[str, float]:
        """Return the numbers to log while a model trains, by names that loggers understand.

        ``equivariance/rot4/layer1`` is the relative error of a layer. Of a classifier there are
        ``equivariance/rot4/output/flip_rate`` and ``…/agreement``, and with labels ``…/accuracy``
        of the original images and ``…/worst_accuracy`` under any element.

        >>> report = ien.measure(nn.Conv2d(1, 4, kernel_size=1), torch.rand(8, 1, 6, 6), "rot4")
        >>> list(report.scalars())
        ['equivariance/rot4/the model itself']
        """
        prefix = f"equivariance/{self.group}"
        values = {}
        for name, layer in self.layers.items():
            values[f"{prefix}/{name or MODEL_ITSELF}"] = layer.relative
        if self.output is not None:
            values[f"{prefix}/output/flip_rate"] = self.output.flip_rate
            values[f"{prefix}/output/agreement"] = self.output.agreement
        if self.accuracy is not None:
            shares = list(self.accuracy.values())  # the identity first
            values[f"{prefix}/output/accuracy"] = shares[0]
            values[f"{prefix}/output/worst_accuracy"] = min(shares)
        return values

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with a row for each layer and element.

        Its columns are those of :class:`ElementReport`, with the interval as ``low`` and ``high``.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "to_pandas needs pandas: pip install pandas, or use to_dict()", name="pandas"
            ) from error
        rows = []
        for name, layer in self.layers.items():
            for label, element in layer.elements.items():
                row = {"layer": name, "element": label} | asdict(element)
                row["low"], row["high"] = row.pop("interval")
                rows.append(row)
        return pandas.DataFrame(rows)

    def plot(self, kind: str = "layers", layer: str | None = None) -> Figure:
        """Draw the errors; a notebook shows the figure.

        Args:
            kind: ``"layers"``: the relative error of each layer, with intervals and floors.
                ``"angles"``: the error of one layer around the circle, for groups such as
                ``"rot72"``; with labels, the accuracy too. ``"factors"``: the same against the
                scale factor.
            layer: Which layer, if ``kind`` draws one; by default the last that is large enough.

        Returns:
            A matplotlib figure; ``figure.savefig("errors.png")`` writes it.

        Raises:
            ModuleNotFoundError: matplotlib is not installed; the message says how to install it.
            ValueError: There is no such kind or layer, or the group has no angles or factors.
        """
        # from a later folder, as in to_html: there is one drawer of plots, and it is there
        from ..report.plots.angles import plot_angles, plot_factors
        from ..report.plots.errors import plot_errors

        reports = {self.group: self}
        if kind == "layers" and layer is None:
            figure = plot_errors(reports)
        elif kind == "layers":
            raise ValueError(f'all layers are drawn; got layer={layer!r}: use it with kind="angles"')
        elif kind == "angles":
            figure = plot_angles(reports, layer)
        elif kind == "factors":
            figure = plot_factors(reports, layer)
        else:
            raise ValueError(f"no kind of plot {kind!r}: {nearest(kind, ['layers', 'angles', 'factors'])}")
        # a notebook shows figures of pyplot by itself, and others by this method
        figure._repr_png_ = partial(png_of, figure)  # type: ignore[attr-defined]
        return figure

    def to_markdown(self) -> str:
        """Return a Markdown page with the table, the remarks, and the errors of each element."""
        header, rows = self.table()
        heading = self.title[0].upper() + self.title[1:]
        parts = [f"# {heading}", markdown_table([header, *rows])]
        remarks = [f"- {text}" for text in self.remarks()]
        if remarks:
            parts.append("\n".join(remarks))
        parts.append("## Relative error of each element")
        parts.append(markdown_table(self.element_table()))
        return "\n\n".join(parts) + "\n"

    def to_html(self) -> str:
        """Return the report as one self-contained page, with a curve over angles or factors."""
        # the only import from a later folder: there is one writer of HTML pages, and it is there
        from ..report.page.measured import measured_page

        return measured_page(self)

    def save(self, folder: Path | str) -> Path:
        """Write ``report.json``, ``report.md`` and ``report.html``.

        Args:
            folder: Where to. It is created if it does not exist, and earlier reports in it are
                overwritten.

        Returns:
            The folder.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False, ensure_ascii=False)
        (folder / "report.json").write_text(text + "\n", encoding="utf-8")
        (folder / "report.md").write_text(self.to_markdown(), encoding="utf-8")
        (folder / "report.html").write_text(self.to_html(), encoding="utf-8")
        return folder

    def _columns(self) -> dict[str, Callable[[LayerReport], str]]:
        """Return the columns after the first: header -> the text of a layer's cell."""
        columns: dict[str, Callable[[LayerReport], str]] = {
            "map": lambda layer: "×".join(map(str, layer.size)),
            "raw": lambda layer: number(layer.raw),
            "relative": lambda layer: number(layer.relative),
            "95 % interval": lambda layer: _interval_text(layer.interval),
        }
        # a column that would be empty for all layers is left out
        has_exact = self._any_layer_has(lambda layer: layer.exact)
        has_between = self._any_layer_has(lambda layer: layer.between)
        if has_exact and has_between:  # else one of them equals the relative error
            columns["quarter turns, flips"] = lambda layer: number(layer.exact)
            columns[self._name_of_between()] = lambda layer: number(layer.between)

        factors = []
        for label, element in self._elements().items():
            if element.factor is not None:
                factors.append(label)
        if len(factors) <= MAX_FACTOR_COLUMNS:
            for label in factors:
                columns[label] = _error_of(label)
        if self._any_layer_has(lambda layer: layer.floor):
            columns["floor"] = lambda layer: number(layer.floor)
        if self._any_layer_has(lambda layer: layer.diversity):
            columns["diversity"] = lambda layer: _two_decimals(layer.diversity)
        return columns

    def _any_layer_has(self, value_of: Callable[[LayerReport], float | None]) -> bool:
        return any(value_of(layer) is not None for layer in self.layers.values())

    def _name_of_between(self) -> str:
        """Return "in between" if the elements that resample are angles between quarter turns."""
        for element in self._elements().values():
            if not element.exact and element.degrees is None:
                return "resampled"
        return "in between"

    def _elements(self) -> dict[str, ElementReport]:
        """Return the elements of the first layer: all layers have the same ones."""
        return next(iter(self.layers.values())).elements


def png_of(figure: Figure) -> bytes:
    """Return a figure as a notebook shows it."""
    file = BytesIO()
    figure.savefig(file, format="png", dpi=100)
    return file.getvalue()


def _error_of(label: str) -> Callable[[LayerReport], str]:
    return lambda layer: number(layer.elements[label].relative)


def _interval_text(interval: Interval) -> str:
    low, high = interval
    return f"{number(low)} … {number(high)}"


def _two_decimals(value: float | None) -> str:
    if value is None:
        return number(None)
    return f"{value:.2f}"


def _accuracy_line(accuracy: dict[str, float]) -> str:
    shares = []
    for label, share in accuracy.items():
        shares.append(f"{label} {share:.2%}")
    if len(shares) > MAX_LISTED_ACCURACIES:
        worst = min(accuracy, key=accuracy.__getitem__)
        shares = [shares[0], f"at worst {worst} {accuracy[worst]:.2%}"]
    return "accuracy: " + ", ".join(shares)
