"""Folders of clips, in the layouts of OTB and GOT-10k."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..._text import nearest
from .boxes import COUNT_FROM_1, has_area
from .clip import Array, Clip
from .frames import Files, count_error, image_names, image_number, missing_frame, read_lines, read_numbers

__all__ = ["ANNOTATED_RANGES", "Clip", "got10k", "otb"]

ANNOTATED_RANGES = {
    "David": (300, 770),
    "Diving": (1, 215),
    "Football1": (1, 74),
    "Freeman3": (1, 460),
    "Freeman4": (1, 283),
}
"""Sequences of OTB that are annotated in part: numbers of the first and last frame with a box."""
MIN_COVER = 0.3
"""Share of a target of GOT-10k that must show for it to be visible, as published."""


def otb(folder: str | os.PathLike[str], names: Iterable[str] | None = None) -> list[Clip]:
    """Read sequences in the layout of OTB.

    A sequence is ``<Name>/img/0001.jpg …`` and ``<Name>/groundtruth_rect.txt``.

    Numbers are separated by commas, tabs or spaces; x and y are counted from 1 in the files, and
    from 0 in the clips. A box that is NaN or has no area is not known, but the first one must be.
    Two targets, ``groundtruth_rect.1.txt`` and ``.2.txt``, are two clips, Jogging-1 and Jogging-2,
    unless one file is empty. If there are more frames than boxes, the boxes belong to
    :data:`ANNOTATED_RANGES` or else to the first frames, as in OTB. ``angles.txt``, a number for
    each box, is read if it exists.

    For GOT-10k, whose layout is different, use :func:`got10k`.

    Args:
        folder: The folder that holds the sequences.
        names: Sequences or clips to read, in this order; by default all of them, by name.

    Raises:
        FileNotFoundError: There is no sequence here, or a part of one is missing.
        ValueError: A name does not exist, or boxes and frames do not fit together.
    """
    place = _existing_folder(folder)
    sequences = _list_otb(place)
    targets: list[_Target] = []
    if names is None:
        for sequence in sequences:
            targets += _targets(sequence)
    else:
        if isinstance(names, str):
            names = [names]  # a text is a sequence of letters, which nobody means
        for name in names:
            targets += _resolve(place, sequences, name)
    return [_read_otb(target) for target in targets]


def got10k(folder: str | os.PathLike[str]) -> list[Clip]:
    """Read the sequences named in ``list.txt``, with their labels, in the layout of GOT-10k.

    In ``groundtruth.txt`` x and y are counted from 1; a box that is NaN or has no area is not
    known. The target is visible where it is not absent and more than 30 % of it shows:
    ``cover.label``, in eighths, is above 1 and above 0.3 times the highest of the sequence, which
    is the published filter. ``cut_by_image.label`` must have the same length but decides nothing: a
    target cut by the border is visible. Label files may be missing. The split ``test`` has none,
    and only its first boxes are known.

    For OTB, whose layout is different, use :func:`otb`.

    Args:
        folder: One of GOT-10k's splits, such as ``train``.

    Raises:
        FileNotFoundError: ``list.txt``, or a sequence that it names, is missing.
        ValueError: ``list.txt`` is empty or has a name twice, or boxes, labels and frames do not
            fit together.
    """
    place = _existing_folder(folder)
    listing = place / "list.txt"
    if not listing.is_file():
        hint = "it must name the sequences, one on each line"
        for inside in sorted(place.glob("*/list.txt")):
            hint = f"did you mean {inside.parent}?"
            break
        raise FileNotFoundError(f"there is no {listing}: {hint}")

    names: dict[str, None] = {}  # a set that keeps the order
    for line in read_lines(listing):
        name = line.strip()
        if name in names:
            raise ValueError(f"{listing} names {name} twice: remove one of them")
        if name:
            names[name] = None
    if not names:
        raise ValueError(f"{listing} names no sequence: write one name on each line")
    return [_read_got10k(place, name) for name in names]


class _Target(NamedTuple):
    """One target of a sequence of OTB; a few sequences have two."""

    clip_name: str
    folder: Path
    truth: Path
    """The file with its boxes."""


def _list_otb(place: Path) -> list[Path]:
    """Return the folders of sequences, by name; they may turn out to be incomplete."""
    sequences = []
    for child in sorted(place.iterdir()):
        has_frames = (child / "img").is_dir()
        has_boxes = any(child.glob("groundtruth_rect*.txt"))
        if (has_frames or has_boxes) and not child.name.startswith("."):
            sequences.append(child)
    if sequences:
        return sequences
    hint = "they are folders with img/ and groundtruth_rect.txt"
    for name in ("otb", "OTB", "OTB100"):
        if (place / name).is_dir():
            hint = f"did you mean {place / name}?"
            break
    raise FileNotFoundError(f"{place} holds no sequences of OTB: {hint}")


def _targets(sequence: Path) -> list[_Target]:
    """Return the targets of a sequence, the clips Jogging-1 and Jogging-2 if there are two."""
    truths = list(sequence.glob("groundtruth_rect*.txt"))
    truths.sort(key=lambda path: (len(path.name), path.name))  # .2 comes before .10
    if not truths:
        raise FileNotFoundError(f"the sequence {sequence} is incomplete: put its groundtruth_rect.txt there")
    if not (sequence / "img").is_dir():
        raise FileNotFoundError(f"the sequence {sequence} is incomplete: put its img/ there")
    filled = [path for path in truths if path.read_bytes().strip()]  # Human4 has one that is empty
    if not filled:
        raise ValueError(f"{truths[0]} is empty: it needs 4 numbers on each line")
    if len(filled) == 1:
        return [_Target(sequence.name, sequence, filled[0])]
    targets = []
    for number, path in enumerate(filled, 1):
        targets.append(_Target(f"{sequence.name}-{number}", sequence, path))
    return targets


def _resolve(place: Path, sequences: Sequence[Path], name: str) -> list[_Target]:
    """Return the target of this name, or all targets of the sequence of this name."""
    # only folders that may be meant: one that is incomplete must not spoil the others
    candidates: list[_Target] = []
    for sequence in sequences:
        if name == sequence.name or name.startswith(f"{sequence.name}-"):
            candidates += _targets(sequence)
    # the name of a clip wins over that of a folder
    for target in candidates:
        if target.clip_name == name:
            return [target]
    of_sequence = [target for target in candidates if target.folder.name == name]
    if of_sequence:
        return of_sequence
    known = [target.clip_name for target in candidates]
    if not known:
        known = [sequence.name for sequence in sequences]
    raise ValueError(f"{place} holds no sequence {name!r}; {nearest(name, known)}")


def _read_otb(target: _Target) -> Clip:
    images = target.folder / "img"
    lines = read_numbers(target.truth, 4)
    names = _annotated(target, image_names(images), len(lines))
    boxes = _boxes_from_file(target.truth, lines)
    if np.isnan(boxes[0]).any():
        raise ValueError(
            f"{target.truth}: a tracker starts from the first box, but it is NaN or has no area: "
            f"remove everything before the first known box, here and in img/"
        )
    angles = None
    angle_file = target.folder / "angles.txt"
    if angle_file.is_file():
        angles = read_numbers(angle_file, 1)[:, 0]
        if len(angles) != len(boxes) or not np.isfinite(angles).all():
            raise ValueError(
                f"{angle_file} needs a finite number for each of {len(boxes)} boxes; it has {len(angles)}"
            )
    return Clip(target.clip_name, Files(str(images), np.array(names)), boxes, angles=angles)


def _annotated(target: _Target, names: list[str], boxes: int) -> list[str]:
    """Return the image files that the boxes belong to, as many as there are boxes."""
    images = target.folder / "img"
    if len(names) > boxes:
        first, last = ANNOTATED_RANGES.get(target.folder.name, (-1, -1))
        in_range = []
        for position, name in enumerate(names, 1):
            if first <= image_number(name, position) <= last:
                in_range.append(name)
        names = (in_range or names)[:boxes]
        gap = missing_frame(images, names)
        # with a gap, all later boxes would move to the wrong frames
        if gap and len(names) == boxes:
            raise ValueError(
                f"{gap} is missing, so it is unclear which box belongs to which frame: put it back"
            )
    if len(names) < boxes:
        raise ValueError(count_error(images, names, target.truth, boxes))
    return names


def _read_got10k(place: Path, name: str) -> Clip:
    folder = place / name
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{place / 'list.txt'} names {name}, but there is no folder {folder}: "
            f"put it there, or remove the name"
        )
    truth = folder / "groundtruth.txt"
    names = image_names(folder)
    boxes = _boxes_from_file(truth, read_numbers(truth, 4))
    labels = {}
    for label in ("absence", "cover", "cut_by_image"):
        path = folder / f"{label}.label"
        if path.is_file():
            labels[label] = read_numbers(path, 1)[:, 0]

    if len(boxes) == 1 and not labels and names:  # the split test
        unknown = np.full((len(names) - 1, 4), np.nan)
        boxes = np.concatenate([boxes, unknown])
    if len(names) != len(boxes):
        raise ValueError(count_error(folder, names, truth, len(boxes)))
    for label, values in labels.items():
        if len(values) != len(names):
            path = folder / f"{label}.label"
            raise ValueError(f"{path} has {len(values)} labels for {len(names)} frames: replace it")

    visible = ~np.isnan(boxes[:, 0])
    if "absence" in labels:
        visible &= labels["absence"] == 0
    if "cover" in labels:
        cover = labels["cover"]  # in eighths; some sequences never show all of their target
        visible &= cover > max(1.0, MIN_COVER * float(cover.max()))
    return Clip(name, Files(str(folder), np.array(names)), boxes, visible)


def _boxes_from_file(truth: Path, lines: Array) -> Array:
    """Return boxes counted from 0; those that are NaN or have no area become all NaN."""
    infinite = np.isinf(lines).any(1)
    negative = (lines[:, 2:] < 0).any(1)
    broken = np.flatnonzero(infinite | negative)
    if len(broken):
        first = int(broken[0])
        raise ValueError(
            f"{truth}: line {first + 1} is {lines[first].tolist()}, but a box has finite numbers and no "
            f"negative side; write NaN,NaN,NaN,NaN if it is not known"
        )
    boxes = lines - COUNT_FROM_1
    boxes[~has_area(lines)] = np.nan
    return boxes


def _existing_folder(folder: str | os.PathLike[str]) -> Path:
    place = Path(folder).expanduser()
    if not place.is_dir():
        raise FileNotFoundError(f"there is no folder {place} with sequences")
    return place
