"""list and show: every row, with its settings, deviations and cost."""

import re
import sys
from pathlib import Path

import pytest

from ien.experiments import names
from tests.helpers.shell import error_of, invoke

pytestmark = pytest.mark.usefixtures("elsewhere")


def test_list_and_show_know_every_experiment_whatever_folders_there_are() -> None:
    lines = {line.split()[0]: line.split() for line in invoke("list").output.splitlines() if "/" in line}
    assert [name for name in lines if name != "ien"] == names()
    assert lines["rot-mnist/het-ien"] == ["rot-mnist/het-ien", "cnn6", "1", "98.6", "%"]
    assert (
        len({len(line) for line in invoke("list", columns=200).output.splitlines() if "/" in line[:20]}) == 1
    )
    Path("rot-mnist/cnn").mkdir(parents=True)
    assert invoke("show", "rot-mnist/cnn").output.startswith("rot-mnist/cnn, preset small")
    assert "rot-mnist is not a run folder: it has no config.json" in error_of("show", "rot-mnist")


def test_show_tells_settings_deviations_and_cost() -> None:
    text = invoke("show", "rot-mnist/ien-r4", "--preset", "paper", "--set", "beta=0.3").output
    assert text.startswith("rot-mnist/ien-r4, preset paper, seed 1\n")
    _, against, cost = text.split("\n\n")
    assert "  beta 0.3 instead of 1\n" in against and "shuffled" in against
    assert against.count(" instead of ") == 1
    # the counts that the paper's channels give: 10.88 million weights
    assert "10,882,186 parameters at inference" in cost
    assert "16,920 steps, 2,160,000 images seen (2 for each image)" in cost  # 90 epochs of 188 steps


def test_show_counts_the_passes_of_test_time_averaging_and_no_training() -> None:
    plain, text = (invoke("show", f"rot-mnist/{row}").output for row in ("cnn-aug", "cnn-aug-tta"))
    once, averaged = (re.search(r"([\d,]+) multiply", shown)[1].replace(",", "") for shown in (plain, text))
    assert int(averaged) == 4 * int(once)
    assert "trains nothing: tests the weights of rot-mnist/cnn-aug" in text
    assert "the paper prints no numbers for this row" in text


def test_show_of_a_row_with_slack_gives_no_bound_that_its_records_exceed() -> None:
    tied, slack = (invoke("show", f"symmetry/rot-mnist-{row}").output for row in ("tied", "slack"))
    assert "fewer than 171,290 parameters trained (tied)" in tied
    assert "fewer than" not in slack and "free remainders" in slack


def test_show_of_the_steerable_row_needs_no_other_library(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "e2cnn", None)
    text = invoke("show", "rot-mnist/e2cnn", "--preset", "paper").output
    assert "exponential" in text and " parameters trained, " in text
