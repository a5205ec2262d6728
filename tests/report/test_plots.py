"""Plots: the numbers drawn are the numbers given, the files hold them, and names do no harm."""

from __future__ import annotations

import io
import math
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ien
from ien.measuring.report import ElementReport, LayerReport, Report
from ien.report.plots.labels import spread
from ien.report.plots.layers import (
    plot_angles,
    plot_costs,
    plot_errors,
    plot_factors,
    plot_tradeoff,
    plot_training,
    save_figure,
)
from ien.report.plots.style import LEAST, LogAxis, log_ticks, look, styled
from ien.report.records import Layer, Record, Row
from ien.report.tradeoff import rank_correlation
from ien.training import run_folder as run_folder
from tests.helpers import toy

matplotlib = pytest.importorskip("matplotlib")
HOSTILE = ["<b>&amp;'\"</b>", "$\\frac{1}{", "_hidden", "two\nlines\x00", "x" * 200]


def layer(errors: dict[float, float], floor: float | None = None) -> LayerReport:
    """A layer with these errors at these angles."""
    elements = {
        f"{a:g}°": ElementReport(v, v, (0.8 * v, 1.25 * v), floor, a % 90 == 0, a) for a, v in errors.items()
    }
    mean = float(np.nanmean(list(errors.values())))
    return LayerReport(
        raw=mean,
        relative=mean,
        interval=(0.9 * mean, 1.1 * mean),
        floor=floor,
        variance=1.0,
        diversity=None,
        collapsed=(),
        num_groups=4,
        constant=False,
        size=(8, 8),
        elements=elements,
    )


def scaled(errors: dict[float, float], floor: float | None = None) -> LayerReport:
    """A layer with these errors at these factors."""
    elements = {
        f"×{f:g}": ElementReport(v, v, (0.8 * v, 1.25 * v), floor, False, None, f) for f, v in errors.items()
    }
    return replace(layer(errors, floor), elements=elements)


def report(**layers: LayerReport) -> Report:
    return Report("rot8", 10, layers)


def lines(axes: Any) -> dict[str, np.ndarray]:
    """Label → heights of the lines with one."""
    return {line.get_label(): np.asarray(line.get_ydata(), float) for line in axes.lines}


def texts(figure: Any) -> str:
    """All text of the figure's SVG, which must be XML."""
    buffer = io.StringIO()
    with styled():
        figure.savefig(buffer, format="svg")
    return "\n".join("".join(node.itertext()) for node in ET.fromstring(buffer.getvalue()).iter())


def equal(a: Any, b: Any) -> bool:
    return np.array_equal(np.asarray(a, float), np.asarray(b, float), equal_nan=True)


def test_errors_floors_and_intervals_are_drawn_as_given() -> None:
    quarters = {90.0: 0.1, 180.0: 0.3}
    given = {
        "a": report(c1=layer(quarters, 0.01), c2=layer({90.0: 0.5}, 0.02)),
        "b": report(c1=layer({90.0: 2.0})),
    }
    (axes,) = plot_errors(given).axes
    drawn = lines(axes)
    assert equal(drawn["a"], [0.2, 0.5]) and equal(drawn["b"], [2.0, math.nan])
    assert equal(drawn["a: floor"], [0.01, 0.02]) and "b: floor" not in drawn
    intervals = [line.get_ydata() for line in axes.lines if line.get_label() == "a: interval"]
    assert np.allclose(intervals, [(0.18, 0.22), (0.45, 0.55)])
    assert axes.get_yscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["c1", "c2"]


def test_quarter_turns_and_angles_in_between_have_their_own_panels() -> None:
    given = {"a": report(c1=layer({45.0: 0.4, 90.0: 0.01, 135.0: 0.6, 180.0: 0.03}, 0.001))}
    exact, between = (lines(axes) for axes in plot_errors(given).axes)
    assert np.allclose(exact["a"], [0.02]) and np.allclose(between["a"], [0.5])
    assert np.allclose(between["a: interval"], [0.4, 0.625])  # the means of the bounds
    named = [axes.get_title(loc="left") for axes in plot_errors(given).axes]
    assert named == ["quarter turns and flips", "in between"]


def test_errors_of_records_have_one_panel_even_beside_reports() -> None:
    both = report(c1=layer({45.0: 0.4, 90.0: 0.2}))
    (axes,) = plot_errors({"recorded": {"c1": 0.7, "c2": 0.8}, "measured": both}).axes
    assert equal(lines(axes)["recorded"], [0.7, 0.8])
    assert np.allclose(lines(axes)["measured"][0], 0.3)


def test_rounding_errors_are_drawn_on_a_line_of_their_own_below_all_others() -> None:
    (axes,) = plot_errors({"exact": {"c1": 3e-14, "c2": 0.0}, "trained": {"c1": 1e-3, "c2": 0.1}}).axes
    low, _ = axes.get_ylim()
    heights = lines(axes)["exact"]
    assert heights[0] == heights[1] and low < heights[0] < 1e-3
    tick = [
        t.get_text()
        for t, y in zip(axes.get_yticklabels(), axes.get_yticks(), strict=True)
        if y == heights[0]
    ]
    assert tick == ["< 10⁻⁸"]
    assert low > 1e-5  # no empty decades between


def test_layers_of_all_reports_keep_their_order() -> None:
    (axes,) = plot_errors({"a": {"c1": 1, "c3": 1}, "b": {"c1": 1, "c2": 1, "c3": 1, "c4": 1}}).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["c1", "c2", "c3", "c4"]
    assert equal(lines(axes)["a"], [1, math.nan, 1, math.nan])


def test_nan_is_a_gap_and_nothing_but_nan_an_error() -> None:
    (axes,) = plot_errors({"a": {"c1": 0.5, "c2": math.nan, "c3": math.inf}}).axes
    assert equal(lines(axes)["a"], [0.5, math.nan, math.nan])
    with pytest.raises(ValueError, match="no finite relative error"):
        plot_errors({"a": {"c1": math.nan}})


@pytest.mark.parametrize(
    "plot", [plot_errors, plot_angles, plot_factors, plot_training, plot_costs, plot_tradeoff]
)
def test_nothing_to_plot_is_an_error(plot: Any) -> None:
    with pytest.raises(ValueError, match="nothing to plot: give at least one"):
        plot({})


def circle(error: float = 0.5, count: int = 8) -> dict[float, float]:
    return {360 * k / count: error + k / 100 for k in range(1, count)}


def test_curves_over_angles_are_closed_and_hold_the_numbers() -> None:
    accuracy = {"identity": 0.9} | {f"{a:g}°": 0.8 - a / 1000 for a in circle()}
    given = replace(report(c1=layer(circle())), accuracy=accuracy)
    error, share = plot_angles({"a": given}).axes
    for axes, values in ((error, circle()), (share, {0.0: 90.0} | {a: 80 - a / 10 for a in circle()})):
        line = next(line for line in axes.lines if line.get_label() == "a")
        angles, heights = line.get_xdata(), line.get_ydata()
        assert np.allclose(np.degrees(angles[:-1]), list(values)) and np.allclose(
            heights[:-1], list(values.values())
        )
        assert abs(angles[-1] - angles[0] - 2 * math.pi) < 1e-12 and heights[-1] == heights[0]
        quarters = next(line for line in axes.lines if line.get_label() == "_quarters")
        assert np.allclose(np.degrees(quarters.get_xdata()), [a for a in values if a % 90 == 0])


def test_zero_degrees_are_up_and_ninety_left() -> None:
    figure = plot_angles({"a": report(c1=layer(circle()))})
    (axes,) = figure.axes  # without labels there is no accuracy
    figure.draw_without_rendering()
    radius = axes.get_ylim()[1]
    centre = axes.transData.transform((0, axes.get_ylim()[0]))
    up, left = (axes.transData.transform((angle, radius)) - centre for angle in (0, math.pi / 2))
    assert abs(up[0]) < 1e-6 < up[1] and abs(left[1]) < 1e-6 and left[0] < 0


def test_angles_take_the_last_layer_that_is_large_enough() -> None:
    small = layer({a: v if a % 90 == 0 else math.nan for a, v in circle().items()})
    given = {"a": report(c1=layer(circle()), c2=layer(circle(0.7)), c3=small)}
    assert plot_angles(given).axes[0].get_title() == "relative error of c2"
    heights = lines(plot_angles(given, "c3").axes[0])["a"]
    assert equal(heights[:-1], list(small.per_element.values()))
    with pytest.raises(ValueError, match=r"layer 'c9'.*did you mean c"):
        plot_angles(given, "c9")
    with pytest.raises(ValueError, match="no layer in common"):
        plot_angles(given | {"b": report(other=layer(circle()))})


def test_angles_without_rotations_name_the_group_to_take() -> None:
    flips = layer({90.0: 0.5})
    flips = replace(flips, elements={"flip": replace(flips.elements["90°"], degrees=None)})
    with pytest.raises(ValueError, match=r"b was measured under flip.*rot72"):
        plot_angles({"a": report(c1=layer(circle())), "b": Report("flip", 10, {"c1": flips})})


def test_curves_over_factors_hold_errors_floors_and_accuracies_around_one() -> None:
    errors = {0.5: 0.4, 0.7: 0.2, 3.0: 0.9}
    accuracy = {"identity": 0.9, "×0.5": 0.5, "×0.7": 0.7, "×3": 0.3}
    one = replace(report(c1=scaled(errors, 0.01)), group="scale0.5,0.7,3", accuracy=accuracy)
    error, share = plot_factors({"a": one, "b": report(c1=scaled({2.0: 0.1}))}).axes
    drawn = {line.get_label(): line for line in error.lines}
    assert equal(drawn["a"].get_xdata(), [0.5, 0.7, 1, 3]) and equal(
        drawn["a"].get_ydata(), [0.4, 0.2, math.nan, 0.9]
    )
    assert equal(drawn["a: floor"].get_ydata(), [0.01, 0.01, math.nan, 0.01]) and "b: floor" not in drawn
    assert equal(drawn["b"].get_ydata(), [math.nan, 0.1])
    (line,) = [line for line in share.lines if line.get_label() == "a"]
    assert equal(line.get_xdata(), [0.5, 0.7, 1, 3]) and np.allclose(line.get_ydata(), [50, 70, 90, 30])
    for axes in (error, share):
        low, high = axes.get_xlim()
        assert axes.get_xscale() == "log" and abs(low * high - 1) < 1e-12 and high > 3
        named = {t.get_text(): x for t, x in zip(axes.get_xticklabels(), axes.get_xticks(), strict=True)}
        assert named == {"0.5": 0.5, "0.7": 0.7, "1": 1, "2": 2, "3": 3}
    assert "dotted: the floor" in error.get_xlabel()


def test_factors_without_scalings_name_the_group_to_take_and_crowded_ones_go_unnamed() -> None:
    with pytest.raises(ValueError, match=r"a was measured under rot8, which has no scalings: .*scale0\.5"):
        plot_factors({"a": report(c1=layer(circle()))})
    with pytest.raises(ValueError, match=r"layer 'c9'.*did you mean c"):
        plot_factors({"a": report(c1=scaled({0.5: 0.1}))}, "c9")
    (axes,) = plot_factors({"a": report(c1=scaled({1 + k / 100: 0.1 for k in range(1, 60)}))}).axes
    assert 3 <= len(axes.get_xticks()) <= 7 and 1 in axes.get_xticks()


def test_a_product_has_curves_over_angles_and_over_factors() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    group, y = ien.rotation(4) * ien.scale([0.7, 1.4]), torch.randint(4, (6,))
    measured = ien.measure(net, torch.rand(6, 1, 9, 9), group, ["1"], labels=y)
    elements = measured.layers["1"].elements
    error, share = plot_factors({"net": measured}).axes
    values = [elements["×0.7"].relative, math.nan, elements["×1.4"].relative]
    assert equal(lines(error)["net"], values)
    assert measured.accuracy is not None
    expected = [measured.accuracy[label] for label in ("×0.7", "identity", "×1.4")]
    assert np.allclose(lines(share)["net"], [100 * v for v in expected])
    around = lines(plot_angles({"net": measured}).axes[0])["net"]
    assert np.allclose(around[:-1], [elements[f"{90 * k}°"].relative for k in (1, 2, 3)])
    panels = [axes.get_title(loc="left") for axes in plot_errors({"net": measured}).axes]
    assert panels == ["quarter turns and flips", "resampled"]


def test_measured_reports_can_be_plotted() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
    x, y = torch.rand(6, 1, 9, 9), torch.randint(4, (6,))
    classifier = nn.Sequential(net, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    measured = ien.measure(classifier, x, "rot8", layers=["0.1", "0.2"], feature_groups=2, labels=y)
    exact, between = (lines(axes) for axes in plot_errors({"net": measured}).axes)
    assert np.allclose(exact["net"], [r.exact for r in measured.layers.values()])
    assert np.allclose(between["net"], [r.between for r in measured.layers.values()])
    error, share = plot_angles({"net": measured}, "0.1").axes
    assert np.allclose(lines(error)["net"][:-1], list(measured.layers["0.1"].per_element.values()))
    assert measured.accuracy is not None
    assert np.allclose(lines(share)["net"][:-1], [100 * v for v in measured.accuracy.values()])


def trained(path: Path, epochs: int = 3, terms: bool = True, **changes: Any) -> Path:
    """A run folder with configuration and metrics alone."""
    run_folder.create(
        path,
        toy.config(**changes),
        dict.fromkeys(["folder", "name", "source", "train", "test", "digest"], "x"),
    )
    for epoch in range(1, epochs + 1):
        values = {"conv1": 0.1 / epoch, "conv2": 0.5 / epoch} if terms else {}
        metrics = {"epoch": epoch, "learning_rate": 0.01 / epoch, "task_loss": 2 / epoch, "terms": values}
        run_folder.append_metrics(path, metrics | {"train_accuracy": 1 - 0.5 / epoch})
    return path


def test_training_curves_hold_the_metrics(tmp_path: Path) -> None:
    folders = {"with": trained(tmp_path / "a"), "without": trained(tmp_path / "b", 2, terms=False)}
    loss, accuracy, rate, terms = plot_training(folders).axes
    assert np.allclose(lines(loss)["with"], [2, 1, 2 / 3]) and np.allclose(lines(loss)["without"], [2, 1])
    assert np.allclose(lines(accuracy)["with"], [50, 75, 100 - 50 / 3])
    assert np.allclose(lines(rate)["with"], [0.01, 0.005, 0.01 / 3])
    assert np.allclose(lines(terms)["conv2"], [0.5, 0.25, 0.5 / 3]) and terms.get_yscale() == "log"
    assert list(loss.lines[0].get_xdata()) == [1, 2, 3]
    assert terms.get_title(loc="left") == "terms of with"


def test_folders_without_names_are_named_by_their_last_two_parts(tmp_path: Path) -> None:
    figure = plot_training([trained(tmp_path / "row" / "seed1"), trained(tmp_path / "row" / "seed2")])
    assert {"row/seed1", "row/seed2"} <= set(lines(figure.axes[0]))
    with pytest.raises(ValueError, match="same name"):
        plot_training([tmp_path / "row" / "seed1"] * 2)


def test_runs_that_have_no_epochs_or_damaged_ones_are_errors(tmp_path: Path) -> None:
    empty = trained(tmp_path / "empty", epochs=0)
    with pytest.raises(ValueError, match=r"empty has no trained epochs.*ien resume"):
        plot_training([empty])
    averaged = trained(tmp_path / "averaged", epochs=0, weights_of="rot-mnist/cnn-aug")
    with pytest.raises(ValueError, match="plot rot-mnist/cnn-aug"):
        plot_training([averaged])
    for text in ('{"epoch": 1', '{"epoch": 1}\n', "7\n", "[]\n"):
        (empty / "metrics.jsonl").write_text(text)
        with pytest.raises(ValueError, match=r"metrics.jsonl is damaged"):
            plot_training([empty])
    with pytest.raises(FileNotFoundError, match="not a run folder"):
        plot_training([tmp_path / "nowhere"])


def row(name: str, accuracies: list[float], macs: float = 1e7, error: float = 0.1, **changes: Any) -> Row:
    records = tuple(
        Record(
            path=Path("x"), experiment=f"rot-mnist/{name}", preset="small", seed=i, config={}, changes=(),
            data="rot-mnist", source="generated", tested_on="test", train=1, test=1, versions={}, machine="",
            commit=None, finished=None, accuracy=accuracy, accuracy_with_copies=accuracy,  # type: ignore[arg-type]
            layers={"c1": Layer(error, error)}, parameters=1, trained_parameters=1, macs=macs,
            images_per_second=1.0, images_seen=1.0,
        )
        for i, accuracy in enumerate(accuracies)
    )  # fmt: skip
    return replace(Row(f"rot-mnist/{name}", "small", "generated", "test", (), records), **changes)


def test_costs_show_mean_spread_and_multiply_accumulates() -> None:
    rows = [row("a", [0.90, 0.92, 0.97], 2e6), row("b", [0.8], 5e7, 1e-13)]
    axes = plot_costs(rows).axes[0]
    points = {line.get_label(): (line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines}
    assert np.allclose(points["a"], (2e6, 93)) and np.allclose(points["b"], (5e7, 80))
    (bar,) = [line.get_ydata() for line in axes.lines if line.get_label() == "_spread"]  # one seed has none
    spread_ = np.std([90, 92, 97], ddof=1)
    assert np.allclose(bar, (93 - spread_, 93 + spread_))


def test_the_tradeoff_shows_accuracy_over_the_error_of_the_last_layer() -> None:
    rows = [row("a", [0.90, 0.92], error=0.6), row("b", [0.8], error=1e-13), row("c", [0.7], error=0.06)]
    figure = plot_tradeoff(rows)
    points = {line.get_label(): (line.get_xdata()[0], line.get_ydata()[0]) for line in figure.axes[0].lines}
    assert np.allclose(points["a"], (0.6, 91)) and np.allclose(points["c"], (0.06, 70))
    assert np.allclose(points["b"], (0.01, 80)) and "exact" in texts(figure)  # left of all others
    with pytest.raises(ValueError, match=r"^a has no accuracy or no relative error of its last layer"):
        plot_tradeoff([row("a", [0.9], error=math.nan)])


def test_the_tradeoff_has_a_panel_for_each_network_and_says_how_the_two_go_together() -> None:
    def of(net: str, name: str, accuracy: float, error: float) -> Row:
        made = row(f"{net}-{name}", [accuracy], error=error)
        return replace(made, records=(replace(made.records[0], config={"model": net}),))

    falling = [of("vgg", "abcd"[i], 0.9 - 0.1 * i, 0.1 * 2**i) for i in range(4)]
    mixed = [of("cnn6", "abcd"[i], accuracy, 0.01 + i) for i, accuracy in enumerate((0.5, 0.9, 0.6, 0.7))]
    figure = plot_tradeoff(falling + mixed)
    assert len(figure.axes) == 2
    shown = texts(figure)
    assert "rot-mnist, vgg: rank correlation −1.00" in shown
    assert "rot-mnist, cnn6: rank correlation +0.40" in shown  # ranks 0 1 2 3 and 0 3 1 2: 1 − 6·6 / 60
    assert {"a", "b", "c", "d"} <= set(shown) and "vgg-a" not in shown


def test_rank_correlation_is_scipys() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    for _ in range(20):
        x, y = rng.integers(0, 6, (2, 9)).tolist()
        assert rank_correlation(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)
    assert math.isnan(rank_correlation([1, 1, 1], [1, 2, 3]))


def test_labels_of_rows_at_one_place_lie_over_nothing() -> None:
    from matplotlib.text import Text

    rows = [row(f"row-{i}", [0.95 + 0.0001 * i], 1e7) for i in range(9)] + [row("far", [0.9], 1e9)]
    figure = plot_costs(rows)
    figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text) for text in figure.axes[0].texts]  # without their lines
    points = [
        line.get_transform().transform((line.get_xdata()[0], line.get_ydata()[0]))
        for line in figure.axes[0].lines
    ]
    assert len(boxes) == 10
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert not any(box.contains(*point) for box in boxes for point in points)
    distances = [np.linalg.norm(a - b) for i, a in enumerate(points) for b in points[:i]]
    assert min(distances) > 10 * figure.dpi / 72 - 1e-6  # all are to be seen


def test_rows_of_several_presets_say_so_and_unknown_costs_are_errors() -> None:
    shown = texts(plot_costs([row("a", [0.9]), row("a", [0.8], preset="paper")]))
    assert "a small" in shown and "a paper" in shown
    with pytest.raises(ValueError, match=r"^a has no accuracy or no count of multiply-accumulates"):
        plot_costs([row("a", [0.9], math.nan)])


def test_a_row_without_errors_is_plotted_all_the_same() -> None:
    assert len(plot_costs([row("a", [0.9], error=math.nan)]).axes) == 1  # no bar of shades
    assert len(plot_costs([row("a", [0.9], error=math.nan), row("b", [0.9])]).axes) == 2


def test_files_are_whole_and_hold_the_labels(tmp_path: Path) -> None:
    from PIL import Image

    figure = plot_errors({"some run": {"conv1": 0.5, "conv2": 0.01}})
    png, svg = save_figure(figure, tmp_path / "deep" / "er" / "errors")
    assert (png.name, svg.name) == ("errors.png", "errors.svg")
    with Image.open(png) as image:
        assert image.size == (1800, 840) and len(np.unique(np.asarray(image))) > 20
    shown = "".join(ET.parse(svg).getroot().itertext())
    assert all(word in shown for word in ("some run", "conv1", "conv2", "relative error", "10⁻¹"))
    assert {path.name for path in png.parent.iterdir()} == {"errors.png", "errors.svg"}


@pytest.mark.parametrize("name", ["a", "a.png", "a.svg"])
def test_either_suffix_or_none_gives_both_files(tmp_path: Path, name: str) -> None:
    figure = plot_errors({"a": {"c": 1.0}})
    assert save_figure(figure, tmp_path / name) == [tmp_path / "a.png", tmp_path / "a.svg"]
    assert [path.name for path in save_figure(figure, str(tmp_path / "v1.2"))] == ["v1.2.png", "v1.2.svg"]


def test_the_same_numbers_give_the_same_bytes(tmp_path: Path) -> None:
    given = {"a": report(c1=layer(circle(), 0.01)), "b": report(c1=layer(circle(0.1)))}
    for plot in (plot_errors, plot_angles):
        written = [save_figure(plot(given), tmp_path / name) for name in ("first", "second")]
        for one, other in zip(*written, strict=True):
            assert one.read_bytes() == other.read_bytes()
        again = save_figure(figure := plot(given), tmp_path / "third")[1].read_bytes()
        assert save_figure(figure, tmp_path / "third")[1].read_bytes() == again


def test_a_failed_write_leaves_the_earlier_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = plot_errors({"a": {"c": 1.0}})
    png, _ = save_figure(figure, tmp_path / "a")
    before = png.read_bytes()

    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(figure, "savefig", full)
    with pytest.raises(OSError, match=r"a.png could not be written.*No space left"):
        save_figure(figure, tmp_path / "a")
    assert png.read_bytes() == before and len(list(tmp_path.iterdir())) == 2


def test_hostile_names_are_shown_as_text(tmp_path: Path) -> None:
    given = {name: report(**{name: layer(circle()), "c1": layer(circle())}) for name in HOSTILE}
    costs = [row(name.replace("/", ""), [0.9 + i / 100]) for i, name in enumerate(HOSTILE)]
    runs = {name: trained(tmp_path / str(i)) for i, name in enumerate(HOSTILE)}
    for figure in (plot_errors(given), plot_angles(given, "c1"), plot_training(runs), plot_costs(costs)):
        shown = texts(figure)
        assert (
            "<b>&amp;'\"" in shown and "$\\frac{1}{" in shown and "_hidden" in shown and "two lines" in shown
        )
        assert "x" * 70 not in shown
        save_figure(figure, tmp_path / "hostile")


def test_names_alike_when_shortened_keep_their_own_lines() -> None:
    given = {f"{'x' * 60}{i}": report(c1=layer(circle(0.1 * i))) for i in (1, 2)}
    colours = {line.get_color() for line in plot_angles(given).axes[0].lines}
    assert len(colours) == 2


def test_the_users_settings_neither_change_nor_matter(tmp_path: Path) -> None:
    plain = save_figure(plot_errors({"a": {"c": 1.0}}), tmp_path / "plain")
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "text.color": "green"}):
        other = save_figure(plot_errors({"a": {"c": 1.0}}), tmp_path / "other")
        assert matplotlib.rcParams["font.size"] == 30
    assert [p.read_bytes() for p in plain] == [p.read_bytes() for p in other]


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r'plotting needs matplotlib: pip install "ien\[plots\]"'):
        plot_errors({"a": {"c": 1.0}})


def test_looks_differ_in_colour_and_without_it() -> None:
    looks = [look(i) for i in range(56)]
    assert len(set(looks)) == 56
    assert len({(x.marker, str(x.linestyle)) for x in looks[:40]}) == 40


def test_spread_is_the_least_movement_that_keeps_the_gap() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        places = rng.uniform(0, 1, 6)
        moved = np.array(spread(list(places), 0.15))
        order = np.argsort(places)
        assert (np.diff(moved[order]) > 0.15 - 1e-9).all()
        cost = np.square(moved - places).sum()
        for _ in range(200):  # no feasible neighbour is nearer
            other = moved + rng.normal(0, 0.01, 6)
            feasible = (np.diff(other[order]) >= 0.15).all()
            assert not feasible or np.square(other - places).sum() > cost - 1e-12


@pytest.mark.parametrize("values", [[0.5], [1e-12], [3e-9, 0.2], [0.11, 0.12], [1e-7, 2.0, 0.0]])
def test_axes_of_errors_hold_all_values_between_their_ends(values: list[float]) -> None:
    axis = LogAxis.over([*values, None, math.nan])
    assert all(axis.low < axis.place(v) < axis.high for v in values)
    assert all(axis.place(v) == v for v in values if v >= LEAST)
    assert axis.high / axis.start >= 10 and all(axis.low < tick <= axis.high for tick in axis.ticks)
    assert len([tick for tick in axis.ticks if tick >= axis.start]) >= 1


def test_ticks_lie_inside_and_say_where_they_are() -> None:
    for low, high in ((1e-9, 3.0), (0.2, 0.9), (1.1e-5, 8e-5), (3, 4000), (1e-30, 1e30)):
        ticks = log_ticks(low, high)
        assert 1 <= len(ticks) <= 8 and all(low <= tick <= high for tick in ticks)
    assert log_ticks(1.1e-5, 8e-5) == {2e-5: "2×10⁻⁵", 5e-5: "5×10⁻⁵"}
