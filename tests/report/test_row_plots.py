"""Plots of rows, by number of images and line by line, against numbers computed from made-up records."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ien.experiments import config, find
from ien.experiments.study import LABELS
from ien.report.accuracies import AccuracyAxis
from ien.report.dots import plot_rows
from ien.report.plots.style import styled
from ien.report.recipes import blocks_of
from ien.report.records import Row, collect, summarise
from ien.report.sizes import curves_of, plot_sizes
from ien.training import flat
from tests.helpers.shell import error_of, invoke
from tests.report.test_tables import content
from tests.tracking.test_tracking_report import record as tracker

pytest.importorskip("matplotlib", reason="plots need matplotlib: pip install 'ien[plots]'")
pytestmark = pytest.mark.usefixtures("elsewhere")

STUDY = [*LABELS, *find("study/*")]
GRID = [name for name in STUDY if not name.startswith(("study/flip", "study/n"))]
SIZED = [f"rot-mnist/{row}" for row in ("cnn-aug", "e2cnn", "ien-r4", "ien-r4-beta0.1", "recommended")]
SIZED += ["study/free"]


def made(name: str, seed: int = 1, preset: str = "small", **fields: Any) -> dict[str, Any]:
    """A record of an experiment, with the settings that it has, and numbers of its own for each seed."""
    settings = flat(config(name, preset)) | {"seed": seed}
    settings |= {key: fields.pop(key) for key in list(fields) if key in settings}
    train = settings["subset"] or settings["train_images"] or 12_000
    seen = 2 * settings["epochs"] * (settings["train_images"] or 12_000)
    fields.setdefault("images_seen", seen)
    return content(name, seed, config=settings, data__train=train, data__name=settings["dataset"], **fields)


def write(*records: dict[str, Any], folder: str = "results") -> list[dict[str, Any]]:
    for i, record in enumerate(records):
        path = Path(folder) / record["config"]["experiment"] / f"{i}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record))
    return list(records)


def rows_of(*records: dict[str, Any]) -> list[Row]:
    write(*records)
    return summarise(collect("results"))


def points(axes: Any, label: str) -> list[np.ndarray]:
    """Places (N, 2) of each line with this label."""
    return [np.array(line.get_data(), float).T for line in axes.lines if line.get_label() == label]


def percent(records: list[dict[str, Any]], name: str) -> np.ndarray:
    return np.array([100 * r["accuracy"] for r in records if r["config"]["experiment"] == name])


def on_fewer(count: int, name: str) -> str:
    """The row of the study that trains another on fewer images."""
    return f"study/n{count}-{name.split('/')[1]}"


def test_equal_steps_of_accuracy_are_equal_factors_of_the_error() -> None:
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    AccuracyAxis(50, 99.9).draw(axes)
    heights = axes.transData.transform([(0, a) for a in (80, 90, 95, 98, 99, 99.5)])[:, 1]
    assert np.allclose(np.diff(heights)[[0, 3, 4]], np.diff(heights)[1]) and (np.diff(heights) > 0).all()
    assert axes.get_yscale() == "function"


@pytest.mark.parametrize(
    "values",
    [[0.0, 100.0], [97.31, 98.24], [85, 98.3], [22, 44], [98.0], [99.97, 99.99], [10, 99.9], [95.2, 98.4]],
)
def test_axes_of_accuracies_hold_all_values_and_have_few_round_ticks(values: list[float]) -> None:
    from matplotlib.figure import Figure

    axis = AccuracyAxis.over(values)
    assert axis.low <= min(values) and max(values) - 0.01 <= axis.high < 100
    assert 3 <= len(axis.ticks) <= 10 and axis.ticks == sorted(axis.ticks)
    assert all(axis.low <= tick <= axis.high and len(f"{tick:g}") <= 6 for tick in axis.ticks)
    with styled():
        figure = Figure(figsize=(3.6, 1))
        axes = figure.add_axes((0.05, 0.4, 0.9, 0.5))
        axis.draw(axes, across=True)
        figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert not any(a.overlaps(b) for a, b in pairwise(boxes))
    assert np.isfinite(axes.transData.transform([(value, 0) for value in values])).all()


def test_rows_that_differ_in_images_are_one_recipe_named_by_the_largest() -> None:
    records = [made(name, seed) for name in STUDY for seed in (1, 2)]
    curves = dict(curves_of(rows_of(*records)))
    several = {name: curve for name, curve in curves.items() if len(curve) > 1}
    assert sorted(several) == sorted(SIZED)
    assert len(curves) == len(STUDY) - 2 * len(SIZED)  # the others stand alone, cnn-aug-2x among them
    for name, curve in several.items():
        assert list(curve) == [500, 2000, 12_000]
        for size in (500, 2000):
            assert np.allclose(curve[size], percent(records, on_fewer(size, name)))
        assert np.allclose(curve[12_000], percent(records, name))
    assert curves["study/cnn-aug-2x"].keys() == {12_000}


def test_equally_many_images_seen_more_often_are_another_recipe() -> None:
    first = made("rot-mnist/cnn-aug", train_images=500, changes={"train_images": 500})
    curves = curves_of(rows_of(first, made("rot-mnist/cnn-aug"), made("study/n500-cnn-aug")))
    assert sorted(sorted(curve) for _, curve in curves) == [[500], [500, 12_000]]


def test_a_recipe_is_that_of_its_epochs_and_other_settings_are_another() -> None:
    few = made("rot-mnist/ien-r4", train_images=500, changes={"train_images": 500})
    whole, other = made("rot-mnist/ien-r4"), made("rot-mnist/ien-r4-beta0.1", train_images=500)
    curves = dict(curves_of(rows_of(few, whole, other)))
    assert {name: sorted(curve) for name, curve in curves.items()} == {
        "ien-r4": [500, 12_000],
        "ien-r4-beta0.1": [500],
    }


def test_older_records_and_other_machines_are_of_the_same_recipe() -> None:
    old = made("rot-mnist/cnn-aug", 1, accuracy=0.9)
    for field in ("orbits", "start", "action", "subset", "tied"):
        del old["config"][field]
    old["config"] |= {"device": "cuda", "gone": None}
    again = made("rot-mnist/cnn-aug", 1, accuracy=0.8, finished="2026-12-01T00:00:00+00:00")
    second, few = made("rot-mnist/cnn-aug", 2, accuracy=0.7), made("study/n500-cnn-aug", accuracy=0.6)
    ((name, curve),) = curves_of(rows_of(old, again, second, few))
    assert name == "cnn-aug"
    assert np.allclose(curve[12_000], [80, 70]) and np.allclose(curve[500], [60])  # the newest of seed 1


def test_sizes_show_means_spreads_and_seeds() -> None:
    records = [
        made(each, seed)
        for name in SIZED
        for each in (on_fewer(500, name), on_fewer(2000, name), name)
        for seed in (1, 2, 5)
    ]
    records += [made("study/cnn-aug-2x")]
    figure = plot_sizes(rows_of(*records))
    (axes,) = figure.axes
    for name in SIZED:
        of_sizes = [percent(records, each) for each in (on_fewer(500, name), on_fewer(2000, name), name)]
        (line,) = points(axes, name)
        assert np.allclose(line, [(n, v.mean()) for n, v in zip((500, 2000, 12_000), of_sizes, strict=True)])
        seeds = np.concatenate(points(axes, "_seeds"))
        for size, values in zip((500, 2000, 12_000), of_sizes, strict=True):
            drawn = seeds[seeds[:, 0] == size][:, 1]
            assert all(np.isclose(drawn, value).any() for value in values)
            ends = values.mean() + values.std(ddof=1) * np.array([-1, 1])
            assert any(np.allclose(bar, [(size, end) for end in ends]) for bar in points(axes, "_spread"))
    assert len(points(axes, "_seeds")) == len(points(axes, "_spread")) == 18
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["12,000", "2,000", "500"]
    assert "not drawn: 1 recipe with one number" in figure.get_supxlabel()


def test_a_single_seed_has_no_bar_and_crowded_sizes_no_number() -> None:
    sizes = (500, 510, 520, 3000, 11_900)
    records = [made("rot-mnist/cnn-aug", train_images=size, changes={"train_images": size}) for size in sizes]
    (axes,) = plot_sizes(rows_of(*records, made("rot-mnist/cnn-aug"))).axes
    assert not points(axes, "_spread") and len(points(axes, "cnn-aug")[0]) == 6
    assert [label.get_text() for label in axes.get_xticklabels()] == ["12,000", "3,000", "520"]


def test_what_cannot_be_drawn_is_one_clear_error() -> None:
    for plot in (plot_sizes, plot_rows):
        with pytest.raises(ValueError, match="nothing to plot: give at least one row"):
            plot([])
    one = rows_of(made("study/cnn-aug-2x"), made("study/n500-e2cnn"))
    with pytest.raises(
        ValueError, match=r"^no recipe was trained on two.*ien run study/\S+ --preset small --set"
    ):
        plot_sizes(one)
    for plot in (plot_sizes, plot_rows):
        with pytest.raises(ValueError, match=r"2 data sets \(rot-mnist, rot-tim\).*as in 'study/\*'"):
            plot(one + summarise(collect(_tim())))


def _tim() -> str:
    write(made("rot-tim/vgg-r4-cnn-aug"), folder="other")
    return "other"


def test_blocks_of_the_study_differ_in_the_loss_alone() -> None:
    blocks = blocks_of(rows_of(*map(made, STUDY)))
    assert sum(len(block.rows) for block in blocks) == len(STUDY)
    main = [block for block in blocks if block.section == "12,000 training images, rot4"]
    starts = [
        f"{start} start, {copies}"
        for start in ("random", "equivariant")
        for copies in ("one copy", "whole orbits")
    ]
    assert [block.title for block in main] == [*starts, "other settings"]
    for block in main[:-1]:
        settings = [row.records[0].config for row in block.rows]
        assert len({(s["start"], s["orbits"]) for s in settings}) == 1
        assert [s["beta"] for s in settings] == [0, 0.1, 1, 0.1, 1]
        assert [s["action"] for s in settings[1:]] == ["pooled", "pooled", "regular", "regular"]
    beside = ["cnn-aug-2x", "cnn-aug-tta", "e2cnn", "e2cnn-alone-2x", "free", "free-2x"]
    beside += ["recommended", "recommended-2x", "tied"]
    assert [row.label for row in main[-1].rows] == beside
    others = [(block.section, block.title, len(block.rows)) for block in blocks[5:]]
    titles = [("", 3), ("other settings", 3)]
    assert others == [
        ("12,000 training images, flip", "", 4),
        *((f"{count} training images, rot4", *title) for count in ("2,000", "500") for title in titles),
    ]


def test_networks_presets_and_data_have_their_sections_and_baselines_stand_beside_the_network() -> None:
    names = ["rot-tim/vgg-r4-cnn-aug", "rot-tim/resnet18-r4-e2cnn", "rot-tim/resnet18-r4-cnn-aug"]
    blocks = blocks_of(rows_of(*map(made, names)))
    assert [(block.section, len(block.rows)) for block in blocks] == [("resnet18", 2), ("vgg", 1)]
    scaled = [made(f"scale-mnist/28-{row}") for row in ("cnn", "cnn-aug", "sesn-vector", "dss")]
    write(*scaled, made("scale-mnist/28-cnn", preset="paper"), folder="scaled")
    blocks = blocks_of(summarise(collect("scaled")))
    assert [(block.section, len(block.rows)) for block in blocks] == [("paper", 1), ("small", 4)]


def texts(axes: Any, minor: bool = False) -> list[str]:
    """What the lines of a plot are called, from above."""
    found = zip(axes.get_yticks(minor=minor), axes.get_yticklabels(minor=minor), strict=True)
    return [label.get_text() for _, label in sorted(found, key=lambda pair: pair[0])]


def test_lines_show_accuracies_and_largest_errors_of_rows() -> None:
    records = [made(name, seed) for name in GRID for seed in (1, 2, 3)]
    left, right = plot_rows(rows_of(*records)).axes
    names = texts(left)
    assert sorted(names) == sorted(GRID)
    assert names[:3] == ["rot-mnist/cnn-aug", "rot-mnist/ien-r4-beta0.1", "rot-mnist/ien-r4"]
    assert texts(left, minor=True)[0] == "random start, one copy" and left.get_ylim()[0] > left.get_ylim()[1]
    heights = dict(zip(names, sorted(left.get_yticks()), strict=True))
    for name in names:
        y, values = heights[name], percent(records, name)
        assert np.allclose(points(left, name), [[(values.mean(), y)]])
        ends = values.mean() + values.std(ddof=1) * np.array([-1, 1])
        assert any(np.allclose(bar, [(end, y) for end in ends]) for bar in points(left, "_spread"))
        assert any(np.allclose(dots, [(v, y) for v in values]) for dots in points(left, "_seeds"))
        errors = [
            max(layer["relative"] for layer in record["layers"].values())
            for record in records
            if record["config"]["experiment"] == name
        ]
        assert np.allclose(points(right, name), [[(np.mean(errors), y)]])
        assert any(np.allclose(dots, [(e, y) for e in errors]) for dots in points(right, "_seeds"))
    assert right.get_xscale() == "log" and points(right, "_small")[0][0, 0] == 0.01


def test_marks_tell_what_the_loss_compares_and_its_weight() -> None:
    left, _ = plot_rows(rows_of(*map(made, GRID))).axes
    marks = {
        line.get_label(): (line.get_color(), line.get_marker(), line.get_markersize())
        for line in left.lines
        if line.get_label() in GRID
    }
    for start in ("random-all", "equivariant-1"):
        kinds = [marks[f"study/{action}-{start}-beta1"] for action in ("pooled", "regular")]
        assert all(a != b for a, b in zip(kinds[0][:2], kinds[1][:2], strict=True))
        for action, kind in zip(("pooled", "regular"), kinds, strict=True):
            lighter = marks[f"study/{action}-{start}-beta0.1"]
            assert lighter[:2] == kind[:2] and lighter[2] < kind[2]
    without = marks["rot-mnist/cnn-aug"]
    assert without == marks["rot-mnist/e2cnn"] == marks["study/equivariant-all-beta0"] == marks["study/tied"]
    assert without[0] not in {marks[f"study/{a}-random-all-beta1"][0] for a in ("pooled", "regular")}


def test_rounding_stands_apart_and_unmeasured_layers_have_no_value() -> None:
    def layers(*values: float) -> dict[str, Any]:
        return {f"conv{i}": {"raw": 1.0, "relative": value} for i, value in enumerate(values)}

    exact = made("study/tied", layers=layers(1e-12, 3e-13))
    partly = made("study/random-all-beta0", layers=layers(math.nan, 0.3, 0.2))
    unknown = made("study/cnn-aug-2x", layers=layers(math.nan))
    figure = plot_rows(rows_of(exact, partly, unknown))
    _, right = figure.axes
    place = points(right, "tied")[0][0, 0]
    named = dict(zip(right.get_xticks(), (t.get_text() for t in right.get_xticklabels()), strict=True))
    assert named[place] == "< 10⁻⁸" and place < 0.01
    assert np.isclose(points(right, "random-all-beta0")[0][0, 0], 0.3)
    assert np.isnan(points(right, "cnn-aug-2x")[0][0, 0])
    assert [text.get_text() for text in right.texts].count("no value") == 1


def test_rows_of_several_tables_or_presets_say_so() -> None:
    left, _ = plot_rows(rows_of(made("study/tied"), made("rot-mnist/cnn-aug"))).axes
    assert texts(left) == ["rot-mnist/cnn-aug", "study/tied"]
    write(made("study/tied"), made("study/tied", preset="paper"), folder="both")
    left, _ = plot_rows(summarise(collect("both"))).axes
    assert texts(left) == ["tied paper", "tied small"] and texts(left, minor=True) == ["paper", "small"]


def test_no_name_lies_over_another() -> None:
    records = [made(name, accuracy=0.85 + 0.003 * i) for i, name in enumerate(STUDY)]
    for plot in (plot_rows, plot_sizes):
        figure = plot(rows_of(*records))
        figure.draw_without_rendering()
        frame = figure.bbox
        for axes in figure.axes:
            labels = [*axes.get_yticklabels(), *axes.get_yticklabels(minor=True), *axes.get_xticklabels()]
            shown = [label for label in [*labels, *axes.texts] if label.get_visible() and label.get_text()]
            boxes = [label.get_window_extent() for label in shown]
            assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
            assert all(frame.x0 <= box.x0 and box.x1 <= frame.x1 for box in boxes)


def test_hostile_names_are_shown_as_text() -> None:
    records = [
        made("study/tied", experiment=f"study/{name}") for name in ("$\\frac{1}{", "_hidden", "x" * 200)
    ]
    for i, record in enumerate(records):
        Path(f"{i}.json").write_text(json.dumps(record))
    left, _ = plot_rows(summarise(collect("."))).axes
    assert texts(left)[:2] == ["$\\frac{1}{", "_hidden"] and len(texts(left)[2]) < 70


def test_the_commands_draw_experiments_and_folders() -> None:
    write(*map(made, STUDY), made("rot-mnist/cnn"))
    done = invoke("plot", "sizes", "study/*", "rot-mnist/*")
    assert done.stdout.splitlines() == ["wrote plots/sizes.png", "wrote plots/sizes.svg"]
    assert Path("plots/sizes.png").read_bytes().startswith(b"\x89PNG")
    invoke("plot", "rows", "study/tied", "results/rot-mnist", "--preset", "small", "--out", "here/two.svg")
    shown = Path("here/two.svg").read_text()
    assert "study/tied" in shown and "rot-mnist/cnn" in shown and "flip" not in shown
    invoke("plot", "rows")
    assert "n2000-e2cnn" in Path("plots/rows.svg").read_text()


def test_what_the_commands_lack_is_one_line() -> None:
    assert "there is no folder results with records" in error_of("plot", "rows")
    write(made("study/tied"), made("rot-tim/vgg-r4-cnn-aug"))
    assert "no records of study/n* in results: make them with  ien run 'study/n*'" in error_of(
        "plot", "sizes", "study/tied", "study/n*"
    )
    assert "no recipe was trained on two numbers of images" in error_of("plot", "sizes", "study/*")
    assert "2 data sets" in error_of("plot", "rows")
    assert "are of preset 'paper'" in error_of("plot", "rows", "study/*", "--preset", "paper")
    write(tracker("het-siamfc"))
    assert "are of trackers: draw them with ien plot tracking" in error_of("plot", "rows", "tracking/*")
