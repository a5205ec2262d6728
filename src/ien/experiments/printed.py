"""The printed tables as values: which rows stand together in each, and how they are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from ..report import PaperRow
from ..report.tables.agreement import Agreement
from ..report.tables.classifiers import Classifiers
from ..report.tables.dice import Segmented
from ..report.tables.render import Kind
from ..tracking.report.tables import Trackers
from . import nuclei, size, symmetry
from .catalogue import paper
from .study import LABELS, NOTES, NOTES_ON_FEWER

__all__ = ["TABLES", "PrintedTable", "TablePart", "table_with"]


@dataclass(frozen=True)
class TablePart:
    """Which rows stand together in a printed table, and how they are shown."""

    title: str
    patterns: Sequence[str]
    """The experiments, as patterns."""
    layers: Sequence[str] | None = None
    """The layers that are shown; None for all, and none at all leaves their tables out."""
    notes: Sequence[str] = ()
    kind: Kind = field(default_factory=Classifiers)
    """How the rows are scored, and so which columns there are."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Experiment → its name here, if it differs from that in its own table."""
    labelled_preset: str | None = None
    """The only size at which experiments have these names; None for all sizes."""

    def shows(self, experiment: str) -> bool:
        """Whether an experiment stands in this part."""
        return any(fnmatchcase(experiment, pattern) for pattern in self.patterns)


@dataclass(frozen=True)
class PrintedTable:
    """One table as the paper has it, which may show rows of several tables of experiments."""

    sources: Sequence[str]
    """Names of the tables of experiments."""
    parts: Sequence[TablePart]
    also: Sequence[str] = ()
    """Single experiments of other tables that are shown again."""
    twins: Mapping[str, str] = field(default_factory=dict)
    """Experiment → the one whose numbers in the paper stand beside it."""
    has_overview: bool = False
    """Whether an overview of the symmetry study is printed first."""

    def paper(self) -> dict[str, PaperRow]:
        """Return what the paper prints for the rows, by experiment."""
        found: dict[str, PaperRow] = {}
        for source in self.sources:
            found |= paper(source)
        for experiment, twin in self.twins.items():
            table, _, _ = twin.partition("/")
            printed = paper(table)
            if twin in printed:
                found[experiment] = printed[twin]
        return found


# the paper prints every other layer of VGG
VGG_LAYERS = ("conv1", "conv3", "conv5", "conv7")
VGG_NOTES = (
    "VGG: that E2CNN has the parameters of the base net, as the paper says, does not hold for 3×3 kernels: "
    "at full width it trains 8.18 M (R4) or 7.81 M (R8, R4R), the base net 9.85 M",
)
RESNET18_NOTES = (
    "ResNet18: at full width E2CNN trains 11.25 M parameters (R4) or 11.20 M (R8, R4R), the base net 11.22 M",
)


def _het(net: str) -> list[str]:
    rows = ("*-e2cnn", "*-ien-beta0.1", "r4-2*", "r8-4*")
    return [f"rot-tim/{net}-{row}" for row in rows]


def _of_data() -> list[TablePart]:
    """The parts of the table of symmetries: one for each data set."""
    parts = []
    for data, source in symmetry.DATA.items():
        part = TablePart(
            source.title,
            [f"symmetry/{data}-*"],
            layers=(),
            notes=symmetry.NOTES,
            kind=Agreement(),
        )
        parts.append(part)
    return parts


# as the paper does for scale
ERROR_RATES = Classifiers(errors=True)
TABLES: dict[str, PrintedTable] = {
    "rot-mnist": PrintedTable(["rot-mnist"], [TablePart("", ["rot-mnist/*"])]),
    "rot-tim": PrintedTable(
        ["rot-tim"],
        [
            # r4-2-1 and r8-4-2-1, the mixes of feature groups, stand in the table het
            TablePart(
                "ResNet18",
                ["rot-tim/resnet18-r4-[!2]*", "rot-tim/resnet18-r8-[!4]*"],
                notes=RESNET18_NOTES,
            ),
            TablePart("VGG", ["rot-tim/vgg-r4-[!2]*", "rot-tim/vgg-r8-[!4]*"], VGG_LAYERS, VGG_NOTES),
        ],
    ),
    "het": PrintedTable(
        ["rot-tim"],
        [
            TablePart("ResNet18", _het("resnet18"), notes=RESNET18_NOTES),
            TablePart("VGG", _het("vgg"), VGG_LAYERS, VGG_NOTES),
        ],
    ),
    "r2-tim": PrintedTable(
        ["r2-tim"],
        [
            TablePart("ResNet18", ["r2-tim/resnet18-*"], notes=RESNET18_NOTES),
            TablePart("VGG", ["r2-tim/vgg-*"], VGG_LAYERS, VGG_NOTES),
        ],
    ),
    "scale": PrintedTable(
        ["scale-mnist", "stl10", "rot-scale-mnist"],
        [
            TablePart("Scale-MNIST 28×28", ["scale-mnist/28-*"], kind=ERROR_RATES),
            TablePart("Scale-MNIST 56×56", ["scale-mnist/56-*"], kind=ERROR_RATES),
            TablePart("STL-10", ["stl10/*"], kind=ERROR_RATES),
            TablePart("Rotated and scaled digits", ["rot-scale-mnist/*"], kind=ERROR_RATES),
        ],
    ),
    "tracking": PrintedTable(["tracking"], [TablePart("", ["tracking/*"], kind=Trackers())]),
    "study": PrintedTable(
        ["study"],
        [
            # all but flip-* and n500-*, n2000-*; free also begins with an f
            TablePart("All digits", ["study/[!fn]*", "study/free*", *LABELS], notes=NOTES, labels=LABELS),
            TablePart("The wrong group", ["study/flip-*"]),
            TablePart("500 digits", ["study/n500-*"], notes=NOTES_ON_FEWER),
            TablePart("2,000 digits", ["study/n2000-*"], notes=NOTES_ON_FEWER),
        ],
        list(LABELS),
    ),
    "symmetry": PrintedTable(["symmetry"], _of_data(), has_overview=True),
    "size": PrintedTable(
        ["size"],
        [
            TablePart(
                "",
                ["size/*", *size.LABELS],
                layers=(),
                notes=size.NOTES,
                labels=size.LABELS,
                labelled_preset="small",
            )
        ],
        list(size.LABELS),
        size.TWINS,
    ),
    "nuclei": PrintedTable(
        ["nuclei"], [TablePart("", ["nuclei/*"], layers=(), notes=nuclei.NOTES, kind=Segmented())]
    ),
}
"""Tables of the paper by name.

``het`` shows rows of ``rot-tim`` again, beside those with fewer channels; ``study`` goes beyond the
paper and shows rows of ``rot-mnist`` among its own; ``symmetry``, ``size`` and ``nuclei`` go
beyond it too.
"""


def table_with(experiment: str) -> str:
    """Return the name of the first table that shows an experiment.

    >>> table_with("stl10/sesn")
    'scale'
    """
    for name, table in TABLES.items():
        for part in table.parts:
            if part.shows(experiment):
                return name
    raise ValueError(
        f"no table shows {experiment!r}: for a run of your own use ien show RUN or ien report RUN"
    )
