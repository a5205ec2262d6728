"""Plots: the numbers drawn are the numbers given, the files hold them, and names do no harm."""

import io
import math
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

import ien
from ien.measuring.report import Report
from ien.report import Row, collect, summarise
from ien.report.plots.angles import plot_angles, plot_factors
from ien.report.plots.axes import ROUNDING, ErrorAxis, log_ticks
from ien.report.plots.costs import plot_costs
from ien.report.plots.errors import plot_errors
from ien.report.plots.style import looks_of, save_figure, styled
from ien.report.plots.training import plot_training
from ien.training import run_folder
from tests.helpers import toy
from tests.helpers.records import content, write_records
from tests.helpers.reports import circle, layer, quarters, report, scaled

matplotlib = pytest.importorskip("matplotlib")
HOSTILE = ["<b>&amp;'\"</b>", "$\\frac{1}{$", "_hidden", "two\nlines\x00", "x" * 200]


def lines(axes: Any) -> dict[str, np.ndarray]:
    """Label → heights of the lines."""
    return {line.get_label(): np.asarray(line.get_ydata(), float) for line in axes.lines}


def texts(figure: Any) -> str:
    """All text of the figure's SVG, which must be XML."""
    buffer = io.StringIO()
    with styled():
        figure.savefig(buffer, format="svg")
    return "\n".join("".join(node.itertext()) for node in ET.fromstring(buffer.getvalue()).iter())


def equal(a: Any, b: Any) -> bool:
    return np.array_equal(np.asarray(a, float), np.asarray(b, float), equal_nan=True)


# --- errors of layers


def test_errors_floors_and_intervals_are_drawn_as_given() -> None:
    given = {
        "a": report(c1=layer({90.0: 0.1, 180.0: 0.3}, 0.01), c3=layer({90.0: 0.5}, 0.02)),
        "b": report(c1=layer({90.0: 2.0}), c2=layer({90.0: 1.0}), c3=layer({90.0: math.inf})),
    }
    (axes,) = plot_errors(given).axes
    drawn = lines(axes)
    assert equal(drawn["a"], [0.2, math.nan, 0.5]) and equal(drawn["b"], [2.0, 1.0, math.nan])
    assert equal(drawn["a: floor"], [0.01, math.nan, 0.02]) and "b: floor" not in drawn
    intervals = [line.get_ydata() for line in axes.lines if line.get_label() == "a: interval"]
    assert np.allclose(intervals, [(0.18, 0.22), (0.45, 0.55)])
    assert axes.get_yscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["c1", "c2", "c3"]


def test_quarter_turns_and_angles_in_between_have_their_own_panels() -> None:
    given = {"a": report(c1=layer({45.0: 0.4, 90.0: 0.01, 135.0: 0.6, 180.0: 0.03}, 0.001))}
    figure = plot_errors(given)
    exact, between = (lines(axes) for axes in figure.axes)
    assert np.allclose(exact["a"], [0.02]) and np.allclose(between["a"], [0.5])
    assert np.allclose(between["a: interval"], [0.4, 0.625])  # the means of the bounds
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["quarter turns and flips", "in between"]


def test_rounding_errors_are_drawn_on_a_line_of_their_own() -> None:
    given = {"exact": quarters(c1=3e-14, c2=0.0), "trained": quarters(c1=1e-3, c2=0.1)}
    (axes,) = plot_errors(given).axes
    low, _ = axes.get_ylim()
    heights = lines(axes)["exact"]
    assert heights[0] == heights[1] and low < heights[0] < 1e-3
    named = dict(zip(axes.get_yticks(), (label.get_text() for label in axes.get_yticklabels()), strict=True))
    assert named[heights[0]] == "exact" and low > 1e-5  # no empty decades between


@pytest.mark.parametrize("values", [[0.5], [1e-12], [3e-9, 0.2], [0.11, 0.12], [1e-7, 2.0, 0.0]])
def test_axes_of_errors_hold_all_values_between_their_ends(values) -> None:
    axis = ErrorAxis.over([*values, None, math.nan])
    assert all(axis.low < axis.place(value) < axis.high for value in values)
    assert all(axis.place(value) == value for value in values if value >= ROUNDING)
    assert axis.high / axis.start >= 10 and all(axis.low < tick <= axis.high for tick in axis.ticks())
    assert any(tick >= axis.start for tick in axis.ticks())


@pytest.mark.parametrize(("low", "high"), [(1e-9, 3.0), (0.2, 0.9), (1.1e-5, 8e-5), (3, 4000), (1e-30, 1e30)])
def test_ticks_lie_inside_and_are_few(low, high) -> None:
    ticks = log_ticks(low, high)
    assert 1 <= len(ticks) <= 9 and all(low <= tick <= high for tick in ticks)


# --- angles and factors


def test_curves_over_angles_begin_at_zero_and_end_as_they_begin() -> None:
    accuracy = {"identity": 0.9} | {f"{a:g}°": 0.8 - a / 1000 for a in circle()}
    given = replace(report(c1=layer(circle())), accuracy=accuracy)
    error, share = plot_angles({"a": given}).axes
    drawn_errors = {0.0: 0.0} | circle() | {360.0: 0.0}  # an image that is not moved has no error
    drawn_shares = {0.0: 90.0} | {a: 80 - a / 10 for a in circle()} | {360.0: 90.0}
    for axes, values in ((error, drawn_errors), (share, drawn_shares)):
        line = next(line for line in axes.lines if line.get_label() == "a")
        assert np.allclose(line.get_xdata(), list(values))
        assert np.allclose(line.get_ydata(), list(values.values()))
        assert axes.get_xlim() == (0, 360) and axes.get_ylim()[0] == 0 and axes.get_yscale() == "linear"


def test_narrow_figures_have_their_panels_below_each_other() -> None:
    given = {"a": replace(report(c1=layer(circle())), accuracy={"identity": 0.9, "90°": 0.5})}
    for plot in (plot_angles, plot_errors):
        for narrow in (False, True):
            figure = plot(given, narrow=narrow)
            figure.draw_without_rendering()
            first, second = (axes.get_position() for axes in figure.axes)
            assert (first.x0 == pytest.approx(second.x0)) == narrow
            assert (figure.get_figwidth() < 5) == narrow


def test_angles_take_the_last_layer_that_is_large_enough() -> None:
    small = layer({a: v if a % 90 == 0 else math.nan for a, v in circle().items()})
    given = {"a": report(c1=layer(circle()), c2=layer(circle(0.7)), c3=small)}
    assert plot_angles(given).axes[0].get_title(loc="left") == "relative error of c2"
    heights = lines(plot_angles(given, "c3").axes[0])["a"]
    assert equal(heights[1:-1], list(small.per_element.values()))


def test_curves_over_factors_hold_errors_floors_and_accuracies_around_one() -> None:
    errors = {0.5: 0.4, 0.7: 0.2, 3.0: 0.9}
    accuracy = {"identity": 0.9, "×0.5": 0.5, "×0.7": 0.7, "×3": 0.3}
    one = replace(report(c1=scaled(errors, 0.01)), group="scale0.5,0.7,3", accuracy=accuracy)
    error, share = plot_factors({"a": one, "b": report(c1=scaled({2.0: 0.1}))}).axes
    drawn = {line.get_label(): line for line in error.lines}
    assert equal(drawn["a"].get_xdata(), [0.5, 0.7, 1, 3])
    assert equal(drawn["a"].get_ydata(), [0.4, 0.2, math.nan, 0.9])
    assert equal(drawn["a: floor"].get_ydata(), [0.01, 0.01, math.nan, 0.01]) and "b: floor" not in drawn
    assert equal(drawn["b"].get_ydata(), [math.nan, 0.1])
    (line,) = [line for line in share.lines if line.get_label() == "a"]
    assert equal(line.get_xdata(), [0.5, 0.7, 1, 3]) and np.allclose(line.get_ydata(), [50, 70, 90, 30])
    for axes in (error, share):
        low, high = axes.get_xlim()
        assert axes.get_xscale() == "log" and abs(low * high - 1) < 1e-12 and high > 3
        assert {0.5, 1, 2} <= set(axes.get_xticks().round(9))


@pytest.mark.parametrize("reach", [1.05, 1.25, 2.0, 3.5, 10.0])
def test_axes_of_factors_have_a_tick_at_one_and_at_others(reach) -> None:
    (axes,) = plot_factors({"a": report(c1=scaled({1 / reach: 0.1, reach: 0.1}))}).axes
    low, high = axes.get_xlim()
    inside = [tick for tick in axes.get_xticks() if low < tick < high]
    assert 3 <= len(inside) <= 9 and min(abs(tick - 1) for tick in inside) < 1e-9


def test_a_measured_product_has_curves_over_angles_and_over_factors() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    group, y = ien.rotation(4) * ien.scale([0.7, 1.4]), torch.randint(4, (6,))
    measured = ien.measure(net, torch.rand(6, 1, 9, 9), group, ["1"], labels=y)
    elements = measured.layers["1"].elements
    error, share = plot_factors({"net": measured}).axes
    assert equal(lines(error)["net"], [elements["×0.7"].relative, math.nan, elements["×1.4"].relative])
    expected = [measured.accuracy[label] for label in ("×0.7", "identity", "×1.4")]
    assert np.allclose(lines(share)["net"], [100 * value for value in expected])
    around = lines(plot_angles({"net": measured}).axes[0])["net"]
    assert np.allclose(around[1:-1], [elements[f"{90 * k}°"].relative for k in (1, 2, 3)])
    exact, resampled = plot_errors({"net": measured}).axes
    assert resampled.get_title(loc="left") == "resampled"
    assert np.allclose(lines(exact)["net"], measured.layers["1"].exact)
    assert np.allclose(lines(resampled)["net"], measured.layers["1"].between)


# --- training


def trained(path: Path, epochs: int = 3, terms: bool = True, **changes: Any) -> Path:
    """A run folder with configuration and metrics alone."""
    data = {"folder": "x", "name": "x", "source": "x", "train": 1, "test": 1, "digest": "x"}
    run_folder.create(path, toy.config(**changes), data)
    for epoch in range(1, epochs + 1):
        values = {"conv1": 0.1 / epoch, "conv2": 0.5 / epoch} if terms else {}
        metrics = {"epoch": epoch, "learning_rate": 0.01 / epoch, "task_loss": 2 / epoch, "terms": values}
        run_folder.append_metrics(path, metrics | {"train_accuracy": 1 - 0.5 / epoch})
    return path


def test_training_curves_hold_the_metrics(tmp_path) -> None:
    folders = {"with": trained(tmp_path / "a"), "without": trained(tmp_path / "b", 2, terms=False)}
    loss, accuracy, rate, terms = plot_training(folders).axes
    assert np.allclose(lines(loss)["with"], [2, 1, 2 / 3]) and np.allclose(lines(loss)["without"], [2, 1])
    assert np.allclose(lines(accuracy)["with"], [50, 75, 100 - 50 / 3])
    assert np.allclose(lines(rate)["with"], [0.01, 0.005, 0.01 / 3])
    assert np.allclose(lines(terms)["conv2"], [0.5, 0.25, 0.5 / 3]) and terms.get_yscale() == "log"
    assert list(loss.lines[0].get_xdata()) == [1, 2, 3]


def test_slack_is_drawn_layer_by_layer(tmp_path) -> None:
    run = trained(tmp_path / "a", epochs=2, terms=False)
    epochs = run_folder.read_metrics(run)
    (run / "metrics.jsonl").unlink()
    for epoch in epochs:
        run_folder.append_metrics(run, epoch | {"slack": {"conv1": 0.01, "conv2": 0.02 * epoch["epoch"]}})
    *_, slack = plot_training({"with": run}).axes
    assert np.allclose(lines(slack)["conv2"], [0.02, 0.04])
    assert slack.get_title(loc="left") == "slack of with"


def test_targets_and_multipliers_are_drawn_below_the_terms(tmp_path) -> None:
    run = trained(tmp_path / "a", epochs=2, target=0.05)
    epochs = run_folder.read_metrics(run)
    (run / "metrics.jsonl").unlink()
    for epoch in epochs:
        weights = {"conv1": 0.02 * epoch["epoch"], "conv2": 0.0}
        run_folder.append_metrics(run, epoch | {"multipliers": weights})
    *_, first, second, weights = plot_training({"with": run, "other": trained(tmp_path / "b")}).axes
    assert 0.05 in [line.get_ydata()[0] for line in first.lines]
    assert len(second.lines) == 2  # no target, so no line for it
    assert np.allclose(lines(weights)["conv1"], [0.02, 0.04])
    assert weights.get_title(loc="left") == "multipliers of with"


def test_folders_without_names_are_named_by_their_last_two_parts(tmp_path) -> None:
    figure = plot_training([trained(tmp_path / "row" / "seed1"), trained(tmp_path / "row" / "seed2")])
    assert {"row/seed1", "row/seed2"} <= set(lines(figure.axes[0]))
    with pytest.raises(ValueError, match="same name"):
        plot_training([tmp_path / "row" / "seed1"] * 2)
    with pytest.raises(FileNotFoundError, match="not a run folder"):
        plot_training([tmp_path / "nowhere"])


@pytest.mark.parametrize(
    ("name", "settings", "text", "match"),
    [
        ("empty", {"epochs": 0}, "", r"empty has no trained epochs.*ien resume"),
        ("mean", {"epochs": 0, "weights_of": "rot-mnist/cnn-aug"}, "", "plot rot-mnist/cnn-aug"),
        *(("run", {}, text, r"metrics.jsonl is damaged") for text in ('{"epoch": 1', '{"epoch": 1}\n')),
        *(("run", {}, text, r"metrics.jsonl is damaged") for text in ("7\n", "[]\n")),
    ],
)
def test_runs_without_epochs_or_whole_metrics_are_errors(tmp_path, name, settings, text, match) -> None:
    run = trained(tmp_path / name, **settings)
    if text:
        (run / "metrics.jsonl").write_text(text)
    with pytest.raises(ValueError, match=match):
        plot_training([run])


# --- costs


def row(name: str, accuracy: float, macs: float | None = 1e7, error: float | None = 0.1) -> dict[str, Any]:
    made = content(name, macs=macs, accuracy=accuracy)
    made["layers"] = {"c1": {"raw": error, "relative": error}}
    return made


def rows_of(folder: Path, *records: dict[str, Any]) -> list[Row]:
    return summarise(collect(write_records(folder, *records)))


def test_costs_show_mean_spread_and_multiply_accumulates(tmp_path) -> None:
    seeds = [content("a", seed, macs=2e6, accuracy=share) for seed, share in enumerate((0.9, 0.92, 0.97))]
    axes = plot_costs(rows_of(tmp_path, *seeds, row("b", 0.8, 5e7, 1e-13))).axes[0]
    points = {line.get_label(): (line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines}
    assert np.allclose(points["a"], (2e6, 93)) and np.allclose(points["b"], (5e7, 80))
    (bar,) = [line.get_ydata() for line in axes.lines if len(line.get_ydata()) == 2]  # one seed has none
    spread = np.std([90, 92, 97], ddof=1)
    assert np.allclose(bar, (93 - spread, 93 + spread))


def test_equal_costs_are_at_equal_places_and_names_lie_apart(tmp_path) -> None:
    from matplotlib.text import Text

    rows = rows_of(tmp_path, *(row(f"row-{i}", 0.95) for i in range(3)), row("far", 0.9, 1e9))
    figure = plot_costs(rows)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    named = [line for line in axes.lines if not line.get_label().startswith("_")]
    assert sorted(line.get_xdata()[0] for line in named) == [1e7, 1e7, 1e7, 1e9]
    boxes = [Text.get_window_extent(text) for text in axes.texts if text.get_text()]
    assert len(boxes) == 4 and not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_rows_of_several_presets_say_so(tmp_path) -> None:
    other = row("a", 0.8) | {"config": content("a")["config"] | {"preset": "paper"}}
    shown = texts(plot_costs(rows_of(tmp_path, row("a", 0.9), other)))
    assert "a small" in shown and "a paper" in shown


def test_unknown_costs_are_an_error(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"^a has no accuracy or no count of multiply-accumulates"):
        plot_costs(rows_of(tmp_path / "no costs", row("a", 0.9, None)))


# --- all of them


CIRCLE, OTHER = report(c1=layer(circle())), report(other=layer(circle()))
FLIP = Report("flip", 10, {"c1": scaled({0.5: 0.1})})
PLOTS = [plot_errors, plot_angles, plot_factors, plot_training, plot_costs]


@pytest.mark.parametrize(
    ("plot", "arguments", "match"),
    [
        *((plot, [{}], "nothing to plot: give at least one") for plot in PLOTS),
        (plot_errors, [{"a": quarters(c1=math.inf)}], "no finite relative error"),
        (plot_angles, [{"a": CIRCLE}, "c9"], r"layer 'c9'.*did you mean c1"),
        (plot_factors, [{"a": CIRCLE}, "c9"], r"layer 'c9'.*did you mean c1"),
        (plot_angles, [{"a": CIRCLE, "b": OTHER}], "no layer in common"),
        (plot_angles, [{"a": CIRCLE, "b": FLIP}], r"b was measured under flip.*rot72"),
        (plot_factors, [{"a": CIRCLE}], r"a was measured under rot8, which has no scalings: .*scale0\.5"),
    ],
)
def test_what_cannot_be_plotted_is_an_error(plot, arguments, match) -> None:
    with pytest.raises(ValueError, match=match):
        plot(*arguments)


@pytest.mark.parametrize("name", ["a", "a.png", "a.svg"])
def test_both_files_are_whole_and_hold_the_labels(tmp_path, name) -> None:
    from PIL import Image

    figure = plot_errors({"some run": quarters(conv1=0.5, conv2=0.01)})
    png, svg = save_figure(figure, tmp_path / "deep" / name)
    assert (png.name, svg.name) == ("a.png", "a.svg") and len(list(png.parent.iterdir())) == 2
    with Image.open(png) as image:
        assert image.size == (1800, 840) and len(np.unique(np.asarray(image))) > 20
    shown = "".join(ET.parse(svg).getroot().itertext())
    assert all(word in shown for word in ("some run", "conv1", "conv2", "relative error"))


def test_the_same_numbers_give_the_same_bytes_whatever_the_users_settings(tmp_path) -> None:
    given = {"a": report(c1=layer(circle(), 0.01)), "b": report(c1=layer(circle(0.1)))}
    rows = rows_of(tmp_path / "rows", row("a", 0.9), row("b", 0.9))
    own = {"font.size": 30, "axes.facecolor": "red", "text.color": "green"}
    for plot, drawn in ((plot_errors, given), (plot_angles, given), (plot_costs, rows)):
        first = save_figure(plot(drawn), tmp_path / "first")
        with matplotlib.rc_context(own):
            second = save_figure(plot(drawn), tmp_path / "second")
            assert matplotlib.rcParams["font.size"] == 30
        assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_bytes_do_not_depend_on_the_last_bits_of_the_layout(tmp_path) -> None:
    # which is all that differs between two processes: the layout's solver goes by addresses
    def drawn(shift: float) -> matplotlib.figure.Figure:
        figure = matplotlib.figure.Figure()
        axes = figure.add_axes((0.1 + shift, 0.1, 0.8, 0.8))
        axes.plot([1, 3, 2])
        return figure

    written = []
    for shift in (0.0, 1e-13):
        with styled():
            buffer = io.BytesIO()
            drawn(shift).savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
        written.append(buffer.getvalue())
    assert written[0] != written[1]  # so the shift is one that matters
    files = [save_figure(drawn(shift), tmp_path / f"{shift}") for shift in (0.0, 1e-13)]
    for one, other in zip(*files, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_a_failed_write_leaves_the_earlier_files(tmp_path, monkeypatch) -> None:
    figure = plot_errors({"a": quarters(c=1.0)})
    png, _ = save_figure(figure, tmp_path / "a")
    before = png.read_bytes()
    monkeypatch.setattr(figure, "savefig", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError, match=r"a.png could not be written.*No space left"):
        save_figure(figure, tmp_path / "a")
    assert png.read_bytes() == before and len(list(tmp_path.iterdir())) == 2


def test_hostile_names_are_shown_as_text(tmp_path) -> None:
    given = {name: report(**{name: layer(circle()), "c1": layer(circle())}) for name in HOSTILE}
    costs = [row(name.replace("/", ""), 0.9 + i / 100) for i, name in enumerate(HOSTILE)]
    runs = {name: trained(tmp_path / str(i)) for i, name in enumerate(HOSTILE)}
    figures = plot_errors(given), plot_angles(given, "c1"), plot_training(runs)
    for figure in (*figures, plot_costs(rows_of(tmp_path / "rows", *costs))):
        shown = texts(figure)
        for name in ("<b>&amp;'\"", "$\\frac{1}{$", "_hidden", "two lines"):
            assert name in shown
        assert "x" * 70 not in shown


def test_without_matplotlib_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"plotting needs matplotlib: pip install"):
        plot_errors({"a": quarters(c=1.0)})


def test_looks_differ_without_colour_too() -> None:
    looks = looks_of(f"run {i}" for i in range(40)).values()
    assert len({(look.marker, str(look.linestyle)) for look in looks}) == 40
