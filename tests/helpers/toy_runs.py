"""Tiny finished runs, trained in this process, and the elements of an HTML page."""

import io
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import ien.data
from ien.report.page import build
from ien.training import run
from ien.training.segment import SegmentConfig
from tests.helpers import toy
from tests.helpers.tiny import make_mask_folders

MEASURED = 12


def train(folder: Path, **changes: Any) -> Path:
    """A tiny finished run."""
    settings = {"epochs": 1, "cycle_epochs": 1, "train_images": 32} | changes
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ien.data.DATASETS, "toy", toy.DATASETS["toy"])
        run(folder, toy.config(**settings), "embedded", console=Console(file=io.StringIO()))
    return folder


def make_runs(factory: pytest.TempPathFactory) -> list[Path]:
    """Three runs, one of which scales; made once for all tests, not to be changed."""
    folder = factory.getbasetemp() / "toy-runs"
    if not folder.exists():
        train(folder / "ien")
        train(folder / "cnn", beta=0.0, augment=False)
        train(folder / "scale", group="scale1.25")
    return [folder / name for name in ("ien", "cnn", "scale")]


def make_segment_runs(factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs that segment discs, one of them tied; made once for all tests, not to be changed."""
    folder = factory.getbasetemp() / "segment-runs"
    if not folder.exists():
        place = str(folder / "discs")
        make_mask_folders(Path(place), {"train": 8, "test": 3})
        settings = {"image_size": 16, "channels": 1, "width": 0.75, "epochs": 1, "cycle_epochs": 1}
        settings |= {"dataset": "discs", "batch_size": 4, "device": "cpu", "threads": 1}
        for name, changes in (("free", {}), ("tied", {"tie": "smooth", "beta": 0.0})):
            config = SegmentConfig.of(f"discs/{name}", "folder", **settings, **changes)
            run(folder / name, config, place, console=Console(file=io.StringIO()))
    return [folder / name for name in ("free", "tied")]


def write_page(
    runs: list[Path], path: Path, images: int = 6, maps: int = 4, measured: int = MEASURED, **options: Any
) -> Path:
    """The page of these runs, with a small explorer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ien.data.DATASETS, "toy", toy.DATASETS["toy"])
        patch.setattr(build, "SHOWN_IMAGES", images)
        patch.setattr(build, "SHOWN_MAPS", maps)
        return build.write_runs_page(runs, path, measured=measured, **options)


class Page(HTMLParser):
    """The elements of a page, in order, as (name, attributes), with its text and scripts."""

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
        """What the explorer draws."""
        content: dict[str, Any] = json.loads(self.scripts[0])
        return content

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]
