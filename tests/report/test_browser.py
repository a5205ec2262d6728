"""The HTML report in a real browser, headless Chromium: what it shows, moves, loads and survives."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

pytest.importorskip("playwright.sync_api", reason="the browser tests need pip install playwright")
pytest.importorskip("jinja2", reason='the report needs pip install "ien[plots]"')
pytest.importorskip("matplotlib", reason='the report needs pip install "ien[plots]"')

from playwright.sync_api import expect, sync_playwright

import ien
import ien.data
from ien.report.opened import OpenedRun
from ien.report.page import build as html
from ien.report.page import render
from ien.report.page.explorer import explore
from tests.helpers import toy
from tests.report.test_page import HOSTILE, Page, make_runs, write

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
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
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_runs(tmp_path_factory)


@pytest.fixture(scope="module")
def report(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(runs, tmp_path_factory.mktemp("report") / "report.html", images=2, maps=2, measured=4)


@pytest.fixture(scope="module")
def data(report: Path) -> dict[str, Any]:
    return Page(report.read_text(encoding="utf-8")).data


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
def tab(browser: Any, report: Path) -> Iterator[Any]:
    with opened(browser, report) as ready:
        yield ready


def pixels(tab: Any, selector: str) -> numpy.ndarray[Any, Any]:
    """What a canvas shows: (H, W, 4) bytes."""
    code = """canvas => {
        const {width, height} = canvas;
        return [height, width, ...canvas.getContext("2d").getImageData(0, 0, width, height).data];
    }"""
    height, width, *values = tab.eval_on_selector(selector, code)
    return numpy.array(values, dtype=numpy.uint8).reshape(height, width, 4)


def shown(tab: Any, side: str = "left") -> tuple[str, ...]:
    parts = ("predicted", "confidence", "error")
    return tuple(tab.text_content(f".panel.{side} .{part}").split(" not ")[0] for part in parts)


def expected(data: dict[str, Any], run: int, image: int, layer: int, element: int) -> tuple[str, ...]:
    """What the panel should show, from the data block."""
    seen = data["runs"][run]["images"][image]
    error = seen["errors"][layer][element]
    small = error is not None and error != 0 and not 0.01 <= error < 100
    number = "–" if error is None else f"{error:.1e}" if small else f"{error:.2g}"
    number = re.sub(r"e([+-])0*(\d)", r"e\1\2", number)
    return str(seen["predicted"][element]), f"{100 * seen['confidence'][element]:.1f} %", number


# --- what it shows


def test_the_numbers_shown_are_those_of_the_results(tab: Any, runs: list[Path]) -> None:
    rows = tab.locator("table.runs tbody tr")
    assert rows.count() == len(runs)
    for i, folder in enumerate(runs):
        result, cells = json.loads((folder / "result.json").read_text()), rows.nth(i).locator("td")
        assert cells.nth(0).inner_text() == f"{100 * result['accuracy']:.2f} %"
        assert cells.nth(1).inner_text() == f"{100 * result['accuracy_with_copies']:.2f} %"
        assert re.sub(r"\s", "", cells.nth(2).inner_text()) == str(result["parameters"])
        assert re.sub(r"\s", "", cells.nth(3).inner_text()) == str(result["macs"])
        for k, layer in enumerate(result["layers"].values()):
            assert float(cells.nth(5 + k).inner_text()) == pytest.approx(layer["relative"], rel=0.06)
            assert float(cells.nth(5 + k).get_attribute("data-value")) == layer["relative"]


def test_the_slider_moves_picture_maps_and_numbers_by_keyboard(tab: Any, data: dict[str, Any]) -> None:
    canvases = ["#input", ".panel.left .returned canvas", ".panel.right .returned canvas", ".aligned canvas"]
    before = [pixels(tab, canvas) for canvas in canvases]
    assert (shown(tab), shown(tab, "right")) == (expected(data, 0, 0, 0, 0), expected(data, 2, 0, 0, 0))
    tab.get_by_role("slider", name="Angle").focus()
    for _ in range(9):
        tab.keyboard.press("ArrowRight")
    assert tab.text_content("#position") == "45°"
    assert tab.get_by_role("slider").get_attribute("aria-valuetext") == "45°"
    for canvas, old in zip(canvases, before, strict=True):
        assert (pixels(tab, canvas) != old).any(), canvas
    assert (shown(tab), shown(tab, "right")) == (expected(data, 0, 0, 0, 9), expected(data, 2, 0, 0, 9))
    tab.keyboard.press("End")
    assert tab.text_content("#position") == "360°"
    for canvas, old in zip(canvases, before, strict=True):
        assert (pixels(tab, canvas) == old).all(), canvas


def test_the_slider_follows_the_mouse(tab: Any) -> None:
    tab.set_viewport_size({"width": 1200, "height": 1600})  # all of it in sight
    place = tab.locator("#slider").bounding_box()
    tab.mouse.click(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    assert tab.text_content("#position") == "180°"
    curve = tab.locator("#curve").bounding_box()
    tab.mouse.click(curve["x"] + 44 + (curve["width"] - 54) / 4, curve["y"] + 50)
    assert tab.text_content("#position") == "90°"


def test_the_input_shown_is_what_the_group_gives(tab: Any, data: dict[str, Any], runs: list[Path]) -> None:
    image = html.open_runs(runs[:1])[0].images[data["images"][0]["index"]][None]
    for at in (0, 7, 18, 36, 53):
        tab.evaluate(f"moveTo({5 * at})")
        exact = ien.rotation(72).act(image, torch.tensor([at]))[0, 0].numpy() * 255
        drawn = pixels(tab, "#input")
        assert numpy.abs(drawn[..., :3] - exact[..., None]).max() <= (0.01 if at % 18 == 0 else 0.51)


@pytest.mark.parametrize("track", ["rotation", "scale"])
def test_maps_are_taken_back_by_the_groups_inverse(tab: Any, track: str) -> None:
    maps = torch.randint(256, (1, 1, 7, 7)).double()
    group, values = (
        (ien.rotation(72), range(0, 360, 5))
        if track == "rotation"
        else (ien.scale([1.3, 0.6]), [1, 1.3, 0.6])
    )
    code = "([p, kind, v]) => [...resample(p, 7, 7, matrixOf(kind, v)).values]"
    for i, value in enumerate(values):
        back = group.act(maps, torch.tensor([i]), inverse=True)
        found = tab.evaluate(code, [maps.flatten().tolist(), track, value])
        assert found == pytest.approx(back.flatten().tolist(), abs=1e-3)


def test_an_equivariant_picture_stands_still_at_quarter_turns(tab: Any) -> None:
    returned, aligned = ".panel.left .returned canvas", ".panel.left .aligned canvas"
    for quarter, name in enumerate(["0°", "90°", "180°", "270°"]):
        tab.get_by_role("button", name=name, exact=True).click()
        assert tab.text_content("#position") == name
        assert (pixels(tab, aligned) == numpy.rot90(pixels(tab, returned), -quarter)).all()


def test_maps_are_drawn_from_the_stored_frames(tab: Any, data: dict[str, Any]) -> None:
    decoded = numpy.array(tab.evaluate("[...decoded.get('0/0/0')[0].slice(20 * 576, 21 * 576)]"))
    assert decoded.min() >= 0 and decoded.max() > decoded.min()
    tab.evaluate("moveTo(100)")
    colours = numpy.array(tab.evaluate("COLOURS"))
    drawn = pixels(tab, ".panel.left .returned canvas:first-child")
    assert (drawn[..., :3].reshape(-1, 3) == colours[decoded]).all()


def test_image_layer_and_model_can_be_chosen(tab: Any, data: dict[str, Any]) -> None:
    tab.evaluate("moveTo(25)")
    tab.locator("#layer").select_option("conv3")
    assert shown(tab) == expected(data, 0, 0, 2, 5) and tab.text_content("#curve-layer") == "conv3"
    expect(tab.locator(".left .returned canvas").first).to_have_attribute("width", "12")
    tab.get_by_role("radio", name="Test image").nth(0).focus()
    tab.keyboard.press("ArrowRight")
    assert shown(tab) == expected(data, 0, 1, 2, 5)
    assert tab.text_content("#label") == str(data["images"][1]["label"])
    tab.locator(".panel.right select").select_option("1")
    assert shown(tab, "right") == expected(data, 1, 1, 2, 5)
    assert tab.text_content(".key.right") == data["runs"][1]["name"]
    tab.locator("#layer").select_option("conv6")
    assert shown(tab)[2] == "–" and "no pixel of so small a map" in tab.text_content(".left .remark")


def test_scales_have_a_slider_where_a_group_has_them(tab: Any, data: dict[str, Any]) -> None:
    tab.get_by_label("scale", exact=True).check()
    values, start = data["tracks"][1]["values"], data["tracks"][1]["start"]
    middle = start + len(values) // 2
    assert tab.text_content("#position") == "×1" and shown(tab) == expected(data, 0, 0, 0, middle)
    before = pixels(tab, "#input")
    tab.get_by_role("slider", name="Scale").press("End")
    assert tab.text_content("#position") == "×1.25" and (pixels(tab, "#input") != before).any()
    assert shown(tab) == expected(data, 0, 0, 0, start + len(values) - 1)
    assert tab.inner_text(".left .row-name >> nth=1") == "Scaled back"
    tab.get_by_label("turn", exact=True).check()
    assert tab.text_content("#position") == "0°"


@pytest.fixture(scope="module")
def scaled(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of a run that only scales."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ien.data.DATASETS, "toy", toy.DATASETS["toy"])
        subjects = html.open_runs(runs[2:], count=2)
    other: Any = [replace(s, group=ien.scale([0.7, 1.25]), config=None) for s in subjects]  # type: ignore[arg-type]
    exploration = explore(other, [dict.fromkeys(s.layers, 1.0) for s in subjects], images=1, maps=1)
    path = tmp_path_factory.mktemp("scaled") / "report.html"
    path.write_text(render.page(subjects, [render.Examined(None, "")], [], exploration), encoding="utf-8")
    return path


def test_runs_that_only_scale_have_a_slider_over_factors_with_one_in_the_middle(
    browser: Any, scaled: Path, runs: list[Path]
) -> None:
    data = Page(scaled.read_text(encoding="utf-8")).data
    (track,) = data["tracks"]
    image = html.open_runs(runs[2:])[0].images[data["images"][0]["index"]][None]
    with opened(browser, scaled, viewport={"width": 1200, "height": 1600}) as tab:
        assert tab.locator("input[name=track]").count() == 0
        slider = tab.get_by_role("slider", name="Scale")
        assert tab.text_content("#position") == "×1" and slider.get_attribute("aria-valuetext") == "×1"
        place = slider.bounding_box()
        slider.press("Home")
        assert tab.text_content("#position") == "×0.7"
        canvases = ["#input", ".returned canvas", ".aligned canvas"]
        before = [pixels(tab, canvas) for canvas in canvases]
        tab.mouse.click(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
        assert tab.text_content("#position") == "×1"
        for canvas, old in zip(canvases, before, strict=True):
            assert (pixels(tab, canvas) != old).any(), canvas
        for at, factor in enumerate(track["values"]):
            tab.evaluate(f"moveTo({at})")
            exact = image if factor == 1 else ien.scale(factor).act(image, torch.tensor([1]))
            drawn = pixels(tab, "#input")[..., :3] - 255 * exact[0, 0].numpy()[..., None]
            assert numpy.abs(drawn).max() <= 0.51
            assert shown(tab) == expected(data, 0, 0, 0, at)


def test_recorded_factors_are_marked_on_slider_and_curve(browser: Any, scaled: Path) -> None:
    (track,) = Page(scaled.read_text(encoding="utf-8")).data["tracks"]
    places = [track["values"].index(factor) for factor in (0.7, 1, 1.25)]
    with opened(browser, scaled, viewport={"width": 1200, "height": 1600}) as tab:
        assert tab.get_attribute("#slider", "list") == "marks"
        options = tab.locator("#marks option").evaluate_all("all => all.map(one => Number(one.value))")
        assert options == places
        assert tab.locator("#snaps button").all_text_contents() == ["×0.7", "×1", "×1.25"]
        tab.get_by_role("button", name="×1.25", exact=True).click()
        assert tab.text_content("#position") == "×1.25"
        ends = "all => all.map((l) => [l.x1, l.x2].map((x) => x.baseVal.value))"
        lines = tab.locator("#curve line.grid").evaluate_all(ends)
        marked = [x1 for x1, x2 in lines if x1 == x2]
        curve = tab.locator("#curve").bounding_box()
        across = [
            44 + (numpy.log(f) / numpy.log(0.7) * -0.5 + 0.5) * (curve["width"] - 54) for f in track["marks"]
        ]
        assert marked == pytest.approx(across, abs=0.5)
        for factor, x in zip(track["marks"], across, strict=True):
            tab.mouse.click(curve["x"] + x, curve["y"] + 50)
            assert tab.text_content("#position") == f"×{factor:g}"


# --- how it behaves


def test_it_plays_and_pauses(tab: Any) -> None:
    tab.get_by_role("button", name="Play").click()
    expect(tab.locator("#position")).not_to_have_text("0°")
    tab.get_by_role("button", name="Pause").click()
    stopped = tab.text_content("#position")
    tab.wait_for_timeout(200)
    assert tab.text_content("#position") == stopped != "0°"


def test_without_motion_it_hops_from_quarter_to_quarter(browser: Any, report: Path) -> None:
    with opened(browser, report, reduced_motion="reduce") as tab:
        tab.evaluate("seen = []; move = moveTo; moveTo = (place) => { seen.push(place); move(place); }; null")
        tab.clock.install()
        tab.get_by_role("button", name="Play").click()
        tab.clock.run_for(4 * 1500 + 10)
        assert tab.evaluate("seen") == [90, 180, 270, 0]


def test_colours_follow_the_system_and_the_button(browser: Any, report: Path) -> None:
    code = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
    with opened(browser, report, color_scheme="dark") as tab:
        assert max(tab.evaluate(code)) < 60
        tab.get_by_role("button", name="Use light colours").click()
        assert min(tab.evaluate(code)) > 200
    with opened(browser, report, color_scheme="light") as tab:
        assert min(tab.evaluate(code)) > 200
        tab.get_by_role("button", name="Use dark colours").click()
        assert max(tab.evaluate(code)) < 60


def test_no_width_scrolls_sideways(tab: Any) -> None:
    code = "document.documentElement.scrollWidth"
    tab.locator("details").evaluate_all("all => all.forEach(one => one.open = true)")
    for width in (320, 380, 800):
        tab.set_viewport_size({"width": width, "height": 700})
        for choice in ("turn", "scale"):
            tab.get_by_label(choice, exact=True).check()
            assert tab.evaluate(code) <= width


def test_every_control_has_a_name_and_can_be_reached(tab: Any) -> None:
    count = tab.locator("button:visible, select:visible, input:visible").count()
    names = set()
    for _ in range(60):
        tab.keyboard.press("Tab")
        names.add(tab.evaluate("document.activeElement.id || document.activeElement.className"))
    assert {"theme", "layer", "play", "slider", "run"} <= names
    tree = tab.locator("body").aria_snapshot()
    controls = re.findall(r"- (button|combobox|slider|radio)\b( \".+?\")?", tree)
    assert len(controls) == count and all(name for _, name in controls), controls


def quick_page(subjects: list[OpenedRun], path: Path) -> Path:
    """A page with the explorer alone."""
    exploration = explore(subjects, [dict.fromkeys(s.layers, 1.0) for s in subjects], images=1, maps=1)
    examined = [render.Examined(None, HOSTILE)] * len(subjects)
    path.write_text(render.page(subjects, examined, [], exploration), encoding="utf-8")
    return path


def test_one_run_alone_has_one_panel(browser: Any, runs: list[Path], tmp_path: Path) -> None:
    with opened(browser, quick_page(html.open_runs(runs[:1], count=2), tmp_path / "report.html")) as tab:
        assert tab.locator(".panel").count() == 1 and tab.locator(".key").count() == 1
        assert tab.locator("input[name=track]").count() == 0
        tab.get_by_role("button", name="90°", exact=True).click()
        assert tab.text_content("#position") == "90°"


def test_hostile_names_do_no_harm(browser: Any, runs: list[Path], tmp_path: Path) -> None:
    subjects = [replace(s, name=f"{HOSTILE}{s.folder.name}") for s in html.open_runs(runs[:2], count=2)]
    with opened(browser, quick_page(subjects, tmp_path / "report.html")) as tab:
        tab.evaluate("moveTo(90)")
        assert tab.locator("img").count() == 0
        assert tab.locator(".panel.left option").all_text_contents() == [s.name for s in subjects]
        assert tab.text_content(".key.left") == subjects[0].name


def test_an_injected_handler_would_not_run(browser: Any, report: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    attack = "<img src=x onerror=alert(1)><script>alert(2)</script></body>"
    path.write_text(report.read_text(encoding="utf-8").replace("</body>", attack), encoding="utf-8")
    tab, dialogs = browser.new_page(), []
    tab.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    tab.goto(path.as_uri())
    tab.wait_for_selector(".aligned canvas")
    tab.close()
    assert dialogs == []
