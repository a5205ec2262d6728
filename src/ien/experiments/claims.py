"""What the paper claims, beside what our runs say: a line for each claim.

A claim compares two rows of the paper's tables. Ours are compared over their seeds: the difference
of the means, with the 95 % interval of Student's t (equal variances). With one seed there is no
interval, and nothing is decided.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .._text import markdown_table
from ..report import PaperRow, collect, summarise
from ..report.rows import Row
from ..tracking.report.records import trackings
from .catalogue import paper

__all__ = ["CLAIMS", "Claim", "Difference", "claims_section", "difference", "verdict"]


class Claim(NamedTuple):
    """That one row is better than another, or as good."""

    says: str
    row: str
    other: str
    at_par: bool = False
    """Whether the paper only says that the row is as good as the other."""


ROT, R2 = "rot-tim/", "r2-tim/"
CLAIMS = (
    Claim("Rot-MNIST: IEN is at par with E2CNN", "rot-mnist/ien-r4", "rot-mnist/e2cnn", at_par=True),
    Claim("Rot-MNIST: IEN is above CNN-aug", "rot-mnist/ien-r4", "rot-mnist/cnn-aug"),
    Claim("Rot-MNIST: Het-IEN loses nothing", "rot-mnist/het-ien", "rot-mnist/ien-r4", at_par=True),
    # the paper reports the best of three β in each case: that one is meant here
    Claim("ResNet18, R4: IEN is above E2CNN", f"{ROT}resnet18-r4-ien-beta0.01", f"{ROT}resnet18-r4-e2cnn"),
    Claim("ResNet18, R8: IEN is above E2CNN", f"{ROT}resnet18-r8-ien-beta0.1", f"{ROT}resnet18-r8-e2cnn"),
    Claim("VGG, R4: IEN is above E2CNN", f"{ROT}vgg-r4-ien-beta0.1", f"{ROT}vgg-r4-e2cnn"),
    Claim("VGG, R8: IEN is above E2CNN", f"{ROT}vgg-r8-ien-beta0.01", f"{ROT}vgg-r8-e2cnn"),
    Claim("ResNet18, R4: CNN-aug is above E2CNN", f"{ROT}resnet18-r4-cnn-aug", f"{ROT}resnet18-r4-e2cnn"),
    Claim("ResNet18, R8: CNN-aug is above E2CNN", f"{ROT}resnet18-r8-cnn-aug", f"{ROT}resnet18-r8-e2cnn"),
    Claim("ResNet18, R4R: IEN is above E2CNN", f"{R2}resnet18-r4r-ien-beta0.01", f"{R2}resnet18-r4r-e2cnn"),
    Claim("VGG, R4R: E2CNN is above IEN", f"{R2}vgg-r4r-e2cnn", f"{R2}vgg-r4r-ien-beta0.01"),
    Claim(
        "ResNet18: Het-IEN R4-2-1 is above E2CNN", f"{ROT}resnet18-r4-2-1-het-ien", f"{ROT}resnet18-r4-e2cnn"
    ),
    Claim(
        "ResNet18: Het-IEN R8-4-2-1 is above E2CNN",
        f"{ROT}resnet18-r8-4-2-1-het-ien",
        f"{ROT}resnet18-r8-e2cnn",
    ),
    Claim("VGG: Het-IEN R8-4-2 is above E2CNN", f"{ROT}vgg-r8-4-2-het-ien", f"{ROT}vgg-r8-e2cnn"),
    Claim(
        "Scale-MNIST 28: IEN is at par with SESN",
        "scale-mnist/28-ien",
        "scale-mnist/28-sesn-vector",
        at_par=True,
    ),
    Claim("Scale-MNIST 56: IEN is above SESN", "scale-mnist/56-ien", "scale-mnist/56-sesn-vector"),
    Claim("STL-10: IEN is above SESN", "stl10/ien", "stl10/sesn-a"),
    Claim("Rot-OTB: RE-SiamFC is above SiamFC", "tracking/re-siamfc", "tracking/siamfc"),
    Claim("Rot-OTB: IEN-SiamFC is above RE-SiamFC", "tracking/ien-siamfc", "tracking/re-siamfc"),
    Claim(
        "Rot-OTB: Het-SiamFC is at par with IEN-SiamFC",
        "tracking/het-siamfc",
        "tracking/ien-siamfc",
        at_par=True,
    ),
)
"""In the order of the paper."""

PRESETS = ("medium", "small")
"""Sizes of our runs, the one to prefer first; only trackers have medium."""
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""97.5 % quantiles of Student's t with 1, 2, … degrees of freedom."""
NORMAL = 1.96
"""The same with very many."""


class Difference(NamedTuple):
    """How much higher one row is than another, in percentage points."""

    mean: float
    half_width: float
    """Of the 95 % interval; NaN if one of the rows has a single seed."""
    seeds: tuple[int, int]

    def __str__(self) -> str:
        if math.isnan(self.half_width):
            return f"{self.mean:+.2f}"
        return f"{self.mean:+.2f} ± {self.half_width:.2f}"


def difference(values: Sequence[float], others: Sequence[float]) -> Difference:
    """Compare the results of some seeds with those of others, both in percent.

    >>> str(difference([98.0, 98.2, 98.1], [97.0, 97.1, 97.2]))
    '+1.00 ± 0.23'
    """
    mean = statistics.fmean(values) - statistics.fmean(others)
    seeds = (len(values), len(others))
    if min(seeds) < 2:
        return Difference(mean, math.nan, seeds)
    freedom = sum(seeds) - 2
    # s² = ((n - 1) s_n² + (m - 1) s_m²) / (n + m - 2), and of the difference s² (1/n + 1/m)
    squares = (seeds[0] - 1) * statistics.variance(values) + (seeds[1] - 1) * statistics.variance(others)
    error = math.sqrt(squares / freedom * (1 / seeds[0] + 1 / seeds[1]))
    quantile = STUDENT[freedom - 1] if freedom <= len(STUDENT) else NORMAL
    return Difference(mean, quantile * error, seeds)


def verdict(claim: Claim, found: Difference) -> str:
    """Say whether a claim holds in our runs."""
    if math.isnan(found.half_width):
        return "one seed: undecided"
    if abs(found.mean) <= found.half_width:
        if claim.at_par:
            return "holds"
        return "undecided: within the interval"
    if found.mean > 0:
        return "holds"
    return "does not hold"


def claims_section(results: Path) -> str:
    """Write the table of all claims as Markdown, from the records in a folder.

    Empty if there are records for none of them.
    """
    rows_by_preset = {preset: _rows_at(preset, results) for preset in PRESETS}
    table = [["the paper claims", "here", "paper", "ours", "seeds"]]
    any_measured = False
    any_medium = False
    for claim in CLAIMS:
        # the first size at which both rows were run
        for preset, rows in rows_by_preset.items():
            missing = [name.partition("/")[2] for name in (claim.row, claim.other) if name not in rows]
            if not missing:
                any_medium = any_medium or preset == "medium"
                break
        if missing:
            table.append([claim.says, f"not run: {', '.join(missing)}", _printed(claim), "–", "–"])
            continue
        any_measured = True
        found = difference(_values(rows[claim.row]), _values(rows[claim.other]))
        seeds = f"{found.seeds[0]}, {found.seeds[1]}"
        table.append([claim.says, verdict(claim, found), _printed(claim), str(found), seeds])
    if not any_measured:
        return ""
    sizes = "preset `small`"
    if any_medium:
        sizes = "preset `small`, of trackers `medium`"
    return (
        "## What the paper claims, and what we find\n\n"
        "By how many percentage points the first is above the second; on Rot-OTB, of success. Ours at the "
        f"{sizes}: narrow networks, small images and few epochs, where the paper's are large; with "
        "95 % intervals over seeds. Where the paper has several β, the one that it reports.\n\n"
        f"{markdown_table(table, left=2)}\n"
    )


def _rows_at(preset: str, results: Path) -> dict[str, Row]:
    """Return the rows of all claims at a size, with no other change, by experiment."""
    names = {name for claim in CLAIMS for name in (claim.row, claim.other)}
    rows = {}
    for row in summarise(collect(results)):
        if row.experiment in names and row.preset == preset and not row.changes and row.tested_on == "test":
            rows[row.experiment] = row
    return rows


def _printed(claim: Claim) -> str:
    """The difference in the paper's table."""
    first, second = (_of_paper(name) for name in (claim.row, claim.other))
    return f"{first - second:+.2f}"


def _of_paper(name: str) -> float:
    printed: PaperRow = paper(name.partition("/")[0])[name]
    if math.isnan(printed.accuracy):
        return 100 * printed.success
    return printed.accuracy


def _values(row: Row) -> list[float]:
    """What each seed reached, in percent."""
    tracked = trackings(row)
    if tracked:
        return [100 * each.tests["rot-otb"].success for each in tracked]
    return [100 * record.accuracy for record in row.records]
