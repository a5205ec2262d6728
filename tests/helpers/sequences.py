"""Small sequences on disk, in the layouts of OTB and GOT-10k, and where the real ones may be."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tests.helpers import real

REAL = real.DATA
needs_otb = real.needs("otb")
needs_got10k = real.needs("got10k")


def box_lines(count: int, start: int = 0) -> str:
    return "".join(f"{start + i + 1},{i + 2},3,4\n" for i in range(count))


def make_frames(folder: Path, numbers: Iterable[int], digits: int = 4, empty: bool = False) -> None:
    """Grey images 12×10, each as bright as its number, or files without content."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        path = folder / f"{number:0{digits}d}.jpg"
        if empty:
            path.touch()
            continue
        from PIL import Image

        Image.fromarray(np.full((10, 12), number, np.uint8)).save(path, quality=95)


def make_otb(folder: Path, text: str, numbers: Iterable[int], empty: bool = True, **files: str) -> Path:
    make_frames(folder / "img", numbers, empty=empty)
    (folder / "groundtruth_rect.txt").write_bytes(text.encode())
    for name, other in files.items():
        (folder / f"{name}.txt").write_text(other)
    return folder


def make_got10k(folder: Path, boxes: str, count: int, **labels: list[int]) -> Path:
    """Write a sequence, name it in the list, and return the folder of the list."""
    make_frames(folder, range(1, count + 1), digits=8)
    (folder / "groundtruth.txt").write_text(boxes)
    for name, values in labels.items():
        (folder / f"{name}.label").write_text("".join(f"{value}\n" for value in values))
    with (folder.parent / "list.txt").open("a") as listed:
        listed.write(f"{folder.name}\n")
    return folder.parent
