"""The headline of a page: its numbers are those of the reports."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import ien
from ien.measuring.layer_report import OutputReport
from ien.measuring.report import Report
from ien.report.page.headline import compare_runs, compare_segmenters, describe_model
from ien.report.page.sweeps import sweeps_of
from tests.helpers.reports import layer, report


def labelled(flip_rate: float, agreement: float, **accuracy: float) -> Report:
    output = OutputReport(0.1, flip_rate, {}, agreement)
    shares = {"identity": accuracy["upright"], "90°": accuracy["rotated"]}
    return replace(report(c1=layer({90.0: 0.1})), output=output, accuracy=shares)


SWEEP = sweeps_of([ien.rotation(4)])[0]
ORDINARY = labelled(0.614, 0.1, upright=0.976, rotated=0.124)
TIED = labelled(0.0, 1.0, upright=0.94, rotated=0.94)


def test_the_network_that_changes_most_is_compared_with_the_one_that_changes_least() -> None:
    copies = labelled(0.1, 0.8, upright=0.95, rotated=0.9)
    reports = {"CNN + rotated copies": copies, "ordinary CNN": ORDINARY, "equivariant (tied)": TIED}
    found = compare_runs(SWEEP, reports, dict.fromkeys(reports, 14_100_000.0))
    assert [(number.before, number.value) for number in found.numbers] == [
        ("61 %", "0 %"),
        ("55 %", "94 %"),
        ("98 %", "94 %"),
    ]
    assert found.sentence == (
        "When the image is rotated by any angle, ordinary CNN changes 61 % of its predictions and "
        "equivariant (tied) 0 %; "
        "each costs 14.1 M multiply-accumulates an image."
    )


def segmenter(consistency: float, dice: float) -> Any:
    content = {"consistency": consistency, "dice_under_group": dice / 2, "dice": dice}
    return SimpleNamespace(content=content, macs=2_000_000.0)


def test_the_segmenter_whose_masks_move_with_the_image_is_compared_with_the_one_whose_do_not() -> None:
    records = {"tied": segmenter(1.0, 0.8), "free": segmenter(0.5, 0.9), "augmented": segmenter(0.75, 0.85)}
    found = compare_segmenters(records)
    shown = [(number.before, number.value) for number in found.numbers]
    assert shown == [("0.500", "1.000"), ("0.450", "0.400"), ("0.900", "0.800")]
    assert found.sentence == (
        "A mask that moves with its image has a Dice of 1; tied has 1.000 and free 0.500; "
        "each costs 2 M multiply-accumulates an image."
    )
    alone = compare_segmenters({"tied": records["tied"]})
    assert alone.sentence == "A mask that moves with its image has a Dice of 1; tied has 1.000."
    assert {number.before for number in alone.numbers} == {""}


def test_one_run_has_nothing_before_its_numbers() -> None:
    found = compare_runs(SWEEP, {"ordinary CNN": ORDINARY}, {"ordinary CNN": 1e6})
    assert [(number.before, number.value) for number in found.numbers] == [
        ("", "61 %"),
        ("", "55 %"),
        ("", "98 %"),
    ]


@pytest.mark.parametrize("findings", [None, 1, 6])
def test_a_model_is_described_by_its_predictions_and_the_doctor(findings) -> None:
    found = describe_model(SWEEP, ORDINARY, findings)
    values = [number.value for number in found.numbers]
    assert values == ["61 %", "10 %"] + ([] if findings is None else [str(findings)])
    assert "No prediction changed" in describe_model(SWEEP, TIED, findings).sentence


def test_without_predictions_there_is_no_headline() -> None:
    maps = report(c1=layer({90.0: 0.1}))
    assert describe_model(SWEEP, maps, 0) is None
    assert compare_runs(SWEEP, {"a": maps}, {"a": 1.0}) is None
