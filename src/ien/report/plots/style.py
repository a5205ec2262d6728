"""Figures: the look, axes and curves that plots share, and from a figure to PNG and SVG files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._files import replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "GREY",
    "LEAST",
    "LogAxis",
    "Look",
    "closed",
    "factor_axis",
    "log_ticks",
    "look",
    "needs",
    "percent_ticks",
    "plain",
    "power",
    "rings",
    "save_figure",
    "styled",
    "union",
]

GREY = "#6b6b6b"
LEAST = 1e-8
"""Relative errors below it are those of rounding in float32: they are drawn on one line, as such."""

STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.labelsize": 9.5,
    "axes.labelcolor": "#333333",
    "axes.edgecolor": "#8c8c8c",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.7,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "xtick.color": "#8c8c8c",
    "ytick.color": "#8c8c8c",
    "xtick.labelcolor": "#333333",
    "ytick.labelcolor": "#333333",
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.5,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "text.parse_math": False,  # names are shown as they are, dollar signs included
    "image.composite_image": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "ien",
}

# the palette of Okabe and Ito, without its yellow, which vanishes on white
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (6, 1.5, 1, 1.5)), (0, (2.5, 1)), (0, (6, 1, 1, 1, 1, 1)))


class Look(NamedTuple):
    """What tells one run from the others, in colour and without."""

    color: str
    marker: str
    linestyle: Any


def look(i: int) -> Look:
    """The look of the ``i``-th run: no two of the first 280 are alike."""
    return Look(COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)], LINES[i % len(LINES)])


@contextmanager
def styled() -> Iterator[None]:
    """The house style while a figure is made or written, whatever the user's own settings are."""
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError('plotting needs matplotlib: pip install "ien[plots]"') from error
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)  # type: ignore[arg-type]
        yield


def save_figure(figure: Figure, path: Path | str) -> list[Path]:
    """Write ``figure`` as PNG and SVG beside each other; ``path`` may end in either suffix or in none.

    Folders are made. The same figure gives the same bytes.
    """
    path = Path(path)
    stem = path.name.removesuffix(".png").removesuffix(".svg")
    path.parent.mkdir(parents=True, exist_ok=True)
    written = []
    nothing = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
    for kind, metadata in nothing.items():
        target = path.with_name(f"{stem}.{kind}")
        with styled():
            replace_file(
                target,
                lambda temporary, kind=kind, metadata=metadata: figure.savefig(  # type: ignore[misc]
                    temporary, format=kind, dpi=200, metadata=metadata
                ),
            )
        written.append(target)
    return written


def plain(name: str, length: int = 40) -> str:
    """A name as one line of printable text.

    >>> plain("a\\nb"), plain("x" * 9, 5), plain("")
    ('a b', 'xxxx…', '(the model)')
    """
    text = " ".join("".join(c if c.isprintable() else " " for c in name).split()) or "(the model)"
    return text if len(text) <= length else text[: length - 1] + "…"


def power(exponent: int) -> str:
    """A power of ten as text.

    >>> power(-12), power(0), power(1)
    ('10⁻¹²', '1', '10')
    """
    small = str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return {0: "1", 1: "10"}.get(exponent, f"10{small}")


def log_ticks(low: float, high: float, most: int = 8) -> dict[float, str]:
    """Position → label on a logarithmic axis: powers of ten, and on a short one 2 and 5 between them.

    >>> log_ticks(0.005, 20)
    {0.01: '10⁻²', 0.1: '10⁻¹', 1.0: '1', 10.0: '10'}
    >>> log_ticks(0.15, 0.7)
    {0.2: '0.2', 0.5: '0.5'}
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    inside = [e for e in decades if low <= 10.0**e <= high]
    if len(inside) > 1:
        return {10.0**e: power(e) for e in inside[:: -math.ceil(len(inside) / most)][::-1]}
    ticks = {
        float(f"{d}e{e}"): f"{d}×{power(e)}" if abs(e) > 3 else f"{d}e{e}" for e in decades for d in (1, 2, 5)
    }
    return {t: label if "×" in label else f"{t:g}" for t, label in ticks.items() if low <= t <= high}


class LogAxis(NamedTuple):
    """A logarithmic axis of relative errors, with a place at its low end for those that are only rounding."""

    low: float
    high: float
    rounding: float | None
    """Where errors below :data:`LEAST` are drawn, if there are any."""

    @classmethod
    def over(cls, values: Iterable[float | None]) -> LogAxis:
        """An axis that holds all values; those that are None or not finite do not count."""
        known = [v for v in values if v is not None and math.isfinite(v)]
        if not known:
            raise ValueError("there is no finite relative error to plot")
        shown = [v for v in known if v >= LEAST] or [1.0]
        middle = math.sqrt(min(shown) * max(shown))
        low, high = min(min(shown) / 1.6, middle / 4), max(max(shown) * 1.6, middle * 4)  # at least a decade
        rounding = min(known) < LEAST
        return cls(low / 5, high, low / math.sqrt(5)) if rounding else cls(low, high, None)

    def place(self, value: float | None) -> float:
        """Where a value is drawn; NaN, a gap, for what is no number."""
        if value is None or not math.isfinite(value):
            return math.nan
        return value if value >= LEAST or self.rounding is None else self.rounding

    @property
    def start(self) -> float:
        """Where the scale begins, above the place for rounding."""
        return self.low if self.rounding is None else 5 * self.low

    @property
    def ticks(self) -> dict[float, str]:
        return self.at_most(8)

    def at_most(self, most: int) -> dict[float, str]:
        """Ticks, with so many powers of ten at most."""
        ticks = {} if self.rounding is None else {self.rounding: f"< {power(round(math.log10(LEAST)))}"}
        return ticks | log_ticks(self.start, self.high, most)

    def _apart(self, ticks: dict[float, str]) -> dict[float, str]:
        """Without those that have no room beside the place for rounding."""
        if self.rounding is None:
            return ticks
        nearest = self.rounding * (self.high / self.low) ** (1 / 8)
        return {tick: text for tick, text in ticks.items() if tick == self.rounding or tick > nearest}

    def draw(self, axes: Axes, across: bool = False) -> None:
        """Make it the upward axis of ``axes``, or the one across, the place for rounding in grey."""
        side, shade = ("x", axes.axvspan) if across else ("y", axes.axhspan)
        ticks = self._apart(self.at_most(5)) if across else self.ticks  # numbers are wider than high
        getattr(axes, f"set_{side}scale")("log")
        getattr(axes, f"set_{side}lim")(self.low, self.high)
        getattr(axes, f"set_{side}ticks")(list(ticks), list(ticks.values()))
        axes.minorticks_off()
        if self.rounding is not None:
            shade(self.low, self.start, color="#e3e3e3", alpha=0.45, linewidth=0, zorder=0)


def factor_axis(axes: Axes, factors: Iterable[float]) -> None:
    """Across: a logarithmic axis of scale factors, 1 in the middle; those with room have their numbers."""
    places = {math.log(factor): factor for factor in factors}
    reach = max(map(abs, places))
    ticks = {0.0: 1.0}
    for place in sorted(
        places, key=lambda place: (len(f"{places[place]:.3g}"), abs(place))
    ):  # round ones first
        if all(abs(place - tick) >= reach / 4.5 for tick in ticks):
            ticks[place] = places[place]
    axes.set_xscale("log")
    axes.set_xlim(math.exp(-1.08 * reach), math.exp(1.08 * reach))
    axes.set_xticks(list(ticks.values()), [f"{factor:.3g}" for factor in ticks.values()])
    axes.minorticks_off()
    axes.axvline(1, color=GREY, linewidth=0.8, zorder=1)
    axes.set_xlabel("factor")


def closed(axes: Axes, curve: Mapping[float, float], mark: Look, name: str) -> None:
    """A curve over all degrees, around the circle, with marks at quarter turns."""
    angles = sorted(curve)
    around = [*angles, angles[0] + 360]
    values = [curve[a] for a in angles]
    quarters = [a for a in angles if a % 90 == 0]
    axes.plot(
        [math.radians(a) for a in around],
        [*values, values[0]],
        color=mark.color,
        linestyle=mark.linestyle,
        label=plain(name),
    )
    axes.plot(
        [math.radians(a) for a in quarters],
        [curve[a] for a in quarters],
        color=mark.color,
        marker=mark.marker,
        linestyle="",
        label="_quarters",
    )


def rings(axes: Any, low: float, high: float, ticks: Mapping[float, str]) -> None:
    """The scale of a circle: from its middle to its rim, with a labelled ring at each tick."""
    axes.set_rlim(low, high)
    axes.set_rgrids(list(ticks), [""] * len(ticks))
    axes.minorticks_off()
    behind = {"facecolor": "#ffffff", "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
    for radius, label in ticks.items():  # over the curves, which would hide the grid's own labels
        axes.text(
            math.radians(22.5), radius, label, fontsize=8, color=GREY, ha="center", va="center", bbox=behind
        )


def percent_ticks(values: Sequence[float]) -> tuple[float, dict[float, str]]:
    """Where an axis up to 100 % that holds all values begins, and its ticks."""
    known = [v for v in values if math.isfinite(v)] or [0.0]
    step = next(s for s in (1, 2, 5, 10, 20, 25) if 100 - 4 * s <= min(known) or s == 25)
    return 100 - 4.0 * step, {100 - k * step: f"{100 - k * step:g} %" for k in range(4)}


def union(runs: Iterable[Iterable[str]]) -> list[str]:
    """All names in an order that agrees with that of each run, as far as that is possible."""
    names: list[str] = []
    for run in runs:
        place = 0
        for name in run:
            if name in names:
                place = names.index(name) + 1
            else:
                names.insert(place, name)
                place += 1
    return names


def needs(given: Sequence[Any] | Mapping[str, Any], what: str) -> None:
    """An error if there is nothing to plot."""
    if not given:
        raise ValueError(f"there is nothing to plot: give at least one {what}")
