"""The HTML report without a browser: its numbers, its size, what it escapes and what it refuses."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shutil
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

pytest.importorskip("jinja2", reason='the report needs pip install "ien[plots]"')
pytest.importorskip("matplotlib", reason='the report needs pip install "ien[plots]"')

import ien
import ien.data
from ien.geometry.doctor import doctor
from ien.report.opened import OpenedRun, open_runs
from ien.report.page import build as html
from ien.report.page import render
from ien.report.page.explorer import MAP_SIZE, Exploration, choose_images, explore, groups_of, pack, tracks_of
from ien.report.page.svg import inline
from ien.training import run
from tests.helpers import toy

HOSTILE = """</script><img src=x onerror=alert(1)>"'&lt;${1}"""
MEASURED = 12
pytestmark = pytest.mark.usefixtures("toy_data")


def train(folder: Path, **changes: Any) -> Path:
    """A tiny finished run, in this process."""
    settings = {"epochs": 1, "cycle_epochs": 1, "train_images": 32} | changes
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ien.data.DATASETS, "toy", toy.DATASETS["toy"])
        run(folder, toy.config(**settings), "embedded", console=Console(file=io.StringIO()))
    return folder


def make_runs(factory: pytest.TempPathFactory) -> list[Path]:
    """Three runs, of which one has scales; made once for all tests, not to be changed."""
    folder = factory.getbasetemp() / "toy-runs"
    if not folder.exists():
        train(folder / "ien")
        train(folder / "cnn", beta=0.0, augment=False)
        train(folder / "scale", group="scale1.25")
    return [folder / name for name in ("ien", "cnn", "scale")]


def write(runs: list[Path], path: Path, **options: Any) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ien.data.DATASETS, "toy", toy.DATASETS["toy"])
        return html.write_report(runs, path, **{"measured": MEASURED, "images": 6} | options)


class Page(HTMLParser):
    """The elements of a page, in order, as (name, attributes), and the text of each element by its id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.inside = ""
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts[-1] += data
        elif self.inside != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def data(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.scripts[0])
        return content

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_runs(tmp_path_factory)


@pytest.fixture(scope="module")
def report(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(runs, tmp_path_factory.mktemp("report") / "report.html")


@pytest.fixture(scope="module")
def page(report: Path) -> Page:
    return Page(report.read_text(encoding="utf-8"))


@pytest.fixture
def subjects(runs: list[Path]) -> list[OpenedRun]:
    return open_runs(runs, count=MEASURED)


@pytest.fixture
def few(subjects: list[OpenedRun]) -> tuple[list[OpenedRun], Exploration]:
    """Two subjects and a small exploration of them."""
    chosen = subjects[:2]
    return chosen, explore(chosen, [dict.fromkeys(s.layers, 1.0) for s in chosen], images=2, maps=2)


def rendered(subjects: list[OpenedRun], exploration: Exploration, **options: Any) -> Page:
    examined = options.pop("examined", render.Examined(None, "not examined"))
    return Page(
        render.page(subjects, [examined] * len(subjects), options.pop("figures", []), exploration, **options)
    )


def pooled(subject: OpenedRun, layer: str, x: Tensor) -> Tensor:
    with torch.no_grad(), ien.capture(subject.model, layer) as features:
        subject.model(x)
    return ien.group_pool(features[layer], subject.feature_groups)


# --- the numbers


def test_the_table_holds_the_numbers_of_the_results_in_full(runs: list[Path], page: Page) -> None:
    cells = [cell for cell in page.named("td") if "data-value" in cell]
    expected = []
    for folder in runs:
        result = json.loads((folder / "result.json").read_text())
        names = ("accuracy", "accuracy_with_copies", "parameters", "macs", "images_per_second")
        expected += [result[name] for name in names]
        expected += [layer["relative"] for layer in result["layers"].values()]
    assert [float(cell["data-value"] or "nan") for cell in cells] == expected


def test_probabilities_are_those_of_the_model_on_the_transformed_image(
    page: Page, subjects: list[OpenedRun]
) -> None:
    data = page.data
    for k, group in enumerate([ien.rotation(72), None]):
        track = data["tracks"][k]
        for run_, subject in zip(data["runs"], subjects, strict=True):
            for i, image in enumerate(data["images"]):
                x = subject.images[image["index"]][None]
                for at in range(0, len(track["values"]), 5):
                    value = track["values"][at]
                    if group is not None:
                        x_g = group.act(x, torch.tensor([at]))
                    else:
                        x_g = x if value == 1 else ien.scale(value).act(x, torch.tensor([1]))
                    p = subject.model(x_g).detach().double().softmax(1)[0]
                    seen, place = run_["images"][i], track["start"] + at
                    assert seen["probabilities"][place] == pytest.approx(
                        p[image["classes"]].tolist(), rel=1e-3
                    )
                    assert seen["predicted"][place] == int(p.argmax())
                    assert seen["confidence"][place] == pytest.approx(float(p.max()), rel=1e-4)


def test_errors_are_the_loss_over_the_variance_of_the_measured_images(
    page: Page, subjects: list[OpenedRun]
) -> None:
    data, group = page.data, ien.rotation(72)
    for run_, subject in zip(data["runs"], subjects, strict=True):
        for k, layer in enumerate(subject.layers):
            variance = float(pooled(subject, layer, subject.images).double().var(unbiased=False))
            for i in (0, 3):
                x = subject.images[data["images"][i]["index"]][None]
                errors = run_["images"][i]["errors"][k]
                assert errors[0] == 0 and len(errors) == 72 + len(data["tracks"][1]["values"])
                for g in (torch.tensor([at]) for at in (1, 9, 18, 40, 71)):
                    h, h_g = pooled(subject, layer, x), pooled(subject, layer, group.act(x, g))
                    if group.coverage((h.shape[2], h.shape[3]))[int(g)] == 0:
                        assert errors[int(g)] is None
                    else:
                        expected = float(ien.equivariance_loss(h, h_g, group, g)) / variance
                        assert errors[int(g)] == pytest.approx(expected, rel=1e-3)


def test_frames_are_the_most_varying_maps_within_half_a_step(page: Page, subjects: list[OpenedRun]) -> None:
    data, group = page.data, ien.rotation(72)
    subject, run_ = subjects[0], data["runs"][0]
    chosen = subject.images[[image["index"] for image in data["images"]]]
    for k, layer in enumerate(subject.layers):
        about = run_["layers"][k]
        variances = pooled(subject, layer, chosen).var((0, 2, 3))
        assert about["maps"] == variances.argsort(descending=True)[:4].tolist()
        h = pooled(subject, layer, group.act(chosen[2:3].expand(72, -1, -1, -1), torch.arange(72)))
        assert about["size"] == about["stored"] == list(h.shape[2:])
        for m, text in enumerate(run_["images"][2]["frames"][k]):
            low, high = run_["images"][2]["ranges"][k][m]
            steps = numpy.frombuffer(zlib.decompress(base64.b64decode(text)), numpy.uint8).reshape(
                -1, *h.shape[2:]
            )
            frames = numpy.cumsum(steps, axis=0, dtype=numpy.uint8)[:72]
            restored = low + frames.astype(float) * (high - low) / 255
            assert numpy.abs(restored - h[:, about["maps"][m]].numpy()).max() <= 0.501 * (high - low) / 255


def test_pictures_are_the_images_byte_for_byte(page: Page) -> None:
    images = toy.dataset().test_x
    for image in page.data["images"]:
        channels, height, width = image["size"]
        stored = numpy.frombuffer(base64.b64decode(image["pixels"]), numpy.uint8).reshape(
            channels, height, width
        )
        assert (stored == images[image["index"]].numpy()).all()
        assert image["label"] == int(toy.dataset().test_y[image["index"]])


@pytest.mark.parametrize(
    "own", [[0.7, 0.84], [1.3], [2 ** (k / 3) for k in (-3, -2, -1, 1, 2, 3)], [0.3, 1.05, 1.06]], ids=str
)
def test_factors_are_spread_around_one_with_the_groups_own_among_them(own: list[float]) -> None:
    (factors,) = tracks_of([ien.scale(own)])
    values = numpy.array(factors.values)
    assert factors.kind == "scale" and set(own) <= set(values) and factors.marks == tuple(sorted({1, *own}))
    assert values[len(values) // 2] == 1 and len(values) % 2 == 1 and (numpy.diff(values) > 0).all()
    assert values[0] * values[-1] == pytest.approx(1, abs=1e-4)
    reach = max(abs(numpy.log(own)))
    assert abs(numpy.log(values)).max() == pytest.approx(reach, rel=1e-4)
    assert numpy.diff(numpy.log(values)).max() < 0.16 * reach and 21 <= len(values) <= 21 + 2 * len(own)
    scales = factors.group.matrices[:, 0, 0][factors.g]
    assert scales.tolist() == pytest.approx(list(factors.values))


@pytest.mark.parametrize(
    ("groups", "kinds"),
    [
        (["rot4"], ["rotation"]),
        (["flip"], ["rotation"]),
        (["scale0.7,1.4"], ["scale"]),
        (["scale0.7", "scale2"], ["scale"]),
        (["rot4", "scale0.7"], ["rotation", "scale"]),
        (["rot4xscale1.3"], ["rotation", "scale"]),
        (["flipxscale1.3"], ["rotation", "scale"]),
    ],
)
def test_sliders_are_those_of_the_groups(groups: list[str], kinds: list[str]) -> None:
    tracks = tracks_of([ien.group(text) for text in groups])
    assert [track.kind for track in tracks] == kinds
    if kinds[0] == "rotation":
        assert tracks[0].values == tuple(range(0, 360, 5)) and tracks[0].g.tolist() == list(range(72))
        assert tracks[0].marks == (0, 90, 180, 270)


def test_a_run_measured_under_several_groups_has_the_sliders_of_all() -> None:
    both = SimpleNamespace(
        group=ien.rotation(4),
        config=SimpleNamespace(measured_groups=(ien.rotation(4), ien.scale([0.5]))),
    )
    alone = SimpleNamespace(group=ien.scale([2]), config=None)
    subjects: Any = [both, alone]
    assert [str(group) for group in groups_of(subjects)] == ["rot4", "scale0.5", "scale2"]


def test_runs_that_only_scale_are_measured_and_drawn_over_factors(runs: list[Path], tmp_path: Path) -> None:
    told: list[str] = []
    path = write(runs[2:], tmp_path / "page.html", images=1, maps=1, measured=4, progress=told.append)
    found = Page(path.read_text(encoding="utf-8"))
    (track,) = found.data["tracks"]
    assert track["kind"] == "scale" and track["marks"] == [1, 1.25] and track["values"][-1] == 1.25
    assert told[0].endswith(f"at {len(track['values'])} factors")
    assert f"over {len(track['values']) - 1} scalings of the first 4 test images" in found.text
    assert "from ×0.8 to ×1.25" in found.text and "each angle" not in found.text
    assert path.stat().st_size <= render.LIMIT and not found.named("input")[0].get("name")
    (subject,) = open_runs(runs[2:], count=4)
    x, group = subject.images[found.data["images"][0]["index"]][None], ien.scale(1.25)
    run_ = found.data["runs"][0]["images"][0]
    assert run_["errors"][0][len(track["values"]) // 2] == 0
    for k, layer in enumerate(subject.layers):
        variance = float(pooled(subject, layer, subject.images).double().var(unbiased=False))
        h, h_g = (pooled(subject, layer, z) for z in (x, group.act(x, torch.tensor([1]))))
        expected = float(ien.equivariance_loss(h, h_g, group, torch.tensor([1]))) / variance
        assert run_["errors"][k][-1] == pytest.approx(expected, rel=1e-3)


def test_images_are_of_different_classes_first() -> None:
    labels = torch.tensor([5, 5, 5, 2, 5, 2, 9])
    assert choose_images(labels, 5) == [0, 3, 6, 1, 2]
    assert choose_images(labels, 99) == [0, 3, 6, 1, 2, 4, 5]


def test_constant_frames_pack_to_zeros() -> None:
    text, limits = pack(torch.full((3, 2, 2), 7.0))
    assert zlib.decompress(base64.b64decode(text)) == bytes(12) and limits == [7, 7]


def test_bars_are_the_label_and_the_likeliest_of_many_classes_and_large_maps_are_averaged() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 6, 3, padding=1)
            self.head = nn.Linear(6, 50)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.conv(x).mean((2, 3)))

    subject: Any = SimpleNamespace(
        name="net",
        model=Net().eval(),
        layers=("conv",),
        feature_groups=1,
        group=ien.rotation(4),
        images=torch.rand(2, 3, 100, 100),
        labels=torch.tensor([49, 3]),
        config=None,
    )
    found = explore([subject], [{"conv": 1.0}], images=2, maps=3).content
    first = found["images"][0]
    assert first["size"] == [3, 96, 96] and len(first["classes"]) == 10 and 49 in first["classes"]
    (layer,) = found["runs"][0]["layers"]
    assert layer["size"] == [100, 100] and layer["stored"] == [MAP_SIZE, MAP_SIZE] and layer["of"] == 6
    (frames,) = found["runs"][0]["images"][0]["frames"]
    assert len(zlib.decompress(base64.b64decode(frames[0]))) == 72 * MAP_SIZE**2
    likeliest = subject.model(subject.images[1:2]).detach().softmax(1).max()
    assert found["runs"][0]["images"][1]["confidence"][0] == pytest.approx(float(likeliest), rel=1e-4)


# --- the file


def test_it_is_one_file_that_names_nothing_outside(report: Path, page: Page) -> None:
    assert report.stat().st_size <= render.LIMIT
    assert os.listdir(report.parent) == ["report.html"]
    assert "://" not in report.read_text(encoding="utf-8")
    for _, attributes in page.elements:
        for name in ("src", "href"):
            assert re.match(r"#|data:", attributes.get(name) or "#"), attributes
    (policy,) = [m["content"] for m in page.named("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None and policy.startswith("default-src 'none'; img-src data:") and "*" not in policy


def test_every_id_occurs_once_and_every_reference_is_met(page: Page) -> None:
    ids = Counter(attributes["id"] for _, attributes in page.elements if "id" in attributes)
    assert {name for name, count in ids.items() if count > 1} == set()
    links = {str(a["href"])[1:] for _, a in page.elements if str(a.get("href", "")).startswith("#")}
    labels = {name for _, a in page.elements for key in ("for", "aria-labelledby") if (name := a.get(key))}
    assert links | labels <= set(ids)
    clips = {
        name
        for _, a in page.elements
        for name in re.findall(r"url\(#([^)]*)\)", " ".join(map(str, a.values())))
    }
    assert clips and clips <= set(ids)


def test_settings_that_differ_come_first_and_are_marked(page: Page, subjects: list[OpenedRun]) -> None:
    assert sum(row.get("class") == "differs" for row in page.named("tr")) == 3
    rows = render._configs(subjects)
    assert [name for name, _, differs in rows if differs] == ["group", "augment", "beta"]
    assert [values for name, values, _ in rows if name in ("beta", "augment")] == [
        ["yes", "no", "yes"],
        ["1.0", "0.0", "1.0"],
    ]
    assert [differs for *_, differs in rows] == sorted((differs for *_, differs in rows), reverse=True)


def test_sections_are_there(page: Page) -> None:
    assert page.text.count("Relative error over 71 rotations of the first 12 test images") == 1
    assert page.text.count("scalings of the first 12 test images") == 1
    assert len(page.named("svg")) == 1 + 6  # the explorer's curve, and the plots
    for run_ in page.data["runs"]:
        assert run_["name"] in page.text


def test_one_run_makes_a_page(runs: list[Path], tmp_path: Path) -> None:
    told: list[str] = []
    path = write(runs[:1], tmp_path / "new" / "page.html", images=1, measured=2, progress=told.append)
    found = Page(path.read_text(encoding="utf-8"))
    assert len(found.data["runs"]) == 1 and len(found.data["images"]) == 1
    assert told[0].startswith("measuring ") and "explorer: ien-r4 smoke seed 1, image 1 of 1" in "\n".join(
        told
    )


def test_a_small_limit_takes_fewer_images_and_maps_and_says_so(
    few: tuple[list[OpenedRun], Exploration],
) -> None:
    subjects, exploration = few
    whole = rendered(subjects, exploration)
    assert len(whole.data["images"]) == 2 and "To keep the file small" not in whole.text
    size = len(render.page(subjects, [render.Examined(None)] * 2, [], exploration).encode())
    less = rendered(subjects, exploration, limit=size - 1000)
    assert "To keep the file small it holds 1 of 2 maps of each layer" in less.text
    assert [len(layer["maps"]) for layer in less.data["runs"][0]["layers"]] == [1] * 6
    assert [len(frames) for frames in less.data["runs"][1]["images"][1]["frames"]] == [1] * 6
    with pytest.raises(
        ValueError, match=r"a report of 2 runs has at least [\d,]+ bytes, and 50,000 are allowed"
    ):
        rendered(subjects, exploration, limit=50_000)


# --- text from files


def with_text(text: str, subjects: list[OpenedRun], exploration: Exploration) -> Page:
    """A page of two runs of which one has ``text`` wherever a file can have some."""
    subject, other = subjects
    layers = {f"{text}{name}": layer for name, layer in subject.record.layers.items()}
    record = replace(
        subject.record, machine=text, commit=text, data=text, layers=layers, versions={text: text}
    )
    config = replace(subject.config, experiment=text)
    changed = replace(subject, name=text, record=record, config=config, folder=Path("runs") / text)
    runs = [run_ | {"name": text} for run_ in exploration.content["runs"]]
    exploration = replace(exploration, content=exploration.content | {"runs": runs})
    figures = [render.Figure(text, text, "<svg></svg>")]
    return rendered([changed, other], exploration, examined=render.Examined(None, text), figures=figures)


def test_hostile_text_stays_text(few: tuple[list[OpenedRun], Exploration]) -> None:
    found, harmless = with_text(HOSTILE, *few), with_text("harmless", *few)
    assert [tag for tag, _ in found.elements] == [tag for tag, _ in harmless.elements]
    assert [list(attributes) for _, attributes in found.elements] == [list(a) for _, a in harmless.elements]
    assert found.data["runs"][0]["name"] == HOSTILE and "<" not in found.scripts[0]
    assert found.text.count(HOSTILE) == harmless.text.count("harmless") >= 15


def test_hostile_names_stay_text_in_the_plots(few: tuple[list[OpenedRun], Exploration]) -> None:
    subjects = [replace(few[0][0], name=HOSTILE), few[0][1]]
    tracks = tracks_of([ien.group("rot4"), ien.group("scale1.25")])
    measured = []
    for track, group in zip(tracks, (ien.rotation(8), ien.scale([0.8, 1.25])), strict=True):
        reports = {
            s.name: ien.measure(s.model, s.images, group, s.layers, s.feature_groups, labels=s.labels)
            for s in subjects
        }
        measured.append((track, reports))
    figures = html._figures(subjects, measured)
    found = Page("".join(svg for _, _, svg in figures))
    assert not {"script", "img"} & {tag for tag, _ in found.elements}
    assert "</script" in found.text


def test_inline_figures_keep_apart_what_has_the_same_id() -> None:
    source = (
        '<?xml version="1.0"?>\n<!DOCTYPE svg>\n<svg xmlns="a" xmlns:xlink="b">'
        '<metadata><x id="m"/></metadata>'
        '<defs><path id="p"/></defs><g clip-path="url(#c)" style="fill: #0072B2; stroke: #F23456"/>'
        '<use xlink:href="#p"/></svg>'
    )
    assert inline(source, "f2-") == (
        '<svg><defs><path id="f2-p"/></defs><g clip-path="url(#f2-c)" '
        'style="fill: var(--blue); stroke: #f23456"/>'
        '<use href="#f2-p"/></svg>'
    )


def test_colours_follow_the_page_unless_they_are_values_of_a_scale() -> None:
    mark, text = '<use style="fill: #000040"/>', '<text style="fill: #333333">#333333</text>'
    lifted = '<use style="fill: color-mix(in srgb, #000040 var(--keep), white)"/>'
    followed = '<text style="fill: currentColor">#333333</text>'
    assert inline(f"<svg>{mark}{text}</svg>", "") == f"<svg>{lifted}{followed}</svg>"
    assert inline(f"<svg><image/>{mark}{text}</svg>", "") == f"<svg><image/>{mark}{followed}</svg>"


# --- what the doctor says


def test_findings_are_shown_once_for_runs_that_share_them(few: tuple[list[OpenedRun], Exploration]) -> None:
    strided = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1))
    flat = nn.Sequential(*strided, nn.Flatten(), nn.Linear(4 * 14 * 14, 2))
    plain = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1))
    verdicts = [doctor(net, (1, 28, 28)) for net in (strided, flat, plain)]
    texts = [rendered(*few, examined=render.Examined(verdict)).text for verdict in verdicts]
    for finding in verdicts[0].findings:
        assert texts[0].count(f"Why: {finding.reason}") == 1 and f"Remedy: {finding.remedy}" in texts[0]
    assert f"network is exact: {', '.join(map(str, verdicts[0].exact_sizes))}." in texts[0]
    low, high = verdicts[1].searched
    assert (
        f"No input size from {low} to {high} repairs all of it" in " ".join(texts[1].split())
        and len(verdicts[1].findings) == 2
    )
    assert "Every operation commutes with quarter turns" in texts[2] and "not exact" not in texts[2]
    for text, verdict in zip(texts, verdicts, strict=True):
        assert " ".join(str(verdict).split()) in text


def test_a_network_that_cannot_be_examined_is_said_to_be(
    subjects: list[OpenedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(model: nn.Module, size: tuple[int, int, int]) -> None:
        raise ValueError(f"cannot follow it at {size}")

    monkeypatch.setattr("ien.geometry.doctor.doctor", fail)
    assert html._examine(subjects[0]) == render.Examined(None, "cannot follow it at (1, 28, 28)")


# --- what is refused


@pytest.fixture
def one_line() -> Iterator[list[str]]:
    messages: list[str] = []
    yield messages
    assert messages and all("\n" not in message for message in messages)


def test_folders_that_are_no_finished_runs_are_refused(
    runs: list[Path], tmp_path: Path, one_line: list[str]
) -> None:
    shutil.copytree(runs[0], tmp_path / "begun")
    (tmp_path / "begun" / "result.json").unlink()
    (tmp_path / "empty").mkdir()
    for folders, kind, match in (
        ([], ValueError, "name at least one run folder"),
        ([tmp_path / "empty"], FileNotFoundError, "is not a run folder"),
        ([runs[0], tmp_path / "begun"], ValueError, "is not finished: go on with ien resume"),
        (
            [runs[0], runs[0].parent / "cnn" / ".." / runs[0].name],
            ValueError,
            "was given twice: name each run once",
        ),
    ):
        with pytest.raises(kind, match=match) as caught:
            write(folders, tmp_path / "report.html")
        one_line.append(str(caught.value))
    assert not (tmp_path / "report.html").exists()


def test_runs_on_different_images_are_refused(runs: list[Path], tmp_path: Path, one_line: list[str]) -> None:
    other = train(tmp_path / "other", data_seed=5)
    with pytest.raises(
        ValueError, match=r"tested on different images.*random toy.*write a report for each"
    ) as caught:
        write([runs[0], other], tmp_path / "report.html")
    one_line.append(str(caught.value))


def test_runs_tested_on_fewer_of_the_same_images_are_shown_on_those(runs: list[Path], tmp_path: Path) -> None:
    other = train(tmp_path / "other", test_images=7)
    subjects = html._side_by_side(open_runs([runs[0], other]))
    assert (
        [len(subject.images) for subject in subjects]
        == [len(subject.labels) for subject in subjects]
        == [7, 7]
    )


def test_runs_with_one_name_are_told_apart_by_their_folders(runs: list[Path], tmp_path: Path) -> None:
    shutil.copytree(runs[0], tmp_path / "copy")
    names = [subject.name for subject in open_runs([runs[0], tmp_path / "copy"])]
    assert names == [f"ien-r4 smoke seed 1 ({name})" for name in (runs[0].name, "copy")]
    twin = tmp_path / "twin" / runs[0].name
    shutil.copytree(runs[0], twin)
    names = [subject.name for subject in open_runs([runs[0], twin])]
    assert names == [f"ien-r4 smoke seed 1 ({folder})" for folder in (runs[0], twin)]


def test_a_full_disk_keeps_the_earlier_file(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_line: list[str]
) -> None:
    path = tmp_path / "report.html"
    path.write_text("earlier")

    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(html, "_figures", lambda *arguments: [])
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match=r"report.html could not be written .*No space left") as caught:
        write(runs[:1], path, images=1, measured=2)
    one_line.append(str(caught.value))
    assert path.read_text() == "earlier" and os.listdir(tmp_path) == ["report.html"]


def test_a_folder_in_place_of_a_file_and_no_images_are_refused(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is a folder: name the file to write, such as .*report.html"):
        write(runs, tmp_path)
    with pytest.raises(ValueError, match="at least one image and map; got images=0"):
        write(runs, tmp_path / "report.html", images=0)


@pytest.mark.parametrize("name", ["jinja2", "matplotlib"])
def test_a_missing_library_is_named_with_its_extra(
    name: str, runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match=rf'a report needs {name}: pip install "ien\[plots\]"'):
        write(runs, tmp_path / "report.html")
