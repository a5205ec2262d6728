"""Rows: what is averaged, what is kept apart, and in which order they stand."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ien.report import Row, collect, summarise
from tests.helpers.records import LAYERS, content, write_records

ORDER = ["rot-mnist/cnn", "rot-mnist/cnn-aug", "rot-mnist/e2cnn", "rot-mnist/ien-r4"]


def rows_of(folder: Path, *records: dict[str, Any]) -> list[Row]:
    return summarise(collect(write_records(folder, *records)), ORDER)


def test_mean_and_spread_are_those_of_numpy(tmp_path) -> None:
    records = [content(seed=seed) for seed in (1, 2, 3, 5)]
    (row,) = rows_of(tmp_path, *records)
    accuracy = 100 * np.array([record["accuracy"] for record in records])
    assert np.allclose(row.accuracy, (accuracy.mean(), accuracy.std(ddof=1)), rtol=1e-13)
    copies = np.mean([100 * record["accuracy_with_copies"] for record in records])
    assert abs(row.accuracy_with_copies - copies) < 1e-12
    assert row.images_per_second == np.median([record["images_per_second"] for record in records])
    for name in LAYERS:
        for which in ("raw", "relative"):
            mean = np.mean([record["layers"][name][which] for record in records])
            assert abs(getattr(row.layer(name), which) - mean) <= 1e-15 * mean
    assert row.seeds == "1–3, 5" and row.has_accuracy
    (alone,) = rows_of(tmp_path / "one seed", content())
    assert alone.accuracy == (100 * content()["accuracy"], None)


def test_rows_follow_the_order_and_unknown_ones_come_last(tmp_path) -> None:
    names = ["zeta", "ien-r4", "another", "cnn", "e2cnn", "cnn-aug"]
    rows = rows_of(tmp_path, *map(content, names))
    assert [row.label for row in rows] == ["cnn", "cnn-aug", "e2cnn", "ien-r4", "another", "zeta"]


@pytest.mark.parametrize(
    ("other", "label", "data"),
    [
        ({"data__source": "embedded-5k"}, "ien-r4", "embedded-5k"),
        ({"data__tested_on": "validation"}, "ien-r4", "generated, validation"),
        ({"config__preset": "smoke"}, "ien-r4", "generated"),
        ({"changes": {"b": [1], "a": "x"}}, "ien-r4 (a=x, b=[1])", "generated"),
    ],
    ids=["source", "tested_on", "preset", "changes"],
)
def test_what_differs_in_kind_is_never_averaged(tmp_path, other, label, data) -> None:
    rows = rows_of(tmp_path, content(seed=1), content(seed=2), content(seed=3, **other))
    assert sorted(row.seeds for row in rows) == ["1–2", "3"]
    (alone,) = [row for row in rows if row.seeds == "3"]
    assert (alone.label, alone.data) == (label, data)


def test_the_newest_record_of_a_seed_counts(tmp_path) -> None:
    new = content(seed=2, accuracy=0.5, finished="2026-11-17T00:00:00+02:00")
    old = content(seed=2, accuracy=0.9, finished="2026-11-16T21:59:59+00:00")
    (row,) = rows_of(tmp_path, new, old, content(seed=1, accuracy=0.7))
    assert [record.accuracy for record in row.records] == [0.7, 0.5]
    assert [record.accuracy for record in row.superseded] == [0.9]


def test_a_copy_of_a_record_is_not_a_second_one(tmp_path) -> None:
    (row,) = rows_of(tmp_path, *[content(layers__conv1__raw=math.nan)] * 2)
    assert len(row.records) == 1 and row.superseded == ()


def test_a_seed_that_lacks_a_value_has_no_mean(tmp_path) -> None:
    blank = content(seed=2, layers__conv2__relative=None, images_per_second=None)
    del blank["layers"]["conv6"]
    (row,) = rows_of(tmp_path, content(seed=1), blank)
    assert [math.isnan(row.layer(name).relative) for name in LAYERS] == [False, True, *[False] * 3, True]
    assert row.images_per_second == content(seed=1)["images_per_second"]
