"""The page of runs in a real browser, headless Chromium: what it shows, moves, loads and survives."""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("playwright.sync_api", reason="the browser tests need pip install playwright")
pytest.importorskip("matplotlib", reason='the page needs pip install "ien[plots]"')

from playwright.sync_api import expect, sync_playwright

import ien
from ien._text import readable
from ien.report.opened import open_runs
from ien.report.page import build
from ien.report.page.explorer import explore
from ien.report.page.model import write_model_page
from ien.report.page.parts import Geometry
from tests.helpers.toy_runs import Page, write_page

HOSTILE = """</script><img src=x onerror=alert(1)>"'&lt;${1}"""
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt-get install chromium"),
    pytest.mark.usefixtures("toy_data"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def path(runs, tmp_path_factory) -> Path:
    return write_page(runs, tmp_path_factory.mktemp("page") / "report.html", images=2, maps=2, measured=4)


@pytest.fixture(scope="module")
def data(path) -> dict[str, Any]:
    return Page(path.read_text(encoding="utf-8")).data


@contextmanager
def opened(browser: Any, path: Path, **options: Any) -> Iterator[Any]:
    """The page, ready; nothing may be complained of, asked for outside the file, or asked of the user."""
    trouble: list[str] = []
    tab = browser.new_page(**options)
    tab.set_default_timeout(5000)
    tab.on("console", lambda message: trouble.append(f"{message.type}: {message.text}"))
    tab.on("pageerror", lambda error: trouble.append(str(error)))
    tab.on("dialog", lambda dialog: (trouble.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    outside = re.compile(rf"(?!{re.escape(path.as_uri())}|data:|blob:)")
    tab.on("request", lambda request: outside.match(request.url) and trouble.append(request.url))
    tab.goto(path.as_uri())
    tab.wait_for_selector(".aligned canvas")
    yield tab
    tab.close()
    assert trouble == []


@pytest.fixture
def tab(browser, path) -> Iterator[Any]:
    with opened(browser, path, viewport={"width": 1200, "height": 1600}) as ready:
        ready.evaluate("moveTo(0)")  # it may open where a prediction changes
        yield ready


def pixels(tab: Any, selector: str) -> np.ndarray[Any, Any]:
    """What a canvas shows: (H, W, 4) bytes."""
    code = """canvas => {
        const {width, height} = canvas;
        return [height, width, ...canvas.getContext("2d").getImageData(0, 0, width, height).data];
    }"""
    height, width, *values = tab.eval_on_selector(selector, code)
    return np.array(values, dtype=np.uint8).reshape(height, width, 4)


def shown(tab: Any, side: str = "left") -> tuple[str, ...]:
    parts = ("predicted", "confidence", "error")
    return tuple(tab.text_content(f".panel.{side} .{part}").split(" not ")[0] for part in parts)


def expected(data: dict[str, Any], run: int, image: int, layer: int, element: int) -> tuple[str, ...]:
    """What the panel should show, from the data block."""
    seen = data["runs"][run]["images"][image]
    confidence = f"{100 * seen['confidence'][element]:.1f} %"
    return str(seen["predicted"][element]), confidence, readable(seen["errors"][layer][element])


def test_the_table_stands_and_the_slider_moves_maps_and_numbers(tab, data, runs) -> None:
    rows = tab.locator("table.runs tbody tr")
    for i, folder in enumerate(runs):
        result, cells = json.loads((folder / "result.json").read_text()), rows.nth(i).locator("td")
        shares = [readable(layer["relative"]) for layer in result["layers"].values()]
        assert cells.all_inner_texts()[0] == f"{100 * result['accuracy']:.2f} %"
        assert cells.all_inner_texts()[6:] == shares
    canvases = ["#input", ".panel.left .returned canvas", ".panel.right .returned canvas", ".aligned canvas"]
    before = [pixels(tab, canvas) for canvas in canvases]
    assert (shown(tab), shown(tab, "right")) == (expected(data, 0, 0, 0, 0), expected(data, 2, 0, 0, 0))
    tab.get_by_role("slider", name="Angle").focus()
    for _ in range(9):
        tab.keyboard.press("ArrowRight")
    assert tab.text_content("#position") == "45°"
    for canvas, old in zip(canvases, before, strict=True):
        assert (pixels(tab, canvas) != old).any(), canvas
    assert (shown(tab), shown(tab, "right")) == (expected(data, 0, 0, 0, 9), expected(data, 2, 0, 0, 9))
    curve = tab.locator("#curve").bounding_box()
    tab.mouse.click(curve["x"] + 44 + (curve["width"] - 54) / 4, curve["y"] + 50)
    assert tab.text_content("#position") == "90°"
    tab.keyboard.press("End")

    # the input is what the group gives
    image = open_runs(runs[:1])[0].images[data["images"][0]["index"]][None]
    for at in (0, 7, 18, 36, 53):
        tab.evaluate(f"moveTo({5 * at})")
        exact = ien.rotation(72).act(image, torch.tensor([at]))[0, 0].numpy() * 255
        difference = np.abs(pixels(tab, "#input")[..., :3] - exact[..., None]).max()
        assert difference <= (0.01 if at % 18 == 0 else 0.51)

    # at quarter turns, maps are rotated back pixel by pixel
    returned, aligned = ".panel.left .returned canvas", ".panel.left .aligned canvas"
    for quarter, name in enumerate(["0°", "90°", "180°", "270°"]):
        tab.get_by_role("button", name=name, exact=True).click()
        assert (pixels(tab, aligned) == np.rot90(pixels(tab, returned), -quarter)).all()


@pytest.mark.parametrize("kind", ["rotation", "scale"])
def test_maps_are_taken_back_by_the_groups_inverse(tab, kind) -> None:
    maps = torch.randint(256, (1, 1, 7, 7)).double()
    group, values = ien.rotation(72), list(range(0, 360, 5))
    if kind == "scale":
        group, values = ien.scale([1.3, 0.6]), [1, 1.3, 0.6]
    code = "([p, kind, v]) => [...resample(p, 7, 7, matrixOf(kind, v)).values]"
    for i, value in enumerate(values):
        back = group.act(maps, torch.tensor([i]), inverse=True)
        found = tab.evaluate(code, [maps.flatten().tolist(), kind, value])
        assert found == pytest.approx(back.flatten().tolist(), abs=1e-3)


def test_image_layer_model_and_scale_can_be_chosen(tab, data, runs) -> None:
    tab.evaluate("moveTo(25)")
    tab.locator("#layer").select_option("conv3")
    assert shown(tab) == expected(data, 0, 0, 2, 5) and tab.text_content("#curve-layer") == "conv3"
    expect(tab.locator(".left .returned canvas").first).to_have_attribute("width", "12")
    tab.get_by_role("radio", name="Test image").nth(0).focus()
    tab.keyboard.press("ArrowRight")
    assert shown(tab) == expected(data, 0, 1, 2, 5)
    tab.locator(".panel.right select").select_option("1")
    assert shown(tab, "right") == expected(data, 1, 1, 2, 5)
    assert tab.text_content(".key.right") == data["runs"][1]["name"]
    tab.locator("#layer").select_option("conv6")
    assert shown(tab)[2] == "–" and "no pixel of so small a map" in tab.text_content(".left .remark")

    tab.locator("#layer").select_option("conv1")
    tab.get_by_label("scale", exact=True).check()
    sweep = data["sweeps"][1]
    middle = sweep["start"] + len(sweep["values"]) // 2
    assert tab.text_content("#position") == "×1" and shown(tab) == expected(data, 0, 1, 0, middle)
    tab.get_by_role("slider", name="Scale").press("End")
    assert tab.text_content("#position") == "×1.25"
    assert shown(tab) == expected(data, 0, 1, 0, sweep["start"] + len(sweep["values"]) - 1)
    assert tab.inner_text(".left .row-name >> nth=1") == "Scaled back"
    image = open_runs(runs[:1])[0].images[data["images"][1]["index"]][None]
    exact = ien.scale(1.25).act(image, torch.tensor([1]))[0, 0].numpy() * 255
    assert np.abs(pixels(tab, "#input")[..., :3] - exact[..., None]).max() <= 0.51


def test_it_plays_and_pauses_and_hops_without_motion(browser, path) -> None:
    with opened(browser, path) as tab:
        tab.get_by_role("button", name="Play").click()
        expect(tab.locator("#position")).not_to_have_text("0°")
        tab.get_by_role("button", name="Pause").click()
        stopped = tab.text_content("#position")
        tab.wait_for_timeout(200)
        assert tab.text_content("#position") == stopped != "0°"
    with opened(browser, path, reduced_motion="reduce") as tab:
        tab.evaluate("seen = []; move = moveTo; moveTo = (place) => { seen.push(place); move(place); }; null")
        tab.clock.install()
        tab.get_by_role("button", name="Play").click()
        tab.clock.run_for(4 * 1500 + 10)
        assert tab.evaluate("seen") == [90, 180, 270, 0]


def test_it_is_readable_in_both_themes_at_all_widths_and_by_keyboard(browser, path) -> None:
    code = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
    with opened(browser, path, color_scheme="dark") as tab:
        assert max(tab.evaluate(code)) < 60
        tab.get_by_role("button", name="Use light colours").click()
        assert min(tab.evaluate(code)) > 200
        count = tab.locator("button:visible, select:visible, input:visible").count()
        tree = tab.locator("body").aria_snapshot()
        controls = re.findall(r"- (button|combobox|slider|radio)\b( \".+?\")?", tree)
        assert len(controls) == count and all(name for _, name in controls), controls
        reached = set()
        for _ in range(60):
            tab.keyboard.press("Tab")
            reached.add(tab.evaluate("document.activeElement.id || document.activeElement.className"))
        assert {"theme", "layer", "play", "slider", "run"} <= reached
        tab.locator("details").evaluate_all("all => all.forEach(one => one.open = true)")
        for width in (320, 800):
            tab.set_viewport_size({"width": width, "height": 700})
            assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_the_view_is_saved_as_a_picture(tab, tmp_path) -> None:
    from PIL import Image

    tab.evaluate("moveTo(90)")
    with tab.expect_download() as waiting:
        tab.get_by_role("button", name="Save as PNG").click()
    assert waiting.value.suggested_filename.endswith("at-90°.png")
    waiting.value.save_as(tmp_path / "view.png")
    with Image.open(tmp_path / "view.png") as picture:
        assert picture.format == "PNG" and picture.width == 1200
        found = np.asarray(picture.convert("RGB"))
    # the input stands at (40, 86) and is 240 pixels large: the middle of each of its pixels
    shown = pixels(tab, "#input")[..., :3]
    places = (np.arange(len(shown)) + 0.5) * 240 / len(shown)
    rows, columns = (86 + places).astype(int), (40 + places).astype(int)
    assert np.array_equal(found[np.ix_(rows, columns)], shown)


def test_everything_fits_a_phone(browser, path) -> None:
    with opened(browser, path, viewport={"width": 390, "height": 844}) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        for image in tab.locator(".plot img").all():
            box = image.bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= 390
            assert image.evaluate("one => one.naturalWidth / one.clientWidth") < 1.6  # text stays legible
        assert tab.locator(".headline dd").count() == 3
        size = tab.locator(".headline dd").first.evaluate("one => parseFloat(getComputedStyle(one).fontSize)")
        assert size >= 28


def test_hostile_names_and_injected_code_do_no_harm(browser, runs, tmp_path) -> None:
    named = [replace(run, name=f"{HOSTILE}{run.folder.name}") for run in open_runs(runs[:2], count=2)]
    exploration = explore(named, [dict.fromkeys(run.layers, 1.0) for run in named], images=1, maps=1)
    text = build._page(named, [Geometry(None, HOSTILE)] * 2, [], exploration)
    path = tmp_path / "report.html"
    path.write_text(text, encoding="utf-8")
    with opened(browser, path) as tab:
        tab.evaluate("moveTo(90)")
        assert tab.locator("img").count() == 0
        assert tab.locator(".panel.left option").all_text_contents() == [run.name for run in named]
        assert tab.text_content(".key.left") == named[0].name

    attack = "<img src=x onerror=alert(1)><script>alert(2)</script></body>"
    path.write_text(text.replace("</body>", attack), encoding="utf-8")
    tab, dialogs = browser.new_page(), []
    tab.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    tab.goto(path.as_uri())
    tab.wait_for_selector(".aligned canvas")
    tab.close()
    assert dialogs == []


class Halves(nn.Module):
    """Says whether the image is brighter above or below."""

    def __init__(self) -> None:
        super().__init__()
        self.halves = nn.AvgPool2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 20 * self.halves(x).mean((1, 3))  # (B, 2)


def test_the_page_of_a_model_opens_where_its_prediction_changes(browser, tmp_path) -> None:
    images = torch.zeros(3, 1, 8, 8)
    images[1, :, :4] = 1  # white above: a half turn changes what is predicted
    names = ["black.png", "above.png", "dark.png"]
    path = tmp_path / "report.html"
    options = {"name": "net.py:build", "group": ien.rotation(4), "layers": ["halves"], "image_names": names}
    write_model_page(Halves(), images, path, **options)
    with opened(browser, path) as tab:
        assert tab.text_content("#position") == "180°" and tab.text_content("#label") == "above.png"
        assert tab.text_content(".panel.left .predicted") == "1 was 0"
        assert tab.locator(".panel.right").count() == 0
        marked = tab.locator("#curve .change.left").count()
        predicted = Page(path.read_text(encoding="utf-8")).data["runs"][0]["images"][0]["predicted"]
        assert marked == sum(seen != 0 for seen in predicted) > 30
        tab.evaluate("moveTo(0)")
        assert tab.text_content(".panel.left .predicted") == "0"


def test_masks_rotate_with_the_image_and_predictions_are_drawn(browser, segment_runs, tmp_path) -> None:
    path = write_page(segment_runs, tmp_path / "report.html", images=2, maps=1)
    data = Page(path.read_text(encoding="utf-8")).data
    with opened(browser, path, viewport={"width": 1200, "height": 1600}) as tab:
        tab.wait_for_function("masksOf(0) && masksOf(1)")
        tab.evaluate("moveTo(0)")
        truth = pixels(tab, "#truth")
        assert len(np.unique(truth.reshape(-1, 4), axis=0)) == 2  # background and disc
        for quarter in range(4):
            tab.evaluate(f"moveTo({90 * quarter})")
            assert np.array_equal(pixels(tab, "#truth"), np.rot90(truth, quarter))
            for side, run in (("left", 0), ("right", 1)):
                returned = pixels(tab, f".panel.{side} .mask")
                assert np.array_equal(pixels(tab, f".panel.{side} .mask-back"), np.rot90(returned, -quarter))
                found = data["runs"][run]["images"][0]["dice"][18 * quarter]
                expected = "–" if found is None else f"{found:.3f}"
                assert tab.text_content(f".panel.{side} .dice") == expected
        tab.evaluate("moveTo(45)")
        assert (pixels(tab, "#truth")[0, 0] == 0).all()  # a corner that has left the frame


@pytest.mark.parametrize(("channels", "text"), [(2, "%"), (1, "")])
def test_the_page_of_a_model_of_maps_shows_how_far_they_change(browser, tmp_path, channels, text) -> None:
    torch.manual_seed(0)
    path = tmp_path / "report.html"
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, channels, 3, padding=1))
    write_model_page(net, torch.rand(3, 1, 8, 8), path, name="net.py:build", group=ien.rotation(4))
    with opened(browser, path) as tab:
        assert tab.text_content("#position") in ("90°", "180°", "270°")
        shown = tab.text_content(".panel.left .changed")
        assert shown.endswith(text) and float(shown.removesuffix("%")) > 0
        tab.evaluate("moveTo(0)")
        assert float(tab.text_content(".panel.left .changed").removesuffix("%")) == 0
        assert tab.locator(".bars, #curve .change").count() == 0
