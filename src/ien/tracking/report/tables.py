"""Tables of trackers: scores on every test, costs, what must be beaten, and the notes below."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...report.records import Record
from ...report.rows import Row, by_preset_and_data
from ...report.tables.columns import (
    NAME_COLUMNS,
    Column,
    PaperRow,
    Table,
    counts,
    formatted,
    joined,
    paper_row,
    table_of,
    with_spread,
)
from ..data.sets import PUBLISHED_COUNTS
from .records import TITLES, Baseline, Tracked, Tracking, channel_shares, shown_test, tracking_of, trackings

__all__ = ["Trackers"]

GOT10K, OTB = PUBLISHED_COUNTS
PAPERS_TEST = "rot-otb"
STILL = "box that never moves"
MEASURES = (
    "success: area under the success curve; precision: share of frames with a centre error of at most 20 px; "
    "prec. AUC: area under the precision curve up to 50 px, since the paper speaks of areas; angle error: "
    "mean angle between predicted and true orientation; all are means over frames, then sequences, ± the "
    "sample standard deviation over the seeds; errors of layers: means over the seeds",
    "MACs: of one update, the search at all scales and its correlation with all templates; channels %: over "
    "all layers, of those of the steerable twin at the same width",
    "above both: in success and in precision, with every seed, above a box that never moves and above the "
    "same network untrained",
)

NOTE_ON_HULLS = (
    "hull succ.: success of the upright box around the box rotated by the angle that was found; all other "
    "columns are of boxes that keep the ratio of their sides; the precision of both is the same"
)
NOTE_ON_HELD = (
    "held °: the angle error over frames whose centre is at most 20 px off, where the target is not lost; "
    "over whole turns, the least that templates every 90° allow is 22.5°, and 11.25° every 45°"
)
NOTE_ON_SPEED = (
    "fps: updates in a second, the median, each row measured beside whatever else ran on the machine"
)
NOTE_ON_MACHINES = (
    "speeds are not shown, since these rows were measured on several machines: the benchmarks of trackers "
    "(docs/benchmarks.md) take turns on one"
)
OPTIONAL_NOTES = {"success_hull": NOTE_ON_HULLS, "orientation_error_on_target": NOTE_ON_HELD}
"""Score that not all records have → the note on its column."""


@dataclass(frozen=True)
class Trackers:
    """How rows of trackers are shown."""

    tested_with: ClassVar[str] = "sequences"

    def tables(self, title: str, rows: Sequence[Row], paper: Mapping[str, PaperRow]) -> list[Table]:
        """Return a table for each test, one of costs, and of what must be beaten."""
        tests = _tests(rows)
        tables = []
        for test in tests:
            tables.append(_scores(title, test, rows, paper))
        tables.append(_costs(title, rows))
        # a test and the same sequences rotated share a table
        for test in tests:
            if not test.startswith("rot-"):
                together = [name for name in (test, f"rot-{test}") if name in tests]
                tables.append(_baselines(title, together, rows))
        return tables

    def notes(self, named: Sequence[tuple[str, Row]]) -> list[str]:
        """Say how trackers were measured, on how much, and which of them learnt too little."""
        counts: dict[str, None] = {}
        unbeaten = []
        for name, row in named:
            for record in row.records:
                counts |= dict.fromkeys(_counts(record))
                unbeaten += _unbeaten(name, record)
        fields = set()  # that some row has in some test
        for _, row in named:
            for test in _first(row).tests:
                fields |= {field for field in OPTIONAL_NOTES if _has(row, test, field)}
        columns = [note for field, note in OPTIONAL_NOTES.items() if field in fields]
        speed = NOTE_ON_SPEED
        if not _on_one_machine([row for _, row in named]):
            speed = NOTE_ON_MACHINES
        return [*MEASURES, speed, *columns, *counts, *unbeaten]


def _tests(rows: Sequence[Row]) -> list[str]:
    """Return all tests of the rows, the published ones first."""
    tests: dict[str, None] = {}
    for row in rows:
        tests |= dict.fromkeys(_first(row).tests)
    return sorted(tests, key=lambda test: test not in TITLES)


def _first(row: Row) -> Tracking:
    """Return the scores of the first seed; all seeds are tested on the same sequences."""
    return trackings(row)[0]


def _scores(title: str, test: str, rows: Sequence[Row], paper: Mapping[str, PaperRow]) -> Table:
    # from a score of one run to the cell of a row
    def spread(score: Callable[[Tracked], float]) -> Callable[[Row], str]:
        return lambda row: with_spread([score(of.tests[test]) for of in trackings(row)], ".3f")

    def mean(score: Callable[[Tracked], float]) -> Callable[[Row], float]:
        return lambda row: statistics.fmean(score(of.tests[test]) for of in trackings(row))

    def is_above_both(row: Row) -> str:
        for of in trackings(row):  # every seed must be
            if of.not_above(test):
                return "no"
        return "yes"

    tested = [row for row in rows if test in _first(row).tests]  # rows of a demo have other tests
    hull_columns = []
    if any(_has(row, test, "success_hull") for row in tested):
        hull_columns.append(Column("hull succ.", spread(lambda score: score.success_hull)))
    columns = [
        *NAME_COLUMNS,
        Column("success", spread(lambda score: score.success)),
        *hull_columns,
        Column("precision", spread(lambda score: score.precision)),
        Column("prec. AUC", mean(lambda score: score.precision_auc), ".3f"),
    ]
    if test.startswith("rot-"):
        columns.append(Column("angle error °", mean(lambda score: score.orientation_error), ".1f"))
        if any(_has(row, test, "orientation_error_on_target") for row in tested):
            columns.append(Column("held °", mean(lambda score: score.orientation_error_on_target), ".1f"))
    else:
        columns.append(Column("above both", is_above_both))
    if test == PAPERS_TEST:  # the only one that the paper prints
        columns.append(Column("paper succ.", lambda row: _printed(row, paper).success, ".2f"))
        columns.append(Column("paper prec.", lambda row: _printed(row, paper).precision, ".2f"))
    return table_of(f"{title}Success and precision on {shown_test(test)}", tested, columns)


def _has(row: Row, test: str, field: str) -> bool:
    """Whether a run of the row has a score that older records, and plain SiamFC, lack."""
    return any(not math.isnan(getattr(of.tests[test], field)) for of in trackings(row))


def _printed(row: Row, paper: Mapping[str, PaperRow]) -> PaperRow:
    return paper_row(row, paper) or PaperRow()


def _channels(row: Row) -> str:
    return joined(formatted(100 * share, ".0f") for share in channel_shares(row))


def _costs(title: str, rows: Sequence[Row]) -> Table:
    columns = [
        *NAME_COLUMNS,
        Column("channels %", _channels),
        Column("params", counts(lambda record: record.parameters)),
        Column("MACs", counts(lambda record: record.macs)),
    ]
    if _on_one_machine(rows):
        columns.append(Column("fps", lambda row: row.images_per_second, ".1f"))
    return table_of(f"{title}Cost of an update", rows, columns)


def _on_one_machine(rows: Sequence[Row]) -> bool:
    """Whether the speeds of all rows may be compared."""
    machines: set[str] = set()
    for row in rows:
        machines.update(record.machine for record in row.records)
    return len(machines) == 1


def _baselines(title: str, tests: Sequence[str], rows: Sequence[Row]) -> Table:
    """Show what must be beaten on a test, and on the same sequences rotated."""
    header = ["row", "preset", "data"]
    for test in tests:
        header += [f"{shown_test(test)} success", f"{shown_test(test)} precision"]
    tested = [row for row in rows if tests[0] in _first(row).tests]
    lines: list[list[str]] = []
    for (preset, data), alike in by_preset_and_data(tested).items():
        every: list[Tracking] = []
        for row in alike:
            every += trackings(row)
        # a box that never moves has the same scores on the same data, whatever the row
        still = _mean_scores([of.still for of in every], tests)
        lines.append([STILL, preset, data, *still])
        for row in alike:
            untrained = _mean_scores([of.untrained for of in trackings(row)], tests)
            lines.append([f"{row.label}, untrained", preset, data, *untrained])
    what = f"{title}What must be beaten: a box that never moves, and each network untrained"
    return Table(what, header, lines)


def _mean_scores(runs: Sequence[Mapping[str, Baseline]], tests: Sequence[str]) -> list[str]:
    """Write the mean success and precision of runs on each test."""
    cells = []
    for test in tests:
        successes, precisions = zip(*(run[test] for run in runs), strict=True)
        cells.append(formatted(statistics.fmean(successes), ".3f"))
        cells.append(formatted(statistics.fmean(precisions), ".3f"))
    return cells


def _unbeaten(name: str, record: Record) -> list[str]:
    """Say where a tracker does not beat a baseline; rotated tests do not count."""
    tracking = tracking_of(record)
    assert tracking is not None
    notes = []
    for test in tracking.tests:
        unbeaten = tracking.not_above(test)
        if unbeaten and not test.startswith("rot-"):
            where = f"{name} seed {record.seed} on {shown_test(test)}"
            notes.append(f"{where} is not above {' and '.join(unbeaten)}")
    return notes


def _counts(record: Record) -> list[str]:
    """Say how many sequences there are, and that a part is not the whole."""
    tracking = tracking_of(record)
    assert tracking is not None
    notes = []
    for test, score in tracking.tests.items():
        note = f"{shown_test(test)}: {score.sequences} sequences with {score.frames:,} frames"
        if "otb" in test and score.sequences < OTB:
            note += f", a subset: the whole has {OTB}"
        notes.append(note)
    if record.data == "got10k" and record.train < GOT10K:
        notes.append(
            f"trained on {record.train:,} sequences in the layout of GOT-10k, which has {GOT10K:,}: "
            f"this is not training on GOT-10k"
        )
    return notes
