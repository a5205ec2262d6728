"""Quantiles and intervals as in scipy."""

from __future__ import annotations

import pytest

from ien.measuring.intervals import NORMAL_95, STUDENT_95, interval_of_share, student_95

stats = pytest.importorskip("scipy.stats")


@pytest.mark.parametrize("freedom", range(1, len(STUDENT_95) + 1))
def test_quantiles_are_those_of_student(freedom: int) -> None:
    assert student_95(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), abs=5e-5)


def test_with_many_degrees_of_freedom_the_quantile_is_that_of_a_normal_distribution() -> None:
    assert pytest.approx(stats.norm.ppf(0.975), abs=1e-6) == NORMAL_95
    assert student_95(1000) == NORMAL_95


@pytest.mark.parametrize(("hits", "count"), [(0, 7), (3, 7), (7, 7), (950, 1000)])
def test_the_interval_of_a_share_is_wilsons(hits: int, count: int) -> None:
    expected = stats.binomtest(hits, count).proportion_ci(0.95, method="wilson")
    found = interval_of_share(hits / count, count)
    assert found == pytest.approx((expected.low, expected.high), abs=1e-6)
