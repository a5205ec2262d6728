"""Tables of trackers: from rows to scores on every test, costs, what must be beaten, and the notes below."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from ...report.records import Record, Row
from ...report.tables.cells import TEXT_COLUMNS, PaperRow, Table, figures_of, human, number, with_spread
from ..data.sets import PUBLISHED_COUNTS
from .records import TITLES, Tracked, Tracking, shown_test

__all__ = ["tracking_data", "tracking_notes", "tracking_tables"]

GOT10K, OTB = PUBLISHED_COUNTS
PAPERS_TEST = "rot-otb"
STILL = "box that never moves"
MEASURES = (
    "success: area under the success curve; precision: share of frames with a centre error of at most 20 px; "
    "prec. AUC: area under the precision curve up to 50 px, since the paper speaks of areas; angle error: "
    "mean angle between predicted and true orientation; all are means over frames, then sequences, ± the "
    "sample standard deviation over the seeds; errors of layers: means over the seeds",
    "MACs: of one update, the search at all scales and its correlation with all templates; fps: updates in a "
    "second, the median; channels %: over all layers, of those of the steerable twin at the same width",
    "above both: in success and in precision, with every seed, above a box that never moves and above the "
    "same network untrained",
)


def tracking_tables(title: str, rows: Sequence[Row], paper: Mapping[str, PaperRow]) -> list[Table]:
    """A table for each test, one of costs, and one of what must be beaten; ``title`` stands before each."""
    every = dict.fromkeys(test for row in rows for test in _of(row)[0].tests)
    tests = sorted(every, key=lambda test: test not in TITLES)  # the published ones first
    plain = [test for test in tests if not test.startswith("rot-")]
    return [
        *(_scores(title, test, rows, paper if test == PAPERS_TEST else None) for test in tests),
        _costs(title, rows),
        *(_baselines(title, [test, f"rot-{test}"], rows) for test in plain),
    ]


def tracking_notes(named: Sequence[tuple[str, Row]]) -> list[str]:
    """How trackers were measured, on how much, and which of them learnt too little; rows by their names."""
    if not named:
        return []
    notes = [*MEASURES]
    notes += dict.fromkeys(note for _, row in named for record in row.records for note in _counts(record))
    for name, row in named:
        for record in row.records:
            for test, unbeaten in _unbeaten(record).items():
                of = f"{name} seed {record.seed} on {shown_test(test)}"
                notes.append(f"{of} is not above {' and '.join(unbeaten)}")
    return notes


def tracking_data(record: Record) -> str:
    """What a tracker was trained and tested on."""
    counts = f"{record.train:,} training and {record.test:,} {record.tested_on} sequences"
    return f"{record.data}, {record.source}: {counts}"


def _scores(title: str, test: str, rows: Sequence[Row], paper: Mapping[str, PaperRow] | None) -> Table:
    turned = test.startswith("rot-")
    header = [*TEXT_COLUMNS, "success", "precision", "prec. AUC"]
    header += ["angle error °"] if turned else ["above both"]
    header += [] if paper is None else ["paper succ.", "paper prec."]
    lines = []
    for row in rows:
        if test not in _of(row)[0].tests:
            continue
        scores = [of.tests[test] for of in _of(row)]
        line = [row.label, row.preset, row.data, row.seeds]
        line += [with_spread([score.success for score in scores], ".3f")]
        line += [with_spread([score.precision for score in scores], ".3f")]
        line += [_mean(scores, "precision_auc", ".3f")]
        above = not any(of.not_above(test) for of in _of(row))
        line += [_mean(scores, "orientation_error", ".1f") if turned else ("no", "yes")[above]]
        if paper is not None:
            known = figures_of(row, paper) or PaperRow()
            line += [number(known.success, ".2f"), number(known.precision, ".2f")]
        lines.append(line)
    return Table(f"{title}Success and precision on {shown_test(test)}", header, lines)


def _costs(title: str, rows: Sequence[Row]) -> Table:
    header = [*TEXT_COLUMNS, "channels %", "params", "MACs", "fps"]
    lines = [
        [
            *(row.label, row.preset, row.data, row.seeds),
            " / ".join(f"{100 * share:.0f}" for share in row.channel_shares),
            " / ".join(dict.fromkeys(human(record.parameters) for record in row.records)),
            " / ".join(dict.fromkeys(human(record.macs) for record in row.records)),
            number(row.images_per_second, ".1f"),
        ]
        for row in rows
    ]
    return Table(f"{title}Cost of an update", header, lines)


def _baselines(title: str, tests: Sequence[str], rows: Sequence[Row]) -> Table:
    """A box that never moves has the same scores on the same data, whatever the row."""
    tests = [test for test in tests if any(test in _of(row)[0].tests for row in rows)]
    measures = [f"{shown_test(test)} {name}" for test in tests for name in ("success", "precision")]
    lines: list[list[str]] = []
    chosen = [row for row in rows if tests[0] in _of(row)[0].tests]
    for preset, data in dict.fromkeys((row.preset, row.data) for row in chosen):
        alike = [row for row in chosen if (row.preset, row.data) == (preset, data)]
        every = [of for row in alike for of in _of(row)]
        cells = [[of.still[test][k] for of in every] for test in tests for k in (0, 1)]
        lines.append([STILL, preset, data, *(number(statistics.fmean(cell), ".3f") for cell in cells)])
        for row in alike:
            cells = [[of.untrained[test][k] for of in _of(row)] for test in tests for k in (0, 1)]
            means = [number(statistics.fmean(cell), ".3f") for cell in cells]
            lines.append([f"{row.label}, untrained", preset, data, *means])
    what = f"{title}What must be beaten: a box that never moves, and each network untrained"
    return Table(what, ["row", "preset", "data", *measures], lines)


def _of(row: Row) -> list[Tracking]:
    return [record.tracking for record in row.records if record.tracking is not None]


def _mean(scores: Sequence[Tracked], name: str, form: str) -> str:
    return number(statistics.fmean(getattr(score, name) for score in scores), form)


def _unbeaten(record: Record) -> dict[str, list[str]]:
    """Test → what the tracker does not beat; those that turn do not count."""
    tracking = record.tracking
    if tracking is None:
        return {}
    tests = [test for test in tracking.tests if not test.startswith("rot-")]
    return {test: unbeaten for test in tests if (unbeaten := tracking.not_above(test))}


def _counts(record: Record) -> list[str]:
    """How many sequences there are, and that a part is not the whole."""
    assert record.tracking is not None
    notes = []
    for test, score in record.tracking.tests.items():
        part = f", a subset: the whole has {OTB}" if "otb" in test and score.sequences < OTB else ""
        notes.append(f"{shown_test(test)}: {score.sequences} sequences with {score.frames:,} frames{part}")
    if record.data == "got10k" and record.train < GOT10K:
        notes.append(
            f"trained on {record.train:,} sequences in the layout of GOT-10k, which has {GOT10K:,}: "
            f"this is not training on GOT-10k"
        )
    return notes
