"""Plots of trackers: what is drawn are the curves of the scores and the means of loops over frames."""

from __future__ import annotations

import io
import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ien.report.figures import look, styled
from ien.report.records import collect
from ien.report.records import summarise as rows_of
from ien.report.tracking_plots import plot_curves, save_figure, scores_by_test
from ien.report.tracking_records import Bin
from ien.report.turning_plots import Turning, plot_rotation, plot_turning, turns_by_test
from ien.tracking import Score, overlap, score, summarise
from tests.trackers import ROWS, record

pytest.importorskip("matplotlib")


def turning(seed: int, frames: int, rate: float = 7.0) -> Turning:
    """A tracker that drifts off a target which turns by ``rate`` degrees a frame."""
    rng = np.random.default_rng(seed)
    truth = np.column_stack([rng.uniform(0, 100, (frames, 2)), rng.uniform(20, 60, (frames, 2))])
    drift = np.linspace(0, 40, frames)[:, None] * (1, 0, 0, 0)
    return Turning(truth + drift + rng.normal(0, 1, (frames, 4)), truth, rate * np.arange(frames))


def trackers(count: int = 3) -> dict[str, dict[str, Turning]]:
    lengths = (20, 80, 40)
    return {f"t{i}": {f"s{k}": turning(10 * i + k, n) for k, n in enumerate(lengths)} for i in range(count)}


def scores(count: int = 3) -> dict[str, Score]:
    return {
        name: summarise({k: score(t.predicted, t.truth) for k, t in sequences.items()})
        for name, sequences in trackers(count).items()
    }


def lines(axes: Any) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {
        line.get_label(): (np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float))
        for line in axes.lines
        if line.get_label()[0] != "_"
    }


def text(figure: Any) -> str:
    buffer = io.StringIO()
    with styled():
        figure.savefig(buffer, format="svg")
    return "\n".join(ET.fromstring(buffer.getvalue()).itertext())


def test_curves_are_those_of_the_scores_and_names_carry_them() -> None:
    given = {"OTB": scores(), "Rot-OTB": dict(list(scores(4).items())[1:])}
    figure = plot_curves(given)
    written = text(figure)
    panels = list(map(lines, figure.axes))
    for k, (test, of_test) in enumerate(given.items()):
        assert [axes.get_title(loc="left") for axes in figure.axes[2 * k : 2 * k + 2]] == [
            *(f"success on {test}", f"precision on {test}")
        ]
        success, precision = panels[2 * k : 2 * k + 2]
        assert list(success) == list(precision) == list(of_test)
        for name, result in of_test.items():
            assert np.array_equal(success[name], (np.linspace(0, 1, 21), result.success_curve))
            assert np.array_equal(precision[name], (np.arange(51), result.precision_curve))
            assert f"{result.success:.3f} / {result.precision:.3f}  {name}" in written
    for i, name in enumerate(("t0", "t1", "t2", "t3")):  # a tracker looks the same everywhere
        assert {
            line.get_color() for axes in figure.axes for line in axes.lines if line.get_label() == name
        } == {look(i).color}


@pytest.fixture
def records(tmp_path: Path) -> list[Any]:
    """Rows of made-up records, two seeds of each."""
    for row in ROWS:
        for seed in (1, 2):
            (tmp_path / f"{row}-{seed}.json").write_text(json.dumps(record(row, seed)))
    return rows_of(collect(tmp_path))


def test_every_tracker_with_records_has_a_line_of_their_numbers(records: list[Any]) -> None:
    curves, turns = plot_curves(scores_by_test(records)), plot_turning(turns_by_test(records))
    assert len(curves.axes) == 4 and len(turns.axes) == 1
    drawn = dict(zip(("otb", "rot-otb"), (map(lines, curves.axes[k : k + 2]) for k in (0, 2)), strict=True))
    for test, panels in drawn.items():
        for panel, curve in zip(panels, ("success_curve", "precision_curve"), strict=True):
            assert sorted(panel) == sorted(ROWS)
            for row in ROWS:
                values = [record(row, seed)["tracking"][test][curve] for seed in (1, 2)]
                assert np.allclose(panel[row][1], np.mean(values, axis=0))
    around = lines(turns.axes[0])
    assert sorted(around) == sorted(ROWS) and "Rot-OTB" in turns.axes[0].get_title(loc="left")
    for row in ROWS:
        bins = [record(row, seed)["tracking"]["rot-otb"]["by_angle"] for seed in (1, 2)]
        means = np.mean([[overlap for _, overlap, _ in some] for some in bins], axis=0)
        x, y = around[row]
        assert np.array_equal(x, 15 * np.arange(25)) and np.allclose(y, [*means, means[0]])


def test_bins_that_count_turns_on_have_a_panel_by_angle_turned_too() -> None:
    rng = np.random.default_rng(0)
    counts = [30] * 30 + [15] * 10 + [14] * 5
    bins = [Bin(15.0 * k, float(rng.random()), frames) for k, frames in enumerate(counts)]
    around, onward = (lines(axes)["a"] for axes in plot_turning({"rot-otb": {"a": bins}}).axes)
    assert np.array_equal(onward[0], 15 * np.arange(40))  # as far as there are half of the frames
    assert np.array_equal(onward[1], [one.overlap for one in bins[:40]])
    for x, y in zip(*around, strict=True):
        same = [one for one in bins if one.degrees % 360 == x % 360]
        frames = sum(one.frames for one in same)
        assert np.isclose(y, sum(one.overlap * one.frames for one in same) / frames)


def by_loops(sequences: dict[str, Turning], step: float, turns: bool) -> dict[int, float]:
    """Bin → mean over frames, then sequences."""
    of_bin: dict[int, list[float]] = {}
    for predicted, truth, angles in sequences.values():
        own: dict[int, list[float]] = {}
        for k in range(len(truth)):
            value = 1.0 if k == 0 else float(overlap(predicted[k], truth[k]))
            if np.isnan(value) or np.isnan(angles[k]):
                continue
            place = int(angles[k] // step) if turns else int((angles[k] % 360) / step + 0.5) % int(360 / step)
            own.setdefault(place, []).append(value)
        for place, values in own.items():
            of_bin.setdefault(place, []).append(sum(values) / len(values))
    return {place: sum(values) / len(values) for place, values in of_bin.items()}


@pytest.mark.parametrize("step", [15, 30])
def test_overlap_by_angle_is_the_mean_over_frames_then_sequences(step: float) -> None:
    given = trackers()
    left, right = map(lines, plot_rotation(given, step).axes)
    for name, sequences in given.items():
        around, onward = by_loops(sequences, step, False), by_loops(sequences, step, True)
        x, y = left[name]
        assert np.array_equal(x, [*(step * i for i in sorted(around)), 360]) and y[-1] == y[0]
        assert np.allclose(y[:-1], [around[i] for i in sorted(around)], rtol=0, atol=1e-12)
        x, y = right[name]
        assert len(x) == 39 * 7 // step + 1  # as far as the second longest of three sequences turns
        assert np.allclose(x, step * (np.arange(len(x)) + 0.5))
        assert np.allclose(y, [onward[i] for i in range(len(x))], rtol=0, atol=1e-12)


def test_turns_may_be_counted_on_or_not_either_way_round() -> None:
    one = {"a": {"s": turning(1, 120)}}
    predicted, truth, angles = one["a"]["s"]
    wrapped = {"a": {"s": Turning(predicted, truth, (np.asarray(angles) + 180) % 360 - 180)}}
    back = {"a": {"s": Turning(predicted, truth, -np.asarray(angles))}}
    panels = [[lines(axes)["a"][1] for axes in plot_rotation(given).axes] for given in (one, wrapped, back)]
    for side in (0, 1):
        assert np.array_equal(panels[0][side], panels[1][side], equal_nan=True)
    assert np.array_equal(panels[0][1], panels[2][1])
    # mirrored, up to frames half way between two bins
    rest = {"a": {"s": Turning(predicted, truth, 4.0 * np.arange(120))}}
    mirrored = {"a": {"s": Turning(predicted, truth, -4.0 * np.arange(120))}}
    there, here = (lines(plot_rotation(given).axes[0])["a"][1] for given in (rest, mirrored))
    assert np.allclose(there, here[::-1], equal_nan=True)


def test_frames_without_truth_or_angle_are_left_out() -> None:
    predicted, truth, angles = turning(2, 60, rate=20.0)
    truth, angles = np.array(truth), np.array(angles)
    truth[[5, 40]], angles[30] = np.nan, np.nan
    given = {"a": {"s": Turning(predicted, truth, angles)}}
    left, right = (lines(axes)["a"] for axes in plot_rotation(given).axes)
    for (x, y), turns, offset in ((left, False, 0), (right, True, 0.5)):
        means = by_loops(given["a"], 15, turns)
        assert np.array_equal(x[: len(means)], [15 * (i + offset) for i in sorted(means)])
        assert np.allclose(y[: len(means)], [means[i] for i in sorted(means)])
    perfect = {"a": {"s": Turning(np.nan_to_num(truth, nan=1.0), truth, angles)}}
    assert all(np.abs(lines(axes)["a"][1] - 1).max() < 1e-12 for axes in plot_rotation(perfect).axes)


def test_bad_input_is_told() -> None:
    one = turning(3, 20)
    for plot in (plot_curves, plot_rotation, plot_turning):
        with pytest.raises(ValueError, match="nothing to plot: give at least one tracker"):
            plot({})
    with pytest.raises(
        ValueError, match="no target of a turns: give sequences that do, such as those of Rot-OTB"
    ):
        plot_rotation({"a": {"s": one._replace(true_angles=np.full(20, 30.0))}})
    with pytest.raises(ValueError, match="no target of a turns"):
        plot_rotation({"a": {}})
    with pytest.raises(ValueError, match="s has 20 frames and 19 angles"):
        plot_rotation({"a": {"s": one._replace(true_angles=np.arange(19.0))}})
    for step in (0, 7, 100, -15):
        with pytest.raises(ValueError, match="do not divide a turn: take a divisor of 360"):
            plot_rotation({"a": {"s": one}}, step)


def test_names_do_no_harm_and_both_files_are_written(tmp_path: Path) -> None:
    hostile = ["<b>&amp;'\"</b>", "$\\frac{1}{", "_hidden", "two\nlines\x00", "x" * 200]
    known = dict(zip(hostile, scores(5).values(), strict=True))
    figure = plot_curves({"<OTB>": known})
    written = text(figure)
    assert all(shown in written for shown in (*hostile[:3], "two lines", "x" * 27 + "…"))
    assert [path.name for path in save_figure(figure, tmp_path / "curves")] == ["curves.png", "curves.svg"]
    named = dict(zip(hostile, trackers(5).values(), strict=True))
    assert all(shown in text(plot_rotation(named)) for shown in (*hostile[:3], "two lines"))


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r'plotting needs matplotlib: pip install "ien\[plots\]"'):
        plot_curves({"OTB": scores(1)})
