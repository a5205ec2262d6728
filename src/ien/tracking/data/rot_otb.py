"""Rot-OTB: a clip whose frames rotate, made on the fly or written as a folder in OTB's layout.

Rot-OTB itself was never published; the paper only says "rotated at a rate of 0.5 frames per
second". Here that is half a turn a second at 30 frames a second, 6° a frame, counter-clockwise
about the middle of the frame, on a square canvas that loses no corner, filled with the mean colour
of the frame. The box is the upright box around the rotated box.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F

from ..._files import whole_or_nothing
from ..._text import to_install
from .boxes import COUNT_FROM_1, boxes_at, centres, cos_sin, upright_sides
from .clip import Array, Clip

__all__ = ["rotated", "write"]

Point = tuple[float, float]


def rotated(clip: Clip, turns_per_second: float = 0.5, fps: float = 30) -> Clip:
    """Return the clip with frame i rotated by ``360 * turns_per_second * i / fps`` degrees.

    Frames are rotated counter-clockwise about their middle when they are asked for, bilinearly and
    once; quarter turns only move pixels. To rotate images for training use a :class:`ien.Group`.

    Args:
        clip: Its frames must have one size. Its angles, if any, are added to those of the result.
        turns_per_second: The rate, 0 or more.
        fps: Frames that make a second.

    Returns:
        A clip with angles, which grow beyond 360°.

    >>> from ien.tracking.data.synthetic import synthetic
    >>> rotated(synthetic(0, frames=3, turning=False)).angles.tolist()
    [0.0, 6.0, 12.0]
    """
    rate = 360 * turns_per_second
    if not 0 <= rate < math.inf or not 0 < fps < math.inf:
        raise ValueError(
            f"turns_per_second must be 0 or more and fps above 0; got {turns_per_second} and {fps}"
        )
    degrees = rate * np.arange(len(clip)) / fps
    size = clip.size  # reads the first frame, or its header
    side, pivot = _canvas(size)
    frames = _RotatedFrames(clip, degrees, size, side, pivot)

    boxes = frames.boxes()
    start = boxes[:, :2]
    end = start + boxes[:, 2:]
    after_end = start > side - 0.5
    before_start = end < 0.5
    boxes[(after_end | before_start).any(1)] = np.nan  # less than half a pixel of it is in view
    angles = degrees
    if clip.angles is not None:
        angles = clip.angles + degrees
    return Clip(clip.name, frames, boxes, clip.visible, angles)


def write(
    clip: Clip,
    folder: str | os.PathLike[str],
    suffix: Literal[".jpg", ".png"] = ".jpg",
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write a clip as the sequence ``folder/<name>`` in OTB's layout, completely or not at all.

    Boxes have four decimals and are counted from 1; unknown ones are NaN. Angles, if any, go to
    ``angles.txt``, one on each line, and :func:`ien.tracking.data.clips.otb` reads them. The layout
    cannot say where a target is not visible: do not use it to keep clips of GOT-10k.

    Args:
        clip: Any clip; its name becomes the name of the folder.
        folder: Where the sequence's folder goes.
        suffix: ``.jpg``, of quality 95, as other tools read OTB; or ``.png``, which keeps every
            pixel.
        progress: Called as ``progress(frames_done, frames_total)`` after each frame.

    Returns:
        The folder of the sequence.

    Raises:
        FileExistsError: The folder exists already.
    """
    place = Path(folder).expanduser() / clip.name
    if clip.name in ("", ".", "..") or Path(clip.name).name != clip.name:
        raise ValueError(f"the clip's name must be usable as the name of a folder; got {clip.name!r}")
    if suffix not in (".jpg", ".png"):
        raise ValueError(f"suffix must be .jpg or .png; got {suffix!r}")
    if place.exists():
        raise FileExistsError(f"{place} exists already: move or delete it, or write to another folder")

    digits = max(4, len(str(len(clip))))
    place.parent.mkdir(parents=True, exist_ok=True)
    with whole_or_nothing(place) as part:
        images = part / "img"
        images.mkdir(parents=True)
        for index in range(len(clip)):
            name = f"{index + 1:0{digits}d}{suffix}"
            _save(clip.frame(index), images / name)
            if progress:
                progress(index + 1, len(clip))
        with open(part / "groundtruth_rect.txt", "w") as file:
            for x, y, width, height in (clip.boxes + COUNT_FROM_1).tolist():
                file.write(f"{x:.4f},{y:.4f},{width:.4f},{height:.4f}\n")
        if clip.angles is not None:
            with open(part / "angles.txt", "w") as file:
                for angle in clip.angles.tolist():
                    file.write(f"{angle!r}\n")
    return place


@dataclass(frozen=True, eq=False)
class _RotatedFrames:
    """Frames of a clip, rotated about ``pivot``, which lies in the middle of a square canvas."""

    source: Clip
    degrees: Array
    size: tuple[int, int]
    """Rows and columns of the frames."""
    side: int
    """Of the canvas."""
    pivot: Point

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Array:
        image = self.source.frame(index)
        rows, columns = image.shape[:2]
        if (rows, columns) != self.size:
            raise ValueError(
                f"{self.source.name}: frame {index} has {columns}×{rows} pixels and the first "
                f"{self.size[1]}×{self.size[0]}; only frames of one size can be rotated"
            )
        degrees = float(self.degrees[index])
        if degrees % 90:
            return self.resampled(image, degrees)
        return self.pasted(image, degrees)

    def boxes(self) -> Array:
        """Return boxes (T, 4) whose centres rotate with the frame and whose sides are upright."""
        before = self.source.boxes
        sides = upright_sides(before[:, 2:], self.degrees)
        middles = self.moved(centres(before), self.degrees)
        return boxes_at(middles, sides)

    def moved(self, points: Array, degrees: Array) -> Array:
        """Return where points (T, 2) of the frame lie on the canvas.

        middle + R (point - pivot), where R = [[cos, sin], [-sin, cos]], as y points down
        """
        cos, sin = cos_sin(degrees)
        x, y = (points - np.array(self.pivot)).T
        new_x = cos * x + sin * y
        new_y = cos * y - sin * x
        middle = (self.side - 1) / 2
        return np.stack([new_x, new_y], 1) + middle

    def pasted(self, image: Array, degrees: float) -> Array:
        """Rotate by quarter turns, after which pixels lie on pixels of the canvas."""
        rows, columns = self.size
        ends = np.array([[0.0, 0.0], [columns - 1.0, rows - 1.0]])  # opposite corners
        moved_ends = self.moved(ends, np.full(2, degrees))
        left, top = map(round, moved_ends.min(0).tolist())
        turned = np.rot90(image, round(degrees / 90))
        height, width = turned.shape[:2]
        canvas = np.empty((self.side, self.side, 3), np.uint8)
        by_rows = canvas.reshape(self.side, -1)  # much faster to fill than by pixels
        by_rows[:] = np.tile(_rounded_mean(image), self.side)
        canvas[top : top + height, left : left + width] = turned
        return canvas

    def resampled(self, image: Array, degrees: float) -> Array:
        """Read each pixel of the canvas from the image at pivot + R⁻¹ (pixel - middle)."""
        rows, columns = self.size
        middle = (self.side - 1) / 2
        cos, sin = map(float, cos_sin(degrees))
        x = torch.arange(self.side, dtype=torch.float64) - middle  # (side,)
        y = torch.arange(self.side, dtype=torch.float64)[:, None] - middle  # (side, 1)
        # grid_sample counts in sides of length 2; summing in float64 leaves no drift
        across, down = 2 / columns, 2 / rows
        shift_x = across * (self.pivot[0] + 0.5) - 1
        shift_y = down * (self.pivot[1] + 0.5) - 1
        grid = torch.empty(1, self.side, self.side, 2)
        grid_x, grid_y = grid[0, ..., 0], grid[0, ..., 1]
        torch.add(cos * across * x + shift_x, -sin * across * y, out=grid_x)
        torch.add(sin * down * x + shift_y, cos * down * y, out=grid_y)

        # Pillow takes as long, and truncates instead of rounding, which darkens
        fill = torch.from_numpy(_rounded_mean(image)).float()[:, None, None]  # (3, 1, 1)
        pixels = torch.from_numpy(image).permute(2, 0, 1).float()  # (3, rows, columns)
        pixels = pixels - fill  # what lies outside is then 0
        result = F.grid_sample(pixels[None], grid, align_corners=False)[0]
        # the conversion to integers truncates: 0.5 makes it round
        result = result.add_(fill + 0.5).clamp_(0, 255).to(torch.uint8)
        return result.permute(1, 2, 0).contiguous().numpy()  # (side, side, 3)


def _canvas(size: tuple[int, int]) -> tuple[int, Point]:
    """Return the side of the canvas, and the pivot: the point of the frame put at its middle.

    The canvas is as wide as the diagonal, so that it loses no corner. For quarter turns to move
    pixels onto pixels, both coordinates of the pivot must be whole numbers on a canvas of odd side,
    or both halves on one of even side. The nearer of the two to the middle of the frame is taken.
    """
    rows, columns = size
    middle = ((columns - 1) / 2, (rows - 1) / 2)
    choices: list[tuple[float, int, Point]] = []
    for parity in (0, 1):
        # the nearest point with whole coordinates, or with halves
        half = 0.0 if parity else 0.5
        x = math.floor(middle[0] + 0.5 - half) + half
        y = math.floor(middle[1] + 0.5 - half) + half
        # from the pivot to the borders of the outermost pixels
        far_x = max(x + 0.5, columns - 0.5 - x)
        far_y = max(y + 0.5, rows - 0.5 - y)
        side = math.ceil(2 * math.hypot(far_x, far_y))
        if side % 2 != parity:
            side += 1
        away = math.hypot(x - middle[0], y - middle[1])
        choices.append((away, side, (x, y)))
    _, side, pivot = min(choices)
    return side, pivot


def _rounded_mean(image: Array) -> Array:
    """Return the mean colour (3,) as uint8."""
    row_sums = image.reshape(len(image), -1, 3).sum(0, dtype=np.uint32)  # (columns, 3)
    sums = row_sums.sum(0, dtype=np.uint64)  # (3,)
    return np.round(sums / (image.size // 3)).astype(np.uint8)


def _save(image: Array, path: Path) -> None:
    try:
        from PIL import Image
    except ModuleNotFoundError:
        command = to_install("track", "pillow")
        raise ModuleNotFoundError(f"writing frames needs pillow: {command}") from None
    try:
        Image.fromarray(image).save(path, quality=95, subsampling=0)
    except OSError as error:
        raise OSError(f"cannot write {path} ({error.strerror or error})") from None
