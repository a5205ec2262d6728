"""The look that all plots share, and how a figure becomes a PNG and an SVG file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._files import replace_file
from ..._text import MODEL_ITSELF, to_install
from ..palette import colours_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "GREY",
    "NARROW",
    "WIDE",
    "Look",
    "check_any",
    "looks_of",
    "note_below",
    "plain",
    "save_figure",
    "styled",
    "union",
]

WIDE, NARROW = 9.0, 4.8
"""How wide figures are, in inches: in documents, and on pages, where they must fit a phone."""
GREY = "#6B6B6B"
DARK = "#333333"
EDGE = "#8C8C8C"
GRID = "#E3E3E3"
STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.labelsize": 9.5,
    "axes.labelcolor": DARK,
    "axes.edgecolor": EDGE,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.min_exponent": 5,  # from 0.0001 to 10000 numbers are written out
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "xtick.color": EDGE,
    "ytick.color": EDGE,
    "xtick.labelcolor": DARK,
    "ytick.labelcolor": DARK,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.5,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "image.composite_image": False,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "ien",  # ids are the same every time
}
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (6, 1.5, 1, 1.5)), (0, (2.5, 1)), (0, (6, 1, 1, 1, 1, 1)))


class Look(NamedTuple):
    """What tells one run from the others, in colour and without."""

    color: str
    marker: str
    linestyle: Any


def looks_of(names: Iterable[str]) -> dict[str, Look]:
    """Return the look of each run in a figure: its method's colour, its own marker and line.

    >>> looks_of(["cnn-aug", "ien-r4"])["ien-r4"].color
    '#0072B2'
    """
    names = list(names)
    looks = {}
    # eight markers and five lines: the first forty runs differ without colour, too
    for i, (name, colour) in enumerate(zip(names, colours_of(names), strict=True)):
        looks[name] = Look(colour, MARKERS[i % len(MARKERS)], LINES[i % len(LINES)])
    return looks


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the house style while the block runs, whatever the user's own settings are."""
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        command = to_install("plots", "matplotlib")
        raise ModuleNotFoundError(f"plotting needs {error.name}: {command}") from error
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # the user's own settings come back with the end of the block
        matplotlib.rcParams.update(STYLE)  # type: ignore[arg-type]
        yield


def settle(figure: Figure) -> None:
    """Lay a figure out once, and keep that layout, rounded.

    The solver of ``layout="constrained"`` goes through its terms in an order that depends on their
    addresses: its last bits change from process to process, and with them the ids in an SVG.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        left, bottom, width, height = axes.get_position().bounds
        axes.set_position((round(left, 6), round(bottom, 6), round(width, 6), round(height, 6)))


def save_figure(figure: Figure, path: Path | str) -> list[Path]:
    """Write a figure as PNG and SVG beside each other; the same figure gives the same bytes.

    The figure keeps the layout that it is written with.

    Args:
        figure: What a plot function returned.
        path: Where to write; it may end in either suffix or in none. Folders are made.

    Returns:
        The two files.
    """
    path = Path(path)
    stem = path.name.removesuffix(".png").removesuffix(".svg")
    path.parent.mkdir(parents=True, exist_ok=True)

    def write_png(temporary: Path) -> None:
        # without the version of matplotlib, which would change the bytes
        figure.savefig(temporary, format="png", dpi=200, metadata={"Software": None})

    def write_svg(temporary: Path) -> None:
        figure.savefig(temporary, format="svg", metadata={"Date": None, "Creator": None})

    png, svg = path.with_name(f"{stem}.png"), path.with_name(f"{stem}.svg")
    with styled():
        settle(figure)
        replace_file(png, write_png)
        replace_file(svg, write_svg)
    return [png, svg]


def plain(name: str, length: int = 40) -> str:
    """Write a name as one line of printable text, in which a dollar sign starts no formula.

    >>> plain("a\\nb"), plain("x" * 9, 5), plain(""), plain("$5")
    ('a b', 'xxxx…', 'the model itself', '\\\\$5')
    """
    letters = []
    for character in name:
        if not character.isprintable():
            character = " "  # a line break, or what a font has no picture of
        letters.append(character)
    text = " ".join("".join(letters).split()) or MODEL_ITSELF
    if len(text) > length:
        text = text[: length - 1] + "…"
    return text.replace("$", r"\$")


def note_below(figure: Figure, text: str) -> None:
    """Write what a reader has to know below all panels."""
    figure.supxlabel(text, fontsize=8.5, color=GREY)


def union(runs: Iterable[Iterable[str]]) -> list[str]:
    """Return all names in an order that agrees with that of each run, as far as possible.

    >>> union([["conv1", "fc"], ["conv1", "conv2", "fc"]])
    ['conv1', 'conv2', 'fc']
    """
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


def check_any(given: Sequence[Any] | Mapping[str, Any], what: str) -> None:
    """Raise an error if there is nothing to plot."""
    if not given:
        raise ValueError(f"there is nothing to plot: give at least one {what}")
