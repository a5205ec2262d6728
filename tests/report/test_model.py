"""The page of any model: what it shows of classifiers, of maps and of other outputs."""

import base64
import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("matplotlib", reason='the page needs pip install "ien[plots]"')

import ien
from ien.report.page import model as model_page
from ien.report.page.model import write_model_page
from tests.helpers.toy_runs import Page

IMAGES = torch.rand(6, 3, 12, 12, generator=torch.Generator().manual_seed(0))
HOSTILE = """</script><img src=x onerror=alert(1)>"'&lt;${1}"""


def body() -> list[nn.Module]:
    torch.manual_seed(1)
    return [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()]


NETS = {
    "classes": lambda: nn.Sequential(*body(), nn.Flatten(), nn.Linear(4 * 144, 5)),
    "pixels": lambda: nn.Sequential(*body(), nn.Conv2d(4, 3, 1)),
    "values": lambda: nn.Sequential(*body(), nn.Flatten(), nn.Linear(4 * 144, 1)),
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(model_page, "SHOWN_IMAGES", 2)
    monkeypatch.setattr(model_page, "SHOWN_MAPS", 1)
    monkeypatch.setattr(model_page, "CURVE_IMAGES", 3)


def written(path: Path, net: nn.Module, **options) -> Page:
    arguments = {"name": "net.py:build", "group": ien.rotation(4)} | options
    return Page(write_model_page(net, IMAGES, path, **arguments).read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", NETS)
def test_the_page_shows_what_the_output_allows(kind, tmp_path) -> None:
    net = NETS[kind]()
    page = written(tmp_path / "page.html", net)
    assert page.data["kind"] == kind and len(page.data["images"]) == 2
    report = ien.measure(net, IMAGES, "rot4")
    for row in report.table()[1]:
        assert " ".join(row) in page.text  # the numbers of measure, cell by cell
    for remark in report.remarks():
        assert remark in page.text
    assert "Measured on 3 images" in page.text
    assert ("not exact" in page.text) == (kind != "pixels")  # a linear layer sees positions
    named = {"classes": "probability", "pixels": "pixels that change", "values": "error of the output"}
    for other, text in named.items():
        assert (text in page.text) == (other == kind)
    assert ("Error and predictions at each angle" in page.text) == (kind != "pixels")
    for image in page.named("img"):
        assert b"</svg>" in base64.b64decode(str(image["src"]).partition(",")[2])


def test_the_model_itself_settings_notes_and_names_are_shown_as_text(tmp_path) -> None:
    net = nn.Conv2d(3, 4, 3)
    names = [f"{HOSTILE}{i}" for i in range(6)]
    page = written(
        tmp_path / "new" / "page.html",
        net,
        name=HOSTILE,
        image_names=names,
        settings={"weights": HOSTILE},
        notes=[HOSTILE],
    )
    assert page.data["runs"][0]["layers"][0]["name"] == "the model itself"
    assert page.data["images"][0]["name"] in names and page.text.count(HOSTILE) >= 5
    assert len(page.named("img")) == 2 and len(page.scripts) == 2  # the plots; the data and the explorer
    assert "3×12×12" in page.text and "rot4" in page.text


def test_a_group_that_scales_has_factors(tmp_path) -> None:
    page = written(tmp_path / "page.html", NETS["classes"](), group=ien.scale([0.7]), layers=["1"])
    (sweep,) = page.data["sweeps"]
    assert sweep["kind"] == "scale" and 0.7 in sweep["marks"]
    assert [layer["name"] for layer in page.data["runs"][0]["layers"]] == ["1"]


def test_nothing_outside_the_file_is_named(tmp_path) -> None:
    written(tmp_path / "page.html", NETS["classes"]())
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "://" not in text
    assert not re.search(r'(src|href)="(?!#|data:)', text)


@pytest.mark.parametrize(
    ("net", "images", "message"),
    [
        (NETS["classes"](), IMAGES[:1], "at least two images"),
        (NETS["classes"](), IMAGES[..., :10], "must be square; these are 12×10: scale them, as by --size"),
        (NETS["classes"](), IMAGES[:, :1], "the model fails on images 1×12×12"),
        (nn.Flatten(0), IMAGES, "which is not understood"),
    ],
)
def test_bad_input_is_refused_before_the_work(net, images, message, tmp_path) -> None:
    said: list[str] = []
    with pytest.raises(ValueError, match=message):
        write_model_page(
            net, images, tmp_path / "p.html", name="n", group=ien.rotation(4), progress=said.append
        )
    assert not said and not list(tmp_path.iterdir())


def test_the_explorers_data_are_json_that_python_reads_too(tmp_path) -> None:
    page = written(tmp_path / "page.html", NETS["values"]())
    assert json.loads(page.scripts[0])["images"][0]["label"] is None
