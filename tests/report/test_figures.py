"""The scripts in ``docs/figures``: what they draw are the numbers of the records."""

import json
import runpy
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ien.report import Row, collect, summarise

pytest.importorskip("matplotlib")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def rows() -> dict[str, Row]:
    found = summarise(collect(ROOT / "results", "study/*", "rot-mnist/*", "rot-tim/*"))
    return {row.experiment: row for row in found if row.preset == "small" and not row.changes}


def drawn(script: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "figures"))
    return runpy.run_path(str(ROOT / "docs" / "figures" / script))["draw"]()


def mean_error(row: Row) -> float:
    return statistics.fmean(100 - 100 * record.accuracy for record in row.records)


def test_sizes_are_mean_error_rates_by_training_images(rows, monkeypatch) -> None:
    (axes,) = drawn("study_sizes.py", monkeypatch).axes
    lines = [line for line in axes.lines if len(line.get_ydata()) == 3 and line.get_linestyle() != "None"]
    names = ("n500-e2cnn", "n2000-e2cnn")
    expected = [mean_error(rows[f"study/{name}"]) for name in names] + [mean_error(rows["rot-mnist/e2cnn"])]
    assert any(np.allclose(line.get_ydata(), expected) for line in lines)
    assert axes.yaxis.get_inverted()  # fewer errors are higher


def test_rows_have_their_accuracy_and_their_largest_error(rows, monkeypatch) -> None:
    left, right = drawn("study_rows.py", monkeypatch).axes
    places = {label.get_text(): y for label, y in zip(left.get_yticklabels(), left.get_yticks(), strict=True)}
    assert len(places) == 11 and sum("equivariant (tied)" in shown for shown in places) == 4
    name = "rot-mnist/ien-r4"
    place = places["CNN + the paper's loss, β = 1"]
    points = [line for line in left.lines if list(line.get_ydata()) == [place]]
    assert any(np.allclose(point.get_xdata(), mean_error(rows[name])) for point in points)
    largest = [max(layer.relative for layer in record.layers.values()) for record in rows[name].records]
    points = [line for line in right.lines if list(line.get_ydata()) == [place]]
    assert any(np.allclose(point.get_xdata(), statistics.fmean(largest)) for point in points)


def test_symmetry_has_a_row_for_each_data_set_beside_the_tied_network(monkeypatch) -> None:
    left, right = drawn("symmetry.py", monkeypatch).axes
    found = {row.experiment: row for row in summarise(collect(ROOT / "results", "symmetry/*"))}
    row = found["symmetry/digits-60-slack"]
    titles = [label.get_text() for label in left.get_yticklabels()]
    assert "Digits within ±60°, rot4" in titles
    above_tied = mean_error(found["symmetry/digits-60-tied"]) - mean_error(row)
    assert any(np.allclose(line.get_xdata(), above_tied) for line in left.lines)
    # no point lies outside of the panel
    low, high = left.get_xlim()
    assert all(low < value < high for line in left.lines for value in line.get_xdata())
    agreement = statistics.fmean(100 * record.agreement for record in row.records)
    assert any(np.allclose(line.get_xdata(), agreement) for line in right.lines)


@pytest.mark.slow
def test_the_tradeoff_has_a_panel_for_each_network(rows, monkeypatch) -> None:
    panels = drawn("tradeoff.py", monkeypatch).axes
    networks = [axes.get_title(loc="left").partition(" on ")[0] for axes in panels]
    assert networks == ["ResNet18", "six-layer CNN", "VGG"]
    row = rows["rot-mnist/het-ien"]
    (point,) = [line for line in panels[1].lines if line.get_label() == "het-ien"]
    expected = row.layer(list(row.records[0].layers)[-1]).relative, row.accuracy[0]
    assert np.allclose((point.get_xdata()[0], point.get_ydata()[0]), expected)


def test_gaps_of_sizes_are_accuracies_beyond_those_of_cnn_aug(rows, monkeypatch) -> None:
    (axes,) = drawn("size_gap.py", monkeypatch).axes
    gap = mean_error(rows["rot-mnist/cnn-aug"]) - mean_error(rows["rot-mnist/e2cnn"])
    heights = [line.get_ydata()[0] for line in axes.lines if len(line.get_ydata()) == 1]
    assert any(np.isclose(height, gap) for height in heights)
    claims = {round(float(height), 6) for height in heights}
    assert {0.4, 0.2, 0.1} <= claims  # of the paper: E2CNN, its loss with β = 1 and with 0.1


def test_trackers_are_drawn_as_far_as_they_have_records(monkeypatch, tmp_path) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "figures"))
    script = runpy.run_path(str(ROOT / "docs" / "figures" / "tracking.py"))

    def write(preset: str, *rows: str) -> None:
        for row in rows:
            content = json.loads((ROOT / "results/tracking/siamfc/small-seed1.json").read_text())
            content["config"] |= {"experiment": f"tracking/{row}", "preset": preset}
            path = tmp_path / "tracking" / row / f"{preset}-seed1.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content))

    def names() -> list[str]:
        return list(script["scores"]()["Rot-OTB"])

    monkeypatch.setattr(sys.modules["records"], "RESULTS", tmp_path)
    write("small", "siamfc", "ien-siamfc")
    assert names() == ["SiamFC", "IEN-SiamFC (the loss)"]
    write("small", "equivariant-siamfc")
    assert names() == ["SiamFC", "IEN-SiamFC (the loss)", "make_equivariant (tied)"]
    write("medium", "siamfc", "equivariant-siamfc")
    assert names() == ["SiamFC", "make_equivariant (tied)"]
    lines = {line.get_label() for axes in script["draw"]().axes for line in axes.lines}
    assert {"SiamFC", "make_equivariant (tied)"} <= lines


def test_growth_draws_what_was_measured_and_the_slope_of_what_the_loss_adds(monkeypatch) -> None:
    measured = json.loads((ROOT / "benchmarks" / "measured.json").read_text())["growth"]["found"]
    panels = drawn("growth.py", monkeypatch).axes
    assert len(panels) == 8  # time and memory against four things
    first = panels[0]
    images = [point for point in measured if point["axis"] == "images"]
    with_loss, plain, added = (line.get_ydata() for line in first.lines)
    assert list(with_loss) == [point["milliseconds"] for point in images]
    assert list(plain) == [point["plain_milliseconds"] for point in images]
    slope, _ = np.polyfit([point["x"] for point in images], added, 1)
    assert f"{slope:.2f} ms" in first.get_title(loc="left")
