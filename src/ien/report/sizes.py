"""How many images does it take? From rows of tables to accuracy against the number of training images."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .accuracies import AccuracyAxis, span
from .plots.labels import label_ends
from .plots.style import GREY, Look, look, plain, styled
from .recipes import IMAGES, check_dataset, recipe_of, row_names
from .records import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Curve", "curves_of", "plot_sizes"]

Curve = Mapping[int, Sequence[float]]
"""Training images → accuracies of the seeds, in percent."""


@styled()
def plot_sizes(rows: Sequence[Row]) -> Figure:
    """Accuracy against the number of training images: a line a recipe, a dot a seed, their spread as a bar.

    Equal steps up are equal factors of the error, so that differences show at all sizes. Recipes that were
    trained on one number of images only are not drawn, and counted below.
    """
    from matplotlib.figure import Figure

    check_dataset(rows)
    every = curves_of(rows)
    curves = [(name, curve) for name, curve in every if len(curve) > 1]
    if not curves:
        raise ValueError(
            f"no recipe was trained on two numbers of images: run a row on fewer, as in "
            f"ien run {rows[0].experiment} --preset {rows[0].preset} --set subset=500"
        )
    figure = Figure(figsize=(9, 4.8), layout="constrained")
    axes = figure.subplots()
    axes.set_title(f"accuracy on {plain(rows[0].records[0].data)}, %")
    _size_axis(axes, sorted({size for _, curve in curves for size in curve}))
    spans = [span(values) for _, curve in curves for values in curve.values()]
    AccuracyAxis.over(end for ends in spans for end in ends).draw(axes)
    for i, (name, curve) in enumerate(curves):
        _draw(axes, curve, look(i), plain(name), 5 * (i - (len(curves) - 1) / 2))
    figure.supxlabel(_note(len(every) - len(curves)), fontsize=8.5, color=GREY)
    ends = [(plain(name), statistics.fmean(curve[max(curve)])) for name, curve in curves]
    label_ends(axes, [(name, end, look(i)) for i, (name, end) in enumerate(ends)])
    return figure


def curves_of(rows: Sequence[Row]) -> list[tuple[str, Curve]]:
    """The curve of each recipe, with the name of its row on most images.

    A recipe is all that determines a run, but for its training images and its seed. Where two rows of one
    recipe have equally many of them and saw them more or less often, this tells one recipe from the other.
    """
    recipes: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        recipe = recipe_of(row, *IMAGES)
        recipes.setdefault((row.preset, row.data, *sorted(recipe.items())), []).append(row)
    lines = [line for alike in recipes.values() for line in _by_compute(alike)]
    names = row_names([max(line, key=_images) for line in lines])
    return [(name, _curve(line)) for name, line in zip(names, lines, strict=True)]


def _by_compute(rows: list[Row]) -> list[list[Row]]:
    """All in one, or where rows on equally many images saw them more or less often, apart by images seen."""
    found = {(_images(row), _seen(row)) for row in rows}
    if len(found) == len({images for images, _ in found}):
        return [rows]
    return [[row for row in rows if _seen(row) == seen] for seen in dict.fromkeys(map(_seen, rows))]


def _images(row: Row) -> int:
    return row.records[0].train


def _seen(row: Row) -> float:
    return row.records[0].images_seen


def _curve(rows: Sequence[Row]) -> Curve:
    """Of two records of one seed, of tables that share a row, the one that finished last counts."""
    records = sorted((record for row in rows for record in row.records), key=lambda record: record.finished)
    newest = {(record.train, record.seed): 100 * record.accuracy for record in records}
    sizes = sorted({size for size, _ in newest})
    return {size: [newest[key] for key in sorted(newest) if key[0] == size] for size in sizes}


def _size_axis(axes: Axes, sizes: Sequence[int]) -> None:
    """Across: a logarithmic axis with a tick at each size that has room for its number."""
    width = math.log(sizes[-1] / sizes[0])
    ticks: list[int] = []
    for size in reversed(sizes):
        if not ticks or math.log(ticks[-1] / size) > width / 12:
            ticks.append(size)
    margin = math.exp(0.06 * width)
    axes.set(xscale="log", xlim=(sizes[0] / margin, sizes[-1] * margin), xlabel="training images")
    axes.set_xticks(ticks, [f"{size:,}" for size in ticks])
    axes.minorticks_off()


def _draw(axes: Axes, curve: Curve, mark: Look, name: str, shift: float) -> None:
    """The line of a recipe, ``shift`` typographic points to the right, so that none hides another's bars."""
    from matplotlib.transforms import ScaledTranslation

    figure: Any = axes.figure
    place: Any = axes.transData + ScaledTranslation(shift / 72, 0, figure.dpi_scale_trans)
    means = [statistics.fmean(values) for values in curve.values()]
    axes.plot(list(curve), means, transform=place, label=name, markersize=4.5, **mark._asdict())
    for (size, values), mean in zip(curve.items(), means, strict=True):
        small: dict[str, Any] = {"color": mark.color, "transform": place}
        axes.plot([size] * len(values), values, ".", markersize=4, alpha=0.55, label="_seeds", **small)
        if len(values) > 1:
            spread = statistics.stdev(values)
            ends = [mean - spread, mean + spread]
            axes.plot([size] * 2, ends, "_-", linewidth=1, markersize=6, label="_spread", **small)


def _note(alone: int) -> str:
    said = "bars: standard deviation over the seeds, the dots; equal steps up: equal factors of the error"
    if not alone:
        return said
    return f"{said}\nnot drawn: {alone} recipe{'s' * (alone > 1)} with one number of training images only"
