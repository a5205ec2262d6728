"""What a notebook shows: tables as HTML, one-line reprs, plots, data frames; names that are near."""

import json
import subprocess
import sys
from html.parser import HTMLParser

import pytest
import torch
from torch import nn

import ien
from ien.tying.listening import Evidence
from tests.helpers import reports
from tests.helpers.losses import images, net
from tests.helpers.nets import digit_like_classifier

HEARD = Evidence(32, signal=2.0, deviation=0.4)


class Cells(HTMLParser):
    """The text of all cells of a page, and of what stands around them; tags must close in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs) -> None:
        if tag != "br":
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data
        self.text += data


def shown() -> dict[str, object]:
    model = digit_like_classifier()
    strided = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU())
    tied = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 2, 3))
    return {
        "report": ien.measure(net(), images(3), "rot4", ["1", "3"], 4),
        "output": ien.measure(model, torch.rand(4, 1, 9, 9), "rot4").output,
        "layer": ien.measure(net(), images(3), "rot4", ["1"]).layers["1"],
        "diagnosis": ien.doctor(strided, (1, 8, 8)),
        "exact": ien.doctor(strided, (1, 9, 9)),
        "tied": ien.make_equivariant(tied, "rot4", torch.rand(2, 1, 9, 9)),
        "symmetry": ien.Symmetry(ien.rotation(4), HEARD, {"conv1": HEARD}, None, 900),
        "metric": ien.EquivarianceError("rot4"),
    }


def test_reprs_are_one_short_line_that_starts_with_the_class() -> None:
    for name, value in shown().items():
        line = repr(value)
        assert line.startswith(f"{type(value).__name__}(") and line.endswith(")"), name
        assert "\n" not in line and len(line) < 130, line


@pytest.mark.parametrize("name", ["report", "diagnosis", "exact", "tied", "symmetry"])
def test_html_shows_what_print_shows(name) -> None:
    value = shown()[name]
    page = Cells(value._repr_html_())
    words = page.text.split()
    for line in str(value).splitlines():
        line = line.replace("  why: ", "").replace("  cost: ", "").replace("  remedy: ", "")
        for word in line.replace(", on", "").replace(":", "").split():
            assert any(word in other.replace(":", "") for other in words), (word, line)


def test_html_has_the_cells_of_the_table_and_escapes_names() -> None:
    report = reports.report(**{"<b>1</b>": reports.layer({90.0: 0.5})})
    header, rows = report.table()
    assert Cells(report._repr_html_()).cells == [*header, *rows[0]]
    assert "<b>" not in report._repr_html_()


def test_a_plot_of_a_report_is_a_figure_that_a_notebook_shows() -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    report = reports.report(conv1=reports.layer(reports.circle()), conv2=reports.layer(reports.circle(0.1)))
    figure = report.plot()
    drawn = [line.get_ydata() for axes in figure.axes for line in axes.lines if line.get_label() == "rot8"]
    exact, between = ([layer.exact, layer.between] for layer in report.layers.values())
    assert [list(panel) for panel in drawn] == [
        pytest.approx(pair) for pair in zip(exact, between, strict=True)
    ]
    assert isinstance(figure, Figure) and figure._repr_png_().startswith(b"\x89PNG")
    assert len(report.plot("angles", layer="conv1").axes) == 1
    scaled = ien.Report("scale0.7,1.4", 10, {"conv1": reports.scaled({0.7: 0.1, 1.4: 0.2})})
    assert len(scaled.plot("factors").axes) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["angle"], "no kind of plot 'angle': did you mean angles"),
        (["layers", "conv1"], "all layers are drawn; got layer='conv1': use it with kind=\"angles\""),
        (["angles", "conv9"], "conv9"),
        (["factors"], "no scalings"),
    ],
)
def test_what_cannot_be_plotted_is_said_in_one_line(arguments, message) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match=message) as error:
        reports.report(conv1=reports.layer(reports.circle())).plot(*arguments)
    assert "\n" not in str(error.value)


def test_the_data_frame_has_a_row_for_each_layer_and_element() -> None:
    pandas = pytest.importorskip("pandas")
    report = ien.measure(net(), images(3), "rot4", ["1", "3"], 4)
    frame = report.to_pandas()
    assert len(frame) == 6 and list(frame["element"][:3]) == ["90°", "180°", "270°"]
    for name, layer in report.layers.items():
        mean = frame[frame.layer == name].relative.mean()
        assert mean == pytest.approx(layer.relative)
    first = report.layers["1"].elements["90°"]
    assert (frame.low[0], frame.high[0]) == first.interval and frame.floor[0] == first.floor
    assert isinstance(frame, pandas.DataFrame)


def test_without_pandas_one_line_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        ModuleNotFoundError, match=r"^to_pandas needs pandas: pip install pandas, or use to_dict\(\)$"
    ):
        ien.measure(net(), images(3), "rot4", ["1"]).to_pandas()


def test_scalars_are_the_numbers_of_the_report() -> None:
    x = torch.rand(6, 1, 9, 9)
    report = ien.measure(digit_like_classifier(), x, "rot4", labels=torch.zeros(6, dtype=torch.long))
    scalars = report.scalars()
    for name, layer in report.layers.items():
        assert scalars[f"equivariance/rot4/{name}"] == layer.relative
    output = {key.rsplit("/", 1)[1]: value for key, value in scalars.items() if "/output/" in key}
    assert output == {
        "flip_rate": report.output.flip_rate,
        "agreement": report.output.agreement,
        "accuracy": report.accuracy["identity"],
        "worst_accuracy": min(report.accuracy.values()),
    }


@pytest.mark.parametrize(
    ("name", "near"), [("mesure", "measure"), ("rotations", "rotation"), ("Tide", "Tied")]
)
def test_a_wrong_name_gets_a_near_one(name, near) -> None:
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'; did you mean {near}"):
        getattr(ien, name)
    assert not hasattr(ien, "_repr_html_")
    with pytest.raises(AttributeError, match=r"has no attribute '_private'$"):
        _ = ien._private


@pytest.mark.slow
def test_folders_load_when_they_are_used_and_not_before() -> None:
    code = """if True:
        import ien, json, sys
        lazy = ["ien.data", "ien.models", "ien.measuring.callbacks"]
        before = [name for name in lazy if name in sys.modules]
        found = [ien.data.embedded_digits.__module__, ien.models.__name__, dir(ien.callbacks)]
        heavy = [name for name in ("lightning", "transformers", "pandas") if name in sys.modules]
        print(json.dumps([before, found, heavy]))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, found, heavy = json.loads(done.stdout)
    assert before == [] and heavy == []
    assert found == ["ien.data.digits", "ien.models", ["HuggingFaceCallback", "LightningCallback"]]
