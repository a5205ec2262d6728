"""What the paper claims, beside what our runs say: a line for each claim.

A claim compares two rows of the paper's tables. Ours are compared over their seeds: the difference
of the means, with the 95 % interval of Student's t (equal variances). With one seed there is no
interval, and nothing is decided. Claims about speed are read from the recorded benchmarks.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from .._text import markdown_table
from ..measuring.intervals import student_95
from ..report import PaperRow, collect, summarise
from ..report.rows import Row
from ..report.tables.agreement import worst_error
from ..tracking.report.records import Tracked, trackings
from .catalogue import config, paper

__all__ = [
    "CLAIMS",
    "MARGIN",
    "SPEED_CLAIMS",
    "Claim",
    "Difference",
    "SpeedClaim",
    "claims_section",
    "difference",
    "speed_verdict",
    "verdict",
]

Score = Literal["accuracy", "success", "precision", "hull", "equivariance"]


class Claim(NamedTuple):
    """That one row is better than another, or as good."""

    says: str
    row: str
    other: str
    at_par: bool = False
    """Whether the paper only says that the row is as good as the other."""
    score: Score = "accuracy"
    """What is compared: hull is the success of the hull of the rotated box, and equivariance -log10
    of the worst layer's relative error."""


class SpeedClaim(NamedTuple):
    """That one network is faster than another."""

    says: str
    part: str
    """Of ``benchmarks/measured.json``."""
    what: str
    """The ratio of the speeds, as it is called there."""


MARGIN = 0.5
"""Percentage points by which a row that is at par may be below the other."""
LEVEL = 0.05
"""Speeds that differ by less than this share are level."""


def _tim(says: str, row: str, other: str, at_par: bool = False, score: Score = "accuracy") -> Claim:
    """A claim about two rows of Rot-TIM or R2-TIM."""
    table = "rot-tim"
    if "-r4r-" in row:
        table = "r2-tim"
    return Claim(says, f"{table}/{row}", f"{table}/{other}", at_par, score)


def _error(title: str, row: str, other: str) -> Claim:
    """That the loss makes a network of TIM equivariant."""
    return _tim(f"{title}, equivariance: {ERROR_BELOW}", row, other, score="equivariance")


def _otb(score: Score, says: str, row: str, other: str, at_par: bool = False) -> Claim:
    """A claim about two trackers on Rot-OTB."""
    return Claim(f"Rot-OTB, {score}: {says}", f"tracking/{row}", f"tracking/{other}", at_par, score)


ERROR_BELOW = "IEN's error is below CNN-aug's"
CLAIMS = (
    Claim("Rot-MNIST: CNN-aug is above CNN", "rot-mnist/cnn-aug", "rot-mnist/cnn"),
    Claim("Rot-MNIST: IEN is at par with E2CNN", "rot-mnist/ien-r4", "rot-mnist/e2cnn", at_par=True),
    Claim("Rot-MNIST: IEN is above CNN-aug", "rot-mnist/ien-r4", "rot-mnist/cnn-aug"),
    Claim("Rot-MNIST: Het-IEN loses nothing", "rot-mnist/het-ien", "rot-mnist/ien-r4", at_par=True),
    Claim(
        f"Rot-MNIST, equivariance: {ERROR_BELOW}",
        "rot-mnist/ien-r4",
        "rot-mnist/cnn-aug",
        score="equivariance",
    ),
    _tim("ResNet18, R4: CNN-aug is above CNN", "resnet18-r4-cnn-aug", "resnet18-r4-cnn"),
    _tim("ResNet18, R8: CNN-aug is above CNN", "resnet18-r8-cnn-aug", "resnet18-r8-cnn"),
    _tim("VGG, R4: CNN-aug is above CNN", "vgg-r4-cnn-aug", "vgg-r4-cnn"),
    _tim("VGG, R8: CNN-aug is above CNN", "vgg-r8-cnn-aug", "vgg-r8-cnn"),
    # the paper reports the best of three β in each case: that one is meant here
    _tim("ResNet18, R4: IEN is above E2CNN", "resnet18-r4-ien-beta0.01", "resnet18-r4-e2cnn"),
    _tim("ResNet18, R8: IEN is above E2CNN", "resnet18-r8-ien-beta0.1", "resnet18-r8-e2cnn"),
    _tim("VGG, R4: IEN is above E2CNN", "vgg-r4-ien-beta0.1", "vgg-r4-e2cnn"),
    _tim("VGG, R8: IEN is above E2CNN", "vgg-r8-ien-beta0.01", "vgg-r8-e2cnn"),
    _tim("ResNet18, R4: CNN-aug is above E2CNN", "resnet18-r4-cnn-aug", "resnet18-r4-e2cnn"),
    _tim("ResNet18, R8: CNN-aug is above E2CNN", "resnet18-r8-cnn-aug", "resnet18-r8-e2cnn"),
    _error("ResNet18, R4", "resnet18-r4-ien-beta0.1", "resnet18-r4-cnn-aug"),
    _error("ResNet18, R8", "resnet18-r8-ien-beta0.1", "resnet18-r8-cnn-aug"),
    _error("VGG, R4", "vgg-r4-ien-beta0.1", "vgg-r4-cnn-aug"),
    _error("VGG, R8", "vgg-r8-ien-beta0.1", "vgg-r8-cnn-aug"),
    _tim("ResNet18, R4R: CNN-aug is above CNN", "resnet18-r4r-cnn-aug", "resnet18-r4r-cnn"),
    _tim("VGG, R4R: CNN-aug is above CNN", "vgg-r4r-cnn-aug", "vgg-r4r-cnn"),
    _tim("ResNet18, R4R: CNN-aug is above E2CNN", "resnet18-r4r-cnn-aug", "resnet18-r4r-e2cnn"),
    _tim("ResNet18, R4R: IEN is above E2CNN", "resnet18-r4r-ien-beta0.01", "resnet18-r4r-e2cnn"),
    _tim("VGG, R4R: E2CNN is above IEN", "vgg-r4r-e2cnn", "vgg-r4r-ien-beta0.01"),
    _error("ResNet18, R4R", "resnet18-r4r-ien-beta0.1", "resnet18-r4r-cnn-aug"),
    _error("VGG, R4R", "vgg-r4r-ien-beta0.1", "vgg-r4r-cnn-aug"),
    # with over 30 % fewer channels
    _tim(
        "ResNet18: Het-IEN R4-2-1 is at par with IEN R4",
        "resnet18-r4-2-1-het-ien",
        "resnet18-r4-ien-beta0.1",
        at_par=True,
    ),
    _tim(
        "ResNet18: Het-IEN R8-4-2-1 is at par with IEN R8",
        "resnet18-r8-4-2-1-het-ien",
        "resnet18-r8-ien-beta0.1",
        at_par=True,
    ),
    _tim(
        "VGG: Het-IEN R4-2-1 is at par with IEN R4", "vgg-r4-2-1-het-ien", "vgg-r4-ien-beta0.1", at_par=True
    ),
    _tim(
        "VGG: Het-IEN R8-4-2 is at par with IEN R8", "vgg-r8-4-2-het-ien", "vgg-r8-ien-beta0.1", at_par=True
    ),
    _tim(
        "VGG: Het-IEN R8-4-2-1 is at par with IEN R8",
        "vgg-r8-4-2-1-het-ien",
        "vgg-r8-ien-beta0.1",
        at_par=True,
    ),
    _tim("ResNet18: Het-IEN R4-2-1 is above E2CNN", "resnet18-r4-2-1-het-ien", "resnet18-r4-e2cnn"),
    _tim("ResNet18: Het-IEN R8-4-2-1 is above E2CNN", "resnet18-r8-4-2-1-het-ien", "resnet18-r8-e2cnn"),
    _tim("VGG: Het-IEN R8-4-2 is above E2CNN", "vgg-r8-4-2-het-ien", "vgg-r8-e2cnn"),
    Claim(
        "Scale-MNIST 28: IEN is at par with SESN",
        "scale-mnist/28-ien",
        "scale-mnist/28-sesn-vector",
        at_par=True,
    ),
    Claim("Scale-MNIST 56: IEN is above SESN", "scale-mnist/56-ien", "scale-mnist/56-sesn-vector"),
    Claim("STL-10: IEN is above SESN", "stl10/ien", "stl10/sesn-a"),
    _otb("success", "RE-SiamFC is above SiamFC", "re-siamfc", "siamfc"),
    _otb("success", "IEN-SiamFC is above RE-SiamFC", "ien-siamfc", "re-siamfc"),
    _otb("success", "Het-SiamFC is at par with IEN-SiamFC", "het-siamfc", "ien-siamfc", at_par=True),
    _otb("hull", "RE-SiamFC is above SiamFC", "re-siamfc", "siamfc"),
    _otb("hull", "IEN-SiamFC is above RE-SiamFC", "ien-siamfc", "re-siamfc"),
    _otb("precision", "RE-SiamFC is above SiamFC", "re-siamfc", "siamfc"),
    _otb("precision", "IEN-SiamFC is above RE-SiamFC", "ien-siamfc", "re-siamfc"),
    _otb("precision", "Het-SiamFC is at par with IEN-SiamFC", "het-siamfc", "ien-siamfc", at_par=True),
)
"""In the order of the paper."""
SPEED_CLAIMS = (
    SpeedClaim(
        "IEN-SiamFC is faster than RE-SiamFC",
        "trackers",
        "updates/s of ien-siamfc / of re-siamfc, 2 threads",
    ),
    SpeedClaim(
        "Het-SiamFC is faster than RE-SiamFC",
        "trackers",
        "updates/s of het-siamfc / of re-siamfc, 2 threads",
    ),
    SpeedClaim(
        "Het-IEN R4-2-1 is faster than IEN R4 (Rot-MNIST, full width)",
        "inference",
        "inference, cnn6, 128 first channels, 64 images, R4 / R4-2-1",
    ),
)

PRESETS = ("medium", "small")
"""Sizes of our runs, the one to prefer first; only trackers have medium."""


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
    return Difference(mean, student_95(freedom) * error, seeds)


def verdict(claim: Claim, found: Difference) -> str:
    """Say whether a claim holds in our runs.

    A row that is at par may be :data:`MARGIN` below the other: too few seeds decide nothing then.
    """
    if math.isnan(found.half_width):
        return "one seed: undecided"
    least = 0.0
    if claim.at_par:
        least = -MARGIN
    if found.mean - found.half_width > least:
        return "holds"
    if found.mean + found.half_width < least:
        return "does not hold"
    return "undecided: within the interval"


def speed_verdict(low: float, high: float) -> str:
    """Say whether a ratio of speeds is above 1, from its quartiles."""
    if low > 1 + LEVEL:
        return "holds"
    if high < 1 + LEVEL:
        return "does not hold"
    return "undecided: within the quartiles"


def claims_section(results: Path) -> str:
    """Write the table of all claims as Markdown, from the records in a folder.

    Empty if there are records for none of them. Speeds are those of ``benchmarks/measured.json``
    beside the folder.
    """
    rows_by_preset = {preset: _rows_at(preset, results) for preset in PRESETS}
    table = [["the paper claims", "here", "paper", "ours", "seeds"]]
    any_measured = False
    any_medium = False
    for claim in CLAIMS:
        says = f"{claim.says}{_betas(claim)}"
        # the first size at which both rows were run
        for preset, rows in rows_by_preset.items():
            missing = _missing(claim, rows)
            if not missing:
                any_medium = any_medium or preset == "medium"
                break
        if missing:
            table.append([says, f"not run: {', '.join(missing)}", _printed(claim), "–", "–"])
            continue
        any_measured = True
        found = difference(_values(rows[claim.row], claim.score), _values(rows[claim.other], claim.score))
        seeds = f"{found.seeds[0]}, {found.seeds[1]}"
        table.append([says, verdict(claim, found), _printed(claim), f"{found}{_unit(claim)}", seeds])
    if not any_measured:
        return ""
    table += _speeds(results.parent / "benchmarks" / "measured.json")
    sizes = "preset `small`"
    if any_medium:
        sizes = "preset `small`, of trackers `medium`"
    return (
        "## What the paper claims, and what we find\n\n"
        f"{_counted(table[1:])}\n\n"
        f"- **Size:** ours are at the {sizes}: narrow networks, small images and few epochs, where the "
        "paper's are large.\n"
        "- **Numbers:** by how many percentage points of accuracy the first network is above the second; on "
        "Rot-OTB, of success, of success with the hull of the rotated box, or of precision. Ours have 95 % "
        "intervals over seeds. Where the paper has several β, it is the one that the paper reports.\n"
        "- **Holds** if the whole interval is above 0, **does not hold** if all of it is below. *At par* "
        f"means at most {MARGIN:g} points below, so there -{MARGIN:g} stands in place of 0.\n"
        "- **Equivariance:** by how many powers of ten the relative error of the worst layer is lower (the "
        "paper's: L_G).\n"
        "- **Speeds:** ratios with quartiles, from [the benchmarks](benchmarks.md); up to "
        f"{100 * LEVEL:g} % they are level.\n\n"
        f"{markdown_table(table, left=2)}\n"
    )


def _counted(lines: Sequence[Sequence[str]]) -> str:
    """Count the verdicts in one sentence."""
    verdicts = [says for _, says, *_ in lines]
    hold = verdicts.count("holds")
    do_not = verdicts.count("does not hold")
    one_seed = verdicts.count("one seed: undecided")
    undecided = len([says for says in verdicts if "undecided" in says])
    not_run = len(lines) - hold - do_not - undecided
    return (
        f"Of {len(lines)} claims, {hold} hold here, {do_not} do not, {undecided} are undecided "
        f"({one_seed} of them for want of a second seed), and {not_run} are not run yet."
    )


def _speeds(path: Path) -> list[list[str]]:
    """The lines of the claims about speed; none without the file of benchmarks."""
    if not path.is_file():
        return []
    measured = json.loads(path.read_text(encoding="utf-8"))
    lines = []
    for claim in SPEED_CLAIMS:
        line = [claim.says, "not measured", "–", "–", "–"]
        for found in measured.get(claim.part, {}).get("found", []):
            if found["what"] == claim.what:
                ratio = f"× {found['value']:.2f} ({found['low']:.2f}–{found['high']:.2f})"
                line = [claim.says, speed_verdict(found["low"], found["high"]), "–", ratio, "–"]
        lines.append(line)
    return lines


def _rows_at(preset: str, results: Path) -> dict[str, Row]:
    """Return the rows of all claims at a size, with no other change, by experiment."""
    names = set()
    for claim in CLAIMS:
        names |= {claim.row, claim.other}
    rows = {}
    for row in summarise(collect(results)):
        if row.experiment in names and row.preset == preset and not row.changes and row.tested_on == "test":
            rows[row.experiment] = row
    return rows


def _missing(claim: Claim, rows: dict[str, Row]) -> list[str]:
    """Name the rows of a claim that were not run, or whose records lack what is compared."""
    missing = []
    for name in (claim.row, claim.other):
        short = name.partition("/")[2]
        if name not in rows:
            missing.append(short)
        elif any(map(math.isnan, _values(rows[name], claim.score))):
            missing.append(f"{claim.score} of {short}")
    return missing


def _betas(claim: Claim) -> str:
    """Write the weights of the loss in the rows of a claim, such as `` (β = 0.1)``."""
    betas: dict[str, None] = {}
    for name in (claim.row, claim.other):
        objective = config(name, "paper").objective
        if objective.augment and objective.beta:
            betas[f"{objective.beta:g}"] = None
    if not betas:
        return ""
    return f" (β = {' and '.join(betas)})"


def _unit(claim: Claim) -> str:
    if claim.score == "equivariance":
        return " powers of ten"
    return ""


def _printed(claim: Claim) -> str:
    """The difference in the paper's tables."""
    table, _, _ = claim.row.partition("/")
    printed = paper(table)
    gain = _of_paper(printed[claim.row], claim.score) - _of_paper(printed[claim.other], claim.score)
    if claim.score == "equivariance":
        return f"{gain:+.0f}{_unit(claim)}"
    return f"{gain:+.2f}"


def _of_paper(printed: PaperRow, score: Score) -> float:
    """What the paper prints for a row, on the scale of :func:`_values`."""
    if score == "accuracy":
        return printed.accuracy
    if score == "equivariance":
        return -max(printed.exponents)
    if score == "precision":
        return 100 * printed.precision
    return 100 * printed.success  # of the box that it reports, whichever it is


def _values(row: Row, score: Score) -> list[float]:
    """What each seed reached, in percent or powers of ten; NaN where it is not known."""
    if score == "accuracy":
        return [100 * record.accuracy for record in row.records]
    if score == "equivariance":
        return [-math.log10(worst_error(record)) for record in row.records]
    return [100 * _of_tracker(of.tests["rot-otb"], row.experiment, score) for of in trackings(row)]


def _of_tracker(scores: Tracked, experiment: str, score: Score) -> float:
    if score == "precision":
        return scores.precision
    # the box of siamfc never rotates, so it is its own hull
    if score == "hull" and experiment != "tracking/siamfc":
        return scores.success_hull
    return scores.success
