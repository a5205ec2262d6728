"""The table of claims: intervals as in scipy, verdicts, and the difference that the paper prints."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from ien.experiments import names, paper
from ien.experiments.claims import CLAIMS, NORMAL, STUDENT, Claim, claims_section, difference, verdict
from tests.helpers.trackers import record

stats = pytest.importorskip("scipy.stats")
RESULTS = Path(__file__).parents[2] / "results"


def test_quantiles_are_those_of_student() -> None:
    freedom = np.arange(1, len(STUDENT) + 1)
    assert np.allclose(STUDENT, stats.t.ppf(0.975, freedom), atol=5e-3)
    assert pytest.approx(stats.norm.ppf(0.975), abs=1e-3) == NORMAL


@pytest.mark.parametrize("seeds", [(2, 2), (3, 3), (3, 5), (9, 8)])
def test_the_interval_is_that_of_a_t_test(seeds) -> None:
    rng = np.random.default_rng(sum(seeds))
    a, b = rng.normal(98, 0.3, seeds[0]), rng.normal(97, 0.2, seeds[1])
    found = difference(a.tolist(), b.tolist())
    low, high = stats.ttest_ind(a, b).confidence_interval(0.95)
    exact = sum(seeds) - 2 <= len(STUDENT)
    assert found.mean == pytest.approx((low + high) / 2)
    assert found.half_width == pytest.approx((high - low) / 2, rel=5e-3 if exact else 0.1)


@pytest.mark.parametrize(
    ("ours", "others", "above", "at_par"),
    [
        ([98.0, 98.2, 98.1], [97.0, 97.1, 97.2], "holds", "holds"),
        ([97.0, 97.1, 97.2], [98.0, 98.2, 98.1], "does not hold", "does not hold"),
        ([97.0, 98.0], [97.2, 97.9], "undecided: within the interval", "holds"),
        ([98.0], [97.0, 97.1], "one seed: undecided", "one seed: undecided"),
    ],
)
def test_verdicts(ours, others, above, at_par) -> None:
    found = difference(ours, others)
    assert verdict(Claim("", "", ""), found) == above
    assert verdict(Claim("", "", "", at_par=True), found) == at_par


def test_every_claim_is_about_rows_with_a_figure_in_the_paper_and_says_what_it_shows() -> None:
    for claim in CLAIMS:
        first, second = (paper(name.partition("/")[0])[name] for name in (claim.row, claim.other))
        assert {claim.row, claim.other} <= set(names())
        gain = (first.accuracy - second.accuracy) if first.accuracy > 0 else first.success - second.success
        if not claim.at_par:
            assert gain > 0, claim


def test_the_table_is_made_of_the_records() -> None:
    text = claims_section(RESULTS)
    line = next(line for line in text.splitlines() if "Rot-MNIST: IEN is above CNN-aug" in line)
    _, _, here, printed, ours, seeds, _ = (cell.strip() for cell in line.split("|"))
    assert (here, printed, seeds) == ("does not hold", "+0.20", "3, 3")
    # 95.81 and 97.28 in the table of accuracies
    assert float(re.match(r"\S+", ours)[0]) == pytest.approx(95.81 - 97.28, abs=0.011)


def test_trackers_are_compared_at_medium_where_both_rows_have_it(tmp_path) -> None:
    def write(row: str, preset: str, success: float) -> None:
        made = record(row, tracking__rot_otb__success=success)
        made["config"]["preset"] = preset
        path = tmp_path / "tracking" / row / f"{preset}-seed1.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(made))

    def line(says: str) -> str:
        return next(line for line in claims_section(tmp_path).splitlines() if says in line)

    for row, success in (("siamfc", 0.10), ("re-siamfc", 0.15), ("ien-siamfc", 0.20)):
        write(row, "small", success)
    assert "+5.00" in line("RE-SiamFC is above SiamFC") and "`medium`" not in claims_section(tmp_path)
    write("siamfc", "medium", 0.11)
    assert "+5.00" in line("RE-SiamFC is above SiamFC")  # never one size against another
    write("re-siamfc", "medium", 0.31)
    assert "+20.00" in line("RE-SiamFC is above SiamFC")
    assert "+5.00" in line("IEN-SiamFC is above RE-SiamFC")
    assert "preset `small`, of trackers `medium`" in claims_section(tmp_path)


def test_without_records_of_any_claim_there_is_no_table(tmp_path) -> None:
    (tmp_path / "mine").mkdir()
    source = RESULTS / "nuclei" / "cnn" / "small-seed1.json"
    (tmp_path / "mine" / "small-seed1.json").write_bytes(source.read_bytes())
    assert claims_section(tmp_path) == ""
