"""The tables: records of runs beside the paper's figures, on the terminal and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from rich.console import Console

from .._files import replace_file
from .._text import nearest
from ..report import PaperRow, Part, Row, Section, as_rich, collect, results_page, summarise
from ..report.tables.classifiers import Classifiers
from ..report.tables.render import Kind
from ..tracking.report.tables import Trackers
from .catalogue import check_preset, names, paper
from .study import LABELS, NOTES, NOTES_ON_FEWER

__all__ = ["TABLES", "print_table", "write_page"]


@dataclass(frozen=True)
class _Rows:
    """Which rows stand together in a table."""

    title: str
    patterns: Sequence[str]
    """Of experiments."""
    layers: Sequence[str] | None = None
    """Those that the paper shows; None for all."""
    notes: Sequence[str] = ()
    kind: Kind = field(default_factory=Classifiers)
    """How they are scored."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Names of rows that are not called as in their own table, by experiment."""


@dataclass(frozen=True)
class _Table:
    datasets: Sequence[str]
    parts: Sequence[_Rows]
    beside: Sequence[str] = ()
    """Rows of other tables that are shown again."""


_VGG_LAYERS = ("conv1", "conv3", "conv5", "conv7")
_VGG_NOTES = (
    "VGG: that E2CNN has the parameters of the base net, as the paper says, does not hold for 3×3 kernels: "
    "at full width it trains 8.18 M (R4) or 7.81 M (R8, R4R), the base net 9.85 M",
)
_RESNET18_NOTES = (
    "ResNet18: at full width E2CNN trains 11.25 M parameters (R4) or 11.20 M (R8, R4R), the base net 11.22 M",
)


def _het(net: str) -> list[str]:
    rows = ("*-e2cnn", "*-ien-beta0.1", "r4-2*", "r8-4*")
    return [f"rot-tim/{net}-{row}" for row in rows]


ERROR_RATES = Classifiers(errors=True)
TABLES = {
    "rot-mnist": _Table(["rot-mnist"], [_Rows("", ["rot-mnist/*"])]),
    "rot-tim": _Table(
        ["rot-tim"],
        [
            _Rows(
                "ResNet18",
                ["rot-tim/resnet18-r4-[!2]*", "rot-tim/resnet18-r8-[!4]*"],
                notes=_RESNET18_NOTES,
            ),
            _Rows("VGG", ["rot-tim/vgg-r4-[!2]*", "rot-tim/vgg-r8-[!4]*"], _VGG_LAYERS, _VGG_NOTES),
        ],
    ),
    "het": _Table(
        ["rot-tim"],
        [
            _Rows("ResNet18", _het("resnet18"), notes=_RESNET18_NOTES),
            _Rows("VGG", _het("vgg"), _VGG_LAYERS, _VGG_NOTES),
        ],
    ),
    "r2-tim": _Table(
        ["r2-tim"],
        [
            _Rows("ResNet18", ["r2-tim/resnet18-*"], notes=_RESNET18_NOTES),
            _Rows("VGG", ["r2-tim/vgg-*"], _VGG_LAYERS, _VGG_NOTES),
        ],
    ),
    "scale": _Table(
        ["scale-mnist", "stl10", "rot-scale-mnist"],
        [
            _Rows("Scale-MNIST 28×28", ["scale-mnist/28-*"], kind=ERROR_RATES),
            _Rows("Scale-MNIST 56×56", ["scale-mnist/56-*"], kind=ERROR_RATES),
            _Rows("STL-10", ["stl10/*"], kind=ERROR_RATES),
            _Rows("Rotated and scaled digits", ["rot-scale-mnist/*"], kind=ERROR_RATES),
        ],
    ),
    "tracking": _Table(["tracking"], [_Rows("", ["tracking/*"], kind=Trackers())]),
    "study": _Table(
        ["study"],
        [
            _Rows("All digits", ["study/[!fn]*", "study/free*", *LABELS], notes=NOTES, labels=LABELS),
            _Rows("The wrong group", ["study/flip-*"]),
            _Rows("500 digits", ["study/n500-*"], notes=NOTES_ON_FEWER),
            _Rows("2,000 digits", ["study/n2000-*"], notes=NOTES_ON_FEWER),
        ],
        list(LABELS),
    ),
}
"""Tables of the paper by name; ``het`` shows rows of ``rot-tim`` again, beside those with fewer channels.

``study`` goes beyond the paper, and shows rows of ``rot-mnist`` among its own.
"""


def print_table(name: str, results: Path, preset: str | None = None, console: Console | None = None) -> None:
    """Print a table, of the records of one preset or of all."""
    _check(name)
    if preset is not None:
        check_preset(preset)
    parts = _parts(name, results, preset)
    if not parts:
        raise ValueError(f"no records of preset {preset!r} in {results}")
    console = console or Console()
    for part in parts:
        console.print(as_rich(part, _figures(name), console.width))


def write_page(path: Path, name: str, results: Path) -> None:
    """Write the page of this table and all others that have records, whole or not at all."""
    _check(name)
    recorded = [
        other
        for other, table in TABLES.items()
        if other == name or any(list((results / dataset).rglob("*.json")) for dataset in table.datasets)
    ]
    sections = [
        Section(each, _parts(each, results), _figures(each), _reading(each, results)) for each in recorded
    ]
    text = results_page(*(section for section in sections if section.parts))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _parts(name: str, results: Path, preset: str | None = None) -> list[Part]:
    table = TABLES[name]
    patterns = [*(f"{dataset}/*" for dataset in table.datasets), *table.beside]
    rows = summarise(collect(results, *patterns), names())
    parts = []
    for part in table.parts:
        chosen = [
            replace(row, name=part.labels.get(row.experiment, ""))
            for row in rows
            if preset in (None, row.preset) and _stands_in(row, part)
        ]
        parts += [Part(part.title, chosen, part.layers, part.notes, part.kind)] if chosen else []
    return parts


def _stands_in(row: Row, part: _Rows) -> bool:
    return any(fnmatchcase(row.experiment, pattern) for pattern in part.patterns)


def _figures(name: str) -> dict[str, PaperRow]:
    """What the paper prints for the rows of a table."""
    return {row: figures for dataset in TABLES[name].datasets for row, figures in paper(dataset).items()}


def _reading(name: str, results: Path) -> str:
    """What the numbers say, from ``results/name/reading.md``."""
    path = results / name / "reading.md"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _check(name: str) -> None:
    if name not in TABLES:
        raise ValueError(f"there is no table {name!r}; {nearest(name, TABLES)}")
