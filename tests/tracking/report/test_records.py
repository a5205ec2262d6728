"""Scores of trackers in records: what is read, what is wrong with a bad one, and means over seeds."""

import json
import math
import re

import numpy as np
import pytest

from ien.report import collect, read, summarise
from ien.tracking.report.records import Tracked, averaged, tracking_of, trackings
from tests.helpers.records import content, write_records
from tests.helpers.trackers import LENGTHS, STILL, UNTRAINED, record


def test_a_record_of_a_tracker_is_read_and_a_classifier_has_no_scores(tmp_path) -> None:
    made = record("het-siamfc")
    (found,) = collect(write_records(tmp_path / "tracker", made))
    tracking, source = tracking_of(found), made["tracking"]
    assert math.isnan(found.accuracy) and list(tracking.tests) == ["otb", "rot-otb"]
    plain, rotated = tracking.tests.values()
    assert plain.success == source["otb"]["success"] and rotated.precision == source["rot-otb"]["precision"]
    for name in ("by_angle", "by_orientation"):
        assert [list(one) for one in getattr(rotated, name)] == source["rot-otb"][name]
    assert list(rotated.success_curve) == source["rot-otb"]["success_curve"]
    assert plain.by_angle == plain.by_orientation == () and math.isnan(plain.orientation_error)
    assert (plain.sequences, plain.frames) == (len(LENGTHS), sum(LENGTHS.values()))
    assert tuple(tracking.still["otb"]) == STILL["otb"]
    assert math.isnan(plain.success_hull)  # the record is from before hulls were scored
    assert tuple(tracking.untrained["rot-otb"]) == UNTRAINED["rot-otb"]
    (row,) = summarise(collect(write_records(tmp_path / "classifier", content())))
    assert tracking_of(row.records[0]) is None and trackings(row) == [] and row.has_accuracy


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tracking": {"still": {}, "untrained": {}}}, "tracking should hold the scores of a test"),
        ({"tracking__otb__success": 1.2}, "success should be from 0 to 1; it is 1.2"),
        ({"tracking__otb__success_hull": 1.2}, "success_hull should be from 0 to 1; it is 1.2"),
        ({"tracking__otb__precision": None}, "precision should be from 0 to 1; it is nan"),
        ({"tracking__otb__success_curve": [0.5] * 20}, "success_curve should have 21 values; it has 20"),
        ({"tracking__otb__precision_curve": [2] * 51}, "precision_curve should be from 0 to 1; it is 2.0"),
        ({"tracking__rot_otb__by_angle": [[1, 2]]}, "by_angle should hold degrees, overlap and frames"),
        ({"tracking__rot_otb__by_orientation": [[0, 1.5, 2]]}, "overlap should be from 0 to 1; it is 1.5"),
        ({"tracking__still": {"otb": {}}}, "it has no still.otb.success"),
        ({"tracking__otb__sequences": {"Man": {}}}, "it has no Man.frames"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_damaged_record_is_named_with_the_remedy(tmp_path, fields, message) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(record(**fields)))
    expected = rf"^{re.escape(str(path))} is damaged \(.*{re.escape(message)}.*delete it and run"
    with pytest.raises(ValueError, match=expected):
        tracking_of(read(path))


def test_the_mean_of_several_seeds_has_their_mean_curves_and_bins(tmp_path) -> None:
    made = [record("cnn4-siamfc", seed) for seed in (1, 2, 3)]
    (row,) = summarise(collect(write_records(tmp_path, *made)))
    scores: list[Tracked] = [tracking.tests["rot-otb"] for tracking in trackings(row)]
    mean = averaged(scores)
    assert np.allclose(mean.success_curve, np.mean([score.success_curve for score in scores], axis=0))
    assert math.isclose(mean.success, np.mean([score.success for score in scores]))
    assert [one.degrees for one in mean.by_orientation] == [15.0 * k for k in range(24)]
    assert mean.by_angle[-1].degrees > 360 and mean.frames == scores[0].frames
    for name in ("by_orientation", "by_angle"):
        expected = np.mean([getattr(score, name) for score in scores], axis=0)
        assert np.allclose(getattr(mean, name), expected)
