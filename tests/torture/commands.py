"""What is interrupted: commands on small data, and what must come out of them, to the bit."""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from torch import nn

import ien
from ien._files import replace_file, write_tensors
from ien.adapting import adapt as adapting
from ien.data import cache, tiny_imagenet
from ien.data.download import clear_unpacked_part
from ien.report.page import build
from ien.tracking.data import sets
from ien.tracking.training import evaluate
from ien.training import run
from tests.helpers import toy_clips, toy_runs
from tests.helpers.sequences import box_lines, make_otb
from tests.helpers.tiny import make_tiny_imagenet
from tests.torture.child import call, ien_command


def tiny(epochs: int, images: int = 16, batch_size: int = 8, width: str = "1/32") -> tuple[str, ...]:
    """Options of a run that takes a moment."""
    words = ["--preset", "small", "--threads", "1", "--data", "embedded"]
    settings = {"epochs": epochs, "cycle_epochs": 1, "train_images": images, "test_images": 8}
    settings |= {"batch_size": batch_size, "width": width}
    for name, value in settings.items():
        words += ["--set", f"{name}={value}"]
    return tuple(words)


RESULTS = (
    "model.safetensors",
    "metrics.jsonl",
    "result.json",
    "results/**/*.json",
    "*.safetensors",
    "*.pt2",
    "*.onnx",
    "*.html",
    "*.JPEG",
    "tracks/**/*.txt",
    "out/**/*.jpg",
    "out/**/*.txt",
)
"""Files that must be equal, wherever they are."""
OF_THE_CLOCK = {"seconds", "finished", "images_per_second", "fps", "commit", "times"}
"""Fields of a record, and a folder, that are different each time."""


def one_run() -> None:
    ien_command("run", "rot-mnist/ien-r4", "--seed", "5", *tiny(epochs=2))


def queue() -> None:
    """Two runs of one epoch: a run of several is killed by itself."""
    ien_command("run", "rot-mnist/cnn", "rot-mnist/ien-r4", *tiny(epochs=1))


def tracker() -> None:
    """A run that trains a tracker on generated clips, and tests it on one of them."""
    clips = toy_clips.clips(count=2, frames=3, tests=1)
    # the same files again for the rotated clip would be killed in the same way
    clips = dataclasses.replace(clips, tests={"clips": clips.tests["clips"]})
    sets.load_clips = lambda *arguments: clips  # type: ignore[assignment]
    evaluate.update_speed = lambda *arguments: 1.0  # type: ignore[assignment]
    settings = {"epochs": 1, "pairs": 3}
    run(Path("run"), toy_clips.config(**settings), console=Console(file=io.StringIO()))


def small_net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())


def adaptation() -> None:
    """Adapt a model for twelve steps, by a clock that ticks with each of them."""
    ticks = iter(range(10**9))
    time.monotonic = lambda: float(next(ticks))
    adapting.CHECKPOINT_SECONDS = 3  # type: ignore[assignment]
    images = torch.rand(64, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    net = small_net()
    adapted = ien.adapt(net, images, "rot4", 12 / 60, folder="state", batch_size=8, progress=False)
    write_tensors(Path("adapted.safetensors"), adapted.state_dict())


def canonicalization() -> None:
    images = torch.rand(64, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    upright = ien.Canonicalize(small_net(), "rot4").fit(images, steps=3, seed=1)
    upright.save("upright.safetensors")


def exported() -> None:
    """Export a model in all three formats; they are made and checked in a temporary folder."""
    tempfile.tempdir = str(Path("temporary").absolute())
    images = torch.rand(4, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    for suffix in ("safetensors", "pt2", "onnx"):
        ien.export(small_net(), f"out/net.{suffix}", images)


def page() -> None:
    build.now = lambda: "today"  # which the page says
    toy_runs.write_page([Path("runs/ien")], Path("page.html"), images=2, maps=1)


def cached_data() -> None:
    def make() -> dict[str, torch.Tensor]:
        drawn = torch.Generator().manual_seed(1)
        return {"x": torch.randint(256, (300, 64, 64), generator=drawn).to(torch.uint8)}

    cache.cached("toy", {"x": (torch.uint8, (300, 64, 64))}, make)


def rotating_clips() -> None:
    ien_command("data", "rot-otb", "otb", "out", "--quiet")


def unpacked() -> None:
    """What ``ien data get`` does once it has the archive."""
    place = Path.cwd() / "tiny-imagenet-200"
    clear_unpacked_part(place)
    if not place.exists():
        tiny_imagenet.unpack(Path("tiny.zip"), Path.cwd())


def no_preparation(folder: Path) -> None:
    pass


def make_temporary(folder: Path) -> None:
    (folder / "temporary").mkdir()


def make_runs(folder: Path) -> None:
    toy_runs.train(folder / "runs" / "ien")
    shutil.rmtree(folder / "runs" / "ien" / "tensorboard", ignore_errors=True)


def make_photos(folder: Path) -> None:
    """``photos/`` with 40 pictures, and ``net.py`` with a function that makes :func:`small_net`."""
    (folder / "photos").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (40, 12, 12, 3), dtype=np.uint8)
    for number, picture in enumerate(pixels):
        Image.fromarray(picture).save(folder / "photos" / f"{number:02}.png")
    (folder / "net.py").write_text("from tests.torture.commands import small_net as build\n")


def make_clips(folder: Path) -> None:
    make_otb(folder / "otb" / "A", box_lines(2), [1, 2], empty=False)


def make_archive(folder: Path) -> None:
    place = make_tiny_imagenet(folder, classes=2, train=2, val=1)
    with zipfile.ZipFile(folder / "tiny.zip", "w") as archive:
        for path in sorted(place.rglob("*")):
            archive.write(path, path.relative_to(folder))
    shutil.rmtree(place)


class Command(NamedTuple):
    """A function that is called in a folder of its own, and what it needs there."""

    function: Callable[[], None]
    prepare: Callable[[Path], None] = no_preparation


COMMANDS = {
    "a run": Command(one_run),
    "a queue of runs": Command(queue),
    "a tracker": Command(tracker),
    "an adaptation": Command(adaptation),
    "a canonicalization": Command(canonicalization),
    "an export": Command(exported, make_temporary),
    "a report page": Command(page, make_runs),
    "a cache": Command(cached_data),
    "rotating clips": Command(rotating_clips, make_clips),
    "an archive unpacked": Command(unpacked, make_archive),
}


def results(folder: Path) -> dict[str, bytes]:
    """Path → content of everything that must be equal after an interruption."""
    found = {}
    for pattern in RESULTS:
        for path in folder.rglob(pattern):
            name = str(path.relative_to(folder))
            if path.is_file() and not OF_THE_CLOCK & set(path.parts):
                content = path.read_bytes()
                if path.suffix == ".json":
                    content = json.dumps(_without_clock(json.loads(content))).encode()
                found[name] = content
    return found


def problem_when_given_again(
    work: Path, expected: dict[str, bytes], function: Callable[..., object], *arguments: object
) -> str | None:
    """Call what was interrupted in a folder once more; what is wrong with how that ended."""
    again = call(function, *arguments, folder=work)
    if again.code != 0:
        return f"does not go on: {again}"
    found = results(work)
    if found != expected:
        changed = [path for path in expected | found if expected.get(path) != found.get(path)]
        where = first_difference(expected.get(changed[0], b""), found.get(changed[0], b""))
        return f"other results in {', '.join(changed)}; in the first of them {where}"
    if leftovers(work):
        return f"leaves {', '.join(leftovers(work))}"
    return None


def first_difference(one: bytes, other: bytes) -> str:
    """Where two contents part, and how they go on there."""
    place = 0
    while place < min(len(one), len(other)) and one[place] == other[place]:
        place += 1
    around = slice(max(0, place - 60), place + 60)
    return f"from byte {place} of {len(one)} and {len(other)}: {one[around]!r}, {other[around]!r}"


def leftovers(folder: Path) -> list[str]:
    """Temporary files that are there even after the next one has written to the same folder."""
    for path in _temporary(folder):
        replace_file(path.parent / "next.txt", lambda temporary: temporary.write_text("next"))
    return [str(path.relative_to(folder)) for path in _temporary(folder)]


def _temporary(folder: Path) -> list[Path]:
    return sorted([*folder.rglob("*.part"), *folder.rglob(".tmp*"), *folder.rglob("tmp*")])


def _without_clock(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _without_clock(part) for name, part in content.items() if name not in OF_THE_CLOCK}
    if isinstance(content, list):
        return [_without_clock(part) for part in content]
    return content
