"""The table of claims: intervals as in scipy, verdicts, and the difference that the paper prints."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from ien.experiments import config, names, paper
from ien.experiments.claims import (
    CLAIMS,
    MARGIN,
    SPEED_CLAIMS,
    Claim,
    Difference,
    claims_section,
    difference,
    speed_verdict,
    verdict,
)
from ien.models import channel_share
from ien.training import flat
from tests.helpers.records import content, write_records
from tests.helpers.trackers import record

stats = pytest.importorskip("scipy.stats")
RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize("seeds", [(2, 2), (3, 3), (3, 5), (9, 8)])
def test_the_interval_is_that_of_a_t_test(seeds) -> None:
    rng = np.random.default_rng(sum(seeds))
    a, b = rng.normal(98, 0.3, seeds[0]), rng.normal(97, 0.2, seeds[1])
    found = difference(a.tolist(), b.tolist())
    low, high = stats.ttest_ind(a, b).confidence_interval(0.95)
    assert found.mean == pytest.approx((low + high) / 2)
    assert found.half_width == pytest.approx((high - low) / 2, rel=1e-4)


@pytest.mark.parametrize(
    ("ours", "others", "above", "at_par"),
    [
        ([98.0, 98.2, 98.1], [97.0, 97.1, 97.2], "holds", "holds"),
        ([97.0, 97.1, 97.2], [98.0, 98.2, 98.1], "does not hold", "does not hold"),
        # level on average, but four seeds cannot tell half a point
        ([97.0, 98.0], [97.2, 97.9], "undecided: within the interval", "undecided: within the interval"),
        # level within a tenth of a point
        ([97.00, 97.05, 97.10], [97.05, 97.10, 97.15], "undecided: within the interval", "holds"),
        ([96.80, 96.85, 96.90], [97.05, 97.10, 97.15], "does not hold", "holds"),
        ([96.30, 96.35, 96.40], [97.05, 97.10, 97.15], "does not hold", "does not hold"),
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
        gain = {
            "accuracy": first.accuracy - second.accuracy,
            "success": first.success - second.success,
            "hull": first.success - second.success,
            "precision": first.precision - second.precision,
            "equivariance": max(second.exponents, default=0) - max(first.exponents, default=0),
        }[claim.score]
        if not claim.at_par:
            assert gain > 0, claim


def test_a_wide_interval_proves_nothing_at_par() -> None:
    assert verdict(Claim("", "", "", at_par=True), Difference(-2, 25, (2, 2))).startswith("undecided")
    # the margin counts for rows at par alone
    barely = Difference(-MARGIN + 0.1, 0.05, (3, 3))
    assert verdict(Claim("", "", "", at_par=True), barely) == "holds"
    assert verdict(Claim("", "", ""), barely) == "does not hold"


def test_every_claim_with_the_loss_says_its_weight() -> None:
    table = cells_of(claims_section(RESULTS))
    for claim in CLAIMS:
        printed = next(says for says in table if says.startswith(claim.says))
        betas = set()
        for name in (claim.row, claim.other):
            if "ien" in name.partition("/")[2] or "het-siamfc" in name:
                betas.add(flat(config(name, "paper"))["beta"])
        assert re.findall(r"β = ([\d.]+)\)", printed) == [f"{beta:g}" for beta in betas], printed


def test_rows_with_fewer_channels_have_over_30_percent_fewer() -> None:
    for claim in CLAIMS:
        if claim.at_par and "het-ien" in claim.row and "tim/" in claim.row:
            network = config(claim.row, "paper").network
            assert channel_share(network.model, network.feature_groups, 1.0) < 0.7


def test_equivariance_is_the_ratio_of_the_worst_errors(tmp_path) -> None:
    made = []
    for seed in (1, 2, 3):
        made += [content("cnn-aug", seed), content("ien-r4", seed)]
    section = claims_section(write_records(tmp_path / "results", *made))
    logarithms = {"cnn-aug": [], "ien-r4": []}
    for record_ in made:
        worst = max(layer["relative"] for layer in record_["layers"].values())
        logarithms[record_["config"]["experiment"].partition("/")[2]].append(np.log10(worst))
    expected = np.mean(logarithms["cnn-aug"]) - np.mean(logarithms["ien-r4"])
    here, printed, ours = cells_of(section)[
        "Rot-MNIST, equivariance: IEN's error is below CNN-aug's (β = 1)"
    ][:3]
    assert float(ours.split()[0]) == pytest.approx(expected, abs=0.0051) and here
    assert printed == "+4 powers of ten"  # 10⁰ and 10⁻⁴ are the worst in the paper's table


def test_speeds_are_those_of_the_benchmarks(tmp_path) -> None:
    results = write_records(tmp_path / "results", content("cnn-aug", 1), content("ien-r4", 1))
    says = SPEED_CLAIMS[0].says
    assert says not in cells_of(claims_section(results))
    found = {"what": SPEED_CLAIMS[0].what, "value": 1.25, "low": 1.2, "high": 1.3}
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "measured.json").write_text(json.dumps({"trackers": {"found": [found]}}))
    table = cells_of(claims_section(results))
    assert table[says] == ["holds", "–", "× 1.25 (1.20–1.30)", "–"]
    assert table[SPEED_CLAIMS[1].says][0] == "not measured"
    verdicts = [
        speed_verdict(*quartiles) for quartiles in ((0.9, 1.0), (0.99, 1.01), (1.06, 1.3), (1.0, 1.2))
    ]
    assert verdicts == ["does not hold", "does not hold", "holds", "undecided: within the quartiles"]


def test_the_committed_benchmarks_have_every_claim_about_speed() -> None:
    table = cells_of(claims_section(RESULTS))
    assert all(table[claim.says][0] != "not measured" for claim in SPEED_CLAIMS)


def test_hulls_are_compared_where_records_have_them(tmp_path) -> None:
    made = [record("siamfc", 1), record("re-siamfc", 1), record("ien-siamfc", 1)]
    made[1]["tracking"]["rot-otb"]["success_hull"] = 0.5
    made[0]["tracking"]["rot-otb"]["success"] = 0.25
    table = cells_of(claims_section(write_records(tmp_path / "results", *made)))
    # the box of siamfc does not rotate: 0.25 is its hull's too
    assert table["Rot-OTB, hull: RE-SiamFC is above SiamFC"][2] == "+25.00"
    assert table["Rot-OTB, hull: IEN-SiamFC is above RE-SiamFC (β = 0.1)"][0] == "not run: hull of ien-siamfc"


def cells_of(section: str) -> dict[str, list[str]]:
    """What a line claims → its other cells."""
    lines = {}
    for line in section.splitlines():
        if line.startswith("| "):
            says, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            lines[says] = cells
    return lines


def test_the_table_is_made_of_the_records() -> None:
    text = claims_section(RESULTS)
    line = next(line for line in text.splitlines() if "Rot-MNIST: IEN is above CNN-aug" in line)
    _, _, here, printed, ours, seeds, _ = (cell.strip() for cell in line.split("|"))
    assert (here, printed, seeds) == ("does not hold", "+0.20", "3, 3")
    # 95.81 and 97.28 in the table of accuracies
    assert float(re.match(r"\S+", ours)[0]) == pytest.approx(95.81 - 97.28, abs=0.011)


def test_the_verdicts_are_counted_in_one_sentence() -> None:
    section = claims_section(RESULTS)
    verdicts = [line.split(" | ")[1] for line in section.splitlines() if line.startswith("| ")][2:]
    hold, refuted = verdicts.count("holds"), verdicts.count("does not hold")
    assert f"Of {len(verdicts)} claims, {hold} hold here, {refuted} do not, " in section


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
    assert "+5.00" in line("success: RE-SiamFC is above SiamFC") and "`medium`" not in claims_section(
        tmp_path
    )
    write("siamfc", "medium", 0.11)
    assert "+5.00" in line("success: RE-SiamFC is above SiamFC")  # never one size against another
    write("re-siamfc", "medium", 0.31)
    assert "+20.00" in line("success: RE-SiamFC is above SiamFC")
    assert "+5.00" in line("success: IEN-SiamFC is above RE-SiamFC")
    assert "preset `small`, of trackers `medium`" in claims_section(tmp_path)


def test_without_records_of_any_claim_there_is_no_table(tmp_path) -> None:
    (tmp_path / "mine").mkdir()
    source = RESULTS / "nuclei" / "cnn" / "small-seed1.json"
    (tmp_path / "mine" / "small-seed1.json").write_bytes(source.read_bytes())
    assert claims_section(tmp_path) == ""
