"""A report prints, and saves every number as JSON, Markdown and HTML."""

import json
from collections import OrderedDict

import pytest
from torch import nn

import ien
from tests.helpers.losses import R4, R8, images, net


def test_report_prints_a_table() -> None:
    report = ien.measure(net(), images(3), "rot4", ["1", "3"], 4)
    title, *rows = str(report).splitlines()
    assert title == "equivariance to rot4 over 3 images"
    assert [row.split()[0] for row in rows] == ["layer", "1", "3"]
    regular = ien.measure(net(), images(3), "rot4", ["1"], 4, action="regular")
    assert regular.title == "equivariance to rot4 (regular action) over 3 images"
    assert report.worst == max(((n, r.relative) for n, r in report.layers.items()), key=lambda item: item[1])


SPLIT = ["quarter turns, flips", "in between"]


@pytest.mark.parametrize(
    ("group", "feature_groups", "floors", "columns"),
    [
        (R4, 1, False, []),
        (R4, 4, True, ["floor", "diversity"]),
        (R8, 1, True, [*SPLIT, "floor"]),
        (R4 * ien.scale([0.7, 1.4]), 1, False, [SPLIT[0], "resampled", "×0.7", "×1.4"]),
        (ien.scale([0.9 + k / 100 for k in range(9)]), 1, False, []),  # too many for columns
    ],
)
def test_columns_stand_for_what_was_measured(group, feature_groups, floors, columns) -> None:
    report = ien.measure(net(), images(4, 12), group, ["1", "3"], feature_groups, floors=floors)
    header, rows = report.table()
    assert header == ["layer", "map", "raw", "relative", "95 % interval", *columns]
    for row, layer in zip(rows, report.layers.values(), strict=True):
        cells = dict(zip(header, row, strict=True))
        numbers = {"raw": layer.raw, "relative": layer.relative, SPLIT[0]: layer.exact}
        numbers |= {"floor": layer.floor, "diversity": layer.diversity}
        numbers |= {"in between": layer.between, "resampled": layer.between, **layer.per_element}
        assert cells["map"] == f"{layer.size[0]}×{layer.size[1]}"
        for name in ("raw", "relative", *columns):
            assert float(cells[name]) == pytest.approx(numbers[name], rel=0.06), name
    for label in group.labels[1:]:
        assert f"| {label} |" in report.to_markdown()


def test_many_accuracies_are_summed_up() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).double()
    y = model(images(9)).argmax(1)
    report = ien.measure(model, images(9, 13), "rot12", labels=y, floors=False)
    line = str(report).splitlines()[-1]
    assert line.startswith("accuracy: identity ") and ", at worst " in line and line.count("%") == 2
    assert f"{report.output.elements['30°'].flip_rate:.2%} |" in report.to_markdown()


def test_a_saved_report_holds_every_number_and_escapes_names(tmp_path) -> None:
    model = nn.Sequential(OrderedDict({"<b>&": nn.Conv2d(1, 4, 3), "a|b": nn.ReLU()})).double()
    report = ien.measure(model, images(4), "rot8", feature_groups=4)
    assert report.save(tmp_path / "new") == tmp_path / "new"
    names = ("report.json", "report.md", "report.html")
    json_text, markdown, page = ((tmp_path / "new" / name).read_text(encoding="utf-8") for name in names)
    content = json.loads(json_text)
    assert content == json.loads(json.dumps(report.to_dict()))
    for name, layer in report.layers.items():
        assert content["layers"][name]["relative"] == layer.relative
        assert content["layers"][name]["between"] == layer.between
        assert content["layers"][name]["elements"]["45°"]["floor"] == layer.elements["45°"].floor
    assert r"a\|b" in markdown and "Equivariance to rot8 over 4 images" in markdown
    for text in (markdown, page):
        assert "<b>" not in text and "&lt;b&gt;&amp;" in text
    assert "http://" not in page and "https://" not in page


def test_what_is_not_a_number_becomes_null(tmp_path) -> None:
    model, x = nn.Sequential(nn.Conv2d(1, 4, 8)).double(), images(3)  # 2×2 maps
    ien.measure(model, x, R8, ["0"], feature_groups=4).save(tmp_path)
    text = (tmp_path / "report.json").read_text()
    content = json.loads(text, parse_constant=lambda constant: pytest.fail(constant))
    assert content["layers"]["0"]["elements"]["45°"]["relative"] is None
    assert content["layers"]["0"]["elements"]["45°"]["floor"] is None
