"""Plots of trackers: what is drawn are the curves and the means that scores and records hold."""

import io
import json
import sys
import xml.etree.ElementTree as ET
from typing import Any, NamedTuple

import numpy as np
import pytest

from ien.report import collect
from ien.report import summarise as rows_of
from ien.report.plots.style import looks_of, styled
from ien.tracking import Score, score
from ien.tracking.by_angle import Bin
from ien.tracking.report.plots import plot_curves, plot_turning, scores_by_test
from tests.helpers.trackers import ROWS, record

pytest.importorskip("matplotlib")


class Turning(NamedTuple):
    by_orientation: list[Bin]
    by_angle: list[Bin]


def scores(count: int = 3) -> dict[str, Score]:
    """Of trackers that drift off a target, each its own way."""
    found = {}
    for i in range(count):
        rng = np.random.default_rng(i)
        truth = np.column_stack([rng.uniform(0, 100, (40, 2)), rng.uniform(20, 60, (40, 2))])
        drift = np.linspace(0, 40, 40)[:, None] * (1, 0, 0, 0)
        found[f"t{i}"] = score(truth + drift + rng.normal(0, 1, (40, 4)), truth)
    return found


def lines(axes: Any) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    named = [line for line in axes.lines if line.get_label()[0] != "_"]
    return {line.get_label(): tuple(np.asarray(line.get_data(), float)) for line in named}


def text(figure: Any) -> str:
    buffer = io.StringIO()
    with styled():
        figure.savefig(buffer, format="svg")
    return "\n".join(ET.fromstring(buffer.getvalue()).itertext())


def test_curves_are_those_of_the_scores_and_names_carry_them() -> None:
    given = {"OTB": scores(), "Rot-OTB": dict(list(scores(4).items())[1:])}
    figure = plot_curves(given)
    written = text(figure)
    looks = looks_of(["t0", "t1", "t2", "t3"])
    panels = iter(figure.axes)
    for test, of_test in given.items():
        for what, thresholds in (("success", np.linspace(0, 1, 21)), ("precision", np.arange(51))):
            axes = next(panels)
            assert axes.get_title(loc="left") == f"{what} on {test}"
            drawn = lines(axes)
            assert list(drawn) == list(of_test)
            for name, result in of_test.items():
                assert np.array_equal(drawn[name], (thresholds, getattr(result, f"{what}_curve")))
                assert f"{result.success:.3f} / {result.precision:.3f}  {name}" in written
            colours = {line.get_label(): line.get_color() for line in axes.lines}
            assert all(colours[name] == looks[name].color for name in of_test)  # the same everywhere


@pytest.fixture
def records(tmp_path) -> list[Any]:
    """Rows of made-up records, two seeds of each."""
    for row in ROWS:
        for seed in (1, 2):
            (tmp_path / f"{row}-{seed}.json").write_text(json.dumps(record(row, seed)))
    return rows_of(collect(tmp_path))


def test_every_tracker_with_records_has_a_line_of_their_numbers(records) -> None:
    curves, turns = plot_curves(scores_by_test(records)), plot_turning(scores_by_test(records))
    assert len(curves.axes) == 4 and len(turns.axes) == 2  # nothing turns in OTB
    drawn = dict(zip(("otb", "rot-otb"), (map(lines, curves.axes[k : k + 2]) for k in (0, 2)), strict=True))
    for test, panels in drawn.items():
        for panel, curve in zip(panels, ("success_curve", "precision_curve"), strict=True):
            assert sorted(panel) == sorted(ROWS)
            for row in ROWS:
                values = [record(row, seed)["tracking"][test][curve] for seed in (1, 2)]
                assert np.allclose(panel[row][1], np.mean(values, axis=0))
    assert all("Rot-OTB" in axes.get_title(loc="left") for axes in turns.axes)
    around, onward = map(lines, turns.axes)
    assert sorted(around) == sorted(onward) == sorted(ROWS)
    for row in ROWS:
        made = [record(row, seed)["tracking"]["rot-otb"] for seed in (1, 2)]
        bins = np.mean([each["by_orientation"] for each in made], axis=0)
        assert np.allclose(around[row], np.transpose([*bins[:, :2], (360, bins[0, 1])]))
        bins = np.mean([each["by_angle"] for each in made], axis=0)
        assert np.allclose(onward[row], bins[:, :2].T) and bins[-1, 0] > 360


def test_angles_that_no_target_has_are_left_out_and_names_do_no_harm() -> None:
    some = Turning([Bin(90.0, 0.5, 2), Bin(270.0, 0.25, 2)], [Bin(0.0, 0.5, 4)])
    around, onward = (lines(axes)["a"] for axes in plot_turning({"x": {"a": some}}).axes)
    assert [each.tolist() for each in around] == [[90, 270], [0.5, 0.25]]
    assert [each.tolist() for each in onward] == [[0], [0.5]]
    hostile = ["<b>&amp;'\"</b>", "$\\frac{1}{", "_hidden", "two\nlines\x00", "x" * 200]
    curves = plot_curves({"<OTB>": dict(zip(hostile, scores(5).values(), strict=True))})
    turning = plot_turning({"<OTB>": dict.fromkeys(hostile, some)})
    for figure, longest in ((curves, "x" * 27 + "…"), (turning, "x")):
        written = text(figure)
        assert all(shown in written for shown in (*hostile[:3], "two lines", longest))


def test_bad_input_is_told() -> None:
    for plot in (plot_curves, plot_turning):
        with pytest.raises(ValueError, match="nothing to plot: give at least one tracker"):
            plot({})
    with pytest.raises(ValueError, match="at least one tracker whose targets rotate in a test"):
        plot_turning({"otb": {"a": Turning([], [])}})


def test_without_matplotlib_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"plotting needs matplotlib: pip install"):
        plot_curves({"OTB": scores(1)})
