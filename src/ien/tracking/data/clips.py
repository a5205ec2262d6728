"""Clips: from folders in the layouts of OTB and GOT-10k to sequences of frames with a box in each."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..._text import nearest
from .frames import (
    Array,
    Files,
    frame_size,
    image_names,
    image_number,
    miscounted,
    missing_frame,
    read_frame,
    read_numbers,
)

__all__ = ["RANGES", "Array", "Clip", "Frames", "got10k", "otb", "read_frame", "usable"]

RANGES = {
    "David": (300, 770),
    "Diving": (1, 215),
    "Football1": (1, 74),
    "Freeman3": (1, 460),
    "Freeman4": (1, 283),
}
"""OTB's sequences of which a part is annotated: the numbers of the first and the last frame with a box."""


class Frames(Protocol):
    """What a clip holds for its frames: files, arrays, or anything that makes an array when it is asked."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True, eq=False, repr=False)
class Clip:
    """A sequence of T frames and where the target is in them; nothing is decoded before it is asked for.

    A box is x, y of its first column and row, counted from 0, and its numbers of columns and rows, so that
    its centre is x + (w - 1) / 2. A box that is not known is all NaN.

    >>> clip = Clip("grey", [np.full((4, 6, 3), 128, np.uint8)] * 2, np.array([[1.0, 1, 2, 2], [2, 1, 2, 2]]))
    >>> clip, clip.frame(1).shape, clip.size
    (Clip(grey: 2 frames), (4, 6, 3), (4, 6))
    """

    name: str
    frames: Frames
    """Paths of image files, or arrays (H, W, 3) uint8 RGB; a sequence may make them when it is indexed."""
    boxes: Array
    """(T, 4) float64."""
    visible: Array = None  # type: ignore[assignment]  # replaced when it is made
    """(T,) bool: the target is in view and its box is known; by default wherever there is a box."""
    angles: Array | None = None
    """(T,) degrees by which the target is turned since the first frame, counter-clockwise, or None."""

    def __post_init__(self) -> None:
        boxes = np.asarray(self.boxes, np.float64)
        count = len(self.frames)
        if boxes.shape != (count, 4) or not count:
            raise ValueError(f"{self.name}: {count} frames need boxes ({count or 'T'}, 4); got {boxes.shape}")
        known = np.isfinite(boxes).all(1) & (boxes[:, 2:] > 0).all(1)
        if (wrong := ~known & ~np.isnan(boxes).all(1)).any():
            raise ValueError(
                f"{self.name}: the box {boxes[wrong][0].tolist()} of frame {int(wrong.argmax())} is neither "
                f"one with an area nor all NaN, which says that it is not known"
            )
        visible = known if self.visible is None else np.asarray(self.visible, bool)
        angles = None if self.angles is None else np.asarray(self.angles, np.float64)
        for what, values in (("visible", visible), ("angles", angles)):
            if values is not None and values.shape != (count,):
                raise ValueError(f"{self.name}: {count} frames need {what} ({count},); got {values.shape}")
        for what, values in (("boxes", boxes), ("visible", visible & known), ("angles", angles)):
            object.__setattr__(self, what, values)

    def __len__(self) -> int:
        return len(self.frames)

    def __repr__(self) -> str:
        hidden = len(self) - int(self.visible.sum())
        notes = f", {hidden} without a visible target" * bool(hidden) + ", angles" * (self.angles is not None)
        return f"Clip({self.name}: {len(self)} frames{notes})"

    def frame(self, index: int) -> Array:
        """The image (H, W, 3) uint8 RGB."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.name} has {len(self)} frames; got index {index}")
        found = self.frames[index % len(self)]
        image = read_frame(found) if isinstance(found, str | os.PathLike) else np.asarray(found)
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
            raise ValueError(
                f"{self.name}: a frame is (H, W, 3) uint8; frame {index} is {image.shape} {image.dtype}"
            )
        return image

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the first frame; of a file only the header is read."""
        first = self.frames[0]
        return frame_size(first) if isinstance(first, str | os.PathLike) else self.frame(0).shape[:2]


def otb(folder: str | os.PathLike[str], names: Iterable[str] | None = None) -> list[Clip]:
    """The sequences ``<Name>/img/0001.jpg …`` and ``<Name>/groundtruth_rect.txt`` of OTB in ``folder``.

    By name, or those of ``names`` in their order. Numbers are separated by commas, tabs or spaces; x and y
    count from 1. A box that is NaN or has no area is not known; the first one must be. Two targets,
    ``groundtruth_rect.1.txt`` and ``.2.txt``, are two clips, Jogging-1 and Jogging-2, unless one is empty.
    With more frames than boxes, the frames are those of :data:`RANGES`, or else the first ones, as in OTB.
    More boxes than frames are an error. If there is an ``angles.txt``, a number for each box, it is read too.
    """
    place = _need_folder(folder)
    children = [child for child in sorted(place.iterdir()) if child.name[0] != "." and _is_otb(child)]
    if not children:
        inside = next((place / name for name in ("otb", "OTB", "OTB100") if (place / name).is_dir()), None)
        meant = f"did you mean {inside}?" if inside else "they are folders with img/ and groundtruth_rect.txt"
        raise FileNotFoundError(f"{place} holds no sequences of OTB: {meant}")
    if names is None:
        return [_otb_clip(*target) for child in children for target in _targets(child)]
    chosen = []
    for name in [names] if isinstance(names, str) else names:
        near = [child for child in children if name == child.name or name.startswith(f"{child.name}-")]
        targets = [target for child in near for target in _targets(child)]
        found = [target for target in targets if name in (target[0], target[1].name)]
        if not found:
            known = [target[0] for target in targets] or [child.name for child in children]
            raise ValueError(f"{place} holds no sequence {name!r}; {nearest(name, known)}")
        chosen += [target for target in found if target[0] == name] or found
    return [_otb_clip(*target) for target in chosen]


def got10k(folder: str | os.PathLike[str]) -> list[Clip]:
    """The sequences that ``list.txt`` in ``folder`` names, with their labels, in the layout of GOT-10k.

    ``folder`` is one of its parts, such as ``train``. In ``groundtruth.txt`` x and y count from 1; a box that
    is NaN or has no area is not known. A target is visible where it is not absent and more than 30 % of it
    shows: ``cover.label``, in eighths, is above 1 and above 0.3 times the highest of the sequence, which is
    the published filter. ``cut_by_image.label`` must be as long and decides nothing: a target that the border
    cuts is visible. A label file that is not there says nothing. In the part ``test`` there is none, and
    only the first box is known.
    """
    place = _need_folder(folder)
    if not (place / "list.txt").is_file():
        inside = next((p.parent for p in sorted(place.glob("*/list.txt"))), None)
        meant = f"did you mean {inside}?" if inside else "it names the sequences, a line each"
        raise FileNotFoundError(f"there is no {place / 'list.txt'}: {meant}")
    lines = (place / "list.txt").read_text(encoding="utf-8-sig").splitlines()
    names = [name for line in lines if (name := line.strip())]
    if len(set(names)) < len(names) or not names:
        twice = next((name for name in names if names.count(name) > 1), None)
        raise ValueError(f"{place / 'list.txt'} {f'names {twice} twice' if twice else 'names no sequence'}")
    return [_got10k_clip(place, name) for name in names]


def usable(
    clip: Clip,
    sides: tuple[float, float] = (20, 500),
    shares: tuple[float, float] = (0.01, 0.5),
    aspects: tuple[float, float] = (0.25, 4),
) -> Array:
    """Which frames (T,) are fit to train on; by default those that pass the published filter.

    The target is visible, its width and its height are within ``sides`` in pixels, and within ``shares`` of
    the width and the height of the first frame, and width / height is within ``aspects``; bounds included.
    """
    given = clip.boxes[:, 2:]
    share, aspect = given / np.array(clip.size[::-1]), given[:, 0] / given[:, 1]
    good = (given >= sides[0]) & (given <= sides[1]) & (share >= shares[0]) & (share <= shares[1])
    return clip.visible & good.all(1) & (aspect >= aspects[0]) & (aspect <= aspects[1])


def _otb_clip(name: str, folder: Path, truth: Path) -> Clip:
    boxes = read_numbers(truth, 4)
    files = image_names(folder / "img")
    if len(files) > len(boxes):
        first, last = RANGES.get(folder.name, (-1, -1))
        some = [f for at, f in enumerate(files, 1) if first <= image_number(f, at) <= last]
        files = (some or files)[: len(boxes)]
        if len(files) == len(boxes) and (gap := missing_frame(folder / "img", files)):
            raise ValueError(f"{gap} is missing, and no one can tell which boxes are whose: put it back")
    if len(files) < len(boxes):
        raise ValueError(miscounted(folder / "img", files, truth, len(boxes)))
    boxes = _counted_from_0(truth, boxes)
    if np.isnan(boxes[0]).any():
        raise ValueError(
            f"{truth}: the first box is NaN or has no area, and a tracker starts with it: "
            f"take out what is before the first box that is known, here and in img/"
        )
    angles = None
    if (beside := folder / "angles.txt").is_file():
        angles = read_numbers(beside, 1)[:, 0]
        if len(angles) != len(boxes) or not np.isfinite(angles).all():
            raise ValueError(
                f"{beside} needs a finite number for each of {len(boxes)} boxes; it has {len(angles)}"
            )
    return Clip(name, Files(str(folder / "img"), np.array(files)), boxes, angles=angles)


def _is_otb(folder: Path) -> bool:
    return (folder / "img").is_dir() or any(folder.glob("groundtruth_rect*.txt"))


def _targets(folder: Path) -> list[tuple[str, Path, Path]]:
    """Of each target the name of its clip, the folder and the file of boxes."""
    truths = sorted(folder.glob("groundtruth_rect*.txt"), key=lambda path: (len(path.name), path.name))
    if not truths or not (folder / "img").is_dir():
        missing = "img/" if truths else "groundtruth_rect.txt"
        raise FileNotFoundError(f"the sequence {folder} is incomplete: put its {missing} there")
    filled = [path for path in truths if path.read_bytes().strip()]  # Human4 has one that is empty
    if not filled:
        raise ValueError(f"{truths[0]} is empty: it needs 4 numbers a line")
    if len(filled) == 1:
        return [(folder.name, folder, filled[0])]
    return [(f"{folder.name}-{k}", folder, path) for k, path in enumerate(filled, 1)]


def _got10k_clip(place: Path, name: str) -> Clip:
    folder = place / name
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{place / 'list.txt'} names {name}, and there is no folder {folder}: "
            f"put it there, or take the name out"
        )
    truth = folder / "groundtruth.txt"
    files, boxes = image_names(folder), _counted_from_0(truth, read_numbers(truth, 4))
    paths = {what: folder / f"{what}.label" for what in ("absence", "cover", "cut_by_image")}
    labels = {what: read_numbers(path, 1)[:, 0] for what, path in paths.items() if path.is_file()}
    if len(boxes) == 1 and not labels and files:  # the part test
        boxes = np.concatenate([boxes, np.full((len(files) - 1, 4), np.nan)])
    if len(files) != len(boxes):
        raise ValueError(miscounted(folder, files, truth, len(boxes)))
    for what, values in labels.items():
        if len(values) != len(files):
            raise ValueError(f"{paths[what]} has {len(values)} labels for {len(files)} frames: replace it")
    visible = ~np.isnan(boxes[:, 0])
    if "absence" in labels:
        visible &= labels["absence"] == 0
    if "cover" in labels:
        visible &= labels["cover"] > max(1.0, 0.3 * float(labels["cover"].max()))
    return Clip(name, Files(str(folder), np.array(files)), boxes, visible)


def _counted_from_0(truth: Path, boxes: Array) -> Array:
    """Boxes of a file, x and y counted from 0; those that are NaN or have no area are all NaN."""
    broken = (boxes[:, 2:] < 0).any(1) | np.isinf(boxes).any(1)
    if broken.any():
        raise ValueError(
            f"{truth}: line {int(broken.argmax()) + 1} is {boxes[broken][0].tolist()}, and a box has finite "
            f"numbers and sides that are not negative; one that is not known is NaN,NaN,NaN,NaN"
        )
    known = ~np.isnan(boxes).any(1, keepdims=True) & (boxes[:, 2:] > 0).all(1, keepdims=True)
    return np.where(known, boxes - np.array([1.0, 1, 0, 0]), np.nan)


def _need_folder(folder: str | os.PathLike[str]) -> Path:
    place = Path(folder).expanduser()
    if not place.is_dir():
        raise FileNotFoundError(f"there is no folder {place} with sequences")
    return place
