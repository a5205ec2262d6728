"""What a page says first: three large numbers and one sentence."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import NamedTuple

from ..._text import short_count
from ...measuring.report import Report
from ..records import Record, read_number
from .sweeps import Sweep

__all__ = ["Headline", "Number", "compare_runs", "compare_segmenters", "describe_model", "share_text"]


class Number(NamedTuple):
    """One large number, with that of another network before it if two are compared."""

    value: str
    what: str
    before: str = ""


class Headline(NamedTuple):
    """Large numbers, and the sentence below them."""

    numbers: tuple[Number, ...]
    sentence: str


def compare_runs(sweep: Sweep, reports: Mapping[str, Report], macs: Mapping[str, float]) -> Headline | None:
    """Compare the network whose predictions change most with the one whose change least.

    Args:
        sweep: The angles or factors.
        reports: Name of each run to its report along the sweep, with accuracies.
        macs: Name of each run to its multiply-accumulates for one image.

    Returns:
        The headline; None if there are no predictions or no labels.
    """
    changing: dict[str, float] = {}
    everywhere: dict[str, float] = {}
    upright: dict[str, float] = {}
    for name, report in reports.items():
        if report.output is None or not report.accuracy:
            return None
        changing[name] = report.output.flip_rate
        everywhere[name] = statistics.fmean(report.accuracy.values())
        upright[name] = report.accuracy["identity"]
    # of runs that change equally often, the more accurate one is the better one
    order = sorted(reports, key=lambda name: (-changing[name], everywhere[name]))
    worst, best = order[0], order[-1]
    moved = {"rotation": "rotated by any angle", "scale": "scaled"}[sweep.kind]
    places = {"rotation": "angles", "scale": "scales"}[sweep.kind]

    numbers = []
    for shares, what in (
        (changing, f"of the predictions change when the image is {moved}"),
        (everywhere, f"of the images are classified right, over all {places}"),
        (upright, "of the images are classified right if they are not moved"),
    ):
        before = share_text(shares[worst]) if worst != best else ""
        numbers.append(Number(share_text(shares[best]), what, before))
    if worst == best:
        return Headline(
            tuple(numbers),
            f"When the image is {moved}, {best} changes {share_text(changing[best])} of its predictions.",
        )
    sentence = (
        f"When the image is {moved}, {worst} changes {share_text(changing[worst])} of its predictions and "
        f"{best} {share_text(changing[best])}"
    )
    return Headline(tuple(numbers), f"{sentence}; {_costs(worst, best, macs)}.")


def compare_segmenters(records: Mapping[str, Record]) -> Headline:
    """Compare the network whose masks change most under its group with the one whose change least.

    Args:
        records: Name of each run to its record, which holds Dice under every element.
    """

    def score(name: str, field: str) -> float:
        return read_number(records[name].content, field)

    # of runs that are equally consistent, the better one is the one with the higher Dice
    order = sorted(records, key=lambda name: (score(name, "consistency"), score(name, "dice_under_group")))
    worst, best = order[0], order[-1]
    numbers = []
    for field, what in (
        ("consistency", "Dice between the mask of a moved image and the moved mask of the image"),
        ("dice_under_group", "Dice with the true masks, over all elements of the group"),
        ("dice", "Dice with the true masks of the images as they are, not moved"),
    ):
        before = f"{score(worst, field):.3f}" if worst != best else ""
        numbers.append(Number(f"{score(best, field):.3f}", what, before))
    sentence = f"A mask that moves with its image has a Dice of 1; {best} has {numbers[0].value}"
    if worst == best:
        return Headline(tuple(numbers), f"{sentence}.")
    macs = {name: record.macs for name, record in records.items()}
    costs = _costs(worst, best, macs)
    return Headline(tuple(numbers), f"{sentence} and {worst} {numbers[0].before}; {costs}.")


def _costs(worst: str, best: str, macs: Mapping[str, float]) -> str:
    if macs[worst] == macs[best]:
        return f"each costs {short_count(macs[best])} multiply-accumulates an image"
    return f"an image costs {short_count(macs[worst])} and {short_count(macs[best])} multiply-accumulates"


def describe_model(sweep: Sweep, report: Report, findings: int | None) -> Headline | None:
    """Say how often the predictions of one model change, and how many operations are in the way.

    Args:
        sweep: The angles or factors.
        report: Along the sweep.
        findings: How many operations the doctor names; None if it could not follow the model.

    Returns:
        The headline; None if the model makes no predictions for whole images.
    """
    if report.output is None:
        return None
    moved = {"rotation": "rotated by any angle", "scale": "scaled"}[sweep.kind]
    places = {"rotation": "angles", "scale": "scales"}[sweep.kind]
    changing = report.output.flip_rate
    numbers = [
        Number(share_text(changing), f"of the predictions change when the image is {moved}"),
        Number(share_text(report.output.agreement), f"of the images keep their prediction at all {places}"),
    ]
    if findings is not None:
        what = "operations make exact equivariance impossible"
        if findings == 1:
            what = "operation makes exact equivariance impossible"
        numbers.append(Number(str(findings), what))
    sentence = f"When an image is {moved}, its prediction changes in {share_text(changing)} of all cases."
    if changing == 0:
        sentence = f"No prediction changed when the images were {moved}."
    return Headline(tuple(numbers), sentence)


def share_text(share: float) -> str:
    """Write a share in percent, with a digit after the point where it is small.

    >>> share_text(0.614), share_text(0.0123), share_text(0.0), share_text(0.0001)
    ('61 %', '1.2 %', '0 %', '< 0.1 %')
    """
    percent = 100 * share
    if 0 < percent < 0.1:
        return "< 0.1 %"
    if 0 < percent < 9.95:
        return f"{percent:.1f} %"
    return f"{percent:.0f} %"
